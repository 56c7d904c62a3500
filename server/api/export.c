#include "server/api/export.h"

#include "common/base/json.h"
#include "common/base/text.h"
#include "common/moe/pipeline_text.h"
#include "common/moe/production_key.h"
#include "common/moe/routing.h"
#include "common/table/aiter_row.h"
#include "common/table/table_formula.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

struct export
{
    const struct mf_export_options *options;
    struct mf_table *table;
    cJSON *left_out;
};

/* True if the table has moefarm's columns. */
static bool has_own_columns(const struct mf_export_options *o)
{
    return o->consumer == MF_CONSUMER_MOEFARM || o->provenance;
}

int mf_export_leave_out(cJSON *list, const char *class, const char *model, const char *shape, double us,
                        const char *reason)
{
    cJSON *o = cJSON_CreateObject();
    if (!o || !cJSON_AddItemToArray(list, o))
        return -ENOMEM;
    cJSON_AddStringToObject(o, "class", class);
    cJSON_AddItemToObject(o, "model", model ? cJSON_CreateString(model) : cJSON_CreateNull());
    cJSON_AddStringToObject(o, "shape", shape);
    cJSON_AddItemToObject(o, "us", us > 0 ? cJSON_CreateNumber(us) : cJSON_CreateNull());
    cJSON_AddStringToObject(o, "reason", reason);
    return 0;
}

static int leave_out(struct export *x, const char *class, const char *model, const char *shape, double us,
                     const char *reason)
{
    return mf_export_leave_out(x->left_out, class, model, shape, us, reason);
}

/* Copies text into a CSV cell. Replaces commas and quotes, because consumers split at commas and know no
 * quoting. Strips leading "=+-@", so that spreadsheets do not run the cell as a formula. */
static void copy_cell(char *dst, size_t cap, const char *text)
{
    mf_format(dst, cap, "%s", text ? text : "");
    for (char *p = dst; *p; p++)
        if (*p == ',' || *p == '"' || (unsigned char)*p < 0x20 || *p == 0x7f)
            *p = ' ';
    size_t from = strspn(dst, " =+-@"), len = strlen(dst + from);
    while (len > 0 && dst[from + len - 1] == ' ')
        len--;
    memmove(dst, dst + from, len);
    dst[len] = '\0';
}

void mf_export_join(const struct mf_export_config *c, char *dst, size_t cap)
{
    *dst = '\0';
    for (int i = 0; i < c->n_steps; i++)
        (void)mf_pipeline_text_add(dst, cap, c->steps[i].family, c->steps[i].name);
}

/* Computes the row's columns for AITER. Returns -ENOENT if no step of the pipeline covers a GEMM. */
static int find_aiter_row(const struct mf_export_config *c, struct mf_aiter_row *ret)
{
    struct mf_aiter_step steps[MF_EXPORT_STEPS_MAX];
    for (int i = 0; i < c->n_steps; i++)
        steps[i] = (struct mf_aiter_step){c->steps[i].name, c->steps[i].covers, c->steps[i].ksplit,
                                          c->steps[i].aiter};
    return mf_aiter_row(steps, (size_t)c->n_steps, c->block_m, ret);
}

static const char *text_of(const cJSON *json, const char *key)
{
    const char *text = "";
    (void)mf_json_text(json, key, &text);
    return text;
}

/* Storage of a row's texts until mf_table_add copies them. */
struct row_texts {
    char pipeline[MF_EXPORT_PIPELINE_MAX];
    char layout[128], model[128], revision[512], compiler[256], routing[MF_ROUTING_TEXT_MAX], seed[32], n[24],
        mad[32], provenance[64], form[MF_SHAPE_FORM_MAX], unstable[MF_REASON_MAX];
};

