/* moefarm csv coverage: what a model's layer gets of tuned tables, for every token count; no farm is asked. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/support/api.h"
#include "cli/support/coverage_print.h"
#include "cli/support/csv.h"
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
    const char *fused, *class, *consumer, *untuned, *set;
    int64_t tp, ep, top;
    bool list_models;
};

static int read_fused(const struct options *o, const struct mf_model *m, int32_t *ret)
{
    int64_t n;
    bool yes;

    if (mf_parse_i64(o->fused, 0, 64, &n) == 0)
        *ret = (int32_t)n;
    else if (mf_parse_bool(o->fused, &yes) == 0)
        *ret = yes ? m->shared : 0;
    else
        return mf_cli_fail(MF_EXIT_USAGE, "--fused-shared-experts: yes, no or a number is expected, not '%s'",
                           o->fused);
    return 0;
}

/* --set: what a server passes otherwise, as padded sizes. */
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
        return mf_cli_fail(MF_EXIT_USAGE, "--set: %s: %s is expected", column, expected);
    return 0;
}

/* ---- the tables ---- */

/* The class that is asked for: the option's, else the only one that the tables have. */
static int find_class(const struct options *o, const struct mf_csv_files *files, struct mf_device_class *ret)
{
    _cleanup_(mf_buf_release) struct mf_buf list;
    const struct mf_device_class *only = NULL;
    size_t n = 0;

    mf_buf_init(&list, 4096);
    if (o->class)
        return mf_device_class_parse(o->class, ret) == 0
                   ? 0
                   : mf_cli_fail(MF_EXIT_USAGE,
                                 "--class: name/compute units is expected, as gfx950/256, not '%s'",
                                 o->class);
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
        return mf_cli_fail(MF_EXIT_USAGE, "the tables have no rows that could be read; give --class");
    if (n > 1)
        return mf_cli_fail(MF_EXIT_USAGE,
                           "the tables have rows of %s; say with --class which device is asked for",
                           list.data);
    *ret = *only;
    return 0;
}

