/* libfmoe as a serving program uses it: tests rows per token count, restrictions on calls, reloads under
 * load, misses and error messages. Runs on the CPU, or on the device that MOEFARM_TEST_DEVICE names. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/text.h"
#include "kernels/core/family.h"
#include "kernels/pipeline/fmoe.h"
#include "support/farm/serving.h"
#include "support/mf_check.h"

static struct mf_device *device;
static const char *name;

static void open_device(void)
{
    name = serving_device(&device);
}
static void close_device(void)
{
    device = mf_device_close(device);
}

static struct mf_shape shape_of(int layer, int64_t token)
{
    struct mf_shape s;

    ck_assert_int_eq(mf_shape_parse(serving_layers[layer], &s), 0);
    s.token = token;
    return s;
}

static const char *table_of(int layer, const int64_t *tokens, size_t n, int which, double us)
{
    const struct mf_shape most = shape_of(layer, SERVING_TOKENS);
    struct served_row rows[8];

    for (size_t i = 0; i < n; i++) {
        const struct mf_shape s = shape_of(layer, tokens[i]);
        rows[i] = (struct served_row){tokens[i], serving_pipeline(device, &s, which), us + (double)i};
    }
    return serving_table(device, &most, rows, n);
}

static struct fmoe *must_open(const char *table)
{
    struct fmoe_error error = {""};
    struct fmoe *f = NULL;

    ck_assert_msg(fmoe_open(name, &table, table ? 1 : 0, &error, &f) == 0, "%s", error.text);
    return f;
}

static struct fmoe_layer *must_open_layer(struct fmoe *f, int layer)
{
    const struct mf_shape s = shape_of(layer, SERVING_TOKENS);
    struct fmoe_layer_model model = serving_model(&s, SERVING_TOKENS);
    struct fmoe_error error = {""};
    struct fmoe_layer *l = NULL;

    model.workspace_bytes = 64u << 20;
    ck_assert_msg(fmoe_layer_open(f, &model, &error, &l) == 0, "%s", error.text);
    return l;
}

/* A layer with its own handle and its data. */
struct served_layer {
    struct fmoe *f;
    struct fmoe_layer *l;
    struct serving data;
};

static void serve_layer(struct served_layer *s, int layer, const char *table)
{
    const struct mf_shape shape = shape_of(layer, SERVING_TOKENS);

    s->f = must_open(table);
    s->l = must_open_layer(s->f, layer);
    serving_make(&s->data, device, s->l, &shape);
}

static void end_serving(struct served_layer *s)
{
    serving_release(&s->data);
    fmoe_close(s->f);
}

static void run_and_check(struct served_layer *s, int64_t tokens)
{
    const struct fmoe_call call = serving_call(&s->data, tokens, NULL);

    serving_poison(&s->data);
    ck_assert_int_eq(fmoe_run(s->l, &call), 0);
    ck_assert_int_eq(device->ops->sync(device), 0);
    ck_assert_msg(serving_matches(&s->data, tokens), "%d tokens: wrong result", (int)tokens);
}

/* ---- look-up ---- */

/* The table has rows for 8 and 16 tokens, which serve 5 to 16 tokens. Calls with other token counts are
 * misses, but they are computed correctly too. */
MF_TEST(serves_every_count, .rows = MF_ARRAY_LEN(serving_layers))
{
    static const int64_t rows[] = {8, 16}, counts[] = {1, 2, 3, 5, 8, 9, 16, 17, 32, 33, 40, 7, 1, 40};
    struct served_layer s;
    uint64_t misses = 0;

    serve_layer(&s, _i, table_of(_i, rows, 2, 0, 50));
    for (size_t i = 0; i < MF_ARRAY_LEN(counts); i++) {
        struct fmoe_served served;
        bool has_row = counts[i] > 4 && counts[i] <= 16;
        ck_assert_int_eq(fmoe_served(s.l, counts[i], &served), 0);
        ck_assert_int_eq(served.tuned, has_row);
        ck_assert_int_eq(served.bucket, mf_token_bucket(counts[i]));
        ck_assert(*served.pipeline != '\0');
        if (has_row) {
            ck_assert_double_eq(served.us, counts[i] > 8 ? 51 : 50);
            ck_assert_int_eq(served.line, counts[i] > 8 ? 3 : 2);
        }
        run_and_check(&s, counts[i]);
        misses += !has_row;
        ck_assert_uint_eq(fmoe_n_misses(s.f), misses);
    }
    end_serving(&s);
}

