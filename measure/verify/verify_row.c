#include "measure/verify/verify_row.h"

#include <math.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "kernels/core/codec.h"
#include "kernels/core/layout.h"
#include "kernels/core/limits.h"
#include "kernels/core/quant.h"
#include "kernels/core/vector.h"

/* ---- poison ---- */

/* Counts the elements of one size that hold the poison. */
#define COUNT_POISON(name, type)                                                                     \
    MF_VECTOR_BODY(static, uint32_t, name, (const type *x, size_t n, type poison), (x, n, poison), { \
        uint32_t sum = 0;                                                                            \
        for (size_t i = 0; i < n; i++)                                                               \
            sum += x[i] == poison;                                                                   \
        return sum;                                                                                  \
    })
COUNT_POISON(count4, uint32_t)
COUNT_POISON(count2, uint16_t)
COUNT_POISON(count1, uint8_t)

static uint32_t count_poison(const void *row, int bytes, size_t n, uint32_t poison)
{
    if (bytes == 4)
        return count4(row, n, poison);
    return bytes == 2 ? count2(row, n, (uint16_t)poison) : count1(row, n, (uint8_t)poison);
}

static uint32_t first_poison(const uint8_t *row, int bytes, size_t n, uint32_t poison)
{
    for (size_t i = 0; i < n; i++) {
        if (count_poison(row + i * (size_t)bytes, bytes, 1, poison) > 0)
            return (uint32_t)i;
    }
    return 0;
}

/* In formats where every byte is a valid value, single poison bytes prove nothing. Only a run of at least
 * this many poison bytes counts as unwritten. */
#define POISON_RUN 16

static uint32_t longest_run(const uint8_t *x, size_t n, uint8_t poison, uint32_t *ret_at)
{
    uint32_t longest = 0, run = 0;
    for (size_t i = 0; i < n; i++) {
        run = x[i] == poison ? run + 1 : 0;
        if (run > longest) {
            longest = run;
            *ret_at = (uint32_t)(i + 1 - run);
        }
    }
    return longest;
}

static void look_for_poison(const struct mf_guarded *g, int64_t p, struct mf_verify_row *row)
{
    for (int i = 0; i < g->n_parts; i++) {
        bool is_value;
        uint32_t poison = mf_part_poison(&g->tensor_spec, i, &is_value), run_at = 0;
        size_t cols = (size_t)g->parts[i].cols;
        uint32_t n =
            count_poison(mf_part_row(g->parts, &g->ref, i, p), g->parts[i].element_bytes, cols, poison);
        if (is_value) {
            n = n < MF_MIN((size_t)POISON_RUN, cols)
                    ? 0
                    : longest_run(mf_part_row(g->parts, &g->ref, i, p), cols, (uint8_t)poison, &run_at);
            row->unwritten = n < MF_MIN((size_t)POISON_RUN, cols) ? 0 : n;
            row->unwritten_at = run_at;
        } else if (i > 0) {
            row->unwritten_scales += n;
        } else if (n > 0) {
            row->unwritten = n;
            row->unwritten_at =
                first_poison(mf_part_row(g->parts, &g->ref, i, p), g->parts[i].element_bytes, cols, poison);
        }
    }
}

/* ---- one row against its reference ---- */

static void decode(const struct mf_guarded *g, int64_t p, int64_t cols, float *to)
{
    const struct mf_codec *c = mf_codec_find(g->tensor_spec.format, g->tensor_spec.scale);
    if (g->tensor_spec.format == MF_FORMAT_F32)
        memcpy(to, mf_part_row(g->parts, &g->ref, 0, p), (size_t)cols * sizeof(*to));
    else
        mf_codec_decode_row(c, g->ref.part[0], g->ref.part[1], c->global ? *(const float *)g->ref.part[2] : 1,
                            (size_t)p, (size_t)cols, to);
}

/* Decodes row p of a decoded weight to `to`, with p numbered as in layout `row`. Writes the exact reference
 * row to `plain`. */
static void decode_weight(const struct mf_verify_input *v, int64_t p, int64_t cols, float *to, float *plain)
{
    const struct mf_guarded *g = v->out;
    const struct mf_layout *l = mf_layout_find(g->tensor_spec.order);
    int64_t of_expert = g->parts[0].rows / v->data->shape.expert, e = p / of_expert;
    const uint16_t *expert = (const uint16_t *)g->ref.part[0] + e * of_expert * cols;
    uint16_t *row = (uint16_t *)plain; /* uses the memory of `plain` before `plain` is filled */
    mf_layout_row(l, 16, (size_t)of_expert, (size_t)cols, (size_t)(p % of_expert), expert, row);
    mf_bf16_to_floats(row, (size_t)cols, to);
    mf_reference_weight_row(v->data, mf_encoded_weight_of(g->tensor_spec.tensor), (int32_t)e, p % of_expert,
                            plain);
}

struct sums {
    uint32_t bad, mismatches;
    double difference, norm, size;
};

typedef float v16 __attribute__((vector_size(64)));
typedef int32_t v16i __attribute__((vector_size(64)));

