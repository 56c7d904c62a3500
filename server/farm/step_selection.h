/* Selects which steps of a task's enumerations are measured. Stores a rejection for each of the others. */
#pragma once

#include "server/farm/farm_private.h"

struct mf_step_selection {
    struct mf_step_row *steps; /* the caller frees it */
    size_t n;
    /* per consumer: number of selected steps that it dispatches, and why it does not dispatch another one */
    size_t n_of[MF_CONSUMER_N_];
    char why_not[MF_CONSUMER_N_][MF_CONSUMER_WHY_MAX];
};
/* The task must have its device model, if it is known. On an error, too, the caller frees ret->steps. */
int mf_steps_select(struct mf_farm *f, struct mf_task *g, struct mf_step_selection *ret);
