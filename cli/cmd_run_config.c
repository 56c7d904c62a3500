/* moefarm run-config: a tuned table through the production operator, here and now.
 *
 * Rows are taken by layer model and weight layout, so that weights are made once: in `row` layout for the
 * references of the whole ladder, then packed in place. Then all rows of the group are run, checked, and timed in
 * rounds, one sample of each a round, on routings that are rotated over the experts so that weights come from memory. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/api.h"
#include "cli/cli.h"
#include "cli/shape_arg.h"
#include "cli/text_out.h"
#include "cli/verdict.h"
#include "common/json.h"
#include "common/stats.h"
#include "common/table.h"
#include "common/table_file.h"
#include "common/text.h"
#include "kernels/codec.h"
#include "kernels/data.h"
#include "kernels/family_plugin.h"
#include "kernels/fmoe.h"
#include "kernels/layout.h"
#include "kernels/reference.h"

#define STEPS_MAX  16
#define ROTATIONS  8
#define ROUNDS_MAX 1001
#define PASSES     4
#define NAMES_MAX  4096
#define POISON     0x7fff /* a bf16 NaN: what was never written is seen */

struct settings {
    const char *device, *routing, *family_so; /* by comma */
    int64_t seed, rounds;
    double err_ratio, slack;
};

struct row {
    struct mf_shape shape;
    double us; /* of the table */
    uint64_t seed;
    struct mf_routing routing;
    bool reachable; /* production's look-up ends at this row */
    struct mf_pipeline *pipeline;
    struct mf_artifact weight[2]; /* of w1 and w2 */
    bool taken;                   /* by a group that was run */

    /* While its group runs: */
    void *x, *y, *arena, *ids[ROTATIONS];
    float *weights;
    float calib[2];
    struct mf_reference reference;
    double *samples;
    size_t n_samples;

    struct mf_output_check check;
    double measured_us; /* the best pass's median */
    bool timed;
    enum mf_verdict verdict;
};

struct weights { /* of a group */
    struct mf_artifact artifact[2];
    struct mf_tensor_ref ref[2];
    size_t bytes[2][MF_PARTS_MAX];
    int n_parts[2];
    void *bias[2]; /* b1 and b2 where the shape has them */
    size_t bias_bytes[2];
};

struct run {
    struct mf_cli *cli;
    struct settings set;
    struct mf_device *device;
    struct mf_fmoe *fmoe;
    struct mf_family_plugins plugins;
    struct mf_family_set extra; /* of plugins */
    struct row *rows;
    size_t n_rows;
    size_t n_bad;
    cJSON *json;
};

static const enum mf_tensor weight_tensor[2] = {MF_TENSOR_W1, MF_TENSOR_W2};
static const enum mf_tensor bias_tensor[2] = {MF_TENSOR_B1, MF_TENSOR_B2};

static int out_of_memory(void)
{
    return mf_cli_fail(MF_EXIT_FAILED, "out of memory");
}

/* ---- reading the table ---- */

static int open_pipeline(struct run *run, struct row *row, const char *names)
{
    char text[NAMES_MAX], why[MF_REASON_MAX] = "";
    const char *name[STEPS_MAX];
    size_t n = 0;

    if (mf_copy(text, sizeof(text), names) < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "a pipeline's names are longer than %d bytes", NAMES_MAX);
    for (char *at = text, *next; at; at = next) {
        next = strchr(at, '|');
        if (next)
            *next++ = '\0';
        if (n == STEPS_MAX)
            return mf_cli_fail(MF_EXIT_USAGE, "a pipeline has more than %d steps", STEPS_MAX);
        name[n++] = at;
    }
    if (mf_pipeline_open_with(run->device, &row->shape, &run->extra, name, n, why, sizeof(why),
                              &row->pipeline) < 0) {
        char brief[MF_SHAPE_BRIEF_MAX];

        mf_shape_brief(&row->shape, brief);
        return mf_cli_fail(MF_EXIT_USAGE, "%s: %s", brief, why);
    }
    for (int i = 0; i < 2; i++)
        row->weight[i] = mf_pipeline_weight(row->pipeline, weight_tensor[i]);
    return 0;
}