static void fill_own(const struct mf_export_config *c, const cJSON *provenance, struct row_texts *t,
                     struct mf_table_row *row)
{
    double seed = 0;
    (void)mf_json_double(provenance, "seed", &seed);
    const char *search = text_of(provenance, "search");
    mf_export_join(c, t->pipeline, sizeof(t->pipeline));
    copy_cell(t->layout, sizeof(t->layout), c->layout);
    copy_cell(t->model, sizeof(t->model), c->model);
    copy_cell(t->revision, sizeof(t->revision), text_of(provenance, "revision"));
    copy_cell(t->compiler, sizeof(t->compiler), text_of(provenance, "compiler"));
    copy_cell(t->routing, sizeof(t->routing), text_of(provenance, "routing"));
    mf_format(t->seed, sizeof(t->seed), "%.0f", seed);
    mf_format(t->n, sizeof(t->n), "%lld", (long long)c->n);
    mf_format(t->mad, sizeof(t->mad), "%.4f", isnan(c->mad) ? 0 : c->mad);
    copy_cell(t->unstable, sizeof(t->unstable), c->unstable);
    mf_format(t->provenance, sizeof(t->provenance), "moefarm:%s",
              c->promoted ? "promoted"
              : *search   ? search
                          : "race");
    row->own[MF_OWN_PIPELINE] = t->pipeline;
    row->own[MF_OWN_LAYOUT] = t->layout;
    row->own[MF_OWN_MODEL] = t->model;
    row->own[MF_OWN_REVISION] = t->revision;
    row->own[MF_OWN_COMPILER] = t->compiler;
    row->own[MF_OWN_ROUTING] = t->routing;
    row->own[MF_OWN_SEED] = t->seed;
    row->own[MF_OWN_N] = t->n;
    row->own[MF_OWN_MAD] = t->mad;
    row->own[MF_OWN_PROVENANCE] = t->provenance;
    (void)mf_shape_get(&row->shape, MF_SHAPE_FORM, t->form, sizeof(t->form));
    row->own[MF_OWN_FORM] = t->form;
    row->own[MF_OWN_UNSTABLE] = t->unstable;
}

/* Returns AITER's environment for which the config's batch was tuned. */
static struct mf_production_env production_env(const struct mf_export_config *c)
{
    struct mf_batch_options options = mf_batch_options_default();
    _cleanup_(cJSON_Deletep) cJSON *json = mf_json_parse(c->options, strlen(c->options), strlen(c->options));
    mf_batch_options_read(json, &options);
    return options.aiter_env;
}

/* Returns true, and the reason, if production looks up another key than the row's. */
static bool has_other_key(const struct mf_export_config *c, const struct mf_shape *shape, char *why,
                          size_t cap)
{
    struct mf_shape key;
    char rule[MF_REASON_MAX] = "";
    const struct mf_production_env env = production_env(c);
    if (mf_production_row(shape, &env, &key, rule, sizeof(rule)) == 0)
        return false;
    mf_format(why, cap, "%s; submit a batch with consumer=aiter to tune the key that production computes",
              rule);
    return true;
}

/* Returns true, and the reason, if the consumer does not dispatch the row. */
static bool consumer_refuses(enum mf_consumer consumer, const struct mf_export_config *c,
                             const struct mf_shape *shape, char why[MF_CONSUMER_WHY_MAX])
{
    struct mf_consumer_step steps[MF_EXPORT_STEPS_MAX];
    for (int i = 0; i < c->n_steps; i++)
        steps[i] = (struct mf_consumer_step){c->steps[i].family, c->steps[i].name, c->steps[i].covers,
                                             c->steps[i].aiter, c->steps[i].foreign};
    return !mf_consumer_takes_shape(consumer, shape, why) ||
           !mf_consumer_takes_pipeline(consumer, steps, (size_t)c->n_steps, why) ||
           !mf_consumer_takes_error(consumer, fmax(c->err1, c->err2), why);
}

/* Returns true, and the reason, if the row is left out. */
static bool refuses(const struct export *x, const struct mf_export_config *c, const struct mf_shape *shape,
                    char *why, size_t cap)
{
    struct mf_aiter_row row;
    if (c->simulated && !x->options->simulated) {
        mf_format(why, cap, "the device is simulated; export it with simulated=1");
        return true;
    }
    if (!(c->us > 0) || find_aiter_row(c, &row) < 0) {
        mf_format(why, cap,
                  !(c->us > 0) ? "the time is not a positive number"
                               : "no step of the pipeline covers a GEMM");
        return true;
    }
    char reason[MF_CONSUMER_WHY_MAX];
    bool refused = consumer_refuses(x->options->consumer, c, shape, reason);
    if (refused)
        mf_format(why, cap, "%s", reason);
    return refused || (x->options->consumer == MF_CONSUMER_AITER && has_other_key(c, shape, why, cap));
}

/* Rounds to the table's decimals, so that a row that is already in a table counts as unchanged when it is
 * merged again. */
static double round_us(double us)
{
    return round(us * 1e4) / 1e4;
}

