#include "cli/bench/bench_rows.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/support/shape_arg.h"
#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/table/table.h"
#include "common/table/table_file.h"
#include "measure/session/memory.h"

#define TIME_CAP_MS   10000
#define FAMILY_SO_CAP 4096 /* maximum bytes of --family-so */
#define N_OWN_OPTS    (MF_BENCH_OPTS - MF_OPERATORS_OPTS - MF_BENCH_LAYER_OPTS)
#define AITER_MODULE  "moefarm.families.aiter"

void mf_bench_opts(struct mf_bench_options *o, struct mf_opt opts[MF_BENCH_OPTS])
{
    opts[0] = (struct mf_opt){.name = "device",
                              .type = MF_OPT_TEXT,
                              .value = &o->device,
                              .argument = "NAME",
                              .help = "local device: cpu:0, hip:nvidia:0, hip:amd:0"};
    opts[1] = (struct mf_opt){.name = "family-so",
                              .type = MF_OPT_TEXT,
                              .value = &o->family_so,
                              .argument = "FILES",
                              .help = "comma-separated shared objects with kernel families"};
    opts[2] = (struct mf_opt){.name = "err-ratio",
                              .type = MF_OPT_DOUBLE,
                              .value = &o->err_ratio,
                              .argument = "X",
                              .help = "maximum mismatch ratio"};
    opts[3] = (struct mf_opt){.name = "routing",
                              .type = MF_OPT_TEXT,
                              .value = &o->routing,
                              .argument = "PROFILE",
                              .help = "routing profile (default: the row's)"};
    opts[4] = (struct mf_opt){.name = "seed",
                              .type = MF_OPT_INT,
                              .value = &o->seed,
                              .argument = "N",
                              .help = "seed of the input data; -1: the seed of the row",
                              .min = -1,
                              .max = INT64_MAX};
    mf_operators_opts(&o->operators, opts + N_OWN_OPTS);
    mf_bench_layer_opts(&o->layer, opts + N_OWN_OPTS + MF_OPERATORS_OPTS);
}

static int load_families(struct mf_bench *b)
{
    char files[FAMILY_SO_CAP], why[MF_REASON_MAX] = "";

    if (mf_copy(files, sizeof(files), b->options.family_so ? b->options.family_so : "") < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "--family-so: longer than %d bytes; shorten the paths",
                           FAMILY_SO_CAP);
    for (char *at = files, *next; at && *at; at = next) {
        next = strchr(at, ',');
        if (next)
            *next++ = '\0';
        if (mf_family_plugin_load(&b->plugins, at, why, sizeof(why)) < 0)
            return mf_cli_fail(MF_EXIT_USAGE, "--family-so: %s: %s", at, why);
    }
    return 0;
}

/* Collects the families of shared objects and of the interpreter. */
static int collect_families(struct mf_bench *b)
{
    size_t n_python = b->operators ? b->operators->families.n : 0, n = 0;

    b->families = calloc(b->plugins.n + n_python + 1, sizeof(const struct mf_family *));
    if (!b->families)
        return mf_cli_out_of_memory();
    for (size_t i = 0; i < b->plugins.n; i++)
        b->families[n++] = b->plugins.families[i];
    for (size_t i = 0; i < n_python; i++)
        b->families[n++] = b->operators->families.families[i];
    b->extra = (struct mf_family_set){b->families, n};
    return 0;
}

int mf_bench_open(struct mf_bench *b, const struct mf_bench_options *o, const struct mf_operators *operators)
{
    char why[MF_REASON_MAX] = "";
    int code;

    *b = (struct mf_bench){.options = *o, .operators = operators};
    mf_local_memfd_store_init(&b->memfd_store, mf_memory_available() / 2);
    code = load_families(b);
    if (code == 0)
        code = collect_families(b);
    if (code == 0 && mf_device_open(o->device, why, sizeof(why), &b->device) < 0)
        code = mf_cli_fail(MF_EXIT_USAGE, "--device: %s", why);
    return code;
}

void mf_bench_close(struct mf_bench *b)
{
    mf_local_memfd_store_release(&b->memfd_store);
    b->device = mf_device_close(b->device);
    mf_family_plugins_release(&b->plugins);
    free(b->families);
    b->families = NULL;
}

