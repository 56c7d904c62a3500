/* What the files of libfmoe share. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "fmoe/fmoe.h"
#include "kernels/pipeline/fmoe.h"

#define FMOE_BUCKETS    17 /* 1, 2, 4, …, 32768, 131072 */
#define FMOE_TOKENS_MAX (INT64_C(1) << 20)

/* What serves the calls of a bucket. */
struct plan {
    struct mf_pipeline *pipeline;
    char *names;
    bool tuned;
    double us;
    char *table; /* NULL: no row stands behind it */
    int64_t line;
};

/* Of a layer, by bucket; those beyond its max_tokens are empty. */
struct plans {
    struct plan of[FMOE_BUCKETS];
    struct plans *next; /* of the layer's old ones */
};

struct fmoe_layer {
    struct fmoe *f;
    struct fmoe_layer *next;
    struct mf_shape shape; /* its token count is none */
    int64_t max_tokens;
    struct mf_tensor_spec weight[2];
    size_t workspace;
    /* A call says in busy which plans it uses, and looks again whether they are still those of now: whoever frees plans waits
     * for that. */
    _Atomic(struct plans *) now, busy;
    struct plans *old;
    _Atomic uint64_t misses[FMOE_BUCKETS];
    uint64_t told[FMOE_BUCKETS];    /* of misses, by fmoe_misses */
    uint64_t telling[FMOE_BUCKETS]; /* of misses, by the fmoe_misses that runs */
    bool closed;                    /* kept for its misses only */
};

struct reporter;

struct fmoe {
    struct mf_device *device;
    pthread_mutex_t lock; /* of everything below, and of each layer's old and told; no call takes it */
    struct mf_fmoe *table;
    struct fmoe_layer *layers; /* closed ones stay for as long as they have misses that nobody was told of */
    _Atomic uint64_t misses;   /* of all calls */
    pthread_mutex_t reporting; /* of reporter; its thread takes the other lock */
    struct reporter *reporter; /* NULL: none */
};

/* r, with the sentence in error (may be NULL). */
__attribute__((format(printf, 3, 4))) int fmoe_fail(struct fmoe_error *error, int r, const char *format, ...);

/* By fmoe_layer.weight's index. */
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

/* Plans of the layer from the table. Where layout_given[i] is false, the table decides l->weight[i], and it is true then. -EXDEV,
 * -EINVAL, -ENOTSUP as fmoe_layer_open. *ret_workspace: what they need. */
int fmoe_plans_make(struct fmoe *f, const struct mf_fmoe *table, struct fmoe_layer *l, bool layout_given[2],
                    struct fmoe_error *error, struct plans **ret, size_t *ret_workspace);
/* And those behind it in its list. */
struct plans *fmoe_plans_free(struct plans *p);
/* Takes a closed layer out where it has nothing more to tell. Under the lock. */
void fmoe_layer_forget(struct fmoe_layer *l);
