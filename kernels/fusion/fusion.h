/* May these ops be one kernel? Asked by every family before it offers a step, and by people who want to know why not.
 *
 * The layer is a graph: an op is a node that reads and writes buffers, each with its row space (token, slot, sorted, or
 * the whole as an index), its columns and its size. Fusing two sets of ops is judged by a table of rules, from the kind of
 * node to what the family can do; the first rule that says no gives the reason, with the operands and their numbers. The
 * shape of it follows PyTorch Inductor's Scheduler.can_fuse: node kinds first, then dependencies, prologue and epilogue of a
 * template (a GEMM), matching of what one writes and the other reads; a pair's score is the bytes of memory traffic that it
 * saves. Decoding the two weights, which is no op but which some step may do in front of a GEMM, are nodes too: lists, one
 * matrix for each expert (Inductor's foreach kind; its grouped kind, nodes that are launched together and never fused, the
 * layer has none of). What people forbid is no rule here: batches share an enumeration, so each has its own no_fuse list and its policy
 * (fuse_saves, in bytes of what a step says it saves) applied to the steps in it (server/farm/task.c).
 *
 *     struct mf_fusion_verdict v;
 *     if (!mf_fusion_allows(&shape, &question, &v))
 *         offer->reject(offer, family, kernel, v.rule, "%s", v.reason);
 *
 * A family says what it can do in a struct of capabilities; it decides nothing else. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/moe/layer.h"
#include "common/moe/shape.h"
#include "common/moe/status.h"

enum mf_node_kind {
    MF_NODE_INDEX,     /* makes an order that others index by */
    MF_NODE_COPY,      /* moves rows by an index */
    MF_NODE_POINTWISE, /* element by element, or within a group of columns */
    MF_NODE_ROW,       /* reduces over a whole row before it writes the row */
    MF_NODE_ALL,       /* reduces over all rows before it writes any */
    MF_NODE_TEMPLATE,  /* a GEMM: tiles of rows and columns */
    MF_NODE_SCATTER,   /* adds several rows into one: the output is mutated */
    MF_NODE_FOREACH,   /* element by element over a list of matrices that know nothing of each other */
};

enum mf_rows { MF_ROWS_TOKEN, MF_ROWS_SLOT, MF_ROWS_SORTED, MF_ROWS_WHOLE, MF_ROWS_EXPERT };

#define MF_NODE_READS_MAX 3

/* Nodes beside the layer's ops, as bits of mf_ops behind theirs: nobody has to cover them. Only weights of codes have them. */
enum { MF_NODE_DEQUANT_W1 = MF_OP_N_, MF_NODE_DEQUANT_W2, MF_NODE_N_ };

/* Buffers are numbered by the node that writes them; inputs of the layer follow. */
enum { MF_BUFFER_X = MF_NODE_N_, MF_BUFFER_TOPK, MF_BUFFER_W1, MF_BUFFER_W2, MF_BUFFER_N_ };

struct mf_access {
    int buffer;
    enum mf_rows rows;
};

struct mf_node {
    enum mf_node_kind kind;
    int n_reads;
    struct mf_access reads[MF_NODE_READS_MAX];
    enum mf_rows writes; /* rows of its own buffer */
    int64_t cols;        /* of what it writes */
    double bytes;        /* of what it writes, padding apart */
    int64_t list;        /* of a list: how long it is */
};

struct mf_graph {
    mf_ops ops;
    struct mf_node node[MF_NODE_N_];
};

/* The layer of a shape as a graph. */
void mf_graph_of(const struct mf_shape *shape, struct mf_graph *ret);
/* Do the ops of `from` reach one of `to`, by way of ops in `through` only? */
bool mf_graph_reaches(const struct mf_graph *g, mf_ops from, mf_ops to, mf_ops through);

/* What kernels of a family can do. */
struct mf_fusion_caps {
    mf_ops prologue;    /* ops that run while a GEMM's rows are loaded */
    mf_ops epilogue;    /* ops that run on a GEMM's sums before they are stored */
    bool external;      /* a vendor's call: takes nothing in */
    bool whole_rows;    /* has whole rows at hand after a GEMM (a barrier, or a tile as wide as the row) */
    bool all_rows;      /* has every row at hand */
    bool both_gemms;    /* holds both GEMMs in one launch */
    bool accumulates;   /* adds into the output, or owns its columns */
    bool sorts;         /* makes its own order of slots */
    bool lists;         /* goes through several lists in one launch */
    int64_t tokens_max; /* 0: any */
    double block_bytes; /* room for one block's rows of what stays inside; 0: any */
    int64_t block_n;    /* columns of a tile; 0: all of them */
};

/* One rule's answer replaced, to see what hangs on it. */
struct mf_fusion_forced {
    size_t rule;  /* index into mf_fusion_rules() */
    bool objects; /* always, or never */
};

struct mf_fusion_question {
    mf_ops ops; /* that one kernel would cover */
    int32_t block_m;
    const struct mf_fusion_caps *caps;
    const struct mf_fusion_forced *forced; /* NULL but in tests */
};

struct mf_fusion_verdict {
    const char *rule; /* static; NULL: allowed */
    char reason[MF_REASON_MAX];
    double saved; /* bytes of traffic that fusing saves */
};

/* Bytes of traffic that one kernel for the ops saves beside one for each: what only they read is neither written nor read
 * again. */
double mf_fusion_saved(const struct mf_graph *g, mf_ops ops);
/* Can the ops be made one kernel by fusing pair after pair, the best score first? */
bool mf_fusion_allows(const struct mf_shape *shape, const struct mf_fusion_question *q,
                      struct mf_fusion_verdict *ret);
/* One pair of sets of ops of a graph. */
bool mf_fusion_pair(const struct mf_graph *g, const struct mf_shape *shape,
                    const struct mf_fusion_question *q, mf_ops a, mf_ops b, struct mf_fusion_verdict *ret);

/* Fuses as long as any pair may be, best score first, never more than MF_FUSION_PAIRS_MAX pairs a round. kernels: sets of
 * ops in the order they run; no's of the last round go to refuse. */
#define MF_FUSION_PAIRS_MAX 64
typedef void (*mf_fusion_refused)(void *context, mf_ops a, mf_ops b, const struct mf_fusion_verdict *v);
int mf_fusion_rounds(const struct mf_graph *g, const struct mf_shape *shape,
                     const struct mf_fusion_question *q, mf_ops kernels[MF_NODE_N_], mf_fusion_refused refuse,
                     void *context);

/* The rules, in the order they are asked. */
struct mf_fusion_rule {
    const char *name;
    const char *what; /* it asks, in words */
};
size_t mf_fusion_rules(const struct mf_fusion_rule **ret);