int mf_bench_row_refuse(struct mf_bench_row *row, const char *why)
{
    row->refused = strdup(why);
    return row->refused ? 0 : mf_cli_out_of_memory();
}

/* Opens the row's pipeline. If that fails, marks this row as refused, so that the other rows still run. */
static int open_pipeline(const struct mf_bench *b, struct mf_bench_row *row)
{
    char why[MF_REASON_MAX] = "";
    int r = row->step ? mf_pipeline_open_steps(b->device, &row->shape, &b->extra, row->step, 1, why,
                                               sizeof(why), &row->pipeline)
                      : mf_pipeline_open(b->device, &row->shape, &b->extra, row->names, why, sizeof(why),
                                         &row->pipeline);

    if (r == -ENOMEM)
        return mf_cli_out_of_memory();
    return r < 0 ? mf_bench_row_refuse(row, why) : 0;
}

int mf_bench_row_operate(const struct mf_bench *b, const char *family, const cJSON *json,
                         struct mf_bench_row *row)
{
    _cleanup_(mf_freep) char *text = mf_json_print(json);
    int r = -ENOMEM;

    row->step = calloc(1, sizeof(*row->step));
    if (row->step && text)
        r = b->operators->add_row(family, &row->shape, text, row->step);

    if (r == -EINVAL)
        return mf_bench_row_refuse(row, "the layer has no description for Python families");
    return r == 0 ? open_pipeline(b, row) : mf_cli_out_of_memory();
}

/* Options take precedence over the values with which the row was tuned. */
int mf_bench_row_provenance(const struct mf_bench *b, const struct mf_table_row *t, struct mf_bench_row *row)
{
    const struct mf_bench_options *o = &b->options;
    const char *routing = o->routing, *seed = t ? t->own[MF_OWN_SEED] : NULL;
    int64_t value = o->seed;

    if (!routing)
        routing = t && t->own[MF_OWN_ROUTING] && *t->own[MF_OWN_ROUTING] ? t->own[MF_OWN_ROUTING] : "uniform";
    if (mf_routing_parse(routing, &row->routing) < 0)
        return mf_cli_fail(
            MF_EXIT_USAGE,
            "routing profile '%s': unknown; use --routing uniform, balanced, zipf:1.2 or hot:0.5", routing);
    if (value < 0 && (!seed || mf_parse_i64(seed, 0, INT64_MAX, &value) < 0))
        value = 1;
    row->seed = (uint64_t)value;
    return 0;
}

static int read_row(struct mf_bench_rows *r, const struct mf_bench *b, const struct mf_table *table, size_t i)
{
    struct mf_bench_row *row = &r->items[i];
    const struct mf_table_row *t;
    size_t found;
    int code;

    (void)mf_fmoe_row(r->fmoe, i, &row->shape, &row->us, &row->names);
    t = mf_table_find(table, &b->device->info.class, &row->shape);
    row->model = mf_fmoe_row_model(r->fmoe, i);
    if (t && t->own[MF_OWN_UNSTABLE] && *t->own[MF_OWN_UNSTABLE]) {
        row->unstable = strdup(t->own[MF_OWN_UNSTABLE]);
        if (!row->unstable)
            return mf_cli_out_of_memory();
    }
    row->reachable = mf_fmoe_lookup(r->fmoe, &row->shape, MF_LOOKUP_MOEFARM, &found) == 0 && found == i;
    code = mf_bench_row_provenance(b, t, row);
    return code != 0 ? code : open_pipeline(b, row);
}

/* Makes rows of one layer model adjacent, so that they share the weights in the memfd store. */
static int group_rows(struct mf_bench_rows *r)
{
    struct mf_bench_row *grouped = calloc(r->n, sizeof(*grouped));
    _cleanup_(mf_freep) bool *taken = calloc(r->n, sizeof(*taken));
    size_t n = 0;

    if (!grouped || !taken) {
        free(grouped);
        return mf_cli_out_of_memory();
    }
    for (size_t first = 0; first < r->n; first++) {
        if (taken[first])
            continue;
        for (size_t i = first; i < r->n; i++) {
            if (taken[i] || !mf_shape_same_layer_model(&r->items[first].shape, &r->items[i].shape))
                continue;
            taken[i] = true;
            grouped[n++] = r->items[i];
        }
    }
    free(r->items);
    r->items = grouped;
    return 0;
}

