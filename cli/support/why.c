#include "cli/support/why.h"

#include <string.h>

#include "common/base/text.h"

bool mf_why_match(const char *pattern, const char *family, const char *kernel)
{
    char name[256];

    mf_format(name, sizeof(name), "%s:%s", family, kernel);
    return !pattern || mf_glob(pattern, kernel) || mf_glob(pattern, name) || mf_glob(pattern, family) ||
           (strcmp(kernel, "*") != 0 && mf_glob(kernel, pattern));
}
