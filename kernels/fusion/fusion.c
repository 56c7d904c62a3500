#include "kernels/fusion/fusion.h"

#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "kernels/core/codec.h"
#include "kernels/core/tensors.h"

/* --- the graph ------------------------------------------------------------------------------------------------ */

static enum mf_node_kind quant_kind(const struct mf_codec *c)
{
    return c->scale == MF_SCALE_PER_TENSOR  ? MF_NODE_ALL
           : c->scale == MF_SCALE_PER_TOKEN ? MF_NODE_ROW
                                            : MF_NODE_POINTWISE;
}

static double stored(const struct mf_codec *c, double rows, int64_t cols)
{
    return rows * ((double)mf_codec_row_bytes(c, (size_t)cols) +
                   (double)mf_codec_scale_cols(c, (size_t)cols) * c->scale_bytes);
}

static void add_read(struct mf_node *n, int buffer, enum mf_rows rows)
{
    n->reads[n->n_reads++] = (struct mf_access){buffer, rows};
}

/* A weight's matrices, one for each expert, decoded in front of their GEMM. */
static void add_decoding(struct mf_graph *g, const struct mf_shape *s, int node, int gemm)
{
    bool first = gemm == MF_OP_GEMM1;
    int64_t rows = first ? mf_gemm1_cols(s) : s->model_dim, cols = first ? s->model_dim : s->inter_dim;
    g->ops |= MF_OP_BIT(node);
    g->node[node] = (struct mf_node){MF_NODE_FOREACH, .writes = MF_ROWS_EXPERT, .cols = cols,
                                     .bytes = 2 * mf_layer_expected_active(s) * (double)rows * (double)cols,
                                     .list = s->expert};
    add_read(&g->node[node], first ? MF_BUFFER_W1 : MF_BUFFER_W2, MF_ROWS_EXPERT);
    add_read(&g->node[gemm], node, MF_ROWS_EXPERT);
}

void mf_graph_of(const struct mf_shape *s, struct mf_graph *ret)
{
    struct mf_graph g = {.ops = mf_layer_ops(s)};
    struct mf_codecs codecs = {mf_codec_find(MF_FORMAT_BF16, MF_SCALE_NONE), NULL};
    const char *why;
    double T = (double)s->token, slots = T * s->topk * mf_shape_share(s);
    int64_t H = s->model_dim, I = s->inter_dim, G = mf_gemm1_cols(s);
    bool quantised = g.ops & MF_OP_BIT(MF_OP_QUANT1), early = s->doweight_stage1;

    (void)mf_codecs_of_shape(s, &codecs, &why);
    int x = quantised ? MF_OP_QUANT1 : MF_BUFFER_X, h = quantised ? MF_OP_QUANT2 : MF_OP_ACT;
    g.node[MF_OP_SORT] =
        (struct mf_node){MF_NODE_INDEX, .writes = MF_ROWS_SORTED, .cols = 2, .bytes = 8 * slots};
    add_read(&g.node[MF_OP_SORT], MF_BUFFER_TOPK, MF_ROWS_WHOLE);
    g.node[MF_OP_QUANT1] = (struct mf_node){quant_kind(codecs.a), .writes = MF_ROWS_TOKEN, .cols = H,
                                            .bytes = stored(codecs.a, T, H)};
    add_read(&g.node[MF_OP_QUANT1], MF_BUFFER_X, MF_ROWS_TOKEN);
    g.node[MF_OP_GATHER] = (struct mf_node){MF_NODE_COPY, .writes = MF_ROWS_SORTED, .cols = H,
                                            .bytes = stored(codecs.a, slots, H)};
    add_read(&g.node[MF_OP_GATHER], x, MF_ROWS_TOKEN);
    add_read(&g.node[MF_OP_GATHER], MF_OP_SORT, MF_ROWS_SORTED);
    g.node[MF_OP_GEMM1] = (struct mf_node){MF_NODE_TEMPLATE, .writes = MF_ROWS_SORTED, .cols = G,
                                           .bytes = 2 * slots * (double)G};
    add_read(&g.node[MF_OP_GEMM1], MF_OP_GATHER, MF_ROWS_SORTED);
    add_read(&g.node[MF_OP_GEMM1], MF_OP_SORT, MF_ROWS_SORTED);
    g.node[MF_OP_ACT] = (struct mf_node){MF_NODE_POINTWISE, .writes = MF_ROWS_SORTED, .cols = I,
                                         .bytes = 2 * slots * (double)I};
    add_read(&g.node[MF_OP_ACT], early ? MF_OP_WEIGHT : MF_OP_GEMM1, MF_ROWS_SORTED);
    g.node[MF_OP_QUANT2] = (struct mf_node){quant_kind(codecs.a), .writes = MF_ROWS_SORTED, .cols = I,
                                            .bytes = stored(codecs.a, slots, I)};
    add_read(&g.node[MF_OP_QUANT2], MF_OP_ACT, MF_ROWS_SORTED);
    g.node[MF_OP_GEMM2] =
        (struct mf_node){MF_NODE_TEMPLATE, .writes = MF_ROWS_SLOT, .cols = H, .bytes = 2 * slots * (double)H};
    add_read(&g.node[MF_OP_GEMM2], h, MF_ROWS_SORTED);
    add_read(&g.node[MF_OP_GEMM2], MF_OP_SORT, MF_ROWS_SORTED);
    g.node[MF_OP_WEIGHT] =
        (struct mf_node){MF_NODE_POINTWISE, .writes = early ? MF_ROWS_SORTED : MF_ROWS_SLOT,
                         .cols = early ? G : H, .bytes = 2 * slots * (double)(early ? G : H)};
    add_read(&g.node[MF_OP_WEIGHT], early ? MF_OP_GEMM1 : MF_OP_GEMM2, early ? MF_ROWS_SORTED : MF_ROWS_SLOT);
    g.node[MF_OP_COMBINE] =
        (struct mf_node){MF_NODE_SCATTER, .writes = MF_ROWS_TOKEN, .cols = H, .bytes = 2 * T * (double)H};
    add_read(&g.node[MF_OP_COMBINE], early ? MF_OP_GEMM2 : MF_OP_WEIGHT, MF_ROWS_SLOT);
    if (codecs.w && codecs.w->scale_bytes > 0) {
        add_decoding(&g, s, MF_NODE_DEQUANT_W1, MF_OP_GEMM1);
        add_decoding(&g, s, MF_NODE_DEQUANT_W2, MF_OP_GEMM2);
    }
    *ret = g;
}