/* fmoe_served says which pipeline serves a miss, its modelled time, and why it was chosen. Which pipeline
 * that is depends on the device's steps; check_fmoe_fallback.c tests the choice. */
MF_TEST(misses_are_explained)
{
    static const int64_t rows[] = {4, 32}, misses[] = {1, 2, 8, 16, 40};
    const char *table = table_of(0, rows, 2, 0, 50);
    struct fmoe *f = must_open(table), *without_table = must_open(NULL);
    struct fmoe_layer *l = must_open_layer(f, 0), *without_rows = must_open_layer(without_table, 0);
    struct fmoe_served served;
    char line[128];
    size_t n_rows = 0;

    for (size_t i = 0; i < MF_ARRAY_LEN(misses); i++) {
        ck_assert_int_eq(fmoe_served(l, misses[i], &served), 0);
        ck_assert_int_eq(served.tuned, 0);
        ck_assert_double_eq(served.us, 0);
        ck_assert_double_gt(served.modelled_us, 0);
        mf_format(line, sizeof(line), "%s:%lld (", table, (long long)served.line);
        if (served.line > 0)
            ck_assert_msg(strstr(served.reason, line) != NULL && strstr(served.reason, "scaled from the row"),
                          "%s", served.reason);
        else
            ck_assert_msg(strstr(served.reason, "the pipeline with the lowest estimate, ") == served.reason,
                          "%s", served.reason);
        n_rows += served.line > 0;
    }
    ck_assert_uint_gt(n_rows, 0);
    ck_assert_int_eq(fmoe_served(l, 32, &served), 0);
    ck_assert(served.tuned && served.modelled_us == 0 && !*served.reason);
    ck_assert_int_eq(fmoe_served(without_rows, 32, &served), 0);
    ck_assert_double_eq(served.modelled_us, 0);
    ck_assert_msg(strstr(served.reason, ": no row has the same formats") != NULL, "%s", served.reason);
    ck_assert_int_eq(fmoe_served(l, 0, &served), -EINVAL);
    ck_assert_int_eq(fmoe_served(l, SERVING_TOKENS + 1, &served), -EINVAL);
    fmoe_close(f);
    fmoe_close(without_table);
}

/* ---- restrictions on calls ---- */

static atomic_size_t allocations;
#define COUNTED(call)  \
    do {               \
        allocations++; \
        return call;   \
    } while (0)
void *__real_malloc(size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_malloc(size_t n)
{
    COUNTED(__real_malloc(n));
}
void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size)
{
    COUNTED(__real_calloc(n, size));
}
void *__real_reallocarray(void *p, size_t n, size_t size);
void *__wrap_reallocarray(void *p, size_t n, size_t size);
void *__wrap_reallocarray(void *p, size_t n, size_t size)
{
    COUNTED(__real_reallocarray(p, n, size));
}
int __wrap_pthread_mutex_lock(pthread_mutex_t *m);
int __real_pthread_mutex_lock(pthread_mutex_t *m);
int __wrap_pthread_mutex_lock(pthread_mutex_t *m)
{
    COUNTED(__real_pthread_mutex_lock(m));
}

