/* Peak performance of device classes from vendor documents, the upper bound of plausible measurements.
 *
 * The figures are dense (no structured sparsity) at the highest clock that the vendor states. If several
 * device models share a class, each figure is the maximum over these models, so that no possible measurement
 * is rejected. */
#pragma once

#include "common/moe/device_class.h"
#include "common/moe/shape.h"

struct mf_device_peak {
    const char *gfx;
    int cu_num;
    const char *model; /* for display: "MI350X, MI355X" */
    /* Peak rates: 16-bit, 8-bit and 4-bit floats in TFLOP/s, int8 in TOP/s; 0: the type is not supported */
    double tf_16, tf_8, tf_4, ti_8;
    double gbs; /* device memory bandwidth in GB/s */
    /* size of the shared cache (L2 or Infinity Cache) in MB; a call may find this amount of its data already
     * in the cache */
    double cache_mb;
    const char *source; /* a public document */
};

/* Returns NULL for a class without known figures. */
const struct mf_device_peak *mf_device_peak_find(const struct mf_device_class *class);
/* Returns how many times the peak of 16- and 32-bit floats, as devices measure it, a device of the class may
 * reach with activations of this type. A tensor core multiplies 2 values of 8 bits or 4 of 4 bits in place of
 * one of 16 bits. VNNI instructions of a CPU multiply 4 integers in place of one float. The peak of AMX is
 * not measured: per cycle, AMX executes 1,024 bf16 or 2,048 int8 operations, AVX-512 at least 64 float
 * operations. */
double mf_device_peak_ratio(const struct mf_device_class *class, enum mf_dtype activations);
/* Returns the peak in TFLOP/s (int8: TOP/s) for activations of this type, or of the next wider type if the
 * device does not support this type. */
double mf_device_peak_tflops(const struct mf_device_peak *peak, enum mf_dtype activations);
