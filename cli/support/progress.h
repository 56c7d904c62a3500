/* Tracks the progress of a batch: its tasks, grouped by device class and layer model. Formats lines that show
 * the progress. Initialised from API lists, then updated by events. Prints only to buffers. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/support/shape_arg.h"
#include "common/base/buf.h"
#include "common/base/names.h"
#include "common/moe/device_class.h"

/* Task states, as in schema.sql. */
/* clang-format off */
#define MF_TASK_MAP(X, P)                                                              \
    X(P, WAITING, "waiting") X(P, ENUMERATING, "enumerating") X(P, PROBING, "probing") \
    X(P, RANKING, "ranking") X(P, RACING, "racing") X(P, COMPARING, "comparing")        \
    X(P, DONE, "done") X(P, FAILED, "failed") X(P, CANCELLED, "cancelled")
/* clang-format on */
MF_NAMES_DECLARE(mf_task, MF_TASK_, MF_TASK_MAP);

struct mf_task_progress {
    int64_t id;
    size_t group;
    int64_t token;
    enum mf_task state;
    int64_t steps, measured;
    double us;         /* time of the winner; 0 if none yet */
    char reason[160];  /* reason of the states failed and waiting */
    bool is_unstable;  /* the farm did not accept the time */
    char decision[12]; /* comparison with the known row; "" if no row is known */
    bool is_printed;   /* true: the end of the task was printed */
};

struct mf_progress_group {
    char class[MF_DEVICE_CLASS_TEXT_MAX];
    char title[MF_SHAPE_BRIEF_MAX];
};

struct mf_progress {
    int64_t batch;
    char state[16]; /* open, done or cancelled */
    double eta_s;   /* negative if unknown */
    struct mf_task_progress *tasks;
    size_t n_tasks;
    struct mf_progress_group *groups;
    size_t n_groups;
};
#define MF_PROGRESS_INIT             \
    {                                \
        .state = "open", .eta_s = -1 \
    }

void mf_progress_release(struct mf_progress *p);
/* Applies the reply of GET batches/{id}. */
void mf_progress_set_batch(struct mf_progress *p, const cJSON *batch);
/* Applies the items of GET batches/{id}/tasks. Tasks whose end was printed stay marked. Returns -ENOMEM, or
 * -EINVAL if an item is not a task. */
int mf_progress_set_tasks(struct mf_progress *p, const cJSON *tasks);
/* Applies an event of the stream. Ignores unknown kinds of events. */
void mf_progress_event(struct mf_progress *p, const char *kind, const cJSON *data);
bool mf_progress_ended(const struct mf_progress *p);
/* Returns the number of tasks in that state. */
size_t mf_progress_count(const struct mf_progress *p, enum mf_task state);

/* Returns the number of measured steps over all tasks. */
int64_t mf_progress_measured(const struct mf_progress *p);

/* Returns the progress of a task, from 0 to 1. During probing, it grows with the number of measured steps. */
double mf_task_fraction(const struct mf_task_progress *g);
/* Draws a line per group and a line for the batch, each at most `columns` wide. Draws at most `lines` lines;
 * if there are more, omits ended groups first. Returns the number of lines. */
size_t mf_progress_draw(const struct mf_progress *p, int columns, size_t lines, bool utf8,
                        struct mf_buf *out);
/* Prints a line for each task that ended since the last call. */
void mf_progress_print_ended(struct mf_progress *p, struct mf_buf *out);
/* Prints a summary, such as "batch 7: 12 of 42 tasks, 1 failed, 1834 of 5210 steps, 1:40 min to go". */
void mf_progress_summary(const struct mf_progress *p, struct mf_buf *out);
