/* Types and functions shared by the sources of libfmoe. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "fmoe/fmoe.h"
#include "kernels/pipeline/fmoe.h"
#include "kernels/pipeline/fmoe_on_device.h"

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
    double modelled_us;         /* of a fallback; 0: unknown */
    char reason[MF_REASON_MAX]; /* why a fallback was chosen; "" for the plan of a tuned row */
};

/* Layers of the same model have the same plans for a given table. */
struct model {
    struct mf_shape shape; /* its member `token` is unused */
    int64_t max_tokens;
    const char *layout[2]; /* layouts in which w1 and w2 are stored (static text); NULL: not yet chosen */
};

/* Plans of a layer model by bucket. Buckets beyond max_tokens are empty. All open layers of one model share
 * their plans. */
struct plans {
    struct plan by_bucket[FMOE_BUCKETS];
    struct model model;              /* as the layers were opened */
    struct mf_tensor_spec weight[2]; /* in which the plans need w1 and w2 */
    size_t workspace;                /* bytes that the plans need */
    int n_layers;                    /* number of open layers that use the plans */
    struct plans *next;              /* next entry of fmoe.plans */
    struct plans *old;               /* plans that reloads replaced, newest first, linked by this member */
};

struct fmoe_layer {
    struct fmoe *f;
    struct fmoe_layer *next;
    struct mf_shape shape; /* its member `token` is unused */
    int64_t max_tokens;
    struct mf_tensor_spec weight[2];
    size_t workspace;
    _Atomic(struct plans *) now; /* NULL: closed */
    _Atomic uint64_t misses[FMOE_BUCKETS];
    uint64_t reported[FMOE_BUCKETS];  /* number of misses that fmoe_misses has returned */
    uint64_t reporting[FMOE_BUCKETS]; /* value of `reported` after the current fmoe_misses succeeds */
    bool closed;                      /* closed, and kept only for its unreported misses */
};

struct reporter;

struct fmoe {
    struct mf_device *device;
    /* GPU: kernels for weights and ids, loaded when the first layer is opened; else without functions */
    struct mf_on_device on_device;
    /* Number of calls that are running, in two groups. A call joins group `epoch` % 2. fmoe_drop_old starts a
     * new epoch and waits for the old group, so that calls of other threads cannot delay it for ever. */
    _Atomic unsigned epoch;
    _Atomic unsigned running[2];
    /* protects the members below, and `reported` of each layer; calls do not take this lock */
    pthread_mutex_t lock;
    struct mf_fmoe *table;
    struct plans *plans;       /* current plans of all models with open layers */
    struct fmoe_layer *layers; /* includes closed layers with unreported misses */
    _Atomic uint64_t misses;   /* number of misses of all calls */
    _Atomic size_t workspace;  /* largest workspace of the open layers, in bytes */
    /* protects `reporter`; the reporter's thread takes `lock`, but not this lock */
    pthread_mutex_t reporter_lock;
    struct reporter *reporter; /* NULL: no reporter is running */
};

/* Formats the message into error (may be NULL) and returns r. */
__attribute__((format(printf, 3, 4))) int fmoe_fail(struct fmoe_error *error, int r, const char *format, ...);

/* Returns the arguments of a call as a pipeline reads them. */
struct mf_fmoe_args fmoe_args_of(const struct fmoe_call *call);

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

/* Chooses, compiles and opens the plans of a model. A layout that is not given becomes the one that the table
 * needs, or "row". Returns the errors of fmoe_layer_open. */
int fmoe_plans_make(struct fmoe *f, const struct mf_fmoe *table, const struct model *model,
                    struct fmoe_error *error, struct plans **ret);
/* Frees p and the plans that it replaced. Returns NULL. */
struct plans *fmoe_plans_free(struct plans *p);
/* Finds the plans of a model, or makes them, and counts one more layer that uses them. fmoe_plans_unref frees
 * plans without layers, unless `keep` is true, because their code may still be in use. The caller holds the
 * lock. Returns the errors of fmoe_plans_make. */
int fmoe_plans_ref(struct fmoe *f, const struct model *model, struct fmoe_error *error, struct plans **ret);
void fmoe_plans_unref(struct fmoe *f, struct plans *p, bool keep);
/* Frees a closed layer unless it has unreported misses. The caller holds the lock. */
void fmoe_layer_free_if_reported(struct fmoe_layer *l);