static bool has(mf_ops ops, int op)
{
    return op < MF_NODE_N_ && (ops & MF_OP_BIT(op));
}

static bool reads(const struct mf_graph *g, int op, mf_ops from)
{
    for (int i = 0; i < g->node[op].n_reads; i++) {
        if (has(from, g->node[op].reads[i].buffer))
            return true;
    }
    return false;
}

bool mf_graph_reaches(const struct mf_graph *g, mf_ops from, mf_ops to, mf_ops through)
{
    mf_ops seen = from;
    for (bool grew = true; grew;) {
        grew = false;
        for (int op = 0; op < MF_NODE_N_; op++) {
            if (!has(g->ops, op) || has(seen, op) || !reads(g, op, seen))
                continue;
            if (has(to, op))
                return true;
            if (!has(through, op))
                continue;
            seen |= MF_OP_BIT(op);
            grew = true;
        }
    }
    return false;
}

/* --- one pair ------------------------------------------------------------------------------------------------- */

/* a runs before b. p of a writes what c of b reads; both -1 for a horizontal pair, which shares a read. */
struct pair {
    const struct mf_graph *g;
    const struct mf_shape *shape;
    const struct mf_fusion_question *q;
    mf_ops a, b;
    int p, c, shared;
    double saved;
};

static const char *name(int op)
{
    return op == MF_NODE_DEQUANT_W1   ? "dequant_w1"
           : op == MF_NODE_DEQUANT_W2 ? "dequant_w2"
                                      : mf_op_name((enum mf_op)op);
}

#define NODES_TEXT_MAX (MF_OPS_TEXT_MAX + 24)

static void print_nodes(mf_ops ops, char buf[NODES_TEXT_MAX])
{
    mf_ops plain = ops & (MF_OP_BIT(MF_OP_N_) - 1);
    buf[0] = '\0';
    if (plain || !ops)
        mf_ops_print(plain, buf);
    for (int node = MF_OP_N_; node < MF_NODE_N_; node++) {
        size_t at = strlen(buf);
        if (has(ops, node))
            mf_format(buf + at, NODES_TEXT_MAX - at, "%s%s", at ? "+" : "", name(node));
    }
}

