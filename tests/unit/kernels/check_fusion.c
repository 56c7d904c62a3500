#include "kernels/fusion/fusion.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "kernels/core/philox.h"
#include "support/mf_check.h"

/* --- shapes and capabilities ---------------------------------------------------------------------------- */

enum form { BF16, TOKEN, TENSOR, MX, EARLY /* doweight_stage1 */ };

static struct mf_shape shape_of(enum form form, int64_t token)
{
    static const char *const rest[] = {
        [BF16] = "torch.bfloat16,torch.bfloat16,QuantType.No,1,0",
        [TOKEN] = "torch.float8_e4m3fn,torch.float8_e4m3fn,QuantType.per_Token,1,0",
        [TENSOR] = "torch.int8,torch.int8,QuantType.per_Tensor,1,0",
        [MX] = "torch.float4_e2m1fn_x2,torch.float4_e2m1fn_x2,QuantType.per_1x32,1,0",
        [EARLY] = "torch.bfloat16,torch.bfloat16,QuantType.No,1,1",
    };
    char text[MF_SHAPE_TEXT_MAX];
    struct mf_shape s;
    (void)snprintf(text, sizeof(text), "%" PRId64 ",2048,768,128,8,ActivationType.Silu,torch.bfloat16,%s",
                   token, rest[form]);
    ck_assert_int_eq(mf_shape_parse(text, &s), 0);
    return s;
}

#define OPS(text) ops_of(text)
/* Parses op names; also accepts the two dequantisation nodes, which are not ops. */
static mf_ops ops_of(const char *text)
{
    mf_ops ops;
    if (strcmp(text, "dequant_w1") == 0)
        return MF_OP_BIT(MF_NODE_DEQUANT_W1);
    if (strcmp(text, "dequant_w2") == 0)
        return MF_OP_BIT(MF_NODE_DEQUANT_W2);
    ck_assert_msg(mf_ops_parse(text, &ops) == 0, "%s", text);
    return ops;
}

enum kit { PLAIN, TILE, WIDE, ONE, VENDOR, SMALL, LISTS, SEPARATE_GEMMS, EXTERNAL, EVERYTHING };

static struct mf_fusion_caps caps_of(enum kit kit)
{
    mf_ops front = MF_OP_BIT(MF_OP_GATHER), behind = MF_OP_BIT(MF_OP_ACT) | MF_OP_BIT(MF_OP_WEIGHT);
    mf_ops all = (1u << MF_NODE_N_) - 1, more = behind | MF_OP_BIT(MF_OP_QUANT2) | MF_OP_BIT(MF_OP_COMBINE);
    const struct mf_fusion_caps kits[] = {
        [PLAIN] = {.block_n = 128},
        [TILE] = {.prologue = front, .epilogue = more, .block_n = 128},
        [WIDE] = {.prologue = front | MF_OP_BIT(MF_OP_QUANT1),
                  .epilogue = more,
                  .whole_rows = true,
                  .accumulates = true,
                  .block_n = 128},
        [ONE] = {.prologue = all,
                 .epilogue = all,
                 .whole_rows = true,
                 .accumulates = true,
                 .both_gemms = true,
                 .sorts = true,
                 .tokens_max = 16,
                 .block_n = 128},
        [VENDOR] = {.external = true, .block_n = 128},
        [LISTS] = {.lists = true, .block_n = 128},
        [SMALL] =
            {.prologue = front, .epilogue = more, .whole_rows = true, .block_bytes = 4096, .block_n = 128},
    };
    /* All capabilities. SEPARATE_GEMMS lacks both_gemms, and EXTERNAL is a vendor's call. So only the rule
     * about that one difference can reject. */
    struct mf_fusion_caps everything = {.prologue = all,
                                        .epilogue = all,
                                        .external = kit == EXTERNAL,
                                        .whole_rows = true,
                                        .all_rows = true,
                                        .both_gemms = kit != SEPARATE_GEMMS,
                                        .accumulates = true,
                                        .sorts = true,
                                        .lists = true,
                                        .block_n = 1 << 20};
    return kit >= SEPARATE_GEMMS ? everything : kits[kit];
}

