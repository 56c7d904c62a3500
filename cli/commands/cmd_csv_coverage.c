/* moefarm csv coverage: shows which token counts of a model's layer are served by tuned tables. Needs no
 * farm. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands/csv.h"
#include "cli/coverage/coverage_print.h"
#include "cli/coverage/triton_coverage.h"
#include "cli/support/aiter_env.h"
#include "cli/support/api.h"
#include "cli/support/file.h"
#include "cli/support/model_arg.h"
#include "cli/support/shape_arg.h"
#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/base/text.h"

#define TEXT_MAX (16u << 20)
#define TOP      10

struct options {
    struct mf_model_arg model;
    struct mf_aiter_env env;
    const char *fused, *class, *consumer, *untuned, *set, *format, *device;
    int64_t tp, ep, top;
    bool list_models;
};

/* Applies --set, which replaces columns of the key by the values that the server passes, such as padded
 * sizes. */
static int apply_set(const char *text, struct mf_shape *layer)
{
    struct mf_shape_pattern pattern;
    char why[MF_REASON_MAX] = "", value[MF_SHAPE_FORM_MAX];
    const char *column, *expected;

    if (!text)
        return 0;
    if (mf_shape_pattern_parse(text, &pattern, why, sizeof(why)) < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "--set: %s", why);
    for (int i = 0; i <= MF_SHAPE_N_COLUMNS; i++) {
        column = i < MF_SHAPE_N_COLUMNS ? mf_shape_columns[i] : MF_SHAPE_FORM;
        if (pattern.set[i] && mf_shape_get(&pattern.shape, column, value, sizeof(value)) == 0)
            (void)mf_shape_set(layer, column, value, &expected);
    }
    if (mf_shape_check(layer, &column, &expected) < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "--set: %s: expected %s", column, expected);
    return 0;
}

/* ---- the tables ---- */

/* Finds the device class: the class given by --class, or else the only class in the tables. */
static int find_class(const struct options *o, const struct mf_csv_files *files, struct mf_device_class *ret)
{
    _cleanup_(mf_buf_release) struct mf_buf list;
    const struct mf_device_class *only = NULL;
    size_t n = 0;

    mf_buf_init(&list, 4096);
    if (o->class)
        return mf_device_class_parse(o->class, ret) == 0
                   ? 0
                   : mf_cli_fail(MF_EXIT_USAGE, "--class '%s': expected GFX/CU, as in gfx950/256", o->class);
    for (size_t i = 0; i < files->n; i++) {
        for (size_t j = 0; j < files->tables[i]->n_rows; j++) {
            const struct mf_device_class *class = &files->tables[i]->rows[j].class;
            char text[MF_DEVICE_CLASS_TEXT_MAX];

            mf_device_class_print(class, text);
            if (list.len > 0 && strstr(list.data, text))
                continue;
            (void)mf_buf_addf(&list, "%s%s", n++ > 0 ? ", " : "", text);
            only = class;
        }
    }
    if (n == 0)
        return mf_cli_fail(MF_EXIT_USAGE, "the tables have no readable rows; give --class");
    if (n > 1)
        return mf_cli_fail(MF_EXIT_USAGE,
                           "the tables have rows of several device classes (%s); choose one with --class",
                           list.data);
    *ret = *only;
    return 0;
}

/* Finds the look-up rules. --consumer selects the rules. Without --consumer, libfmoe's rules apply if a row
 * has a pipeline or there is no table; otherwise AITER's rules apply. */
static int find_rules(const struct options *o, const struct mf_csv_files *files, enum mf_lookup *ret)
{
    if (o->consumer)
        return mf_lookup_parse(o->consumer, ret) == 0
                   ? 0
                   : mf_cli_fail(MF_EXIT_USAGE, "--consumer '%s': expected moefarm, drop-in or aiter",
                                 o->consumer);
    *ret = files->n > 0 ? MF_LOOKUP_AITER : MF_LOOKUP_MOEFARM;
    for (size_t i = 0; i < files->n; i++) {
        for (size_t j = 0; j < files->tables[i]->n_rows; j++) {
            const char *pipeline = files->tables[i]->rows[j].own[MF_OWN_PIPELINE];
            if (pipeline && *pipeline)
                *ret = MF_LOOKUP_MOEFARM;
        }
    }
    return 0;
}

/* Drops untuned tables and tables of other operators with a message, because production does not read them.
 * Users can therefore name all files of a folder. */