/* Ops outside the two that read what p writes. */
static int other_user(const struct pair *x)
{
    for (int op = 0; op < MF_NODE_N_; op++) {
        if (has(x->g->ops & ~(x->a | x->b), op) && reads(x->g, op, MF_OP_BIT(x->p)))
            return op;
    }
    return -1;
}

static int template_of(const struct mf_graph *g, mf_ops ops)
{
    for (int op = 0; op < MF_NODE_N_; op++) {
        if (has(ops, op) && g->node[op].kind == MF_NODE_TEMPLATE)
            return op;
    }
    return -1;
}

/* Every rule: true and the sentence when it objects. */
typedef bool (*rule_fn)(const struct pair *x, char *why, size_t cap);

static bool same(const struct pair *x, char *why, size_t cap)
{
    char ops[NODES_TEXT_MAX];
    print_nodes(x->a & x->b, ops);
    mf_format(why, cap, "%s would be in both: %d ops in common, 0 can be run twice", ops,
              __builtin_popcount(x->a & x->b));
    return (x->a & x->b) != 0;
}

static bool order(const struct pair *x, char *why, size_t cap)
{
    char first[NODES_TEXT_MAX], second[NODES_TEXT_MAX];
    print_nodes(x->b, first);
    print_nodes(x->a, second);
    mf_format(why, cap, "%s runs before %s, not behind it: 1 dependency points the other way", first, second);
    return mf_graph_reaches(x->g, x->b, x->a, x->g->ops);
}

static bool cycle(const struct pair *x, char *why, size_t cap)
{
    mf_ops outside = x->g->ops & ~(x->a | x->b);
    for (int op = 0; op < MF_NODE_N_; op++) {
        if (!has(outside, op) || !mf_graph_reaches(x->g, x->a, MF_OP_BIT(op), outside) ||
            !mf_graph_reaches(x->g, MF_OP_BIT(op), x->b, outside))
            continue;
        mf_format(
            why, cap,
            "%s lies between: it needs what the first part gives and the second needs its %.0f bytes, so one "
            "kernel would wait for itself",
            name(op), x->g->node[op].bytes);
        return true;
    }
    return false;
}

static bool external(const struct pair *x, char *why, size_t cap)
{
    int t = template_of(x->g, x->a | x->b);
    bool alone = __builtin_popcount(x->a | x->b) == 1;
    mf_format(why, cap, "%s is a vendor's call: of the %d ops asked for it holds 1",
              t < 0 ? "this kernel" : name(t), __builtin_popcount(x->a | x->b));
    return x->q->caps->external && !alone;
}

static bool tokens(const struct pair *x, char *why, size_t cap)
{
    mf_format(why, cap, "token is %lld; one kernel for both takes up to %lld", (long long)x->shape->token,
              (long long)x->q->caps->tokens_max);
    return x->q->caps->tokens_max > 0 && x->shape->token > x->q->caps->tokens_max;
}

static bool no_sort(const struct pair *x, char *why, size_t cap)
{
    mf_format(
        why, cap,
        "sort makes an order of %lld slots that every block waits for; these kernels take it as an input",
        (long long)(x->shape->token * x->shape->topk));
    return has(x->a | x->b, MF_OP_SORT) && !x->q->caps->sorts;
}

static bool two_gemms(const struct pair *x, char *why, size_t cap)
{
    int first = template_of(x->g, x->a), second = template_of(x->g, x->b);
    mf_format(
        why, cap,
        "gemm2 needs whole rows of %d values and a tile of gemm1 ends with %lld columns: both in one launch "
        "takes a kernel that waits for all of them",
        x->shape->inter_dim, (long long)x->q->caps->block_n);
    return first >= 0 && second >= 0 && !x->q->caps->both_gemms;
}

/* The GEMM of b that what comes from a is on its way to; -1: none. */
static int template_ahead(const struct pair *x)
{
    int t = template_of(x->g, x->b);
    if (x->p < 0 || t < 0 || template_of(x->g, x->a) >= 0) /* nothing comes from a, or it is no prologue */
        return -1;
    return t == x->c || mf_graph_reaches(x->g, MF_OP_BIT(x->c), MF_OP_BIT(t), x->b) ? t : -1;
}

