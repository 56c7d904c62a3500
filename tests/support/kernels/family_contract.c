#include "support/kernels/family_contract.h"

#include <check.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <sched.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "kernels/core/codec.h"
#include "kernels/core/data.h"
#include "kernels/core/quant.h"
#include "kernels/reference/reference.h"
#include "support/kernels/host_layer.h"
#include "support/kernels/row_limit.h"

#define SEED       11
#define GUARD      256
#define GUARD_BYTE 0x5c
#define CACHE_MAX  64

/* Replaces ck_assert, because ck_assert reports every passed assertion to the parent process, and this file
 * makes millions of assertions. */
#define MUST(condition, ...)           \
    do {                               \
        if (!(condition))              \
            ck_abort_msg(__VA_ARGS__); \
    } while (0)

const struct contract_format contract_formats[CONTRACT_N_FORMATS] = {
    {MF_DTYPE_BF16, MF_DTYPE_BF16, MF_QTYPE_NO, "two_stage"},
    {MF_DTYPE_FP8_E4M3FN, MF_DTYPE_FP8_E4M3FN, MF_QTYPE_PER_TOKEN, "two_stage"},
    {MF_DTYPE_FP8_E4M3FNUZ, MF_DTYPE_FP8_E4M3FNUZ, MF_QTYPE_PER_1X128, "two_stage"},
    {MF_DTYPE_FP8_E4M3FN, MF_DTYPE_FP8_E4M3FN, MF_QTYPE_PER_1X128, "two_stage"},
    {MF_DTYPE_FP8_E4M3FNUZ, MF_DTYPE_FP8_E4M3FNUZ, MF_QTYPE_PER_TOKEN, "two_stage"},
    {MF_DTYPE_INT8, MF_DTYPE_INT8, MF_QTYPE_PER_TOKEN, "two_stage"},
    {MF_DTYPE_INT8, MF_DTYPE_INT8, MF_QTYPE_PER_1X128, "two_stage"},
    {MF_DTYPE_INT8, MF_DTYPE_INT8, MF_QTYPE_PER_TENSOR, "two_stage"},
    {MF_DTYPE_FP8_E4M3FN, MF_DTYPE_FP8_E4M3FN, MF_QTYPE_PER_TENSOR, "two_stage"},
    {MF_DTYPE_FP8_E4M3FNUZ, MF_DTYPE_FP8_E4M3FNUZ, MF_QTYPE_PER_TENSOR, "two_stage"},
    {MF_DTYPE_FP8_E4M3FN, MF_DTYPE_FP8_E4M3FN, MF_QTYPE_PER_1X32, "two_stage_mx"},
    {MF_DTYPE_FP4X2, MF_DTYPE_FP4X2, MF_QTYPE_PER_1X32, "two_stage_mx"},
    {MF_DTYPE_FP8_E4M3FN, MF_DTYPE_FP4X2, MF_QTYPE_PER_1X32, "two_stage_mx"},
    {MF_DTYPE_BF16, MF_DTYPE_FP4X2, MF_QTYPE_PER_1X32, "two_stage_mx"},
    {MF_DTYPE_FP4X2, MF_DTYPE_FP4X2, MF_QTYPE_PER_1X16, "two_stage_mx"},
    {MF_DTYPE_BF16, MF_DTYPE_FP4X2, MF_QTYPE_PER_1X16, "two_stage_mx"},
    {MF_DTYPE_BF16, MF_DTYPE_INT4, MF_QTYPE_PER_1X32, "two_stage_int4"},
    {MF_DTYPE_FP8_E4M3FN, MF_DTYPE_INT4, MF_QTYPE_PER_1X32, "two_stage_int4"},
    {MF_DTYPE_BF16, MF_DTYPE_INT4, MF_QTYPE_PER_TOKEN, "two_stage_int4"},
    {MF_DTYPE_FP8_E4M3FN, MF_DTYPE_INT4, MF_QTYPE_PER_TOKEN, "two_stage_int4"},
    {MF_DTYPE_FP8_E4M3FNUZ, MF_DTYPE_INT4, MF_QTYPE_PER_TOKEN, "two_stage_int4"},
};

