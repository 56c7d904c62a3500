#include "kernels/core/quant_mx.h"

#include <math.h>

#include "kernels/core/small_float.h"

MF_NAMES_DEFINE(mf_mx_round, MF_MX_, MF_MX_ROUND_MAP)

struct element {
    int max_power2, mantissa_bits;
    float max;
};

static struct element element_of(enum mf_format format)
{
    switch (format) {
    case MF_FORMAT_FP8FN:
        return (struct element){8, 3, 448};
    case MF_FORMAT_FP8FNUZ:
        return (struct element){7, 3, 240};
    case MF_FORMAT_FP4:
    case MF_FORMAT_INDEX:
    case MF_FORMAT_F32:
    case MF_FORMAT_BF16:
    case MF_FORMAT_FP16:
    case MF_FORMAT_INT8:
    case MF_FORMAT_INT4:
    case MF_FORMAT_N_:
        break;
    }
    return (struct element){2, 1, 6};
}

/* Returns the biased exponent of v >= 0, at most 254. If `up` is set, the exponent is rounded up unless v is
 * a power of two. */
static uint8_t exponent_of(float v, bool up)
{
    uint32_t u = mf_bits_of(v);
    int32_t e = (int32_t)(u >> 23) + (up && (u & 0x7fffff) != 0);
    return (uint8_t)(e > 254 ? 254 : e);
}

uint8_t mf_mx_scale(enum mf_format format, enum mf_mx_round round, float amax)
{
    struct element t = element_of(format);
    uint32_t u = mf_bits_of(amax) & 0x7fffffff;
    if (u >= 0x7f800000)
        return 0xff;
    if (u == 0)
        return 0;
    float power2 = mf_float_of((uint32_t)(127 + t.max_power2) << 23);
    switch (round) {
    case MF_MX_UP:
        return exponent_of(mf_float_of(u) / t.max, true);
    case MF_MX_CEIL:
        return exponent_of(mf_float_of(u) / power2, true);
    case MF_MX_EVEN:
        return exponent_of(mf_float_of(u + (1u << (23 - t.mantissa_bits - 1))) / power2, false);
    case MF_MX_DOWN:
    case MF_MX_N_:
        break;
    }
    return exponent_of(mf_float_of(u) / power2, false);
}

float mf_e8m0_to_float(uint8_t code)
{
    return mf_e8m0_value(code);
}

uint8_t mf_e2m1_from_float(float v)
{
    return mf_small_code(MF_E2M1, v);
}