/* All of a runs in front of the GEMM, directly or by way of ops of b. */
static bool prologue(const struct pair *x, char *why, size_t cap)
{
    int t = template_ahead(x);
    if (t < 0 || x->q->caps->both_gemms)
        return false;
    for (int op = 0; op < MF_NODE_N_; op++) {
        if (!has(x->a, op) || x->g->node[op].kind == MF_NODE_INDEX || has(x->q->caps->prologue, op))
            continue;
        mf_format(
            why, cap,
            "%s in front of %s would run while rows of %lld values are loaded, which these kernels do not do",
            name(op), name(t), (long long)x->g->node[op].cols);
        return true;
    }
    return false;
}

static bool single_use(const struct pair *x, char *why, size_t cap)
{
    int user = x->p < 0 ? -1 : other_user(x);
    if (user < 0 || x->g->node[x->p].kind == MF_NODE_INDEX)
        return false;
    mf_format(why, cap,
              "what %s gives (%.0f bytes) is read by %s too, and would have to be written all the same",
              name(x->p), x->g->node[x->p].bytes, name(user));
    return true;
}

/* A prologue runs once for each tile of columns: its inputs are read as often. */
static bool prologue_bytes(const struct pair *x, char *why, size_t cap)
{
    if (x->p < 0 || x->g->node[x->c].kind != MF_NODE_TEMPLATE || x->q->caps->block_n <= 0 ||
        x->g->node[x->p].kind == MF_NODE_COPY || x->g->node[x->p].kind == MF_NODE_FOREACH ||
        x->q->caps->both_gemms) /* a weight's columns are each of one tile */
        return false;
    const struct mf_node *p = &x->g->node[x->p], *c = &x->g->node[x->c];
    double tiles = (double)((c->cols + x->q->caps->block_n - 1) / x->q->caps->block_n), in = 0;
    for (int i = 0; i < p->n_reads; i++)
        in += has(x->g->ops, p->reads[i].buffer) ? x->g->node[p->reads[i].buffer].bytes
                                                 : 2 * (double)x->shape->token * (double)p->cols;
    double fused = in * tiles, apart = in + p->bytes + p->bytes * tiles;
    mf_format(
        why, cap,
        "%s inside %s reads %.0f bytes for %.0f tiles of columns where apart they read %.0f: more than 1.1 "
        "times as much",
        name(x->p), name(x->c), fused, tiles, apart);
    return fused > 1.1 * apart;
}

/* Ops of b that run on a GEMM's sums in a: up to the next GEMM, if b has one. */
static mf_ops behind_template(const struct pair *x)
{
    if (x->p < 0 || template_of(x->g, x->a) < 0 || x->g->node[x->c].kind == MF_NODE_TEMPLATE)
        return 0;
    return template_of(x->g, x->b) < 0 ? x->b : MF_OP_BIT(x->c);
}

static bool epilogue(const struct pair *x, char *why, size_t cap)
{
    mf_ops behind = behind_template(x);
    for (int op = 0; op < MF_NODE_N_; op++) {
        if (!has(behind, op) || has(x->q->caps->epilogue, op))
            continue;
        mf_format(
            why, cap,
            "%s behind %s would run on sums of %lld columns before they are stored, which these kernels "
            "do not do",
            name(op), name(template_of(x->g, x->a)), (long long)x->g->node[x->p].cols);
        return true;
    }
    return false;
}

/* What one writes and the other reads has to be the same rows. */
static bool rows_match(const struct pair *x, char *why, size_t cap)
{
    static const char *const spaces[] = {"token", "slot", "sorted", "index", "expert"};
    if (x->p < 0)
        return false;
    const struct mf_node *c = &x->g->node[x->c];
    for (int i = 0; i < c->n_reads; i++) {
        if (c->reads[i].buffer != x->p || c->reads[i].rows == x->g->node[x->p].writes)
            continue;
        mf_format(why, cap, "%s writes rows in %s order, %s reads %lld columns of them in %s order",
                  name(x->p), spaces[x->g->node[x->p].writes], name(x->c), (long long)x->g->node[x->p].cols,
                  spaces[c->reads[i].rows]);
        return true;
    }
    return false;
}