/* --- pairs: at least one row per rule --- */

/* clang-format off */
static const struct {
    enum form form;
    int64_t token;
    enum kit kit;
    const char *a, *b;
    const char *rule; /* NULL: allowed */
} pairs[] = {
    {BF16,   64, TILE,       "gather",      "gemm1",        NULL},
    {BF16,   64, TILE,       "gemm1",       "act",          NULL},
    {BF16,   64, TILE,       "gather+gemm1", "act",         NULL},
    {BF16,   64, WIDE,       "gemm2",       "weight",       NULL},
    {BF16,   64, WIDE,       "gemm2+weight", "combine",     NULL},
    {TOKEN,  64, WIDE,       "gemm1+act",   "quant2",       NULL},
    {MX,     64, TILE,       "gemm1+act",   "quant2",       NULL},
    {EARLY,  64, TILE,       "gemm1",       "weight",       NULL},
    {BF16,    4, ONE,        "gemm1+act",   "gemm2",        NULL},
    {BF16,   64, EVERYTHING, "sort",        "gather",       NULL},
    {BF16,   64, TILE,       "gemm1",       "gemm1",        "same"},
    {BF16,   64, TILE,       "gemm1+act",   "act",          "same"},
    {BF16,   64, VENDOR,     "gemm1",       "act",          "external"},
    {BF16,   64, EXTERNAL,     "gemm1",       "act",          "external"},
    {BF16,   64, TILE,       "act",         "gemm1",        "order"},
    {BF16,   64, EVERYTHING, "gemm2",       "gather",       "order"},
    {BF16,   64, EVERYTHING, "gather",      "gemm2",        "cycle"},
    {BF16,   64, EVERYTHING, "gather",      "act",          "cycle"},
    {BF16,   64, EVERYTHING, "sort",        "combine",      "cycle"},
    {TOKEN,  64, TILE,       "sort",        "quant1",       "horizontal"},
    {TOKEN,  64, EVERYTHING, "sort",        "quant1",       "horizontal"},
    {BF16,   64, TILE,       "sort",        "gather",       "sort"},
    {BF16,   64, TILE,       "gemm1+act",   "gemm2",        "two_gemms"},
    {BF16,   64, SEPARATE_GEMMS,      "gemm1+act",   "gemm2",        "two_gemms"},
    {BF16,   64, PLAIN,      "gather",      "gemm1",        "prologue"},
    {TOKEN,  64, WIDE,       "quant1+gather", "gemm1",      NULL},
    {TOKEN,  64, WIDE,       "quant1",      "gather+gemm1", NULL},
    {TOKEN,  64, TILE,       "quant1+gather", "gemm1",      "prologue"},
    {TOKEN,  64, TILE,       "quant1",      "gather+gemm1", "prologue"},
    {TOKEN,  64, PLAIN,      "gemm1",       "act+quant2",   "epilogue"},
    {TOKEN,  64, TILE,       "gemm1",       "act+quant2",   "row_reduction"},
    {BF16,   64, PLAIN,      "gemm1",       "act",          "epilogue"},
    {EARLY,  64, PLAIN,      "gemm1",       "weight",       "epilogue"},
    {TOKEN,  64, TILE,       "gemm1+act",   "quant2",       "row_reduction"},
    {TENSOR, 64, WIDE,       "gemm1+act",   "quant2",       "mixed_order"},
    {TENSOR, 64, WIDE,       "quant1",      "gather",       "mixed_order"},
    {BF16,   64, TILE,       "gemm2+weight", "combine",     "mutation"},
    {BF16,   17, ONE,        "gemm1+act",   "gemm2",        "tokens"},
    {BF16,   64, SMALL,      "gemm1",       "act",          "memory"},
    {MX,     64, LISTS,      "dequant_w1",  "dequant_w2",   NULL},
    {MX,     64, TILE,       "dequant_w1",  "dequant_w2",   "foreach"},
    {MX,     64, EVERYTHING, "dequant_w1",  "gemm1",        NULL},
    {TOKEN,  64, EVERYTHING, "dequant_w2",  "gemm2",        NULL},
    {MX,     64, TILE,       "dequant_w1",  "gather+gemm1", "prologue"},
    {MX,     64, VENDOR,     "dequant_w1",  "gemm1",        "external"},
    {MX,     64, EVERYTHING, "dequant_w1",  "gemm2",        "cycle"},
    {MX,     64, LISTS,      "quant1",      "dequant_w1",   "horizontal"},
};
/* clang-format on */

