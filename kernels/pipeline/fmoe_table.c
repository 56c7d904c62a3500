/* Tuned tables of libfmoe: reading, checking and lookup. */
#include "kernels/pipeline/fmoe.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "common/table/table.h"
#include "common/table/table_file.h"
#include "kernels/core/family.h"

struct file {
    char *path;
    struct mf_table *table;
    /* for each row of the table: its index in mf_fmoe.rows, or SIZE_MAX if the row is not served */
    size_t *index_of;
};

struct row_ref {
    size_t file, row; /* index of the file, and index of the row within the file */
    char *pipeline;   /* with current family names; NULL for foreign rows */
};

struct mf_fmoe {
    struct mf_device_class class;
    struct file *files;
    size_t n_files;
    struct row_ref *rows; /* rows of the device class, in the order of the files */
    size_t n;
    struct row_ref *foreign; /* rows of the device class that have a step of an unknown family */
    size_t n_foreign;
};
MF_DEFINE_CLEANUP(struct mf_fmoe *, mf_fmoe_close);

static const struct mf_table_row *row_at(const struct mf_fmoe *f, const struct row_ref *p)
{
    return &f->files[p->file].table->rows[p->row];
}

/* FOREIGN: the family of a step is not in this build, for example because a Python module or a shared object
 * provides it. Such a row is valid, but it is only counted and not served. */
enum verdict { SERVED, FOREIGN, BROKEN };

/* Checks one name of a pipeline, "family:step". The family must run on this kind of device. */
static enum verdict judge_name(const char *name, size_t len, const char *device_kind,
                               const struct mf_family_set *extra, const char **ret_why)
{
    char family_name[MF_FAMILY_NAME_MAX], step[MF_STEP_NAME_MAX];
    const struct mf_family *family;
    int r = mf_step_name_split(name, len, family_name, step);

    if (r < 0) {
        *ret_why = r == -EINVAL ? "column pipeline: expected family:step|family:step"
                                : "column pipeline has a name that is too long for a family or a step";
        return BROKEN;
    }
    *ret_why = "column pipeline has a step name with invalid characters";
    if (!mf_is_name(step, MF_STEP_NAME_MAX - 1))
        return BROKEN;
    *ret_why = MF_FMOE_FOREIGN_REASON;
    family = mf_family_set_find(extra, device_kind, family_name);
    if (!family && !mf_family_find(NULL, family_name))
        return FOREIGN;
    *ret_why = "column pipeline names a family of another device kind";
    return family && strcmp(family->device_kind, device_kind) == 0 ? SERVED : BROKEN;
}

static bool is_unnamed(const struct mf_table_row *row)
{
    return !row->own[MF_OWN_PIPELINE] || !*row->own[MF_OWN_PIPELINE];
}

static enum verdict judge_row(const struct mf_table_row *row, const char *device_kind,
                              const struct mf_family_set *extra, const char **ret_why)
{
    const char *pipeline = row->own[MF_OWN_PIPELINE], *name, *why;
    enum verdict row_is = SERVED;
    size_t len;

    *ret_why =
        "column pipeline is empty, so libfmoe cannot run the row; export the table with consumer=moefarm";
    if (is_unnamed(row))
        return BROKEN;
    *ret_why = "column us: expected a positive time";
    if (!(row->us > 0) || !isfinite(row->us))
        return BROKEN;
    while (row_is != BROKEN && mf_pipeline_text_next(&pipeline, &name, &len)) {
        enum verdict name_is = judge_name(name, len, device_kind, extra, &why);

        if (name_is > row_is) {
            row_is = name_is;
            *ret_why = why;
        }
    }
    return row_is;
}

static int refuse(const char *path, int64_t line, const char *reason, char *why, size_t why_cap)
{
    mf_format(why, why_cap, "%s:%lld: %s", path, (long long)line, reason);
    return -EBADMSG;
}

/* Rejects two rows with the same key, because production would use the row that it happens to read first. */
static int refuse_clashes(const struct mf_fmoe *f, char *why, size_t why_cap)
{
    _cleanup_(mf_freep) struct mf_table_clash *clashes = NULL;
    _cleanup_(mf_freep) const struct mf_table **tables = calloc(f->n_files, sizeof(*tables));
    char reason[MF_REASON_MAX];
    size_t n;
    int r;

    if (!tables)
        return -ENOMEM;
    for (size_t i = 0; i < f->n_files; i++)
        tables[i] = f->files[i].table;
    r = mf_table_clashes(tables, f->n_files, &clashes, &n);
    if (r < 0 || n == 0)
        return r;
    if (clashes[0].table_a == clashes[0].table_b)
        mf_format(reason, sizeof(reason), "has the same key as line %lld; keep one of them",
                  (long long)clashes[0].a->line);
    else
        mf_format(reason, sizeof(reason), "has the same key as %s:%lld; keep one of them",
                  clashes[0].table_a->name, (long long)clashes[0].a->line);
    return refuse(clashes[0].table_b->name, clashes[0].b->line, reason, why, why_cap);
}