static bool row_whole(const struct pair *x, char *why, size_t cap)
{
    mf_ops behind = x->q->caps->whole_rows ? 0 : behind_template(x);
    for (int op = 0; op < MF_NODE_N_; op++) {
        if (!has(behind, op) || x->g->node[op].kind != MF_NODE_ROW)
            continue;
        mf_format(why, cap, "%s needs the largest of a row of %lld values, a tile ends with %lld of them",
                  name(op), (long long)x->g->node[op].cols, (long long)x->q->caps->block_n);
        return true;
    }
    return false;
}

static bool all_rows(const struct pair *x, char *why, size_t cap)
{
    for (int op = 0; op < MF_NODE_N_; op++) {
        if (!has(x->b | x->a, op) || x->g->node[op].kind != MF_NODE_ALL)
            continue;
        mf_format(
            why, cap,
            "%s draws one scale from all %lld rows, and is known when the last of them is done; no other "
            "op can "
            "be in its kernel",
            name(op), (long long)(x->shape->token * (op == MF_OP_QUANT2 ? x->shape->topk : 1)));
        return !x->q->caps->all_rows;
    }
    return false;
}

static bool mutation(const struct pair *x, char *why, size_t cap)
{
    if (x->p < 0 || x->g->node[x->c].kind != MF_NODE_SCATTER)
        return false;
    mf_format(
        why, cap,
        "%s adds %d rows into one of the output, which several tiles write: it takes a kernel that adds "
        "atomically into zeros or owns its columns",
        name(x->c), x->shape->topk);
    return !x->q->caps->accumulates;
}

static bool block_memory(const struct pair *x, char *why, size_t cap)
{
    if (x->p < 0 || x->q->caps->block_bytes <= 0 || x->g->node[x->p].kind == MF_NODE_FOREACH)
        return false; /* a weight is no block's rows: it passes piece by piece */
    double bytes = 4.0 * x->q->block_m * (double)x->g->node[x->p].cols;
    mf_format(why, cap, "%d rows of %lld values between %s and %s are %.0f bytes, %.0f stay inside a kernel",
              x->q->block_m, (long long)x->g->node[x->p].cols, name(x->p), name(x->c), bytes,
              x->q->caps->block_bytes);
    return bytes > x->q->caps->block_bytes;
}

/* The length of the lists if all of these nodes are such; 0: they are not. */
static int64_t list_of(const struct mf_graph *g, mf_ops ops)
{
    int64_t length = 0;
    for (int op = 0; op < MF_NODE_N_; op++) {
        if (has(ops, op) && g->node[op].kind != MF_NODE_FOREACH)
            return 0;
        if (has(ops, op))
            length = g->node[op].list;
    }
    return length;
}

static bool lists_alike(const struct pair *x, char *why, size_t cap)
{
    int64_t a = list_of(x->g, x->a), b = list_of(x->g, x->b);
    if (a == 0 || b == 0)
        return false;
    mf_format(why, cap,
              "one is a list of %lld matrices and the other of %lld: side by side they take one length and a "
              "kernel "
              "that goes through more than one list",
              (long long)a, (long long)b);
    return a != b || !x->q->caps->lists;
}

/* Two lists have nothing in common but their launch. */
static bool horizontal(const struct pair *x, char *why, size_t cap)
{
    if (list_of(x->g, x->a) > 0 && list_of(x->g, x->b) > 0)
        return false;
    char a[NODES_TEXT_MAX], b[NODES_TEXT_MAX];
    print_nodes(x->a, a);
    print_nodes(x->b, b);
    mf_format(why, cap, "%s and %s have neither a result nor an input in common: 0 bytes would be saved", a,
              b);
    return x->p < 0 && x->shared < 0;
}

