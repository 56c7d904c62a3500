#include "support/kernels/planted.h"

#include <check.h>
#include <math.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/text.h"
#include "kernels/core/codec.h"
#include "kernels/core/quant.h"
#include "kernels/core/tensors.h"
#include "kernels/reference/reference.h"

#define PLANTED_TEXT(NAME, text) [PLANTED_##NAME] = text,
const char *const planted_names[PLANTED_N] = {PLANTED_FAULTS(PLANTED_TEXT)};
double planted_off = 0.01;

/* ---- shapes ---- */

static const struct {
    enum mf_dtype q;
    enum mf_qtype q_type;
} formats[PLANTED_N_FORMATS] = {
    {MF_DTYPE_BF16, MF_QTYPE_NO},
    {MF_DTYPE_FP8_E4M3FN, MF_QTYPE_PER_TOKEN},
    {MF_DTYPE_FP8_E4M3FNUZ, MF_QTYPE_PER_TOKEN},
    {MF_DTYPE_FP8_E4M3FN, MF_QTYPE_PER_1X128},
    {MF_DTYPE_FP8_E4M3FNUZ, MF_QTYPE_PER_1X128},
};

struct mf_shape planted_shape(int format, int64_t token)
{
    return (struct mf_shape){
        .token = token,
        .model_dim = 160,
        .inter_dim = formats[format].q_type == MF_QTYPE_PER_1X128 ? 256 : 144,
        .expert = 16,
        .topk = 2,
        .act_type = MF_ACT_SILU,
        .dtype = MF_DTYPE_BF16,
        .q_dtype_a = formats[format].q,
        .q_dtype_w = formats[format].q,
        .q_type = formats[format].q_type,
        .use_g1u1 = true,
    };
}

/* ---- steps ---- */

enum kind { SORT, QUANT1, STAGE1, STAGE2, COMBINE, N_KINDS };
static const char *const kinds[N_KINDS] = {"sort", "quant1", "stage1", "stage2", "combine"};
static const int32_t blocks[] = {4, 16};

struct mf_kernel {
    struct mf_shape shape;
    enum kind kind;
    enum planted_fault fault;
    int32_t block;
    int runs;
    float *scratch;
};

static struct mf_tensor_spec tensor_spec(enum mf_tensor tensor, enum mf_format format, const char *order,
                                         int32_t block)
{
    struct mf_tensor_spec a = {.tensor = tensor, .format = format, .block = block};
    (void)mf_copy(a.order, sizeof(a.order), order);
    return a;
}

