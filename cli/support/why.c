#include "cli/support/why.h"

#include <string.h>

#include "common/base/text.h"
#include "common/moe/family_name.h"

static bool match_family(const char *pattern, const char *family, const char *kernel)
{
    char name[256];

    mf_format(name, sizeof(name), "%s:%s", family, kernel);
    return mf_glob(pattern, name) || mf_glob(pattern, family);
}

bool mf_why_match(const char *pattern, const char *family, const char *kernel)
{
    const char *current = mf_family_current_name(family), *old = mf_family_old_name(family);

    return !pattern || mf_glob(pattern, kernel) || match_family(pattern, current, kernel) ||
           (old && match_family(pattern, old, kernel)) ||
           (strcmp(kernel, "*") != 0 && mf_glob(kernel, pattern));
}

void mf_why_compare(struct mf_why_similar *best, const char *pattern, const char *family, const char *kernel)
{
    char full[sizeof(best->name)];

    mf_format(full, sizeof(full), "%s:%s", family, kernel);
    const char *name = strchr(pattern, ':') ? full : kernel;
    size_t d = mf_edit_distance(pattern, strlen(pattern), name, strlen(name));
    size_t f = mf_edit_distance(pattern, strlen(pattern), family, strlen(family));

    d = MF_MIN(d, f);
    /* names with more than half of their letters wrong are not similar */
    if (2 * d > strlen(pattern) || (*best->name && d >= best->distance))
        return;
    best->distance = d;
    mf_format(best->name, sizeof(best->name), "%s", f == d ? family : full);
}

int mf_why_no_match(const struct mf_why_similar *best, const char *pattern)
{
    if (*best->name)
        return mf_cli_fail(MF_EXIT_USAGE, "no kernel matches '%s'; did you mean '%s'?", pattern, best->name);
    return mf_cli_fail(MF_EXIT_USAGE, "no kernel matches '%s'; leave the name out to list the kernels",
                       pattern);
}
