/* Measures steps that move and quantise rows on a device. Compares them with copies of the same number of
 * bytes and, for few tokens, with chains of library operators.
 *
 *     bench_moves DEVICE [TOKENS]
 *         DEVICE is as for moefarm-worker --device and must compile kernels. TOKENS is the maximum token
 *         count.
 *
 * Rows have 2048 and 7168 bf16 elements. There are 8 slots per token, uniform routing over 128 and 256
 * experts, and blocks of 16 rows. Launches rotate over buffers that together are many times larger than the
 * L2 cache. Prints one line per step:
 *
 *   bytes       bytes read and written. Permuted rows are read once per token; padding is not counted.
 *   GB/s        these bytes divided by the step's time; then the same for a copy with the same total traffic
 *               in the same run
 *   of copy     ratio of the two rates; target: 0.8 from 1024 tokens on
 *   chain       time of the operators of plain.hip if each operator starts after the previous one has ended,
 *               and the ratio of this time to the step's time; target: 4 up to 64 tokens
 *   overlapped  time of the same chain if each operator is launched while the previous one still runs
 *
 * The chain uses plain kernels of one operator each. They stand for the kernels that a vendor's library would
 * launch, without the library's host time. Operators of a library wait for each other, so "overlapped" is the
 * harder comparison. The results of the chain are compared with the results of the step. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/stats.h"
#include "kernels/core/data.h"
#include "kernels/core/quant.h"
#include "kernels/families/family_hip.h"
#include "kernels/gpu/src/args.h"

#define TOPK        8
#define BLOCK_M     16
#define THREADS     256
#define FEW_TOKENS  64
#define SETS_MAX    64
#define SAMPLES     9
#define COLD_BYTES  ((size_t)400 << 20)
#define NEEDS_MAX   MF_STEP_TENSOR_SPECS_MAX
#define CHAIN_MAX   8
#define BUFFERS_MAX 2048

struct bench {
    struct mf_device *d;
    struct mf_shape shape;
    int n_sets;
    struct {
        void *at;
        size_t bytes;
    } buffers[BUFFERS_MAX];
    size_t n_buffers;
};

static void *check_alloc(void *p)
{
    if (!p) {
        (void)fprintf(stderr, "out of memory\n");
        exit(1);
    }
    return p;
}

static void *new_buffer(struct bench *b, size_t bytes)
{
    void *p = check_alloc(b->d->ops->alloc(b->d, bytes ? bytes : 1));
    if (b->n_buffers == MF_ARRAY_LEN(b->buffers))
        check_alloc(NULL);
    b->buffers[b->n_buffers].at = p;
    b->buffers[b->n_buffers++].bytes = bytes ? bytes : 1;
    return p;
}

static void release_buffers(struct bench *b)
{
    for (; b->n_buffers > 0; b->n_buffers--)
        b->d->ops->release(b->d, b->buffers[b->n_buffers - 1].at, b->buffers[b->n_buffers - 1].bytes);
}

static void copy(struct bench *b, void *to, const void *from, size_t bytes)
{
    if (b->d->ops->copy(b->d, to, from, bytes) < 0) {
        (void)fprintf(stderr, "a device operation failed\n");
        exit(1);
    }
}

/* ---- time ---- */

static double median_us(struct bench *b, mf_launch_fn launch, void *context)
{
    double us[SAMPLES];
    int n = b->n_sets < 16 ? 16 : b->n_sets;
    for (int i = -1; i < SAMPLES; i++) { /* the first sample is a warm-up */
        double sum;
        int r = b->d->ops->time(b->d, launch, context, n, &sum);
        if (r < 0) {
            (void)fprintf(stderr, "launch failed: %s\n", strerror(-r));
            exit(1);
        }
        if (i >= 0)
            us[i] = sum / n;
    }
    return mf_median(us, SAMPLES);
}

/* ---- plain kernels ---- */

