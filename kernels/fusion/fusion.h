/* Decides which ops may be fused into one kernel. Families call mf_fusion_allows before they offer a step;
 * `moefarm why` prints its reasons.
 *
 * The layer is a graph. An op is a node that reads and writes buffers. Each buffer has a row space (token,
 * slot, sorted, expert, or whole for an index), a column count and a size. Dequantising a weight is also a
 * node, although it is not an op, because some steps dequantise before a GEMM. Such a node is a list with one
 * matrix per expert (the foreach kind of PyTorch Inductor).
 *
 * A table of rules decides for each pair of op sets whether the pair may be fused. The first rule that
 * rejects the pair gives the reason, with operands and numbers. The order of the rules follows PyTorch
 * Inductor's Scheduler.can_fuse: node kinds, then dependencies, then prologue and epilogue of a template (a
 * GEMM), then whether the rows of the reader match the rows of the writer, and last the capabilities of the
 * family. A pair's score is the memory traffic that it saves, in bytes. A user's restrictions no_fuse and
 * fuse_saves are not rules, because they differ between batches that share an enumeration; server/farm/task.c
 * applies them.
 *
 *     struct mf_fusion_verdict v;
 *     if (!mf_fusion_allows(&shape, &question, &v))
 *         offer->reject(offer, family, kernel, v.rule, "%s", v.reason);
 *
 * A family describes its capabilities in struct mf_fusion_caps. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/moe/layer.h"
#include "common/moe/shape.h"
#include "common/moe/status.h"

enum mf_node_kind {
    MF_NODE_INDEX,     /* writes an index: the order of rows for other nodes */
    MF_NODE_COPY,      /* copies rows by an index */
    MF_NODE_POINTWISE, /* computes each element from one element or one group of columns */
    MF_NODE_ROW,       /* reduces a whole row before it writes the row */
    MF_NODE_ALL,       /* reduces all rows before it writes any row */
    MF_NODE_TEMPLATE,  /* a GEMM, computed in tiles of rows and columns */
    MF_NODE_SCATTER,   /* adds several rows into one and so modifies the output in place */
    MF_NODE_FOREACH,   /* elementwise on a list of independent matrices */
};

enum mf_rows { MF_ROWS_TOKEN, MF_ROWS_SLOT, MF_ROWS_SORTED, MF_ROWS_WHOLE, MF_ROWS_EXPERT };

#define MF_NODE_READS_MAX 3

/* Nodes that are not ops. Their bits in mf_ops follow the bits of the ops. A pipeline need not cover these
 * nodes, which exist only for quantised weights. */
enum { MF_NODE_DEQUANT_W1 = MF_OP_N_, MF_NODE_DEQUANT_W2, MF_NODE_N_ };

/* Buffer numbers. The output of a node has the number of the node. The numbers of the layer's inputs follow.
 */
enum { MF_BUFFER_X = MF_NODE_N_, MF_BUFFER_TOPK, MF_BUFFER_W1, MF_BUFFER_W2, MF_BUFFER_N_ };

struct mf_access {
    int buffer;
    enum mf_rows rows;
};

struct mf_node {
    enum mf_node_kind kind;
    int n_reads;
    struct mf_access reads[MF_NODE_READS_MAX];
    enum mf_rows writes; /* row space of the node's output */
    int64_t cols;        /* columns of the output */
    double bytes;        /* size of the output without padding */
    int64_t list_length; /* MF_NODE_FOREACH: number of matrices */
};

struct mf_graph {
    mf_ops ops;
    struct mf_node node[MF_NODE_N_];
};

/* Builds the graph of a shape's layer. */
void mf_graph_of(const struct mf_shape *shape, struct mf_graph *ret);
/* True if there is a path from an op of `from` to an op of `to` whose inner nodes are all in `through`. */
bool mf_graph_reaches(const struct mf_graph *g, mf_ops from, mf_ops to, mf_ops through);

/* Capabilities of a family's kernels. For a flag, the comment describes the value true. */
struct mf_fusion_caps {
    mf_ops prologue; /* ops that a GEMM can apply while it loads its rows */
    mf_ops epilogue; /* ops that a GEMM can apply to its accumulators before it stores them */
    bool external;   /* calls a vendor library, which can fuse nothing */
    /* holds whole output rows of a GEMM, after a barrier or because a tile is as wide as the row */
    bool whole_rows;
    bool all_rows;      /* holds all rows of the layer */
    bool both_gemms;    /* runs both GEMMs in one launch */
    bool accumulates;   /* true: adds into the output; false: is the only writer of its output columns */
    bool sorts;         /* sorts the slots itself */
    bool lists;         /* processes several lists of matrices in one launch */
    int64_t tokens_max; /* maximum token count; 0: no limit */
    double block_bytes; /* bytes available for the intermediate rows of one block; 0: no limit */
    int64_t block_n;    /* columns of a tile; 0: all columns */
};

/* Overrides the result of one rule, for tests. */
struct mf_fusion_forced {
    size_t rule;  /* index into mf_fusion_rules() */
    bool rejects; /* true: the rule always rejects; false: the rule never rejects */
};

struct mf_fusion_question {
    mf_ops ops; /* ops of the fused kernel */
    int32_t block_m;
    const struct mf_fusion_caps *caps;
    const struct mf_fusion_forced *forced; /* NULL except in tests */
};

struct mf_fusion_verdict {
    const char *rule; /* static text; NULL if allowed */
    char reason[MF_REASON_MAX];
    double saved; /* memory traffic saved by fusing, in bytes */
};

/* Returns the memory traffic in bytes that one kernel for all `ops` saves compared with one kernel per op.
 * The fused kernel neither writes nor reads results that only these ops read. */
double mf_fusion_saved(const struct mf_graph *g, mf_ops ops);
/* True if all ops can be joined into one kernel by repeatedly fusing the allowed pair with the highest score.
 */
bool mf_fusion_allows(const struct mf_shape *shape, const struct mf_fusion_question *q,
                      struct mf_fusion_verdict *ret);
/* Returns whether the op sets a and b of a graph may be fused. */
bool mf_fusion_pair(const struct mf_graph *g, const struct mf_shape *shape,
                    const struct mf_fusion_question *q, mf_ops a, mf_ops b, struct mf_fusion_verdict *ret);

/* Fuses one pair per round, the allowed pair with the highest score, until no pair is allowed. Tries at most
 * MF_FUSION_PAIRS_MAX pairs per round. `kernels` receives the resulting op sets in execution order. Calls
 * `refuse` for each pair that the last round rejects. Returns the number of kernels. */
#define MF_FUSION_PAIRS_MAX 64
typedef void (*mf_fusion_refused)(void *context, mf_ops a, mf_ops b, const struct mf_fusion_verdict *v);
int mf_fusion_rounds(const struct mf_graph *g, const struct mf_shape *shape,
                     const struct mf_fusion_question *q, mf_ops kernels[MF_NODE_N_], mf_fusion_refused refuse,
                     void *context);

/* A rule. mf_fusion_rules() lists the rules in the order in which they are evaluated. */
struct mf_fusion_rule {
    const char *name;
    /* The yes/no question that the rule answers. The rule rejects the pair if the answer is no. */
    const char *question;
};
size_t mf_fusion_rules(const struct mf_fusion_rule **ret);
