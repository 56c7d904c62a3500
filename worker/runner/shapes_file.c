#include "worker/runner/shapes_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/cleanup.h"
#include "common/table/table_file.h"

int mf_shapes_file_read(const char *path, struct mf_shape **ret, size_t *ret_n, int *ret_bad)
{
    _cleanup_(mf_table_freep) struct mf_table *t = NULL;
    char why[MF_REASON_MAX];
    int bad = 0, r = mf_table_file_read_part(path, MF_TABLE_SHAPES, &t, why);
    if (r == 0 && t->op != MF_TABLE_FMOE) {
        (void)snprintf(why, sizeof(why), "%s is a table of another operator; expected an untuned_fmoe.csv",
                       path);
        r = -EINVAL;
    }
    if (r < 0) {
        (void)fprintf(stderr, "moefarm-worker: %s%s%s\n", r == -EBADMSG ? path : "",
                      r == -EBADMSG ? ": " : "", why);
        return r;
    }
    struct mf_shape *shapes = calloc(t->n_rows + 1, sizeof(*shapes));
    if (!shapes)
        return -ENOMEM;
    for (size_t i = 0; i < t->n_problems; i++) {
        const struct mf_problem *p = &t->problems[i];
        if (p->severity != MF_ERROR)
            continue;
        (void)fprintf(stderr, "%s:%lld: %s: %s\n", path, (long long)p->line, p->column, p->reason);
        bad++;
    }
    for (size_t i = 0; i < t->n_rows; i++)
        shapes[i] = t->rows[i].shape;
    *ret = shapes;
    *ret_n = t->n_rows;
    *ret_bad = bad;
    return 0;
}
