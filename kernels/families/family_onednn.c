/* Family onednn: oneDNN matmul per expert block, as a vendor baseline. oneDNN multiplies bf16 only. A step of
 * family move therefore dequantises quantised weights first, and quantised rows are dequantised while they
 * are gathered.
 *
 *     dnnl_s1_bf16_silu_m64_t2_p32    gather + gemm1 + act; gather and activation run outside oneDNN
 *     dnnl_g1_bf16_m64_t2_p32         gather + gemm1, writes g, the input of step act of family move
 *     dnnl_s2_bf16_m64_t2_p32         gemm2, writes z
 *     dnnl_s2_mxfp8_mxfp4_m64_t2_p32  gemm2 from h in MXFP8 and w2 dequantised from MXFP4 (w2d), writes z
 *
 * Each thread processes whole blocks with single-threaded primitives. This is faster than a thread team per
 * small GEMM, and oneDNN then starts no OpenMP threads. Opening a step creates a primitive for every row
 * count up to block_m, with its scratchpad in the workspace, so a launch creates no primitives. Execution
 * still allocates a small argument map inside oneDNN 2.6. The panel layouts are oneDNN's BA16a16b2a and
 * BA16a32b2a if K is a multiple of 32. */
#include "kernels/families/family_cpu.h"

#include <errno.h>
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/shared_library.h"
#include "kernels/core/codec.h"
#include "kernels/core/layout.h"

/* oneDNN and its OpenMP runtime are loaded at run time, because few programs need this family. */
#define DNNL_FILE "libdnnl.so.2"
/* clang-format off */
#define DNNL_CALLS(X)                                                                                  \
    X(dnnl_, engine_create) X(dnnl_, engine_destroy) X(dnnl_, matmul_desc_init)                        \
    X(dnnl_, memory_create) X(dnnl_, memory_desc_get_size) X(dnnl_, memory_desc_init_by_tag)           \
    X(dnnl_, memory_destroy) X(dnnl_, memory_set_data_handle) X(dnnl_, primitive_attr_create)          \
    X(dnnl_, primitive_attr_destroy) X(dnnl_, primitive_attr_set_scratchpad_mode)                      \
    X(dnnl_, primitive_create) X(dnnl_, primitive_desc_create) X(dnnl_, primitive_desc_destroy)        \
    X(dnnl_, primitive_desc_query_md) X(dnnl_, primitive_destroy) X(dnnl_, primitive_execute)          \
    X(dnnl_, stream_create) X(dnnl_, stream_destroy) X(omp_, get_max_threads) X(omp_, set_num_threads)
/* clang-format on */
static struct {
    DNNL_CALLS(MF_FUNCTION_POINTER)
} dnnl;
static const char *const dnnl_functions[] = {DNNL_CALLS(MF_FUNCTION_NAME)};
static pthread_once_t dnnl_once = PTHREAD_ONCE_INIT;
static int dnnl_error;

#define ROWS_MAX     64
#define COST_OF_READ 12 /* cost of reading a block's weights, divided by the cost of computing one row */

struct config {
    int stage, block_m, threads, panel;
    bool plain; /* stage 1 without act */
};

/* The primitive for one row count, and each thread's memory objects, which own no memory. */
struct rows_kernel {
    dnnl_primitive_t primitive;
    dnnl_memory_t *src, *weights, *dst, *scratch; /* by thread */
};

struct mf_kernel {
    struct config config;
    struct mf_shape shape;
    const struct mf_codec *codec; /* codec of the input rows; a codec without scales is plain bf16 */
    const struct mf_cpu_ops *ops;
    size_t N, K;
    size_t scratch_bytes, room; /* room: workspace of one thread */
    dnnl_engine_t engine;
    dnnl_stream_t *streams; /* by thread */
    struct rows_kernel rows[ROWS_MAX + 1];
    const struct mf_launch *launch;
    int error;
};