MF_TEST(calls_do_not_allocate_or_lock, .rows = MF_ARRAY_LEN(serving_layers))
{
    static const int64_t rows[] = {8, 16};
    struct served_layer s;
    size_t during = 0;

    serve_layer(&s, _i, table_of(_i, rows, 2, 0, 50));
    for (int64_t tokens = SERVING_TOKENS; tokens >= 1; tokens--)
        run_and_check(&s, tokens);
    for (int64_t tokens = 1; tokens <= SERVING_TOKENS; tokens++) {
        const struct fmoe_call call = serving_call(&s.data, tokens, NULL);
        const size_t before = allocations;
        int r = fmoe_run(s.l, &call);
        during += allocations - before;
        ck_assert_int_eq(r, 0);
    }
    ck_assert_uint_eq(during, 0);
    ck_assert_int_eq(device->ops->sync(device), 0);
    end_serving(&s);
}

MF_TEST(rejects_invalid_calls)
{
    struct fmoe_call call;
    struct served_layer s;

    serve_layer(&s, 0, NULL);
    call = serving_call(&s.data, SERVING_TOKENS + 1, NULL);
    ck_assert_int_eq(fmoe_run(s.l, &call), -EINVAL);
    call.tokens = 0;
    ck_assert_int_eq(fmoe_run(s.l, &call), -EINVAL);
    call.tokens = 4;
    call.workspace_bytes--;
    ck_assert_int_eq(fmoe_run(s.l, &call), -EINVAL);
    call.workspace_bytes++;
    call.workspace = (char *)call.workspace + 4;
    ck_assert_int_eq(fmoe_run(s.l, &call), -EINVAL);
    call.workspace = (char *)call.workspace - 4;
    call.ids_type = FMOE_FLOAT32;
    ck_assert_int_eq(fmoe_run(s.l, &call), -EINVAL);
    call.ids_type = FMOE_INT32;
    call.weights_type = 0;
    ck_assert_int_eq(fmoe_run(s.l, &call), -EINVAL);
    call.weights_type = FMOE_BFLOAT16 + 1;
    ck_assert_int_eq(fmoe_run(s.l, &call), -EINVAL);
    call.weights_type = FMOE_FLOAT32;
    ck_assert_uint_eq(fmoe_n_misses(s.f), 0);
    ck_assert_int_eq(fmoe_run(s.l, &call), 0);
    end_serving(&s);
}

/* ---- concurrent calls ---- */

struct caller {
    struct fmoe_layer *l;
    const struct fmoe_call *call;
    atomic_bool *was_refused;
    int64_t end_ms;
    int failed;
};

/* Calls fmoe_run until a call of any thread is refused. */
static void *call_until_refused(void *context)
{
    struct caller *c = context;

    while (!atomic_load(c->was_refused) && mf_now_ms() < c->end_ms) {
        int r = fmoe_run(c->l, c->call);
        if (r == -EBUSY)
            atomic_store(c->was_refused, true);
        c->failed += r != 0 && r != -EBUSY;
    }
    return NULL;
}

/* CPU calls use the threads of the process. If two calls through two handles overlap, the later call is
 * refused, and the result of the earlier call is correct. */
MF_TEST(one_cpu_call_per_process)
{
    struct served_layer s[2];
    struct fmoe_call calls[2];
    struct caller callers[2];
    atomic_bool was_refused = false;
    pthread_t other;

    if (device->ops->own_memory)
        return; /* only CPU calls use the threads of the process */
    for (int i = 0; i < 2; i++) {
        serve_layer(&s[i], 0, NULL);
        calls[i] = serving_call(&s[i].data, SERVING_TOKENS, NULL);
        callers[i] = (struct caller){
            .l = s[i].l, .call = &calls[i], .was_refused = &was_refused, .end_ms = mf_now_ms() + 60000};
    }
    ck_assert_int_eq(pthread_create(&other, NULL, call_until_refused, &callers[0]), 0);
    (void)call_until_refused(&callers[1]);
    ck_assert_int_eq(pthread_join(other, NULL), 0);
    ck_assert(atomic_load(&was_refused));
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(callers[i].failed, 0);
        run_and_check(&s[i], SERVING_TOKENS); /* a caller that was refused is served afterwards */
        end_serving(&s[i]);
    }
}

/* ---- layers of one model ---- */

