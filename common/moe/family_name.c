#include "common/moe/family_name.h"

#include <string.h>

#include "common/base/cleanup.h"

/* clang-format off */
static const struct {
    const char *old, *current;
} renamed[] = {
    {"tile",  "two_stage"},
    {"mx",    "two_stage_mx"},
    {"wint4", "two_stage_int4"},
    {"pair",  "two_stage_single_launch"},
    {"one",   "one_stage"},
    {"layer", "whole_layer_persistent"},
    {"lib",   "onednn"},
};
/* clang-format on */

const char *mf_family_current_name(const char *name)
{
    for (size_t i = 0; i < MF_ARRAY_LEN(renamed); i++) {
        if (strcmp(renamed[i].old, name) == 0)
            return renamed[i].current;
    }
    return name;
}

const char *mf_family_old_name(const char *name)
{
    for (size_t i = 0; i < MF_ARRAY_LEN(renamed); i++) {
        if (strcmp(renamed[i].current, name) == 0 || strcmp(renamed[i].old, name) == 0)
            return renamed[i].old;
    }
    return NULL;
}

static bool has_word(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = list; *at; at += *at == ',') {
        size_t len = strcspn(at, ",");
        if (len == n && strncmp(at, word, n) == 0)
            return true;
        at += len;
    }
    return false;
}

bool mf_family_is_listed(const char *list, const char *name)
{
    const char *old = mf_family_old_name(name);
    return !list || has_word(list, mf_family_current_name(name)) || (old && has_word(list, old));
}