struct mf_shape contract_shape(const struct contract_case *c, const struct contract_format *f)
{
    return (struct mf_shape){
        .token = c->token,
        .model_dim = c->model_dim,
        .inter_dim = c->inter_dim,
        .expert = c->expert,
        .topk = c->topk,
        .act_type = c->act,
        .dtype = MF_DTYPE_BF16,
        .q_dtype_a = f->a,
        .q_dtype_w = f->w,
        .q_type = f->q_type,
        .use_g1u1 = true,
        /* so low that the limit clamps some values of every row */
        .act_limit = c->act == MF_ACT_SILU_STEP || (c->act == MF_ACT_SILU && c->token == 64) ? 0.75f : 0,
        .doweight_stage1 = c->doweight,
        .has_b1 = c->token % 2 == 1 && c->inter_dim != 192,
        .has_b2 = c->token % 2 == 1};
}

struct mf_device *contract_device(const char *isa)
{
    static const struct mf_device_info unmeasured = {
        .peak_gflops_bf16 = 1, .peak_gflops_f32 = 1, .mem_read_gbs = 1, .gap_us = 1};
    struct mf_device *d;
    char why[200];

    ck_assert_int_eq(isa ? setenv("MOEFARM_ISA", isa, 1) : unsetenv("MOEFARM_ISA"), 0);
    ck_assert_int_eq(mf_device_open_with("cpu:0", &(struct mf_device_open_options){.known = &unmeasured}, why,
                                         sizeof(why), &d),
                     0);
    if (isa && strncmp(d->info.isa, isa, strlen(isa)) != 0)
        return mf_device_close(d);
    return d;
}

void contract_pin_core(int which)
{
    cpu_set_t all, one;
    int n = 0;

    ck_assert_int_eq(sched_getaffinity(0, sizeof(all), &all), 0);
    CPU_ZERO(&one);
    for (int c = 0; c < CPU_SETSIZE; c++) {
        if (CPU_ISSET(c, &all) && n++ == which % CPU_COUNT(&all))
            CPU_SET(c, &one);
    }
    ck_assert_int_eq(sched_setaffinity(0, sizeof(one), &one), 0);
}

/* ---- a layer and its tensors ---- */

struct buffer {
    struct mf_tensor_spec a;
    struct mf_part parts[MF_PARTS_MAX];
    int n_parts;
    uint8_t *memory[MF_PARTS_MAX]; /* each part has a guard band before and after it */
    struct mf_tensor_ref ref;
};

struct layer {
    struct mf_layer_data data;
    struct mf_reference ref;
    struct row_limits *limits;
    struct buffer cache[CACHE_MAX];
    int n_cache;
    struct mf_tensor_ref other_topk; /* the same routes with int64 ids and bf16 weights */
    /* first token whose row of x has a non-finite value; the row of every later token has one, too */
    int64_t broken;
};

static void buffer_make(struct buffer *b, const struct mf_tensor_spec *a, const struct mf_shape *s)
{
    *b = (struct buffer){.a = *a};
    b->n_parts = mf_tensor_spec_parts(a, s, b->parts);
    ck_assert_int_gt(b->n_parts, 0);
    for (int i = 0; i < b->n_parts; i++) {
        size_t bytes = (size_t)mf_part_bytes(&b->parts[i]);
        b->memory[i] = aligned_alloc(64, (bytes + 2 * GUARD + 63) / 64 * 64);
        ck_assert_ptr_nonnull(b->memory[i]);
        memset(b->memory[i], GUARD_BYTE, bytes + 2 * GUARD);
        b->ref.part[i] = b->memory[i] + GUARD;
    }
}

static void buffer_release(struct buffer *b)
{
    for (int i = 0; i < b->n_parts; i++)
        free(b->memory[i]);
}

static void buffer_poison(struct buffer *b)
{
    bool is_value;
    for (int i = 0; i < b->n_parts; i++)
        mf_poison_fill_bytes(mf_part_poison(&b->a, i, &is_value), b->parts[i].element_bytes, b->ref.part[i],
                             (size_t)(b->parts[i].rows * b->parts[i].cols));
}

static void check_guards(const struct buffer *b, const char *step)
{
    for (int i = 0; i < b->n_parts; i++) {
        size_t bytes = (size_t)mf_part_bytes(&b->parts[i]);
        for (size_t g = 0; g < GUARD; g++) {
            MUST(b->memory[i][g] == GUARD_BYTE, "%s wrote before part %s", step, b->parts[i].name);
            MUST(b->memory[i][GUARD + bytes + g] == GUARD_BYTE, "%s wrote beyond part %s", step,
                 b->parts[i].name);
        }
    }
}

static bool has_route(const struct mf_layer_data *d, int32_t expert)
{
    for (int64_t i = 0; i < d->shape.token * d->shape.topk; i++) {
        if (mf_shape_local_expert(&d->shape, d->ids[i]) == expert)
            return true;
    }
    return false;
}