static int pipelines_opened;
int __real_mf_pipeline_open(struct mf_device *d, const struct mf_shape *shape,
                            const struct mf_family_set *extra, const char *text, char *why, size_t why_cap,
                            struct mf_pipeline **ret);
int __wrap_mf_pipeline_open(struct mf_device *d, const struct mf_shape *shape,
                            const struct mf_family_set *extra, const char *text, char *why, size_t why_cap,
                            struct mf_pipeline **ret);
int __wrap_mf_pipeline_open(struct mf_device *d, const struct mf_shape *shape,
                            const struct mf_family_set *extra, const char *text, char *why, size_t why_cap,
                            struct mf_pipeline **ret)
{
    pipelines_opened++;
    return __real_mf_pipeline_open(d, shape, extra, text, why, why_cap, ret);
}

/* The layers of one model share their kernels and one workspace. A reload opens the kernels once for all, and
 * the last layer that is closed closes them. */
MF_TEST(layers_of_a_model_share_plans)
{
    static const int64_t rows[] = {8, 16};
    const char *tables[] = {table_of(0, rows, 2, 0, 50), table_of(0, rows, 2, 1, 70)};
    struct fmoe_error error = {""};
    struct fmoe_layer *layers_of_f[61], *other;
    struct served_layer s = {.f = must_open(tables[0])};
    const struct mf_shape shape = shape_of(0, SERVING_TOKENS);
    size_t largest;
    int opened;

    ck_assert_uint_eq(fmoe_max_workspace_bytes(s.f), 0);
    pipelines_opened = 0;
    for (size_t i = 0; i < MF_ARRAY_LEN(layers_of_f); i++) {
        layers_of_f[i] = must_open_layer(s.f, 0);
        opened = i == 0 ? pipelines_opened : opened;
        ck_assert_int_eq(pipelines_opened, opened);
        ck_assert_uint_eq(fmoe_workspace_bytes(layers_of_f[i]), fmoe_max_workspace_bytes(s.f));
    }
    ck_assert_int_eq(opened, 7); /* one for each bucket: 1, 2, 4, …, 64 */
    other = must_open_layer(s.f, 1);
    ck_assert_int_gt(pipelines_opened, opened);
    largest = fmoe_max_workspace_bytes(s.f);
    ck_assert_uint_ge(largest, fmoe_workspace_bytes(other));
    fmoe_layer_close(other);

    s.l = layers_of_f[60];
    serving_make(&s.data, device, s.l, &shape);
    run_and_check(&s, 7);
    pipelines_opened = 0;
    ck_assert_msg(fmoe_reload(s.f, &tables[1], 1, &error) == 0, "%s", error.text);
    ck_assert_int_eq(pipelines_opened, opened);
    for (size_t i = 0; i < MF_ARRAY_LEN(layers_of_f); i++) {
        struct fmoe_served served;
        ck_assert_int_eq(fmoe_served(layers_of_f[i], 8, &served), 0);
        ck_assert_double_eq(served.us, 70);
    }
    /* misses are counted for each layer: the closed layers had none */
    for (size_t i = 0; i < 60; i++)
        fmoe_layer_close(layers_of_f[i]);
    run_and_check(&s, 7);
    run_and_check(&s, 3);
    ck_assert_int_eq(fmoe_drop_old(s.f), 0);
    run_and_check(&s, 7);
    fmoe_layer_close(s.l);
    pipelines_opened = 0;
    s.l = must_open_layer(s.f, 0);
    ck_assert_int_eq(pipelines_opened, opened);
    end_serving(&s);
}

/* ---- reloads ---- */

struct server {
    struct served_layer *s;
    atomic_int stop;
    atomic_uint calls;
    int failed, wrong;
};

static void *serve(void *context)
{
    struct server *server = context;
    const struct serving *data = &server->s->data;
    unsigned n = 0;

    /* this thread copies data itself, so it must enter the device */
    server->failed += device->ops->enter(device) < 0;
    while (!atomic_load(&server->stop)) {
        const int64_t tokens = 1 + n++ % SERVING_TOKENS;
        const struct fmoe_call call = serving_call(data, tokens, NULL);
        serving_poison(data);
        server->failed += fmoe_run(server->s->l, &call) != 0;
        server->wrong += device->ops->sync(device) < 0 || !serving_matches(data, tokens);
        atomic_fetch_add(&server->calls, 1);
    }
    return NULL;
}

