/* What a device class can do at most, by its maker's word: the ceiling that no measured time can be above.
 *
 * The figures are dense (no structured sparsity) and at the highest clock that the maker states. A class can hold several
 * models; then the larger figure of each counts, so that nothing possible is called impossible. */
#pragma once

#include "common/moe/device_class.h"
#include "common/moe/shape.h"

struct mf_device_peak {
    const char *gfx;
    int cu_num;
    const char *model; /* for people: "MI350X, MI355X" */
    double tf_16, tf_8, tf_4,
        ti_8;           /* TFLOP/s of 16, 8 and 4-bit floats, TOP/s of int8; 0: the arithmetic is not there */
    double gbs;         /* GB/s of its memory */
    double cache_mb;    /* of the caches that all units share: what a call may find there */
    const char *source; /* a public document */
};

/* NULL: nobody has written down what that class can do. */
const struct mf_device_peak *mf_device_peak_find(const struct mf_device_class *class);
/* TFLOP/s for activations of that type; of the next wider arithmetic where the device has none of its own. */
double mf_device_peak_tflops(const struct mf_device_peak *peak, enum mf_dtype activations);