/* Returns the matrix of an expert in a decoded weight. */
static uint8_t *matrix_of(const struct buffer *b, const struct mf_shape *s, int32_t expert, size_t *ret_bytes)
{
    *ret_bytes = (size_t)(mf_part_bytes(&b->parts[0]) / s->expert);
    return (uint8_t *)b->ref.part[0] + (size_t)expert * *ret_bytes;
}

/* Poisons the decoded weights of experts without a route, because their contents are undefined. */
static void poison_unrouted(const struct buffer *b, const struct mf_layer_data *d)
{
    for (int32_t e = 0; e < d->shape.expert; e++) {
        size_t bytes;
        uint8_t *matrix = matrix_of(b, &d->shape, e, &bytes);
        if (!has_route(d, e))
            mf_poison_fill(MF_FORMAT_BF16, matrix, bytes / 2);
    }
}

static struct buffer *tensor_spec(struct layer *l, const struct mf_tensor_spec *a)
{
    struct buffer *sorted = NULL;

    for (int i = 0; i < l->n_cache; i++) {
        if (mf_tensor_spec_equal(&l->cache[i].a, a))
            return &l->cache[i];
    }
    if (a->block && a->format != MF_FORMAT_INDEX) {
        struct mf_tensor_spec s = {
            .tensor = MF_TENSOR_SORTED, .format = MF_FORMAT_INDEX, .order = "sorted", .block = a->block};
        sorted = tensor_spec(l, &s);
    }
    ck_assert_int_lt(l->n_cache, CACHE_MAX);
    struct buffer *b = &l->cache[l->n_cache++];
    buffer_make(b, a, &l->data.shape);
    if (a->tensor == MF_TENSOR_X && a->format == MF_FORMAT_BF16 && !a->block)
        memcpy(b->ref.part[0], l->data.x, (size_t)mf_part_bytes(&b->parts[0]));
    else
        ck_assert_int_eq(
            mf_reference_tensor_spec(&l->data, &l->ref, a, sorted ? &sorted->ref : NULL, &b->ref), 0);
    if (mf_tensor_spec_is_decoded(a))
        poison_unrouted(b, &l->data);
    return b;
}

static void *must_alloc(size_t n, size_t size)
{
    void *p = calloc(n, size);

    ck_assert_ptr_nonnull(p);
    return p;
}

static void scale_row(uint16_t *row, size_t n, int by)
{
    for (size_t i = 0; i < n; i++)
        /* adds `by` to the exponent of the bf16 value */
        row[i] = (uint16_t)(row[i] & 0x7fff ? row[i] + (by << 7) : row[i]);
}

static void run_wild(const struct mf_shape *s, uint16_t *x, float *weights)
{
    size_t T = (size_t)s->token, H = (size_t)s->model_dim, k = (size_t)s->topk;

    ck_assert_int_ge(s->token, CONTRACT_WILD_TOKENS);
    scale_row(x, H, 14);
    scale_row(x + H, H, 5);
    for (size_t j = 0; j < k; j++) {
        weights[2 * k + j] = 0;
        weights[3 * k + j] = j % 2 ? -2.5f : 16;
        weights[4 * k + j] = j % 2 ? 0 : 1;
    }
    x[(T - 2) * H + H / 3] = 0x7fc0;
    x[(T - 1) * H + H / 2] = 0xff80;
}

static int64_t n_routes(const struct mf_layer_data *d)
{
    return d->shape.token * d->shape.topk;
}

/* Gives one route of four an id that no expert has, and rounds all weights to bf16. */
static void make_routes(struct layer *l)
{
    const int32_t all = mf_shape_global_experts(&l->data.shape), invalid[] = {-1, all, INT32_MAX, INT32_MIN};
    int32_t *ids = (int32_t *)(uintptr_t)l->data.ids;
    float *weights = (float *)(uintptr_t)l->data.weights;
    int64_t *wide = must_alloc((size_t)n_routes(&l->data), sizeof(*wide));
    uint16_t *narrow = must_alloc((size_t)n_routes(&l->data), sizeof(*narrow));

    for (int64_t i = 0; i < n_routes(&l->data); i++) {
        wide[i] = ids[i];
        if (i % 4 == 1) {
            ids[i] = invalid[i / 4 % 4];
            /* the low half is a valid id */
            wide[i] += i / 4 % 2 ? INT64_C(1) << 32 : -(INT64_C(1) << 32);
        }
        narrow[i] = mf_bf16_from_float(weights[i]);
        weights[i] = mf_bf16_to_float(narrow[i]);
    }
    l->other_topk = (struct mf_tensor_ref){{wide, narrow}};
}