static void wait_for_calls(struct server *server, unsigned n)
{
    unsigned until = atomic_load(&server->calls) + n;

    while (atomic_load(&server->calls) < until)
        (void)usleep(100);
}

/* Tables are reloaded while calls run. No call fails or returns a wrong result, and a new table is used as
 * soon as fmoe_reload returns. */
MF_TEST(tables_change_under_load, .rows = MF_ARRAY_LEN(serving_layers))
{
    static const int64_t rows[] = {1, 2, 4, 8, 16, 32, 64}, some[] = {16};
    const char *tables[] = {table_of(_i, rows, 7, 0, 50), table_of(_i, rows, 7, 1, 70),
                            table_of(_i, some, 1, 0, 90)};
    struct fmoe_error error = {""};
    struct server server;
    struct served_layer s;
    pthread_t thread;

    serve_layer(&s, _i, tables[0]);
    server = (struct server){.s = &s};
    ck_assert_int_eq(pthread_create(&thread, NULL, serve, &server), 0);
    for (int i = 0; i < 12; i++) {
        struct fmoe_served served;
        wait_for_calls(&server, 5);
        ck_assert_msg(fmoe_reload(s.f, &tables[i % 3], 1, &error) == 0, "%s", error.text);
        ck_assert_int_eq(fmoe_served(s.l, 3, &served), 0);
        ck_assert_int_eq(served.tuned, i % 3 != 2);
        if (i % 3 != 2)
            ck_assert_double_eq(served.us, i % 3 == 0 ? 52 : 72);
        if (i % 2)
            ck_assert_int_eq(fmoe_drop_old(s.f), 0);
    }
    atomic_store(&server.stop, 1);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_eq(server.failed, 0);
    ck_assert_int_eq(server.wrong, 0);
    end_serving(&s);
}

/* Layers of the same and of another model are opened and closed while calls of a layer run. */
MF_TEST(layers_change_under_load)
{
    static const int64_t rows[] = {16};
    struct server server;
    struct served_layer s;
    pthread_t thread;

    serve_layer(&s, 0, table_of(0, rows, 1, 0, 50));
    server = (struct server){.s = &s};
    ck_assert_int_eq(pthread_create(&thread, NULL, serve, &server), 0);
    for (int i = 0; i < 12; i++) {
        struct fmoe_layer *l;
        wait_for_calls(&server, 2);
        l = must_open_layer(s.f, i % 2);
        wait_for_calls(&server, 2);
        fmoe_layer_close(l);
    }
    atomic_store(&server.stop, 1);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_eq(server.failed, 0);
    ck_assert_int_eq(server.wrong, 0);
    end_serving(&s);
}

/* The first call after a reload uses the new table, so misses are counted only while the table has no row for
 * the call. */
MF_TEST(first_call_uses_the_new_table)
{
    static const int64_t rows[] = {4}, others[] = {64};
    const char *with_row = table_of(0, rows, 1, 0, 50), *without_row = table_of(0, others, 1, 0, 50);
    struct fmoe_error error = {""};
    struct served_layer s;
    uint64_t misses = 0;

    serve_layer(&s, 0, with_row);
    for (int i = 0; i < 6; i++) {
        ck_assert_msg(fmoe_reload(s.f, i % 2 ? &with_row : &without_row, 1, &error) == 0, "%s", error.text);
        for (int calls = 0; calls < 3; calls++) {
            run_and_check(&s, 3);
            misses += i % 2 == 0;
            ck_assert_uint_eq(fmoe_n_misses(s.f), misses);
        }
    }
    end_serving(&s);
}

