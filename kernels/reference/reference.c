#include "kernels/reference/reference.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/cleanup.h"
#include "kernels/core/codec.h"
#include "kernels/core/device.h"
#include "kernels/core/quant.h"
#include "kernels/core/vector.h"

#define TILE 32 /* number of activation rows that are multiplied by a weight row after it is dequantised */

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* Returns the clamp limit of the activation, or infinity if it has none. */
static double limit_of(const struct mf_shape *s)
{
    if (s->act_limit > 0)
        return (double)s->act_limit;
    return s->act_type == MF_ACT_SWIGLU ? 7 : (double)INFINITY;
}

double mf_activate_gate(const struct mf_shape *s, double gate)
{
    double limit = limit_of(s), g = fmin(gate, limit),
           alpha = s->act_alpha > 0 ? (double)s->act_alpha : 1.702;
    switch (s->act_type) {
    case MF_ACT_SILU:
        return g * sigmoid(g);
    case MF_ACT_GELU:
        return 0.5 * gate * (1 + erf(gate * M_SQRT1_2));
    case MF_ACT_SWIGLU:
        return g * sigmoid(alpha * g);
    case MF_ACT_SITUV2:
        return 4 * tanh(gate / 4) * sigmoid(gate);
    case MF_ACT_GELU_TANH:
        return 0.5 * gate * (1 + tanh(sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate)));
    case MF_ACT_SILU_STEP:
        return fmin(gate * sigmoid(gate), limit);
    case MF_ACT_RELU2:
        return gate > 0 ? gate * gate : 0;
    case MF_ACT_NO:
    case MF_ACT_N_:
        break;
    }
    return gate;
}

double mf_activate(const struct mf_shape *s, double gate, double up)
{
    double limit = limit_of(s), factor = fmin(fmax(up, -limit), limit);
    if (s->act_type == MF_ACT_SWIGLU)
        factor += 1;
    else if (s->act_type == MF_ACT_SITUV2)
        factor = 25 * tanh(up / 25);
    return mf_activate_gate(s, gate) * factor;
}

static struct mf_tensor_ref expert_of(const struct mf_layer_data *data, enum mf_tensor w,
                                      const struct mf_codec *c, size_t N, size_t K, int32_t expert)
{
    struct mf_tensor_ref ref = w == MF_TENSOR_W1 ? data->w1 : data->w2;
    size_t scales = mf_codec_scale_rows(c, N) * mf_codec_scale_cols(c, K) * (size_t)c->scale_bytes;
    ref.part[0] = (uint8_t *)ref.part[0] + (size_t)expert * N * mf_codec_row_bytes(c, K);
    if (scales > 0)
        ref.part[1] = (uint8_t *)ref.part[1] + (size_t)expert * scales;
    if (c->global)
        ref.part[2] = (float *)ref.part[2] + expert;
    return ref;
}

void mf_reference_weight_row(const struct mf_layer_data *data, enum mf_tensor w, int32_t expert, int64_t n,
                             float *out)
{
    const struct mf_shape *s = &data->shape;
    bool first = w == MF_TENSOR_W1;
    struct mf_tensor_spec a = mf_plain_w(s, w, "row");
    const struct mf_codec *c = mf_codec_find(a.format, a.scale);
    size_t N = first ? (size_t)mf_gemm1_cols(s) : (size_t)s->model_dim;
    size_t K = first ? (size_t)s->model_dim : (size_t)s->inter_dim;
    struct mf_tensor_ref ref = expert_of(data, w, c, N, K, expert);
    mf_codec_decode_row(c, ref.part[0], ref.part[1], c->global ? *(const float *)ref.part[2] : 1, (size_t)n,
                        K, out);
}

float mf_reference_global(const struct mf_reference *r, const struct mf_tensor_spec *a)
{
    const struct mf_codec *c = mf_codec_find(a->format, a->scale);
    return c && c->global ? mf_codec_global(c, a->tensor == MF_TENSOR_X ? r->x_amax : r->h_amax) : 1;
}

void mf_reference_encode(const struct mf_reference *r, const struct mf_tensor_spec *a, const float *row,
                         size_t cols, void *q, void *scale)
{
    const struct mf_codec *c = mf_codec_find(a->format, a->scale);
    float global = mf_reference_global(r, a);
    if (c->scale_bytes > 0 && c->group_rows == 0) {
        mf_codec_group_scale(c, a->tensor == MF_TENSOR_X ? r->x_amax : r->h_amax, global, scale);
        mf_codec_encode_row(c, row, cols, scale, global, q);
    } else {
        mf_codec_encode(c, row, 1, cols, global, q, scale);
    }
}

