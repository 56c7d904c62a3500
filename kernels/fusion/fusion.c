#include "kernels/fusion/fusion.h"

#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "kernels/core/codec.h"
#include "kernels/core/tensors.h"

/* --- the graph ------------------------------------------------------------------------------------ */

static enum mf_node_kind quant_kind(const struct mf_codec *c)
{
    return c->scale == MF_SCALE_PER_TENSOR  ? MF_NODE_ALL
           : c->scale == MF_SCALE_PER_TOKEN ? MF_NODE_ROW
                                            : MF_NODE_POINTWISE;
}

static double stored_bytes(const struct mf_codec *c, double rows, int64_t cols)
{
    return rows * ((double)mf_codec_row_bytes(c, (size_t)cols) +
                   (double)mf_codec_scale_cols(c, (size_t)cols) * c->scale_bytes);
}

static void add_read(struct mf_node *n, int buffer, enum mf_rows rows)
{
    n->reads[n->n_reads++] = (struct mf_access){buffer, rows};
}

/* Adds the node that dequantises a weight before its GEMM. The node is a list of one matrix per expert. */
static void add_dequant(struct mf_graph *g, const struct mf_shape *s, int node, int gemm)
{
    bool first = gemm == MF_OP_GEMM1;
    int64_t rows = first ? mf_gemm1_cols(s) : s->model_dim, cols = first ? s->model_dim : s->inter_dim;
    g->ops |= MF_OP_BIT(node);
    g->node[node] = (struct mf_node){MF_NODE_FOREACH, .writes = MF_ROWS_EXPERT, .cols = cols,
                                     .bytes = 2 * mf_layer_expected_active(s) * (double)rows * (double)cols,
                                     .list_length = s->expert};
    add_read(&g->node[node], first ? MF_BUFFER_W1 : MF_BUFFER_W2, MF_ROWS_EXPERT);
    add_read(&g->node[gemm], node, MF_ROWS_EXPERT);
}

void mf_graph_of(const struct mf_shape *s, struct mf_graph *ret)
{
    struct mf_graph g = {.ops = mf_layer_ops(s)};
    struct mf_codecs codecs = {mf_codec_find(MF_FORMAT_BF16, MF_SCALE_NONE), NULL};
    const char *why;
    double T = (double)s->token, slots = T * s->topk * mf_shape_local_fraction(s);
    int64_t H = s->model_dim, I = s->inter_dim, G = mf_gemm1_cols(s);
    bool quantised = g.ops & MF_OP_BIT(MF_OP_QUANT1), early = s->doweight_stage1;

    (void)mf_codecs_of_shape(s, &codecs, &why);
    int x = quantised ? MF_OP_QUANT1 : MF_BUFFER_X, h = quantised ? MF_OP_QUANT2 : MF_OP_ACT;
    g.node[MF_OP_SORT] =
        (struct mf_node){MF_NODE_INDEX, .writes = MF_ROWS_SORTED, .cols = 2, .bytes = 8 * slots};
    add_read(&g.node[MF_OP_SORT], MF_BUFFER_TOPK, MF_ROWS_WHOLE);
    g.node[MF_OP_QUANT1] = (struct mf_node){quant_kind(codecs.a), .writes = MF_ROWS_TOKEN, .cols = H,
                                            .bytes = stored_bytes(codecs.a, T, H)};
    add_read(&g.node[MF_OP_QUANT1], MF_BUFFER_X, MF_ROWS_TOKEN);
    g.node[MF_OP_GATHER] = (struct mf_node){MF_NODE_COPY, .writes = MF_ROWS_SORTED, .cols = H,
                                            .bytes = stored_bytes(codecs.a, slots, H)};
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
                                            .bytes = stored_bytes(codecs.a, slots, I)};
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
        add_dequant(&g, s, MF_NODE_DEQUANT_W1, MF_OP_GEMM1);
        add_dequant(&g, s, MF_NODE_DEQUANT_W2, MF_OP_GEMM2);
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

/* --- one pair ------------------------------------------------------------------------------------- */

/* a runs before b. Node c of b reads the output of node p of a. In a horizontal pair, no op of b reads a
 * result of a: p and c are -1, and both sets read buffer `shared`. */
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

