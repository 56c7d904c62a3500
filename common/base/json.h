/* What we need around cJSON: cleanup, reading with refusals, printing with a ceiling. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/cleanup.h"

MF_DEFINE_CLEANUP(cJSON *, cJSON_Delete); /* _cleanup_(cJSON_Deletep) cJSON *json = NULL; */

/* Text of at most max bytes, nesting as cJSON limits it (1000); the whole text must be one value, in UTF-8,
 * without control characters and without \u0000, which would cut a text short. NULL otherwise, errno EBADMSG; or for want of
 * memory, errno ENOMEM: the text may be good. */
cJSON *mf_json_parse(const char *text, size_t len, size_t max);
/* Of a text that it did not take: the line, from 1, at which reading ended. */
size_t mf_json_broken_line(const char *text, size_t len);
/* Each reads member `key` of an object. -ENOENT: absent or null; -EINVAL: another type or out of range.
 * *ret is untouched on failure. A text belongs to the object. */
int mf_json_i64(const cJSON *object, const char *key, int64_t min, int64_t max, int64_t *ret);
int mf_json_double(const cJSON *object, const char *key, double *ret);
int mf_json_bool(const cJSON *object, const char *key, bool *ret);
int mf_json_text(const cJSON *object, const char *key, const char **ret);
/* The same of a value in hand; NULL: absent. */
int mf_json_value_i64(const cJSON *value, int64_t min, int64_t max, int64_t *ret);
int mf_json_value_double(const cJSON *value, double *ret);
/* Member of that type, NULL when absent or of another type. */
cJSON *mf_json_object(const cJSON *object, const char *key);
cJSON *mf_json_array(const cJSON *object, const char *key);
/* Unformatted text on the heap, which the caller frees, byte for byte as cJSON prints it; NULL when out of memory. But it is
 * UTF-8 whatever the texts were: bytes of none, as where a sentence was cut, are '?'. */
char *mf_json_print(const cJSON *json);
/* The same of one number, of one that is whole, and of one text, with its quotes, at the end of a buffer. */
void mf_json_put_number(struct mf_buf *b, double d);
void mf_json_put_u64(struct mf_buf *b, uint64_t value);
void mf_json_put_text(struct mf_buf *b, const char *text);
/* Adds an integer so that it is printed exactly; the readers above take up to 2^53. */
cJSON *mf_json_add_i64(cJSON *object, const char *key, int64_t value);
