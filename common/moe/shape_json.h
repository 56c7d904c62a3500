/* Shapes as JSON in the API: {12 columns, "form"}. Input values may be numbers, strings or booleans. */
#pragma once

#include <cjson/cJSON.h>
#include <stddef.h>

#include "common/moe/shape.h"

/* Converts a JSON value to its CSV text. -EINVAL: the value is an object, an array or null, or its text is
 * longer than cap. */
int mf_json_value_text(const cJSON *value, char *buf, size_t cap);

/* Called for each problem with the member ("" for the whole object), a code and a message. */
typedef int (*mf_shape_problem)(void *context, const char *member, const char *code, const char *why);
/* Reads a shape from a JSON object. Returns 1 if *ret is a valid shape, 0 after report() was called for each
 * problem, or the negative return value of report(). */
int mf_shape_from_json(const cJSON *item, struct mf_shape *ret, mf_shape_problem report, void *context);

/* Returns a new object {"token": 4, …, "doweight_stage1": 0}: sizes and flags as numbers, the rest in CSV
 * spelling. NULL if memory runs out. */
cJSON *mf_shape_to_json(const struct mf_shape *shape);
/* Adds member "shape" from a shape's CSV row. The member is an empty object if the row is invalid. -ENOMEM.
 */
int mf_shape_add_to_json(cJSON *object, const char *row);