static struct mf_hip_function plain(struct bench *b, const char *name, int threads)
{
    struct mf_code code = {.source = "plain.hip", .function = name};
    struct mf_hip_function f;
    mf_code_define(&code, "MF_THREADS=%d", threads);
    if (mf_hip_function_open(b->d, &code, &f) < 0) {
        (void)fprintf(stderr, "plain.hip: cannot open %s\n", name);
        exit(1);
    }
    return f;
}

struct op {
    struct mf_hip_function f;
    struct mf_grid grid;
    struct mf_hip_plain_args args[SETS_MAX];
};

/* Returns an operator with a grid for `work` threads. */
static struct op op_of(struct bench *b, const char *name, int64_t work)
{
    bool sorts = strcmp(name, "mf_sort_pairs") == 0;
    int threads = sorts ? 512 : THREADS;
    int64_t blocks = (work + threads - 1) / threads, most = (int64_t)b->d->info.cores * 8;
    return (struct op){.f = plain(b, name, threads),
                       .grid = {.x = sorts ? 1 : (uint32_t)(blocks < most ? blocks : most),
                                .y = 1,
                                .z = 1,
                                .block = (uint32_t)threads,
                                .struct_argument = true,
                                .programmatic_launch = true}};
}

struct chain {
    struct bench *b;
    struct op ops[CHAIN_MAX];
    int n;
};

static int launch_chain(void *context, int index)
{
    struct chain *c = context;
    int set = index % c->b->n_sets, r = 0;
    for (int i = 0; i < c->n && r == 0; i++)
        r = mf_hip_launch(&c->ops[i].f, &c->ops[i].grid, &c->ops[i].args[set], sizeof(c->ops[i].args[0]));
    return r;
}

struct chain_us {
    double sequential, overlapped; /* time if operators start one after the other, or overlap; 0: no chain */
};

static struct chain_us time_chain(struct bench *b, struct chain *c)
{
    struct chain_us us;
    us.overlapped = median_us(b, launch_chain, c);
    for (int i = 0; i < c->n; i++)
        c->ops[i].grid.programmatic_launch = false;
    us.sequential = median_us(b, launch_chain, c);
    return us;
}

static void close_chain(struct chain *c)
{
    for (int i = 0; i < c->n; i++)
        mf_hip_function_close(&c->ops[i].f);
}

static double time_copy(struct bench *b, double bytes)
{
    struct chain c = {.b = b, .n = 1};
    int64_t chunks = (int64_t)(bytes / 2 / 16);
    size_t kept = b->n_buffers;
    c.ops[0] = op_of(b, "mf_copy", chunks);
    for (int i = 0; i < b->n_sets; i++)
        c.ops[0].args[i] = (struct mf_hip_plain_args){.from = new_buffer(b, (size_t)chunks * 16),
                                                      .to = new_buffer(b, (size_t)chunks * 16),
                                                      .n = chunks};
    double us = median_us(b, launch_chain, &c);
    close_chain(&c);
    for (; b->n_buffers > kept; b->n_buffers--)
        b->d->ops->release(b->d, b->buffers[b->n_buffers - 1].at, b->buffers[b->n_buffers - 1].bytes);
    return us;
}

/* ---- steps ---- */

struct step {
    struct bench *b;
    const struct mf_family *f;
    struct mf_step step;
    struct mf_kernel *kernel;
    struct mf_tensor_ref needs[SETS_MAX][NEEDS_MAX], gives[SETS_MAX][NEEDS_MAX];
    void *workspace;
};

struct search {
    struct mf_offer offer; /* must be first */
    const char *name;
    struct mf_step *found;
    bool is_found;
};

static int take_step(struct mf_offer *o, const struct mf_step *s)
{
    struct search *w = (struct search *)o;
    if (strcmp(s->name, w->name) == 0) {
        *w->found = *s;
        w->is_found = true;
    }
    return 0;
}

static int ignore_rejection(struct mf_offer *o, const char *family, const char *kernel, const char *rule,
                            const char *format, ...)
{
    (void)o, (void)family, (void)kernel, (void)rule, (void)format;
    return 0;
}