/* Compares x with ref * factor (ref NULL: zeros). Counts mismatches and elements that are not finite, and
 * adds up the sums of squares. */
MF_VECTOR_BODY(static, void, compare_row,
               (const float *x, const float *ref, float factor, size_t n, struct sums *ret),
               (x, ref, factor, n, ret), {
                   v16 d2 = {0}, r2 = {0}, a2 = {0};
                   v16i bad = {0}, off = {0};
                   for (size_t i = 0; i < n; i += 16) {
                       v16 a = {0}, b = {0};
                       size_t m = n - i < 16 ? n - i : 16;
                       if (m == 16)
                           __builtin_memcpy(&a, x + i, 64);
                       else
                           __builtin_memcpy(&a, x + i, m * 4);
                       if (ref && m == 16)
                           __builtin_memcpy(&b, ref + i, 64);
                       else if (ref)
                           __builtin_memcpy(&b, ref + i, m * 4);
                       b *= factor;
                       v16 d = a - b;
                       v16i ad = (v16i)d & 0x7fffffff, ab = (v16i)b & 0x7fffffff;
                       bad -= ((v16i)a & 0x7f800000) == 0x7f800000;
                       /* the comparison is false for NaN; `bad` counts NaNs */
                       off -= (v16)ad > (float)MF_TOLERANCE + (float)MF_TOLERANCE * (v16)ab;
                       d2 += d * d;
                       r2 += b * b;
                       a2 += a * a;
                   }
                   *ret = (struct sums){0};
                   for (int i = 0; i < 16; i++) {
                       ret->bad += (uint32_t)bad[i];
                       ret->mismatches += (uint32_t)off[i];
                       ret->difference += (double)d2[i];
                       ret->norm += (double)r2[i];
                       ret->size += (double)a2[i];
                   }
               })

void mf_verify_row_inspect(const struct mf_verify_input *v, int64_t p, int64_t cols, float *scratch,
                           struct mf_verify_row *row)
{
    const struct mf_guarded *g = v->out;
    float factor = 1, *plain_x = scratch + cols;
    const float *ref = NULL;
    if (!v->accumulates && !g->tensor_spec.zeroed)
        look_for_poison(g, p, row);
    if (g->tensor_spec.tensor == MF_TENSOR_X && g->tensor_spec.format == MF_FORMAT_BF16) {
        mf_bf16_to_floats(v->data->x + row->source * cols, (size_t)cols, plain_x);
        ref = plain_x;
    } else if (!g->tensor_spec.zeroed && !mf_tensor_spec_is_decoded(&g->tensor_spec)) {
        ref = mf_reference_row(v->data, v->ref, &g->tensor_spec, row->source, &factor);
    }
    const float *x = scratch;
    if (mf_tensor_spec_is_decoded(&g->tensor_spec)) {
        decode_weight(v, p, cols, scratch, plain_x);
        ref = plain_x;
    } else if (g->tensor_spec.format == MF_FORMAT_F32) {
        x = mf_part_row(g->parts, &g->ref, 0, p);
    } else {
        decode(g, p, cols, scratch);
    }
    struct sums sums;
    compare_row(x, ref, factor, (size_t)cols, &sums);
    row->bad = sums.bad;
    while (row->bad > 0 && isfinite(x[row->bad_at]))
        row->bad_at++;
    row->mismatches = sums.mismatches;
    row->difference = sums.difference;
    row->norm = sums.norm;
    row->size = sums.size;
}

bool mf_verify_has_reference(const struct mf_verify_input *v)
{
    const struct mf_tensor_spec *a = &v->out->tensor_spec;
    float factor;
    if (mf_tensor_spec_is_decoded(a)) /* the reference is the host's weight, which may not exist */
        return (a->tensor == MF_TENSOR_W1D ? v->data->w1 : v->data->w2).part[0] != NULL;
    return a->zeroed || (a->tensor == MF_TENSOR_X && a->format == MF_FORMAT_BF16) ||
           mf_reference_lacks_z(v->ref, a) || mf_reference_row(v->data, v->ref, a, 0, &factor);
}

/* ---- two runs ---- */

double mf_verify_distance(double difference, double norm)
{
    if (norm > 0)
        return sqrt(difference / norm);
    return difference > 0 ? (double)INFINITY : 0;
}

double mf_verify_row_distance(const struct mf_guarded *a, const struct mf_guarded *b, int64_t p, int64_t cols,
                              float *scratch)
{
    size_t n = (size_t)cols;
    struct sums sums;
    decode(a, p, cols, scratch);
    decode(b, p, cols, scratch + n);
    compare_row(scratch + n, scratch, 1, n, &sums);
    return mf_verify_distance(sums.difference, sums.norm);
}

bool mf_verify_row_same(const struct mf_guarded *a, const struct mf_guarded *b, int64_t p)
{
    for (int i = 0; i < a->n_parts; i++) {
        if (memcmp(mf_part_row(a->parts, &a->ref, i, p), mf_part_row(b->parts, &b->ref, i, p),
                   (size_t)(a->parts[i].cols * a->parts[i].element_bytes)) != 0)
            return false;
    }
    return true;
}