void mf_reference_requantise(const struct mf_reference *r, const struct mf_tensor_spec *a, float *row,
                             size_t cols, void *scratch)
{
    const struct mf_codec *c = mf_codec_find(a->format, a->scale);
    uint8_t *q = scratch, *scale = q + (cols * 2 + 63) / 64 * 64;
    mf_reference_encode(r, a, row, cols, q, scale);
    mf_codec_decode_row(c, q, scale, mf_reference_global(r, a), 0, cols, row);
}

typedef float v16 __attribute__((vector_size(64)));

/* Computes dot products. Partial sum i accumulates products i, i + 16, …. The 16 partial sums are then added
 * in pairs, which gives 8, 4, 2 and finally 1 sum. */
MF_VECTOR_BODY(static, void, dots,
               (const float *w, const float *rows, size_t stride, int n_rows, size_t K, float *out),
               (w, rows, stride, n_rows, K, out), {
                   for (int r = 0; r < n_rows; r += 4) {
                       v16 sum[4] = {{0}, {0}, {0}, {0}};
                       const float *row[4];
                       for (int i = 0; i < 4; i++)
                           row[i] = rows + (size_t)(r + i < n_rows ? r + i : r) * stride;
                       size_t k = 0;
                       for (; k + 16 <= K; k += 16) {
                           v16 b;
                           __builtin_memcpy(&b, w + k, sizeof(b));
                           for (int i = 0; i < 4; i++) {
                               v16 a;
                               __builtin_memcpy(&a, row[i] + k, sizeof(a));
                               sum[i] += a * b;
                           }
                       }
                       for (int i = 0; i < 4 && r + i < n_rows; i++) {
                           float part[16];
                           __builtin_memcpy(part, &sum[i], sizeof(part));
                           for (size_t t = k; t < K; t++)
                               part[t - k] += row[i][t] * w[t];
                           for (int half = 8; half > 0; half /= 2) {
                               for (int j = 0; j < half; j++)
                                   part[j] += part[j + half];
                           }
                           out[r + i] = part[0];
                       }
                   }
               })

struct job {
    const struct mf_layer_data *data;
    struct mf_reference_engine *engine; /* NULL: use the CPU pool */
    struct mf_reference *out;
    struct mf_reference_slots slots;
    float *h_exact; /* h before it is rounded to bf16 */
    /* z computed from h_exact, to determine the error of quantising h; NULL if h is not quantised or an
     * engine is used */
    float *z_exact;
    float *scratch; /* for each thread, one tile of activation rows and one weight row */
    size_t scratch_floats;
};

int mf_reference_group(const struct mf_layer_data *d, struct mf_reference_slots *ret)
{
    int64_t n = d->shape.token * d->shape.topk;
    ret->first = calloc((size_t)d->shape.expert + 2, sizeof(*ret->first));
    ret->slots = calloc((size_t)n, sizeof(*ret->slots));
    if (!ret->first || !ret->slots)
        return -ENOMEM;
    for (int64_t i = 0; i < n; i++) {
        int32_t e = mf_shape_local_expert(&d->shape, d->ids[i]);
        if (e >= 0)
            ret->first[e + 2]++;
    }
    for (int32_t e = 0; e <= d->shape.expert; e++)
        ret->first[e + 1] += ret->first[e];
    for (int64_t i = 0; i < n; i++) {
        int32_t e = mf_shape_local_expert(&d->shape, d->ids[i]);
        if (e >= 0)
            ret->slots[ret->first[e + 1]++] = i;
    }
    return 0;
}

void mf_reference_ungroup(struct mf_reference_slots *s)
{
    free(s->first);
    free(s->slots);
    *s = (struct mf_reference_slots){0};
}