static void layer_make(struct layer *l, const struct mf_shape *s, const struct mf_routing *routing, bool wild)
{
    memset(l, 0, sizeof(*l));
    host_inputs_make(&l->data, s, routing, SEED);
    l->broken = wild ? s->token - 2 : s->token;
    if (wild)
        run_wild(s, (uint16_t *)l->data.x, (float *)l->data.weights);
    make_routes(l);
    if (s->q_dtype_w == MF_DTYPE_FP8_E4M3FN || s->q_dtype_w == MF_DTYPE_FP8_E4M3FNUZ) {
        /* rare fp8 values: zero and every subnormal, of both signs where the format has them */
        for (int i = 0; i < s->model_dim && i < 64; i++) {
            ((uint8_t *)l->data.w1.part[0])[i] = (uint8_t)(i % 8);
            ((uint8_t *)l->data.w2.part[0])[i] = (uint8_t)(i % 8 ? 0x80 | (i % 8) : 0);
        }
    }
    ck_assert_int_eq(mf_reference_make(&l->data, &l->ref), 0);
    l->limits = row_limits_new(&l->data, &l->ref);
}

static void layer_release(struct layer *l)
{
    free(l->other_topk.part[0]);
    free(l->other_topk.part[1]);
    for (int i = 0; i < l->n_cache; i++)
        buffer_release(&l->cache[i]);
    row_limits_free(l->limits);
    mf_reference_release(&l->ref);
    host_inputs_release(&l->data);
}

/* ---- comparison ---- */

static void decode_row(const struct layer *l, const struct buffer *b, int64_t row, float *out)
{
    const struct mf_codec *c = mf_codec_find(b->a.format, b->a.scale);
    mf_codec_decode_row(c, b->ref.part[0], b->ref.part[1], c->global ? *(const float *)b->ref.part[2] : 1,
                        (size_t)row, (size_t)mf_tensor_spec_cols(&b->a, &l->data.shape), out);
}

/* Checks the relative error of a whole row and of its worst element against the row's limits. */
static void compare_row(struct layer *l, const struct mf_step *s, const struct buffer *got,
                        const struct buffer *want, int64_t row, int64_t source)
{
    size_t n = (size_t)mf_tensor_spec_cols(&got->a, &l->data.shape);
    _cleanup_(mf_freep) float *a = must_alloc(n, 4), *b = must_alloc(n, 4);
    struct row_limit limit = row_limit(l->limits, s, &got->a, source);
    double error = 0, size = 0, worst = 0;

    decode_row(l, got, row, a);
    decode_row(l, want, row, b);
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        MUST(isfinite(a[i]), "%s: row %lld element %zu is %g", s->name, (long long)row, i, (double)a[i]);
        error += d * d;
        size += (double)b[i] * (double)b[i];
        worst = d > worst ? d : worst;
    }
    size = size > 0 ? sqrt(size) : 1;
    error = sqrt(error) / size;
    worst /= size;
    MUST(error <= limit.norm, "%s: row %lld has a relative error of %g, limit %g", s->name, (long long)row,
         error, limit.norm);
    MUST(worst <= limit.element,
         "%s: row %lld has an element with an error of %g of the row's norm, limit %g", s->name,
         (long long)row, worst, limit.element);
}

static void compare_bits(const struct buffer *got, const struct buffer *want, int part, int64_t row,
                         const char *step)
{
    size_t bytes = (size_t)(got->parts[part].cols * got->parts[part].element_bytes);

    if (got->parts[part].rows != got->parts[0].rows && got->a.tensor != MF_TENSOR_SORTED)
        row = 0; /* all rows share this part */

    MUST(memcmp((char *)got->ref.part[part] + (size_t)row * bytes,
                (char *)want->ref.part[part] + (size_t)row * bytes, bytes) == 0,
         "%s: part %s differs in row %lld", step, got->parts[part].name, (long long)row);
}

/* True if the step only copies, sorts or quantises, so that exactly one result is correct. */
static bool is_exact(const struct mf_step *s)
{
    mf_ops exact =
        MF_OP_BIT(MF_OP_SORT) | MF_OP_BIT(MF_OP_QUANT1) | MF_OP_BIT(MF_OP_GATHER) | MF_OP_BIT(MF_OP_QUANT2);

    return (s->covers & ~exact) == 0;
}

