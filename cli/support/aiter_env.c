#include "cli/support/aiter_env.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "cli/support/api.h"
#include "common/base/text.h"

/* Returns the next option after o that has an environment variable. */
static const struct mf_batch_option *next(const struct mf_batch_option *o)
{
    do
        o = mf_batch_option_next(o);
    while (o && !o->environment);
    return o;
}

const char *mf_aiter_env_text(const struct mf_batch_option *o)
{
    const char *text = o->environment ? getenv(o->environment) : NULL;

    if (!text || !*text)
        return NULL;
    if (o->type == MF_OPTION_FLAG)
        return strcmp(text, "1") == 0 ? "1" : "0";
    return text;
}

void mf_aiter_env_options(struct mf_aiter_env *e, struct mf_opt opts[MF_AITER_ENV_N])
{
    size_t n = 0;

    for (const struct mf_batch_option *o = next(NULL); o; o = next(o), n++) {
        assert(n < MF_AITER_ENV_N);
        mf_format(e->names[n], sizeof(e->names[n]), "%s", o->name);
        for (char *c = e->names[n]; *c; c++)
            *c = *c == '_' ? '-' : *c;
        mf_format(e->helps[n], sizeof(e->helps[n]), "%s of production (default: this process's, or %s)",
                  o->environment, mf_batch_option_initial(o));
        opts[n] = (struct mf_opt){.name = e->names[n],
                                  .type = MF_OPT_TEXT,
                                  .value = &e->values[n],
                                  .argument = o->argument,
                                  .help = e->helps[n]};
    }
}

int mf_aiter_env_read(const char *command, struct mf_aiter_env *e)
{
    struct mf_batch_options batch = mf_batch_options_default();
    char expected[MF_OPTION_HELP_MAX];
    size_t n = 0;

    for (const struct mf_batch_option *o = next(NULL); o; o = next(o), n++) {
        const char *text = e->values[n] ? e->values[n] : mf_aiter_env_text(o);

        if (!text || mf_batch_option_parse(o, text, &batch) == 0)
            continue;
        mf_batch_option_expected(o, expected);
        return mf_cli_fail(MF_EXIT_USAGE, "%s: %s%s '%s': %s", command,
                           e->values[n] ? "--" : "environment variable ",
                           e->values[n] ? e->names[n] : o->environment, text, expected);
    }
    e->env = batch.aiter_env;
    return 0;
}