/* If a reload fails, the current table stays in use. */
MF_TEST(failed_reload_changes_nothing)
{
    static const int64_t rows[] = {4};
    const char *good = table_of(0, rows, 1, 0, 50), *twice[] = {good, table_of(0, rows, 1, 1, 60)};
    const char *bad = serving_file("gfx,cu_num\nx,y\n"), *none = "/nonexistent/table.csv";
    struct fmoe *f = must_open(good);
    struct fmoe_layer *l = must_open_layer(f, 0);
    struct fmoe_error error = {""};
    struct fmoe_served served;

    ck_assert_int_eq(fmoe_reload(f, &bad, 1, &error), -EBADMSG);
    ck_assert_int_eq(fmoe_reload(f, &none, 1, &error), -ENOENT);
    ck_assert_msg(strstr(error.text, none) != NULL, "%s", error.text);
    ck_assert_int_eq(fmoe_reload(f, twice, 2, &error), -EBADMSG);
    ck_assert_msg(strstr(error.text, ":2: has the same key as") != NULL, "%s", error.text);
    ck_assert_int_eq(fmoe_served(l, 4, &served), 0);
    ck_assert(served.tuned && served.us == 50);
    ck_assert_str_eq(served.table, good);
    fmoe_close(f);
}

/* Weights are stored only once. So their layout is checked, and a reload must not change it. */
MF_TEST(layouts_do_not_change)
{
    const struct mf_shape s = shape_of(0, 4);
    struct fmoe *f = must_open(NULL);
    struct fmoe_layer_model model = serving_model(&s, 8);
    struct fmoe_error error = {""};
    struct fmoe_layer *l = NULL;
    struct fmoe_weight w;

    model.w1_layout = "sideways";
    ck_assert_int_eq(fmoe_layer_open(f, &model, &error, &l), -EINVAL);
    ck_assert_str_eq(error.text, "w1_layout is 'sideways': unknown layout");
    model.w1_layout = NULL;
    ck_assert_msg(fmoe_layer_open(f, &model, &error, &l) == 0, "%s", error.text);
    ck_assert_int_eq(fmoe_layer_weight(l, 1, &w), 0);
    ck_assert_str_eq(w.layout, "row");
    ck_assert_uint_eq(w.bytes[0], (size_t)8 * 256 * 256 * 2);
    ck_assert_uint_eq(w.bytes[1], 0);
    ck_assert_int_eq(fmoe_layer_weight(l, 3, &w), -EINVAL);
    if (!device->ops->own_memory) {
        const struct served_row row = {4, "move:sort_m16|tile:s1_bf16_silu_m16_n16_k256_t1_p16|move:nothing",
                                       5};
        const char *table = serving_table(device, &s, &row, 1);
        ck_assert_int_lt(fmoe_reload(f, &table, 1, &error), 0);
        ck_assert_msg(strstr(error.text, ":2: ") != NULL, "%s", error.text);
    }
    fmoe_close(f);
}

static const struct {
    const char *member;
    int r;
    const char *why;
} models[] = {
    {"act", -EINVAL, "act_type is 'ActivationType.Sigh': expected"},
    {"dim", -EINVAL, "model_dim"},
    {"topk", -EINVAL, "topk"},
    {"tokens", -EINVAL, "max_tokens is 0: expected 1 to 1048576"},
    {"null", -EINVAL, "q_type is NULL"},
    {"workspace", -EINVAL, "workspace_bytes is 64: expected 0, or at least "},
    {"form", -EINVAL, "form is 'b7': expected"},
};