/* The data that the row was tuned on, unless an option says otherwise. */
static int read_provenance(const struct settings *set, const struct mf_table_row *t, struct row *row)
{
    const char *routing = set->routing, *seed = t ? t->own[MF_OWN_SEED] : NULL;
    int64_t value = set->seed;

    if (!routing)
        routing = t && t->own[MF_OWN_ROUTING] && *t->own[MF_OWN_ROUTING] ? t->own[MF_OWN_ROUTING] : "uniform";
    if (mf_routing_parse(routing, &row->routing) < 0)
        return mf_cli_fail(
            MF_EXIT_USAGE,
            "'%s' is no routing profile; give --routing uniform, balanced, zipf:1.2 or hot:0.5", routing);
    if (value < 0 && (!seed || mf_parse_i64(seed, 0, INT64_MAX, &value) < 0))
        value = 1;
    row->seed = (uint64_t)value;
    return 0;
}

static int read_rows(struct run *run, const char *path)
{
    _cleanup_(mf_table_freep) struct mf_table *table = NULL;
    char why[MF_REASON_MAX] = "";
    int code = 0;

    if (mf_fmoe_open_with(run->device, path, &run->extra, why, sizeof(why), &run->fmoe) < 0 ||
        mf_table_file_read(path, &table, why) < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "%s", *why ? why : "out of memory");
    for (size_t i = 0; i < mf_fmoe_n_foreign(run->fmoe); i++)
        (void)fprintf(stderr, "%s:%lld: passed over: %s\n", path,
                      (long long)mf_fmoe_foreign_line(run->fmoe, i), MF_FMOE_FOREIGN_WHY);
    run->n_rows = mf_fmoe_n_rows(run->fmoe);
    if (run->n_rows == 0)
        return mf_cli_fail(MF_EXIT_USAGE, "%s: no row of this device's class that it can run, %s/%d", path,
                           run->device->info.class.gfx, run->device->info.class.cu_num);
    run->rows = calloc(run->n_rows, sizeof(*run->rows));
    if (!run->rows)
        return out_of_memory();
    for (size_t i = 0; i < run->n_rows && code == 0; i++) {
        struct row *row = &run->rows[i];
        const char *names;
        size_t found;

        (void)mf_fmoe_row(run->fmoe, i, &row->shape, &row->us, &names);
        row->reachable = mf_fmoe_lookup(run->fmoe, &row->shape, &found) == 0 && found == i;
        code = read_provenance(&run->set, mf_table_find(table, &run->device->info.class, &row->shape), row);
        if (code == 0)
            code = open_pipeline(run, row, names);
    }
    return code;
}

/* ---- the data of a group ---- */

static bool same_group(const struct row *a, const struct row *b)
{
    return a->seed == b->seed && mf_shape_same_layer_model(&a->shape, &b->shape) &&
           mf_artifact_equal(&a->weight[0], &b->weight[0]) && mf_artifact_equal(&a->weight[1], &b->weight[1]);
}

static void free_weights(struct run *run, struct weights *w)
{
    for (int i = 0; i < 2; i++) {
        for (int p = 0; p < w->n_parts[i]; p++) {
            if (w->ref[i].part[p])
                run->device->ops->release(run->device, w->ref[i].part[p], w->bytes[i][p]);
        }
        if (w->bias[i])
            run->device->ops->release(run->device, w->bias[i], w->bias_bytes[i]);
    }
}

/* In `row` layout, as the references read them. */
static int make_weights(struct run *run, const struct row *row, struct weights *w)
{
    for (int i = 0; i < 2; i++) {
        struct mf_part parts[MF_PARTS_MAX];
        int n;

        w->artifact[i] = row->weight[i];
        n = mf_artifact_parts(&w->artifact[i], &row->shape, parts);
        if (n < 1)
            return mf_cli_fail(MF_EXIT_USAGE, "the pipeline reads no %s", mf_tensor_name(weight_tensor[i]));
        w->n_parts[i] = n;
        for (int p = 0; p < n; p++) {
            w->bytes[i][p] = (size_t)mf_part_bytes(&parts[p]);
            w->ref[i].part[p] = run->device->ops->alloc(run->device, w->bytes[i][p]);
            if (!w->ref[i].part[p])
                return out_of_memory();
        }
        if (mf_data_weight(&row->shape, weight_tensor[i], row->seed, &w->ref[i]) < 0)
            return out_of_memory();
    }
    return 0;
}

