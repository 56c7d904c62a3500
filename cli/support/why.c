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