/* Who reads the tables: the option's, else libfmoe for tables of pipelines and AITER for others. */
static int find_rules(const struct options *o, const struct mf_csv_files *files, enum mf_lookup *ret)
{
    if (o->consumer)
        return mf_lookup_parse(o->consumer, ret) == 0
                   ? 0
                   : mf_cli_fail(MF_EXIT_USAGE, "--consumer: moefarm, drop-in or aiter is expected, not '%s'",
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

/* Production reads no untuned table and no other operator's, so a folder's files can be named all at once: those are told of
 * and left away. */
static int leave_others(struct mf_csv_files *files)
{
    size_t n = 0, given = files->n;

    for (size_t i = 0; i < given; i++) {
        struct mf_table *t = files->tables[i];

        if (t->tuned && t->op == MF_TABLE_FMOE) {
            files->tables[n++] = t;
            continue;
        }
        fprintf(stderr, "moefarm: %s is passed over: %s\n", t->name,
                t->n_rows == 0 && t->n_problems > 0 ? t->problems[0].reason
                                                    : "it is no tuned_fmoe.csv, by its header");
        (void)mf_table_free(t);
    }
    files->n = n;
    return given > 0 && n == 0
               ? mf_cli_fail(MF_EXIT_USAGE, "csv coverage: none of the files is a tuned_fmoe.csv")
               : 0;
}

/* ---- what is missing ---- */

/* The rows that would fill the holes, as `moefarm submit` takes them. The upper tier is served by the one below it, so only that
 * one is asked for. */
static int write_untuned(const struct mf_coverage_report *r, const char *path)
{
    _cleanup_(mf_table_freep) struct mf_table *t = NULL;
    _cleanup_(mf_buf_release) struct mf_buf text;
    char why[MF_REASON_MAX] = "";

    mf_buf_init(&text, TEXT_MAX);
    if (mf_table_new(path, false, &t) < 0)
        return mf_cli_fail(MF_EXIT_FAILED, "out of memory");
    for (size_t i = 0; i < r->coverage->n_spans; i++) {
        const struct mf_coverage_span *s = &r->coverage->spans[i];
        struct mf_table_row row = {.shape = s->key};
        char form[MF_SHAPE_FORM_MAX] = "";
        const char *unused;

        if (s->what != MF_COVERED_HOLE && (s->what != MF_COVERED_OTHER || s->own))
            continue;
        if (s->key.token == MF_COVERAGE_TOKENS)
            continue;
        if (r->question->rules == MF_LOOKUP_AITER) /* whose tables have no such column */
            (void)mf_shape_set(&row.shape, MF_SHAPE_FORM, "", &unused);
        (void)mf_shape_get(&row.shape, MF_SHAPE_FORM, form, sizeof(form));
        row.own[MF_OWN_FORM] = form;
        if (mf_table_add(t, &row) < 0)
            return mf_cli_fail(MF_EXIT_FAILED, "out of memory");
    }
    if (mf_table_write(t, MF_TABLE_ALL, &text, why) < 0)
        return mf_cli_fail(MF_EXIT_FAILED, "--untuned: %s", why);
    int code = mf_file_write(path, text.data, text.len);
    if (code == 0 && strcmp(path, "-") != 0)
        fprintf(stderr, "moefarm: %zu row%s that are missing written to %s\n", t->n_rows,
                t->n_rows == 1 ? "" : "s", path);
    return code;
}

/* ---- the command ---- */

static int answer(struct mf_cli *cli, const struct options *o, const struct mf_coverage_report *r)
{
    _cleanup_(cJSON_Deletep) cJSON *json = NULL;
    _cleanup_(mf_buf_release) struct mf_buf out;
    int code = 0;

    mf_buf_init(&out, TEXT_MAX);
    if (r->question->n_tables == 0) /* nothing was asked but what a model needs */
        return write_untuned(r, o->untuned);
    if (cli->json) {
        json = mf_coverage_json(r);
        code = mf_api_print(json);
    } else {
        mf_coverage_print(r, o->top, &out);
        /* Rows on standard output are for another program, so the rest is not */
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
    struct mf_coverage_question question = {0};
    char why[MF_REASON_MAX] = "";
    int code;

    if ((code = mf_model_arg_read(&o->model, &model)) != 0 ||
        (code = read_fused(o, &model, &split.fused_shared)) != 0 ||
        (code = mf_csv_files_read(paths, n, &files)) != 0 || (code = leave_others(&files)) != 0 ||
        (code = find_class(o, &files, &question.class)) != 0 ||
        (code = find_rules(o, &files, &question.rules)) != 0)
        return code;
    split.gfx = question.class.gfx;
    if (mf_model_layer(&model, &split, &question.layer, why) < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "%s", why);
    code = apply_set(o->set, &question.layer);
    if (code != 0)
        return code;
    question.tables = (const struct mf_table *const *)files.tables;
    question.n_tables = files.n;
    if (mf_coverage_find(&question, &coverage) < 0)
        return mf_cli_fail(MF_EXIT_FAILED, "out of memory");
    const struct mf_coverage_report report = {&model, split, &question, &coverage};
    return answer(cli, o, &report);
}

#define TEXT(name_, value_, argument_, help_)                                                             \
    {                                                                                                     \
        .name = (name_), .type = MF_OPT_TEXT, .value = (value_), .argument = (argument_), .help = (help_) \
    }

int mf_cmd_csv_coverage(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    struct options o = {.fused = "no", .tp = 1, .ep = 1, .top = TOP};
    const struct mf_opt opts[] = {
        TEXT("model", &o.model.model, "MODEL",
             "a model's name (--list-models), its place on the hub, or its config.json"),
        {.name = "tp",
         .type = MF_OPT_INT,
         .value = &o.tp,
         .argument = "N",
         .help = "tensor parallel ranks that share each expert",
         .min = 1,
         .max = 1024},
        {.name = "ep",
         .type = MF_OPT_INT,
         .value = &o.ep,
         .argument = "N",
         .help = "expert parallel ranks that share the experts; with them tp is mostly 1",
         .min = 1,
         .max = 4096},
        TEXT("fused-shared-experts", &o.fused, "N",
             "shared experts that the server computes as routed ones: a number, yes for all, or no"),
        TEXT("class", &o.class, "CLASS", "of the device, as gfx950/256; the tables' own where they have one"),
        TEXT("consumer", &o.consumer, "WHO",
             "who reads the tables: moefarm, drop-in (libfmoe, activation types chosen as AITER does) or "
             "aiter; by default "
             "moefarm for tables with pipelines, else aiter"),
        TEXT("q-type", &o.model.q_type, "TYPE",
             "another quantisation than the checkpoint's: per_1x128, per_Token, No, …"),
        TEXT("q-dtype-a", &o.model.q_dtype_a, "TYPE", "of the activations; fp8 is what the device has"),
        TEXT("q-dtype-w", &o.model.q_dtype_w, "TYPE", "of the weights"),
        TEXT("dtype", &o.model.dtype, "TYPE", "of the hidden states"),
        TEXT("act-type", &o.model.act_type, "TYPE", "the activation function"),
        TEXT("set", &o.set, "COLUMN=VALUE,…",
             "columns of the key that the server passes otherwise, such as padded sizes: "
             "model_dim=3072,inter_dim=3072"),
        TEXT("untuned", &o.untuned, "FILE",
             "write the missing rows there, for moefarm submit; '-' is standard output"),
        {.name = "top",
         .type = MF_OPT_INT,
         .value = &o.top,
         .argument = "N",
         .help = "how many near misses to show; 0: all",
         .min = 0,
         .max = 1000000},
        {.name = "list-models",
         .type = MF_OPT_BOOL,
         .value = &o.list_models,
         .help = "the models that are known, with their source"},
    };
    int rest, r;

    r = mf_cli_parse(cli, self, opts, MF_ARRAY_LEN(opts), 0, 1000, argc, argv, &rest);
    if (r != 0)
        return r < 0 ? MF_EXIT_USAGE : MF_EXIT_OK;
    if (o.list_models)
        return mf_model_list_print(cli);
    if (cli->json && o.untuned && strcmp(o.untuned, "-") == 0)
        return mf_cli_fail(MF_EXIT_USAGE,
                           "csv coverage: --json and --untuned - both write to standard output");
    if (!o.model.model || (rest == argc && !(o.untuned && o.class)))
        return mf_cli_fail(MF_EXIT_USAGE, "csv coverage: give the tables and --model (--list-models shows "
                                          "those that are known), or without a table --class and "
                                          "--untuned");
    return cover(cli, &o, argv + rest, (size_t)(argc - rest));
}
