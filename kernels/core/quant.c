#include "kernels/core/quant.h"

#include <errno.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "kernels/core/small_float.h"

/* Computes one result for NaN and one for other values and then selects one of the two, without a branch, so
 * that loops over this function vectorise. */
MF_VECTOR_INLINE uint16_t bf16_code(float f)
{
    uint32_t u = mf_bits_of(f);
    uint32_t rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;
    uint32_t nan = u >> 16 | 0x40;
    return (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

uint16_t mf_bf16_from_float(float v)
{
    return bf16_code(v);
}

MF_VECTOR_BODY(, void, mf_bf16_to_floats, (const uint16_t *from, size_t n, float *to), (from, n, to), {
    for (size_t i = 0; i < n; i++)
        to[i] = mf_bf16_to_float(from[i]);
})

MF_VECTOR_BODY(, void, mf_bf16_from_floats, (const float *from, size_t n, uint16_t *to), (from, n, to), {
    for (size_t i = 0; i < n; i++)
        to[i] = bf16_code(from[i]);
})

MF_VECTOR_INLINE struct mf_small_float fp8_of(enum mf_format format)
{
    return format == MF_FORMAT_FP8FNUZ ? MF_E4M3FNUZ : MF_E4M3FN;
}

float mf_fp8_to_float(enum mf_format format, uint8_t v)
{
    return mf_fp8_value(fp8_of(format), v);
}

uint8_t mf_fp8_from_float(enum mf_format format, float v)
{
    return mf_small_code(fp8_of(format), v);
}

int mf_format_of_dtype(enum mf_dtype dtype, enum mf_format *ret)
{
    switch (dtype) {
    case MF_DTYPE_BF16:
        *ret = MF_FORMAT_BF16;
        return 0;
    case MF_DTYPE_FP8_E4M3FN:
        *ret = MF_FORMAT_FP8FN;
        return 0;
    case MF_DTYPE_FP8_E4M3FNUZ:
        *ret = MF_FORMAT_FP8FNUZ;
        return 0;
    case MF_DTYPE_INT8:
        *ret = MF_FORMAT_INT8;
        return 0;
    case MF_DTYPE_INT4:
        *ret = MF_FORMAT_INT4;
        return 0;
    case MF_DTYPE_FP4X2:
        *ret = MF_FORMAT_FP4;
        return 0;
    case MF_DTYPE_FP16:
    case MF_DTYPE_N_:
        break;
    }
    return -EINVAL;
}

/* The format is a constant in each branch, so that the compiler can vectorise both loops. */
MF_VECTOR_BODY(, void, mf_fp8_to_floats,
               (enum mf_format format, const uint8_t *from, size_t n, float scale, float *to),
               (format, from, n, scale, to), {
                   if (format == MF_FORMAT_FP8FNUZ) {
                       for (size_t i = 0; i < n; i++)
                           to[i] = mf_fp8_value(fp8_of(MF_FORMAT_FP8FNUZ), from[i]) * scale;
                   } else {
                       for (size_t i = 0; i < n; i++)
                           to[i] = mf_fp8_value(fp8_of(MF_FORMAT_FP8FN), from[i]) * scale;
                   }
               })

uint32_t mf_poison(enum mf_format format)
{
    switch (format) {
    case MF_FORMAT_INDEX:
        return 0xa5a5a5a5;
    case MF_FORMAT_F32:
        return 0xffa5a5a5;
    case MF_FORMAT_BF16:
        return 0xffa5;
    case MF_FORMAT_FP8FN:
        return 0x7f;
    case MF_FORMAT_FP8FNUZ:
        return 0x80;
    case MF_FORMAT_FP16:
        return 0xfda5;
    case MF_FORMAT_INT8:
    case MF_FORMAT_INT4:
    case MF_FORMAT_FP4:
        return 0xa5;
    case MF_FORMAT_N_:
        break;
    }
    return 0;
}

void mf_poison_fill_bytes(uint32_t poison, int element_bytes, void *to, size_t n)
{
    if (element_bytes == 4) {
        uint32_t *p = to;
        for (size_t i = 0; i < n; i++)
            p[i] = poison;
    } else if (element_bytes == 2) {
        uint16_t *p = to;
        for (size_t i = 0; i < n; i++)
            p[i] = (uint16_t)poison;
    } else {
        memset(to, (int)poison, n);
    }
}

void mf_poison_fill(enum mf_format format, void *to, size_t n_elements)
{
    bool four = format == MF_FORMAT_INDEX || format == MF_FORMAT_F32;
    bool two = format == MF_FORMAT_BF16 || format == MF_FORMAT_FP16;
    mf_poison_fill_bytes(mf_poison(format), four ? 4 : two ? 2 : 1, to, n_elements);
}