static void print_name(const struct config *c, const struct mf_shape *s, char buf[MF_STEP_NAME_MAX])
{
    const char *layout = mf_cpu_layout(c->panel, false)->word;
    char format[MF_FORMAT_WORD_MAX];

    mf_cpu_format_word(s, format);
    if (c->plain)
        (void)snprintf(buf, MF_STEP_NAME_MAX, "dnnl_g1_%s_m%d_t%d_%s", format, c->block_m, c->threads,
                       layout);
    else if (c->stage == 1)
        (void)snprintf(buf, MF_STEP_NAME_MAX, "dnnl_s1_%s_%s_m%d_t%d_%s%s", format, mf_cpu_act_word(s),
                       c->block_m, c->threads, layout, s->doweight_stage1 ? "_w" : "");
    else
        (void)snprintf(buf, MF_STEP_NAME_MAX, "dnnl_s2_%s_m%d_t%d_%s", format, c->block_m, c->threads,
                       layout);
}

static size_t align64(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* ---- which steps ---- */

static void load_dnnl(void)
{
    dnnl_error = mf_shared_library_load(DNNL_FILE, dnnl_functions, MF_ARRAY_LEN(dnnl_functions), &dnnl);
}

static bool shape_fits(const struct mf_shape *s, struct mf_refusal *ret)
{
    if (!mf_cpu_shape_known(s, ret))
        return false;
    if (mf_isa_best() != MF_ISA_AVX512) {
        mf_refuse(ret, "isa", "the CPU has %s; bf16 in oneDNN 2.6 needs AVX-512", mf_isa_name(mf_isa_best()));
        return false;
    }
    (void)pthread_once(&dnnl_once, load_dnnl);
    if (dnnl_error < 0)
        mf_refuse(ret, "library", "%s not found: install Debian's package libdnnl2", DNNL_FILE);
    return dnnl_error == 0;
}

/* True if the weights are quantised and must be dequantised first. */
static bool is_quantised(const struct mf_shape *s)
{
    return mf_plain_w(s, MF_TENSOR_W1, "row").scale != MF_SCALE_NONE;
}

/* A panel layout matches a oneDNN format only if K is a multiple of 32. */
static bool layout_fits(const struct mf_shape *s, int stage, int panel)
{
    size_t n = stage == 1 ? (size_t)s->inter_dim : (size_t)s->model_dim;
    size_t k = stage == 1 ? (size_t)s->model_dim : (size_t)s->inter_dim;

    return panel == 1 || (n % (size_t)panel == 0 && k % 32 == 0);
}

/* Forms of a step. Gather and activation are loops before and after the oneDNN call of each block. Stage 2
 * has no loop after the call. The forms of stage 2 that would need such a loop are checked only to report why
 * these forms are not available. */
enum form { GEMM1, STAGE1, STAGE2, STAGE2_WEIGHTED, STAGE2_OUTPUT, STAGE1_DEQUANT, STAGE2_DEQUANT, N_FORMS };

static const struct mf_fusion_caps around = {
    .prologue = MF_OP_BIT(MF_OP_GATHER),
    .epilogue = MF_OP_BIT(MF_OP_ACT) | MF_OP_BIT(MF_OP_WEIGHT),
};
static const struct mf_fusion_caps call_alone = {.external = true};

static const struct {
    const char *kernel;
    mf_ops ops; /* covered ops; op WEIGHT is added if the shape requires it */
    const struct mf_fusion_caps *caps;
} forms[] = {
    [GEMM1] = {"dnnl_g1", MF_OP_BIT(MF_OP_GATHER) | MF_OP_BIT(MF_OP_GEMM1), &around},
    [STAGE1] = {"dnnl_s1", MF_OP_BIT(MF_OP_GATHER) | MF_OP_BIT(MF_OP_GEMM1) | MF_OP_BIT(MF_OP_ACT), &around},
    [STAGE2] = {"dnnl_s2", MF_OP_BIT(MF_OP_GEMM2), &call_alone},
    [STAGE2_WEIGHTED] = {"dnnl_s2_zw", MF_OP_BIT(MF_OP_GEMM2) | MF_OP_BIT(MF_OP_WEIGHT), &call_alone},
    [STAGE2_OUTPUT] = {"dnnl_s2_y", MF_OP_BIT(MF_OP_GEMM2) | MF_OP_BIT(MF_OP_COMBINE), &call_alone},
    [STAGE1_DEQUANT] = {"dnnl_s1_codes", MF_OP_BIT(MF_NODE_DEQUANT_W1) | MF_OP_BIT(MF_OP_GEMM1), &around},
    [STAGE2_DEQUANT] = {"dnnl_s2_codes", MF_OP_BIT(MF_NODE_DEQUANT_W2) | MF_OP_BIT(MF_OP_GEMM2), &around},
};

static mf_ops covers_of(const struct mf_shape *s, enum form form)
{
    mf_ops weight = MF_OP_BIT(MF_OP_WEIGHT);
    bool weighs = s->doweight_stage1 ? form == STAGE1 : form == STAGE2_OUTPUT;

    return forms[form].ops | (weighs ? weight : 0);
}

static bool form_allowed(const struct mf_shape *s, enum form form, struct mf_refusal *ret)
{
    return mf_cpu_may_cover(s, covers_of(s, form), ROWS_MAX, forms[form].caps, ret);
}

static enum form form_of(const struct config *c)
{
    return c->plain ? GEMM1 : c->stage == 1 ? STAGE1 : STAGE2;
}

typedef int (*each_fn)(void *context, const struct config *c);

/* True if the stage's weights are bf16 or are worth dequantising. With `legal`, also true for weights that
 * can be dequantised but are not worth it. */
static bool weight_there(const struct mf_shape *s, int stage, bool legal, struct mf_refusal *ret)
{
    mf_ops node = MF_OP_BIT(stage == 1 ? MF_NODE_DEQUANT_W1 : MF_NODE_DEQUANT_W2);

    return !is_quantised(s) || mf_cpu_may_dequantise(s, node, legal, ret);
}

static const int32_t block_ms[] = {16, 64};

static int each(const struct mf_shape *s, int cores, bool legal, each_fn f, void *context)
{
    static const int panels[] = {32, 16, 1};
    struct mf_refusal no;
    bool allowed[] = {[GEMM1] = form_allowed(s, GEMM1, &no),
                      [STAGE1] = form_allowed(s, STAGE1, &no),
                      [STAGE2] = form_allowed(s, STAGE2, &no)};
    int r = 0;

    for (int stage = 1; stage <= 2; stage++) {
        for (size_t p = 0; p < MF_ARRAY_LEN(panels); p++) {
            for (size_t b = 0; b < MF_ARRAY_LEN(block_ms); b++) {
                struct config c = {
                    .stage = stage, .block_m = block_ms[b], .panel = panels[p], .threads = cores};
                if (!layout_fits(s, stage, c.panel) || (is_quantised(s) && c.panel != 32) ||
                    !weight_there(s, stage, legal, &no) ||
                    (!legal && !mf_cpu_block_pays(s, block_ms, b, &no)))
                    continue;
                if (allowed[form_of(&c)])
                    r = f(context, &c);
                c.plain = stage == 1 && c.panel == 32;
                if (r == 0 && c.plain && allowed[GEMM1])
                    r = f(context, &c);
                c.plain = false;
                c.threads = 1;
                if (r == 0 && cores > 1 && c.panel == 32 && allowed[form_of(&c)])
                    r = f(context, &c);
                if (r != 0)
                    return r;
            }
        }
    }
    return 0;
}

static void sizes_of(const struct config *c, const struct mf_shape *s, size_t *ret_n, size_t *ret_k)
{
    *ret_n = c->stage == 1 ? 2 * (size_t)s->inter_dim : (size_t)s->model_dim;
    *ret_k = c->stage == 1 ? (size_t)s->model_dim : (size_t)s->inter_dim;
}

/* Returns an upper bound of the scratchpad's size: with the row layout, oneDNN packs the weights itself. */
static size_t scratch_ceiling(const struct config *c, size_t N, size_t K)
{
    return c->panel == 1 ? align64(K * 64 * 2 * 4 + N * 64 + 65536) : 65536;
}

static size_t room_of(const struct config *c, size_t N, size_t K)
{
    size_t bm = (size_t)c->block_m;

    return align64(bm * K * 2) + align64(bm * N * 4) + align64(K * 4) + scratch_ceiling(c, N, K);
}

/* Returns the tensor spec of the weight that a step reads. */
static struct mf_tensor_spec weight_of(const struct config *c, const struct mf_shape *shape)
{
    enum mf_tensor w = c->stage == 1 ? MF_TENSOR_W1 : MF_TENSOR_W2;

    return is_quantised(shape) ? mf_cpu_dequantised(w)
                               : mf_plain_w(shape, w, mf_cpu_layout(c->panel, false)->name);
}

static void describe(const struct config *c, const struct mf_shape *shape, struct mf_step *ret)
{
    struct mf_step s = {.family = "onednn", .block_m = c->block_m};
    double slots = mf_cpu_slots(shape), H = shape->model_dim, I = shape->inter_dim;
    size_t N, K;

    print_name(c, shape, s.name);
    sizes_of(c, shape, &N, &K);
    s.workspace_bytes = room_of(c, N, K) * (size_t)c->threads;
    s.covers = covers_of(shape, form_of(c));
    if (c->stage == 1) {
        s.stage = MF_STAGE_STAGE1;
        mf_step_need(&s, mf_plain_x(shape));
        mf_step_need(&s, mf_cpu_sorted(c->block_m));
        mf_step_need(&s, weight_of(c, shape));
        if (shape->has_b1 && !c->plain)
            mf_step_need(&s, mf_plain_bias(MF_TENSOR_B1));
        mf_step_give(&s, mf_cpu_bf16(c->plain ? MF_TENSOR_G : MF_TENSOR_H, "sorted", c->block_m));
    } else {
        s.stage = MF_STAGE_STAGE2;
        mf_step_need(&s, mf_plain_h(shape, c->block_m));
        mf_step_need(&s, mf_cpu_sorted(c->block_m));
        mf_step_need(&s, weight_of(c, shape));
        if (shape->has_b2)
            mf_step_need(&s, mf_plain_bias(MF_TENSOR_B2));
        mf_step_give(&s, mf_cpu_bf16(MF_TENSOR_Z, "slot", 0));
    }
    s.flops = slots * H * I * (c->stage == 1 ? 4 : 2);
    s.bytes = mf_layer_expected_active(shape) * (double)N * (double)K * 2;
    if (c->stage == 1)
        s.bytes +=
            (double)shape->token * mf_cpu_row_bytes(shape, (int64_t)H) + slots * I * (c->plain ? 4 : 2);
    else
        s.bytes += slots * (H * 2 + mf_cpu_row_bytes(shape, (int64_t)I));
    *ret = s;
}

struct walk {
    const struct mf_shape *shape;
    struct mf_offer *offer;
    const char *name;
    struct config found;
};

static int offer_step(void *context, const struct config *c)
{
    struct walk *w = context;
    struct mf_step step;

    describe(c, w->shape, &step);
    return w->offer->step(w->offer, &step);
}

/* True if the form is meaningful for the shape: weighted z needs routing weights in stage 2, dequantising
 * forms need quantised weights. */
static bool is_applicable(const struct mf_shape *s, enum form form)
{
    bool codes = form == STAGE1_DEQUANT || form == STAGE2_DEQUANT;

    return codes ? is_quantised(s) : form != STAGE2_WEIGHTED || !s->doweight_stage1;
}

static int reject_forms(const struct mf_family *f, const struct mf_shape *s, struct mf_offer *offer)
{
    for (enum form form = GEMM1; form < N_FORMS; form++) {
        struct mf_refusal no;
        if (!is_applicable(s, form) || form_allowed(s, form, &no))
            continue;
        int r = offer->reject(offer, f->name, forms[form].kernel, no.rule, "%s", no.reason);
        if (r < 0)
            return r;
    }
    return 0;
}

static int enumerate(const struct mf_family *f, const struct mf_device_info *device,
                     const struct mf_shape *shape, struct mf_offer *offer)
{
    struct walk w = {.shape = shape, .offer = offer};
    struct mf_refusal refusal;

    if (!shape_fits(shape, &refusal))
        return offer->reject(offer, f->name, f->name, refusal.rule, "%s", refusal.reason);
    for (int stage = 1; stage <= 2; stage++) {
        if (!weight_there(shape, stage, false, &refusal)) {
            int r = offer->reject(offer, f->name, stage == 1 ? "dnnl_s1" : "dnnl_s2", refusal.rule, "%s",
                                  refusal.reason);
            if (r < 0)
                return r;
        }
        for (int panel = 16; panel <= 32; panel += 16) {
            char kernel[32];
            if (layout_fits(shape, stage, panel) || (is_quantised(shape) && panel != 32))
                continue;
            (void)snprintf(kernel, sizeof(kernel), "dnnl_s%d_%s", stage, mf_cpu_layout(panel, false)->word);
            int r = offer->reject(offer, f->name, kernel, "divisibility",
                                  "oneDNN's layout has blocks of %d rows x 32 elements: inter_dim %d "
                                  "(remainder %d) and model_dim "
                                  "%d (remainder %d) must be multiples",
                                  panel, shape->inter_dim, shape->inter_dim % (stage == 1 ? panel : 32),
                                  shape->model_dim, shape->model_dim % (stage == 1 ? 32 : panel));
            if (r < 0)
                return r;
        }
    }
    int r = reject_forms(f, shape, offer);
    if (r == 0 && !mf_cpu_block_pays(shape, block_ms, 1, &refusal))
        r = offer->reject(offer, f->name, "dnnl_m64", refusal.rule, "%s", refusal.reason);
    return r < 0 ? r : each(shape, device->cores, false, offer_step, &w);
}

static int match_name(void *context, const struct config *c)
{
    struct walk *w = context;
    char name[MF_STEP_NAME_MAX];

    print_name(c, w->shape, name);
    if (strcmp(name, w->name) != 0)
        return 0;
    w->found = *c;
    return 1;
}

/* ---- opening ---- */

static void free_memories(dnnl_memory_t *m, int n)
{
    for (int i = 0; m && i < n; i++)
        (void)dnnl.memory_destroy(m[i]);
    free(m);
}

static struct mf_kernel *close_step(struct mf_kernel *k)
{
    if (!k)
        return NULL;
    for (int r = 0; r <= ROWS_MAX; r++) {
        free_memories(k->rows[r].src, k->config.threads);
        free_memories(k->rows[r].weights, k->config.threads);
        free_memories(k->rows[r].dst, k->config.threads);
        free_memories(k->rows[r].scratch, k->config.threads);
        (void)dnnl.primitive_destroy(k->rows[r].primitive);
    }
    for (int i = 0; k->streams && i < k->config.threads; i++)
        (void)dnnl.stream_destroy(k->streams[i]);
    free(k->streams);
    (void)dnnl.engine_destroy(k->engine);
    free(k);
    return NULL;
}

static int error_of(dnnl_status_t s)
{
    return s == dnnl_success ? 0 : s == dnnl_out_of_memory ? -ENOMEM : -ENOTSUP;
}

static int make_memories(struct mf_kernel *k, const dnnl_memory_desc_t *md, dnnl_memory_t **ret)
{
    dnnl_memory_t *m = calloc((size_t)k->config.threads, sizeof(dnnl_memory_t));
    int r = m ? 0 : -ENOMEM;

    for (int i = 0; i < k->config.threads && r == 0; i++)
        r = error_of(dnnl.memory_create(&m[i], md, k->engine, DNNL_MEMORY_NONE));
    *ret = m;
    return r;
}

static dnnl_format_tag_t tag_of(int panel)
{
    return panel == 16 ? dnnl_BA16a16b2a : panel == 32 ? dnnl_BA16a32b2a : dnnl_ba;
}

static int make_primitive_desc(struct mf_kernel *k, int rows, dnnl_primitive_desc_t *ret)
{
    dnnl_dims_t src = {rows, (dnnl_dim_t)k->K}, weights = {(dnnl_dim_t)k->K, (dnnl_dim_t)k->N};
    dnnl_dims_t dst = {rows, (dnnl_dim_t)k->N};
    dnnl_memory_desc_t a, b, c;
    dnnl_matmul_desc_t d;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_status_t s = dnnl.memory_desc_init_by_tag(&a, 2, src, dnnl_bf16, dnnl_ab);

    if (s == dnnl_success)
        s = dnnl.memory_desc_init_by_tag(&b, 2, weights, dnnl_bf16, tag_of(k->config.panel));
    if (s == dnnl_success)
        s = dnnl.memory_desc_init_by_tag(&c, 2, dst, dnnl_f32, dnnl_ab);
    if (s == dnnl_success)
        s = dnnl.matmul_desc_init(&d, &a, &b, NULL, &c);
    if (s == dnnl_success)
        s = dnnl.primitive_attr_create(&attr);
    if (s == dnnl_success)
        s = dnnl.primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (s == dnnl_success)
        s = dnnl.primitive_desc_create(ret, &d, attr, k->engine, NULL);
    (void)dnnl.primitive_attr_destroy(attr);
    return error_of(s);
}

static int make_rows(struct mf_kernel *k, int rows)
{
    struct rows_kernel *out = &k->rows[rows];
    dnnl_primitive_desc_t pd;
    int r = make_primitive_desc(k, rows, &pd);

    if (r < 0)
        return r;
    const dnnl_memory_desc_t *scratch = dnnl.primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    if (dnnl.memory_desc_get_size(scratch) > k->scratch_bytes)
        r = -ENOTSUP;
    if (r == 0)
        r = error_of(dnnl.primitive_create(&out->primitive, pd));
    if (r == 0)
        r = make_memories(k, dnnl.primitive_desc_query_md(pd, dnnl_query_src_md, 0), &out->src);
    if (r == 0)
        r = make_memories(k, dnnl.primitive_desc_query_md(pd, dnnl_query_weights_md, 0), &out->weights);
    if (r == 0)
        r = make_memories(k, dnnl.primitive_desc_query_md(pd, dnnl_query_dst_md, 0), &out->dst);
    if (r == 0)
        r = make_memories(k, scratch, &out->scratch);
    (void)dnnl.primitive_desc_destroy(pd);
    return r;
}

static int make_all(struct mf_kernel *k)
{
    int before = dnnl.get_max_threads();
    int64_t most = k->shape.token < k->config.block_m ? k->shape.token : k->config.block_m;
    int r = error_of(dnnl.engine_create(&k->engine, dnnl_cpu, 0));

    if (r < 0)
        return r;
    k->streams = calloc((size_t)k->config.threads, sizeof(dnnl_stream_t));
    if (!k->streams)
        return -ENOMEM;
    for (int i = 0; i < k->config.threads && r == 0; i++)
        r = error_of(dnnl.stream_create(&k->streams[i], k->engine, dnnl_stream_default_flags));
    /* oneDNN creates primitives for the number of OpenMP threads set at creation */
    dnnl.set_num_threads(1);
    for (int rows = 1; rows <= most && r == 0; rows++)
        r = make_rows(k, rows);
    dnnl.set_num_threads(before);
    return r;
}

static int open_step(const struct mf_family *f, struct mf_device *device, const struct mf_shape *shape,
                     const char *name, struct mf_kernel **ret)
{
    struct walk w = {.shape = shape, .name = name};
    struct mf_refusal refusal;

    (void)f;
    if (strncmp(name, "dnnl_s", 6) != 0 && strncmp(name, "dnnl_g", 6) != 0)
        return -EINVAL;
    if (!shape_fits(shape, &refusal) || each(shape, device->info.cores, true, match_name, &w) != 1)
        return -ENOTSUP;
    struct mf_kernel *k = calloc(1, sizeof(*k));
    if (!k)
        return -ENOMEM;
    k->config = w.found;
    k->shape = *shape;
    struct mf_tensor_spec rows = mf_plain_x(shape);
    k->codec = mf_codec_find(rows.format, rows.scale);
    k->ops = mf_cpu_ops(mf_isa_best());
    sizes_of(&k->config, shape, &k->N, &k->K);
    k->scratch_bytes = scratch_ceiling(&k->config, k->N, k->K);
    k->room = room_of(&k->config, k->N, k->K);
    int r = make_all(k);
    if (r < 0) {
        (void)close_step(k);
        return r;
    }
    *ret = k;
    return 0;
}

/* ---- launching ---- */

struct room {
    uint16_t *a;
    float *c, *row; /* `row`: K dequantised values, before their conversion into `a` */
    void *scratch;
};

static int multiply(const struct mf_kernel *k, int thread, int rows, const void *a, int32_t expert,
                    const struct room *room)
{
    const struct rows_kernel *m = &k->rows[rows];
    const char *w = (const char *)k->launch->needs[2].part[0] + (size_t)expert * k->N * k->K * 2;
    dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, m->src[thread]},
                              {DNNL_ARG_WEIGHTS, m->weights[thread]},
                              {DNNL_ARG_DST, m->dst[thread]},
                              {DNNL_ARG_SCRATCHPAD, m->scratch[thread]}};

    if (!m->primitive || dnnl.memory_set_data_handle(m->src[thread], (void *)a) != dnnl_success ||
        dnnl.memory_set_data_handle(m->weights[thread], (void *)w) != dnnl_success ||
        dnnl.memory_set_data_handle(m->dst[thread], room->c) != dnnl_success ||
        dnnl.memory_set_data_handle(m->scratch[thread], room->scratch) != dnnl_success)
        return -EIO;
    return dnnl.primitive_execute(m->primitive, k->streams[thread], 4, args) == dnnl_success ? 0 : -EIO;
}

