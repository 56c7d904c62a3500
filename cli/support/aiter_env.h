/* AITER's environment variables that decide which key production looks up: options of commands, whose
 * defaults are the variables of this process. */
#pragma once

#include "common/base/opts.h"
#include "common/moe/batch_options.h"

#define MF_AITER_ENV_N 3

struct mf_aiter_env {
    struct mf_production_env env;       /* set by mf_aiter_env_read */
    const char *values[MF_AITER_ENV_N]; /* texts of the options; NULL: not given */
    char names[MF_AITER_ENV_N][40], helps[MF_AITER_ENV_N][MF_OPTION_HELP_MAX];
};

/* Returns the value of the option's environment variable, or NULL if it is unset. AITER accepts only "1" for
 * a flag, so any other text is "0". */
const char *mf_aiter_env_text(const struct mf_batch_option *o);
/* Fills in the entries of an option table. */
void mf_aiter_env_options(struct mf_aiter_env *e, struct mf_opt opts[MF_AITER_ENV_N]);
/* Sets e->env from the options and the environment. Returns 0, or an exit status after printing the error. */
int mf_aiter_env_read(const char *command, struct mf_aiter_env *e);
