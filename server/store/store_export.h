/* The configs that an export is made of: the latest of every (class, model, shape) within the filters, in an order that
 * does not depend on when they were found: gfx, cu_num, layer model, token, model. */
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
};

#define MF_EXPORT_STEPS_MAX 16

struct mf_export_step {
    char family[MF_FAMILY_NAME_MAX], name[MF_STEP_NAME_MAX];
    enum mf_stage stage;
    mf_ops covers;
    int32_t ksplit;
    bool aiter; /* AITER runs it by this name */
};

/* Texts live until the callback returns. */
struct mf_export_config {
    struct mf_device_class class;
    int64_t config, task, pipeline, batch;         /* ids */
    const char *model, *row, *layout, *provenance; /* provenance, ties, regret: JSON */
    const char *ties, *regret;
    bool simulated, promoted; /* promoted: over a row that was known */
    int32_t block_m;
    double us, us1, us2, err1, err2;
    int64_t n;  /* samples behind us */
    double mad; /* of those; 0 when unknown */
    int n_steps;
    struct mf_export_step steps[MF_EXPORT_STEPS_MAX];
};

typedef int (*mf_export_each)(const struct mf_export_config *c, void *data);
/* Stops at the first negative return of each, and returns it. */
int mf_store_export(struct mf_store *s, const struct mf_export_filter *filter, mf_export_each each,
                    void *data);

/* Shapes without any config that stands whose latest task failed, or was not decided. */
typedef int (*mf_export_failed)(const char *class, const char *row, const char *reason, void *data);
int mf_store_export_failed(struct mf_store *s, const struct mf_export_filter *filter, mf_export_failed each,
                           void *data);

/* Shapes without any config in the filters, and none of whose tasks has ended as done or failed. */
int mf_store_export_missing(struct mf_store *s, const struct mf_export_filter *filter, mf_export_failed each,
                            void *data);

/* "family:step|family:step" of a pipeline. -ENAMETOOLONG: cap is too small. */
int mf_store_export_names(struct mf_store *s, int64_t pipeline, char *ret, size_t cap);

#define MF_EXPORT_PROMOTION_MAX 8192
/* What was decided of the task's row beside a known one: a JSON object {decision, reason, source, known, known_us, least}; "":
 * nothing was. */
int mf_store_export_promotion(struct mf_store *s, int64_t task, char *ret, size_t cap);

/* Classes with configs of two models or more, as "gfx942/304: MI300X, MI325X; …", in ret; "" for none. */
int mf_store_export_models(struct mf_store *s, const struct mf_export_filter *filter, bool simulated,
                           char *ret, size_t cap);
