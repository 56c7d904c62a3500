/* A pipeline in one text, as tables, exports and the API have it: its steps in order,
 *
 *     family:step|family:step
 */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>

#include "common/moe/step.h"

#define MF_PIPELINE_TEXT_MAX 4096 /* more than MF_PATH_STEPS_MAX steps need */

/* The next step's name: *at is the text at first, and NULL behind the last. false: there is none. A name is *ret_len bytes, and empty
 * where the text is. */
bool mf_pipeline_text_next(const char **at, const char **ret_name, size_t *ret_len);
/* Its two parts. -EINVAL: no colon between them; -ENAMETOOLONG: one is longer than any of ours. */
int mf_step_name_split(const char *name, size_t len, char ret_family[MF_FAMILY_NAME_MAX],
                       char ret_step[MF_STEP_NAME_MAX]);
/* Adds a step at the text's end. -ENAMETOOLONG: it has no room, and the text stays. */
int mf_pipeline_text_add(char *text, size_t cap, const char *family, const char *step);
/* Its names, as the API lists them: ["family:step", …]; [] of "". New array; NULL when out of memory. */
cJSON *mf_pipeline_text_json(const char *text);
