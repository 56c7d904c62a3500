/* Strict parsers for numbers and names, and small string helpers. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Parses the whole text as decimal digits with an optional '-'. -EINVAL: the text has another form, for
 * example spaces. -ERANGE: the number is outside [min, max]. */
int mf_parse_i64(const char *text, int64_t min, int64_t max, int64_t *ret);
/* Parses the whole text as a decimal number. -EINVAL: the text has another form. -ERANGE: the number is too
 * large for a double. */
int mf_parse_double(const char *text, double *ret);
/* Like mf_parse_double, but accepts a trailing '%'. *ret_sign: true if the text ends with '%'. Does not
 * divide by 100. */
int mf_parse_percent(const char *text, double *ret, bool *ret_sign);
/* Accepts "1 true True yes on" and "0 false False no off". -EINVAL: another text. */
int mf_parse_bool(const char *text, bool *ret);
/* Copies the whole string. -ENAMETOOLONG: the string does not fit; dst is empty. */
int mf_copy(char *dst, size_t cap, const char *src);
/* Bounded snprintf that truncates silently and always terminates. Only for messages. */
void mf_format(char *dst, size_t cap, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* These functions write text or a number at `at`, truncated silently at `end`, and return the address of the
 * new terminator. Use them in code that runs once per step, where mf_format would cost ten times as much. */
char *mf_append(char *at, const char *end, const char *text);
char *mf_append_i64(char *at, const char *end, int64_t value);
/* True if the text has 1 to max characters, all of them letters, digits or one of "_.-". */
bool mf_is_name(const char *text, size_t max);
/* Matches a pattern with * and ? against the whole text. */
bool mf_glob(const char *pattern, const char *text);
/* Returns the length in bytes of the UTF-8 character at `text`, or 0 if the character is invalid. left:
 * number of bytes from `text` to the end of the text, at least 1. Rejects overlong forms, surrogates and code
 * points above U+10FFFF. */
size_t mf_utf8_length(const void *text, size_t left);
/* Returns the Levenshtein distance. Ignores ASCII case and all bytes after the first MF_EDIT_MAX of each
 * text. */
#define MF_EDIT_MAX 40
size_t mf_edit_distance(const char *a, size_t a_len, const char *b, size_t b_len);
/* 64-bit FNV-1a. */
uint64_t mf_hash64(const void *data, size_t len, uint64_t seed);
#define MF_HASH_SEED UINT64_C(14695981039346656037)