/* Returns a node outside a and b that reads the output of p, or -1 if there is no such node. */
static int other_reader(const struct pair *x)
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

/* Functions of this type return true and write the reason to `why` if the rule rejects the pair. */
typedef bool (*rule_fn)(const struct pair *x, char *why, size_t cap);

static bool same(const struct pair *x, char *why, size_t cap)
{
    char ops[NODES_TEXT_MAX];
    print_nodes(x->a & x->b, ops);
    mf_format(why, cap, "%s is in both parts: %d ops would run twice", ops, __builtin_popcount(x->a & x->b));
    return (x->a & x->b) != 0;
}

static bool order(const struct pair *x, char *why, size_t cap)
{
    char first[NODES_TEXT_MAX], second[NODES_TEXT_MAX];
    print_nodes(x->b, first);
    print_nodes(x->a, second);
    mf_format(why, cap, "%s must run before %s, which has at least 1 dependency on it", first, second);
    return mf_graph_reaches(x->g, x->b, x->a, x->g->ops);
}

static bool cycle(const struct pair *x, char *why, size_t cap)
{
    mf_ops outside = x->g->ops & ~(x->a | x->b);
    for (int op = 0; op < MF_NODE_N_; op++) {
        if (!has(outside, op) || !mf_graph_reaches(x->g, x->a, MF_OP_BIT(op), outside) ||
            !mf_graph_reaches(x->g, MF_OP_BIT(op), x->b, outside))
            continue;
        mf_format(why, cap,
                  "%s (%.0f bytes) must run between the two parts, so a fused kernel would depend on itself",
                  name(op), x->g->node[op].bytes);
        return true;
    }
    return false;
}

static bool external(const struct pair *x, char *why, size_t cap)
{
    int t = template_of(x->g, x->a | x->b);
    bool alone = __builtin_popcount(x->a | x->b) == 1;
    mf_format(why, cap, "%s is a vendor library call, which can run only 1 of the %d ops",
              t < 0 ? "this kernel" : name(t), __builtin_popcount(x->a | x->b));
    return x->q->caps->external && !alone;
}

static bool tokens(const struct pair *x, char *why, size_t cap)
{
    mf_format(why, cap, "token is %lld: the fused kernel supports up to %lld tokens",
              (long long)x->shape->token, (long long)x->q->caps->tokens_max);
    return x->q->caps->tokens_max > 0 && x->shape->token > x->q->caps->tokens_max;
}

static bool no_sort(const struct pair *x, char *why, size_t cap)
{
    mf_format(
        why, cap,
        "every block needs the sorted order of all %lld slots: these kernels take this order as an input",
        (long long)(x->shape->token * x->shape->topk));
    return has(x->a | x->b, MF_OP_SORT) && !x->q->caps->sorts;
}

static bool two_gemms(const struct pair *x, char *why, size_t cap)
{
    int first = template_of(x->g, x->a), second = template_of(x->g, x->b);
    mf_format(why, cap,
              "gemm2 needs whole rows of %d values, but a gemm1 tile has %lld columns: one launch "
              "requires a kernel that synchronises between the GEMMs",
              x->shape->inter_dim, (long long)x->q->caps->block_n);
    return first >= 0 && second >= 0 && !x->q->caps->both_gemms;
}

/* Returns the GEMM of b that reads the output of a, directly or through ops of b, so that a can be its
 * prologue. Returns -1 if there is no such GEMM. */
static int prologue_target(const struct pair *x)
{
    int t = template_of(x->g, x->b);
    /* no op of b reads a result of a, b has no GEMM, or a has one */
    if (x->p < 0 || t < 0 || template_of(x->g, x->a) >= 0)
        return -1;
    return t == x->c || mf_graph_reaches(x->g, MF_OP_BIT(x->c), MF_OP_BIT(t), x->b) ? t : -1;
}