/* Returns the rows of a block as bf16: in place, or gathered and dequantised into the workspace. */
static const uint16_t *gather_rows(const struct mf_kernel *k, const struct mf_sorted_view *s, size_t row0,
                                   int rows, const struct room *room)
{
    const struct mf_tensor_ref *from = &k->launch->needs[0];
    bool gathers = k->config.stage == 1, quantised = k->codec->scale_bytes > 0;
    float global = k->codec->global ? *(const float *)from->part[2] : 1;

    if (!gathers && !quantised)
        return (const uint16_t *)from->part[0] + row0 * k->K;
    for (int i = 0; i < rows; i++) {
        size_t at = gathers ? (size_t)mf_id_token(s->ids[row0 + (size_t)i]) : row0 + (size_t)i;
        uint16_t *to = room->a + (size_t)i * k->K;
        if (!quantised) {
            memcpy(to, (const uint16_t *)from->part[0] + at * k->K, k->K * 2);
            continue;
        }
        mf_codec_decode_row(k->codec, from->part[0], from->part[1], global, at, k->K, room->row);
        k->ops->to_bf16(room->row, k->K, to);
    }
    return room->a;
}

static int run_block(const struct mf_kernel *k, const struct mf_sorted_view *s, int64_t block, int rows,
                     int thread, const struct room *room)
{
    const struct mf_launch *l = k->launch;
    size_t H = (size_t)k->shape.model_dim, I = (size_t)k->shape.inter_dim,
           row0 = (size_t)block * (size_t)k->config.block_m;
    const uint16_t *a = gather_rows(k, s, row0, rows, room);
    bool biased = k->config.stage == 1 ? k->shape.has_b1 && !k->config.plain : k->shape.has_b2;
    const float *b = biased ? (const float *)l->needs[3].part[0] + (size_t)s->experts[block] * k->N : NULL;
    const float *const bias[2] = {b, biased ? b + I : NULL};
    int r = multiply(k, thread, rows, a, s->experts[block], room);
    for (int i = 0; i < rows && r == 0; i++) {
        size_t row = row0 + (size_t)i;
        float *c = room->c + (size_t)i * k->N;
        uint16_t *out = l->gives[0].part[0];
        if (k->config.plain) {
            k->ops->to_bf16(c, 2 * I, out + row * 2 * I);
        } else if (k->config.stage == 1) {
            float *const gate_up[2] = {c, c + I};
            mf_stage_activate(k->ops, &k->shape, gate_up, biased ? bias : NULL,
                              k->shape.doweight_stage1 ? s->weights[row] : 1.0f, I, out + row * I);
        } else {
            int32_t id = s->ids[row];
            size_t slot = (size_t)mf_id_token(id) * (size_t)k->shape.topk + (size_t)mf_id_slot(id);
            if (biased)
                k->ops->add(c, b, H, 1.0f);
            k->ops->to_bf16(c, H, out + slot * H);
        }
    }
    return r;
}