/* From the kind of node, over what is general, to the family. */
/* clang-format off */
#define RULES(X)                                                            \
    X(same, "same", "is no op in both?")                                                \
    X(external, "external", "is neither a vendor's call?")                              \
    X(order, "order", "does the first run before the second?")                          \
    X(cycle, "cycle", "is nothing between them?")                                       \
    X(lists_alike, "foreach", "if lists, are they of one length?")                             \
    X(horizontal, "horizontal", "do they share a result or an input?")                  \
    X(rows_match, "index", "does one read the rows that the other writes?")             \
    X(no_sort, "sort", "can the kernel make its own order?")                            \
    X(two_gemms, "two_gemms", "can it hold both GEMMs?")                                \
    X(prologue, "prologue", "can the GEMM take it in front?")                           \
    X(single_use, "single_use", "does nobody else read what is between?")               \
    X(prologue_bytes, "prologue_bytes", "does it read no more than 1.1 times as much?") \
    X(epilogue, "epilogue", "can the GEMM take it behind?")                             \
    X(row_whole, "row_reduction", "are whole rows at hand?")                            \
    X(all_rows, "mixed_order", "is every row at hand?")                                 \
    X(mutation, "mutation", "may it add into the output?")                              \
    X(tokens, "tokens", "are tokens few enough?")                                       \
    X(block_memory, "memory", "does what is between fit inside?")
#define RULE(fn, name, what) {name, what},
#define OBJECTS(fn, name, what) fn,
static const struct mf_fusion_rule rules[] = {RULES(RULE)};
static const rule_fn objections[] = {RULES(OBJECTS)};
/* clang-format on */
#define N_RULES MF_ARRAY_LEN(rules)

size_t mf_fusion_rules(const struct mf_fusion_rule **ret)
{
    *ret = rules;
    return N_RULES;
}

static struct pair look(const struct mf_graph *g, const struct mf_shape *shape,
                        const struct mf_fusion_question *q, mf_ops a, mf_ops b)
{
    struct pair x = {g, shape, q, a, b, -1, -1, -1, 0};
    for (int c = 0; c < MF_NODE_N_; c++) {
        for (int i = 0; has(b, c) && i < g->node[c].n_reads; i++) {
            int buffer = g->node[c].reads[i].buffer;
            if (!has(a, buffer))
                continue;
            /* the weightiest result between them stands for the pair; it is neither written nor read again */
            x.saved += 2 * g->node[buffer].bytes;
            if (x.p < 0 || g->node[buffer].bytes > g->node[x.p].bytes) {
                x.p = buffer;
                x.c = c;
            }
        }
    }
    for (int m = 0; m < MF_NODE_N_ && x.p < 0; m++) {
        for (int n = 0; n < MF_NODE_N_; n++) {
            for (int i = 0; has(a, m) && has(b, n) && i < g->node[m].n_reads; i++) {
                for (int j = 0; j < g->node[n].n_reads; j++) {
                    if (g->node[m].reads[i].buffer == g->node[n].reads[j].buffer)
                        x.shared = g->node[m].reads[i].buffer;
                }
            }
        }
    }
    if (x.p < 0 && x.shared >= 0)
        x.saved =
            has(g->ops, x.shared) ? g->node[x.shared].bytes : 8.0 * (double)(shape->token * shape->topk);
    return x;
}

static bool judge(const struct pair *x, struct mf_fusion_verdict *ret)
{
    const struct mf_fusion_forced *forced = x->q->forced;

    *ret = (struct mf_fusion_verdict){.saved = x->saved};
    for (size_t i = 0; i < N_RULES; i++) {
        bool no = objections[i](x, ret->reason, sizeof(ret->reason));
        if (forced && i == forced->rule)
            no = forced->objects;
        if (!no)
            continue;
        ret->rule = rules[i].name;
        return false;
    }
    ret->reason[0] = '\0';
    return true;
}

bool mf_fusion_pair(const struct mf_graph *g, const struct mf_shape *shape,
                    const struct mf_fusion_question *q, mf_ops a, mf_ops b, struct mf_fusion_verdict *ret)
{
    struct pair x = look(g, shape, q, a, b);
    return judge(&x, ret);
}

/* --- many ------------------------------------------------------------------------------------------------------- */

struct candidate {
    int a, b;
    double saved;
};

