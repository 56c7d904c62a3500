/* Fuzzes kernel names. A name recognised as AITER's is stored in the database, written to tables, answers and
 * logs, and shown on the status page, so it may contain only letters, digits and "_.-". */
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "common/moe/step.h"
#include "fuzz.h"
#include "kernels/aiter/aiter.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    _cleanup_(mf_freep) char *name = strndup((const char *)data, size);
    MF_MUST(name);
    bool known = mf_aiter_is_step(name);
    MF_MUST(!known ||
            (name[0] && strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") ==
                            strlen(name)));
    MF_MUST(!known || strlen(name) < MF_STEP_NAME_MAX);
    known = mf_aiter_name_known(NULL, name) != MF_AITER_NO_KERNEL;
    MF_MUST(!known || mf_is_name(name, MF_STEP_NAME_MAX - 1));
    return 0;
}