MF_TEST(rejects_invalid_layers, .rows = MF_ARRAY_LEN(models))
{
    const struct mf_shape s = shape_of(0, 4);
    struct fmoe *f = must_open(NULL);
    struct fmoe_layer_model m = serving_model(&s, 8);
    struct fmoe_error error = {""};
    struct fmoe_layer *l = NULL;
    const char *member = models[_i].member;

    m.act_type = strcmp(member, "act") == 0 ? "ActivationType.Sigh" : m.act_type;
    m.model_dim = strcmp(member, "dim") == 0 ? -1 : m.model_dim;
    m.topk = strcmp(member, "topk") == 0 ? 99 : m.topk;
    m.max_tokens = strcmp(member, "tokens") == 0 ? 0 : m.max_tokens;
    m.q_type = strcmp(member, "null") == 0 ? NULL : m.q_type;
    m.workspace_bytes = strcmp(member, "workspace") == 0 ? 64 : 0;
    m.form = strcmp(member, "form") == 0 ? "b7" : NULL;
    ck_assert_int_eq(fmoe_layer_open(f, &m, &error, &l), models[_i].r);
    ck_assert_msg(strstr(error.text, models[_i].why) == error.text, "'%s' does not start with '%s'",
                  error.text, models[_i].why);
    ck_assert_ptr_null(l);
    fmoe_close(f);
}

MF_TEST(rejects_invalid_devices)
{
    struct fmoe_error error = {""};
    struct fmoe *f = NULL;

    ck_assert_int_lt(fmoe_open("tpu:0", NULL, 0, &error, &f), 0);
    ck_assert_msg(strstr(error.text, "unknown device 'tpu:0'") != NULL, "%s", error.text);
    ck_assert_int_eq(fmoe_open("sim:gfx942/304:0", NULL, 0, &error, &f), -EINVAL);
    ck_assert_msg(strstr(error.text, "cannot serve calls") != NULL, "%s", error.text);
    fmoe_close(NULL);
}

/* A table for another build or another device is rejected when it is opened, not at the first call. */
MF_TEST(rejects_foreign_tables)
{
    const struct mf_shape s = shape_of(0, 4);
    const struct served_row foreign = {4, "cutlass:fast", 5}, own = {4, serving_pipeline(device, &s, 0), 5};
    const char *table = serving_table(device, &s, &foreign, 1);
    struct mf_device elsewhere = *device;
    struct fmoe_error error = {""};
    struct fmoe *f = NULL;

    ck_assert_int_eq(fmoe_open(name, &table, 1, &error, &f), -EBADMSG);
    ck_assert_msg(strstr(error.text, ":2: column pipeline names a family that this build does not have") !=
                      NULL,
                  "%s", error.text);
    elsewhere.info.class.cu_num++;
    table = serving_table(&elsewhere, &s, &own, 1);
    ck_assert_int_eq(fmoe_open(name, &table, 1, &error, &f), -EBADMSG);
    ck_assert_msg(strstr(error.text, ": no row for this device's class ") != NULL, "%s", error.text);
    ck_assert_ptr_null(f);
}

/* One device class contains several device models. Rows of another model are used and reported. The rows of
 * this test have the model "cpu". */
MF_TEST(reports_rows_of_other_models)
{
    const int64_t tokens[] = {4, 8};
    const char *foreign = table_of(0, tokens, 2, 0, 5), *mine;
    struct fmoe_error error = {""};
    struct fmoe *f = must_open(foreign);
    struct fmoe_rows rows;
    char text[1 << 16], *at;
    FILE *file = fopen(foreign, "r");
    size_t len;

    fmoe_rows(f, &rows);
    ck_assert_uint_eq(rows.n, 2);
    ck_assert_uint_eq(rows.n_other_model, 2);
    ck_assert_str_eq(rows.other_model, "cpu");
    ck_assert_str_eq(rows.model, device->info.model);

    ck_assert_ptr_nonnull(file);
    len = fread(text, 1, sizeof(text) - 1, file);
    (void)fclose(file);
    text[len] = '\0';
    /* in each iteration, change one row to this device's model */
    while ((at = strstr(text, ",cpu,r1,")) != NULL) {
        char rest[1 << 16];
        mf_format(rest, sizeof(rest), ",%s,r1,%s", device->info.model, at + strlen(",cpu,r1,"));
        mf_format(at, sizeof(text) - (size_t)(at - text), "%s", rest);
        mine = serving_file(text);
        ck_assert_msg(fmoe_reload(f, &mine, 1, &error) == 0, "%s", error.text);
        size_t left = rows.n_other_model - 1;
        fmoe_rows(f, &rows);
        ck_assert_uint_eq(rows.n, 2);
        ck_assert_uint_eq(rows.n_other_model, left);
    }
    ck_assert_uint_eq(rows.n_other_model, 0);
    ck_assert_str_eq(rows.other_model, "");
    ck_assert_int_eq(fmoe_reload(f, NULL, 0, &error), 0);
    fmoe_rows(f, &rows);
    ck_assert_uint_eq(rows.n, 0);
    fmoe_close(f);
}