static struct mf_tensor_ref tensor(struct bench *b, const struct mf_tensor_spec *a)
{
    struct mf_part parts[MF_PARTS_MAX];
    struct mf_tensor_ref ref = {{0}};
    int n = mf_tensor_spec_parts(a, &b->shape, parts);
    for (int i = 0; i < n; i++)
        ref.part[i] = new_buffer(b, (size_t)mf_part_bytes(&parts[i]));
    return ref;
}

/* Opens a step with new buffers for its outputs. The caller provides the inputs. Returns false if the device
 * does not offer the step. */
static bool open_offered(struct bench *b, const char *family, const char *name, struct step *s)
{
    struct search search = {.offer = {take_step, ignore_rejection}, .name = name, .found = &s->step};
    *s = (struct step){.b = b, .f = mf_family_find("hip", family)};
    if (mf_family_enumerate(s->f, &b->d->info, &b->shape, &search.offer) < 0 || !search.is_found ||
        s->f->open(s->f, b->d, &b->shape, name, &s->kernel) < 0)
        return false;
    s->workspace = new_buffer(b, s->step.workspace_bytes);
    for (int set = 0; set < b->n_sets; set++) {
        for (int i = 0; i < s->step.n_gives; i++)
            s->gives[set][i] = tensor(b, &s->step.gives[i]);
    }
    return true;
}

static void open_step(struct bench *b, const char *family, const char *name, struct step *s)
{
    if (open_offered(b, family, name, s))
        return;
    (void)fprintf(stderr, "no step %s:%s\n", family, name);
    exit(1);
}

static int launch_step(void *context, int index)
{
    struct step *s = context;
    int set = index % s->b->n_sets;
    const struct mf_launch l = {.needs = s->needs[set], .gives = s->gives[set], .workspace = s->workspace};
    return s->f->launch(s->kernel, &l);
}

/* ---- a shape ---- */

static struct mf_shape shape_of(int64_t token, int model_dim, enum mf_dtype dtype, enum mf_qtype q_type)
{
    return (struct mf_shape){.token = token,
                             .model_dim = model_dim,
                             .inter_dim = 256,
                             .expert = model_dim > 4096 ? 256 : 128,
                             .topk = TOPK,
                             .act_type = MF_ACT_SILU,
                             .dtype = MF_DTYPE_BF16,
                             .q_dtype_a = dtype,
                             .q_dtype_w = dtype,
                             .q_type = q_type,
                             .use_g1u1 = true};
}

static void print(const struct bench *b, const char *name, double bytes, double us, double copy_us,
                  struct chain_us chain)
{
    printf("%6d %6" PRId64 "  %-22s %9.2f MB %8.2f us %6.0f GB/s  copy %6.0f GB/s  of copy %.2f",
           b->shape.model_dim, b->shape.token, name, bytes / 1e6, us, bytes / us / 1e3, bytes / copy_us / 1e3,
           copy_us / us);
    if (chain.sequential > 0)
        printf("  chain %6.2f us, %.1f x; overlapped %6.2f us, %.1f x", chain.sequential,
               chain.sequential / us, chain.overlapped, chain.overlapped / us);
    printf("\n");
    (void)fflush(stdout);
}

/* Chooses the number of buffer sets so that all sets together exceed the L2 cache. */
static void choose_sets(struct bench *b, double bytes)
{
    double sets = (double)COLD_BYTES / bytes + 1;
    b->n_sets = sets > SETS_MAX ? SETS_MAX : (int)sets;
}