static int64_t cost_of(const struct mf_kernel *k, const struct mf_sorted_view *s, int64_t block,
                       int *ret_rows)
{
    *ret_rows = mf_block_rows(s->ids, block * k->config.block_m, k->config.block_m, k->shape.topk);
    return *ret_rows + COST_OF_READ;
}

static void run_thread(void *context, int thread, int n_threads)
{
    struct mf_kernel *k = context;
    struct mf_sorted_view s = mf_cpu_sorted_view(&k->launch->needs[1]);
    char *base = (char *)k->launch->workspace + (size_t)thread * k->room;
    size_t bm = (size_t)k->config.block_m;
    struct room room = {.a = (void *)base};
    int64_t n_blocks = s.num_valid[0] / k->config.block_m, total = 0, at = 0;
    int rows, before = dnnl.get_max_threads();

    room.c = (void *)(base + align64(bm * k->K * 2));
    room.row = (void *)(base + align64(bm * k->K * 2) + align64(bm * k->N * 4));
    room.scratch = (char *)room.row + align64(k->K * 4);
    dnnl.set_num_threads(1); /* applies to this thread only */
    for (int64_t b = 0; b < n_blocks; b++)
        total += cost_of(k, &s, b, &rows);
    for (int64_t b = 0; b < n_blocks; b++) {
        int64_t cost = cost_of(k, &s, b, &rows), owner = (2 * at + cost) * n_threads / (2 * total);
        at += cost;
        if (owner != thread || rows == 0)
            continue;
        int r = run_block(k, &s, b, rows, thread, &room);
        if (r < 0)
            __atomic_store_n(&k->error, r, __ATOMIC_RELAXED);
    }
    dnnl.set_num_threads(before);
}

static int launch_step(struct mf_kernel *k, const struct mf_launch *l)
{
    k->launch = l;
    k->error = 0;
    mf_pool_run(run_thread, k, k->config.threads);
    return k->error;
}

/* Sets only the token count, because opening created a primitive for every row count. */
static void set_token_count(struct mf_kernel *k, int64_t token)
{
    k->shape.token = token;
}

const struct mf_family mf_family_onednn = {
    .api = MF_FAMILY_API,
    .name = "onednn",
    .device_kind = "cpu",
    .enumerate = enumerate,
    .open = open_step,
    .launch = launch_step,
    .close = close_step,
    .set_token_count = set_token_count,
    .supports_ep = true,
};
