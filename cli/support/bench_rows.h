/* A tuned table's rows on a device of this machine, for the commands that run them: opened as libfmoe opens them, and each given
 * the data that it was tuned on. Calls print what went wrong and give the exit code, or 0. */
#pragma once

#include "cli/support/cli.h"
#include "common/moe/routing.h"
#include "kernels/families/family_plugin.h"
#include "kernels/pipeline/fmoe.h"
#include "measure/session/kept.h"
#include "measure/session/session.h"

struct mf_bench_options {
    const char *device, *routing, *family_so; /* families by comma */
    int64_t seed;
    double err_ratio;
};
#define MF_BENCH_DEFAULTS                               \
    {                                                   \
        .device = "cpu:0", .seed = -1, .err_ratio = 0.1 \
    }
#define MF_BENCH_OPTS 5
/* The options that all these commands have. */
void mf_bench_opts(struct mf_bench_options *o, struct mf_opt opts[MF_BENCH_OPTS]);

/* The device, and what sessions on it leave for the next: weights that rows of one layer model share. */
struct mf_bench {
    struct mf_bench_options options;
    struct mf_device *device;
    struct mf_family_plugins plugins;
    struct mf_family_set extra; /* of plugins */
    struct mf_local_memfd_store memfd_store;
};
int mf_bench_open(struct mf_bench *b, const struct mf_bench_options *o);
void mf_bench_close(struct mf_bench *b);

struct mf_bench_row {
    struct mf_shape shape;
    double us;         /* of the table; NAN: of none */
    const char *names; /* "family:step|family:step" */
    char *chosen;      /* holds the names that no table has; NULL */
    char *refused;     /* it cannot be run: why; NULL */
    const char *model; /* the device model that it was tuned on; "": no table says */
    uint64_t seed;     /* of the data */
    struct mf_routing routing;
    bool reachable;               /* production's look-up ends at this row */
    struct mf_pipeline *pipeline; /* NULL: refused */
};

/* The rows of the device's class, those of one layer model one behind the other. */
struct mf_bench_rows {
    struct mf_fmoe *fmoe; /* NULL: of a list of shapes */
    struct mf_bench_row *items;
    size_t n;
};
/* Rows that this build cannot serve are told of on stderr and passed over; that rows were tuned on another device model than
 * this one is told there, too. */
int mf_bench_rows_open(struct mf_bench_rows *r, const struct mf_bench *b, const char *path);
/* The shapes of an untuned table, each with what the production operator runs where no table has a row for it
 * (mf_fmoe_fallback). Those of another device class are passed over. */
int mf_bench_rows_choose(struct mf_bench_rows *r, const struct mf_bench *b, const char *path);
void mf_bench_rows_close(struct mf_bench_rows *r);

/* The row's data on the device. */
int mf_bench_session(const struct mf_bench_row *row, struct mf_bench *b, struct mf_session **ret);