static void bench_quant(struct bench *b, int64_t token, int model_dim, enum mf_dtype dtype,
                        enum mf_qtype q_type)
{
    struct step s;
    char name[MF_STEP_NAME_MAX];
    struct mf_tensor_spec x;
    b->shape = shape_of(token, model_dim, dtype, q_type);
    x = mf_plain_x(&b->shape);
    (void)snprintf(name, sizeof(name), "quant1_%s", mf_codec_find(x.format, x.scale)->name);
    choose_sets(b, (double)token * model_dim * 3);
    open_step(b, "move", name, &s);
    uint16_t *host = check_alloc(calloc((size_t)token * (size_t)model_dim, 2));
    mf_data_x(&b->shape, 1, host);
    for (int set = 0; set < b->n_sets; set++) {
        for (int i = 0; i < s.step.n_needs; i++)
            s.needs[set][i] = tensor(b, &s.step.needs[i]);
        copy(b, s.needs[set][0].part[0], host, (size_t)token * (size_t)model_dim * 2);
    }
    free(host);
    double us = median_us(b, launch_step, &s);
    print(b, name, s.step.bytes, us, time_copy(b, s.step.bytes), (struct chain_us){0});
    (void)s.f->close(s.kernel);
    release_buffers(b);
}

/* The chain has operators for keys, indices, sort, division and rows. */
static void chain_permute(struct bench *b, const struct step *s, void *out, struct chain *c)
{
    static const char *const names[] = {"mf_copy", "mf_iota", "mf_sort_pairs", "mf_floor_divide",
                                        "mf_index_select"};
    int64_t n = b->shape.token * TOPK, chunks = b->shape.model_dim / 8;
    void *keys = new_buffer(b, (size_t)n * 4 + 16), *order = new_buffer(b, (size_t)n * 4),
         *tokens = new_buffer(b, (size_t)n * 4);
    *c = (struct chain){.b = b, .n = MF_ARRAY_LEN(names)};
    for (int i = 0; i < c->n; i++)
        c->ops[i] = op_of(b, names[i], i == 4 ? n * chunks : n);
    for (int set = 0; set < b->n_sets; set++) {
        const void *ids = s->needs[set][1].part[0];
        c->ops[0].args[set] = (struct mf_hip_plain_args){.from = ids, .to = keys, .n = (n + 3) / 4};
        c->ops[1].args[set] = (struct mf_hip_plain_args){.to = order, .n = n};
        c->ops[2].args[set] = (struct mf_hip_plain_args){.index = keys, .to = order, .n = n};
        c->ops[3].args[set] = (struct mf_hip_plain_args){.from = order, .to = tokens, .n = n, .k = TOPK};
        c->ops[4].args[set] = (struct mf_hip_plain_args){
            .from = s->needs[set][0].part[0], .to = out, .index = tokens, .n = n, .chunks = (int32_t)chunks};
    }
}

/* The chain has operators for the inverse of the order (by another sort), rows, weights and sums. from: rows
 * without padding, in the order that chain_permute produced. */
static void chain_unpermute(struct bench *b, void *order, const void *from, const float *weights, void *y,
                            struct chain *c)
{
    static const char *const names[] = {"mf_copy",         "mf_iota",          "mf_sort_pairs",
                                        "mf_index_select", "mf_multiply_rows", "mf_sum_rows"};
    int64_t n = b->shape.token * TOPK, chunks = b->shape.model_dim / 8;
    void *keys = new_buffer(b, (size_t)n * 4 + 16), *inverse = new_buffer(b, (size_t)n * 4);
    void *rows = new_buffer(b, (size_t)(n * chunks) * 16),
         *weighted = new_buffer(b, (size_t)(n * chunks) * 16);
    *c = (struct chain){.b = b, .n = MF_ARRAY_LEN(names)};
    for (int i = 0; i < c->n; i++)
        c->ops[i] = op_of(b, names[i], i < 3 ? n : n * chunks);
    for (int set = 0; set < b->n_sets; set++) {
        c->ops[0].args[set] = (struct mf_hip_plain_args){.from = order, .to = keys, .n = (n + 3) / 4};
        c->ops[1].args[set] = (struct mf_hip_plain_args){.to = inverse, .n = n};
        c->ops[2].args[set] = (struct mf_hip_plain_args){.index = keys, .to = inverse, .n = n};
        c->ops[3].args[set] = (struct mf_hip_plain_args){
            .from = from, .to = rows, .index = inverse, .n = n, .chunks = (int32_t)chunks};
        c->ops[4].args[set] = (struct mf_hip_plain_args){
            .from = rows, .to = weighted, .weights = weights, .n = n, .chunks = (int32_t)chunks};
        c->ops[5].args[set] = (struct mf_hip_plain_args){
            .from = weighted, .to = y, .n = b->shape.token, .k = TOPK, .chunks = (int32_t)chunks};
    }
}