/* Sorts the rows of each expert by token and slot, as a stable sort does, because some kernels order these
 * rows arbitrarily. */
static void sort_rows(const struct buffer *sorted, int64_t rows, int32_t topk)
{
    int32_t *ids = sorted->ref.part[0];
    const int32_t *experts = sorted->ref.part[2];
    float *weights = sorted->ref.part[1];

    for (int64_t r = 1; r < rows; r++) {
        for (int64_t i = r; i > 0 && experts[(i - 1) / sorted->a.block] == experts[i / sorted->a.block];
             i--) {
            int64_t a = (int64_t)mf_id_token(ids[i - 1]) * (topk + 1) + mf_id_slot(ids[i - 1]);
            int64_t b = (int64_t)mf_id_token(ids[i]) * (topk + 1) + mf_id_slot(ids[i]);
            if (a <= b)
                break;
            int32_t id = ids[i];
            float weight = weights[i];
            ids[i] = ids[i - 1];
            weights[i] = weights[i - 1];
            ids[i - 1] = id;
            weights[i - 1] = weight;
        }
    }
}

/* Returns the token of row r. id: sorted id of the row, if the rows are sorted. */
static int64_t token_of(const struct layer *l, const struct mf_tensor_spec *a, int64_t r, int32_t id)
{
    return a->block ? mf_id_token(id) : strcmp(a->order, "slot") == 0 ? r / l->data.shape.topk : r;
}

static void compare(struct layer *l, const struct mf_step *s, const struct buffer *got)
{
    const struct buffer *want = tensor_spec(l, &got->a), *sorted = NULL;
    int64_t rows = got->parts[0].rows;

    if (got->a.block) {
        struct mf_tensor_spec a = {
            .tensor = MF_TENSOR_SORTED, .format = MF_FORMAT_INDEX, .order = "sorted", .block = got->a.block};
        sorted = tensor_spec(l, &a);
        rows = ((const int32_t *)sorted->ref.part[3])[0];
    }
    if (mf_tensor_spec_is_decoded(&got->a)) {
        for (int32_t e = 0; e < l->data.shape.expert; e++) {
            size_t bytes;
            const uint8_t *is = matrix_of(got, &l->data.shape, e, &bytes),
                          *should = matrix_of(want, &l->data.shape, e, &bytes);
            MUST(!has_route(&l->data, e) || memcmp(is, should, bytes) == 0, "%s: %s of expert %d differs",
                 s->name, mf_tensor_name(got->a.tensor), (int)e);
        }
        return;
    }
    if (got->a.tensor == MF_TENSOR_ALIGNED) {
        for (int part = 0; part < got->n_parts; part++) {
            for (int64_t r = 0; r < got->parts[part].rows; r++)
                compare_bits(got, want, part, r, s->name);
        }
        return;
    }
    if (got->a.tensor == MF_TENSOR_SORTED) {
        if (s->reorder_tolerance > 0)
            sort_rows(got, rows, l->data.shape.topk);
        for (int part = 0; part < 4; part++) {
            int64_t n = part == 2 ? rows / got->a.block : part == 3 ? 2 : rows;
            for (int64_t r = 0; r < n; r++)
                compare_bits(got, want, part, r, s->name);
        }
        return;
    }
    for (int64_t r = 0; r < rows; r++) {
        int32_t id = sorted ? ((const int32_t *)sorted->ref.part[0])[r] : 0;
        if (sorted && mf_id_slot(id) >= l->data.shape.topk)
            continue;
        if (strcmp(got->a.order, "slot") == 0 && mf_shape_local_expert(&l->data.shape, l->data.ids[r]) < 0)
            continue; /* this row is undefined, because its expert is not local */
        if (token_of(l, &got->a, r, id) >= l->broken)
            continue;
        for (int part = 0; is_exact(s) && part < got->n_parts; part++)
            compare_bits(got, want, part, r, s->name);
        if (!is_exact(s))
            compare_row(l, s, got, want, r,
                        sorted ? (int64_t)mf_id_token(id) * l->data.shape.topk + mf_id_slot(id) : r);
    }
}

/* ---- one step ---- */

static uint64_t hash_of(const struct buffer *b)
{
    uint64_t h = 0xcbf29ce484222325u;

    for (int i = 0; i < b->n_parts; i++) {
        size_t n = (size_t)mf_part_bytes(&b->parts[i]), k = 0;
        for (uint64_t v; k + 8 <= n; k += 8) {
            memcpy(&v, (const uint8_t *)b->ref.part[i] + k, 8);
            h = (h ^ v) * 0x9e3779b97f4a7c15u;
            h ^= h >> 29;
        }
        for (; k < n; k++)
            h = (h ^ ((const uint8_t *)b->ref.part[i])[k]) * 0x100000001b3u;
    }
    return h;
}