static char *current_pipeline(const struct mf_table_row *row)
{
    char text[MF_PIPELINE_TEXT_MAX];
    int r = mf_pipeline_text_current(row->own[MF_OWN_PIPELINE], text, sizeof(text));
    return strdup(r == 0 ? text : row->own[MF_OWN_PIPELINE]);
}

/* A row without a pipeline makes the table invalid, or is skipped. */
enum unnamed { REFUSE_UNNAMED, SKIP_UNNAMED };

static int take_rows(struct mf_fmoe *f, size_t file, const char *device_kind,
                     const struct mf_family_set *extra, enum unnamed unnamed, char *why, size_t why_cap)
{
    const struct mf_table *t = f->files[file].table;

    for (size_t i = 0; i < t->n_rows; i++) {
        const struct mf_table_row *row = &t->rows[i];
        struct row_ref place = {file, i, NULL};
        const char *problem;

        f->files[file].index_of[i] = SIZE_MAX;
        if (!mf_device_class_equal(&row->class, &f->class) ||
            !mf_lookup_considers(MF_LOOKUP_MOEFARM, t, row) || (unnamed == SKIP_UNNAMED && is_unnamed(row)))
            continue;
        switch (judge_row(row, device_kind, extra, &problem)) {
        case BROKEN:
            return refuse(f->files[file].path, row->line, problem, why, why_cap);
        case FOREIGN:
            f->foreign[f->n_foreign++] = place;
            continue;
        case SERVED:
            break;
        }
        place.pipeline = current_pipeline(row);
        if (!place.pipeline) {
            mf_format(why, why_cap, "out of memory");
            return -ENOMEM;
        }
        f->files[file].index_of[i] = f->n;
        f->rows[f->n++] = place;
    }
    return 0;
}

static int read_file(struct file *file, const char *path, char *why, size_t why_cap)
{
    char reason[MF_REASON_MAX] = "";
    const struct mf_table *t;
    int r;

    file->path = strdup(path);
    r = file->path ? mf_table_file_read(path, &file->table, reason) : -ENOMEM;
    if (r < 0) {
        mf_format(why, why_cap, "%s%s%s", r == -EBADMSG ? path : "", r == -EBADMSG ? ": " : "",
                  *reason ? reason : "out of memory");
        return r;
    }
    t = file->table;
    if (!t->tuned || t->op != MF_TABLE_FMOE)
        return refuse(path, 1,
                      "not a tuned_fmoe.csv: the header lacks result columns or belongs to another operator",
                      why, why_cap);
    for (size_t i = 0; i < t->n_problems; i++) {
        if (t->problems[i].severity == MF_ERROR)
            return refuse(path, t->problems[i].line, t->problems[i].reason, why, why_cap);
    }
    file->index_of = calloc(t->n_rows + 1, sizeof(*file->index_of));
    return file->index_of ? 0 : -ENOMEM;
}

static int open_tables(struct mf_device *device, const char *const *paths, size_t n,
                       const struct mf_family_set *extra, enum unnamed unnamed, char *why, size_t why_cap,
                       struct mf_fmoe **ret)
{
    _cleanup_(mf_fmoe_closep) struct mf_fmoe *f = calloc(1, sizeof(*f));
    size_t n_rows = 0;
    int r;

    mf_format(why, why_cap, "out of memory");
    if (!f)
        return -ENOMEM;
    f->class = device->info.class;
    f->files = calloc(n + 1, sizeof(*f->files));
    if (!f->files)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        f->n_files = i + 1;
        r = read_file(&f->files[i], paths[i], why, why_cap);
        if (r < 0)
            return r;
        n_rows += f->files[i].table->n_rows;
    }
    r = refuse_clashes(f, why, why_cap);
    if (r < 0)
        return r;
    f->rows = calloc(n_rows + 1, sizeof(*f->rows));
    f->foreign = calloc(n_rows + 1, sizeof(*f->foreign));
    if (!f->rows || !f->foreign)
        return -ENOMEM;
    for (size_t i = 0; i < n && r == 0; i++)
        r = take_rows(f, i, device->ops->kind, extra, unnamed, why, why_cap);
    if (r < 0)
        return r;
    *ret = MF_TAKE(f);
    return 0;
}