/* Compares outputs of the step and of the chain. Permuted rows must be equal; sums may differ by the rounding
 * of intermediate products. */
static void compare(struct bench *b, const void *ours, const void *chains, const char *what)
{
    size_t n = (size_t)b->shape.token * (size_t)b->shape.model_dim;
    uint16_t *a = check_alloc(calloc(n, 2)), *c = check_alloc(calloc(n, 2));
    double error = 0, size = 0;
    copy(b, a, ours, n * 2);
    copy(b, c, chains, n * 2);
    for (size_t i = 0; i < n; i++) {
        double d = (double)mf_bf16_to_float(a[i]) - (double)mf_bf16_to_float(c[i]);
        error += d * d;
        size += (double)mf_bf16_to_float(c[i]) * (double)mf_bf16_to_float(c[i]);
    }
    if (!(error <= size * 1e-4) || size == 0)
        printf("WRONG: %s of %" PRId64
               " tokens differs from the reference chain's by a relative error of %g\n",
               what, b->shape.token, sqrt(error / size));
    free(a);
    free(c);
}

/* Clears the rows that compare() reads, because the step never writes padding rows. */
static void clear_start(struct bench *b, void *at)
{
    size_t n = (size_t)b->shape.token * (size_t)b->shape.model_dim;
    void *zeros = check_alloc(calloc(n, 2));
    copy(b, at, zeros, n * 2);
    free(zeros);
}

/* If the device offers another step for the same operation, measures it with the same inputs and compares the
 * outputs bit by bit. */
static void bench_variant(struct bench *b, const char *name, const char *title, const struct step *one,
                          double copy_us)
{
    struct step other;
    if (!open_offered(b, "permute", name, &other))
        return;
    memcpy(other.needs, one->needs, sizeof(other.needs));
    clear_start(b, other.gives[0][0].part[0]);
    double us = median_us(b, launch_step, &other);
    compare(b, other.gives[0][0].part[0], one->gives[0][0].part[0], title);
    print(b, title, one->step.bytes, us, copy_us, (struct chain_us){0});
    (void)other.f->close(other.kernel);
}

