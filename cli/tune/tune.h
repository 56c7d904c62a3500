/* moefarm tune, the drop-in for ROCm/aiter's gemm_moe_tune.py. docs/tune.md says what each option does.
 *
 *   untuned file, tuned files ─► mf_tune_list: what is missing, by device class
 *                             ─► mf_tune_state: what an earlier run handed in and did not finish
 *                             ─► mf_tune_farm: a farm of its own, when none was named
 *                             ─► mf_tune_run: batches of shapes, each finished row merged at once
 *                             ─► mf_tune_summary
 *
 * One thread. Calls that give an exit code have printed what went wrong. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "cli/support/cli.h"
#include "cli/support/progress.h"
#include "common/base/buf.h"
#include "common/base/cleanup.h"
#include "common/moe/device_class.h"
#include "common/moe/shape.h"
#include "common/moe/status.h"
#include "common/table/table.h"

/* ---- options ---- */

#define MF_TUNE_N_LATER 7

struct mf_tune_options {
    const char *later[MF_TUNE_N_LATER]; /* of revisions of AITER's tuner that have them; NULL: not given */
    const char *untune_file, *tune_file, *profile_file, *sort, *run_config;
    int64_t mp, batch, warmup, iters, timeout_s; /* warmup, iters, timeout_s: -1 when not given */
    double err_ratio, min_improvement_pct;
    bool verbose, split_k, shape_grouped, all, last, compare, update_improved, grouped_gemm, mxfp4_flydsl;
    /* ours */
    const char *devices, *families, *runner, *classes, *state, *consumer, *routing;
    int64_t topk;
    const char *candidates;
    bool simulated, compat;
    /* what the texts say */
    bool sorted, for_aiter;
};
#define MF_TUNE_N_OPTIONS 48
/* The rows of --help; opts holds MF_TUNE_N_OPTIONS, *ret_n are used. */
void mf_tune_options(struct mf_tune_options *o, struct mf_opt *opts, size_t *ret_n);
/* The defaults, AITER_CONFIG_FMOE among them. */
void mf_tune_defaults(struct mf_tune_options *o);
/* What the values have to be beyond their type, and what this program does not do: 0, or MF_EXIT_USAGE. */
int mf_tune_check(struct mf_tune_options *o);

/* ---- what is to be tuned ---- */

struct mf_tune_choice {
    bool all;       /* rows that are in the first of the tuned tables too */
    bool last;      /* only the last row */
    bool for_aiter; /* rows as the keys that AITER's production computes of them */
};

/* Of one device class. */
struct mf_tune_list {
    struct mf_device_class class;
    struct mf_shape *shapes;
    size_t n;
    struct mf_shape *tuned; /* rows passed over because a table has them */
    size_t n_tuned;
    size_t
        n_elsewhere; /* with all: rows that another table than the first has; two files may not share a key */
};
/* The rows of untuned that tuned lacks on that class, in their order, each once: matched by value, not by spelling. Rows of
 * untuned that name another class are not of it. -ENOMEM. */
int mf_tune_list_make(const struct mf_table *untuned, const struct mf_table *const *tuned, size_t n_tuned,
                      const struct mf_device_class *class, const struct mf_tune_choice *choice,
                      struct mf_tune_list *ret);
void mf_tune_list_release(struct mf_tune_list *l);
/* Takes the shape out; false: it was not in. */
bool mf_tune_list_drop(struct mf_tune_list *l, const struct mf_shape *shape);

/* ---- the state folder ---- */

#define MF_TUNE_PATH_MAX 3072

struct mf_tune_state {
    char folder[MF_TUNE_PATH_MAX];
    int lock; /* held for as long as this program works on the table */
};
/* asked: NULL, then it is beside the tune file, or under XDG_STATE_HOME where nothing can be made beside it. Exit code. */
int mf_tune_state_open(const char *asked, const char *tune_file, struct mf_tune_state *ret);
void mf_tune_state_close(struct mf_tune_state *s);

/* What was handed in to a farm: kept from before it is sent until its rows are in the table, so that a run that was killed is
 * taken up where it was. The same key with the same body is the same batch. */
struct mf_tune_pending {
    char path[MF_TUNE_PATH_MAX + 64];
    char *farm, *options, *key, *body;
};
void mf_tune_pending_release(struct mf_tune_pending *p);
/* A new one, durable. options: what tells it from a run that asks for something else; body: of POST /batches, JSON. Exit code. */
int mf_tune_pending_add(const struct mf_tune_state *s, const char *farm, const char *options,
                        const char *body, struct mf_tune_pending *ret);
/* Those of earlier runs with that farm, oldest first; the caller releases and frees them. Exit code. */
int mf_tune_pending_list(const struct mf_tune_state *s, const char *farm, struct mf_tune_pending **ret,
                         size_t *ret_n);
void mf_tune_pending_done(const struct mf_tune_pending *p);

/* ---- a farm of its own ---- */

#define MF_TUNE_DEVICES_MAX 64

struct mf_tune_device {
    char name[96]; /* "cpu:0", "hip:amd:3" */
    struct mf_device_class class;
};
/* The devices that a comma list names, or the GPUs of this machine, or its CPU where there are none; at most mp (0: all).
 * Exit code. */