static void register_buffer(const struct contract_run *run, const struct buffer *b, bool writable)
{
    for (int i = 0; i < b->n_parts; i++) {
        if (mf_part_bytes(&b->parts[i]) > 0)
            run->guard->know(run->device, b->ref.part[i], (size_t)mf_part_bytes(&b->parts[i]), writable);
    }
}

/* Registers the memory that the step may access: inputs for reading, outputs and workspace for writing. */
static void register_step(const struct contract_run *run, const struct mf_step *s, struct buffer *const *in,
                          const struct buffer *out, const uint8_t *workspace)
{
    if (!run->guard)
        return;
    run->guard->know(run->device, NULL, 0, false);
    for (int i = 0; i < s->n_needs; i++)
        register_buffer(run, in[i], false);
    for (int i = 0; i < s->n_gives; i++)
        register_buffer(run, &out[i], true);
    if (s->workspace_bytes > 0)
        run->guard->know(run->device, workspace, s->workspace_bytes, true);
}

static struct mf_shape opened_as(const struct contract_run *run)
{
    struct mf_shape s = *run->shape;

    s.token = run->bucket > 0 ? run->bucket : s.token;
    return s;
}

/* Replaces topk by its other types. Returns these types, which are the default if the step does not read
 * topk. */
static struct mf_route_types use_other_topk(const struct contract_run *run, const struct layer *l,
                                            const struct mf_step *s, struct mf_tensor_ref *needs)
{
    const int64_t n = n_routes(&l->data);

    for (int i = 0; i < s->n_needs; i++) {
        if (s->needs[i].tensor != MF_TENSOR_TOPK)
            continue;
        needs[i] = l->other_topk;
        if (run->guard) {
            run->guard->know(run->device, needs[i].part[0], (size_t)n * sizeof(int64_t), false);
            run->guard->know(run->device, needs[i].part[1], (size_t)n * sizeof(uint16_t), false);
        }
        return (struct mf_route_types){.wide = true, .bf16_weights = true};
    }
    return (struct mf_route_types){0};
}

/* Runs the step twice on the tensors of one layer, the second time with int64 ids and bf16 weights. */
static void run_twice(const struct contract_run *run, struct mf_kernel *kernel, struct layer *l,
                      const struct mf_family *f, const struct mf_step *s)
{
    struct mf_tensor_ref needs[MF_STEP_TENSOR_SPECS_MAX], gives[MF_STEP_TENSOR_SPECS_MAX];
    struct buffer *in[MF_STEP_TENSOR_SPECS_MAX], out[MF_STEP_TENSOR_SPECS_MAX];
    uint64_t before[MF_STEP_TENSOR_SPECS_MAX], first[MF_STEP_TENSOR_SPECS_MAX];
    size_t room = s->workspace_bytes + 64;
    _cleanup_(mf_freep) uint8_t *workspace = aligned_alloc(64, (room + 127) / 64 * 64);

    for (int i = 0; i < s->n_needs; i++) {
        in[i] = tensor_spec(l, &s->needs[i]);
        needs[i] = in[i]->ref;
        before[i] = hash_of(in[i]);
    }
    for (int i = 0; i < s->n_gives; i++)
        buffer_make(&out[i], &s->gives[i], &l->data.shape);
    register_step(run, s, in, out, workspace);
    for (int time = 0; time < 2; time++) {
        /* two different NaN patterns, because the workspace is uninitialised */
        memset(workspace, time ? 0xff : 0x7f, room);
        memset(workspace + s->workspace_bytes, GUARD_BYTE, 64);
        for (int i = 0; i < s->n_gives; i++) {
            buffer_poison(&out[i]);
            gives[i] = out[i].ref;
        }
        struct mf_launch launch = {.needs = needs, .gives = gives, .workspace = workspace};
        if (time == 1 && strcmp(f->name, "asm") != 0)
            launch.routes = use_other_topk(run, l, s, needs);
        size_t allocated = run->allocations ? run->allocations() : 0;
        MUST(f->launch(kernel, &launch) == 0, "%s: launch failed%s%s", s->name, run->guard ? ": " : "",
             run->guard ? run->guard->why(run->device) : "");
        MUST(!run->allocations || run->allocations() == allocated, "%s: launch allocated memory", s->name);
        for (int i = 0; i < 64; i++)
            MUST(workspace[s->workspace_bytes + (size_t)i] == GUARD_BYTE, "%s wrote beyond its workspace",
                 s->name);
        for (int i = 0; i < s->n_gives; i++) {
            check_guards(&out[i], s->name);
            if (time == 0)
                compare(l, s, &out[i]);
            uint64_t h = hash_of(&out[i]);
            if (time == 1 && s->reorder_tolerance > 0)
                compare(l, s, &out[i]);
            else
                MUST(time == 0 || h == first[i], "%s: a second run differs", s->name);
            first[i] = h;
        }
    }
    for (int i = 0; i < s->n_needs; i++) {
        MUST(hash_of(in[i]) == before[i], "%s wrote to an input", s->name);
        check_guards(in[i], s->name);
    }
    for (int i = 0; i < s->n_gives; i++)
        buffer_release(&out[i]);
}

