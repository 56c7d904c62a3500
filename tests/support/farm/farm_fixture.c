#include "support/farm/farm_fixture.h"

#include "common/base/json.h"
#include "common/base/text.h"
#include "common/moe/shape.h"
#include "server/store/store_private.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

struct fixture {
    struct mf_store *s;
    int64_t now_ms;
    uint64_t random;
    int64_t next_seq;
};

static double uniform(struct fixture *f)
{
    f->random = f->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(f->random >> 33) / (double)(UINT64_C(1) << 31);
}

#define run(f, sql, types, ...) \
    ck_assert_msg(mf_sql_run((f)->s, sql, types, ##__VA_ARGS__) >= 0, "%s", mf_store_error((f)->s))

/* --- devices and workers --- */

static void add_devices(struct fixture *f)
{
    run(f, "INSERT OR IGNORE INTO farm (id, epoch, created_ms) VALUES (1, 3, ?)", "i", f->now_ms - 86400000);
    run(f, "INSERT INTO device_class VALUES (1, 'cpu-znver4', 2), (2, 'sim-alpha', 64), (3, 'gfx942', 304)",
        "");
    run(f, "INSERT INTO device_model VALUES (1, 1, 'EPYC 9R14', 0, '{}'), (2, 2, 'Alpha 64', 1, '{}')", "");
}

struct worker {
    const char *name, *host, *state, *step, *busy;
    int64_t model, unit, seen_s, results, deaths;
};

/* All enumerations are of this family, whatever their steps. */
static void add_family(struct fixture *f)
{
    run(f, "INSERT OR IGNORE INTO family (id, name, revision) VALUES (1, 'two_stage', 'r1')", "");
}

static void add_workers(struct fixture *f)
{
    add_family(f);
    run(f, "INSERT INTO family_set (id, families) VALUES (1, '[1]')", "");
    static const struct worker workers[] = {
        {"node-a-cpu0", "node-a", "busy", "tile_s2_m32n64k128_t2_panel16_avx512bf16",
         "{\"timing\":412.5,\"verify\":131.2,\"data\":24.1,\"load\":8.4,\"wait\":11.9}", 1, 9, 0, 1873, 2},
        {"node-b-cpu0", "node-b", "busy", "tile_s1_m16n32k256_t2_panel16_avx512bf16",
         "{\"timing\":398.0,\"verify\":140.9,\"data\":31.0,\"load\":9.9,\"wait\":40.3}", 1, 10, 1, 1702, 0},
        {"sim-0", "node-a", "idle", "",
         "{\"timing\":12.0,\"verify\":1.0,\"data\":0.2,\"load\":0.1,\"wait\":90.0}", 2, 0, 2, 240, 1},
        {"node-c-cpu0", "node-c", "draining", "sort_m64",
         "{\"timing\":88.0,\"verify\":21.0,\"data\":12.0,\"load\":4.0,\"wait\":3.0}", 1, 11, 1, 512, 0},
        {"node-d-cpu0", "node-d", "lost", "",
         "{\"timing\":10.0,\"verify\":2.0,\"data\":1.0,\"load\":1.0,\"wait\":0.5}", 1, 0, 340, 41, 3},
    };
    for (size_t i = 0; i < MF_ARRAY_LEN(workers); i++) {
        const struct worker *w = &workers[i];
        run(f,
            "INSERT INTO worker (name, instance, model, host, pid, version, revision, families, state, unit, "
            "step, joined_ms, seen_ms, busy,"
            " n_results, n_deaths) VALUES (?, 'i', ?, ?, ?, '0.1.0', 'r1', "
            "'{\"move\":\"r1\",\"two_stage\":\"r1\",\"one_stage\":\"r1\",\"onednn\":\"r1\"}', ?, ?, ?, ?, ?, "
            "?, ?, ?)",
            "tititItiitii", w->name, w->model, w->host, (int64_t)(4000 + i), w->state, w->unit, w->step,
            f->now_ms - 3600000, f->now_ms - w->seen_s * 1000, w->busy, w->results, w->deaths);
        run(f, "INSERT INTO worker_family_set (worker, family_set) VALUES (?, 1)", "i",
            mf_store_last_id(f->s));
    }
}

/* --- steps --- */

static int64_t add_kernel(struct fixture *f, const char *family, const char *name)
{
    int64_t id = 0;
    run(f, "INSERT OR IGNORE INTO kernel (family, revision, name) VALUES (?, 'r1', ?)", "tt", family, name);
    ck_assert_int_eq(mf_sql_get_i64(f->s,
                                    "SELECT id FROM kernel WHERE family = ? AND revision = 'r1' AND name = ?",
                                    &id, "tt", family, name),
                     1);
    return id;
}

static int64_t add_step(struct fixture *f, int64_t enumeration, const char *family, const char *stage,
                        const char *covers, int block_m, const char *name)
{
    char body[512];
    mf_format(
        body, sizeof(body),
        "{\"name\":\"%s\",\"family\":\"%s\",\"stage\":\"%s\",\"covers\":\"%s\",\"block_m\":%d,\"ksplit\":0}",
        name, family, stage, covers, block_m);
    run(f,
        "INSERT INTO step (enumeration, kernel, covers, block_m, flops, bytes, body) VALUES (?, ?, ?, ?, "
        "1e9, 1e6, ?)",
        "iitit", enumeration, add_kernel(f, family, name), covers, (int64_t)block_m, body);
    return mf_store_last_id(f->s);
}

static void add_rejections(struct fixture *f, int64_t enumeration)
{
    static const char *const rows[][4] = {
        {"onednn", "onednn_*", "dtype",
         "oneDNN's matmul supports bf16 and int8; the shape has fp8 weights (torch.float8_e4m3fn)"},
        {"one_stage", "one_t*", "tokens",
         "a fused single pass keeps every token's row in cache: 64 tokens of 2048 values (256 KiB) exceed "
         "the limit of 128 KiB"},
        {"two_stage", "tile_s1_m128*", "block_m",
         "block_m 128 pads 8 routed rows of an expert to 128: 16 times the arithmetic, more than the limit "
         "of 8"},
        {"asm", "*", "device", "prebuilt code objects are for gfx942 and gfx950; the device is cpu-znver4"},
    };
    for (size_t i = 0; i < MF_ARRAY_LEN(rows); i++)
        run(f, "INSERT INTO rejection (enumeration, family, kernel, rule, reason) VALUES (?, ?, ?, ?, ?)",
            "itttt", enumeration, rows[i][0], rows[i][1], rows[i][2], rows[i][3]);
}

/* --- results --- */

struct outcome {
    const char *status, *reason;
};

static struct outcome pick_outcome(struct fixture *f)
{
    static const struct outcome failures[] = {
        {"slow", "the second call took 4.1 times the best comparable step; dropped before verification"},
        {"wrong", "row 17 differs by 0.31 of its norm (limit 0.024); the values look like those of expert 5"},
        {"crash", "the runner died of signal 11 (Segmentation fault) while timing; stderr: \"tile_s2: "
                  "prefetch beyond w2\""},
        {"hang", "still running after 10,000 ms, the time limit of a step; the runner was killed"},
        {"implausible", "0.4 us exceeds the device's peak of 1,480 GFLOP/s by a factor of 9"},
    };
    double u = uniform(f);
    if (u < 0.82)
        return (struct outcome){"ok", ""};
    if (u < 0.92)
        return failures[0];
    return failures[1 + (int)(uniform(f) * 3.99)];
}

static void add_result(struct fixture *f, int64_t unit, int64_t task, int64_t step, int64_t pipeline,
                       struct outcome o, double us, int n_samples, const char *extra)
{
    float samples[64];
    bool timed = strcmp(o.status, "ok") == 0 || strcmp(o.status, "slow") == 0;
    for (int i = 0; i < n_samples; i++)
        samples[i] = (float)(us * (0.985 + 0.05 * uniform(f) * uniform(f)));
    int64_t seq = f->next_seq++;
    run(f,
        "INSERT INTO result (unit, attempt, seq, step, pipeline, task, worker, status, reason, us, mad, err, "
        "row_err, verified, late, final,"
        " samples, extra, at_ms) VALUES (?, 1, ?, ?, ?, ?, 1, ?, ?, ?, ?, ?, ?, 2, 0, 1, ?, ?, ?)",
        "iiIIittddddbti", unit, seq, step, pipeline, task, o.status, o.reason, timed ? us : (double)NAN,
        timed ? us * 0.008 : (double)NAN, timed ? 0.0004 : (double)NAN, timed ? 0.0031 : (double)NAN, samples,
        timed ? sizeof(float) * (size_t)n_samples : (size_t)0, extra,
        f->now_ms - (seq == 1 ? 2000000 : 100000) + seq * 40); /* the first result is older than its batch */
}

/* --- tasks --- */

#define STEPS_MAX 96
struct task_steps {
    int64_t sort[3], s1[STEPS_MAX], s2[STEPS_MAX], combine[3], one;
    double sort_us, s1_us[STEPS_MAX], s2_us[STEPS_MAX], combine_us, one_us;
    bool s1_ok[STEPS_MAX], s2_ok[STEPS_MAX];
    int n1, n2;
};
static const int block_ms[] = {16, 32, 64};

static int64_t add_unit(struct fixture *f, int64_t task, const char *kind, const char *state)
{
    run(f,
        "INSERT INTO unit (task, class, kind, state, priority, families, body, attempt, created_ms) SELECT "
        "id,"
        " class, "
        "?, ?, 50, 1, '{}', 1, ? FROM task WHERE id = ?",
        "ttii", kind, state, f->now_ms, task);
    return mf_store_last_id(f->s);
}

/* Adds the steps of a task. The fraction `done` of the steps gets results. */
static int add_steps(struct fixture *f, int64_t task, int64_t enumeration, int token, double done,
                     struct task_steps *g)
{
    char name[160];
    int64_t unit = add_unit(f, task, "probe", done < 1 ? "leased" : "done");
    double base = 30 + 6.5 * token;
    int n = 0, measured = 0;
    memset(g, 0, sizeof(*g));
    g->sort_us = 1.1 + 0.02 * token;
    g->combine_us = 1.9 + 0.06 * token;
    for (int b = 0; b < 3; b++, n += 2) {
        mf_format(name, sizeof(name), "sort_m%d", block_ms[b]);
        g->sort[b] = add_step(f, enumeration, "move", "move", "sort", block_ms[b], name);
        mf_format(name, sizeof(name), "combine_m%d", block_ms[b]);
        g->combine[b] = add_step(f, enumeration, "move", "move", "weight+combine", block_ms[b], name);
        add_result(f, unit, task, g->sort[b], 0, (struct outcome){"ok", ""}, g->sort_us, 12,
                   "{\"mode\":\"cold\",\"row_limit\":0.024}");
        add_result(f, unit, task, g->combine[b], 0, (struct outcome){"ok", ""}, g->combine_us, 12,
                   "{\"mode\":\"cold\",\"row_limit\":0.024}");
        measured += 2;
    }
    for (int i = 0; i < 36; i++, n += 2) {
        int m = block_ms[i % 3], nn = 16 << (i / 3 % 4), k = 64 << (i / 12);
        double u1 = base * (1 + 1.3 * uniform(f) * uniform(f)),
               u2 = base * 0.52 * (1 + 1.2 * uniform(f) * uniform(f));
        bool measure = uniform(f) < done;
        mf_format(name, sizeof(name), "tile_s1_m%dn%dk%d_t2_panel16_avx512bf16", m, nn, k);
        g->s1[i] = add_step(f, enumeration, "two_stage", "stage1", "gather+gemm1+act", m, name);
        mf_format(name, sizeof(name), "tile_s2_m%dn%dk%d_t2_panel16_avx512bf16", m, nn, k);
        g->s2[i] = add_step(f, enumeration, "two_stage", "stage2", "gemm2", m, name);
        g->s1_us[i] = u1;
        g->s2_us[i] = u2;
        g->n1 = g->n2 = i + 1;
        if (!measure)
            continue;
        struct outcome o1 = pick_outcome(f), o2 = pick_outcome(f);
        g->s1_ok[i] = strcmp(o1.status, "ok") == 0;
        g->s2_ok[i] = strcmp(o2.status, "ok") == 0;
        add_result(f, unit, task, g->s1[i], 0, o1, u1, 20,
                   "{\"mode\":\"cold\",\"row_limit\":0.024,\"canary\":1.002,\"registers\":168,\"spills\":0,"
                   "\"lds\":98304,\"occupancy\":2}");
        add_result(f, unit, task, g->s2[i], 0, o2, u2, 20,
                   "{\"mode\":\"cold\",\"row_limit\":0.024,\"canary\":0.998}");
        measured += 2;
    }
    if (token <= 16) {
        g->one_us = base * 1.62;
        g->one = add_step(f, enumeration, "one_stage", "one", "sort+gather+gemm1+act+gemm2+weight+combine", 0,
                          "one_t16_avx512bf16");
        n++;
        if (done >= 1) {
            add_result(f, unit, task, g->one, 0, (struct outcome){"ok", ""}, g->one_us, 20,
                       "{\"mode\":\"cold\",\"row_limit\":0.024}");
            measured++;
        }
    }
    run(f, "UPDATE task SET n_steps = ?, n_measured = ? WHERE id = ?", "iii", (int64_t)n, (int64_t)measured,
        task);
    return measured;
}

static int64_t add_task(struct fixture *f, int64_t batch, int64_t class, int token, const char *layer,
                        const char *state, const char *reason)
{
    char row[MF_SHAPE_TEXT_MAX], model[MF_SHAPE_TEXT_MAX];
    int64_t shape = 0;
    struct mf_shape parsed;
    mf_format(row, sizeof(row), "%d,%s", token, layer);
    ck_assert_int_eq(mf_shape_parse(row, &parsed), 0);
    mf_shape_print_layer_model(&parsed, model);
    run(f, "INSERT OR IGNORE INTO shape (row, layer_model, token) VALUES (?, ?, ?)", "tti", row, model,
        (int64_t)token);
    ck_assert_int_eq(mf_sql_get_i64(f->s, "SELECT id FROM shape WHERE row = ?", &shape, "t", row), 1);
    run(f, "INSERT INTO task (batch, shape, class, state, reason) VALUES (?, ?, ?, ?, ?)", "iiitt", batch,
        shape, class, state, reason);
    int64_t task = mf_store_last_id(f->s);
    run(f, "INSERT INTO task_consumer (task, consumer) VALUES (?, 'moefarm')", "i", task);
    return task;
}

static int64_t enumerate(struct fixture *f, int64_t task)
{
    int64_t id = 0;
    run(f,
        "INSERT OR IGNORE INTO enumeration (class, shape, family, complete) SELECT class, shape, 1, 1 FROM "
        "task"
        " WHERE id = ?",
        "i", task);
    ck_assert_int_eq(mf_sql_get_i64(f->s,
                                    "SELECT e.id FROM enumeration e JOIN task g ON g.class = e.class AND "
                                    "g.shape = e.shape WHERE g.id = ?",
                                    &id, "i", task),
                     1);
    run(f, "INSERT INTO task_enumeration (task, enumeration) VALUES (?, ?)", "ii", task, id);
    run(f, "UPDATE task SET model = 1 WHERE id = ?", "i", task);
    add_rejections(f, id);
    return id;
}

/* --- ranking and race --- */

struct pipeline {
    int64_t id;
    double us;
};

static int64_t add_pipeline(struct fixture *f, int64_t task, int place, const char *steps,
                            const char *structure, int block_m, double us)
{
    run(f,
        "INSERT INTO pipeline (task, place, steps, structure, block_m, layout, sum_us, forecast_us, "
        "finalist) VALUES (?, ?, ?, ?, ?, 'w1=panel16 w2=panel16', ?, ?, ?)",
        "iittiddi", task, (int64_t)place, steps, structure, (int64_t)block_m, us, us, (int64_t)(place <= 8));
    return mf_store_last_id(f->s);
}

static int compare_pipelines(const void *a, const void *b)
{
    const struct pipeline *x = a, *y = b;
    return (x->us > y->us) - (x->us < y->us);
}

/* Adds pipelines that combine stages 1 and 2 with equal block_m, of which the eight cheapest race. Returns
 * the number of pipelines. */
static int add_pipelines(struct fixture *f, int64_t task, const struct task_steps *g, struct pipeline *ret)
{
    struct candidate {
        struct pipeline p;
        int i, j;
    } all[64];
    int n = 0;
    for (int i = 0; i < g->n1 && n < 40; i++) {
        int j = (i * 7 + i % 3 - (i * 7) % 3 + 36) % 36;
        if (j % 3 != i % 3 || !g->s1_ok[i] || !g->s2_ok[j])
            continue;
        all[n] = (struct candidate){{0, g->sort_us + g->s1_us[i] + g->s2_us[j] + g->combine_us}, i, j};
        n++;
    }
    if (g->one)
        all[n++] = (struct candidate){{0, g->one_us}, -1, -1};
    qsort(all, (size_t)n, sizeof(all[0]), compare_pipelines);
    for (int k = 0; k < n; k++) {
        char steps[160];
        const struct candidate *c = &all[k];
        int b = c->i < 0 ? 0 : c->i % 3;
        if (c->i < 0)
            mf_format(steps, sizeof(steps), "[%lld]", (long long)g->one);
        else
            mf_format(steps, sizeof(steps), "[%lld,%lld,%lld,%lld]", (long long)g->sort[b],
                      (long long)g->s1[c->i], (long long)g->s2[c->j], (long long)g->combine[b]);
        ret[k] = c->p;
        ret[k].id = add_pipeline(f, task, k + 1, steps,
                                 c->i < 0 ? "sort+gather+gemm1+act+gemm2+weight+combine"
                                          : "sort | gather+gemm1+act | gemm2 | weight+combine",
                                 c->i < 0 ? 0 : block_ms[b], c->p.us);
    }
    return n;
}

/* A task that keeps its known row, because its batch promotes improvements only. */
#define FIXTURE_TASK_KEPT 5

static void add_promotion(struct fixture *f, int64_t task, int64_t unit, const struct pipeline *p)
{
    run(f,
        "INSERT INTO promotion (task, known, known_us, source, old, new, new_us, least, decision, reason, "
        "at_ms)"
        " VALUES (?, 'tile:a|tile:b', 71.5, 'line 7 of the baseline', ?, ?, 70.5, 0.03, 'kept',"
        " 'compared with the known row it is SAME on node-a-cpu0, -1.0% (-1.4% to -0.6%, 96 rounds); "
        "required: "
        "3% less on each device', ?)",
        "iiii", task, p[0].id, p[1].id, f->now_ms - 60000);
    run(f,
        "INSERT INTO comparison (unit, task, worker, verdict, low, mid, high, n, old_us, new_us, old_status, "
        "new_status,"
        " old_reason, new_reason, at_ms) VALUES (?, ?, 1, 'SAME', -0.014, -0.01, -0.006, 96, 71.4, 70.6, "
        "'ok', 'ok', '',"
        " '', ?)",
        "iii", unit, task, f->now_ms - 60000);
}

/* Adds a race of eight pipelines. Four pipelines are dropped after round 10; the first two are statistically
 * tied. */
static void add_race(struct fixture *f, int64_t task, const struct pipeline *p)
{
    char extra[256];
    int64_t unit = add_unit(f, task, "race", "done");
    double us = p[0].us * 1.03;
    for (int i = 0; i < 8; i++) {
        double own = i < 2 ? us * (1 + 0.001 * i) : p[i].us * 1.03 + 0.4;
        if (i < 2)
            mf_format(extra, sizeof(extra), "{\"fresh\":[%.2f,%.2f,%.2f,%.2f]}", own * 0.998, own,
                      own * 1.001, own * 1.004);
        else
            mf_format(extra, sizeof(extra), i < 4 ? "{}" : "{\"dropped_at\":10}");
        add_result(f, unit, task, 0, p[i].id, (struct outcome){"ok", ""}, own, i < 4 ? 30 : 10, extra);
        run(f, "UPDATE pipeline SET race_us = ?, race_mad = ? WHERE id = ?", "ddi", own, own * 0.005,
            p[i].id);
    }
    mf_format(extra, sizeof(extra),
              "{\"race\":{\"winner\":%lld,\"ties\":[%lld],\"us\":%.4f,\"mad\":%.4f,\"rounds\":30,\"calls\":"
              "160,\"seed\":1,\"active_experts\":41}}",
              (long long)p[0].id, (long long)p[1].id, us, us * 0.004);
    add_result(f, unit, task, 0, 0, (struct outcome){"ok", ""}, us, 0, extra);
    char ties[64], regret[512];
    mf_format(ties, sizeof(ties), "[%lld]",
              (long long)p[1].id); /* the winner is not in its own list of ties */
    mf_format(
        regret, sizeof(regret),
        "[{\"routing\":\"balanced\",\"us\":%.4f,\"best_us\":%.4f,\"regret\":0,\"best\":%lld,\"tie\":true,"
        "\"status\":\"ok\",\"reason\":\"\"},{\"routing\":\"zipf:1.2\",\"us\":%.4f,\"best_us\":%.4f,"
        "\"regret\":0.0625,\"best\":%lld,\"tie\":false,\"status\":\"ok\",\"reason\":\"\"}]",
        us, us, (long long)p[0].id, us * 0.85, us * 0.8, (long long)p[2].id);
    run(f,
        "INSERT INTO config (task, shape, class, model, pipeline, us, mad, n, us1, us2, err1, err2, ties, "
        "regret, provenance, at_ms)"
        " SELECT id, shape, class, 1, ?, ?, ?, 4, ?, ?, 0.0004, 0.0009, ?, json(?), "
        "'{\"version\":\"0.1.0\",\"revision\":\"r1\",\"compiler\":\"gcc 12.2.0\","
        "\"worker\":\"node-a-cpu0\",\"host\":\"node-a\",\"seed\":1,\"routing\":\"uniform\",\"search\":"
        "\"race\"}', ? FROM task WHERE id = ?",
        "iddddttii", p[0].id, us, us * 0.004, us * 0.64, us * 0.36, ties, regret, f->now_ms - 60000, task);
    run(f, "UPDATE task SET state = 'done', ended_ms = ? WHERE id = ?", "ii", f->now_ms - 60000, task);
    if (task == FIXTURE_TASK_KEPT)
        add_promotion(f, task, unit, p);
}

/* --- batches --- */

#define QWEN30_BF16 \
    "2048,96,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0"
#define QWEN235_FP8                                                                                        \
    "4096,384,128,8,ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fn,torch.float8_e4m3fn,QuantType." \
    "per_1x128,1,0"

static void add_batch(struct fixture *f, const char *name, const char *state, int64_t age_s, int64_t ended_s,
                      const char *errors)
{
    char receipt[512];
    mf_format(receipt, sizeof(receipt), "{\"batch\":1,\"shapes\":7,\"tasks\":7,\"errors\":%s}", errors);
    run(f,
        "INSERT INTO batch (name, state, priority, options, idempotency_key, body_hash, receipt, created_ms, "
        "ended_ms) VALUES (?, ?, 50,"
        " '{\"classes\":[\"cpu-znver4/"
        "2\"],\"priority\":50,\"topk\":8,\"err_ratio\":0.1,\"time_cap_ms\":10000,\"routing\":\"uniform\","
        "\"search\":\"race\",\"layout\":\"common\",\"seed\":1}',"
        " NULL, 'x', ?, ?, ?)",
        "tttiI", name, state, receipt, f->now_ms - age_s * 1000, ended_s ? f->now_ms - ended_s * 1000 : 0);
}

static void add_done_batch(struct fixture *f)
{
    struct task_steps steps;
    struct pipeline pipelines[64];
    add_batch(f, "Qwen3-30B-A3B, bf16, TP8", "done", 900, 60, "[]");
    for (int token = 1; token <= 64; token *= 2) {
        int64_t task = add_task(f, FIXTURE_BATCH_DONE, 1, token, QWEN30_BF16, "racing", "");
        add_steps(f, task, enumerate(f, task), token, 1.1, &steps);
        ck_assert_int_ge(add_pipelines(f, task, &steps, pipelines), 8);
        add_race(f, task, pipelines);
    }
    run(f,
        "INSERT INTO layout_choice (batch, class, layer_model, layout, us, body) SELECT 1, 1, layer_model, "
        "'w1=panel16 w2=panel16', 1420.5, "
        "'{\"free_gain\":0.013}' FROM shape WHERE id = 1",
        "");
}

static void add_open_batch(struct fixture *f)
{
    struct task_steps steps;
    struct pipeline pipelines[64];
    add_batch(
        f, "Qwen3-235B-A22B, fp8 1x128, TP4", "open", 500, 0,
        "[{\"line\":9,\"at\":\"topk\",\"code\":\"range\",\"message\":\"topk 300 is more than expert 128\"}]");
    int64_t task = add_task(f, FIXTURE_BATCH_OPEN, 1, 1, QWEN235_FP8, "racing", "");
    add_steps(f, task, enumerate(f, task), 1, 1.1, &steps);
    add_race(f, task, (add_pipelines(f, task, &steps, pipelines), pipelines));
    task = add_task(f, FIXTURE_BATCH_OPEN, 1, 2, QWEN235_FP8, "racing", "");
    add_steps(f, task, enumerate(f, task), 2, 1.1, &steps);
    add_pipelines(f, task, &steps, pipelines);
    task = add_task(f, FIXTURE_BATCH_OPEN, 1, 4, QWEN235_FP8, "probing", "");
    add_steps(f, task, enumerate(f, task), 4, 0.55, &steps);
    task = add_task(f, FIXTURE_BATCH_OPEN, 1, 8, QWEN235_FP8, "probing", "");
    add_steps(f, task, enumerate(f, task), 8, 0.2, &steps);
    add_task(f, FIXTURE_BATCH_OPEN, 1, 16, QWEN235_FP8, "enumerating", "");
    add_task(f, FIXTURE_BATCH_OPEN, 1, 32, QWEN235_FP8, "failed",
             "no pipeline covers the layer: every step that covers gemm2 failed (12 wrong, 3 crash)");
}

static void add_quarantine(struct fixture *f)
{
    for (int i = 0; i < 2; i++)
        run(f,
            "INSERT INTO strike (kernel, class, worker, task, status, reason, at_ms) SELECT id, 1, ?, 5, "
            "'crash', 'the runner died of signal 11 (Segmentation fault)', ?"
            " FROM kernel WHERE name LIKE 'tile_s2_m64n16k256%'",
            "ii", (int64_t)(1 + i), f->now_ms - 90000 + i * 1000);
    run(f,
        "INSERT INTO quarantine SELECT id, 1, 'killed two runners, on node-a-cpu0 and node-b-cpu0', ? FROM "
        "kernel WHERE name LIKE 'tile_s2_m64n16k256%'",
        "i", f->now_ms - 89000);
}

static void add_events(struct fixture *f)
{
    for (int i = 1; i <= 40; i++) {
        char body[128];
        mf_format(
            body, sizeof(body),
            "{\"batch\":%d,\"task\":%d,\"state\":\"probing\",\"steps\":78,\"measured\":%d,\"reason\":\"\"}",
            1 + i % 2, 1 + i % 7, i);
        run(f, "INSERT INTO event (batch, kind, body, at_ms) VALUES (?, 'task', ?, ?)", "iti",
            (int64_t)(1 + i % 2), body, f->now_ms - 40000 + i * 1000);
    }
}

void farm_fixture_fill(struct mf_store *s, int64_t now_ms)
{
    struct fixture f = {.s = s, .now_ms = now_ms, .random = 7, .next_seq = 1};
    ck_assert_int_ge(mf_store_begin(s), 0);
    add_devices(&f);
    add_workers(&f);
    add_done_batch(&f);
    add_open_batch(&f);
    add_batch(&f, "for the MI300X nodes", "open", 30, 0, "[]");
    add_task(&f, FIXTURE_BATCH_WAITING, 3, 4, QWEN30_BF16, "waiting",
             "no worker of the class gfx942/304 is connected");
    add_quarantine(&f);
    add_events(&f);
    ck_assert_int_ge(mf_store_commit(s), 0);
}

void farm_fixture_second_model(struct mf_store *s)
{
    struct fixture f = {.s = s};
    ck_assert_int_ge(mf_store_begin(s), 0);
    run(&f, "INSERT INTO device_model VALUES (3, 1, 'EPYC 9R45', 0, '{}')", "");
    /* a done, a failed and an unfinished task of the first model */
    static const int64_t tasks[] = {5, 13, 9};
    for (size_t i = 0; i < MF_ARRAY_LEN(tasks); i++) {
        run(&f,
            "INSERT INTO task (batch, shape, class, state, model) SELECT 3 - batch, shape, class, 'done', 3 "
            "FROM task WHERE id = ?",
            "i", tasks[i]);
        run(&f, "INSERT INTO task_consumer (task, consumer) VALUES (?, 'moefarm')", "i", mf_store_last_id(s));
        run(&f,
            "INSERT INTO config (task, shape, class, model, pipeline, us, mad, n, us1, us2, err1, err2, "
            "ties, "
            "provenance, at_ms)"
            " SELECT g.id, g.shape, g.class, 3, pipeline, us * 0.9, mad * 0.9, n, us1 * 0.9, us2 * 0.9, "
            "err1, err2, ties, "
            "provenance, at_ms FROM config, (SELECT * FROM task ORDER BY id DESC LIMIT 1) g WHERE task = 5",
            "");
    }
    ck_assert_int_ge(mf_store_commit(s), 0);
}

/* --- configs of vLLM and SGLang --- */

#define MIXTRAL_TP2 \
    "4096,7168,8,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0"
#define WIDER_TP2 \
    "6144,7168,8,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0"
#define DEEPSEEK_TP8                                                                                       \
    "7168,256,256,8,ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fn,torch.float8_e4m3fn,QuantType." \
    "per_1x128,1,0"
#define WHOLE_LAYER "sort+quant1+gather+gemm1+act+quant2+gemm2+weight+combine"

struct config {
    int token;
    const char *layer, *family, *step;
    double us;
};

static void add_config(struct fixture *f, int64_t batch, int64_t class, int64_t model, const struct config *c)
{
    char steps[32];
    int64_t task = add_task(f, batch, class, c->token, c->layer, "done", ""), enumeration = 0;
    run(f,
        "INSERT INTO enumeration (class, shape, family, complete) SELECT class, shape, 1, 1 FROM task "
        "WHERE id = ?",
        "i", task);
    enumeration = mf_store_last_id(f->s);
    mf_format(steps, sizeof(steps), "[%d]",
              (int)add_step(f, enumeration, c->family, "one", WHOLE_LAYER, 0, c->step));
    run(f, "INSERT INTO task_enumeration (task, enumeration) VALUES (?, ?)", "ii", task, enumeration);
    run(f, "UPDATE task SET model = ? WHERE id = ?", "ii", model, task);
    int64_t pipeline = add_pipeline(f, task, 1, steps, WHOLE_LAYER, 0, c->us);
    run(f, "UPDATE task_consumer SET consumer = ? WHERE task = ?", "ti", c->family, task);
    run(f, "UPDATE pipeline SET consumer = ? WHERE task = ?", "ti", c->family, task);
    run(f,
        "INSERT INTO config (consumer, task, shape, class, model, pipeline, us, mad, n, us1, us2, err1, "
        "err2, ties, "
        "provenance, at_ms) SELECT ?, id, shape, class, model, ?, ?, 0.1, 9, ?, 0, 0, 0, '[]', "
        "'{\"compiler\":\"triton 3.6.0\",\"revision\":\"r1\",\"routing\":\"uniform\",\"seed\":1}', 1 FROM "
        "task WHERE id = ?",
        "tiddi", c->family, pipeline, c->us, c->us, task);
}

void farm_fixture_configs(struct mf_store *s)
{
    static const struct config configs[] = {
        {1, MIXTRAL_TP2, "vllm", "triton_m16_n64_k64_g1_w4_s4", 60.5},
        {64, MIXTRAL_TP2, "vllm", "triton_m64_n128_k64_g8_w4_s3", 180.5},
        {4096, MIXTRAL_TP2, "vllm", "default", 1200.5},
        {8, WIDER_TP2, "vllm", "triton_m16_n64_k64_g1_w4_s4", 90.5},
        {1, DEEPSEEK_TP8, "vllm", "triton_m16_n64_k128_g1_w4_s3", 40.5},
        {16, MIXTRAL_TP2, "sglang", "triton_m16_n64_k64_g1_w4_s4-down_m16_n128_k64_g1_w4_s4_tma", 99.5},
    };
    struct fixture f = {.s = s, .now_ms = 1};
    ck_assert_int_ge(mf_store_begin(s), 0);
    run(&f, "INSERT OR IGNORE INTO farm (id, epoch, created_ms) VALUES (1, 3, 1)", "");
    run(&f, "INSERT INTO device_class (gfx, cu_num) VALUES ('sm_90', 132)", "");
    int64_t class = mf_store_last_id(s);
    run(&f, "INSERT INTO device_model (class, name, simulated, body) VALUES (?, 'NVIDIA H200', 0, '{}')", "i",
        class);
    int64_t model = mf_store_last_id(s);
    add_family(&f);
    add_batch(&f, "configs", "done", 9, 1, "[]");
    int64_t batch = mf_store_last_id(s);
    for (size_t i = 0; i < MF_ARRAY_LEN(configs); i++)
        add_config(&f, batch, class, model, &configs[i]);
    ck_assert_int_ge(mf_store_commit(s), 0);
}