static int drop_other_tables(struct mf_csv_files *files)
{
    size_t n = 0, given = files->n;

    for (size_t i = 0; i < given; i++) {
        struct mf_table *t = files->tables[i];

        if (t->tuned && t->op == MF_TABLE_FMOE) {
            files->tables[n++] = t;
            continue;
        }
        fprintf(stderr, "moefarm: skipped %s: %s\n", t->name,
                t->n_rows == 0 && t->n_problems > 0 ? t->problems[0].reason
                                                    : "its header is not that of a tuned_fmoe.csv");
        (void)mf_table_free(t);
    }
    files->n = n;
    return given > 0 && n == 0 ? mf_cli_fail(MF_EXIT_USAGE, "csv coverage: no file is a tuned_fmoe.csv") : 0;
}

/* ---- missing rows ---- */

static int write_rows(const struct mf_table *t, const char *path)
{
    _cleanup_(mf_buf_release) struct mf_buf text;
    char why[MF_REASON_MAX] = "";

    mf_buf_init(&text, TEXT_MAX);
    if (mf_table_write(t, MF_TABLE_ALL, &text, why) < 0)
        return mf_cli_fail(MF_EXIT_FAILED, "--untuned: %s", why);
    int code = mf_file_write(path, text.data, text.len);
    if (code == 0 && strcmp(path, "-") != 0)
        fprintf(stderr, "moefarm: wrote %zu missing row%s to %s\n", t->n_rows, t->n_rows == 1 ? "" : "s",
                path);
    return code;
}

/* Writes the rows that would fill the holes, in the format of `moefarm submit`. Omits the row of the last
 * tier, because the row of the tier below serves it. */
static int write_untuned(const struct mf_coverage_report *r, const char *path)
{
    _cleanup_(mf_table_freep) struct mf_table *t = NULL;

    if (mf_table_new(path, false, &t) < 0)
        return mf_cli_out_of_memory();
    for (size_t i = 0; i < r->coverage->n_spans; i++) {
        const struct mf_coverage_span *s = &r->coverage->spans[i];
        struct mf_table_row row = {.shape = s->key};
        char form[MF_SHAPE_FORM_MAX] = "";
        const char *unused;

        if (s->result != MF_COVERED_HOLE && (s->result != MF_COVERED_OTHER || s->own))
            continue;
        if (s->key.token == MF_COVERAGE_TOKENS)
            continue;
        if (r->query->rules == MF_LOOKUP_AITER) /* AITER's tables have no form column */
            (void)mf_shape_set(&row.shape, MF_SHAPE_FORM, "", &unused);
        (void)mf_shape_get(&row.shape, MF_SHAPE_FORM, form, sizeof(form));
        row.own[MF_OWN_FORM] = form;
        if (mf_table_add(t, &row) < 0)
            return mf_cli_out_of_memory();
    }
    return write_rows(t, path);
}

/* ---- files of vLLM and SGLang ---- */

/* Finds the device: --device, or else the only device in the names of the files. */
static int find_device(const struct options *o, const struct mf_csv_files *files, const char **ret)
{
    *ret = o->device;
    for (size_t i = 0; i < files->n && !o->device; i++) {
        const struct mf_triton_key *key = &files->triton[i]->key;

        if (*key->device && *ret && strcmp(*ret, key->device) != 0)
            return mf_cli_fail(MF_EXIT_USAGE,
                               "the files are for several devices (%s, %s); choose one with "
                               "--device",
                               *ret, key->device);
        if (*key->device)
            *ret = key->device;
    }
    return *ret ? 0
                : mf_cli_fail(MF_EXIT_USAGE, "no file's name contains a device; give --device 'NVIDIA H200'");
}

/* Finds the framework: --format, or else that of the first file. */
static enum mf_framework find_framework(const struct options *o, const struct mf_csv_files *files)
{
    enum mf_framework framework = files->triton[0]->framework;

    if (o->format)
        (void)mf_framework_parse(o->format, &framework);
    return framework;
}

/* Writes the token counts of the tuners' ladder that the layer's file lacks. */
static int write_untuned_triton(const struct mf_triton_query *q, const struct mf_triton_coverage *c,
                                const char *path)
{
    _cleanup_(mf_table_freep) struct mf_table *t = NULL;
    size_t n;
    const int64_t *ladder = mf_triton_ladder(&n);

    if (mf_table_new(path, false, &t) < 0)
        return mf_cli_out_of_memory();
    for (size_t i = 0; i < n; i++) {
        struct mf_table_row row = {.shape = q->layer};
        char form[MF_SHAPE_FORM_MAX] = "";

        if (c->up && mf_triton_file_find(c->up->file, ladder[i]))
            continue;
        row.shape.token = ladder[i];
        (void)mf_shape_get(&row.shape, MF_SHAPE_FORM, form, sizeof(form));
        row.own[MF_OWN_FORM] = form;
        if (mf_table_add(t, &row) < 0)
            return mf_cli_out_of_memory();
    }
    return write_rows(t, path);
}