static int make_biases(struct run *run, const struct row *row, struct weights *w)
{
    for (int i = 0; i < 2; i++) {
        struct mf_artifact a = mf_plain_bias(bias_tensor[i]);
        struct mf_part part[MF_PARTS_MAX];

        if (mf_artifact_parts(&a, &row->shape, part) < 0)
            continue; /* the shape has none */
        w->bias_bytes[i] = (size_t)mf_part_bytes(&part[0]);
        w->bias[i] = run->device->ops->alloc(run->device, w->bias_bytes[i]);
        if (!w->bias[i] || mf_data_bias(&row->shape, bias_tensor[i], row->seed, w->bias[i]) < 0)
            return out_of_memory();
    }
    return 0;
}

struct packing {
    const struct mf_shape *shape;
    struct mf_artifact from, to;
    const struct mf_tensor_ref *w;
    int n_parts;
    size_t bytes[MF_PARTS_MAX]; /* of an expert */
    uint8_t *scratch;           /* an expert for each thread */
    size_t scratch_bytes;
};

static void pack_experts(void *context, int thread, int n_threads)
{
    const struct packing *p = context;

    for (size_t e = (size_t)thread; e < (size_t)p->shape->expert; e += (size_t)n_threads) {
        uint8_t *scratch = p->scratch + (size_t)thread * p->scratch_bytes;
        struct mf_tensor_ref from = {0}, to = {0};

        for (int i = 0; i < p->n_parts; i++) {
            to.part[i] = (uint8_t *)p->w->part[i] + e * p->bytes[i];
            from.part[i] = memcpy(scratch, to.part[i], p->bytes[i]);
            scratch += (p->bytes[i] + 63) / 64 * 64;
        }
        (void)mf_layout_convert_weight(p->shape, &p->from, &p->to, &from, &to);
    }
}

/* From `row` to what the pipelines want, in place. */
static int pack_weights(const struct row *row, struct weights *w)
{
    int threads = mf_pool_threads();

    for (int i = 0; i < 2; i++) {
        struct packing p = {.shape = &row->shape,
                            .from = mf_plain_w(&row->shape, weight_tensor[i], "row"),
                            .to = w->artifact[i],
                            .w = &w->ref[i],
                            .n_parts = w->n_parts[i]};

        if (mf_artifact_equal(&p.from, &p.to))
            continue;
        for (int part = 0; part < p.n_parts; part++) {
            p.bytes[part] = w->bytes[i][part] / (size_t)row->shape.expert;
            p.scratch_bytes += (p.bytes[part] + 63) / 64 * 64;
        }
        p.scratch = calloc((size_t)threads, p.scratch_bytes);
        if (!p.scratch)
            return out_of_memory();
        mf_pool_run(pack_experts, &p, threads);
        free(p.scratch);
    }
    return 0;
}

static size_t x_bytes(const struct row *row)
{
    return (size_t)row->shape.token * (size_t)row->shape.model_dim * sizeof(uint16_t);
}

static size_t topk_bytes(const struct row *row)
{
    return (size_t)row->shape.token * (size_t)row->shape.topk * sizeof(int32_t);
}

static void free_row_data(struct run *run, struct row *row)
{
    const struct mf_device_ops *ops = run->device->ops;

    if (row->x)
        ops->release(run->device, row->x, x_bytes(row));
    if (row->y)
        ops->release(run->device, row->y, x_bytes(row));
    if (row->weights)
        ops->release(run->device, row->weights, topk_bytes(row));
    if (row->arena)
        ops->release(run->device, row->arena, mf_pipeline_arena_bytes(row->pipeline) + 1);
    for (int r = 0; r < ROTATIONS; r++) {
        if (row->ids[r])
            ops->release(run->device, row->ids[r], topk_bytes(row));
        row->ids[r] = NULL;
    }
    mf_reference_release(&row->reference);
    row->reference = (struct mf_reference){0};
    free(row->samples);
    row->samples = NULL;
    row->x = row->y = row->arena = NULL;
    row->weights = NULL;
}