/* Sets AITER's columns. The texts point into `from`. */
static void fill_aiter(const struct mf_aiter_row *from, struct mf_table_row *row)
{
    row->block_m = from->block_m;
    row->ksplit = from->ksplit;
    row->kernel1 = from->kernel1;
    row->kernel2 = from->kernel2;
    row->run_1stage = from->run_1stage;
    row->xbf16 = from->xbf16;
    row->flat = from->flat;
    if (!from->run_1stage)
        return;
    row->us1 = row->us;
    row->us2 = 0;
}

/* Returns the first cell that a spreadsheet would run as a formula, or NULL. Numbers may be negative. A
 * kernel name cannot be changed, because production looks it up. */
static const char *find_formula(const struct mf_table_row *row)
{
    const char *texts[MF_OWN_N_ + 3] = {row->class.gfx, row->kernel1, row->kernel2};
    for (int i = 0; i < MF_OWN_N_; i++)
        texts[3 + i] = i == MF_OWN_SEED ? NULL : row->own[i];
    for (size_t i = 0; i < MF_ARRAY_LEN(texts); i++)
        if (texts[i] && *texts[i] && strchr("=+-@", *texts[i]))
            return texts[i];
    return NULL;
}

static int add_config(const struct mf_export_config *c, void *data)
{
    struct export *x = data;
    struct mf_table_row row = {.class = c->class,
                               .us = round_us(c->us),
                               .us1 = round_us(c->us1),
                               .us2 = round_us(c->us2),
                               .err1 = c->err1,
                               .err2 = c->err2};
    struct mf_aiter_row aiter;
    struct row_texts texts;
    char class[MF_DEVICE_CLASS_TEXT_MAX], why[MF_REASON_MAX];

    mf_device_class_print(&c->class, class);
    if (mf_shape_parse(c->row, &row.shape) < 0)
        return leave_out(x, class, c->model, c->row, c->us, "this version cannot parse the shape");
    if (refuses(x, c, &row.shape, why, sizeof(why)))
        return leave_out(x, class, c->model, c->row, c->us, why);

    _cleanup_(cJSON_Deletep) cJSON *provenance =
        mf_json_parse(c->provenance, strlen(c->provenance), strlen(c->provenance));
    (void)find_aiter_row(c, &aiter); /* `refuses` has checked it */
    fill_aiter(&aiter, &row);
    mf_table_rates(&row.shape, c->us, &row.tflops, &row.bw);
    if (has_own_columns(x->options))
        fill_own(c, provenance, &texts, &row);
    const char *formula = find_formula(&row);
    if (formula) {
        mf_format(why, sizeof(why),
                  "the name %.80s begins with '%c', so a spreadsheet would run the cell as a formula",
                  formula, *formula);
        return leave_out(x, class, c->model, c->row, c->us, why);
    }
    int r = mf_table_add(x->table, &row);
    if (r == -EINVAL)
        return leave_out(x, class, c->model, c->row, c->us,
                         "a text of the row cannot be written to a CSV cell");
    return r == 0 && x->options->on_row ? x->options->on_row(c, &row, x->options->data) : r;
}

static int add_failed(const char *class, const char *row, const char *reason, void *data)
{
    char why[MF_REASON_MAX];
    mf_format(why, sizeof(why), "no config: %s", *reason ? reason : "the task failed");
    return leave_out(data, class, NULL, row, 0, why);
}

int mf_export(struct mf_store *s, const struct mf_export_options *o, struct mf_table **ret,
              cJSON **ret_left_out)
{
    _cleanup_(mf_table_freep) struct mf_table *table = NULL;
    _cleanup_(cJSON_Deletep) cJSON *left_out = cJSON_CreateArray();
    int r = left_out ? mf_table_new("tuned_fmoe.csv", true, &table) : -ENOMEM;
    struct export x = {o, table, left_out};
    struct mf_export_filter filter = o->filter;
    filter.consumer = mf_consumer_name(o->consumer);
    if (r == 0)
        r = mf_store_export(s, &filter, add_config, &x);
    if (r >= 0)
        r = mf_store_export_failed(s, &filter, add_failed, &x);
    if (r < 0)
        return r;
    *ret = MF_TAKE(table);
    *ret_left_out = MF_TAKE(left_out);
    return 0;
}

int mf_export_print(const struct mf_table *t, const struct mf_export_options *o, struct mf_buf *out,
                    char why[MF_REASON_MAX])
{
    return mf_table_write(t, has_own_columns(o) ? MF_TABLE_ALL : MF_TABLE_AITER, out, why);
}
