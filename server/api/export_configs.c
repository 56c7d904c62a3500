#include "server/api/export_configs.h"

#include "common/base/array.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/table/triton/triton_export.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MODEL_MAX 128

/* A row with the texts that it points to. */
struct owned_row {
    struct mf_shape shape;
    double us;
    char class[MF_DEVICE_CLASS_TEXT_MAX], model[MODEL_MAX], step[MF_STEP_NAME_MAX];
    char version[MF_TRITON_VERSION_MAX];
    bool left_out;
};

struct configs {
    const struct mf_export_options *options;
    cJSON *left_out;
    struct owned_row *owned;
    struct mf_triton_row *rows; /* row i points to owned[i] */
    size_t n, cap;
};

int mf_consumer_framework(enum mf_consumer consumer, enum mf_framework *ret)
{
    return mf_framework_parse(mf_consumer_name(consumer), ret);
}

/* ---- rows ---- */

static void find_version(const struct mf_export_config *c, const char *fallback,
                         char ret[MF_TRITON_VERSION_MAX])
{
    _cleanup_(cJSON_Deletep) cJSON *provenance =
        mf_json_parse(c->provenance, strlen(c->provenance), strlen(c->provenance));
    static const char *const members[] = {"compiler", "revision"}; /* of the worker; of its families */
    for (size_t i = 0; i < MF_ARRAY_LEN(members); i++) {
        const char *text = "";
        (void)mf_json_text(provenance, members[i], &text);
        if (mf_triton_version_find(text, ret) == 0)
            return;
    }
    mf_format(ret, MF_TRITON_VERSION_MAX, "%s", fallback ? fallback : "");
}

static int add_row(const struct mf_export_config *c, const struct mf_table_row *row, void *data)
{
    struct configs *x = data;
    int r = mf_array_grow(&x->owned, x->n, &x->cap, sizeof(*x->owned));
    if (r < 0)
        return r;
    struct owned_row *o = &x->owned[x->n++];
    *o = (struct owned_row){.shape = row->shape, .us = c->us};
    mf_device_class_print(&c->class, o->class);
    mf_format(o->model, sizeof(o->model), "%s", c->model);
    mf_format(o->step, sizeof(o->step), "%s", c->n_steps > 0 ? c->steps[0].name : "");
    find_version(c, x->options->triton, o->version);
    return 0;
}

static int point_rows(struct configs *x)
{
    x->rows = calloc(x->n + 1, sizeof(*x->rows));
    if (!x->rows)
        return -ENOMEM;
    for (size_t i = 0; i < x->n; i++) {
        const struct owned_row *o = &x->owned[i];
        x->rows[i] = (struct mf_triton_row){o->shape, o->model, o->step, o->version, o->us};
    }
    return 0;
}

static int leave_out(const struct mf_triton_row *row, const char *reason, void *data)
{
    struct configs *x = data;
    struct owned_row *owned = &x->owned[row - x->rows];
    char shape[MF_SHAPE_TEXT_MAX];
    mf_shape_print(&row->shape, shape);
    owned->left_out = true;
    return mf_export_leave_out(x->left_out, owned->class, row->model, shape, row->us, reason);
}

/* ---- files ---- */

static cJSON *make_json(enum mf_framework framework, const struct mf_triton_export *made)
{
    cJSON *o = cJSON_CreateObject(), *files;
    cJSON_AddStringToObject(o, "consumer", mf_framework_name(framework));
    cJSON_AddStringToObject(o, "variable", mf_framework_variable(framework));
    files = cJSON_AddObjectToObject(o, "files");
    for (size_t i = 0; i < made->n_files; i++) {
        if (cJSON_AddStringToObject(files, made->files[i].path, made->files[i].content))
            continue;
        cJSON_Delete(o);
        return NULL;
    }
    return o;
}

static int make(struct configs *x, enum mf_framework framework, cJSON **ret)
{
    struct mf_triton_export made = MF_TRITON_EXPORT_INIT;
    int r = point_rows(x);
    if (r == 0)
        r = mf_triton_export(framework, x->rows, x->n, leave_out, x, &made);
    if (r == 0)
        *ret = make_json(framework, &made);
    mf_triton_export_release(&made);
    return r < 0 ? r : *ret ? 0 : -ENOMEM;
}

/* ---- the rows in the files ---- */

struct second_pass {
    const struct configs *configs;
    size_t n;
};

static int pass_on(const struct mf_export_config *c, const struct mf_table_row *row, void *data)
{
    struct second_pass *p = data;
    const struct mf_export_options *o = p->configs->options;
    return p->configs->owned[p->n++].left_out ? 0 : o->on_row(c, row, o->data);
}

/* Calls on_row for the rows that are in a file. The texts of the first pass are gone, so the rows are read
 * again, from the same snapshot and therefore in the same order. */
static int report_rows(struct mf_store *s, const struct configs *x)
{
    _cleanup_(mf_table_freep) struct mf_table *table = NULL;
    _cleanup_(cJSON_Deletep) cJSON *left_out = NULL;
    struct second_pass p = {.configs = x};
    struct mf_export_options options = *x->options;
    options.on_row = pass_on;
    options.data = &p;
    return x->options->on_row ? mf_export(s, &options, &table, &left_out) : 0;
}

int mf_export_configs(struct mf_store *s, const struct mf_export_options *o, cJSON **ret,
                      cJSON **ret_left_out)
{
    _cleanup_(mf_table_freep) struct mf_table *table = NULL;
    _cleanup_(cJSON_Deletep) cJSON *left_out = NULL, *made = NULL;
    struct mf_export_options options = *o;
    struct configs x = {.options = o};
    enum mf_framework framework;
    int r = mf_consumer_framework(o->consumer, &framework);
    if (r < 0)
        return r;
    options.on_row = add_row;
    options.data = &x;
    r = mf_export(s, &options, &table, &left_out);
    x.left_out = left_out;
    if (r == 0)
        r = make(&x, framework, &made);
    if (r == 0)
        r = report_rows(s, &x);
    free(x.owned);
    free(x.rows);
    if (r < 0)
        return r;
    *ret = MF_TAKE(made);
    *ret_left_out = MF_TAKE(left_out);
    return 0;
}