struct fusion_case {
    struct mf_shape shape;
    struct mf_graph graph;
    struct mf_fusion_caps caps;
    struct mf_fusion_question q;
};

static void ask(int row, struct fusion_case *x)
{
    x->shape = shape_of(pairs[row].form, pairs[row].token);
    mf_graph_of(&x->shape, &x->graph);
    x->caps = caps_of(pairs[row].kit);
    x->q = (struct mf_fusion_question){.ops = x->graph.ops, .block_m = 32, .caps = &x->caps};
}

/* Checks that the reason of a rejection is a sentence with a number. */
static void check_sentence(const struct mf_fusion_verdict *v)
{
    bool digit = false;
    for (const char *c = v->reason; *c; c++)
        digit |= isdigit((unsigned char)*c) != 0;
    ck_assert_msg(digit && strlen(v->reason) > 20, "%s: '%s'", v->rule, v->reason);
}

MF_TEST(pair_verdict, .rows = MF_ARRAY_LEN(pairs))
{
    struct fusion_case x;
    struct mf_fusion_verdict v;
    ask(_i, &x);
    bool yes = mf_fusion_pair(&x.graph, &x.shape, &x.q, OPS(pairs[_i].a), OPS(pairs[_i].b), &v);
    if (!pairs[_i].rule) {
        ck_assert_msg(yes, "%s and %s: %s: %s", pairs[_i].a, pairs[_i].b, v.rule, v.reason);
        ck_assert_double_ge(v.saved, 0);
        ck_assert(v.saved > 0 || strcmp(pairs[_i].b, "dequant_w2") == 0); /* dequant_w2 saves no traffic */
        return;
    }
    ck_assert_msg(!yes && strcmp(v.rule, pairs[_i].rule) == 0, "%s and %s: %s, not %s", pairs[_i].a,
                  pairs[_i].b, yes ? "yes" : v.rule, pairs[_i].rule);
    check_sentence(&v);
}

/* --- graphs that no layer has --- */

enum change { SLOT_ROWS, RESIDUAL, NO_GATHER, SHORT_LIST };

/* The graph quant1 -> gather -> gemm1, changed so that the rule rejects `a`. If rule is NULL, no rule rejects
 * `a`. */
/* clang-format off */
static const struct {
    enum change change;
    int64_t block_n;
    const char *a, *rule; /* a: fused with gemm1 (dequant_w1: with dequant_w2) */
} by_hand[] = {
    {SLOT_ROWS, 1 << 20, "gather", "index"},          /* gemm1 reads slot rows, gather writes sorted rows */
    {RESIDUAL,  1 << 20, "quant1", "single_use"},     /* combine also reads the quantised rows */
    {NO_GATHER, 128,     "quant1", "prologue_bytes"}, /* bf16 is read once per column tile */
    {NO_GATHER, 1 << 20, "quant1", NULL},             /* one tile: read once */
    {SHORT_LIST, 128,    "dequant_w1", "foreach"},    /* one matrix fewer than the other list */
};
/* clang-format on */

static void change(struct mf_graph *g, enum change change)
{
    struct mf_node *gemm1 = &g->node[MF_OP_GEMM1], *combine = &g->node[MF_OP_COMBINE];

    if (change == SLOT_ROWS) {
        gemm1->reads[0].rows = MF_ROWS_SLOT;
        return;
    }
    if (change == SHORT_LIST) {
        g->node[MF_NODE_DEQUANT_W1].list_length--;
        return;
    }
    gemm1->reads[0] = (struct mf_access){MF_OP_QUANT1, MF_ROWS_TOKEN};
    g->ops &= ~MF_OP_BIT(MF_OP_GATHER);
    if (change == RESIDUAL)
        combine->reads[combine->n_reads++] = (struct mf_access){MF_OP_QUANT1, MF_ROWS_TOKEN};
}

