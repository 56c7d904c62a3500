/* Parses a submitted batch: an untuned_fmoe.csv or JSON, with options. Parsing needs no store, so a reader
 * does it and keeps the writer's transaction short. */
#pragma once

#include <stdbool.h>

#include "common/table/table.h"
#include "server/farm/farm.h"
#include "server/http/request.h"

/* Maximum valid rows of a batch. */
#define MF_SUBMISSION_SHAPES_MAX 20000
/* Maximum rows of a submission, including duplicates and invalid rows. */
#define MF_SUBMISSION_ROWS_MAX 40000
/* Maximum errors listed in the response; further errors are only counted. */
#define MF_SUBMISSION_ERRORS_MAX 1000

struct mf_submission_work {
    struct mf_submission submission; /* points into the fields below */
    char name[201];
    char key[128];
    char hash[65];
    struct mf_shape *shapes;
    size_t cap;
    struct mf_shape *aiter_keys;
    size_t n_aiter_keys, cap_aiter_keys;
    struct mf_table *baseline; /* NULL: no baseline */
    struct mf_known_row *known;
    bool promote_given, min_effect_given;
    cJSON *errors;          /* errors of rows: [{line, at, code, message}] */
    size_t n_errors;        /* includes errors that are not listed */
    cJSON *unknown_columns; /* ignored columns, same members */
};

void mf_submission_work_free(void *work);
/* Adds an error to the list, which does not stop the submission. Returns 0 or -ENOMEM. */
int mf_submission_error(struct mf_submission_work *w, const char *at, const char *code, const char *message);

/* ---- baseline.c ---- */
/* Parses text and keeps the table. On an error, r has the response. */
int mf_baseline_read(struct mf_submission_work *w, const char *text, struct mf_request *r);
/* Selects the baseline rows of the submitted shapes. Call it after parsing shapes and options. */
int mf_baseline_check(struct mf_submission_work *w, struct mf_response *p);