/* Rejects the pair unless every op of a may be in the prologue of the GEMM. */
static bool prologue(const struct pair *x, char *why, size_t cap)
{
    int t = prologue_target(x);
    if (t < 0 || x->q->caps->both_gemms)
        return false;
    for (int op = 0; op < MF_NODE_N_; op++) {
        if (!has(x->a, op) || x->g->node[op].kind == MF_NODE_INDEX || has(x->q->caps->prologue, op))
            continue;
        mf_format(
            why, cap,
            "%s as a prologue of %s would run while rows of %lld values are loaded, which these kernels "
            "do not support",
            name(op), name(t), (long long)x->g->node[op].cols);
        return true;
    }
    return false;
}

static bool single_use(const struct pair *x, char *why, size_t cap)
{
    int user = x->p < 0 ? -1 : other_reader(x);
    if (user < 0 || x->g->node[x->p].kind == MF_NODE_INDEX)
        return false;
    mf_format(why, cap,
              "the output of %s (%.0f bytes) is also read by %s, so it must be written to memory anyway",
              name(x->p), x->g->node[x->p].bytes, name(user));
    return true;
}

/* A prologue runs once for each tile of columns of the GEMM, and reads its inputs each time. */
static bool prologue_bytes(const struct pair *x, char *why, size_t cap)
{
    if (x->p < 0 || x->g->node[x->c].kind != MF_NODE_TEMPLATE || x->q->caps->block_n <= 0 ||
        x->g->node[x->p].kind == MF_NODE_COPY || x->g->node[x->p].kind == MF_NODE_FOREACH ||
        /* a weight is read only once, because each of its columns belongs to one tile */
        x->q->caps->both_gemms)
        return false;
    const struct mf_node *p = &x->g->node[x->p], *c = &x->g->node[x->c];
    double tiles = (double)((c->cols + x->q->caps->block_n - 1) / x->q->caps->block_n), in = 0;
    for (int i = 0; i < p->n_reads; i++)
        in += has(x->g->ops, p->reads[i].buffer) ? x->g->node[p->reads[i].buffer].bytes
                                                 : 2 * (double)x->shape->token * (double)p->cols;
    double fused = in * tiles, apart = in + p->bytes + p->bytes * tiles;
    mf_format(why, cap,
              "%s fused into %s moves %.0f bytes for %.0f column tiles, more than 1.1 times "
              "the %.0f bytes of separate kernels",
              name(x->p), name(x->c), fused, tiles, apart);
    return fused > 1.1 * apart;
}

/* Returns the ops of b that run on the accumulators of a GEMM in a: all ops of b, or only c if b also has a
 * GEMM. */
static mf_ops epilogue_ops(const struct pair *x)
{
    if (x->p < 0 || template_of(x->g, x->a) < 0 || x->g->node[x->c].kind == MF_NODE_TEMPLATE)
        return 0;
    return template_of(x->g, x->b) < 0 ? x->b : MF_OP_BIT(x->c);
}

static bool epilogue(const struct pair *x, char *why, size_t cap)
{
    mf_ops behind = epilogue_ops(x);
    for (int op = 0; op < MF_NODE_N_; op++) {
        if (!has(behind, op) || has(x->q->caps->epilogue, op))
            continue;
        mf_format(why, cap,
                  "%s as an epilogue of %s would run on accumulators of %lld columns before the store, which "
                  "these kernels do not support",
                  name(op), name(template_of(x->g, x->a)), (long long)x->g->node[x->p].cols);
        return true;
    }
    return false;
}

/* Rejects the pair unless the reader uses the row order of the writer. */
static bool rows_match(const struct pair *x, char *why, size_t cap)
{
    static const char *const spaces[] = {"token", "slot", "sorted", "index", "expert"};
    if (x->p < 0)
        return false;
    const struct mf_node *c = &x->g->node[x->c];
    for (int i = 0; i < c->n_reads; i++) {
        if (c->reads[i].buffer != x->p || c->reads[i].rows == x->g->node[x->p].writes)
            continue;
        mf_format(why, cap, "%s writes rows in %s order, but %s reads these rows of %lld columns in %s order",
                  name(x->p), spaces[x->g->node[x->p].writes], name(x->c), (long long)x->g->node[x->p].cols,
                  spaces[c->reads[i].rows]);
        return true;
    }
    return false;
}