static void warn_other_model(const struct mf_bench_rows *r, const char *path, const char *device_model)
{
    const char *row_model;
    size_t n = mf_fmoe_n_other_model(r->fmoe, device_model, &row_model);

    if (n > 0)
        (void)fprintf(
            stderr,
            "%s: %zu of %zu rows were tuned on another device model (%s) than this one (%s); their times are "
            "from that model, and other steps may be faster here\n",
            path, n, r->n, row_model, device_model);
}

/* Opens the rows that have a pipeline. */
static int open_own(struct mf_bench_rows *r, const struct mf_bench *b, const struct mf_table *table,
                    const char *path)
{
    char why[MF_REASON_MAX] = "";
    int code = 0;

    if (mf_fmoe_open_mixed(b->device, path, &b->extra, why, sizeof(why), &r->fmoe) < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "%s", *why ? why : "out of memory");
    for (size_t i = 0; i < mf_fmoe_n_foreign(r->fmoe); i++)
        (void)fprintf(stderr, "%s:%lld: skipped: %s\n", path, (long long)mf_fmoe_foreign_line(r->fmoe, i),
                      MF_FMOE_FOREIGN_REASON);
    r->items = calloc(mf_fmoe_n_rows(r->fmoe) + table->n_rows + 1, sizeof(*r->items));
    if (!r->items)
        return mf_cli_out_of_memory();
    r->n = mf_fmoe_n_rows(r->fmoe);
    for (size_t i = 0; i < r->n && code == 0; i++)
        code = read_row(r, b, table, i);
    if (code == 0)
        warn_other_model(r, path, b->device->info.model);
    return code;
}

/* Adds AITER's own rows. If family `aiter` is not loaded, warns that they need an interpreter. */
static int add_aiter(struct mf_bench_rows *r, const struct mf_bench *b, const struct mf_table *table,
                     const char *path)
{
    size_t n = mf_bench_aiter_count(b, table);

    if (n > 0 && mf_operators_have(b->operators, "aiter"))
        return mf_bench_aiter_add(r, b, table);
    if (n > 0)
        (void)fprintf(
            stderr,
            "%s: %zu rows have no pipeline, so they are AITER's own. They run through "
            "aiter.fused_moe; name an interpreter that imports aiter: --python PATH --family-py " AITER_MODULE
            "\n",
            path, n);
    return 0;
}

static int open_table(struct mf_bench_rows *r, const struct mf_bench *b, const char *path,
                      const struct mf_buf *text)
{
    _cleanup_(mf_table_freep) struct mf_table *table = NULL;
    char why[MF_REASON_MAX] = "";
    int code;

    if (mf_table_read(path, text->data, text->len, &table, why) < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "%s: %s", path, *why ? why : "out of memory");
    code = open_own(r, b, table, path);
    if (code == 0)
        code = add_aiter(r, b, table, path);
    if (code == 0 && r->n == 0)
        code = mf_cli_fail(
            MF_EXIT_USAGE,
            "%s: no row of this device's class %s/%d that this build can run; choose another --device", path,
            b->device->info.class.gfx, b->device->info.class.cu_num);
    return code;
}

int mf_bench_rows_open(struct mf_bench_rows *r, const struct mf_bench *b, const char *path)
{
    _cleanup_(mf_buf_release) struct mf_buf text;
    char why[MF_REASON_MAX] = "";
    int code;

    *r = (struct mf_bench_rows){0};
    mf_buf_init(&text, MF_TABLE_FILE_MAX);
    if (mf_table_file_text(path, &text, why) < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "%s", *why ? why : "out of memory");
    code = mf_triton_file_is(text.data, text.len) ? mf_bench_triton_open(r, b, path, &text)
                                                  : open_table(r, b, path, &text);
    return code != 0 ? code : group_rows(r);
}