static void bench_permute(struct bench *b, int64_t token, int model_dim)
{
    struct step sort = {0}, in, out;
    struct chain permute_chain, unpermute_chain;
    bool few = token <= FEW_TOKENS;
    b->shape = shape_of(token, model_dim, MF_DTYPE_BF16, MF_QTYPE_NO);
    choose_sets(b, (double)token * model_dim * 2 * (TOPK + 1));
    size_t x_bytes = (size_t)token * (size_t)model_dim * 2, n = (size_t)token * TOPK;
    uint16_t *x = check_alloc(calloc(x_bytes, 1));
    int32_t *ids = check_alloc(calloc(n, 4));
    float *weights = check_alloc(calloc(n, 4));
    const struct mf_routing routing = {.kind = MF_ROUTING_UNIFORM};
    mf_data_x(&b->shape, 1, x);
    if (mf_data_topk(&b->shape, &routing, 1, ids, weights) < 0)
        check_alloc(NULL);
    const struct mf_tensor_spec x_of = mf_cpu_bf16(MF_TENSOR_X, "token", 0), topk_of = mf_cpu_topk();
    struct mf_tensor_ref topk = tensor(b, &topk_of);
    copy(b, topk.part[0], ids, n * 4);
    copy(b, topk.part[1], weights, n * 4);
    if (!few)
        open_step(b, "move", "sort_m16", &sort);
    open_step(b, "permute", few ? "sort_gather_m16" : "gather_once_m16", &in);
    clear_start(b, in.gives[0][0].part[0]);
    open_step(b, "permute", few ? "unpermute_few_z_m16" : "unpermute_z_m16", &out);
    for (int set = 0; set < b->n_sets; set++) {
        in.needs[set][0] = tensor(b, &x_of);
        copy(b, in.needs[set][0].part[0], x, x_bytes);
        sort.needs[set][0] = topk;
        in.needs[set][1] = few ? topk : sort.gives[0][0];
        out.needs[set][0] = in.gives[set][0];
        out.needs[set][1] = few ? in.gives[0][1] : sort.gives[0][0];
    }
    free(x);
    free(ids);
    free(weights);
    if (!few)
        (void)median_us(b, launch_step, &sort); /* creates the order */
    double in_us = median_us(b, launch_step, &in), out_us = median_us(b, launch_step, &out);
    struct chain_us permute_chain_us = {0}, unpermute_chain_us = {0};
    if (few) {
        void *rows = new_buffer(b, n * (size_t)model_dim * 2), *y = new_buffer(b, x_bytes);
        chain_permute(b, &in, rows, &permute_chain);
        permute_chain_us = time_chain(b, &permute_chain);
        chain_unpermute(b, permute_chain.ops[1].args[0].to, rows, topk.part[1], y, &unpermute_chain);
        unpermute_chain_us = time_chain(b, &unpermute_chain);
        compare(b, out.gives[0][0].part[0], y, "permute and unpermute");
        close_chain(&permute_chain);
        close_chain(&unpermute_chain);
    }
    double copy_us = time_copy(b, in.step.bytes);
    print(b, few ? "sort and permute" : "permute (once)", in.step.bytes, in_us, copy_us, permute_chain_us);
    print(b, "unpermute", out.step.bytes, out_us, copy_us, unpermute_chain_us);
    if (!few) {
        bench_variant(b, "gather_bulk_m16", "permute (in bulk)", &in, copy_us);
        bench_variant(b, "gather_m16", "permute (row by row)", &in, copy_us);
        (void)sort.f->close(sort.kernel);
    } else {
        bench_variant(b, "unpermute_z_m16", "unpermute by meeting", &out, copy_us);
    }
    (void)in.f->close(in.kernel);
    (void)out.f->close(out.kernel);
    release_buffers(b);
}

int main(int argc, char **argv)
{
    static const int64_t tokens[] = {1, 16, 64, 1024, 4096, 16384};
    static const int dims[] = {2048, 7168};
    static struct bench b;
    char why[512];
    int64_t most = argc > 2 ? strtoll(argv[2], NULL, 10) : INT64_MAX;
    if (argc < 2)
        return 2;
    if (mf_device_open(argv[1], why, sizeof(why), &b.d) < 0) {
        (void)fprintf(stderr, "%s\n", why);
        return 1;
    }
    if (!b.d->ops->compile) {
        (void)fprintf(stderr, "%s: this device cannot compile kernels\n", argv[1]);
        return 1;
    }
    printf("%s, %s: read %.0f GB/s, gap %.2f us, llc %.0f MB\n", b.d->info.model, b.d->info.driver,
           b.d->info.mem_read_gbs, b.d->info.gap_us, (double)b.d->info.llc_bytes / 1e6);
    for (size_t h = 0; h < MF_ARRAY_LEN(dims); h++) {
        for (size_t t = 0; t < MF_ARRAY_LEN(tokens) && tokens[t] <= most; t++)
            bench_permute(&b, tokens[t], dims[h]);
        for (size_t t = 1; t < MF_ARRAY_LEN(tokens) && tokens[t] <= most; t++) {
            bench_quant(&b, tokens[t], dims[h], MF_DTYPE_FP8_E4M3FN, MF_QTYPE_PER_1X128);
            bench_quant(&b, tokens[t], dims[h], MF_DTYPE_FP8_E4M3FN, MF_QTYPE_PER_TOKEN);
            bench_quant(&b, tokens[t], dims[h], MF_DTYPE_FP4X2, MF_QTYPE_PER_1X32);
            bench_quant(&b, tokens[t], dims[h], MF_DTYPE_FP4X2, MF_QTYPE_PER_1X16);
        }
    }
    (void)mf_device_close(b.d);
    return 0;
}
