/* moefarm tune, the drop-in replacement for ROCm/aiter's gemm_moe_tune.py.
 *
 *   untuned file, tuned files ─► mf_tune_list: missing shapes by device class
 *                             ─► mf_tune_state: batches that an earlier run submitted and did not finish
 *                             ─► mf_tune_farm: a private farm, if no URL is given
 *                             ─► mf_tune_run: batches of shapes; merges each finished row at once
 *                             ─► mf_tune_summary
 *
 * Single-threaded. Calls that return an exit code print their own error message. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "cli/bench/operators.h"
#include "cli/support/aiter_env.h"
#include "cli/support/cli.h"
#include "cli/support/progress.h"
#include "common/base/buf.h"
#include "common/base/cleanup.h"
#include "common/moe/consumer.h"
#include "common/moe/device_class.h"
#include "common/moe/shape.h"
#include "common/moe/status.h"
#include "common/table/table.h"

#define MF_TUNE_PATH_MAX 3072

/* ---- options ---- */

/* The values of --family-py. */
struct mf_tune_modules {
    char text[MF_TUNE_PATH_MAX]; /* memory of `names` */
    const char *names[MF_OPERATORS_MAX];
    int n;
};

#define MF_TUNE_N_LATER 7

struct mf_tune_options {
    /* options of later AITER revisions, which are rejected; NULL if not given */
    const char *later[MF_TUNE_N_LATER];
    const char *untune_file, *tune_file, *profile_file, *sort, *run_config;
    int64_t mp, batch, warmup, iters, timeout_s; /* warmup, iters, timeout_s: -1 when not given */
    double err_ratio, min_improvement_pct;
    bool verbose, split_k, shape_grouped, all, last, compare, update_improved, grouped_gemm, mxfp4_flydsl;
    /* moefarm's own options */
    const char *devices, *families, *python, *family_py, *aiter_dir, *classes, *state, *consumer, *routing;
    int64_t topk, time_budget_s;
    const char *candidates;
    struct mf_aiter_env env; /* AITER's environment variables */
    bool simulated, compat;
    /* derived from the options */
    bool sorted, for_aiter;
    mf_consumers consumers;
    struct mf_tune_modules modules;
};
#define MF_TUNE_N_OPTIONS 50
/* Fills the option table. opts has room for MF_TUNE_N_OPTIONS options; *ret_n is the number used. */
void mf_tune_options(struct mf_tune_options *o, struct mf_opt *opts, size_t *ret_n);
/* Sets the defaults, including AITER_CONFIG_FMOE. */
void mf_tune_defaults(struct mf_tune_options *o);
/* Checks value ranges and rejects unsupported options. Returns 0 or MF_EXIT_USAGE. */
int mf_tune_check(struct mf_tune_options *o);

/* ---- shapes to tune ---- */

struct mf_tune_choice {
    bool all;       /* true: include rows that the first tuned table already has */
    bool last;      /* true: include only the last row */
    bool for_aiter; /* true: convert rows to the keys that AITER's production look-up computes */
    struct mf_production_env env; /* AITER's environment variables, for for_aiter */
};

/* Shapes of one device class. */
struct mf_tune_list {
    struct mf_device_class class;
    struct mf_shape *shapes;
    size_t n;
    struct mf_shape *tuned; /* rows skipped because a tuned table already has them */
    size_t n_tuned;
    /* with `all`: number of rows skipped because a table other than the first has them (two tables must not
     * share a key) */
    size_t n_elsewhere;
};
/* Lists the rows of `untuned` that no table of `tuned` has for `class`, in order and without duplicates.
 * Compares rows by value, not by spelling. Ignores rows that name another class. Returns 0 or -ENOMEM. */
int mf_tune_list_make(const struct mf_table *untuned, const struct mf_table *const *tuned, size_t n_tuned,
                      const struct mf_device_class *class, const struct mf_tune_choice *choice,
                      struct mf_tune_list *ret);
void mf_tune_list_release(struct mf_tune_list *l);
/* Removes the shape. Returns false if the list does not contain the shape. */
bool mf_tune_list_drop(struct mf_tune_list *l, const struct mf_shape *shape);

/* ---- the state folder ---- */

struct mf_tune_state {
    char folder[MF_TUNE_PATH_MAX];
    int lock; /* descriptor that locks the table while this program runs */
};
/* Creates the state folder and locks the table. `requested` is the path of the folder. If `requested` is
 * NULL, uses a folder next to the tune file, or under XDG_STATE_HOME if the tune file's folder is not
 * writable. Returns the exit code. */
int mf_tune_state_open(const char *requested, const char *tune_file, struct mf_tune_state *ret);
void mf_tune_state_close(struct mf_tune_state *s);

/* Record of a batch submitted to a farm. The record is saved before the batch is sent and removed when the
 * batch's rows are in the table, so that a killed run can resume. Sending the same key and body in a second
 * POST returns the same batch. */
struct mf_tune_pending {
    char path[MF_TUNE_PATH_MAX + 64];
    char *farm, *options, *key, *body;
};
void mf_tune_pending_release(struct mf_tune_pending *p);
/* Saves the record of a new batch durably. `options` is a text of the run's options, by which a later run
 * recognises the batch. `body` is the JSON of POST /batches. Returns the exit code. */
int mf_tune_pending_add(const struct mf_tune_state *s, const char *farm, const char *options,
                        const char *body, struct mf_tune_pending *ret);
/* Lists the batches that earlier runs submitted to the farm `farm` and did not finish, oldest first. The
 * caller releases each item and frees the array. Returns the exit code. */
int mf_tune_pending_list(const struct mf_tune_state *s, const char *farm, struct mf_tune_pending **ret,
                         size_t *ret_n);