static void describe(const struct mf_shape *s, enum kind kind, int32_t block, struct mf_step *step)
{
    const struct mf_tensor_spec topk = tensor_spec(MF_TENSOR_TOPK, MF_FORMAT_INDEX, "token", 0);
    const struct mf_tensor_spec sorted = tensor_spec(MF_TENSOR_SORTED, MF_FORMAT_INDEX, "sorted", block);
    const struct mf_tensor_spec x = tensor_spec(MF_TENSOR_X, MF_FORMAT_BF16, "token", 0);
    const struct mf_tensor_spec zw = tensor_spec(MF_TENSOR_ZW, MF_FORMAT_F32, "slot", 0);
    const struct mf_tensor_spec y = tensor_spec(MF_TENSOR_Y, MF_FORMAT_BF16, "token", 0);
    mf_ops quant2 = s->q_type == MF_QTYPE_NO ? 0 : MF_OP_BIT(MF_OP_QUANT2);
    mf_ops weight = MF_OP_BIT(MF_OP_WEIGHT);
    step->stage = MF_STAGE_MOVE;
    step->block_m = block;
    step->flops = 1000;
    switch (kind) {
    case SORT:
        step->covers = MF_OP_BIT(MF_OP_SORT);
        step->needs[step->n_needs++] = topk;
        step->gives[step->n_gives++] = sorted;
        break;
    case QUANT1:
        step->covers = MF_OP_BIT(MF_OP_QUANT1);
        step->needs[step->n_needs++] = x;
        step->gives[step->n_gives++] = mf_plain_x(s);
        break;
    case STAGE1:
        step->stage = MF_STAGE_STAGE1;
        step->covers = MF_OP_BIT(MF_OP_GATHER) | MF_OP_BIT(MF_OP_GEMM1) | MF_OP_BIT(MF_OP_ACT) | quant2;
        step->covers |= s->doweight_stage1 ? weight : 0;
        step->needs[step->n_needs++] = mf_plain_x(s);
        step->needs[step->n_needs++] = sorted;
        step->needs[step->n_needs++] = mf_plain_w(s, MF_TENSOR_W1, "row");
        if (s->has_b1)
            step->needs[step->n_needs++] = mf_plain_bias(MF_TENSOR_B1);
        step->gives[step->n_gives++] = mf_plain_h(s, block);
        break;
    case STAGE2:
        step->stage = MF_STAGE_STAGE2;
        step->covers = MF_OP_BIT(MF_OP_GEMM2) | (s->doweight_stage1 ? 0 : weight);
        step->needs[step->n_needs++] = mf_plain_h(s, block);
        step->needs[step->n_needs++] = sorted;
        step->needs[step->n_needs++] = mf_plain_w(s, MF_TENSOR_W2, "row");
        if (s->has_b2)
            step->needs[step->n_needs++] = mf_plain_bias(MF_TENSOR_B2);
        step->gives[step->n_gives++] = zw;
        if (s->doweight_stage1)
            step->gives[0].tensor = MF_TENSOR_Z;
        break;
    case COMBINE:
        step->covers = MF_OP_BIT(MF_OP_COMBINE);
        step->needs[step->n_needs++] = zw;
        if (s->doweight_stage1)
            step->needs[0].tensor = MF_TENSOR_Z;
        step->gives[step->n_gives++] = y;
        break;
    case N_KINDS:
        break;
    }
}

static bool has_block(enum kind kind)
{
    return kind == SORT || kind == STAGE1 || kind == STAGE2;
}

static void name_step(enum kind kind, int32_t block, enum planted_fault fault, char *name)
{
    char suffix[32] = "";
    if (has_block(kind))
        mf_format(suffix, sizeof(suffix), ".%d", (int)block);
    mf_format(name, MF_STEP_NAME_MAX, "%s%s%s%s", kinds[kind], suffix, fault ? "-" : "",
              planted_names[fault]);
}

static int enumerate(const struct mf_family *f, const struct mf_device_info *device,
                     const struct mf_shape *shape, struct mf_offer *offer)
{
    (void)device;
    for (int kind = 0; kind < N_KINDS; kind++) {
        if (kind == QUANT1 && shape->q_type == MF_QTYPE_NO)
            continue;
        for (size_t b = 0; b < (has_block((enum kind)kind) ? MF_ARRAY_LEN(blocks) : 1); b++) {
            for (int fault = 0; fault < PLANTED_N; fault++) {
                int32_t block = has_block((enum kind)kind) ? blocks[b] : 0;
                struct mf_step step = {0};
                (void)mf_copy(step.family, sizeof(step.family), f->name);
                name_step((enum kind)kind, block, (enum planted_fault)fault, step.name);
                describe(shape, (enum kind)kind, block, &step);
                int r = offer->step(offer, &step);
                if (r < 0)
                    return r;
            }
        }
    }
    return 0;
}

static int open_kernel(const struct mf_family *f, struct mf_device *device, const struct mf_shape *shape,
                       const char *name, struct mf_kernel **ret)
{
    char candidate[MF_STEP_NAME_MAX];
    (void)f;
    (void)device;
    for (int kind = 0; kind < N_KINDS; kind++) {
        for (size_t b = 0; b < MF_ARRAY_LEN(blocks); b++) {
            for (int fault = 0; fault < PLANTED_N; fault++) {
                name_step((enum kind)kind, blocks[b], (enum planted_fault)fault, candidate);
                if (strcmp(candidate, name) != 0)
                    continue;
                struct mf_kernel *k = calloc(1, sizeof(*k));
                k->shape = *shape;
                k->kind = (enum kind)kind;
                k->fault = (enum planted_fault)fault;
                k->block = blocks[b];
                k->scratch = calloc(8192, sizeof(float));
                *ret = k;
                return 0;
            }
        }
    }
    return -EINVAL;
}