static void check_step(const struct contract_run *run, struct layer *l, const struct mf_family *f,
                       const struct mf_step *s)
{
    _Alignas(max_align_t) uint8_t copy[MF_KERNEL_COPY_MAX];
    const struct mf_shape opened = opened_as(run);
    struct mf_kernel *kernel;

    MUST(f->open(f, run->device, &opened, s->name, &kernel) == 0, "%s: open failed", s->name);
    struct mf_kernel *called = kernel;
    if (run->bucket > 0) { /* as libfmoe calls a kernel */
        MUST(f->set_token_count, "%s has no set_token_count", f->name);
        called = f->copy ? f->copy(kernel, run->device->stream, copy) : kernel;
        f->set_token_count(called, l->data.shape.token);
    }
    run_twice(run, called, l, f, s);
    kernel = f->close(kernel);
}

/* ---- enumeration ---- */

struct collect {
    struct mf_offer offer;
    struct mf_step *steps;
    size_t n, cap;
    struct contract_answer answer;
};

static int take_step(struct mf_offer *o, const struct mf_step *step)
{
    struct collect *c = (struct collect *)o;

    for (size_t i = 0; i < c->n; i++)
        MUST(strcmp(c->steps[i].name, step->name) != 0, "%s is offered twice", step->name);
    ck_assert_int_eq(
        (int)strspn(step->name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"),
        (int)strlen(step->name));
    if (c->n == c->cap) {
        c->cap = c->cap ? c->cap * 2 : 64;
        c->steps = reallocarray(c->steps, c->cap, sizeof(*c->steps));
        ck_assert_ptr_nonnull(c->steps);
    }
    c->steps[c->n++] = *step;
    c->answer.steps[step->stage]++;
    return 0;
}

__attribute__((format(printf, 5, 6))) static int take_rejection(struct mf_offer *o, const char *family,
                                                                const char *kernel, const char *rule,
                                                                const char *format, ...)
{
    struct collect *c = (struct collect *)o;
    va_list args;

    (void)family;
    (void)kernel;
    if (c->answer.rejections++ == 0) {
        (void)snprintf(c->answer.rule, sizeof(c->answer.rule), "%s", rule);
        va_start(args, format);
        (void)vsnprintf(c->answer.reason, sizeof(c->answer.reason), format, args);
        va_end(args);
    }
    return 0;
}

void contract_enumerate(const char *family, const struct mf_shape *shape, int cores,
                        struct contract_answer *ret)
{
    struct mf_device_info info = {.class = {.gfx = "cpu-x86_64_v3", .cu_num = cores}, .cores = cores};
    struct collect c = {.offer = {take_step, take_rejection}};

    ck_assert_int_eq(mf_enumerate(&info, shape, family, &c.offer), 0);
    free(c.steps);
    *ret = c.answer;
}

/* Removes all steps that the run does not check. */
static void choose(const struct contract_run *run, struct collect *c)
{
    size_t kept = 0;
    _cleanup_(mf_freep) bool *keep = must_alloc(c->n + 1, sizeof(*keep));

    for (size_t i = 0; i < c->n; i++) {
        /* alike: number of comparable steps; rank: number of comparable steps with a lower index */
        size_t alike = 0, rank = 0;
        for (size_t j = 0; j < c->n; j++) {
            bool is_alike = !run->of_each || (c->steps[j].covers == c->steps[i].covers &&
                                              c->steps[j].gives[0].tensor == c->steps[i].gives[0].tensor);
            alike += is_alike;
            rank += is_alike && j < i;
        }
        size_t stride = MF_MAX((alike + (size_t)run->most - 1) / (size_t)run->most, (size_t)1);
        keep[i] = rank % stride == (size_t)run->first % stride;
    }
    for (size_t i = 0; i < c->n; i++) {
        if (keep[i])
            c->steps[kept++] = c->steps[i];
    }
    c->n = kept;
}

/* Compiles all kernels in one call, because otherwise each call of open() would compile one kernel by itself.
 */
static void compile_ahead(const struct contract_run *run, const struct mf_family *f, const struct collect *c)
{
    if (!f->code || !run->device->ops->compile)
        return;
    struct mf_code *codes = must_alloc(c->n + 1, sizeof(*codes));
    char(*paths)[PATH_MAX] = must_alloc(c->n + 1, sizeof(*paths));
    char(*whys)[MF_CODE_WHY_MAX] = must_alloc(c->n + 1, sizeof(*whys));
    const struct mf_shape opened = opened_as(run);
    for (size_t i = 0; i < c->n; i++)
        MUST(f->code(f, &run->device->info, &opened, c->steps[i].name, &codes[i]) == 0, "%s: code failed",
             c->steps[i].name);
    (void)run->device->ops->compile(run->device, codes, c->n, paths, whys);
    for (size_t i = 0; i < c->n; i++)
        MUST(*paths[i], "%s: compilation failed: %s", c->steps[i].name, whys[i]);
    free(codes);
    free(paths);
    free(whys);
}

static int check_family(const struct contract_run *run, struct layer *l, const char *family)
{
    struct collect c = {.offer = {take_step, take_rejection}};
    struct mf_device *device = run->device;
    const struct mf_family *f = mf_family_find(device->ops->kind, family);
    struct mf_kernel *kernel;

    ck_assert_ptr_nonnull(f);
    const struct mf_shape opened = opened_as(run);

    ck_assert_int_eq(mf_enumerate(&device->info, &opened, family, &c.offer), 0);
    ck_assert_int_eq(f->open(f, device, &opened, "no_such_step", &kernel), -EINVAL);
    choose(run, &c);
    compile_ahead(run, f, &c);
    for (size_t i = 0; i < c.n; i++)
        check_step(run, l, f, &c.steps[i]);
    free(c.steps);
    return (int)c.n;
}

int contract_check_some(const struct contract_run *run)
{
    const struct mf_routing routing = {.kind = MF_ROUTING_UNIFORM};
    struct layer layer;
    int n = 0;

    layer_make(&layer, run->shape, &routing, run->wild);
    for (size_t i = 0; i < run->n_families; i++)
        n += check_family(run, &layer, run->families[i]);
    layer_release(&layer);
    return n;
}

int contract_check(struct mf_device *device, const char *family, const struct mf_shape *shape)
{
    const struct contract_run run = {
        .device = device, .families = &family, .n_families = 1, .shape = shape, .most = INT_MAX};
    return contract_check_some(&run);
}

int contract_replay(struct mf_device *device, const char *family, const struct mf_shape *shape,
                    contract_counter allocations)
{
    struct mf_routing balanced = {.kind = MF_ROUTING_BALANCED},
                      few = {.kind = MF_ROUTING_RECORDED, .n_counts = mf_shape_global_experts(shape)};
    const struct contract_run run = {.device = device, .shape = shape, .allocations = allocations};
    const struct mf_family *f = mf_family_find("cpu", family);
    struct collect c = {.offer = {take_step, take_rejection}};
    struct layer layers[2]; /* a routing with many small blocks, and one with few full blocks */

    for (int32_t i = 0; i < shape->topk; i++)
        few.counts[shape->ep_first + i] = 1;
    layer_make(&layers[0], shape, &balanced, false);
    layer_make(&layers[1], shape, &few, false);
    ck_assert_int_eq(mf_enumerate(&device->info, shape, family, &c.offer), 0);
    for (size_t i = 0; i < 2 * c.n; i++) {
        const struct mf_step *step = &c.steps[i / 2];
        struct mf_kernel *kernel;
        MUST(f->open(f, device, shape, step->name, &kernel) == 0, "%s: open failed", step->name);
        run_twice(&run, kernel, &layers[i % 2], f, step);
        run_twice(&run, kernel, &layers[1 - i % 2], f, step);
        kernel = f->close(kernel);
    }
    free(c.steps);
    layer_release(&layers[0]);
    layer_release(&layers[1]);
    return (int)c.n;
}
