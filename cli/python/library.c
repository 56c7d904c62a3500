#include "cli/python/library.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cli/program.h"
#include "worker/runner/python_family.h"

#define ROWS_SUFFIX ".rows"

/* A Python family as two families: its steps, for tables of moefarm, and the rows of its framework. */
enum part { PART_STEPS, PART_ROWS, PARTS };

/* The families of this process. Python has no other place for them: the interface passes no pointers. */
static struct {
    struct mf_python_family *families[MF_OPERATORS_MAX][PARTS];
    const struct mf_family *set[MF_OPERATORS_MAX * PARTS];
    size_t n;
} library;

int moefarm_cli_api(void)
{
    return MOEFARM_CLI_API;
}

static int add_part(const struct mf_python_family_options *o, enum part part, char *why, size_t why_cap)
{
    struct mf_python_family *f = NULL;
    int r = mf_python_family_new(o, why, why_cap, &f);
    if (r < 0)
        return r;
    library.families[library.n][part] = f;
    library.set[library.n * PARTS + part] = mf_python_family(f);
    return 0;
}

int moefarm_cli_add_family(const char *name, const char *device, int supports_ep,
                           const char *const *enumerate, const struct moefarm_runner_callbacks *callbacks,
                           char *why, size_t why_cap)
{
    char rows[MF_FAMILY_NAME_MAX + sizeof(ROWS_SUFFIX)];
    struct mf_python_family_options o = {.name = name,
                                         .revision = "",
                                         .device = device,
                                         .supports_ep = supports_ep != 0,
                                         .enumerate = enumerate,
                                         .id = (int64_t)library.n,
                                         .callbacks = callbacks};
    if (library.n == MF_OPERATORS_MAX) {
        (void)snprintf(why, why_cap, "at most %d Python families", MF_OPERATORS_MAX);
        return -E2BIG;
    }
    int r = add_part(&o, PART_STEPS, why, why_cap);
    if (r < 0)
        return r;
    (void)snprintf(rows, sizeof(rows), "%s" ROWS_SUFFIX, name);
    o.name = rows;
    o.enumerate = NULL;
    r = add_part(&o, PART_ROWS, why, why_cap);
    if (r < 0)
        library.families[library.n][PART_STEPS] =
            mf_python_family_free(library.families[library.n][PART_STEPS]);
    else
        library.n++;
    return r;
}

static int add_row(const char *family, const struct mf_shape *shape, const char *json, char *step, size_t cap)
{
    char name[MF_STEP_NAME_MAX];
    for (size_t i = 0; i < library.n; i++) {
        const struct mf_family *of = library.set[i * PARTS + PART_STEPS];
        if (strcmp(of->name, family) != 0)
            continue;
        int r = mf_python_family_add_row(library.families[i][PART_ROWS], shape, json, name);
        if (r == 0)
            (void)snprintf(step, cap, "%s" ROWS_SUFFIX ":%s", family, name);
        return r;
    }
    return -ENOENT;
}

int moefarm_cli_run(int argc, char **argv)
{
    const struct mf_operators operators = {.families = {library.set, library.n * PARTS}, .add_row = add_row};
    int code = mf_program_run(argc, argv, &operators);
    for (size_t i = 0; i < library.n; i++) {
        for (int part = 0; part < PARTS; part++)
            library.families[i][part] = mf_python_family_free(library.families[i][part]);
    }
    library.n = 0;
    return code;
}
