/* The progress of a batch: its tasks, gathered by device class and layer model, and the lines that show them.
 * Filled from lists of the API and kept up by its events; prints to a buffer only. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/support/shape_arg.h"
#include "common/base/buf.h"
#include "common/base/names.h"
#include "common/moe/device_class.h"

/* The states of tasks, as schema/ has them. */
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
    double us;         /* of the winner; 0 while there is none */
    char reason[160];  /* of failed and waiting */
    char decision[12]; /* over the known row; "" where there is none to be made */
    bool told;         /* its end was printed */
};

struct mf_progress_group {
    char class[MF_DEVICE_CLASS_TEXT_MAX];
    char title[MF_SHAPE_BRIEF_MAX];
};

struct mf_progress {
    int64_t batch;
    char state[16]; /* of the batch: open, done, cancelled */
    double eta_s;   /* negative: unknown */
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
/* Takes over the answer of GET batches/{id}. */
void mf_progress_set_batch(struct mf_progress *p, const cJSON *batch);
/* Takes over the items of GET batches/{id}/tasks; what was told stays told. -ENOMEM, -EINVAL for an item that is
 * no task. */
int mf_progress_set_tasks(struct mf_progress *p, const cJSON *tasks);
/* An event of the stream; kinds that say nothing of progress are passed over. */
void mf_progress_event(struct mf_progress *p, const char *kind, const cJSON *data);
bool mf_progress_ended(const struct mf_progress *p);
/* Tasks in that state. */
size_t mf_progress_count(const struct mf_progress *p, enum mf_task state);

/* Steps measured, over all tasks. */
int64_t mf_progress_measured(const struct mf_progress *p);

/* How far a task is, 0 to 1: probing counts by its steps. */
double mf_task_fraction(const struct mf_task_progress *g);
/* One line a group and one for the whole, each at most `columns` wide; at most `lines`, groups that have ended
 * being left out first. Returns the number of lines. */
size_t mf_progress_draw(const struct mf_progress *p, int columns, size_t lines, bool utf8,
                        struct mf_buf *out);
/* A line for each task that ended since the last call. */
void mf_progress_tell_ended(struct mf_progress *p, struct mf_buf *out);
/* "batch 7: 12 of 42 tasks, 1 failed, 1834 of 5210 steps, 1:40 min to go" */
void mf_progress_summary(const struct mf_progress *p, struct mf_buf *out);
