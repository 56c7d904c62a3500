#include "worker/runner/library.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/fault.h"
#include "common/base/log.h"
#include "worker/runner/python_family.h"
#include "worker/runner/runner.h"
#include "worker/runner/runner_options.h"

/* The runner of this process. Python has no other place for it: the interface passes no pointers. */
static struct {
    struct mf_runner_options options;
    const struct moefarm_runner_callbacks *callbacks;
    struct mf_runner *runner;
    struct mf_python_family *families[MF_RUNNER_PYTHON_MAX];
    int64_t n_families;
} library;

int moefarm_runner_api(void)
{
    return MOEFARM_RUNNER_API;
}

int moefarm_runner_enter(int n_options, char **options, int n_prefixes, const char *const *prefixes,
                         int n_readable, const char *const *readable,
                         const struct moefarm_runner_callbacks *callbacks)
{
    mf_log_init("moefarm-worker", MF_LOG_INFO);
    int r = mf_fault_init();
    if (r == 0)
        r = mf_runner_options_parse(n_options, options, &library.options);
    if (r < 0)
        return r;
    library.callbacks = callbacks;
    library.options.python = (struct mf_runner_python){.prefixes = prefixes,
                                                       .n_prefixes = (size_t)n_prefixes,
                                                       .readable = readable,
                                                       .n_readable = (size_t)n_readable};
    return mf_runner_new(&library.options, &library.runner);
}

int moefarm_runner_add_family(const char *name, const char *revision, int supports_ep, int opens_rows,
                              const char *const *enumerate, char *why, size_t why_cap)
{
    if (library.n_families == MF_RUNNER_PYTHON_MAX) {
        (void)snprintf(why, why_cap, "a runner has at most %d Python families", MF_RUNNER_PYTHON_MAX);
        return -E2BIG;
    }
    const struct mf_python_family_options o = {.name = name,
                                               .revision = revision,
                                               .device = library.options.device,
                                               .supports_ep = supports_ep != 0,
                                               .opens_rows = opens_rows != 0,
                                               .enumerate = enumerate,
                                               .id = library.n_families,
                                               .callbacks = library.callbacks};
    struct mf_python_family *family = NULL;
    int r = mf_python_family_new(&o, why, why_cap, &family);
    if (r == 0)
        r = mf_runner_add_python(library.runner, family, why, why_cap);
    if (r < 0) {
        mf_python_family_free(family);
        return r;
    }
    library.families[library.n_families++] = family;
    return 0;
}

void moefarm_runner_refuse_family(const char *name, const char *why)
{
    mf_runner_refuse_family(library.runner, name, why);
}

void moefarm_runner_progress(void)
{
    for (int64_t i = 0; i < library.n_families; i++)
        mf_python_family_progress(library.families[i]);
}

int moefarm_runner_run(void)
{
    int code = mf_runner_run(library.runner);
    library.runner = mf_runner_free(library.runner);
    for (int64_t i = 0; i < library.n_families; i++)
        library.families[i] = mf_python_family_free(library.families[i]);
    return code;
}