/* Runs rounds over the sets until none can be fused; -> how many sets are left, in the order they run. */
static int fuse(const struct mf_graph *g, const struct mf_shape *shape, const struct mf_fusion_question *q,
                mf_ops *sets, int n, struct mf_fusion_verdict *ret_no, mf_fusion_refused refuse,
                void *context)
{
    for (;;) {
        struct candidate best = {-1, -1, -1};
        double no_saved = -1;
        int pairs = 0;
        for (int i = 0; i < n; i++) {
            for (int j = i + 1; j < n && pairs < MF_FUSION_PAIRS_MAX; j++, pairs++) {
                bool forward = !mf_graph_reaches(g, sets[j], sets[i], g->ops);
                struct mf_fusion_verdict v;
                if (mf_fusion_pair(g, shape, q, forward ? sets[i] : sets[j], forward ? sets[j] : sets[i],
                                   &v)) {
                    if (v.saved > best.saved)
                        best = (struct candidate){i, j, v.saved};
                } else {
                    /* a pair that only waits for another to be fused first says little: "cycle" and "horizontal" last */
                    bool waits = strcmp(v.rule, "cycle") == 0 || strcmp(v.rule, "horizontal") == 0;
                    double weight = waits ? 0 : 1 + v.saved;
                    if (weight > no_saved) {
                        no_saved = weight;
                        *ret_no = v;
                    }
                }
            }
        }
        if (best.a < 0)
            break;
        sets[best.a] |= sets[best.b];
        sets[best.b] = sets[--n];
    }
    for (int i = 0; refuse && i < n; i++) {
        for (int j = i + 1; j < n; j++) {
            bool forward = !mf_graph_reaches(g, sets[j], sets[i], g->ops);
            struct mf_fusion_verdict v;
            if (!mf_fusion_pair(g, shape, q, forward ? sets[i] : sets[j], forward ? sets[j] : sets[i], &v))
                refuse(context, forward ? sets[i] : sets[j], forward ? sets[j] : sets[i], &v);
        }
    }
    return n;
}

static int single(mf_ops ops, mf_ops *sets)
{
    int n = 0;
    for (int op = 0; op < MF_NODE_N_; op++) {
        if (has(ops, op))
            sets[n++] = MF_OP_BIT(op);
    }
    return n;
}

double mf_fusion_saved(const struct mf_graph *g, mf_ops ops)
{
    double saved = 0;
    for (int op = 0; op < MF_NODE_N_; op++) {
        bool outside = false;
        for (int user = 0; user < MF_NODE_N_; user++)
            outside |= has(g->ops & ~ops, user) && reads(g, user, MF_OP_BIT(op));
        if (has(ops & g->ops, op) && !outside && op != MF_OP_COMBINE)
            saved += 2 * g->node[op].bytes;
    }
    return saved;
}

bool mf_fusion_allows(const struct mf_shape *shape, const struct mf_fusion_question *q,
                      struct mf_fusion_verdict *ret)
{
    struct mf_graph g;
    mf_ops sets[MF_NODE_N_];
    struct mf_fusion_verdict no = {0};

    mf_graph_of(shape, &g);
    int n = fuse(&g, shape, q, sets, single(q->ops & g.ops, sets), &no, NULL, NULL);
    *ret = n > 1 ? no : (struct mf_fusion_verdict){.saved = mf_fusion_saved(&g, q->ops)};
    return n <= 1;
}

/* The first of some sets that needs none of the others; of sets in a cycle any. */
static int next_to_run(const struct mf_graph *g, const mf_ops *sets, int n)
{
    for (int i = 0; i < n; i++) {
        bool waits = false;
        for (int j = 0; j < n && !waits; j++)
            waits = j != i && mf_graph_reaches(g, sets[j], sets[i], g->ops);
        if (!waits)
            return i;
    }
    return 0;
}

/* Kernels in the order they run: one behind all that it needs. */
static void sort_sets(const struct mf_graph *g, mf_ops *sets, int n)
{
    for (int i = 0; i < n; i++) {
        int next = i + next_to_run(g, sets + i, n - i);
        mf_ops t = sets[i];
        sets[i] = sets[next];
        sets[next] = t;
    }
}

int mf_fusion_rounds(const struct mf_graph *g, const struct mf_shape *shape,
                     const struct mf_fusion_question *q, mf_ops kernels[MF_NODE_N_], mf_fusion_refused refuse,
                     void *context)
{
    struct mf_fusion_verdict no;
    int n = fuse(g, shape, q, kernels, single(q->ops & g->ops, kernels), &no, refuse, context);
    sort_sets(g, kernels, n);
    return n;
}
