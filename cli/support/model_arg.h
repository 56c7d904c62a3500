/* A model named on the command line, with options that override values of its checkpoint. */
#pragma once

#include "cli/support/cli.h"
#include "common/table/model.h"

struct mf_model_arg {
    const char *model; /* a shipped name, a hub path, a config.json or its folder */
    const char *q_type, *q_dtype_a, *q_dtype_w, *dtype, *act_type; /* NULL: use the model's value */
};

/* Reads the model. Prints its own error message and returns the exit code, or 0. */
int mf_model_arg_read(const struct mf_model_arg *o, struct mf_model *ret);
/* Reads --fused-shared-experts: a number, yes for all shared experts of the model, or no. Prints its own
 * error message and returns the exit code, or 0. */
int mf_model_arg_fused(const char *text, const struct mf_model *m, int32_t *ret);
/* Prints the shipped models as a table or JSON. Returns the exit code. */
int mf_model_list_print(const struct mf_cli *cli);