static void ask_by_hand(int row, struct fusion_case *x)
{
    ask(0, x);
    x->shape = shape_of(TOKEN, 64);
    x->caps = caps_of(WIDE);
    x->caps.block_n = by_hand[row].block_n;
    x->caps.lists = true;
    mf_graph_of(&x->shape, &x->graph);
    change(&x->graph, by_hand[row].change);
}

static const char *second_by_hand(int row)
{
    return by_hand[row].change == SHORT_LIST ? "dequant_w2" : "gemm1";
}

MF_TEST(hand_made_graph, .rows = MF_ARRAY_LEN(by_hand))
{
    struct fusion_case x;
    struct mf_fusion_verdict v;

    ask_by_hand(_i, &x);
    bool yes = mf_fusion_pair(&x.graph, &x.shape, &x.q, OPS(by_hand[_i].a), OPS(second_by_hand(_i)), &v);
    ck_assert_msg(yes == !by_hand[_i].rule, "%s: %s", v.rule ? v.rule : "yes", v.reason);
    if (yes)
        return;
    ck_assert_str_eq(v.rule, by_hand[_i].rule);
    check_sentence(&v);
}

/* --- every rule ----------------------------------------------------------------------------------------- */

/* Disables rule n for a pair that only rule n rejects. Returns true if the pair becomes a kernel. */
static bool becomes_kernel(struct fusion_case *x, const char *a, const char *b,
                           const struct mf_fusion_rule *rules, size_t n)
{
    struct mf_fusion_verdict v;

    x->q.forced = &(struct mf_fusion_forced){.rule = n, .rejects = false};
    bool yes = mf_fusion_pair(&x->graph, &x->shape, &x->q, OPS(a), OPS(b), &v);
    ck_assert(yes || strcmp(v.rule, rules[n].name) != 0);
    return yes;
}

/* Each rule matters. If a rule is disabled, at least one illegal kernel is accepted. If a rule rejects
 * everything, every legal pair is rejected in the name of that rule. */
static int n_rules(void)
{
    const struct mf_fusion_rule *rules;
    return (int)mf_fusion_rules(&rules);
}

MF_TEST(every_rule_matters, .count_rows = n_rules)
{
    const struct mf_fusion_rule *rules;
    size_t n = mf_fusion_rules(&rules), rule = (size_t)_i;
    int appeared = 0, refused = 0;
    struct fusion_case x;

    ck_assert_uint_lt(rule, n);
    for (size_t row = 0; row < MF_ARRAY_LEN(pairs); row++) {
        struct mf_fusion_verdict v;
        ask((int)row, &x);
        if (pairs[row].rule && strcmp(pairs[row].rule, rules[rule].name) == 0)
            appeared += becomes_kernel(&x, pairs[row].a, pairs[row].b, rules, rule);
        if (pairs[row].rule)
            continue;
        x.q.forced = &(struct mf_fusion_forced){.rule = rule, .rejects = true};
        ck_assert(!mf_fusion_pair(&x.graph, &x.shape, &x.q, OPS(pairs[row].a), OPS(pairs[row].b), &v));
        ck_assert_str_eq(v.rule, rules[rule].name);
        refused++;
    }
    for (size_t row = 0; row < MF_ARRAY_LEN(by_hand); row++) {
        if (!by_hand[row].rule || strcmp(by_hand[row].rule, rules[rule].name) != 0)
            continue;
        ask_by_hand((int)row, &x);
        appeared += becomes_kernel(&x, by_hand[row].a, second_by_hand((int)row), rules, rule);
    }
    ck_assert_msg(appeared > 0, "disabling rule %s has no effect", rules[rule].name);
    ck_assert_int_gt(refused, 0);
}

/* --- whole steps ---------------------------------------------------------------------------------------- */

