/* Text form of a pipeline in tables, exports and the API: its steps in order,
 *
 *   family:step|family:step */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>

#include "common/moe/step.h"

#define MF_PIPELINE_TEXT_MAX 4096 /* enough for MF_PATH_STEPS_MAX steps */

/* Gets the next step name. *at is the text on the first call and becomes NULL after the last name. Returns
 * false if there is no further name. *ret_name points into the text and has *ret_len bytes, 0 for an empty
 * text. */
bool mf_pipeline_text_next(const char **at, const char **ret_name, size_t *ret_len);
/* Splits "family:step". -EINVAL: no colon; -ENAMETOOLONG: a part exceeds its limit. */
int mf_step_name_split(const char *name, size_t len, char ret_family[MF_FAMILY_NAME_MAX],
                       char ret_step[MF_STEP_NAME_MAX]);
/* Appends a step. -ENAMETOOLONG: the step does not fit; the text is unchanged. */
int mf_pipeline_text_add(char *text, size_t cap, const char *family, const char *step);
/* Copies a pipeline text to buf and replaces old names of renamed families by the current names
 * (common/moe/family_name.h). buf and text must not overlap. -ENAMETOOLONG: the result does not fit into buf.
 */
int mf_pipeline_text_current(const char *text, char *buf, size_t cap);
/* True if two texts have the same steps. The old name of a family equals its current name. */
bool mf_pipeline_text_equal(const char *a, const char *b);
/* Returns the step names as a new JSON array: ["family:step", …], or [] for an empty text. Returns NULL if
 * memory runs out. */
cJSON *mf_pipeline_text_json(const char *text);
