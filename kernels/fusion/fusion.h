/* Decides which ops may be fused into one kernel. Families call it before they offer a step; `moefarm why`
 * prints its reasons.
 *
 * The layer is a graph. An op is a node that reads and writes buffers. Each buffer has a row space (token,
 * slot, sorted, expert, or whole for an index), a column count and a size. Dequantising each weight is a node
 * too, although it is not an op, because some steps do it before a GEMM. These nodes are lists with one
 * matrix per expert (Inductor's foreach kind; its grouped kind is not needed).
 *
 * A table of rules judges each pair of op sets. The first rule that rejects the pair gives the reason, with
 * operands and numbers. The order of the rules follows PyTorch Inductor's Scheduler.can_fuse: node kinds,
 * then dependencies, then prologue and epilogue of a template (a GEMM), then whether the reader's rows match
 * the writer's, and last the capabilities of the family. A pair's score is the memory traffic that it saves,
 * in bytes. User restrictions are not rules, because batches share an enumeration: server/farm/task.c applies
 * no_fuse and fuse_saves of each batch.
 *
 *     struct mf_fusion_verdict v;
 *     if (!mf_fusion_allows(&shape, &question, &v))
 *         offer->reject(offer, family, kernel, v.rule, "%s", v.reason);
 *
 * A family only states its capabilities in struct mf_fusion_caps. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/moe/layer.h"
#include "common/moe/shape.h"
#include "common/moe/status.h"

enum mf_node_kind {
    MF_NODE_INDEX,     /* writes the order that other nodes index by */
    MF_NODE_COPY,      /* copies rows by an index */
    MF_NODE_POINTWISE, /* elementwise, or within a group of columns */
    MF_NODE_ROW,       /* reduces a whole row before it writes the row */
    MF_NODE_ALL,       /* reduces all rows before it writes the first row */
    MF_NODE_TEMPLATE,  /* a GEMM: tiles of rows and columns */
    MF_NODE_SCATTER,   /* adds several rows into one and so modifies the output in place */
    MF_NODE_FOREACH,   /* elementwise over a list of independent matrices */
};

enum mf_rows { MF_ROWS_TOKEN, MF_ROWS_SLOT, MF_ROWS_SORTED, MF_ROWS_WHOLE, MF_ROWS_EXPERT };

#define MF_NODE_READS_MAX 3

/* Nodes that are not ops: bits of mf_ops after the ops. A pipeline need not cover these nodes. They exist
 * only for quantised weights. */
enum { MF_NODE_DEQUANT_W1 = MF_OP_N_, MF_NODE_DEQUANT_W2, MF_NODE_N_ };

/* Buffer numbers: the output of a node has the number of the node; the inputs of the layer follow. */
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
    int64_t list_length; /* number of matrices of a list */
};

struct mf_graph {
    mf_ops ops;
    struct mf_node node[MF_NODE_N_];
};

/* Builds the graph of a shape's layer. */
void mf_graph_of(const struct mf_shape *shape, struct mf_graph *ret);
/* True if a path leads from an op of `from` to an op of `to` through ops of `through` only. */
bool mf_graph_reaches(const struct mf_graph *g, mf_ops from, mf_ops to, mf_ops through);

/* Capabilities of a family's kernels. */
struct mf_fusion_caps {
    mf_ops prologue; /* ops that can run while a GEMM loads its rows */
    mf_ops epilogue; /* ops that can run on a GEMM's accumulators before the store */
    bool external;   /* vendor library call, which fuses nothing */
    /* holds whole rows after a GEMM (by a barrier, or because a tile is as wide as the row) */
    bool whole_rows;
    bool all_rows;      /* holds all rows of the layer */
    bool both_gemms;    /* runs both GEMMs in one launch */
    bool accumulates;   /* true: adds into the output; false: is the only writer of its output columns */
    bool sorts;         /* sorts its slots itself */
    bool lists;         /* processes several lists in one launch */
    int64_t tokens_max; /* 0: no limit */
    double block_bytes; /* capacity for one block's intermediate rows; 0: no limit */
    int64_t block_n;    /* columns per tile; 0: all columns */
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

/* Returns the memory traffic in bytes that one kernel saves compared with one kernel per op. Results that
 * only these ops read are neither written nor read. */
double mf_fusion_saved(const struct mf_graph *g, mf_ops ops);
/* True if repeated fusion of pairs, highest score first, joins all ops into one kernel. */
bool mf_fusion_allows(const struct mf_shape *shape, const struct mf_fusion_question *q,
                      struct mf_fusion_verdict *ret);
/* Judges one pair of op sets of a graph. */
bool mf_fusion_pair(const struct mf_graph *g, const struct mf_shape *shape,
                    const struct mf_fusion_question *q, mf_ops a, mf_ops b, struct mf_fusion_verdict *ret);

/* Fuses pairs, highest score first, until no pair is allowed. Tries at most MF_FUSION_PAIRS_MAX pairs per
 * round. kernels: the resulting op sets in execution order. Calls `refuse` for each pair that the last round
 * rejects. Returns the number of kernels. */
#define MF_FUSION_PAIRS_MAX 64
typedef void (*mf_fusion_refused)(void *context, mf_ops a, mf_ops b, const struct mf_fusion_verdict *v);
int mf_fusion_rounds(const struct mf_graph *g, const struct mf_shape *shape,
                     const struct mf_fusion_question *q, mf_ops kernels[MF_NODE_N_], mf_fusion_refused refuse,
                     void *context);

/* The rules, in order of evaluation. */
struct mf_fusion_rule {
    const char *name;
    /* yes/no question that the rule answers, as text; the rule rejects if the answer is no */
    const char *question;
};
size_t mf_fusion_rules(const struct mf_fusion_rule **ret);