/* Chooses the pipeline for the token bucket, as libfmoe does for a call without a row. */
static int choose(const struct mf_bench *b, struct mf_bench_row *row)
{
    _cleanup_(mf_freep) struct mf_fmoe_choice *choice = calloc(1, sizeof(*choice));
    char why[MF_REASON_MAX] = "";
    struct mf_shape bucket = row->shape;
    int r;

    if (!choice)
        return mf_cli_out_of_memory();
    bucket.token = mf_token_bucket(bucket.token);
    r = mf_fmoe_fallback(NULL, b->device, &bucket, &b->extra, NULL, NULL, why, sizeof(why), choice);
    if (r == -ENOENT)
        return mf_bench_row_refuse(row, why);
    if (r < 0)
        return mf_cli_fail(MF_EXIT_FAILED, "%s", strerrordesc_np(-r));
    row->chosen = strdup(choice->names);
    row->names = row->chosen;
    return row->chosen ? open_pipeline(b, row) : mf_cli_out_of_memory();
}

static bool is_of_class(const struct mf_table_row *row, const struct mf_device_class *class)
{
    return !row->class.gfx[0] || mf_device_class_equal(&row->class, class);
}

static int add_shape(struct mf_bench_rows *r, const struct mf_bench *b, const struct mf_table_row *t)
{
    struct mf_bench_row *row = &r->items[r->n++];
    int code;

    *row = (struct mf_bench_row){.shape = t->shape, .us = NAN, .names = "", .model = "", .reachable = true};
    code = mf_bench_row_provenance(b, NULL, row);
    return code != 0 ? code : choose(b, row);
}

int mf_bench_rows_choose(struct mf_bench_rows *r, const struct mf_bench *b, const char *path)
{
    _cleanup_(mf_table_freep) struct mf_table *table = NULL;
    char why[MF_REASON_MAX] = "";
    int code = 0;

    *r = (struct mf_bench_rows){0};
    if (mf_table_file_read(path, &table, why) < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "--shapes: %s", *why ? why : "out of memory");
    for (size_t i = 0; i < table->n_problems; i++) {
        if (table->problems[i].severity == MF_ERROR)
            return mf_cli_fail(MF_EXIT_USAGE, "%s:%lld: %s", path, (long long)table->problems[i].line,
                               table->problems[i].reason);
    }
    r->items = calloc(table->n_rows + 1, sizeof(*r->items));
    if (!r->items)
        return mf_cli_out_of_memory();
    for (size_t i = 0; i < table->n_rows && code == 0; i++) {
        if (is_of_class(&table->rows[i], &b->device->info.class))
            code = add_shape(r, b, &table->rows[i]);
    }
    if (code == 0 && r->n == 0)
        code =
            mf_cli_fail(MF_EXIT_USAGE, "%s: no shape of this device's class %s/%d; choose another --device",
                        path, b->device->info.class.gfx, b->device->info.class.cu_num);
    return code != 0 ? code : group_rows(r);
}

void mf_bench_rows_close(struct mf_bench_rows *r)
{
    for (size_t i = 0; i < r->n && r->items; i++) {
        r->items[i].pipeline = mf_pipeline_close(r->items[i].pipeline);
        free(r->items[i].chosen);
        free(r->items[i].step);
        free(r->items[i].refused);
        free(r->items[i].unstable);
    }
    free(r->items);
    r->fmoe = mf_fmoe_close(r->fmoe);
    r->file = mf_triton_file_free(r->file);
    *r = (struct mf_bench_rows){0};
}

int mf_bench_session(const struct mf_bench_row *row, struct mf_bench *b, struct mf_session **ret)
{
    char why[MF_REASON_MAX] = "", brief[MF_SHAPE_BRIEF_MAX];
    const struct mf_unit_options options = {.routing = row->routing,
                                            .err_ratio = b->options.err_ratio,
                                            .seed = row->seed,
                                            .time_cap_ms = TIME_CAP_MS};
    const struct mf_session_args args = {.device = b->device,
                                         .shape = row->shape,
                                         .options = &options,
                                         .memfd_store = &b->memfd_store.memfd_store,
                                         .extra = &b->extra};

    if (mf_session_new(&args, why, sizeof(why), ret) == 0)
        return 0;
    mf_shape_brief(&row->shape, brief);
    return mf_cli_fail(MF_EXIT_FAILED, "%s: %s", brief, why);
}
