/* Reads the configs for an export: a consumer's latest config of every (class, model, shape) that passes the
 * filter, ordered by gfx, cu_num, layer model, token count and model. The order does not depend on when the
 * configs were found. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/moe/device_class.h"
#include "common/moe/step.h"
#include "server/store/store.h"

struct mf_export_filter {
    int64_t batch;                         /* 0: any */
    const char *gfx, *model, *layer_model; /* NULL: any */
    int64_t cu_num;                        /* 0: any */
    const char *consumer;                  /* never NULL */
};

#define MF_EXPORT_STEPS_MAX 16

struct mf_export_step {
    char family[MF_FAMILY_NAME_MAX], name[MF_STEP_NAME_MAX];
    enum mf_stage stage;
    mf_ops covers;
    int32_t ksplit;
    bool aiter, foreign; /* as in struct mf_step */
};

/* Texts are valid until the callback returns. */
struct mf_export_config {
    struct mf_device_class class;
    int64_t config, task, pipeline, batch;         /* ids */
    const char *consumer;                          /* name */
    const char *model, *row, *layout, *provenance; /* provenance, ties, regret: JSON */
    const char *ties, *regret;
    const char *options;      /* of the batch, JSON */
    bool simulated, promoted; /* promoted: replaced a known row */
    int32_t block_m;
    double us, us1, us2, err1, err2;
    int64_t n;            /* number of samples that us is based on */
    double mad;           /* median absolute deviation of these samples; NAN if unknown */
    int64_t tries;        /* number of reruns, at least 1 */
    const char *unstable; /* why no rerun was accepted; "": us is accepted */
    int n_steps;
    struct mf_export_step steps[MF_EXPORT_STEPS_MAX];
};

typedef int (*mf_export_fn)(const struct mf_export_config *c, void *data);
/* Calls `each` for every config. If a call returns a negative value, stops and returns that value. */
int mf_store_export(struct mf_store *s, const struct mf_export_filter *filter, mf_export_fn each, void *data);

/* Called for shapes that have no exportable config for the consumer and whose latest task failed for it, is
 * undecided, or does not serve it. */
typedef int (*mf_export_left_out_fn)(const char *class, const char *row, const char *reason, void *data);
int mf_store_export_failed(struct mf_store *s, const struct mf_export_filter *filter,
                           mf_export_left_out_fn each, void *data);

/* Lists the shapes that have no exportable config and whose tasks are neither done nor failed. */
int mf_store_export_missing(struct mf_store *s, const struct mf_export_filter *filter,
                            mf_export_left_out_fn each, void *data);

/* Formats a pipeline as "family:step|family:step". -ENAMETOOLONG: cap is too small. */
int mf_store_export_names(struct mf_store *s, int64_t pipeline, char *ret, size_t cap);

#define MF_EXPORT_PROMOTION_MAX 8192
/* Formats the promotion decision of a task for a consumer as a JSON object {decision, reason, source, known,
 * known_us, least}; "" if the task has no decision. */
int mf_store_export_promotion(struct mf_store *s, int64_t task, const char *consumer, char *ret, size_t cap);

/* Lists the classes with configs of several models, as "gfx942/304: MI300X, MI325X; …"; "" if none. */
int mf_store_export_models(struct mf_store *s, const struct mf_export_filter *filter, bool simulated,
                           char *ret, size_t cap);
