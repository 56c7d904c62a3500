/* The table of libfmoe: which pipeline serves which call. */
#include "kernels/fmoe.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/table.h"
#include "common/table_file.h"
#include "common/text.h"
#include "kernels/family.h"

struct mf_fmoe {
    struct mf_table *table;
    struct mf_device_class class;
    size_t *row_of;   /* rows of the class: index into table->rows */
    size_t *index_of; /* by index into table->rows: index into row_of; SIZE_MAX for one that is not served */
    size_t n;
    size_t *foreign; /* rows of the class with a step of nobody here: index into table->rows */
    size_t n_foreign;
};
MF_DEFINE_CLEANUP(struct mf_fmoe *, mf_fmoe_close);

/* What becomes of a row: foreign is one with a step of a family that is not here, as a foreign runner's or a shared
 * object's; the table is right, and the row is passed over and told of. */
enum verdict { SERVED, FOREIGN, BROKEN };

/* One name of a pipeline: "family:step", the family one of this device's. */
static enum verdict judge_name(const char *name, size_t len, const char *device_kind,
                               const struct mf_family_set *extra, const char **ret_why)
{
    char text[MF_FAMILY_NAME_MAX + MF_STEP_NAME_MAX], *step = NULL;
    const struct mf_family *family;

    *ret_why = "a step's name is longer than any of ours";
    if (len >= sizeof(text))
        return BROKEN;
    memcpy(text, name, len);
    text[len] = '\0';
    *ret_why = "column pipeline has to hold family:step|family:step";
    step = strchr(text, ':');
    if (!step)
        return BROKEN;
    *step++ = '\0';
    *ret_why = "column pipeline names a step of characters that no step has";
    if (!mf_is_name(step, MF_STEP_NAME_MAX - 1))
        return BROKEN;
    *ret_why = MF_FMOE_FOREIGN_WHY;
    family = mf_family_set_find(extra, device_kind, text);
    if (!family && !mf_family_find(NULL, text))
        return FOREIGN;
    *ret_why = "column pipeline names a family of another kind of device";
    return family && strcmp(family->device_kind, device_kind) == 0 ? SERVED : BROKEN;
}

static enum verdict judge_row(const struct mf_table_row *row, const char *device_kind,
                              const struct mf_family_set *extra, const char **ret_why)
{
    const char *pipeline = row->own[MF_OWN_PIPELINE], *why;
    enum verdict row_is = SERVED;

    *ret_why = "column pipeline is empty: the row was not tuned by moefarm; export with consumer=moefarm";
    if (!pipeline || !*pipeline)
        return BROKEN;
    *ret_why = "column us has to be a positive time";
    if (!(row->us > 0) || !isfinite(row->us))
        return BROKEN;
    for (const char *p = pipeline;; p++) {
        size_t len = strcspn(p, "|");
        enum verdict name_is = judge_name(p, len, device_kind, extra, &why);

        if (name_is > row_is) {
            row_is = name_is;
            *ret_why = why;
        }
        p += len;
        if (row_is == BROKEN || !*p)
            return row_is;
    }
}

static int refuse(const char *path, int64_t line, const char *reason, char *why, size_t why_cap)
{
    mf_say(why, why_cap, "%s:%lld: %s", path, (long long)line, reason);
    return -EBADMSG;
}

/* Production would run whichever of two rows it met first, and nobody could say which. */
static int refuse_clashes(const char *path, const struct mf_table *table, char *why, size_t why_cap)
{
    _cleanup_(mf_freep) struct mf_table_clash *clashes = NULL;
    const struct mf_table *tables[] = {table};
    char reason[MF_REASON_MAX];
    size_t n;
    int r;

    r = mf_table_clashes(tables, 1, &clashes, &n);
    if (r < 0 || n == 0)
        return r;
    mf_say(reason, sizeof(reason), "has the same key as line %lld; keep one of them",
           (long long)clashes[0].a->line);
    return refuse(path, clashes[0].b->line, reason, why, why_cap);
}

