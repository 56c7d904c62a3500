/* Runs the rows of a tuned table on a local device, for `run-config` and `compare`. A row's pipeline is
 * opened as libfmoe opens it, and runs on the data that the row was tuned on. Rows of AITER's tables and
 * entries of configuration files of vLLM and SGLang run through the operator of their framework
 * (cli/bench/operators.h). Each call prints its own error message and returns the exit code, or 0. */
#pragma once

#include "cli/bench/bench_layer.h"
#include "cli/bench/operators.h"
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
    struct mf_operators_options operators;
    struct mf_bench_layer layer;
};
#define MF_BENCH_DEFAULTS                                                                 \
    {                                                                                     \
        .device = "cpu:0", .seed = -1, .err_ratio = 0.1, .layer = MF_BENCH_LAYER_DEFAULTS \
    }
#define MF_BENCH_OPTS (5 + MF_OPERATORS_OPTS + MF_BENCH_LAYER_OPTS)
/* Adds the options that run-config and compare share. */
void mf_bench_opts(struct mf_bench_options *o, struct mf_opt opts[MF_BENCH_OPTS]);

/* An open device, and weights that sessions share between rows of one layer model. */
struct mf_bench {
    struct mf_bench_options options;
    struct mf_device *device;
    struct mf_family_plugins plugins;
    const struct mf_operators *operators; /* of this process's interpreter; NULL: none */
    const struct mf_family **families;    /* those in `plugins` and `operators` */
    struct mf_family_set extra;           /* set of `families` */
    struct mf_local_memfd_store memfd_store;
};
int mf_bench_open(struct mf_bench *b, const struct mf_bench_options *o, const struct mf_operators *operators);
void mf_bench_close(struct mf_bench *b);

struct mf_bench_row {
    struct mf_shape shape;
    double us;            /* time in the table; NAN if unknown */
    const char *names;    /* names of the steps, as "family:step|family:step" */
    char *chosen;         /* memory that `names` points to if the names come from no table; otherwise NULL */
    struct mf_step *step; /* step of an operator that runs the row; NULL: `names` is the pipeline */
    char *refused;        /* reason why the row cannot run; NULL if it can run */
    char *unstable;       /* why the farm did not accept us; NULL if it did */
    const char *model;    /* device model that the row was tuned on; "" if unknown */
    uint64_t seed;        /* seed of the input data */
    struct mf_routing routing;
    bool reachable;               /* true: the production look-up can select this row */
    struct mf_pipeline *pipeline; /* NULL if the row was refused */
};

/* The rows of the device's class. Rows of one layer model are adjacent. */
struct mf_bench_rows {
    struct mf_fmoe *fmoe;        /* NULL if no row has a pipeline */
    struct mf_triton_file *file; /* NULL if the rows are not those of a configuration file */
    struct mf_bench_row *items;
    size_t n;
};
/* Opens the rows of a tuned table, or the entries of a configuration file of vLLM or SGLang. Skips rows that
 * this build cannot serve and reports them on stderr. Also warns if rows were tuned on another device model.
 */
int mf_bench_rows_open(struct mf_bench_rows *r, const struct mf_bench *b, const char *path);
/* Opens the shapes of an untuned table. Each shape gets the pipeline that the production operator runs if no
 * tuned row exists (mf_fmoe_fallback). Skips shapes of other device classes. */
int mf_bench_rows_choose(struct mf_bench_rows *r, const struct mf_bench *b, const char *path);
void mf_bench_rows_close(struct mf_bench_rows *r);

/* ---- for bench_aiter.c and bench_triton.c ---- */

/* Returns the number of AITER's own rows: those of the device's class without a pipeline. */
size_t mf_bench_aiter_count(const struct mf_bench *b, const struct mf_table *t);
/* Appends these rows to r, which has room for them. */
int mf_bench_aiter_add(struct mf_bench_rows *r, const struct mf_bench *b, const struct mf_table *t);
/* Opens the entries of a configuration file, whose content is `text`. */
int mf_bench_triton_open(struct mf_bench_rows *r, const struct mf_bench *b, const char *path,
                         const struct mf_buf *text);
/* Sets row->step to a step of the operator that runs `json` (an object), and opens row->pipeline. Marks the
 * row as refused if it cannot run. */
int mf_bench_row_operate(const struct mf_bench *b, const char *family, const cJSON *json,
                         struct mf_bench_row *row);
int mf_bench_row_refuse(struct mf_bench_row *row, const char *why);
/* Sets the row's routing and seed. t: the table's row; NULL: none. */
int mf_bench_row_provenance(const struct mf_bench *b, const struct mf_table_row *t, struct mf_bench_row *row);

/* Creates a session that holds the row's data on the device. */
int mf_bench_session(const struct mf_bench_row *row, struct mf_bench *b, struct mf_session **ret);