static struct mf_kernel *close_kernel(struct mf_kernel *k)
{
    free(k->scratch);
    free(k);
    return NULL;
}

/* ---- arithmetic ---- */

static void decode_row(const struct mf_tensor_spec *a, const struct mf_tensor_ref *t, int64_t p, size_t n,
                       float *to)
{
    if (a->format == MF_FORMAT_BF16) {
        mf_bf16_to_floats((const uint16_t *)t->part[0] + (size_t)p * n, n, to);
        return;
    }
    size_t group = a->scale == MF_SCALE_PER_1X128 ? 128 : n, n_groups = (n + group - 1) / group;
    for (size_t i = 0; i < n; i++)
        to[i] = mf_fp8_to_float(a->format, ((const uint8_t *)t->part[0])[(size_t)p * n + i]) *
                ((const float *)t->part[1])[(size_t)p * n_groups + i / group];
}

static void encode_row(const struct mf_tensor_spec *a, const struct mf_tensor_ref *t, int64_t p, size_t n,
                       float *row)
{
    uint16_t *bf16 = (uint16_t *)t->part[0] + (size_t)p * n;
    uint8_t *fp8 = (uint8_t *)t->part[0] + (size_t)p * n;
    if (a->format == MF_FORMAT_F32) {
        memcpy((float *)t->part[0] + (size_t)p * n, row, n * sizeof(*row));
    } else if (a->format == MF_FORMAT_BF16) {
        mf_bf16_from_floats(row, n, bf16);
    } else {
        for (size_t i = 0; i < n; i++)
            row[i] = mf_bf16_to_float(mf_bf16_from_float(row[i]));
        size_t group = a->scale == MF_SCALE_PER_1X128 ? 128 : n;
        mf_codec_encode(mf_codec_find(a->format, a->scale), row, 1, n, 1, fp8,
                        (float *)t->part[1] + (size_t)p * ((n + group - 1) / group));
    }
}

