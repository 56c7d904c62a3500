/* The stand-alone operators of libfmoe (fmoe_ops.h) on the emulator, for warps of 32 and waves of 64 lanes:
 * every output has the bits that the CPU computes. Sizes cover one and several slices of a sort, rows that
 * end within a unit, remote and invalid ids, both types of ids, and ids with one expert for all tokens. */
#include <math.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "emulator/device_emulated.h"
#include "fmoe/ops/private.h"
#include "kernels/gpu/src/ops/ops_args.h"
#include "support/mf_check.h"

#define BUFFERS_MAX 32

static const char *const architectures[] = {"sm_89", "gfx942"};

static struct mf_device *devices[2];
static struct fmoe_ops *cpu, *gpu[2];

static void open_all(void)
{
    struct fmoe_error error = {""};

    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(mf_device_emulated_open(architectures[i], 2, 7, &devices[i]), 0);
        ck_assert_msg(fmoe_ops_open_on(devices[i], &error, &gpu[i]) == 0, "%s", error.text);
    }
}
static void close_all(void)
{
    for (int i = 0; i < 2; i++) {
        fmoe_ops_close(gpu[i]);
        (void)mf_device_close(devices[i]);
    }
}
/* Every test opens the CPU itself, because threads of the pool do not survive a fork. */
static void open_cpu(void)
{
    struct fmoe_error error = {""};

    ck_assert_msg(fmoe_ops_open("cpu:0", &error, &cpu) == 0, "%s", error.text);
}
static void close_cpu(void)
{
    fmoe_ops_close(cpu);
}

/* Buffers of a test: the CPU's, and a copy in device memory. Outputs are filled with a pattern, so that rows
 * that an operator must not write are compared too. */
static struct {
    void *host, *device;
    size_t bytes;
    bool is_output;
} buffers[BUFFERS_MAX];
static int n_buffers;
static int arch;

static void *make(const void *values, size_t bytes)
{
    ck_assert_int_lt(n_buffers, BUFFERS_MAX);
    size_t room = bytes + 64 - bytes % 64;
    void *host = aligned_alloc(64, room);
    void *device = devices[arch]->ops->alloc(devices[arch], room);

    ck_assert(host && device);
    if (values)
        memcpy(host, values, bytes);
    else
        memset(host, 0x5a, bytes);
    memcpy(device, host, bytes);
    buffers[n_buffers].host = host;
    buffers[n_buffers].device = device;
    buffers[n_buffers].bytes = bytes;
    buffers[n_buffers].is_output = !values;
    n_buffers++;
    return host;
}
static void *input(const void *values, size_t bytes)
{
    return make(values, bytes);
}
static void *output(size_t bytes)
{
    return make(NULL, bytes);
}
/* The device's copy of a buffer; p may point into it, or be NULL. */
static void *on_gpu(const void *p)
{
    for (int i = 0; i < n_buffers; i++) {
        const char *host = buffers[i].host;
        if ((const char *)p >= host && (const char *)p <= host + buffers[i].bytes)
            return (char *)buffers[i].device + ((const char *)p - host);
    }
    ck_assert_ptr_null(p);
    return NULL;
}
#define MOVE(member) ((member) = on_gpu(member))

/* A workspace of the larger size, which is no output. */
static void *workspace(size_t bytes)
{
    void *p = output(bytes + 1);

    buffers[n_buffers - 1].is_output = false;
    return p;
}

