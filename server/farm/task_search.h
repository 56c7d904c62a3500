/* Selects the part of a task's candidates that is measured if its batch has a time budget.
 *
 * Candidates that can replace each other in every pipeline (of one family, with the same ops and tensor
 * specs) form a space. Small spaces are measured as a whole. Large ones are searched by successive halving
 * (server/choose/halving.h), in rounds of units. A search starts from the fastest candidates of the tasks
 * with the most similar shapes, including tasks of earlier batches. It ends when no space has further
 * candidates to measure or when the time budget is spent. The first round ignores the budget. */
#pragma once

#include "server/farm/farm_private.h"
#include "server/farm/step_selection.h"

bool mf_task_search_applies(const struct mf_task *g);
/* Reduces the selection, which has all steps that may be measured, to those of the next round. No unit of the
 * task may be open. No steps are left if the search has ended. */
int mf_task_search_next(struct mf_farm *f, const struct mf_task *g, struct mf_step_selection *s);