/* ---- misses ---- */

MF_TEST(reports_misses_once)
{
    static const int64_t rows[] = {4};
    _cleanup_(mf_freep) char *text = NULL;
    struct served_layer s;
    char *again = NULL;

    serve_layer(&s, 1, table_of(1, rows, 1, 0, 50));
    ck_assert_int_eq(fmoe_misses(s.f, "me", &again), 0);
    ck_assert_ptr_null(again);
    run_and_check(&s, 3);
    run_and_check(&s, 9);
    run_and_check(&s, 16);
    ck_assert_int_eq(fmoe_misses(s.f, "me", &text), 0);
    ck_assert_msg(strstr(text, "{\"source\":\"me\",\"class\":\"") == text, "%s", text);
    ck_assert_msg(strstr(text, "\"misses\":[{\"shape\":{\"token\":16,\"model_dim\":256,\"inter_dim\":128,"
                               "\"expert\":8,\"topk\":3,\"act_type\":\"ActivationType.Silu\"") != NULL,
                  "%s", text);
    ck_assert_msg(strstr(text, "\"q_type\":\"QuantType.per_Token\",\"use_g1u1\":1,\"doweight_stage1\":0},"
                               "\"layout\":\"w1=row w2=row\",\"count\":2}]}") != NULL,
                  "%s", text);
    ck_assert_int_eq(fmoe_misses(s.f, NULL, &again), 0);
    ck_assert_ptr_null(again);
    /* misses of a closed layer are reported too */
    run_and_check(&s, 9);
    fmoe_layer_close(s.l);
    ck_assert_uint_eq(fmoe_n_misses(s.f), 3);
    free(text);
    ck_assert_int_eq(fmoe_misses(s.f, "me", &text), 0);
    ck_assert_msg(strstr(text, "\"count\":1}]}") != NULL, "%s", text);
    ck_assert_int_eq(fmoe_misses(s.f, NULL, &again), 0);
    ck_assert_ptr_null(again);
    end_serving(&s);
}

/* If the placement of experts is not a range, fmoe_remap_ids maps global expert ids to the layer's ids. */
MF_TEST(remaps_expert_ids)
{
    static const int32_t map[16] = {-1, 3, -1, 0, -1, -1, 7, -1, 1, -1, 2, 4, -1, 5, -1, 6},
                         twice[16] = {3, 3};
    const struct mf_shape s = shape_of(0, 4);
    const int32_t ids[6] = {0, 1, 3, 6, 15, -1}, expected[6] = {-1, 3, 0, 7, 6, -1};
    struct fmoe *f = must_open(NULL);
    struct fmoe_layer_model m = serving_model(&s, 8);
    struct fmoe_error error = {""};
    struct fmoe_layer *l = NULL;
    int32_t to[6];

    m.form = "ep:0/16";
    ck_assert_msg(fmoe_layer_open(f, &m, &error, &l) == 0, "%s", error.text);
    ck_assert_int_eq(fmoe_remap_ids(l, map, 2, ids, to, &error), 0);
    ck_assert_mem_eq(to, expected, sizeof(expected));
    ck_assert_int_eq(fmoe_remap_ids(l, twice, 2, ids, to, &error), -EINVAL);
    ck_assert_str_eq(error.text, "two experts in expert_map have the same index");
    fmoe_close(f);
}

int main(void)
{
    return mf_check_main(
        &(struct mf_test_group){.timeout_s = 110, .setup = open_device, .teardown = close_device});
}
