#include "cli/python/library.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cli/program.h"
#include "worker/runner/python_family.h"

/* The families of this process. Global, because the interface passes no pointers to Python. */
static struct {
    struct mf_python_family *families[MF_OPERATORS_MAX];
    const struct mf_family *set[MF_OPERATORS_MAX];
    size_t n;
} library;

int moefarm_cli_api(void)
{
    return MOEFARM_CLI_API;
}

int moefarm_cli_add_family(const char *name, const char *device, int supports_ep,
                           const char *const *enumerate, const struct moefarm_runner_callbacks *callbacks,
                           char *why, size_t why_cap)
{
    const struct mf_python_family_options o = {.name = name,
                                               .revision = "",
                                               .device = device,
                                               .supports_ep = supports_ep != 0,
                                               .enumerate = enumerate,
                                               .id = (int64_t)library.n,
                                               .callbacks = callbacks};
    if (library.n == MF_OPERATORS_MAX) {
        (void)snprintf(why, why_cap, "expected at most %d Python families", MF_OPERATORS_MAX);
        return -E2BIG;
    }
    int r = mf_python_family_new(&o, why, why_cap, &library.families[library.n]);
    if (r < 0)
        return r;
    library.set[library.n] = mf_python_family(library.families[library.n]);
    library.n++;
    return 0;
}

static int add_row(const char *family, const struct mf_shape *shape, const char *json, struct mf_step *ret)
{
    for (size_t i = 0; i < library.n; i++) {
        if (strcmp(library.set[i]->name, family) == 0)
            return mf_python_family_add_row(library.families[i], shape, json, ret);
    }
    return -ENOENT;
}

int moefarm_cli_run(int argc, char **argv)
{
    const struct mf_operators operators = {.families = {library.set, library.n}, .add_row = add_row};
    int code = mf_program_run(argc, argv, &operators);
    for (size_t i = 0; i < library.n; i++)
        library.families[i] = mf_python_family_free(library.families[i]);
    library.n = 0;
    return code;
}
