/* A batch as it comes in: an untuned_fmoe.csv, or JSON, with options. Reading it needs no store, so a reader
 * does it and the writer's turn stays short. */
#pragma once

#include <stdbool.h>

#include "server/farm.h"
#include "server/request.h"

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
    cJSON *errors;   /* [{line, at, code, message}] of bad rows */
    size_t n_errors; /* counted, also those that are not listed */
};

void mf_submission_work_free(void *work);
/* Sets one option from its text. -ENOENT: no such option; -EINVAL: *ret_why (static text) says what is expected. */
int mf_submission_set(struct mf_batch_options *o, const char *name, const char *text, const char **ret_why);
