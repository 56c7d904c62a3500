/* Shapes as the API takes and gives them: {12 columns, "form"}; what it takes are numbers, texts or booleans. */
#pragma once

#include <cjson/cJSON.h>
#include <stddef.h>

#include "common/moe/shape.h"

/* The text of a JSON value as a CSV would have it. -EINVAL: an object, an array, null, or longer than cap. */
int mf_json_value_text(const cJSON *value, char *buf, size_t cap);

/* Hears of each thing that is wrong: the member ("": the whole), a code and a sentence. */
typedef int (*mf_shape_problem)(void *context, const char *member, const char *code, const char *why);
/* 1: *ret is a shape; 0: it is none, and tell has heard why; negative: what tell returned. */
int mf_shape_from_json(const cJSON *item, struct mf_shape *ret, mf_shape_problem tell, void *context);

/* {"token": 4, …, "doweight_stage1": 0}: sizes and flags as numbers, the rest as the CSV spells it. New object; NULL when out of
 * memory. */
cJSON *mf_shape_to_json(const struct mf_shape *shape);
/* Member "shape" of a shape's row; one that is no shape's gives an empty object. -ENOMEM. */
int mf_shape_add(cJSON *object, const char *row);
