/* Plain C fallback for every machine. Sums are accumulated in the order of K. */
#include "kernels/core/quant.h"
#include "kernels/cpu/decode.h"

static float fp8_table[2][256];

static const float *values_of(enum mf_format format)
{
    return fp8_table[format == MF_FORMAT_FP8FNUZ];
}

__attribute__((constructor)) static void fill_tables(void)
{
    for (int i = 0; i < 256; i++) {
        fp8_table[0][i] = mf_fp8_to_float(MF_FORMAT_FP8FN, (uint8_t)i);
        fp8_table[1][i] = mf_fp8_to_float(MF_FORMAT_FP8FNUZ, (uint8_t)i);
    }
}

static inline float weight_at(const struct mf_tile *t, size_t n, size_t k)
{
    size_t group = t->format == MF_FORMAT_BF16 ? 2 : 4, panel = (size_t)t->panel;
    size_t at = t->panel == 1
                    ? n * t->k + k
                    : n / panel * panel * t->k + (k / group * panel + n % panel) * group + k % group;

    if (t->format == MF_FORMAT_BF16)
        return bf16_value(((const uint16_t *)t->w)[at]);
    return values_of(t->format)[((const uint8_t *)t->w)[at]];
}

/* Converts up to 128 K elements of 16 weight rows to floats, [k][16]. All rows of A use the result. */
static void unpack(const struct mf_tile *t, size_t n0, size_t n_end, size_t k0, size_t k_end, float *to)
{
    for (size_t n = n0; n < n_end; n++) {
        for (size_t k = k0; k < k_end; k++)
            to[(k - k0) * 16 + n - n0] = weight_at(t, n, k);
    }
    for (size_t n = n_end; n < n0 + 16; n++) {
        for (size_t k = k0; k < k_end; k++)
            to[(k - k0) * 16 + n - n0] = 0.0f;
    }
}

static void gemm(const struct mf_tile *t)
{
    _Alignas(64) float w[128 * 16];

    for (size_t n0 = 0; n0 < (size_t)t->n; n0 += 16) {
        size_t n_end = n0 + 16 < (size_t)t->n ? n0 + 16 : (size_t)t->n;
        for (size_t k0 = 0; k0 < t->k; k0 += 128) {
            size_t k_end = k0 + 128 < t->k ? k0 + 128 : t->k;
            unpack(t, n0, n_end, k0, k_end, w);
            for (int r = 0; r < t->rows; r++) {
                const uint16_t *a = t->a + (size_t)r * t->lda;
                float *c = t->c + (size_t)r * t->ldc + n0;
                float sum[16] = {0};
                for (size_t k = k0; k < k_end; k++) {
                    float v = bf16_value(a[k]);
                    for (size_t j = 0; j < 16; j++)
                        sum[j] += v * w[(k - k0) * 16 + j];
                }
                for (size_t j = 0; j < n_end - n0; j++) {
                    float s = 1.0f;
                    if (t->a_scale)
                        s = t->a_scale[(size_t)r * t->lda_scale + k0 / 128] *
                            t->w_scale[((size_t)t->n_offset + n0 + j) / 128 * t->ldw_scale + k0 / 128];
                    c[j] = (k0 == 0 ? 0.0f : c[j]) + sum[j] * s;
                }
            }
        }
    }
}

static void pack(enum mf_format format, const void *from, size_t n, uint16_t *to)
{
    if (format == MF_FORMAT_BF16)
        memcpy(to, from, n * 2);
    else
        pack_fp8(format, 0, from, n, to);
}

const struct mf_cpu_ops mf_cpu_ops_c = {
    .isa = MF_ISA_C,
    .decode = decode_weights,
    .unpack = unpack_row,
    .gemm = gemm,
    .pack = pack,
    .activate = activate,
    .scale = scale,
    .add = add,
    .combine = combine,
    .to_bf16 = to_bf16,
};
