/* Enums with text. One list gives the enum, its names and its parser; the text goes into the database, the
 * API and the CSV, the numbers never do.
 *
 *     #define MF_STATUS_MAP(X, P) X(P, OK, "ok") X(P, WRONG, "wrong")
 *     MF_NAMES_DECLARE(mf_status, MF_STATUS_, MF_STATUS_MAP);        in the header
 *     MF_NAMES_DEFINE(mf_status, MF_STATUS_, MF_STATUS_MAP)          in one .c
 */
#pragma once

#include <errno.h>
#include <string.h>

#define MF_NAMES_VALUE_(P, NAME, text) P##NAME,
#define MF_NAMES_TEXT_(P, NAME, text)  [P##NAME] = text,

#define MF_NAMES_DECLARE(type, P, MAP)                                               \
    enum type { MAP(MF_NAMES_VALUE_, P) P##N_ };                                     \
    /* The text of a value, "?" for a number that is none. */                        \
    const char *type##_name(enum type value);                                        \
    /* Exact match. -EINVAL when the text names no value; *ret is then untouched. */ \
    int type##_parse(const char *text, enum type *ret)

#define MF_NAMES_DEFINE(type, P, MAP)                                              \
    static const char *const type##_texts[] = {MAP(MF_NAMES_TEXT_, P)};            \
    const char *type##_name(enum type value)                                       \
    {                                                                              \
        return (unsigned)value < P##N_ ? type##_texts[value] : "?";                \
    }                                                                              \
    int type##_parse(const char *text, enum type *ret)                             \
    {                                                                              \
        for (unsigned i = 0; text && i < P##N_; i++) {                             \
            if (*text == *type##_texts[i] && strcmp(text, type##_texts[i]) == 0) { \
                *ret = (enum type)i;                                               \
                return 0;                                                          \
            }                                                                      \
        }                                                                          \
        return -EINVAL;                                                            \
    }