static int take_rows(struct mf_fmoe *f, const char *path, const char *device_kind,
                     const struct mf_family_set *extra, char *why, size_t why_cap)
{
    const struct mf_table *t = f->table;

    f->row_of = calloc(t->n_rows + 1, sizeof(*f->row_of));
    f->index_of = calloc(t->n_rows + 1, sizeof(*f->index_of));
    f->foreign = calloc(t->n_rows + 1, sizeof(*f->foreign));
    if (!f->row_of || !f->index_of || !f->foreign)
        return -ENOMEM;
    for (size_t i = 0; i < t->n_rows; i++) {
        const struct mf_table_row *row = &t->rows[i];
        const char *problem;

        f->index_of[i] = SIZE_MAX;
        if (!mf_device_class_equal(&row->class, &f->class) || (row->tag && *row->tag))
            continue;
        switch (judge_row(row, device_kind, extra, &problem)) {
        case BROKEN:
            return refuse(path, row->line, problem, why, why_cap);
        case FOREIGN:
            f->foreign[f->n_foreign++] = i;
            continue;
        case SERVED:
            break;
        }
        f->index_of[i] = f->n;
        f->row_of[f->n++] = i;
    }
    return 0;
}

int mf_fmoe_open(struct mf_device *device, const char *path, char *why, size_t why_cap, struct mf_fmoe **ret)
{
    return mf_fmoe_open_with(device, path, NULL, why, why_cap, ret);
}

int mf_fmoe_open_with(struct mf_device *device, const char *path, const struct mf_family_set *extra,
                      char *why, size_t why_cap, struct mf_fmoe **ret)
{
    _cleanup_(mf_fmoe_closep) struct mf_fmoe *f = NULL;
    char reason[MF_REASON_MAX] = "";
    int r;

    f = calloc(1, sizeof(*f));
    if (!f)
        return -ENOMEM;
    f->class = device->info.class;
    r = mf_table_file_read(path, &f->table, reason);
    if (r < 0) {
        mf_say(why, why_cap, "%s", reason);
        return r;
    }
    if (!f->table->tuned || f->table->op != MF_TABLE_FMOE)
        return refuse(path, 1,
                      "is no tuned_fmoe.csv: its header lacks the result columns, or is another operator's",
                      why, why_cap);
    for (size_t i = 0; i < f->table->n_problems; i++) {
        if (f->table->problems[i].severity == MF_ERROR)
            return refuse(path, f->table->problems[i].line, f->table->problems[i].reason, why, why_cap);
    }
    r = refuse_clashes(path, f->table, why, why_cap);
    if (r < 0)
        return r;
    r = take_rows(f, path, device->ops->kind, extra, why, why_cap);
    if (r < 0)
        return r;
    *ret = MF_TAKE(f);
    return 0;
}

struct mf_fmoe *mf_fmoe_close(struct mf_fmoe *f)
{
    if (!f)
        return NULL;
    mf_table_free(f->table);
    free(f->row_of);
    free(f->index_of);
    free(f->foreign);
    free(f);
    return NULL;
}

size_t mf_fmoe_n_rows(const struct mf_fmoe *f)
{
    return f->n;
}

size_t mf_fmoe_n_foreign(const struct mf_fmoe *f)
{
    return f->n_foreign;
}

int64_t mf_fmoe_foreign_line(const struct mf_fmoe *f, size_t i)
{
    return f->table->rows[f->foreign[i]].line;
}

int mf_fmoe_row(const struct mf_fmoe *f, size_t i, struct mf_shape *ret_shape, double *ret_us,
                const char **ret_pipeline)
{
    const struct mf_table_row *row;

    if (i >= f->n)
        return -ENOENT;
    row = &f->table->rows[f->row_of[i]];
    *ret_shape = row->shape;
    *ret_us = row->us;
    *ret_pipeline = row->own[MF_OWN_PIPELINE];
    return 0;
}

/* Which experts a rank has makes no kernel faster: a row that was tuned for another rank's share serves this one's. */
static int find_other_rank(const struct mf_fmoe *f, struct mf_shape key, size_t *ret_row)
{
    for (size_t i = 0; i < f->n; i++) {
        const struct mf_shape *s = &f->table->rows[f->row_of[i]].shape;

        key.ep_first = s->ep_first;
        if (mf_shape_equal(s, &key)) {
            *ret_row = i;
            return 0;
        }
    }
    return -ENOENT;
}

int mf_fmoe_lookup(const struct mf_fmoe *f, const struct mf_shape *shape, size_t *ret_row)
{
    struct mf_shape key = *shape;
    const struct mf_table_row *row;

    if (shape->token < 1)
        return -ENOENT;
    key.token = mf_token_bucket(shape->token);
    row = mf_table_find(f->table, &f->class, &key);
    if (row && f->index_of[row - f->table->rows] != SIZE_MAX) {
        *ret_row = f->index_of[row - f->table->rows];
        return 0;
    }
    return key.ep_experts > 0 ? find_other_rank(f, key, ret_row) : -ENOENT;
}
