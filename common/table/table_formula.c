#include "common/table/table_formula.h"

#include "common/base/text.h"
#include "common/moe/layer.h"

#include <math.h>
#include <stdlib.h>

/* AITER counts a pair of 4-bit floats as one element of one byte, but multiplies by the logical sizes, so
 * each 4-bit float counts as 1 byte. */
static double element_bytes(enum mf_dtype dtype)
{
    return dtype == MF_DTYPE_FP4X2 ? 1.0 : mf_dtype_bits(dtype) / 8.0;
}

/* Returns T·H·b(a) + n·H·E·b(w) + I·H·E·b(w) + T·H·b(dtype), where b is the size of an element in bytes and n
 * is 2I if use_g1u1, else I. */
static double bytes_of(const struct mf_shape *shape)
{
    double t = (double)shape->token, h = shape->model_dim, i = shape->inter_dim, e = shape->expert;
    double n = shape->use_g1u1 ? 2 * i : i;
    double a = element_bytes(shape->q_dtype_a), w = element_bytes(shape->q_dtype_w);
    return t * h * a + n * h * w * e + i * h * w * e + t * h * element_bytes(shape->dtype);
}

/* Rounds like Python's round(value, 2), which rounds the exact decimal value. Multiplying by 100 first would
 * add a rounding error. */
static double round2(double value)
{
    char text[400];
    mf_format(text, sizeof(text), "%.2f", value);
    return strtod(text, NULL);
}

void mf_table_rates(const struct mf_shape *shape, double us, double *ret_tflops, double *ret_bw)
{
    bool timed = isfinite(us) && us > 0;
    *ret_tflops = timed ? round2(mf_layer_flops(shape) / (us * 1e6)) : 0;
    *ret_bw = timed ? round2(bytes_of(shape) / (us * 1e-6) / 1e9) : 0;
}
