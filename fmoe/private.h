/* Types and functions shared by the sources of libfmoe. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "fmoe/fmoe.h"
#include "kernels/pipeline/fmoe.h"

#define FMOE_BUCKETS    17 /* 1, 2, 4, …, 32768, 131072 */
#define FMOE_TOKENS_MAX (INT64_C(1) << 20)

/* Kernels for the calls of one bucket. */
struct plan {
    struct mf_pipeline *pipeline;
    char *names; /* "family:step|family:step" */
    bool tuned;
    double us;
    char *table; /* NULL if the plan is not from a row */
    int64_t line;
};

/* Plans of a layer by bucket. Buckets beyond max_tokens are empty. */
struct plans {
    struct plan by_bucket[FMOE_BUCKETS];
    struct plans *next; /* next entry in the layer's list of replaced plans */
};

struct fmoe_layer {
    struct fmoe *f;
    struct fmoe_layer *next;
    struct mf_shape shape; /* its member `token` is unused */
    int64_t max_tokens;
    struct mf_tensor_spec weight[2];
    size_t workspace;
    /* Hazard pointer: a call stores the plans it uses in `busy` and re-reads `now`. Plans are freed only when
     * `busy` does not point to them. */
    _Atomic(struct plans *) now, busy;
    struct plans *old;
    _Atomic uint64_t misses[FMOE_BUCKETS];
    uint64_t reported[FMOE_BUCKETS];  /* number of misses that fmoe_misses has returned */
    uint64_t reporting[FMOE_BUCKETS]; /* value of `reported` after the current fmoe_misses succeeds */
    bool closed;                      /* closed, and kept only for its unreported misses */
};

struct reporter;

struct fmoe {
    struct mf_device *device;
    /* protects the members below, and `old` and `reported` of each layer; calls do not take this lock */
    pthread_mutex_t lock;
    struct mf_fmoe *table;
    struct fmoe_layer *layers; /* includes closed layers with unreported misses */
    _Atomic uint64_t misses;   /* number of misses of all calls */
    /* protects `reporter`; the reporter's thread takes `lock`, but not this lock */
    pthread_mutex_t reporter_lock;
    struct reporter *reporter; /* NULL: no reporter is running */
};

/* Formats the message into error (may be NULL) and returns r. */
__attribute__((format(printf, 3, 4))) int fmoe_fail(struct fmoe_error *error, int r, const char *format, ...);

/* fmoe_cpu_take returns false if another call of the process uses the CPU's thread pool; otherwise the caller
 * has the pool until it calls fmoe_cpu_give. */
bool fmoe_cpu_take(void);
void fmoe_cpu_give(void);

/* Returns the tensor of weight w (index into fmoe_layer.weight). */
static inline enum mf_tensor fmoe_weight_tensor(int w)
{
    return w == 0 ? MF_TENSOR_W1 : MF_TENSOR_W2;
}
static inline int fmoe_bucket_index(int64_t bucket)
{
    return bucket > 32768 ? FMOE_BUCKETS - 1 : __builtin_ctzll((uint64_t)bucket);
}
static inline int64_t fmoe_bucket_at(int index)
{
    return index == FMOE_BUCKETS - 1 ? 131072 : INT64_C(1) << index;
}

/* Chooses, compiles and opens the plans of a layer. For each weight with layout_given[i] false, sets
 * l->weight[i] to the layout that the table needs, and layout_given[i] to true. Returns the errors of
 * fmoe_layer_open. *ret_workspace: bytes that the plans need. */
int fmoe_plans_make(struct fmoe *f, const struct mf_fmoe *table, struct fmoe_layer *l, bool layout_given[2],
                    struct fmoe_error *error, struct plans **ret, size_t *ret_workspace);
/* Frees p and all later entries of its list. Returns NULL. */
struct plans *fmoe_plans_free(struct plans *p);
/* Frees a closed layer unless it has unreported misses. The caller holds the lock. */
void fmoe_layer_free_if_reported(struct fmoe_layer *l);