/* Rotation r brings each token to other experts, a stride further, so that their weights are not in a cache. */
static void rotate(const struct row *row, int r)
{
    const int32_t *from = row->ids[0];
    int32_t *to = row->ids[r];
    int64_t n = row->shape.token * row->shape.topk, stride = MF_MAX(row->shape.expert / ROTATIONS, 1);

    for (int64_t i = 0; i < n; i++) {
        int32_t e = mf_shape_local(&row->shape, from[i]);
        to[i] = e < 0 ? from[i] : row->shape.ep_first + (int32_t)((e + r * stride) % row->shape.expert);
    }
}

static int make_row_data(struct run *run, struct row *row, const struct weights *w)
{
    const struct mf_device_ops *ops = run->device->ops;
    struct mf_layer_data data = {
        .shape = row->shape, .w1 = w->ref[0], .w2 = w->ref[1], .b1 = w->bias[0], .b2 = w->bias[1]};
    struct mf_artifact x = mf_plain_x(&row->shape), h = mf_plain_h(&row->shape, 1);

    row->x = ops->alloc(run->device, x_bytes(row));
    row->y = ops->alloc(run->device, x_bytes(row));
    row->weights = ops->alloc(run->device, topk_bytes(row));
    row->arena = ops->alloc(run->device, mf_pipeline_arena_bytes(row->pipeline) + 1);
    row->samples = calloc((size_t)run->set.rounds, sizeof(*row->samples));
    if (!row->x || !row->y || !row->weights || !row->arena || !row->samples)
        return out_of_memory();
    for (int r = 0; r < ROTATIONS; r++) {
        row->ids[r] = ops->alloc(run->device, topk_bytes(row));
        if (!row->ids[r])
            return out_of_memory();
    }
    mf_data_x(&row->shape, row->seed, row->x);
    if (mf_data_topk(&row->shape, &row->routing, row->seed, row->ids[0], row->weights) < 0)
        return out_of_memory();
    for (int r = 1; r < ROTATIONS; r++)
        rotate(row, r);
    data.x = row->x;
    data.ids = row->ids[0];
    data.weights = row->weights;
    if (mf_reference_make(&data, &row->reference) < 0)
        return out_of_memory();
    row->calib[0] = mf_reference_global(&row->reference, &x);
    row->calib[1] = mf_reference_global(&row->reference, &h);
    return 0;
}

/* ---- running ---- */

static int launch(void *context, int index)
{
    (void)index;
    return mf_pipeline_run(context);
}

static int run_once(struct run *run, struct row *row, const struct weights *w, int rotation, double *ret_us)
{
    struct mf_fmoe_args args = {
        .x.part = {row->x},
        .topk.part = {row->ids[rotation], row->weights},
        .w1 = w->ref[0],
        .w2 = w->ref[1],
        .calib.part = {row->calib},
        .b1.part = {w->bias[0]},
        .b2.part = {w->bias[1]},
        .y.part = {row->y},
        .arena = row->arena,
    };
    int r;

    mf_pipeline_bind(row->pipeline, &args);
    r = run->device->ops->time(run->device, launch, row->pipeline, 1, ret_us);
    if (r < 0)
        return mf_cli_fail(MF_EXIT_FAILED, "a pipeline refused to run: %s", strerrordesc_np(-r));
    return 0;
}

static int check_output(struct run *run, struct row *row, const struct weights *w)
{
    int64_t n = row->shape.token * row->shape.model_dim;
    uint16_t *y = row->y;
    double us;
    int code;

    for (int64_t i = 0; i < n; i++)
        y[i] = POISON;
    code = run_once(run, row, w, 0, &us);
    if (code != 0)
        return code;
    row->check = mf_output_compare(&row->shape, y, row->reference.y, row->reference.y_error);
    return 0;
}

static void report_json(struct run *run, const struct row *row)
{
    cJSON *item = cJSON_CreateObject();
    char shape[MF_SHAPE_TEXT_MAX];

    mf_shape_print(&row->shape, shape);
    cJSON_AddItemToArray(run->json, item);
    cJSON_AddStringToObject(item, "shape", shape);
    cJSON_AddNumberToObject(item, "us", row->us);
    cJSON_AddNumberToObject(item, "measured_us", row->measured_us);
    cJSON_AddNumberToObject(item, "bad_values", (double)row->check.bad_values);
    cJSON_AddNumberToObject(item, "mismatch", row->check.mismatch);
    cJSON_AddNumberToObject(item, "row_error", row->check.row_error);
    cJSON_AddNumberToObject(item, "row_limit", row->check.row_limit);
    cJSON_AddBoolToObject(item, "reachable", row->reachable);
    cJSON_AddStringToObject(item, "verdict", mf_verdict_name(row->verdict));
}