/* Writes rows of zeros for the slots of remote experts. */
static void zero_remote(struct job *j)
{
    const struct mf_shape *s = &j->data->shape;
    size_t G = (size_t)mf_gemm1_cols(s), I = (size_t)s->inter_dim, H = (size_t)s->model_dim;
    for (int64_t i = 0; i < s->token * s->topk; i++) {
        if (mf_shape_local_expert(s, j->data->ids[i]) >= 0)
            continue;
        memset(j->h_exact + (size_t)i * I, 0, I * sizeof(float));
        memset(j->out->h_bf16 + (size_t)i * I, 0, I * sizeof(float));
        if (j->out->h_error) {
            memset(j->out->h + (size_t)i * I, 0, I * sizeof(float));
            j->out->h_error[i] = 0;
        }
        if (j->engine)
            continue;
        memset(j->out->g + (size_t)i * G, 0, G * sizeof(float));
        memset(j->out->z + (size_t)i * H, 0, H * sizeof(float));
        if (j->z_exact)
            memset(j->z_exact + (size_t)i * H, 0, H * sizeof(float));
    }
}

/* Raises *amax to the largest magnitude of the row. Compares the bits as integers, which have the same order
 * as the magnitudes, with NaN above all others. */
static void raise_amax(float *amax, const float *row, size_t n)
{
    uint32_t top = 0, known, bits;
    for (size_t i = 0; i < n; i++) {
        memcpy(&bits, &row[i], sizeof(bits));
        top = MF_MAX(top, bits & 0x7fffffff);
    }
    uint32_t *to = (uint32_t *)(void *)amax;
    known = __atomic_load_n(to, __ATOMIC_RELAXED);
    while (top > known &&
           !__atomic_compare_exchange_n(to, &known, top, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

static void x_amax_thread(void *context, int thread, int n_threads)
{
    struct job *j = context;
    const struct mf_shape *s = &j->data->shape;
    size_t H = (size_t)s->model_dim;
    float *floats = j->scratch + (size_t)thread * j->scratch_floats;
    for (int64_t t = thread; t < s->token; t += n_threads) {
        mf_bf16_to_floats(j->data->x + t * s->model_dim, H, floats);
        raise_amax(&j->out->x_amax, floats, H);
    }
}

static void quantise_x_thread(void *context, int thread, int n_threads)
{
    struct job *j = context;
    const struct mf_shape *s = &j->data->shape;
    struct mf_tensor_spec a = mf_plain_x(s);
    size_t H = (size_t)s->model_dim;
    float *scratch = j->scratch + (size_t)thread * j->scratch_floats;
    for (int64_t t = thread; t < s->token; t += n_threads) {
        float *row = j->out->x + t * s->model_dim;
        mf_bf16_to_floats(j->data->x + t * s->model_dim, H, row);
        mf_reference_requantise(j->out, &a, row, H, scratch);
    }
}

static void load_x(const struct job *j, int64_t slot, float *to)
{
    const struct mf_shape *s = &j->data->shape;
    int64_t t = slot / s->topk, H = s->model_dim;
    if (j->out->x)
        memcpy(to, j->out->x + t * H, (size_t)H * sizeof(*to));
    else
        mf_bf16_to_floats(j->data->x + t * H, (size_t)H, to);
}

/* One tile of rows of one expert, and the range of weight rows that this thread processes. */
struct tile {
    const int64_t *slots;
    int n;
    int64_t n_first, n_last; /* weight rows [n_first, n_last) */
    float *rows, *w;
};

static void gemm1_tile(const struct job *j, const struct tile *t, int32_t e)
{
    int64_t cols = mf_gemm1_cols(&j->data->shape);
    size_t K = (size_t)j->data->shape.model_dim;
    float sums[TILE];
    for (int i = 0; i < t->n; i++)
        load_x(j, t->slots[i], t->rows + (size_t)i * K);
    for (int64_t n = t->n_first; n < t->n_last; n++) {
        mf_reference_weight_row(j->data, MF_TENSOR_W1, e, n, t->w);
        dots(t->w, t->rows, K, t->n, K, sums);
        for (int i = 0; i < t->n; i++)
            j->out->g[t->slots[i] * cols + n] = sums[i];
    }
}

static void gemm2_tile(const struct job *j, const struct tile *t, int32_t e)
{
    int64_t cols = j->data->shape.model_dim;
    size_t K = (size_t)j->data->shape.inter_dim;
    float *exact = t->rows + TILE * K, sums[TILE];
    for (int i = 0; i < t->n; i++) {
        memcpy(t->rows + (size_t)i * K, j->out->h + t->slots[i] * (int64_t)K, K * sizeof(float));
        if (j->z_exact)
            memcpy(exact + (size_t)i * K, j->h_exact + t->slots[i] * (int64_t)K, K * sizeof(float));
    }
    for (int64_t n = t->n_first; n < t->n_last; n++) {
        float bias = j->data->shape.has_b2 ? j->data->b2[(int64_t)e * cols + n] : 0;
        mf_reference_weight_row(j->data, MF_TENSOR_W2, e, n, t->w);
        dots(t->w, t->rows, K, t->n, K, sums);
        for (int i = 0; i < t->n; i++)
            j->out->z[t->slots[i] * cols + n] = sums[i] + bias;
        if (!j->z_exact)
            continue;
        dots(t->w, exact, K, t->n, K, sums);
        for (int i = 0; i < t->n; i++)
            j->z_exact[t->slots[i] * cols + n] = sums[i] + bias;
    }
}

/* Each thread processes a range of the N weight rows of every expert, so that the load is balanced for any
 * routing. */
static void gemm(struct job *j, int thread, int n_threads, int64_t N, size_t K,
                 void (*run)(const struct job *, const struct tile *, int32_t))
{
    float *scratch = j->scratch + (size_t)thread * j->scratch_floats;
    struct tile t = {
        .n_first = N * thread / n_threads,
        .n_last = N * (thread + 1) / n_threads,
        .w = scratch,
        .rows = scratch + K,
    };
    for (int32_t e = 0; e < j->data->shape.expert; e++) {
        int64_t last = j->slots.first[e + 1];
        for (int64_t i = j->slots.first[e]; i < last; i += TILE) {
            t.slots = j->slots.slots + i;
            t.n = (int)MF_MIN((int64_t)TILE, last - i);
            run(j, &t, e);
        }
    }
}

static void gemm1_thread(void *context, int thread, int n_threads)
{
    struct job *j = context;
    gemm(j, thread, n_threads, mf_gemm1_cols(&j->data->shape), (size_t)j->data->shape.model_dim, gemm1_tile);
}

static void gemm2_thread(void *context, int thread, int n_threads)
{
    struct job *j = context;
    gemm(j, thread, n_threads, j->data->shape.model_dim, (size_t)j->data->shape.inter_dim, gemm2_tile);
}

float mf_reference_error(double difference, double norm)
{
    return norm > 0 ? (float)sqrt(difference / norm) : 0;
}

/* Computes 16 partial sums as for dot products: partial sum i adds values i, i + 16, …. */
MF_VECTOR_BODY(static, void, add_squares,
               (const float *a, const float *b, size_t n, double *difference, double *norm),
               (a, b, n, difference, norm), {
                   for (size_t k = 0; k < n; k += 16) {
                       size_t m = n - k < 16 ? n - k : 16;
                       for (size_t i = 0; i < m; i++) {
                           double d = (double)a[k + i] - (double)b[k + i];
                           difference[i] += d * d;
                           norm[i] += (double)b[k + i] * (double)b[k + i];
                       }
                   }
               })

static float relative_error(const float *a, const float *b, size_t n)
{
    double difference[16] = {0}, norm[16] = {0};
    add_squares(a, b, n, difference, norm);
    for (size_t half = 8; half > 0; half /= 2) {
        for (size_t i = 0; i < half; i++) {
            difference[i] += difference[i + half];
            norm[i] += norm[i + half];
        }
    }
    return mf_reference_error(difference[0], norm[0]);
}

static void activate_row(const struct mf_layer_data *d, int64_t slot, const float *g, float *h)
{
    const struct mf_shape *s = &d->shape;
    const float *b1 = s->has_b1 ? d->b1 + mf_shape_local_expert(s, d->ids[slot]) * mf_gemm1_cols(s) : NULL;
    double factor = s->doweight_stage1 ? (double)d->weights[slot] : 1;
    int32_t I = s->inter_dim;
    for (int32_t i = 0; i < I; i++) {
        double gate = (double)g[i] * factor + (b1 ? (double)b1[i] : 0);
        if (s->use_g1u1)
            h[i] = (float)mf_activate(s, gate, (double)g[I + i] * factor + (b1 ? (double)b1[I + i] : 0));
        else
            h[i] = (float)mf_activate_gate(s, gate);
    }
}

static void h_thread(void *context, int thread, int n_threads)
{
    struct job *j = context;
    const struct mf_shape *s = &j->data->shape;
    size_t I = (size_t)s->inter_dim;
    uint16_t *codes = (uint16_t *)(j->scratch + (size_t)thread * j->scratch_floats);
    for (int64_t r = thread; r < s->token * s->topk; r += n_threads) {
        if (mf_shape_local_expert(s, j->data->ids[r]) < 0)
            continue;
        float *exact = j->h_exact + r * s->inter_dim, *rounded = j->out->h_bf16 + r * s->inter_dim;
        activate_row(j->data, r, j->out->g + r * mf_gemm1_cols(s), exact);
        mf_bf16_from_floats(exact, I, codes);
        mf_bf16_to_floats(codes, I, rounded);
        raise_amax(&j->out->h_amax, rounded, I);
    }
}

static void quantise_h_thread(void *context, int thread, int n_threads)
{
    struct job *j = context;
    const struct mf_shape *s = &j->data->shape;
    struct mf_tensor_spec a = mf_plain_h(s, 1);
    size_t I = (size_t)s->inter_dim;
    float *scratch = j->scratch + (size_t)thread * j->scratch_floats;
    for (int64_t r = thread; r < s->token * s->topk; r += n_threads) {
        if (mf_shape_local_expert(s, j->data->ids[r]) < 0)
            continue;
        float *row = j->out->h + r * s->inter_dim;
        memcpy(row, j->out->h_bf16 + r * s->inter_dim, I * sizeof(*row));
        mf_reference_requantise(j->out, &a, row, I, scratch);
        j->out->h_error[r] = relative_error(row, j->h_exact + r * s->inter_dim, I);
    }
}

static void combine(const struct mf_layer_data *d, int64_t t, const float *z, float *y)
{
    const struct mf_shape *s = &d->shape;
    memset(y, 0, (size_t)s->model_dim * sizeof(*y));
    for (int32_t k = 0; k < s->topk; k++) {
        int64_t slot = t * s->topk + k;
        float weight = s->doweight_stage1 ? 1 : d->weights[slot];
        for (int32_t i = 0; i < s->model_dim; i++)
            y[i] += weight * z[slot * s->model_dim + i];
    }
}

static void y_thread(void *context, int thread, int n_threads)
{
    struct job *j = context;
    const struct mf_shape *s = &j->data->shape;
    int64_t H = s->model_dim;
    float *exact = j->scratch + (size_t)thread * j->scratch_floats;
    for (int64_t t = thread; t < s->token; t += n_threads) {
        combine(j->data, t, j->out->z, j->out->y + t * H);
        if (!j->z_exact)
            continue;
        combine(j->data, t, j->z_exact, exact);
        j->out->y_error[t] = relative_error(j->out->y + t * H, exact, (size_t)H);
        for (int64_t r = t * s->topk; r < (t + 1) * s->topk; r++)
            j->out->z_error[r] = relative_error(j->out->z + r * H, j->z_exact + r * H, (size_t)H);
    }
}

/* Position in a block in which arrays are allocated one after the other. If `block` is NULL, only the size is
 * computed. */
struct block_layout {
    uint8_t *block;
    size_t bytes;
};

static float *take_array(struct block_layout *l, int64_t rows, int64_t cols)
{
    size_t at = l->bytes;
    l->bytes += ((size_t)rows * (size_t)cols * sizeof(float) + 64 + 63) / 64 * 64;
    return l->block ? (float *)(void *)(l->block + at) : NULL;
}

static size_t lay_out(const struct mf_shape *s, bool with_z, void *block, struct mf_reference *r)
{
    struct block_layout l = {.block = block};
    int64_t rows = s->token * s->topk;
    *r = (struct mf_reference){0};
    (void)take_array(&l, 2, 1); /* x_amax, h_amax */
    r->g = take_array(&l, rows, mf_gemm1_cols(s));
    r->h = r->h_bf16 = take_array(&l, rows, s->inter_dim);
    r->y = take_array(&l, s->token, s->model_dim);
    if (mf_plain_x(s).scale != MF_SCALE_NONE)
        r->x = take_array(&l, s->token, s->model_dim);
    if (mf_plain_h(s, 1).scale != MF_SCALE_NONE) {
        r->h = take_array(&l, rows, s->inter_dim);
        r->h_error = take_array(&l, rows, 1);
        r->z_error = take_array(&l, rows, 1);
        r->y_error = take_array(&l, s->token, 1);
    }
    if (with_z)
        r->z = take_array(&l, rows, s->model_dim);
    return l.bytes;
}

/* Allocates with transparent huge pages if Linux supports them. */
static float *floats(int64_t rows, int64_t cols, bool *failed)
{
    size_t bytes = ((size_t)rows * (size_t)cols + 16) * sizeof(float);
    size_t whole = (bytes + MF_HUGE_PAGE - 1) / MF_HUGE_PAGE * MF_HUGE_PAGE;
    float *p = aligned_alloc(MF_HUGE_PAGE, whole);
    *failed |= !p;
    if (p)
        (void)madvise(p, whole, MADV_HUGEPAGE);
    return p;
}

/* Allocates a job's buffers for n_threads threads. */
static int allocate(struct job *j, int n_threads)
{
    const struct mf_shape *s = &j->data->shape;
    int64_t rows = s->token * s->topk;
    bool failed = false;
    j->scratch_floats = (size_t)(2 * TILE + 1) * (size_t)MF_MAX(s->model_dim, s->inter_dim) + 1024;
    j->scratch = floats(n_threads, (int64_t)j->scratch_floats, &failed);
    j->h_exact = floats(rows, s->inter_dim, &failed);
    if (j->out->h_error && !j->engine)
        j->z_exact = floats(rows, s->model_dim, &failed);
    return failed ? -ENOMEM : 0;
}

static bool has_definition(const struct mf_shape *s)
{
    struct mf_codecs codecs;
    const char *why;
    return s->dtype == MF_DTYPE_BF16 && mf_codecs_of_shape(s, &codecs, &why) == 0;
}

int mf_reference_bytes(const struct mf_shape *shape, bool with_z, size_t *ret)
{
    struct mf_reference r;
    *ret = has_definition(shape) ? lay_out(shape, with_z, NULL, &r) : 0;
    return *ret > 0 ? 0 : -EINVAL;
}

void mf_reference_open(const struct mf_shape *shape, bool with_z, const void *block, struct mf_reference *out)
{
    const float *amax = block;
    (void)lay_out(shape, with_z, (void *)(uintptr_t)block, out);
    out->x_amax = amax[0];
    out->h_amax = amax[1];
}

static int gemm1_of(struct job *j, int n_threads)
{
    if (j->engine)
        return j->engine->gemm1(j->engine, j->data, &j->slots, j->out);
    mf_pool_run(gemm1_thread, j, n_threads);
    return 0;
}

static int gemm2_of(struct job *j, int n_threads)
{
    if (j->engine)
        return j->engine->gemm2(j->engine, j->data, &j->slots, j->h_exact, j->out);
    mf_pool_run(gemm2_thread, j, n_threads);
    mf_pool_run(y_thread, j, n_threads);
    return 0;
}

int mf_reference_make_in(const struct mf_layer_data *data, struct mf_reference_engine *engine, void *block,
                         struct mf_reference *out)
{
    struct job j = {.data = data, .engine = engine, .out = out};
    float *amax = block;
    int n_threads = mf_pool_threads();
    if (!has_definition(&data->shape))
        return -EINVAL;
    (void)lay_out(&data->shape, !engine || !engine->recomputes_z, block, out);
    int r = allocate(&j, n_threads);
    if (r == 0)
        r = mf_reference_group(data, &j.slots);
    if (r == 0) {
        zero_remote(&j);
        mf_pool_run(x_amax_thread, &j, n_threads);
        if (out->x)
            mf_pool_run(quantise_x_thread, &j, n_threads);
        r = gemm1_of(&j, n_threads);
    }
    if (r == 0) {
        mf_pool_run(h_thread, &j, n_threads);
        if (out->h_error)
            mf_pool_run(quantise_h_thread, &j, n_threads);
        r = gemm2_of(&j, n_threads);
        amax[0] = out->x_amax;
        amax[1] = out->h_amax;
    }
    mf_reference_ungroup(&j.slots);
    free(j.h_exact);
    free(j.z_exact);
    free(j.scratch);
    return r;
}

int mf_reference_make(const struct mf_layer_data *data, struct mf_reference *out)
{
    size_t bytes;
    *out = (struct mf_reference){0};
    int r = mf_reference_bytes(&data->shape, true, &bytes);
    if (r < 0)
        return r;
    void *block = aligned_alloc(64, bytes);
    r = block ? mf_reference_make_in(data, NULL, block, out) : -ENOMEM;
    out->block = block;
    if (r < 0)
        mf_reference_release(out);
    return r;
}

void mf_reference_release(struct mf_reference *r)
{
    free(r->block);
    *r = (struct mf_reference){0};
}
