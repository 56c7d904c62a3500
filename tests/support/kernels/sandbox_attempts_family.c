/* A family that attempts forbidden operations. It reports each result as the reason of a rejection, such as
 * "tcp: 13". */
#include "kernels/core/family.h"
#include "support/kernels/no_candidates.h"
#include "support/kernels/sandbox_attempts.h"

const struct mf_family *mf_family_entry(void);

static int enumerate(const struct mf_family *f, const struct mf_device_info *device, const struct mf_shape *s,
                     struct mf_offer *offer)
{
    int r = 0;
    (void)device, (void)s;
    for (size_t i = 0; i < N_ATTEMPTS && r >= 0; i++)
        r = offer->reject(offer, f->name, attempts[i].name, "attempt", "%s: %d", attempts[i].name,
                          attempts[i].try());
    return r;
}

const struct mf_family *mf_family_entry(void)
{
    static const struct mf_family family = {
        .api = MF_FAMILY_API,
        .name = "prying",
        .device_kind = "cpu",
        .enumerate = enumerate,
        .open = open_step,
        .launch = launch,
        .close = close_step,
    };
    return &family;
}