static int report_triton(const struct mf_cli *cli, const struct mf_triton_query *q,
                         const struct mf_triton_coverage *c, const struct options *o)
{
    _cleanup_(cJSON_Deletep) cJSON *json = cli->json ? mf_triton_coverage_json(q, c) : NULL;
    _cleanup_(mf_buf_release) struct mf_buf out;
    int code = 0;

    mf_buf_init(&out, TEXT_MAX);
    if (json) {
        code = mf_api_print(json);
    } else {
        mf_triton_coverage_print(q, c, o->top, &out);
        (void)fwrite(out.data, 1, out.len, o->untuned && strcmp(o->untuned, "-") == 0 ? stderr : stdout);
    }
    if (code == 0 && o->untuned)
        code = write_untuned_triton(q, c, o->untuned);
    return code != 0 ? code : c->up ? MF_EXIT_OK : MF_EXIT_FAILED;
}

static int cover_triton(struct mf_cli *cli, const struct options *o, const struct mf_model *model,
                        const struct mf_model_split *split, const struct mf_csv_files *files)
{
    _cleanup_(mf_triton_coverage_release) struct mf_triton_coverage coverage = MF_TRITON_COVERAGE_INIT;
    struct mf_triton_query q = {.files = files->triton, .n_files = files->n, .model = model, .split = *split};
    char why[MF_REASON_MAX] = "";
    int code;

    for (size_t i = 0; i < files->n; i++) {
        if (!files->triton[i])
            return mf_cli_fail(MF_EXIT_USAGE,
                               "csv coverage: %s is a CSV table; give files of one format at a time",
                               files->tables[i]->name);
    }
    if ((code = find_device(o, files, &q.device)) != 0)
        return code;
    q.framework = find_framework(o, files);
    if (mf_model_layer(model, split, &q.layer, why) < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "%s", why);
    if ((code = apply_set(o->set, &q.layer)) != 0)
        return code;
    int r = mf_triton_coverage_find(&q, &coverage, why);
    if (r < 0)
        return mf_cli_fail(MF_EXIT_FAILED, "%s: %s", model->name, r == -ENOTSUP ? why : "out of memory");
    return report_triton(cli, &q, &coverage, o);
}

static bool has_triton(const struct mf_csv_files *files)
{
    for (size_t i = 0; i < files->n; i++) {
        if (files->triton[i])
            return true;
    }
    return false;
}

/* ---- the command ---- */

static int report_coverage(struct mf_cli *cli, const struct options *o, const struct mf_coverage_report *r)
{
    _cleanup_(cJSON_Deletep) cJSON *json = NULL;
    _cleanup_(mf_buf_release) struct mf_buf out;
    int code = 0;

    mf_buf_init(&out, TEXT_MAX);
    if (r->query->n_tables == 0) /* without a table, every token count of the layer needs a row */
        return write_untuned(r, o->untuned);
    if (cli->json) {
        json = mf_coverage_json(r);
        code = mf_api_print(json);
    } else {
        mf_coverage_print(r, o->top, &out);
        /* If the rows go to standard output, another program reads them, so print the report on stderr. */
        (void)fwrite(out.data, 1, out.len, o->untuned && strcmp(o->untuned, "-") == 0 ? stderr : stdout);
    }
    if (code == 0 && o->untuned)
        code = write_untuned(r, o->untuned);
    if (code != 0)
        return code;
    return mf_coverage_complete(r->coverage) ? MF_EXIT_OK : MF_EXIT_FAILED;
}

static int cover(struct mf_cli *cli, const struct options *o, char *const *paths, size_t n)
{
    _cleanup_(mf_csv_files_release) struct mf_csv_files files = {0};
    _cleanup_(mf_coverage_release) struct mf_coverage coverage = MF_COVERAGE_INIT;
    struct mf_model model;
    struct mf_model_split split = {.tp = (int32_t)o->tp, .ep = (int32_t)o->ep};
    struct mf_coverage_query query = {0};
    char why[MF_REASON_MAX] = "";
    int code;

    if ((code = mf_model_arg_read(&o->model, &model)) != 0 ||
        (code = mf_model_arg_fused(o->fused, &model, &split.fused_shared)) != 0 ||
        (code = mf_csv_files_read(paths, n, o->format, &files)) != 0)
        return code;
    if (has_triton(&files))
        return cover_triton(cli, o, &model, &split, &files);
    if ((code = drop_other_tables(&files)) != 0 || (code = find_class(o, &files, &query.class)) != 0 ||
        (code = find_rules(o, &files, &query.rules)) != 0)
        return code;
    split.gfx = query.class.gfx;
    if (mf_model_layer(&model, &split, &query.layer, why) < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "%s", why);
    code = apply_set(o->set, &query.layer);
    if (code != 0)
        return code;
    query.tables = (const struct mf_table *const *)files.tables;
    query.n_tables = files.n;
    query.env = &o->env.env;
    if (mf_coverage_find(&query, &coverage) < 0)
        return mf_cli_out_of_memory();
    const struct mf_coverage_report report = {&model, split, &query, &coverage};
    return report_coverage(cli, o, &report);
}