/* clang-format off */
static const struct {
    enum form form;
    int64_t token;
    enum kit kit;
    const char *ops, *rule;
} steps[] = {
    {BF16,   64, TILE,   "gather+gemm1+act",                          NULL},
    {TOKEN,  64, WIDE,   "gather+gemm1+act+quant2",                   NULL},
    {TOKEN,  64, TILE,   "gather+gemm1+act+quant2",                   "row_reduction"},
    {TOKEN,  64, WIDE,   "quant1+gather+gemm1+act+quant2",            NULL},
    {TOKEN,  64, TILE,   "quant1+gather+gemm1+act",                   "prologue"},
    {TENSOR, 64, WIDE,   "quant1+gather+gemm1+act",                   "mixed_order"},
    {TENSOR, 64, WIDE,   "gather+gemm1+act+quant2",                   "mixed_order"},
    {BF16,   64, WIDE,   "gemm2+weight+combine",                      NULL},
    {BF16,   64, TILE,   "gemm2+weight+combine",                      "mutation"},
    {BF16,   16, ONE,    "sort+gather+gemm1+act+gemm2+weight+combine", NULL},
    {BF16,   64, ONE,    "sort+gather+gemm1+act+gemm2+weight+combine", "tokens"},
    {BF16,   64, VENDOR, "gemm1",                                     NULL},
    {BF16,   64, VENDOR, "gemm1+act",                                 "external"},
    {MX,     64, TILE,   "quant2",                                    NULL},
};
/* clang-format on */

MF_TEST(step_verdict, .rows = MF_ARRAY_LEN(steps))
{
    struct mf_shape s = shape_of(steps[_i].form, steps[_i].token);
    struct mf_fusion_caps caps = caps_of(steps[_i].kit);
    struct mf_fusion_question q = {.ops = OPS(steps[_i].ops), .block_m = 32, .caps = &caps};
    struct mf_fusion_verdict v;
    bool yes = mf_fusion_allows(&s, &q, &v);
    ck_assert_msg(yes == !steps[_i].rule, "%s: %s: %s", steps[_i].ops, v.rule ? v.rule : "yes", v.reason);
    if (steps[_i].rule)
        ck_assert_str_eq(v.rule, steps[_i].rule);
}

/* --- random layers and capabilities --------------------------------------------------------------------- */

/* Computes an op's result as a hash of its inputs, so that the result does not depend on the kernel or the
 * order of ops. Returns false if an input is missing. */
static bool run_op(const struct mf_graph *g, int op, uint64_t *buffer, const bool *there)
{
    uint64_t v = (uint64_t)op * 0x9e3779b97f4a7c15u + 1;
    for (int i = 0; i < g->node[op].n_reads; i++) {
        int b = g->node[op].reads[i].buffer;
        if (b < MF_NODE_N_ && !there[b])
            return false;
        v = (v ^ buffer[b]) * 0xff51afd7ed558ccdu;
        v ^= v >> 33;
    }
    buffer[op] = v;
    return true;
}

/* Runs the kernels in order. Within a kernel, runs any op whose inputs are available. Returns false if a
 * kernel cannot finish. */
static bool run_kernels(const struct mf_graph *g, const mf_ops *kernels, int n, uint64_t *buffer)
{
    bool there[MF_BUFFER_N_] = {false};
    buffer[MF_BUFFER_X] = 17;
    buffer[MF_BUFFER_TOPK] = 23;
    buffer[MF_BUFFER_W1] = 29;
    buffer[MF_BUFFER_W2] = 31;
    for (int k = 0; k < n; k++) {
        mf_ops left = kernels[k];
        for (bool ran = true; ran && left;) {
            ran = false;
            for (int op = MF_NODE_N_ - 1; op >= 0; op--) {
                if (!(left & MF_OP_BIT(op)) || !run_op(g, op, buffer, there))
                    continue;
                there[op] = true;
                left &= ~MF_OP_BIT(op);
                ran = true;
            }
        }
        if (left)
            return false;
    }
    return true;
}

static void count_rejection(void *context, mf_ops a, mf_ops b, const struct mf_fusion_verdict *v)
{
    ck_assert_int_eq(a & b, 0);
    ck_assert_ptr_nonnull(v->rule);
    check_sentence(v);
    ++*(int *)context;
}