static bool row_whole(const struct pair *x, char *why, size_t cap)
{
    mf_ops behind = x->q->caps->whole_rows ? 0 : epilogue_ops(x);
    for (int op = 0; op < MF_NODE_N_; op++) {
        if (!has(behind, op) || x->g->node[op].kind != MF_NODE_ROW)
            continue;
        mf_format(why, cap, "%s needs the maximum of a row of %lld values, but a tile has %lld columns",
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
        mf_format(why, cap,
                  "%s computes one scale from all %lld rows and knows it only after the last row, so "
                  "no other op can be in its kernel",
                  name(op), (long long)(x->shape->token * (op == MF_OP_QUANT2 ? x->shape->topk : 1)));
        return !x->q->caps->all_rows;
    }
    return false;
}

static bool mutation(const struct pair *x, char *why, size_t cap)
{
    if (x->p < 0 || x->g->node[x->c].kind != MF_NODE_SCATTER)
        return false;
    mf_format(why, cap,
              "%s adds %d rows into one output row, which several tiles write, so the kernel must add "
              "atomically into zeroed memory or own the columns",
              name(x->c), x->shape->topk);
    return !x->q->caps->accumulates;
}

static bool block_memory(const struct pair *x, char *why, size_t cap)
{
    if (x->p < 0 || x->q->caps->block_bytes <= 0 || x->g->node[x->p].kind == MF_NODE_FOREACH)
        return false; /* a weight takes no room in a block's rows, because the kernel streams it */
    double bytes = 4.0 * x->q->block_m * (double)x->g->node[x->p].cols;
    mf_format(why, cap, "%d rows of %lld values between %s and %s take %.0f bytes, but a block can hold %.0f",
              x->q->block_m, (long long)x->g->node[x->p].cols, name(x->p), name(x->c), bytes,
              x->q->caps->block_bytes);
    return bytes > x->q->caps->block_bytes;
}

/* Returns the number of matrices of these nodes if all nodes are lists, otherwise 0. */
static int64_t common_list_length(const struct mf_graph *g, mf_ops ops)
{
    int64_t length = 0;
    for (int op = 0; op < MF_NODE_N_; op++) {
        if (has(ops, op) && g->node[op].kind != MF_NODE_FOREACH)
            return 0;
        if (has(ops, op))
            length = g->node[op].list_length;
    }
    return length;
}

static bool same_list_length(const struct pair *x, char *why, size_t cap)
{
    int64_t a = common_list_length(x->g, x->a), b = common_list_length(x->g, x->b);
    if (a == 0 || b == 0)
        return false;
    mf_format(why, cap,
              "the lists have %lld and %lld matrices: one launch requires equal lengths and a "
              "kernel that processes several lists",
              (long long)a, (long long)b);
    return a != b || !x->q->caps->lists;
}

/* Does not apply to two lists, which share only their launch. */
static bool horizontal(const struct pair *x, char *why, size_t cap)
{
    if (common_list_length(x->g, x->a) > 0 && common_list_length(x->g, x->b) > 0)
        return false;
    char a[NODES_TEXT_MAX], b[NODES_TEXT_MAX];
    print_nodes(x->a, a);
    print_nodes(x->b, b);
    mf_format(why, cap, "%s and %s share no result and no input, so fusing saves 0 bytes", a, b);
    return x->p < 0 && x->shared < 0;
}

/* Rules on node kinds come first, then general rules, then rules on the capabilities of the family. */
/* clang-format off */
#define RULES(X)                                                                            \
    X(same, "same", "are the two op sets disjoint?")                                        \
    X(external, "external", "is neither part a vendor library call?")                       \
    X(order, "order", "does the first part run before the second?")                         \
    X(cycle, "cycle", "is there no op between the two parts?")                              \
    X(same_list_length, "foreach", "do two lists have the same length?")                    \
    X(horizontal, "horizontal", "do the parts share a result or an input?")                 \
    X(rows_match, "index", "do writer and reader use the same row order?")                  \
    X(no_sort, "sort", "can the kernel sort its slots itself?")                             \
    X(two_gemms, "two_gemms", "can one launch run both GEMMs?")                             \
    X(prologue, "prologue", "does the GEMM support this prologue?")                         \
    X(single_use, "single_use", "is the intermediate result read only here?")               \
    X(prologue_bytes, "prologue_bytes", "does fusing move at most 1.1 times the bytes?")    \
    X(epilogue, "epilogue", "does the GEMM support this epilogue?")                         \
    X(row_whole, "row_reduction", "does the kernel hold whole rows?")                       \
    X(all_rows, "mixed_order", "does the kernel hold all rows?")                            \
    X(mutation, "mutation", "can the kernel accumulate into the output?")                   \
    X(tokens, "tokens", "is the token count within the kernel's limit?")                    \
    X(block_memory, "memory", "do the intermediate rows fit into one block?")
#define RULE(fn, name, question) {name, question},
#define CHECK(fn, name, question) fn,
static const struct mf_fusion_rule rules[] = {RULES(RULE)};
static const rule_fn rule_checks[] = {RULES(CHECK)};
/* clang-format on */
#define N_RULES MF_ARRAY_LEN(rules)

size_t mf_fusion_rules(const struct mf_fusion_rule **ret)
{
    *ret = rules;
    return N_RULES;
}

static struct pair make_pair(const struct mf_graph *g, const struct mf_shape *shape,
                             const struct mf_fusion_question *q, mf_ops a, mf_ops b)
{
    struct pair x = {g, shape, q, a, b, -1, -1, -1, 0};
    for (int c = 0; c < MF_NODE_N_; c++) {
        for (int i = 0; has(b, c) && i < g->node[c].n_reads; i++) {
            int buffer = g->node[c].reads[i].buffer;
            if (!has(a, buffer))
                continue;
            /* The largest intermediate result represents the pair. `saved` counts the write and the read of
             * every intermediate result. */
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

static bool apply_rules(const struct pair *x, struct mf_fusion_verdict *ret)
{
    const struct mf_fusion_forced *forced = x->q->forced;

    *ret = (struct mf_fusion_verdict){.saved = x->saved};
    for (size_t i = 0; i < N_RULES; i++) {
        bool rejected = rule_checks[i](x, ret->reason, sizeof(ret->reason));
        if (forced && i == forced->rule)
            rejected = forced->rejects;
        if (!rejected)
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
    struct pair x = make_pair(g, shape, q, a, b);
    return apply_rules(&x, ret);
}

/* --- fusion rounds -------------------------------------------------------------------------------- */

struct best_pair {
    int a, b;
    double saved;
};

/* Fuses the sets in rounds until no pair is allowed. Returns the number of remaining sets. *ret_no is the
 * verdict on the rejected pair that would have saved the most traffic. */
static int fuse(const struct mf_graph *g, const struct mf_shape *shape, const struct mf_fusion_question *q,
                mf_ops *sets, int n, struct mf_fusion_verdict *ret_no, mf_fusion_refused refuse,
                void *context)
{
    for (;;) {
        struct best_pair best = {-1, -1, -1};
        double no_saved = -1;
        int pairs = 0;
        for (int i = 0; i < n; i++) {
            for (int j = i + 1; j < n && pairs < MF_FUSION_PAIRS_MAX; j++, pairs++) {
                bool forward = !mf_graph_reaches(g, sets[j], sets[i], g->ops);
                struct mf_fusion_verdict v;
                if (mf_fusion_pair(g, shape, q, forward ? sets[i] : sets[j], forward ? sets[j] : sets[i],
                                   &v)) {
                    if (v.saved > best.saved)
                        best = (struct best_pair){i, j, v.saved};
                } else {
                    /* A pair rejected by "cycle" or "horizontal" may be allowed after another fusion, so it
                     * has the lowest weight */
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

static int split_ops(mf_ops ops, mf_ops *sets)
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
    int n = fuse(&g, shape, q, sets, split_ops(q->ops & g.ops, sets), &no, NULL, NULL);
    *ret = n > 1 ? no : (struct mf_fusion_verdict){.saved = mf_fusion_saved(&g, q->ops)};
    return n <= 1;
}

/* Returns the index of the first set that depends on no other set, or 0 if the sets form a cycle. */
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

/* Sorts kernels so that each kernel comes after the kernels whose results it reads. */
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
    int n = fuse(g, shape, q, kernels, split_ops(q->ops & g->ops, kernels), &no, refuse, context);
    sort_sets(g, kernels, n);
    return n;
}