#define N_FIXED_OPTIONS 17 /* options before those of aiter_env.h */

#define TEXT(name_, value_, argument_, help_)                                                             \
    {                                                                                                     \
        .name = (name_), .type = MF_OPT_TEXT, .value = (value_), .argument = (argument_), .help = (help_) \
    }

int mf_cmd_csv_coverage(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    struct options o = {.fused = "no", .tp = 1, .ep = 1, .top = TOP};
    struct mf_opt opts[] = {
        TEXT("model", &o.model.model, "MODEL",
             "model: a name from --list-models, a path on the hub, or a config.json"),
        {.name = "tp",
         .type = MF_OPT_INT,
         .value = &o.tp,
         .argument = "N",
         .help = "tensor-parallel ranks that share each expert",
         .min = 1,
         .max = 1024},
        {.name = "ep",
         .type = MF_OPT_INT,
         .value = &o.ep,
         .argument = "N",
         .help = "expert-parallel ranks that share the experts; --tp is then usually 1",
         .min = 1,
         .max = 4096},
        TEXT("fused-shared-experts", &o.fused, "N",
             "shared experts that the server computes as routed experts: a number, yes for all, or no"),
        TEXT("class", &o.class, "CLASS",
             "device class, as in gfx950/256 (default: the only class in the tables)"),
        TEXT("consumer", &o.consumer, "NAME",
             "look-up rules: moefarm, drop-in (libfmoe with AITER's choice of activation type) or aiter "
             "(default: moefarm for tables with pipelines, else aiter)"),
        MF_CSV_FORMAT_OPTION(o.format),
        TEXT("device", &o.device, "TEXT",
             "for files of vLLM and SGLang: device name as the driver reports it, such as 'NVIDIA H200' "
             "(default: the only device of the files)"),
        TEXT("q-type", &o.model.q_type, "TYPE",
             "quantisation type instead of the checkpoint's: per_1x128, per_Token, No, …"),
        TEXT("q-dtype-a", &o.model.q_dtype_a, "TYPE",
             "activation type; fp8 means the fp8 format of the device"),
        TEXT("q-dtype-w", &o.model.q_dtype_w, "TYPE", "weight type"),
        TEXT("dtype", &o.model.dtype, "TYPE", "type of the hidden states"),
        TEXT("act-type", &o.model.act_type, "TYPE", "activation function"),
        TEXT("set", &o.set, "COLUMN=VALUE,…",
             "key columns for which the server passes other values, such as padded sizes: "
             "model_dim=3072,inter_dim=3072"),
        TEXT("untuned", &o.untuned, "FILE",
             "output file for the missing rows, in the format of moefarm submit; '-': standard output"),
        {.name = "top",
         .type = MF_OPT_INT,
         .value = &o.top,
         .argument = "N",
         .help = "maximum near misses, or files of vLLM and SGLang never read, to show; 0: all",
         .min = 0,
         .max = 1000000},
        {.name = "list-models",
         .type = MF_OPT_BOOL,
         .value = &o.list_models,
         .help = "list the known models with their sources"},
        [N_FIXED_OPTIONS + MF_AITER_ENV_N - 1] = {0},
    };
    int rest, r, code;

    mf_aiter_env_options(&o.env, opts + N_FIXED_OPTIONS);
    r = mf_cli_parse(cli, self, opts, MF_ARRAY_LEN(opts), 0, 1000, argc, argv, &rest);
    if (r != 0)
        return r < 0 ? MF_EXIT_USAGE : MF_EXIT_OK;
    if (o.list_models)
        return mf_model_list_print(cli);
    code = mf_aiter_env_read("csv coverage", &o.env);
    if (code != 0)
        return code;
    if (cli->json && o.untuned && strcmp(o.untuned, "-") == 0)
        return mf_cli_fail(
            MF_EXIT_USAGE,
            "csv coverage: --json and --untuned - both write to standard output; give --untuned FILE");
    if (!o.model.model || (rest == argc && !(o.untuned && o.class)))
        return mf_cli_fail(MF_EXIT_USAGE, "csv coverage: give --model (--list-models prints the known ones) "
                                          "and the tables, or --model, --class and --untuned without tables");
    return cover(cli, &o, argv + rest, (size_t)(argc - rest));
}