static void report_header(void)
{
    printf("verdict  %-44s %11s %11s %6s %9s %17s\n", "shape", "now", "table", "ratio", "mismatch",
           "worst row (limit)");
}

static void report(struct run *run, const struct row *row)
{
    char brief[MF_SHAPE_BRIEF_MAX], was[MF_US_MAX], is[MF_US_MAX];
    const struct mf_output_check *c = &row->check;

    if (run->json) {
        report_json(run, row);
        return;
    }
    mf_shape_brief(&row->shape, brief);
    mf_us(row->us, was);
    mf_us(row->measured_us, is);
    printf("%-7s  %-44s %11s %11s %6.2f %8.2g%% %9.2g (%.2g)\n", mf_verdict_name(row->verdict), brief, is,
           was, row->measured_us / row->us, 100 * c->mismatch, c->row_error, c->row_limit);
    if (c->bad_values > 0)
        printf("         %" PRId64 " values are not finite or were never written\n", c->bad_values);
    if (!row->reachable)
        printf("         production never asks for this token count: its look-up goes by powers of two\n");
    (void)fflush(stdout);
}

/* One pass of interleaved rounds over the rows that are not known to be fast enough yet. */
static int time_pass(struct run *run, struct row *const *group, size_t n, const struct weights *w)
{
    for (size_t i = 0; i < n; i++)
        group[i]->n_samples = 0;
    for (int64_t round = 0; round < run->set.rounds; round++) {
        for (size_t i = 0; i < n; i++) {
            struct row *row = group[i];
            int code;

            if (row->timed && row->verdict != MF_VERDICT_SLOWER)
                continue;
            code = run_once(run, row, w, (int)((round + 1) % ROTATIONS), &row->samples[row->n_samples]);
            if (code != 0)
                return code;
            row->n_samples++;
        }
    }
    return 0;
}

/* What else a machine does makes a pass slow, never fast: rows that look slower are timed again, and the best pass's
 * median counts. */
static int time_group(struct run *run, struct row *const *group, size_t n, const struct weights *w)
{
    for (int pass = 0; pass < PASSES; pass++) {
        int code = time_pass(run, group, n, w);

        if (code != 0)
            return code;
        for (size_t i = 0; i < n; i++) {
            struct row *row = group[i];
            double us = row->n_samples > 0 ? mf_median(row->samples, row->n_samples) : row->measured_us;

            row->measured_us = row->timed ? fmin(row->measured_us, us) : us;
            row->timed = true;
            row->verdict =
                mf_verdict_of(&row->check, run->set.err_ratio, row->measured_us, row->us, run->set.slack);
        }
    }
    for (size_t i = 0; i < n; i++) {
        run->n_bad += group[i]->verdict != MF_VERDICT_OK;
        report(run, group[i]);
    }
    return 0;
}

static int run_group(struct run *run, struct row *const *group, size_t n)
{
    struct weights w = {0};
    int code = make_weights(run, group[0], &w);

    if (code == 0)
        code = make_biases(run, group[0], &w);

    for (size_t i = 0; i < n && code == 0; i++)
        code = make_row_data(run, group[i], &w);
    if (code == 0)
        code = pack_weights(group[0], &w);
    for (size_t i = 0; i < n && code == 0; i++)
        code = check_output(run, group[i], &w);
    if (code == 0)
        code = time_group(run, group, n, &w);
    for (size_t i = 0; i < n; i++)
        free_row_data(run, group[i]);
    free_weights(run, &w);
    return code;
}

static int run_all(struct run *run)
{
    _cleanup_(mf_freep) struct row **group = calloc(run->n_rows, sizeof(*group));

    if (!group)
        return out_of_memory();
    for (size_t first = 0; first < run->n_rows; first++) {
        size_t n = 0;
        int code;

        if (run->rows[first].taken)
            continue;
        for (size_t i = first; i < run->n_rows; i++) {
            if (run->rows[i].taken || !same_group(&run->rows[first], &run->rows[i]))
                continue;
            run->rows[i].taken = true;
            group[n++] = &run->rows[i];
        }
        code = run_group(run, group, n);
        if (code != 0)
            return code;
    }
    return 0;
}

