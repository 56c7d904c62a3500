/* Runs the rows of a tuned table on a local device, for `run-config` and `compare`. A row's pipeline is
 * opened as libfmoe opens it, and runs on the data that the row was tuned on. Each call prints its own error
 * message and returns the exit code, or 0. */
#pragma once

#include "cli/support/cli.h"
#include "common/moe/routing.h"
#include "kernels/families/family_plugin.h"
#include "kernels/pipeline/fmoe.h"
#include "measure/session/memfd_cache.h"
#include "measure/session/session.h"

struct mf_bench_options {
    const char *device, *routing, *family_so; /* family_so: comma-separated list */
    int64_t seed;
    double err_ratio;
};
#define MF_BENCH_DEFAULTS                               \
    {                                                   \
        .device = "cpu:0", .seed = -1, .err_ratio = 0.1 \
    }
#define MF_BENCH_OPTS 5
/* Adds the options that run-config and compare share. */
void mf_bench_opts(struct mf_bench_options *o, struct mf_opt opts[MF_BENCH_OPTS]);

/* An open device, and weights that sessions share between rows of one layer model. */
struct mf_bench {
    struct mf_bench_options options;
    struct mf_device *device;
    struct mf_family_plugins plugins;
    struct mf_family_set extra; /* set of the families in `plugins` */
    struct mf_local_memfd_store memfd_store;
};
int mf_bench_open(struct mf_bench *b, const struct mf_bench_options *o);
void mf_bench_close(struct mf_bench *b);

struct mf_bench_row {
    struct mf_shape shape;
    double us;         /* time in the table; NAN if unknown */
    const char *names; /* names of the steps, as "family:step|family:step" */
    char *chosen;      /* memory that `names` points to if the names come from no table; otherwise NULL */
    char *refused;     /* reason why the row cannot run; NULL if it can run */
    char *unstable;    /* why the farm did not accept us; NULL if it did */
    const char *model; /* device model that the row was tuned on; "" if unknown */
    uint64_t seed;     /* seed of the input data */
    struct mf_routing routing;
    bool reachable;               /* true: the production look-up can select this row */
    struct mf_pipeline *pipeline; /* NULL if the row was refused */
};

/* The rows of the device's class. Rows of one layer model are adjacent. */
struct mf_bench_rows {
    struct mf_fmoe *fmoe; /* NULL if the rows were opened from a list of shapes */
    struct mf_bench_row *items;
    size_t n;
};
/* Opens the rows of a tuned table. Skips rows that this build cannot serve and reports them on stderr. Also
 * warns if rows were tuned on another device model. */
int mf_bench_rows_open(struct mf_bench_rows *r, const struct mf_bench *b, const char *path);
/* Opens the shapes of an untuned table. Each shape gets the pipeline that the production operator runs if no
 * tuned row exists (mf_fmoe_fallback). Skips shapes of other device classes. */
int mf_bench_rows_choose(struct mf_bench_rows *r, const struct mf_bench *b, const char *path);
void mf_bench_rows_close(struct mf_bench_rows *r);

/* Creates a session that holds the row's data on the device. */
int mf_bench_session(const struct mf_bench_row *row, struct mf_bench *b, struct mf_session **ret);
