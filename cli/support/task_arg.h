/* A task as people name it: its number, or a shape (cli/support/shape_arg.h) within a batch. */
#pragma once

#include <cjson/cJSON.h>

#include "cli/support/cli.h"

/* Gives the task's id. word: a number or a shape. batch: where a shape is looked for; 0: the newest batch that has it.
 * When a pattern fits several tasks they are listed and MF_EXIT_USAGE comes back. 0, or the exit code after a message. */
int mf_task_arg(struct mf_cli *cli, const char *word, int64_t batch, int64_t *ret_task);
