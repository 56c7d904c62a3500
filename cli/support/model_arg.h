/* A model as people name it on the command line, and what they say of it otherwise than its checkpoint does. */
#pragma once

#include "cli/support/cli.h"
#include "common/table/model.h"

struct mf_model_arg {
    const char *model; /* a shipped name, a place on the hub, a config.json or its folder */
    const char *q_type, *q_dtype_a, *q_dtype_w, *dtype, *act_type; /* NULL: the model's own */
};

/* Reads it. Gives the exit code, or 0. */
int mf_model_arg_read(const struct mf_model_arg *o, struct mf_model *ret);
/* The models that are shipped, as a table or as JSON. Gives the exit code. */
int mf_model_list_print(const struct mf_cli *cli);
