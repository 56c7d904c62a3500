/* Helpers for cJSON: cleanup, validating readers, fast printing. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/cleanup.h"

MF_DEFINE_CLEANUP(cJSON *, cJSON_Delete);

/* Parses one JSON value of at most max bytes. The text must be valid UTF-8 without control characters and
 * without \u0000, which would terminate a C string early. Nesting is limited to cJSON's 1000 levels. Returns
 * NULL with errno EBADMSG for invalid text, ENOMEM if memory runs out. */
cJSON *mf_json_parse(const char *text, size_t len, size_t max);
/* Returns an upper bound of the number of values in the text, without parsing it. Nested values, and the
 * values of an object's members, count too. Check it before mf_json_parse() on a text from a peer: a parsed
 * value takes about a hundred bytes and far longer than this count. */
size_t mf_json_count(const char *text, size_t len);
/* Like mf_json_parse, but accepts what Python's json module writes for non-finite numbers: Infinity and
 * -Infinity become null, NaN becomes an empty text. */
cJSON *mf_json_parse_python(const char *text, size_t len, size_t max);
/* Returns the number of the line, from 1, at which mf_json_parse() stopped reading an invalid text. */
size_t mf_json_error_line(const char *text, size_t len);
/* Each function reads member `key` of an object. -ENOENT: the member is absent or null. -EINVAL: the member
 * has another type or is out of range. *ret is unchanged on failure. A returned text is owned by the object.
 */
int mf_json_i64(const cJSON *object, const char *key, int64_t min, int64_t max, int64_t *ret);
int mf_json_double(const cJSON *object, const char *key, double *ret);
int mf_json_bool(const cJSON *object, const char *key, bool *ret);
int mf_json_text(const cJSON *object, const char *key, const char **ret);
/* Like mf_json_i64 and mf_json_double, but these functions read `value` itself instead of a member. A NULL
 * value is treated as absent. */
int mf_json_value_i64(const cJSON *value, int64_t min, int64_t max, int64_t *ret);
int mf_json_value_double(const cJSON *value, double *ret);
/* Returns the member, or NULL if it is absent or of another type. */
cJSON *mf_json_object(const cJSON *object, const char *key);
cJSON *mf_json_array(const cJSON *object, const char *key);
/* Prints unformatted JSON, identical to cJSON's, as a heap string that the caller frees. NULL if memory runs
 * out. Invalid UTF-8, as left by truncated messages, is replaced: each invalid byte becomes '?'. */
char *mf_json_print(const cJSON *json);
/* These functions append one number, integer or quoted string to a buffer, in the format of mf_json_print().
 * A number that is not finite becomes null, because JSON has no text for it. */
void mf_json_put_number(struct mf_buf *b, double d);
void mf_json_put_u64(struct mf_buf *b, uint64_t value);
void mf_json_put_text(struct mf_buf *b, const char *text);
/* Adds an integer that is printed with all its digits. The readers above accept only magnitudes up to 2^53.
 */
cJSON *mf_json_add_i64(cJSON *object, const char *key, int64_t value);
