/* Resolves a task named on the command line: its number, or a shape (cli/support/shape_arg.h) within a batch.
 */
#pragma once

#include <cjson/cJSON.h>

#include "cli/support/cli.h"

/* `word` is a number or a shape. A shape is looked up in `batch`; if batch is 0, in the newest batch that has
 * the shape. If several tasks match, lists them and returns MF_EXIT_USAGE. Returns 0, or the exit code after
 * a message. */
int mf_task_arg(struct mf_cli *cli, const char *word, int64_t batch, int64_t *ret_task);