struct random_layer {
    struct mf_shape shape;
    struct mf_fusion_caps caps;
    struct mf_fusion_question q;
    struct mf_graph graph;
};

#define LAYERS 2000

static void draw_layer(uint64_t i, struct random_layer *l)
{
    const uint64_t seed = 20261121;
    struct mf_philox4 w = mf_philox(seed, i, 0), w2 = mf_philox(seed, i, 1);

    l->shape = shape_of((enum form)(w.v[0] % 5), 1 + w.v[1] % 100);
    l->caps = (struct mf_fusion_caps){.prologue = w.v[2],
                                      .epilogue = w.v[3],
                                      .external = w2.v[0] % 16 == 0,
                                      .whole_rows = w2.v[0] & 32,
                                      .all_rows = w2.v[0] & 64,
                                      .both_gemms = w2.v[0] & 128,
                                      .accumulates = w2.v[0] & 256,
                                      .sorts = w2.v[0] & 512,
                                      .lists = w2.v[0] & 1024,
                                      .tokens_max = w2.v[1] % 2 ? 0 : w2.v[1] % 128,
                                      .block_bytes = w2.v[2] % 2 ? 0 : w2.v[2] % 1000000,
                                      .block_n = 32 << w2.v[3] % 8};
    mf_graph_of(&l->shape, &l->graph);
    l->q = (struct mf_fusion_question){.ops = l->graph.ops, .block_m = 8 << w2.v[3] % 4, .caps = &l->caps};
}

/* Returns true if the kernels cover every op once, can run in order, and compute the same result as separate
 * ops. */
static bool results_match(const struct mf_graph *g, const mf_ops *kernels, int n)
{
    uint64_t fused[MF_BUFFER_N_] = {0}, unfused[MF_BUFFER_N_] = {0};
    mf_ops all = 0;

    for (int k = 0; k < n; k++) {
        if (all & kernels[k])
            return false;
        all |= kernels[k];
    }
    ck_assert(run_kernels(g, &g->ops, 1, unfused));
    return all == g->ops && run_kernels(g, kernels, n, fused) &&
           fused[MF_OP_COMBINE] == unfused[MF_OP_COMBINE];
}

MF_TEST(fused_layers_match)
{
    for (uint64_t i = 0; i < LAYERS; i++) {
        struct random_layer l;
        mf_ops kernels[MF_NODE_N_];
        int n_rejected = 0;
        draw_layer(i, &l);
        int n = mf_fusion_rounds(&l.graph, &l.shape, &l.q, kernels, count_rejection, &n_rejected);
        ck_assert_msg(results_match(&l.graph, kernels, n), "layer %" PRIu64, i);
        ck_assert_int_eq(n_rejected,
                         n * (n - 1) / 2); /* nothing is left to fuse, and every rejection is reported */
        for (int k = 0; k < n; k++)
            for (int later = k + 1; later < n; later++)
                ck_assert(!mf_graph_reaches(&l.graph, kernels[later], kernels[k], l.graph.ops));
    }
}

/* The test above detects illegal fusions if the rule against cycles is disabled. */
MF_TEST(cycles_detected)
{
    const struct mf_fusion_rule *rules;
    size_t rule = 0, n_rules = mf_fusion_rules(&rules);
    int n_broken = 0;

    while (rule < n_rules && strcmp(rules[rule].name, "cycle") != 0)
        rule++;
    ck_assert_uint_lt(rule, n_rules);
    for (uint64_t i = 0; i < LAYERS; i++) {
        struct random_layer l;
        mf_ops kernels[MF_NODE_N_];
        draw_layer(i, &l);
        l.q.forced = &(struct mf_fusion_forced){.rule = rule, .rejects = false};
        int n = mf_fusion_rounds(&l.graph, &l.shape, &l.q, kernels, NULL, NULL);
        n_broken += !results_match(&l.graph, kernels, n);
    }
    ck_assert_int_gt(n_broken, 0);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 60});
}