static void compare(const char *name)
{
    for (int i = 0; i < n_buffers; i++) {
        const unsigned char *a = buffers[i].host, *b = buffers[i].device;
        for (size_t at = 0; buffers[i].is_output && at < buffers[i].bytes; at++)
            ck_assert_msg(a[at] == b[at], "%s on %s: byte %zu of buffer %d is %d, expected %d", name,
                          architectures[arch], at, i, b[at], a[at]);
    }
}
#define RUN(call, args, moved)                                                  \
    do {                                                                        \
        struct fmoe_error error = {""};                                         \
        ck_assert_msg(call(cpu, &args, &error) == 0, "%s", error.text);         \
        moved;                                                                  \
        ck_assert_msg(call(gpu[arch], &args, &error) == 0, "%s %s", error.text, \
                      mf_device_emulated_why(devices[arch]));                   \
        compare(#call);                                                         \
    } while (0)

/* ---- inputs ---- */

static uint32_t state = 12345;

static uint32_t draw(uint32_t below)
{
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % below;
}
static float *floats(size_t n)
{
    float *f = calloc(n + 1, sizeof(*f));

    for (size_t i = 0; i < n; i++)
        f[i] = ((float)draw(2001) - 1000) / 500;
    float *in = input(f, n * sizeof(*f));
    free(f);
    return in;
}
static uint16_t *halves(size_t n)
{
    uint16_t *h = calloc(n + 1, sizeof(*h));

    for (size_t i = 0; i < n; i++)
        h[i] = (uint16_t)(0x3c00 + draw(0x480)) | (uint16_t)(draw(2) << 15);
    uint16_t *in = input(h, n * sizeof(*h));
    free(h);
    return in;
}

static const struct sizes {
    int64_t tokens;
    int32_t topk, experts;
    size_t row_bytes;
    bool wide, uneven, invalid;
} sizes[] = {
    {0, 2, 5, 64, false, false, false},    {1, 1, 1, 16, false, false, false},
    {7, 3, 9, 48, true, false, true},      /* rows of three units */
    {33, 8, 40, 1040, false, false, true}, /* rows beyond one piece */
    {64, 4, 700, 20, false, false, false}, /* more experts than threads; units of four bytes */
    {50, 2, 6, 7, true, true, false},      /* units of one byte; one expert for all */
    {700, 4, 33, 32, true, false, true},   /* several slices */
    {300, 40, 64, 16, false, false, true}, /* more slots than lanes of a warp */
};

static struct fmoe_op_routes make_routes(const struct sizes *s)
{
    size_t n = (size_t)(s->tokens * s->topk);
    int32_t *narrow = calloc(n + 1, sizeof(*narrow));
    int64_t *ids = calloc(n + 1, sizeof(*ids));
    struct fmoe_op_routes r = {
        .ids_type = s->wide ? FMOE_INT64 : FMOE_INT32,
        .topk = s->topk,
        .tokens = s->tokens,
        .experts = s->experts,
    };

    for (size_t i = 0; i < n; i++) {
        ids[i] = s->uneven ? 1 : (int64_t)draw((uint32_t)s->experts);
        if (s->invalid && draw(10) == 0)
            ids[i] = draw(2) ? -1 : s->experts + (int64_t)draw(3);
        narrow[i] = (int32_t)ids[i];
    }
    r.ids = s->wide ? input(ids, n * sizeof(*ids)) : input(narrow, n * sizeof(*narrow));
    free(ids);
    free(narrow);
    return r;
}

/* Every third expert is remote; local numbers fall. Returns the number of local experts. */
static int32_t make_map(const struct sizes *s, int32_t **ret_map, int32_t **ret_mask)
{
    int32_t *map = calloc((size_t)s->experts, sizeof(*map)),
            *mask = calloc((size_t)s->experts, sizeof(*mask));
    int32_t n = 0;

    for (int32_t e = 0; e < s->experts; e++)
        n += e % 3 != 1;
    for (int32_t e = 0, at = n; e < s->experts; e++) {
        mask[e] = e % 3 != 1;
        map[e] = mask[e] ? --at : -1;
    }
    *ret_map = input(map, (size_t)s->experts * sizeof(*map));
    *ret_mask = input(mask, (size_t)s->experts * sizeof(*mask));
    free(map);
    free(mask);
    return n;
}

static size_t sort_bytes(const struct fmoe_op_routes *r)
{
    return MF_MAX(fmoe_op_sort_workspace(cpu, r), fmoe_op_sort_workspace(gpu[arch], r));
}

#define ROWS(table) (2 * MF_ARRAY_LEN(table))
static const struct sizes *begin(int i)
{
    arch = i % 2;
    state += (uint32_t)i;
    return &sizes[i / 2];
}

/* ---- sorting ---- */

MF_TEST(test_align, .rows = 4 * ROWS(sizes))
{
    const struct sizes *s = begin(_i / 4);
    bool mapped = _i % 4 > 0, ignore = _i % 4 > 1, padded = _i % 4 > 2;
    int32_t *map, *mask;
    struct fmoe_op_align a = {.routes = make_routes(s), .block = _i % 2 ? 16 : 3, .ignore_remote = ignore};

    (void)make_map(s, &map, &mask);
    a.expert_map = mapped ? map : NULL;
    a.rows = fmoe_op_align_rows(s->tokens * s->topk, s->experts, a.block, padded);
    a.sorted_ids = output((size_t)a.rows * 4);
    a.expert_ids = output((size_t)((a.rows + a.block - 1) / a.block) * 4);
    a.num_post_pad = output(4);
    a.scatter_idx = padded ? output((size_t)(s->tokens * s->topk) * 4) : NULL;
    a.workspace = workspace(sort_bytes(&a.routes));
    RUN(fmoe_op_align, a, {
        MOVE(a.routes.ids);
        MOVE(a.expert_map);
        MOVE(a.sorted_ids);
        MOVE(a.expert_ids);
        MOVE(a.num_post_pad);
        MOVE(a.scatter_idx);
        MOVE(a.workspace);
    });
}

MF_TEST(test_moe_sort, .rows = 2 * ROWS(sizes))
{
    const struct sizes *s = begin(_i / 2);
    bool masked = _i % 2;
    int32_t *map, *mask, used = (int32_t)s->tokens / 2;
    struct fmoe_op_moe_sort a = {.routes = make_routes(s), .block = 16};
    size_t n = (size_t)(s->tokens * s->topk), rows;

    (void)make_map(s, &map, &mask);
    a.weights = floats(n);
    a.expert_mask = masked ? mask : NULL;
    a.local_tokens = masked ? input(&used, 4) : NULL;
    rows = (size_t)fmoe_op_moe_sort_rows(&a.routes, a.block);
    a.sorted_ids = output(rows * 4);
    a.sorted_weights = output(rows * 4);
    a.expert_ids = output((rows + 15) / 16 * 4);
    a.num_valid = output(8);
    a.moe_buf_bytes = 70000 / 16 * 16;
    a.moe_buf = output(a.moe_buf_bytes);
    a.workspace = workspace(sort_bytes(&a.routes));
    RUN(fmoe_op_moe_sort, a, {
        MOVE(a.routes.ids);
        MOVE(a.weights);
        MOVE(a.expert_mask);
        MOVE(a.local_tokens);
        MOVE(a.sorted_ids);
        MOVE(a.sorted_weights);
        MOVE(a.expert_ids);
        MOVE(a.num_valid);
        MOVE(a.moe_buf);
        MOVE(a.workspace);
    });
}

/* ---- permuting ---- */

MF_TEST(test_permute, .rows = 2 * ROWS(sizes))
{
    const struct sizes *s = begin(_i / 2);
    bool mapped = _i % 2;
    int32_t *map, *mask;
    size_t n = (size_t)(s->tokens * s->topk), scale = 12;
    struct fmoe_op_permute a = {.routes = make_routes(s), .n_rows = mapped ? 2 : 1};

    a.n_local = make_map(s, &map, &mask);
    a.expert_map = mapped ? map : NULL;
    a.n_local = mapped ? a.n_local : s->experts;
    a.rows[0] = (struct fmoe_op_rows){halves((size_t)s->tokens * s->row_bytes / 2 + 1),
                                      output(n * s->row_bytes), s->row_bytes};
    a.rows[1] = (struct fmoe_op_rows){floats((size_t)s->tokens * scale / 4), output(n * scale), scale};
    a.first_token_offset = output(((size_t)a.n_local + 1) * 8);
    a.inv_permuted_idx = output(n * 4);
    a.permuted_idx = output(n * 4);
    a.workspace = workspace(sort_bytes(&a.routes));
    RUN(fmoe_op_permute, a, {
        MOVE(a.routes.ids);
        MOVE(a.expert_map);
        for (int i = 0; i < 2; i++) {
            MOVE(a.rows[i].from);
            MOVE(a.rows[i].to);
        }
        MOVE(a.first_token_offset);
        MOVE(a.inv_permuted_idx);
        MOVE(a.permuted_idx);
        MOVE(a.workspace);
    });
}

/* The rows of a range, then their way back. */
MF_TEST(test_permute_ep, .rows = 2 * ROWS(sizes))
{
    const struct sizes *at = begin(_i / 2);
    bool probs = _i % 2;
    struct sizes s = *at;
    int64_t n = s.tokens * s.topk;
    int32_t width = (int32_t)s.row_bytes / 2;

    s.invalid = false; /* CANN's contract has no invalid ids */
    s.row_bytes = (size_t)width * 2;
    struct fmoe_op_permute_ep a = {.routes = make_routes(&s), .first = n / 5, .last = n - n / 7};
    size_t rows = (size_t)(a.last - a.first);
    a.rows = (struct fmoe_op_rows){halves((size_t)s.tokens * (size_t)width), output(rows * s.row_bytes),
                                   s.row_bytes};
    a.probs = probs ? floats((size_t)n) : NULL;
    a.out_probs = output(rows * 4);
    a.sorted_indices = output((size_t)n * 4);
    a.workspace = workspace(sort_bytes(&a.routes));
    struct fmoe_op_unpermute back = {
        .row_of = a.sorted_indices,
        .probs = a.probs,
        .tokens = s.tokens,
        .first = a.first,
        .last = a.last,
        .topk = s.topk,
        .width = width,
        .from = a.rows.to,
        .to = output((size_t)s.tokens * s.row_bytes),
    };
    RUN(fmoe_op_permute_ep, a, {
        MOVE(a.routes.ids);
        MOVE(a.rows.from);
        MOVE(a.rows.to);
        MOVE(a.probs);
        MOVE(a.out_probs);
        MOVE(a.sorted_indices);
        MOVE(a.workspace);
    });
    RUN(fmoe_op_unpermute, back, {
        MOVE(back.row_of);
        MOVE(back.probs);
        MOVE(back.from);
        MOVE(back.to);
    });
}

/* Also with more source rows than a sort has bins: padded mode does not sort. */
MF_TEST(test_permute_padded, .rows = 2 * ROWS(sizes))
{
    const struct sizes *at = begin(_i / 2);
    struct sizes s = *at;
    size_t source_rows;

    s.experts += _i % 2 * MF_OP_BINS_MAX;
    source_rows = (size_t)s.experts;
    s.topk = 1;
    s.invalid = false;
    struct fmoe_op_permute_ep a = {
        .routes = make_routes(&s), .last = s.tokens - s.tokens / 4, .padded_mode = 1};
    a.rows = (struct fmoe_op_rows){halves(source_rows * s.row_bytes / 2 + 1),
                                   output((size_t)a.last * s.row_bytes), s.row_bytes};
    a.sorted_indices = output((size_t)s.tokens * 4);
    a.workspace = workspace(sort_bytes(&a.routes));
    RUN(fmoe_op_permute_ep, a, {
        MOVE(a.routes.ids);
        MOVE(a.rows.from);
        MOVE(a.rows.to);
        MOVE(a.sorted_indices);
        MOVE(a.workspace);
    });
}

/* Padded rows are added in the order of the rows, for more tokens than one sort has bins. */
MF_TEST(test_unpermute_padded, .rows = 4)
{
    const int64_t tokens = _i < 2 ? 1500 : 7, rows = _i < 2 ? 3000 : 90;
    const int32_t width = _i < 2 ? 16 : 13;
    int32_t *indices = calloc((size_t)rows, sizeof(*indices));

    arch = _i % 2;
    for (int64_t i = 0; i < rows; i++)
        indices[i] = (int32_t)draw((uint32_t)tokens);
    struct fmoe_op_unpermute_padded u = {
        .indices = input(indices, (size_t)rows * 4),
        .rows = rows,
        .tokens = tokens,
        .width = width,
        .from = halves((size_t)(rows * width)),
        .to = output((size_t)(tokens * width) * 2),
        .workspace = workspace(MF_MAX(fmoe_op_padded_workspace(cpu, rows, tokens, width),
                                      fmoe_op_padded_workspace(gpu[arch], rows, tokens, width))),
    };
    RUN(fmoe_op_unpermute_padded, u, {
        MOVE(u.indices);
        MOVE(u.from);
        MOVE(u.to);
        MOVE(u.workspace);
    });
    free(indices);
}

static const struct map_case {
    int64_t tokens, num_out_tokens;
    int32_t experts, align, percent;
    bool drop_and_pad, probs;
} maps[] = {
    {20, -1, 7, 1, 30, false, true},      {20, -1, 7, 8, 30, false, false},
    {130, 100, 300, 1, 3, false, true}, /* more experts than threads, rows dropped */
    {130, 100, 40, 16, 3, false, true},   {70, 5 * 12, 12, 1, 20, true, true},
    {200, 8 * 50, 8, 1, 60, true, false},
};

MF_TEST(test_permute_map, .rows = ROWS(maps))
{
    const struct map_case *m = &maps[_i / 2];
    size_t n = (size_t)m->tokens * (size_t)m->experts, row = 96;
    unsigned char *routed = calloc(n, 1);
    int64_t most = 0;

    arch = _i % 2;
    for (size_t i = 0; i < n; i++)
        most += routed[i] = draw(100) < (uint32_t)m->percent;
    struct fmoe_op_permute_map a = {
        .tokens = m->tokens,
        .experts = m->experts,
        .align = m->align,
        .drop_and_pad = m->drop_and_pad,
        .num_out_tokens = m->num_out_tokens,
        .max_rows = m->drop_and_pad ? m->num_out_tokens : most + (int64_t)m->experts * (m->align - 1),
    };
    size_t rows = (size_t)a.max_rows;
    int32_t *unused = calloc(rows + 1, sizeof(*unused));
    for (size_t i = 0; i < rows; i++)
        unused[i] = 1 << 20; /* no zeros are written to rows beyond the map */
    a.routing_map = input(routed, n);
    a.probs = m->probs ? floats(n) : NULL;
    a.rows = (struct fmoe_op_rows){halves((size_t)m->tokens * row / 2), output(rows * row), row};
    a.row_of = output(n * 4);
    a.token_of = input(unused, rows * 4);
    buffers[n_buffers - 1].is_output = true;
    a.out_probs = output(rows * 4);
    a.per_expert = output((size_t)m->experts * 8);
    a.pad_offsets = output((size_t)m->experts * 8);
    a.workspace = workspace(fmoe_op_map_workspace(gpu[arch], m->tokens, m->experts));
    struct fmoe_op_unpermute back = {
        .row_of = a.row_of,
        .probs = a.probs,
        .tokens = m->tokens,
        .last = a.max_rows,
        .topk = m->experts,
        .width = (int32_t)row / 2,
        .from = a.rows.to,
        .to = output((size_t)m->tokens * row),
    };
    RUN(fmoe_op_permute_map, a, {
        MOVE(a.routing_map);
        MOVE(a.probs);
        MOVE(a.rows.from);
        MOVE(a.rows.to);
        MOVE(a.row_of);
        MOVE(a.token_of);
        MOVE(a.out_probs);
        MOVE(a.per_expert);
        MOVE(a.pad_offsets);
        MOVE(a.workspace);
    });
    RUN(fmoe_op_unpermute, back, {
        MOVE(back.row_of);
        MOVE(back.probs);
        MOVE(back.from);
        MOVE(back.to);
    });
    free(routed);
    free(unused);
}

/* ---- routing ---- */

static const struct router_case {
    int64_t tokens;
    int32_t experts, topk, score, renormalised, groups, kept, zero;
    bool bias, half, wide;
} routers[] = {
    {5, 8, 2, FMOE_SOFTMAX, 1, 0, 0, 0, false, false, false},
    {40, 128, 8, FMOE_SOFTMAX, 0, 0, 0, 0, false, true, true},
    {9, 256, 8, FMOE_SIGMOID, 1, 8, 4, 0, true, false, false},
    {9, 256, 8, FMOE_SIGMOID, 1, 8, 4, 1, true, false, true},
    {17, 16, 1, FMOE_SIGMOID, 0, 0, 0, 0, false, true, false},
    {9, 384, 6, FMOE_SQRT_SOFTPLUS, 1, 0, 0, 0, true, false, false},
};

/* The CPU computes in double precision, the GPU in single precision, so weights differ by rounding. The
 * logits are far enough apart that both select the same experts. */
MF_TEST(test_route, .rows = ROWS(routers))
{
    const struct router_case *c = &routers[_i / 2];
    size_t n = (size_t)c->tokens * (size_t)c->experts, routes = (size_t)c->tokens * (size_t)c->topk;
    float *logits = calloc(n, sizeof(*logits));
    uint16_t *half = calloc(n, sizeof(*half));

    arch = _i % 2;
    for (size_t i = 0; i < n; i++) {
        float v = (float)(draw(32) + 32 * (i % 4)) / 32 - 2;
        uint32_t bits;
        memcpy(&bits, &v, 4);
        half[i] = (uint16_t)(bits >> 16);
        logits[i] = v + (float)(i % (size_t)c->experts) / 4096;
    }
    struct fmoe_op_route a = {
        .logits = c->half ? input(half, n * 2) : input(logits, n * 4),
        .logits_type = c->half ? FMOE_BFLOAT16 : FMOE_FLOAT32,
        .ids_type = c->wide ? FMOE_INT64 : FMOE_INT32,
        .tokens = c->tokens,
        .experts = c->experts,
        .topk = c->topk,
        .score = c->score,
        .renormalised = c->renormalised,
        .groups = c->groups,
        .groups_kept = c->kept,
        .masked_to_zero = c->zero,
        .scale = 2.5f,
        .sum_floor = 1e-20f,
        .bias = c->bias ? floats((size_t)c->experts) : NULL,
        .ids = output(routes * (c->wide ? 8 : 4)),
        .weights = output(routes * 4),
    };
    float *weights = a.weights, *on_device = on_gpu(a.weights);
    buffers[n_buffers - 1].is_output = false;
    RUN(fmoe_op_route, a, {
        MOVE(a.logits);
        MOVE(a.bias);
        MOVE(a.ids);
        MOVE(a.weights);
    });
    for (size_t i = 0; i < routes; i++)
        ck_assert_msg(fabsf(on_device[i] - weights[i]) <= 1e-5f * (1 + weights[i]), "weight %zu", i);
    free(logits);
    free(half);
}

/* ---- formats ---- */

static const char *const formats[] = {
    "fp8fn_tensor", "fp8fn_token", "fp8fn_128",    "fp8fn_128x128", "int8_tensor",
    "int8_token",   "int8_128",    "int8_128x128", "fp8fnuz_token", "fp8fnuz_128x128",
    "mxfp8",        "mxfp4",       "nvfp4",        "int4_32",       "int4_channel",
};
static const struct {
    int64_t matrices, rows;
    int32_t cols;
} matrices[] = {{1, 1, 8}, {1, 5, 256}, {3, 130, 400}, {2, 9, 2056}};

MF_TEST(test_quantise, .rows = MF_ARRAY_LEN(matrices) * ROWS(formats))
{
    const char *format = formats[_i / 2 % MF_ARRAY_LEN(formats)];
    size_t m = (size_t)_i / 2 / MF_ARRAY_LEN(formats);
    size_t n = (size_t)matrices[m].matrices, rows = (size_t)matrices[m].rows, cols = (size_t)matrices[m].cols;
    struct fmoe_op_quantised z;

    arch = _i % 2;
    if (arch == 0 && strncmp(format, "fp8fnuz", 7) == 0)
        return;
    ck_assert_int_eq(fmoe_op_quantised_sizes(format, matrices[m].rows, matrices[m].cols, &z, NULL), 0);
    struct fmoe_op_quantise a = {
        .format = format,
        .matrices = matrices[m].matrices,
        .rows = matrices[m].rows,
        .cols = matrices[m].cols,
        .q = output(n * rows * (size_t)z.row_bytes),
        .scale = output(n * (size_t)(z.scale_rows * z.scale_cols * z.scale_bytes)),
        .workspace = workspace(n * FMOE_OP_AMAX_BYTES),
    };
    uint16_t *x = halves(n * rows * cols);
    memset(x, 0, MF_MIN(cols, 32) * 2); /* a group of zeros */
    memset(on_gpu(x), 0, MF_MIN(cols, 32) * 2);
    a.x = x;
    float factors[] = {1000, 3000, 20};
    a.factor = z.has_factor ? input(factors, sizeof(factors)) : NULL;
    RUN(fmoe_op_quantise, a, {
        MOVE(a.x);
        MOVE(a.factor);
        MOVE(a.q);
        MOVE(a.scale);
        MOVE(a.workspace);
    });
}

static const struct order_case {
    const char *order;
    int64_t matrices, rows, cols;
    int32_t element_bytes;
} orders[] = {
    {"16x16", 2, 32, 64, 1},     {"16x16", 1, 16, 96, 2},        {"a16w4", 2, 32, 128, 1},
    {"a16w4_gu", 2, 64, 64, 1},  {"a16w4_scale", 1, 128, 16, 1}, {"e8m0", 2, 40, 11, 1},
    {"e8m0_1250", 2, 40, 12, 1}, {"32_4_4", 3, 130, 8, 1},       {"32_4_4", 2, 5, 7, 1},
    {"8_4", 2, 9, 12, 1},
};

MF_TEST(test_shuffle, .rows = 2 * ROWS(orders))
{
    const struct order_case *c = &orders[_i / 4];
    int64_t elements;

    arch = _i % 2;
    ck_assert_int_eq(fmoe_op_shuffled_elements(c->order, c->rows, c->cols, c->element_bytes, &elements, NULL),
                     0);
    size_t plain = (size_t)(c->matrices * c->rows * c->cols * c->element_bytes);
    size_t shuffled = (size_t)(c->matrices * elements * c->element_bytes);
    bool undo = _i / 2 % 2;
    struct fmoe_op_shuffle a = {
        .order = c->order,
        .from = halves((undo ? shuffled : plain) / 2 + 1),
        .to = output(undo ? plain : shuffled),
        .matrices = c->matrices,
        .rows = c->rows,
        .cols = c->cols,
        .element_bytes = c->element_bytes,
        .undo = undo,
    };
    RUN(fmoe_op_shuffle, a, {
        MOVE(a.from);
        MOVE(a.to);
    });
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 300,
                                                 .setup_all = open_all,
                                                 .teardown_all = close_all,
                                                 .setup = open_cpu,
                                                 .teardown = close_cpu});
}
