/* Enums with text. One list defines the enum, its names and its parser. The database, the API and the CSV use
 * the text, never the numbers.
 *
 *   #define MF_STATUS_MAP(X, P) X(P, OK, "ok") X(P, WRONG, "wrong")
 *   MF_NAMES_DECLARE(mf_status, MF_STATUS_, MF_STATUS_MAP);        in the header
 *   MF_NAMES_DEFINE(mf_status, MF_STATUS_, MF_STATUS_MAP)          in one .c file */
#pragma once

#include <errno.h>
#include <string.h>

#define MF_NAMES_VALUE_(P, NAME, text) P##NAME,
#define MF_NAMES_TEXT_(P, NAME, text)  [P##NAME] = text,

#define MF_NAMES_DECLARE(type, P, MAP)                                                           \
    enum type { MAP(MF_NAMES_VALUE_, P) P##N_ };                                                 \
    /* Text of a value; "?" for an invalid number. */                                            \
    const char *type##_name(enum type value);                                                    \
    /* Accepts the exact text of a value. -EINVAL: no value has this text; *ret is unchanged. */ \
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