int mf_fmoe_open(struct mf_device *device, const char *const *paths, size_t n,
                 const struct mf_family_set *extra, char *why, size_t why_cap, struct mf_fmoe **ret)
{
    return open_tables(device, paths, n, extra, REFUSE_UNNAMED, why, why_cap, ret);
}

int mf_fmoe_open_mixed(struct mf_device *device, const char *path, const struct mf_family_set *extra,
                       char *why, size_t why_cap, struct mf_fmoe **ret)
{
    return open_tables(device, &path, 1, extra, SKIP_UNNAMED, why, why_cap, ret);
}

struct mf_fmoe *mf_fmoe_close(struct mf_fmoe *f)
{
    if (!f)
        return NULL;
    for (size_t i = 0; i < f->n_files; i++) {
        free(f->files[i].path);
        mf_table_free(f->files[i].table);
        free(f->files[i].index_of);
    }
    for (size_t i = 0; i < f->n; i++)
        free(f->rows[i].pipeline);
    free(f->files);
    free(f->rows);
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
    return row_at(f, &f->foreign[i])->line;
}

const char *mf_fmoe_foreign_path(const struct mf_fmoe *f, size_t i)
{
    return f->files[f->foreign[i].file].path;
}

size_t mf_fmoe_n_read(const struct mf_fmoe *f)
{
    size_t n = 0;

    for (size_t i = 0; i < f->n_files; i++)
        n += f->files[i].table->n_rows;
    return n;
}

int mf_fmoe_row(const struct mf_fmoe *f, size_t i, struct mf_shape *ret_shape, double *ret_us,
                const char **ret_pipeline)
{
    const struct mf_table_row *row;

    if (i >= f->n)
        return -ENOENT;
    row = row_at(f, &f->rows[i]);
    *ret_shape = row->shape;
    *ret_us = row->us;
    *ret_pipeline = f->rows[i].pipeline;
    return 0;
}

const char *mf_fmoe_row_location(const struct mf_fmoe *f, size_t i, int64_t *ret_line)
{
    *ret_line = row_at(f, &f->rows[i])->line;
    return f->files[f->rows[i].file].path;
}

const char *mf_fmoe_row_model(const struct mf_fmoe *f, size_t i)
{
    const char *model = row_at(f, &f->rows[i])->own[MF_OWN_MODEL];

    return model ? model : "";
}

size_t mf_fmoe_n_other_model(const struct mf_fmoe *f, const char *here, const char **ret_there)
{
    size_t n = 0;

    *ret_there = "";
    for (size_t i = 0; i < f->n; i++) {
        const char *model = mf_fmoe_row_model(f, i);

        if (!*model || strcmp(model, here) == 0)
            continue;
        if (n++ == 0)
            *ret_there = model;
    }
    return n;
}

static int find_key(const struct mf_fmoe *f, const struct mf_shape *key, size_t *ret_row)
{
    for (size_t i = 0; i < f->n_files; i++) {
        const struct file *file = &f->files[i];
        const struct mf_table_row *row = mf_table_find(file->table, &f->class, key);

        if (row && file->index_of[row - file->table->rows] != SIZE_MAX) {
            *ret_row = file->index_of[row - file->table->rows];
            return 0;
        }
    }
    return -ENOENT;
}

static int find_any(const struct mf_fmoe *f, const struct mf_lookup_try *attempt, size_t *ret_row)
{
    for (size_t i = 0; i < f->n; i++) {
        if (mf_lookup_matches(attempt, &row_at(f, &f->rows[i])->shape)) {
            *ret_row = i;
            return 0;
        }
    }
    return -ENOENT;
}

int mf_fmoe_lookup(const struct mf_fmoe *f, const struct mf_shape *shape, enum mf_lookup rules,
                   size_t *ret_row)
{
    struct mf_lookup_try tries[MF_LOOKUP_TRIES_MAX];
    size_t n = shape->token < 1 ? 0 : mf_lookup_tries(shape, rules, NULL, tries);
    int r = -ENOENT;

    for (size_t i = 0; i < n && r == -ENOENT; i++)
        r = tries[i].any == 0 ? find_key(f, &tries[i].key, ret_row) : find_any(f, &tries[i], ret_row);
    return r;
}
