/* Production operators of frameworks, such as aiter.fused_moe, which run the rows of the framework's own
 * tables. They are Python families (python/moefarm/family.py). A command that needs them starts the user's
 * interpreter, which loads this program again as a library (cli/python/library.h). */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "common/base/opts.h"
#include "common/moe/shape.h"
#include "kernels/core/family.h"

#define MOEFARM_CLI_API  1
#define MOEFARM_CLI_FILE "libmoefarm-cli.so"
#define MOEFARM_CLI_BOOT "python/moefarm/boot.py"
#define MF_OPERATORS_MAX 16 /* maximum number of Python families */

/* The families that an interpreter has imported. */
struct mf_operators {
    struct mf_family_set families;
    /* Returns a step for the whole layer that runs a row of the framework's table. json: the row, an object.
     * -ENOENT: unknown family; -EINVAL: Python families cannot describe the layer; -ENOMEM. */
    int (*add_row)(const char *family, const struct mf_shape *shape, const char *json, struct mf_step *ret);
};

struct mf_operators_options {
    const char *python; /* NULL: none */
    struct mf_opt_list family_py;
    const char *modules[MF_OPERATORS_MAX]; /* of family_py */
};
#define MF_OPERATORS_OPTS 2
void mf_operators_opts(struct mf_operators_options *o, struct mf_opt opts[MF_OPERATORS_OPTS]);

struct mf_cli;
/* Runs the whole command in the interpreter that the options name, and returns true with the exit code in
 * *ret_code. If the interpreter cannot start, prints a message and also returns true. Returns false if the
 * options name no interpreter, or if this process already runs in one. */
bool mf_operators_run(const struct mf_cli *cli, const struct mf_operators_options *o, const char *device,
                      int *ret_code);
/* True if one of the families has this name. `operators` may be NULL. */
bool mf_operators_have(const struct mf_operators *operators, const char *family);
