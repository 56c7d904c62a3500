/* Values that a device looks at itself, where they lie in its memory: outputs of bf16 whose reference is plain floats. What they
 * become is judged as the host's rows are (measure/verify/verify.c). */
#pragma once

#include "measure/verify/verify_row.h"

/* Whether its device can; else, and where the device has no room for it, it is pulled and the host looks. */
bool mf_verify_is_there(const struct mf_verify_input *v);

/* mf_verify_row_look of all rows. -ENOMEM: the device has no room; -EIO. */
int mf_verify_look_there(const struct mf_verify_input *v, struct mf_verify_row *rows);

/* Two runs: of each row that is somebody's how far the second's is from the first's, relative to it, < 0 where the two are the same,
 * bit for bit. -ENOMEM, -EIO. */
int mf_verify_apart_there(const struct mf_verify_input *first, const struct mf_guarded *second,
                          double *distances);