void mf_tune_pending_done(const struct mf_tune_pending *p);

/* ---- private farm ---- */

#define MF_TUNE_DEVICES_MAX 64

struct mf_tune_device {
    char name[96]; /* "cpu:0", "hip:amd:3" */
    struct mf_device_class class;
};
/* Resolves the comma-separated device names in `requested`. If `requested` is NULL, selects the GPUs of this
 * machine, or the CPU if there is no GPU. Selects at most `mp` devices (0: no limit). Returns the exit code.
 */
int mf_tune_devices(const char *requested, int64_t mp, struct mf_tune_device ret[MF_TUNE_DEVICES_MAX],
                    size_t *ret_n);
/* Parses the output of `moefarm-worker --list-devices`. */
size_t mf_tune_devices_read(const char *text, struct mf_tune_device ret[MF_TUNE_DEVICES_MAX]);

struct mf_tune_farm;
struct mf_tune_farm_options {
    const char *folder; /* state folder */
    const struct mf_tune_device *devices;
    size_t n;
    /* options of the workers; NULL if not given */
    const char *families, *python, *aiter_dir;
    const struct mf_tune_modules *modules;
};
/* Starts a coordinator on loopback and one worker per device. The coordinator and the workers exit when this
 * program exits or dies. Returns the exit code. */
int mf_tune_farm_start(const struct mf_tune_farm_options *o, struct mf_tune_farm **ret);
const char *mf_tune_farm_url(const struct mf_tune_farm *f);
/* Checks the farm's processes. Restarts each worker that exited, but only a limited number of times. Returns
 * the exit code. */
int mf_tune_farm_check(struct mf_tune_farm *f);
/* Stops the farm's processes and waits until they have exited. */
struct mf_tune_farm *mf_tune_farm_stop(struct mf_tune_farm *f);
MF_DEFINE_CLEANUP(struct mf_tune_farm *, mf_tune_farm_stop);

/* ---- outcomes ---- */

enum mf_tune_end { MF_TUNE_REMAINING, MF_TUNE_TUNED, MF_TUNE_FAILED };

struct mf_tune_outcome {
    struct mf_device_class class;
    struct mf_shape shape;
    enum mf_tune_end end;
    double us, tflops, bw;
    char merge_status[16]; /* outcome of the merge into the table: "added", "replaced" or "kept" */
    char kernels[256];
    char reason[MF_REASON_MAX];
    char unstable[MF_REASON_MAX]; /* why the farm did not accept us; "": it did */
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
    size_t n_unreadable; /* number of unreadable rows in the untuned file */
    bool verbose;
};
/* Prints AITER's summary, then the rows that remain to be tuned. */
void mf_tune_summary(const struct mf_tune_outcomes *o, const struct mf_tune_totals *t, struct mf_buf *out);

/* Writes the baseline of --compare as a tuned table: the rows that production finds for the shapes `shapes`
 * on `class`. Each row keeps the line number of the user's file, because messages name it; the other lines
 * are empty. If there is no row, writes only a header. Returns the exit code. */
int mf_tune_baseline(const struct mf_table *table, const struct mf_device_class *class,
                     const struct mf_shape *shapes, size_t n, struct mf_buf *out);
/* With --compare: warns about rows that production finds for the listed shapes but that name no pipeline.
 * Such rows cannot run, so their shapes are not tuned. Called before the run starts. all: true lists every
 * such row; false lists only the first ones. */
void mf_tune_print_foreign(const struct mf_table *table, const struct mf_tune_list *lists, size_t n, bool all,
                           struct mf_buf *out);
/* With --compare: prints the decision for each task of a batch. Returns the exit code. */
int mf_tune_compared(struct mf_cli *cli, const cJSON *tasks, struct mf_buf *out);

/* mf_tune_compat applies AITER's additive rule to the measured candidates of a batch and appends the result
 * to the -o2 file. With --compat, it writes the rule's winners to MF_TUNE_COMPAT_FILE in the state folder. It
 * also adds a text to run->compat that shows the rule's winner and the race's winner of each shape. Returns
 * the exit code. */
struct mf_tune_run;
#define MF_TUNE_COMPAT_FILE "compat.csv"
/* File with every measured candidate of the last run with --compat or -o2. */
#define MF_TUNE_CANDIDATES_FILE "candidates.csv"
int mf_tune_compat(struct mf_tune_run *run, const cJSON *tasks);
/* Applies AITER's additive rule to the recorded table o->candidates and merges the winners into the table at
 * the path `table`. Returns the exit code. */
int mf_tune_replay(const struct mf_tune_options *o, const char *table, const struct mf_table *tuned,
                   struct mf_tune_outcomes *outcomes);

/* ---- tuning ---- */

struct mf_tune_run {
    struct mf_cli *cli;
    const struct mf_tune_options *options;
    const char *table;            /* path of the tuned table to write */
    const struct mf_table *known; /* with --compare: the table as it was before the run */
    const char *farm_name;        /* the farm in records of the state folder: "own" or the URL */
    struct mf_tune_farm *farm;    /* NULL if the farm is external */
    struct mf_tune_state *state;
    struct mf_tune_list *lists; /* one list per device class */
    size_t n_lists;
    struct mf_tune_outcomes outcomes;
    struct mf_buf *compared; /* with --compare: the decisions as text */
    struct mf_buf *compat;   /* with --compat: the rule's winners as text */
    bool interrupted;
};
/* Tunes every listed shape and records the outcomes. Returns an exit code, which is non-zero only if the run
 * could not continue. */
int mf_tune_run(struct mf_tune_run *run);