int mf_tune_devices(const char *asked, int64_t mp, struct mf_tune_device ret[MF_TUNE_DEVICES_MAX],
                    size_t *ret_n);
/* The lines of `moefarm-worker --list-devices`. */
size_t mf_tune_devices_read(const char *text, struct mf_tune_device ret[MF_TUNE_DEVICES_MAX]);

struct mf_tune_farm;
struct mf_tune_farm_options {
    const char *folder; /* of their state */
    const struct mf_tune_device *devices;
    size_t n;
    const char *families, *runner; /* of the workers; NULL: none */
};
/* A coordinator on loopback and a worker for each device. They end with this program, whatever ends it. Exit code. */
int mf_tune_farm_start(const struct mf_tune_farm_options *o, struct mf_tune_farm **ret);
const char *mf_tune_farm_url(const struct mf_tune_farm *f);
/* Are they there? A worker that ended is started again for a while. Exit code. */
int mf_tune_farm_check(struct mf_tune_farm *f);
/* Ends them and waits. */
struct mf_tune_farm *mf_tune_farm_stop(struct mf_tune_farm *f);
MF_DEFINE_CLEANUP(struct mf_tune_farm *, mf_tune_farm_stop);

/* ---- what became of each ---- */

enum mf_tune_end { MF_TUNE_REMAINING, MF_TUNE_TUNED, MF_TUNE_FAILED };

struct mf_tune_outcome {
    struct mf_device_class class;
    struct mf_shape shape;
    enum mf_tune_end end;
    double us, tflops, bw;
    char what[16]; /* "added", "replaced", "kept" in the table */
    char kernels[256];
    char reason[MF_REASON_MAX];
};

struct mf_tune_outcomes {
    struct mf_tune_outcome *items;
    size_t n, cap;
};
void mf_tune_outcomes_release(struct mf_tune_outcomes *o);
int mf_tune_outcomes_add(struct mf_tune_outcomes *o, const struct mf_device_class *class,
                         const struct mf_shape *shape);
struct mf_tune_outcome *mf_tune_outcomes_find(const struct mf_tune_outcomes *o,
                                              const struct mf_device_class *class,
                                              const struct mf_shape *shape);
size_t mf_tune_outcomes_count(const struct mf_tune_outcomes *o, enum mf_tune_end end);

struct mf_tune_totals {
    const char *status; /* "Finished", "Interrupted", "Error" */
    double seconds;
    size_t n_unreadable; /* rows of the untuned file */
    bool verbose;
};
/* AITER's summary, then the rows to hand in again. */
void mf_tune_summary(const struct mf_tune_outcomes *o, const struct mf_tune_totals *t, struct mf_buf *out);

/* With --compare: the rows that production finds in the table for these shapes on that class, as a tuned table: what a batch of
 * them is compared with. Each is in the line that it has in the table, so that what is said of it is found there; the lines
 * between are empty. Of no row a header is left: nothing is known then. Exit code. */
int mf_tune_baseline(const struct mf_table *table, const struct mf_device_class *class,
                     const struct mf_shape *shapes, size_t n, struct mf_buf *out);
/* With --compare: of the rows that the lists find in the table, those that name no pipeline, and what becomes of them: nothing can be
 * run against them, so that their shapes are not tuned. Whoever starts a run reads it before he leaves it alone. all: each of them,
 * otherwise the first ones. */
void mf_tune_print_foreign(const struct mf_table *table, const struct mf_tune_list *lists, size_t n, bool all,
                           struct mf_buf *out);
/* With --compare: the decisions of a batch's tasks, one below the other. Exit code. */
int mf_tune_compared(struct mf_cli *cli, const cJSON *tasks, struct mf_buf *out);

/* AITER's additive rule over what was measured of a batch's tasks: -o2 is appended to, and with --compat its winners go to
 * MF_TUNE_COMPAT_FILE of the state folder and stand beside the race's in run->compat. Exit code. */
struct mf_tune_run;
#define MF_TUNE_COMPAT_FILE "compat.csv"
#define MF_TUNE_CANDIDATES_FILE \
    "candidates.csv" /* every measured candidate of the last run with --compat or -o2 */
int mf_tune_compat(struct mf_tune_run *run, const cJSON *tasks);
/* The same over a recorded table, o->candidates, merged into the table at that path. Exit code. */
int mf_tune_replay(const struct mf_tune_options *o, const char *table, const struct mf_table *tuned,
                   struct mf_tune_outcomes *outcomes);

/* ---- tuning ---- */

struct mf_tune_run {
    struct mf_cli *cli;
    const struct mf_tune_options *options;
    const char *table;            /* the file that is written */
    const struct mf_table *known; /* with --compare: the table as it was before the run */
    const char *farm_name;        /* in the state: "own", or the URL */
    struct mf_tune_farm *farm;    /* NULL: it is somebody else's */
    struct mf_tune_state *state;
    struct mf_tune_list *lists; /* a class each */
    size_t n_lists;
    struct mf_tune_outcomes outcomes;
    struct mf_buf *compared; /* with --compare: what was decided, for people */
    struct mf_buf *compat;   /* with --compat: the rule's picks */
    bool interrupted;
};
/* Tunes all that is in the lists; the outcomes say what became of it. Exit code: not 0 only when it could not go on. */
int mf_tune_run(struct mf_tune_run *run);