static int load_families(struct run *run)
{
    char files[NAMES_MAX], why[MF_REASON_MAX] = "";
    int code = 0;

    if (mf_copy(files, sizeof(files), run->set.family_so ? run->set.family_so : "") < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "--family-so: longer than %d bytes", NAMES_MAX);
    for (char *at = files, *next; code == 0 && at && *at; at = next) {
        next = strchr(at, ',');
        if (next)
            *next++ = '\0';
        if (mf_family_plugin_load(&run->plugins, at, why, sizeof(why)) < 0)
            code = mf_cli_fail(MF_EXIT_USAGE, "--family-so: %s: %s", at, why);
    }
    run->extra = mf_family_plugins_set(&run->plugins);
    return code;
}

static void report_sum(const struct run *run)
{
    size_t n_foreign = mf_fmoe_n_foreign(run->fmoe);

    printf("%zu rows: %zu OK, %zu not", run->n_rows, run->n_rows - run->n_bad, run->n_bad);
    if (n_foreign > 0)
        printf("; %zu passed over", n_foreign);
    (void)putchar('\n');
}

static int run_table(struct run *run, const char *path)
{
    char why[MF_REASON_MAX] = "";
    int code;

    if (mf_device_open(run->set.device, why, sizeof(why), &run->device) < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "--device: %s", why);
    code = read_rows(run, path);
    if (code == 0 && run->cli->json) {
        run->json = cJSON_CreateArray();
        code = run->json ? 0 : out_of_memory();
    }
    if (code == 0 && !run->json)
        report_header();
    if (code == 0)
        code = run_all(run);
    if (code != 0)
        return code;
    if (run->json)
        code = mf_api_print(run->json);
    else
        report_sum(run);
    return run->n_bad > 0 ? MF_EXIT_FAILED : code;
}

int mf_cmd_run_config(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    struct run run = {.cli = cli,
                      .set = {.device = "cpu:0", .seed = -1, .rounds = 11, .err_ratio = 0.1, .slack = 1.5}};
    const struct mf_opt opts[] = {
        {.name = "device",
         .type = MF_OPT_TEXT,
         .value = &run.set.device,
         .argument = "NAME",
         .help = "cpu:0"},
        {.name = "family-so",
         .type = MF_OPT_TEXT,
         .value = &run.set.family_so,
         .argument = "FILES",
         .help = "shared objects with kernel families, by comma"},
        {.name = "rounds",
         .type = MF_OPT_INT,
         .value = &run.set.rounds,
         .argument = "N",
         .help = "samples of each row, interleaved",
         .min = 1,
         .max = ROUNDS_MAX},
        {.name = "slack",
         .type = MF_OPT_DOUBLE,
         .value = &run.set.slack,
         .argument = "X",
         .help = "up to X times the row's time is OK"},
        {.name = "err-ratio",
         .type = MF_OPT_DOUBLE,
         .value = &run.set.err_ratio,
         .argument = "X",
         .help = "AITER's mismatch ratio that is still right"},
        {.name = "routing",
         .type = MF_OPT_TEXT,
         .value = &run.set.routing,
         .argument = "PROFILE",
         .help = "the row's own otherwise"},
        {.name = "seed",
         .type = MF_OPT_INT,
         .value = &run.set.seed,
         .argument = "N",
         .help = "of the data; -1: the row's own",
         .min = -1,
         .max = INT64_MAX},
    };
    int rest, r, code;

    r = mf_cli_parse(cli, self, opts, MF_ARRAY_LEN(opts), 1, 1, argc, argv, &rest);
    if (r != 0)
        return r < 0 ? MF_EXIT_USAGE : MF_EXIT_OK;
    code = load_families(&run);
    if (code == 0)
        code = run_table(&run, argv[rest]);
    for (size_t i = 0; i < run.n_rows && run.rows; i++)
        run.rows[i].pipeline = mf_pipeline_close(run.rows[i].pipeline);
    free(run.rows);
    run.fmoe = mf_fmoe_close(run.fmoe);
    run.device = mf_device_close(run.device);
    mf_family_plugins_release(&run.plugins);
    cJSON_Delete(run.json);
    return code;
}
