/* A batch as it comes in: an untuned_fmoe.csv, or JSON, with options. Reading it needs no store, so a reader
 * does it and the writer's turn stays short. */
#pragma once

#include <stdbool.h>

#include "common/table/table.h"
#include "server/farm/farm.h"
#include "server/http/request.h"

/* Most good rows of one batch. */
#define MF_SUBMISSION_SHAPES_MAX 20000
/* Problems of rows that the answer lists; beyond these they are counted. */
#define MF_SUBMISSION_ERRORS_MAX 1000

struct mf_submission_work {
    struct mf_submission submission; /* points into what follows */
    char name[201];
    char key[128];
    char hash[65];
    struct mf_shape *shapes;
    size_t cap;
    struct mf_table *baseline; /* NULL: none came */
    struct mf_known_row *known;
    bool promote_given, min_effect_given;
    cJSON *errors;          /* [{line, at, code, message}] of bad rows */
    size_t n_errors;        /* counted, also those that are not listed */
    cJSON *unknown_columns; /* such entries of columns that are passed over */
};

void mf_submission_work_free(void *work);
/* Adds a problem of what came, which does not stop the rest. -ENOMEM. */
int mf_submission_error(struct mf_submission_work *w, const char *at, const char *code, const char *message);

/* ---- baseline.c ---- */
/* Keeps the table of that text; a refusal is in the response. */
int mf_baseline_read(struct mf_submission_work *w, const char *text, struct mf_response *p);
/* When the shapes and options are known: its rows of these shapes. */
int mf_baseline_check(struct mf_submission_work *w, struct mf_response *p);

/* Sets one option from its text. -ENOENT: no such option; -EINVAL: *ret_why (static text) says what is expected. */
int mf_submission_set(struct mf_batch_options *o, const char *name, const char *text, const char **ret_why);