static float dot(const float *a, const float *b, size_t n)
{
    float sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* Applies those faults that change the values of a row. victim: true if this is the row to corrupt. last:
 * true if this is the row of the last token. Returns false if the row must not be written. */
static bool apply_fault(struct mf_kernel *k, bool victim, bool last, int32_t expert, float *row, size_t n)
{
    switch (k->fault) {
    case PLANTED_NAN:
        if (victim)
            row[n / 2] = NAN;
        break;
    case PLANTED_DESTROYED:
        for (size_t i = 0; victim && i < n; i++)
            row[i] = i % 2 ? 0.9f : -1.1f;
        break;
    case PLANTED_OFF:
        for (size_t i = 0; victim && i < n; i++)
            row[i] *= (float)(1 + planted_off);
        break;
    case PLANTED_BIASED:
        for (size_t i = 0; expert == 3 && i < n; i++)
            row[i] *= (float)(1 + planted_off);
        break;
    case PLANTED_RACE:
        for (size_t i = 0; victim && i < n; i++)
            row[i] *= 1 + (float)k->runs * 0x1p-12f;
        break;
    case PLANTED_ROWS:
        return !last;
    case PLANTED_NONE:
    case PLANTED_TAIL:
    case PLANTED_PAST:
    case PLANTED_BEFORE:
    case PLANTED_EXPERT:
    case PLANTED_SWAPPED:
    case PLANTED_ALTERNATING:
    case PLANTED_BIAS_LATE:
    case PLANTED_BIAS_NEXT:
    case PLANTED_INPUT_PADDING:
    case PLANTED_ORDER:
    case PLANTED_WEIGHT:
    case PLANTED_COUNT:
    case PLANTED_N:
        break;
    }
    return true;
}

/* Applies those faults that change memory after the rows have been written. */
static void apply_memory_fault(struct mf_kernel *k, const struct mf_tensor_spec *a,
                               const struct mf_tensor_ref *t, int64_t p, size_t n, int64_t rows)
{
    size_t bytes = a->format == MF_FORMAT_F32 ? 4 : a->format == MF_FORMAT_BF16 ? 2 : 1;
    uint8_t *at = t->part[0];
    if (k->fault == PLANTED_TAIL)
        mf_poison_fill(a->format, at + ((size_t)p * n + n - 8) * bytes, 8);
    if (k->fault == PLANTED_PAST)
        memset(at + (size_t)rows * n * bytes, 0x11, 3);
    if (k->fault == PLANTED_BEFORE)
        at[-1] = 0x22;
}

/* Computes the activation of a row. b1 may be NULL. late: adds b1 after the activation instead of before it.
 */
static void gate_up(const struct mf_shape *s, const float *g, float weight, const float *b1, bool late,
                    bool swapped, float *h)
{
    int32_t I = s->inter_dim;
    for (int32_t i = 0; i < I; i++) {
        int32_t at_gate = swapped ? I + i : i, at_up = swapped ? i : I + i;
        double gate = (double)g[at_gate] * (double)weight + (b1 && !late ? (double)b1[at_gate] : 0);
        double up =
            s->use_g1u1 ? (double)g[at_up] * (double)weight + (b1 && !late ? (double)b1[at_up] : 0) : 0;
        h[i] = s->use_g1u1 ? (float)mf_activate(s, gate, up) : (float)mf_activate_gate(s, gate);
        h[i] += b1 && late ? b1[i] : 0;
    }
}

/* Computes z of a row from the sums of the GEMM: adds b2, then multiplies by the routing weight. weight: the
 * routing weight, or 1 if stage 1 has already applied the routing weight. */
static void weigh(const struct mf_kernel *k, const float *sums, float weight, const float *b2, float *z)
{
    bool late = k->fault == PLANTED_BIAS_LATE;
    for (int32_t n = 0; n < k->shape.model_dim; n++) {
        float bias = b2 ? b2[n] : 0;
        z[n] = late ? sums[n] * weight + bias : (sums[n] + bias) * weight;
    }
}

/* Processes the rows of a stage one by one, in sorted order. */
static int run_stage(struct mf_kernel *k, const struct mf_launch *l, bool first)
{
    const struct mf_shape *s = &k->shape;
    struct mf_layer_data d = {.shape = *s};
    struct mf_tensor_spec in = first ? mf_plain_x(s) : mf_plain_h(s, k->block);
    struct mf_tensor_spec out =
        first ? mf_plain_h(s, k->block) : tensor_spec(MF_TENSOR_ZW, MF_FORMAT_F32, "slot", 0);
    const int32_t *ids = l->needs[1].part[0], *experts = l->needs[1].part[2],
                  *num_valid = l->needs[1].part[3];
    const float *weights = l->needs[1].part[1];
    size_t K = (size_t)(first ? s->model_dim : s->inter_dim),
           N = (size_t)(first ? mf_gemm1_cols(s) : s->model_dim);
    size_t n_out = first ? (size_t)s->inter_dim : N;
    float *x = k->scratch, *w = x + 1024, *g = w + 1024, *h = g + 1024;
    if (first) {
        d.w1 = l->needs[2];
    } else {
        d.w2 = l->needs[2];
    }
    int64_t victim = -1, victim_at = -1;
    for (int64_t p = 0; p < num_valid[0]; p++) {
        int64_t token = mf_id_token(ids[p]), slot = token * s->topk + mf_id_slot(ids[p]);
        if (token >= s->token)
            continue;
        int32_t e = experts[p / k->block];
        if (victim < 0)
            victim = p;
        int32_t from = k->fault == PLANTED_EXPERT && e == experts[0] ? (e + 1) % s->expert : e;
        int32_t biased = k->fault == PLANTED_BIAS_NEXT ? (e + 1) % s->expert : e;
        const float *b =
            (first ? s->has_b1 : s->has_b2) ? (const float *)l->needs[3].part[0] + (size_t)biased * N : NULL;
        decode_row(&in, &l->needs[0], first ? token : p, K, x);
        if (k->fault == PLANTED_INPUT_PADDING && !first && p == victim)
            decode_row(&in, &l->needs[0], mf_padded_rows(s, k->block) - 1, K, x);
        for (size_t n = 0; n < N; n++) {
            size_t I = (size_t)s->inter_dim, taken = n;
            if (k->fault == PLANTED_ALTERNATING)
                taken = n < I ? 2 * n : 2 * (n - I) + 1;
            mf_reference_weight_row(&d, first ? MF_TENSOR_W1 : MF_TENSOR_W2, from, (int64_t)taken, w);
            g[n] = dot(x, w, K);
        }
        if (first) {
            gate_up(s, g, s->doweight_stage1 ? weights[p] : 1, b, k->fault == PLANTED_BIAS_LATE,
                    k->fault == PLANTED_SWAPPED, h);
        } else {
            weigh(k, g, s->doweight_stage1 ? 1 : weights[p], b, h);
        }
        int64_t at = first ? p : slot;
        if (p == victim)
            victim_at = at;
        if (apply_fault(k, p == victim, slot == s->token * s->topk - 1, e, h, n_out))
            encode_row(&out, &l->gives[0], at, n_out, h);
    }
    int64_t rows = first ? mf_padded_rows(s, k->block) : s->token * s->topk;
    apply_memory_fault(k, &out, &l->gives[0], victim_at, n_out, rows);
    return 0;
}

static int run_sort(struct mf_kernel *k, const struct mf_launch *l)
{
    const struct mf_shape *s = &k->shape;
    int r = mf_reference_sort(s, l->needs[0].part[0], l->needs[0].part[1], k->block, &l->gives[0]);
    int32_t *ids = l->gives[0].part[0], *experts = l->gives[0].part[2], *num_valid = l->gives[0].part[3];
    float *weights = l->gives[0].part[1];
    int64_t rows = mf_padded_rows(s, k->block), last = num_valid[0] / k->block - 1;
    switch (k->fault) {
    case PLANTED_ORDER: {
        int32_t e = experts[0];
        experts[0] = experts[last];
        experts[last] = e;
        break;
    }
    case PLANTED_WEIGHT:
        weights[0] *= 1.0001f;
        break;
    case PLANTED_COUNT:
        num_valid[0] += k->block;
        break;
    case PLANTED_DESTROYED:
        ids[0] = ids[num_valid[0] - k->block];
        break;
    case PLANTED_PAST:
        memset(ids + rows, 0x11, 3);
        break;
    case PLANTED_NONE:
    case PLANTED_NAN:
    case PLANTED_OFF:
    case PLANTED_TAIL:
    case PLANTED_ROWS:
    case PLANTED_BEFORE:
    case PLANTED_RACE:
    case PLANTED_EXPERT:
    case PLANTED_SWAPPED:
    case PLANTED_ALTERNATING:
    case PLANTED_BIASED:
    case PLANTED_BIAS_LATE:
    case PLANTED_BIAS_NEXT:
    case PLANTED_INPUT_PADDING:
    case PLANTED_N:
        break;
    }
    return r;
}

static int run_quant1(struct mf_kernel *k, const struct mf_launch *l)
{
    const struct mf_shape *s = &k->shape;
    struct mf_tensor_spec in = tensor_spec(MF_TENSOR_X, MF_FORMAT_BF16, "token", 0), out = mf_plain_x(s);
    for (int64_t t = 0; t < s->token; t++) {
        decode_row(&in, &l->needs[0], t, (size_t)s->model_dim, k->scratch);
        if (apply_fault(k, t == 0, t == s->token - 1, -1, k->scratch, (size_t)s->model_dim))
            encode_row(&out, &l->gives[0], t, (size_t)s->model_dim, k->scratch);
    }
    apply_memory_fault(k, &out, &l->gives[0], 0, (size_t)s->model_dim, s->token);
    return 0;
}

static int run_combine(struct mf_kernel *k, const struct mf_launch *l)
{
    const struct mf_shape *s = &k->shape;
    struct mf_tensor_spec out = tensor_spec(MF_TENSOR_Y, MF_FORMAT_BF16, "token", 0);
    const float *zw = l->needs[0].part[0];
    for (int64_t t = 0; t < s->token; t++) {
        memset(k->scratch, 0, (size_t)s->model_dim * sizeof(float));
        for (int64_t slot = t * s->topk; slot < (t + 1) * s->topk; slot++) {
            for (int32_t i = 0; i < s->model_dim; i++)
                k->scratch[i] += zw[slot * s->model_dim + i];
        }
        if (apply_fault(k, t == 0, t == s->token - 1, -1, k->scratch, (size_t)s->model_dim))
            encode_row(&out, &l->gives[0], t, (size_t)s->model_dim, k->scratch);
    }
    apply_memory_fault(k, &out, &l->gives[0], 0, (size_t)s->model_dim, s->token);
    return 0;
}

static int launch(struct mf_kernel *k, const struct mf_launch *l)
{
    k->runs++;
    switch (k->kind) {
    case SORT:
        return run_sort(k, l);
    case QUANT1:
        return run_quant1(k, l);
    case STAGE1:
        return run_stage(k, l, true);
    case STAGE2:
        return run_stage(k, l, false);
    case COMBINE:
        return run_combine(k, l);
    case N_KINDS:
        break;
    }
    return -EINVAL;
}

static void set_token_count(struct mf_kernel *k, int64_t token)
{
    k->shape.token = token;
}

const struct mf_family planted_family = {
    .api = MF_FAMILY_API,
    .name = "planted",
    .device_kind = "cpu",
    .enumerate = enumerate,
    .open = open_kernel,
    .launch = launch,
    .close = close_kernel,
    .set_token_count = set_token_count,
};
static const struct mf_family *const list[] = {&planted_family};
const struct mf_family_set planted_set = {list, 1};

struct mf_step planted_step(const struct mf_shape *shape, const char *kind, int32_t block,
                            enum planted_fault fault)
{
    struct mf_step step = {0};
    for (int i = 0; i < N_KINDS; i++) {
        if (strcmp(kinds[i], kind) != 0)
            continue;
        int32_t b = has_block((enum kind)i) ? block : 0;
        (void)mf_copy(step.family, sizeof(step.family), "planted");
        name_step((enum kind)i, b, fault, step.name);
        describe(shape, (enum kind)i, b, &step);
    }
    ck_assert_msg(step.name[0], "no step %s", kind);
    return step;
}

/* ---- device ---- */

struct planted_clock_device {
    struct mf_device device;
    enum planted_clock clock;
    double factor; /* factor of all times while n_slow is above 0; each canary run decrements n_slow */
    int n_slow;
    double times[PLANTED_TIMES_MAX]; /* times of the next runs, in us */
    int n_told, at;
};

static void device_free(struct mf_device *d)
{
    free(d);
}

static void *device_alloc(struct mf_device *d, size_t bytes)
{
    (void)d;
    return calloc(1, bytes);
}

static void device_release(struct mf_device *d, void *memory, size_t bytes)
{
    (void)d;
    (void)bytes;
    free(memory);
}

static int device_copy(struct mf_device *d, void *to, const void *from, size_t bytes)
{
    (void)d;
    memcpy(to, from, bytes);
    return 0;
}

static int device_time(struct mf_device *d, mf_launch_fn fn, void *context, int n, double *ret_us)
{
    uint64_t start = mf_now_ns();
    for (int i = 0; i < n; i++) {
        int r = fn(context, i);
        if (r < 0)
            return r;
    }
    const struct planted_clock_device *l = (struct planted_clock_device *)d;
    switch (l->clock) {
    case CLOCK_HONEST:
        *ret_us = (double)(mf_now_ns() - start) / 1e3 * (l->n_slow > 0 ? l->factor : 1);
        break;
    case CLOCK_SCRIPTED:
        *ret_us = l->times[l->at];
        ((struct planted_clock_device *)d)->at += l->at + 1 < l->n_told;
        break;
    case CLOCK_ZERO:
        *ret_us = 0;
        break;
    case CLOCK_NEGATIVE:
        *ret_us = -3;
        break;
    case CLOCK_TOO_FAST:
        *ret_us = 1e-5;
        break;
    }
    return 0;
}

static int device_canary(struct mf_device *d, double *ret_us)
{
    struct planted_clock_device *l = (struct planted_clock_device *)d;
    *ret_us = 100 * (l->n_slow > 0 ? l->factor : 1);
    l->n_slow -= l->n_slow > 0;
    return 0;
}

static const struct mf_device_ops ops = {
    .kind = "cpu",
    .free = device_free,
    .alloc = device_alloc,
    .release = device_release,
    .copy = device_copy,
    .time = device_time,
    .canary = device_canary,
};

struct mf_device *planted_device(enum planted_clock clock)
{
    struct planted_clock_device *d = calloc(1, sizeof(*d));
    d->device.ops = &ops;
    d->device.info = (struct mf_device_info){
        .class = {"cpu-planted", 2},
        .llc_bytes = 1 << 20,
        .cores = 1,
        .peak_gflops_bf16 = 2000,
        .peak_gflops_f32 = 1000,
        .mem_read_gbs = 100,
    };
    d->clock = clock;
    return &d->device;
}

void planted_device_set(struct mf_device *d, enum planted_clock clock)
{
    ((struct planted_clock_device *)d)->clock = clock;
}

void planted_device_slow(struct mf_device *d, double factor, int n)
{
    ((struct planted_clock_device *)d)->factor = factor;
    ((struct planted_clock_device *)d)->n_slow = n;
}

void planted_device_set_times(struct mf_device *d, const double *us, int n)
{
    struct planted_clock_device *l = (struct planted_clock_device *)d;
    ck_assert(n > 0 && n <= PLANTED_TIMES_MAX);
    planted_device_set(d, CLOCK_SCRIPTED);
    memcpy(l->times, us, (size_t)n * sizeof(*us));
    l->n_told = n;
    l->at = 0;
}

void planted_device_warm_up(struct mf_device *d, int n)
{
    double us[PLANTED_TIMES_MAX];
    ck_assert_int_lt(n, PLANTED_TIMES_MAX);
    for (int i = 0; i <= n; i++)
        us[i] = i < n ? 5e4 : 1e4;
    planted_device_set_times(d, us, n + 1);
}

/* ---- sink ---- */

static int sink_begin(struct mf_sink *s, int64_t id, bool is_pipeline, int64_t limit_ms)
{
    struct planted_sink *p = (struct planted_sink *)s;
    (void)id;
    (void)is_pipeline;
    p->n_begun++;
    p->limit_ms = limit_ms;
    return 0;
}

static int sink_result(struct mf_sink *s, const struct mf_unit_result *r)
{
    struct planted_sink *p = (struct planted_sink *)s;
    ck_assert_uint_lt(p->n_results, MF_ARRAY_LEN(p->results));
    for (size_t i = 0; i < MF_MIN(r->n_samples, MF_ARRAY_LEN(p->samples)); i++)
        p->samples[i] = r->samples[i];
    p->results[p->n_results] = *r;
    p->results[p->n_results++].samples = p->samples;
    return 0;
}

static int sink_race(struct mf_sink *s, const struct mf_race_outcome *o)
{
    struct planted_sink *p = (struct planted_sink *)s;
    p->outcome = *o;
    p->n_outcomes++;
    return 0;
}

void planted_sink_init(struct planted_sink *s)
{
    *s = (struct planted_sink){.sink = {.begin = sink_begin, .result = sink_result, .race = sink_race}};
}
