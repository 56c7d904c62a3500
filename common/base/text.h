/* Numbers and names from text that refuse rubbish, and small text helpers. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whole text, decimal, no sign but '-', no spaces. -EINVAL, -ERANGE outside [min, max]. */
int mf_parse_i64(const char *text, int64_t min, int64_t max, int64_t *ret);
/* Whole text, finite decimal number. -EINVAL, -ERANGE. */
int mf_parse_double(const char *text, double *ret);
/* The same, with or without a % behind it; what that makes of it is the caller's. */
int mf_parse_percent(const char *text, double *ret, bool *ret_sign);
/* "1 true True yes on" and "0 false False no off". -EINVAL. */
int mf_parse_bool(const char *text, bool *ret);
/* Copies with truncation refused: -ENAMETOOLONG leaves dst empty. */
int mf_copy(char *dst, size_t cap, const char *src);
/* snprintf that cuts silently: for messages to people only. Always terminates. */
void mf_format(char *dst, size_t cap, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Append a part at `at`, before end, and cut it silently; give where its 0 stands, for the next part. For what is printed once a
 * step, where a format costs ten times as much. */
char *mf_append(char *at, const char *end, const char *text);
char *mf_append_i64(char *at, const char *end, int64_t value);
/* Name of letters, digits and "_.-" only, 1 to max characters. */
bool mf_is_name(const char *text, size_t max);
/* Shell-style match of * and ? over the whole text. */
bool mf_glob(const char *pattern, const char *text);
/* Bytes of the UTF-8 character at text, which has left bytes to the end (at least one); 0 when it is none. Refuses overlong
 * forms, surrogates and what lies beyond U+10FFFF. */
size_t mf_utf8_length(const void *text, size_t left);
/* Letters added, left out or taken for another that make one name of the other, capital letters being as small ones. Of each
 * the first MF_EDIT_MAX bytes. */
#define MF_EDIT_MAX 40
size_t mf_edit_distance(const char *a, size_t a_len, const char *b, size_t b_len);
/* 64-bit FNV-1a. */
uint64_t mf_hash64(const void *data, size_t len, uint64_t seed);
#define MF_HASH_SEED UINT64_C(14695981039346656037)
