/* A family in a defective shared object. The macro ODD selects the defect. */
#include "kernels/core/family.h"
#include "support/kernels/no_candidates.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>

const struct mf_family *mf_family_entry(void);

static int enumerate(const struct mf_family *f, const struct mf_device_info *device, const struct mf_shape *s,
                     struct mf_offer *offer)
{
    (void)f, (void)device, (void)s, (void)offer;
    if (ODD == 3)
        (void)raise(SIGSEGV);
    if (ODD == 4)
        exit(7);
    return -EIO;
}

#if ODD == 0
#    define mf_family_entry another_name
const struct mf_family *mf_family_entry(void);
#endif

const struct mf_family *mf_family_entry(void)
{
    static const struct mf_family family = {
        .api = ODD == 1 ? 999 : MF_FAMILY_API,
        .name = ODD == 2 ? "move" : "odd",
        .device_kind = ODD == 6 ? "hip" : "cpu",
        .enumerate = enumerate,
        .open = open_step,
        .launch = launch,
        .close = close_step,
    };
    if (ODD == 7)
        (void)raise(SIGSEGV);
    return &family;
}
