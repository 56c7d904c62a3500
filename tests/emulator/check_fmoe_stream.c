/* Tests libfmoe on a GPU as a serving engine uses it. The engine captures calls on a stream in a graph and
 * replays the graph with other routing, before and after a reload. Runs on the fake HIP runtime
 * (emulator/hip/runtime.h), or on the device named by MOEFARM_TEST_DEVICE. */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "support/farm/serving.h"
#include "support/kernels/hip_release.h"
#include "support/mf_check.h"

#define MOST 16

/* Runtime calls that the engine makes: function names in HIP and in CUDA's driver API. Only HIP functions use
 * the fourth and fifth argument. */
enum { CREATE, BEGIN, END, INSTANTIATE, LAUNCH, SYNC, END_GRAPH, END_EXEC, END_STREAM, N_CALLS };
static const char *const hip_names[N_CALLS] = {"hipStreamCreateWithFlags", "hipStreamBeginCapture",
                                               "hipStreamEndCapture",      "hipGraphInstantiate",
                                               "hipGraphLaunch",           "hipStreamSynchronize",
                                               "hipGraphDestroy",          "hipGraphExecDestroy",
                                               "hipStreamDestroy"},
                         *const cuda_names[N_CALLS] = {"cuStreamCreate",     "cuStreamBeginCapture_v2",
                                                       "cuStreamEndCapture", "cuGraphInstantiateWithFlags",
                                                       "cuGraphLaunch",      "cuStreamSynchronize",
                                                       "cuGraphDestroy",     "cuGraphExecDestroy",
                                                       "cuStreamDestroy_v2"};
#define NON_BLOCKING 1
#define THREAD_LOCAL 1

static const char *const layers[] = {
    "16,128,64,4,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0",
    "16,256,128,8,3,ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fn,torch.float8_e4m3fn,QuantType.per_"
    "Token,1,0",
    "16,512,256,8,3,ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fn,torch.float8_e4m3fn,QuantType.per_"
    "1x128,1,0",
};

static struct mf_device *device;
static const char *name;
static bool is_real;
static int (*calls[N_CALLS])(void *, void *, void *, void *, size_t);

static void open_device(void)
{
    bool is_cuda;
    void *runtime;

    name = serving_device(&device);
    is_cuda = strncmp(name, "hip:nvidia:", 11) == 0;
    runtime = dlopen(is_cuda ? "libcuda.so.1" : "libamdhip64.so.6", RTLD_NOW);
    ck_assert_msg(runtime != NULL, "%s", dlerror());
    for (int i = 0; i < N_CALLS; i++) {
        void *symbol = dlsym(runtime, (is_cuda ? cuda_names : hip_names)[i]);
        ck_assert_msg(symbol != NULL, "the runtime has no %s", (is_cuda ? cuda_names : hip_names)[i]);
        memcpy(&calls[i], &symbol, sizeof(symbol));
    }
}

static void call_runtime(int call, void *a, void *b)
{
    ck_assert_int_eq(calls[call](a, b, NULL, NULL, 0), 0);
}

static void replay_and_check(struct serving *s, void *graph, void *stream, int64_t tokens)
{
    serving_poison(s);
    call_runtime(LAUNCH, graph, stream);
    call_runtime(SYNC, stream, NULL);
    ck_assert_msg(serving_matches(s, tokens), "wrong result for %d tokens", (int)tokens);
}

/* The emulator needs a minute for each of the larger layers, so only real devices run them. */
static int n_layers(void)
{
    return is_real ? (int)MF_ARRAY_LEN(layers) : 1;
}

MF_TEST(replays_graphs_across_a_reload, .count_rows = n_layers)
{
    struct mf_shape shape;
    struct served_row row = {.token = 8, .us = 50};
    const char *tables[2], *first;
    struct fmoe_error error = {""};
    struct fmoe_layer_model model;
    struct fmoe_layer *l = NULL;
    struct fmoe *f = NULL;
    struct fmoe_call call;
    struct fmoe_served served;
    struct serving s;
    void *stream = NULL, *graph = NULL, *exec = NULL, *invalidated = NULL;

    ck_assert_int_eq(mf_shape_parse(layers[_i], &shape), 0);
    shape.token = 8;
    for (int i = 0; i < 2; i++) {
        row.pipeline = serving_pipeline(device, &shape, i);
        row.us += 10;
        tables[i] = serving_table(device, &shape, &row, 1);
        first = i == 0 ? row.pipeline : first;
    }
    ck_assert_str_ne(first, row.pipeline);
    shape.token = MOST;
    model = serving_model(&shape, MOST);
    model.workspace_bytes = 64u << 20;
    ck_assert_msg(fmoe_open(name, &tables[0], 1, &error, &f) == 0, "%s", error.text);
    ck_assert_msg(fmoe_layer_open(f, &model, &error, &l) == 0, "%s", error.text);
    serving_make(&s, device, l, &shape);
    call_runtime(CREATE, &stream, (void *)NON_BLOCKING);

    call_runtime(BEGIN, stream, (void *)THREAD_LOCAL);
    call = serving_call(&s, 7, stream);
    ck_assert_int_eq(fmoe_run(l, &call), 0);
    call_runtime(END, stream, &graph);
    call_runtime(INSTANTIATE, &exec, graph);
    replay_and_check(&s, exec, stream, 7);
    serving_route(&s, 99);
    replay_and_check(&s, exec, stream, 7);

    ck_assert_msg(fmoe_reload(f, &tables[1], 1, &error) == 0, "%s", error.text);
    ck_assert_int_eq(fmoe_served(l, 7, &served), 0);
    ck_assert_str_eq(served.pipeline, row.pipeline);
    serving_poison(&s);
    call = serving_call(&s, 5, stream);
    ck_assert_int_eq(fmoe_run(l, &call), 0);
    call_runtime(SYNC, stream, NULL);
    ck_assert_msg(serving_matches(&s, 5), "wrong result for the other table's row");
    serving_route(&s, 5);
    replay_and_check(&s, exec, stream, 7); /* the captured graph keeps its kernels alive */
    /* fmoe_drop_old synchronises the device, which invalidates a capture in progress. It fails with -EBUSY,
     * the capture is lost, and the handle stays usable. */
    call_runtime(BEGIN, stream, (void *)THREAD_LOCAL);
    ck_assert_int_eq(fmoe_drop_old(f), -EBUSY);
    /* the fake runtime reports that a capture is invalid only when the capture ends */
    int r = fmoe_run(l, &call);
    ck_assert_msg(r == -ECANCELED || (r == 0 && !is_real), "fmoe_run in an invalidated capture returned %d",
                  r);
    ck_assert_int_ne(calls[END](stream, &invalidated, NULL, NULL, 0), 0);
    replay_and_check(&s, exec, stream, 7);
    ck_assert_int_eq(fmoe_drop_old(f), 0);
    serving_poison(&s);
    call = serving_call(&s, MOST, stream); /* no row for this token count: a miss */
    ck_assert_int_eq(fmoe_run(l, &call), 0);
    call_runtime(SYNC, stream, NULL);
    ck_assert_msg(serving_matches(&s, MOST), "wrong result for a miss");
    ck_assert_uint_eq(fmoe_n_misses(f), 1);
    call_runtime(END_EXEC, exec, NULL);
    call_runtime(END_GRAPH, graph, NULL);
    if (invalidated)
        call_runtime(END_GRAPH, invalidated, NULL);
    call_runtime(END_STREAM, stream, NULL);
    serving_release(&s);
    fmoe_close(f);
    device = mf_device_close(device);
}

/* An expert map and the packing of a weight are captured, and a replay reads the current ids and weights. */
MF_TEST(replays_maps_and_packing)
{
    static const int32_t map[9] = {-1, 2, 0, -1, -1, 3, 1, -1, -1};
    int32_t ids[32], want[32], got[32];
    struct fmoe_error error = {""};
    struct fmoe_layer *l = NULL;
    struct fmoe_layer_model model;
    struct fmoe *f = NULL;
    struct fmoe_weight w;
    struct mf_shape shape;
    void *stream = NULL, *graph = NULL, *exec = NULL, *at[3], *from[3] = {0}, *to[3] = {0};

    ck_assert_int_eq(mf_shape_parse(layers[0], &shape), 0);
    model = serving_model(&shape, MOST);
    model.form = "ep:0/9";
    ck_assert_msg(fmoe_open(name, NULL, 0, &error, &f) == 0, "%s", error.text);
    ck_assert_msg(fmoe_layer_open(f, &model, &error, &l) == 0, "%s", error.text);
    ck_assert_int_eq(fmoe_layer_weight(l, 2, &w), 0);
    for (int i = 0; i < 3; i++)
        at[i] = device->ops->alloc(device, sizeof(ids));
    from[0] = device->ops->alloc(device, w.bytes[0]);
    to[0] = device->ops->alloc(device, w.bytes[0]);
    ck_assert_int_eq(device->ops->copy(device, at[0], map, sizeof(map)), 0);
    call_runtime(CREATE, &stream, (void *)NON_BLOCKING);
    call_runtime(BEGIN, stream, (void *)THREAD_LOCAL);
    ck_assert_int_eq(fmoe_remap_ids_device(l, at[0], MOST, at[1], FMOE_INT32, at[2], stream), 0);
    ck_assert_int_eq(fmoe_layer_pack_device(l, 2, (const void *const *)from, to, stream), 0);
    call_runtime(END, stream, &graph);
    call_runtime(INSTANTIATE, &exec, graph);
    for (int round = 0; round < 2; round++) {
        _cleanup_(mf_freep) uint8_t *row = malloc(w.bytes[0]), *packed = malloc(w.bytes[0]),
                                    *host = malloc(w.bytes[0]);
        const void *const host_from[3] = {row};
        void *const host_to[3] = {host};
        for (size_t i = 0; i < w.bytes[0]; i++)
            row[i] = (uint8_t)(i * 7 + (i >> 8) + (size_t)round);
        for (int i = 0; i < 32; i++)
            ids[i] = (i + round * 5) % 12 - 1;
        ck_assert_int_eq(fmoe_remap_ids(l, map, MOST, ids, want, &error), 0);
        ck_assert_int_eq(fmoe_layer_pack(l, 2, host_from, host_to), 0);
        ck_assert_int_eq(device->ops->copy(device, at[1], ids, sizeof(ids)), 0);
        ck_assert_int_eq(device->ops->copy(device, from[0], row, w.bytes[0]), 0);
        call_runtime(LAUNCH, exec, stream);
        call_runtime(SYNC, stream, NULL);
        ck_assert_int_eq(device->ops->copy(device, got, at[2], sizeof(got)), 0);
        ck_assert_int_eq(device->ops->copy(device, packed, to[0], w.bytes[0]), 0);
        ck_assert_mem_eq(got, want, sizeof(want));
        ck_assert_mem_eq(packed, host, w.bytes[0]);
    }
    call_runtime(END_EXEC, exec, NULL);
    call_runtime(END_GRAPH, graph, NULL);
    call_runtime(END_STREAM, stream, NULL);
    for (int i = 0; i < 3; i++)
        device->ops->release(device, at[i], sizeof(ids));
    device->ops->release(device, from[0], w.bytes[0]);
    device->ops->release(device, to[0], w.bytes[0]);
    fmoe_close(f);
    device = mf_device_close(device);
}

/* One thread captures calls with other token counts, workspaces and streams, runs both eagerly, and replays
 * both graphs, without waiting in between. */
MF_TEST(streams_do_not_mix)
{
    static const int64_t tokens[2] = {5, 7}; /* one bucket */
    struct mf_shape shape;
    struct fmoe_error error = {""};
    struct fmoe_layer_model model;
    struct fmoe_layer *l = NULL;
    struct fmoe *f = NULL;
    struct serving s[2];
    void *stream[2] = {NULL, NULL}, *graph[2], *exec[2];

    ck_assert_int_eq(mf_shape_parse(layers[0], &shape), 0);
    shape.token = 8;
    model = serving_model(&shape, 8);
    ck_assert_msg(fmoe_open(name, NULL, 0, &error, &f) == 0, "%s", error.text);
    ck_assert_msg(fmoe_layer_open(f, &model, &error, &l) == 0, "%s", error.text);
    for (int i = 0; i < 2; i++) {
        serving_make(&s[i], device, l, &shape);
        serving_poison(&s[i]);
        call_runtime(CREATE, &stream[i], (void *)NON_BLOCKING);
    }
    for (int i = 0; i < 2; i++) {
        const struct fmoe_call call = serving_call(&s[i], tokens[i], stream[i]);
        ck_assert_int_eq(fmoe_run(l, &call), 0);
    }
    for (int i = 0; i < 2; i++) {
        call_runtime(SYNC, stream[i], NULL);
        ck_assert_msg(serving_matches(&s[i], tokens[i]), "stream %d: wrong result", i);
        serving_poison(&s[i]);
        serving_route(&s[i], 40 + (uint64_t)i);
    }
    for (int i = 0; i < 2; i++) {
        const struct fmoe_call call = serving_call(&s[i], tokens[i], stream[i]);
        call_runtime(BEGIN, stream[i], (void *)THREAD_LOCAL);
        ck_assert_int_eq(fmoe_run(l, &call), 0);
        call_runtime(END, stream[i], &graph[i]);
        call_runtime(INSTANTIATE, &exec[i], graph[i]);
    }
    for (int i = 0; i < 2; i++)
        call_runtime(LAUNCH, exec[i], stream[i]);
    for (int i = 0; i < 2; i++) {
        call_runtime(SYNC, stream[i], NULL);
        ck_assert_msg(serving_matches(&s[i], tokens[i]), "graph of stream %d: wrong result", i);
        call_runtime(END_EXEC, exec[i], NULL);
        call_runtime(END_GRAPH, graph[i], NULL);
        call_runtime(END_STREAM, stream[i], NULL);
        serving_release(&s[i]);
    }
    fmoe_close(f);
    device = mf_device_close(device);
}

/* Returns the number of rows of the test below: 1 on the emulator; 0 on a real device, because its kernels
 * always load. */
static int once_if_emulated(void)
{
    return is_real ? 0 : 1;
}

/* If the device cannot load the kernels of a row, opening the layer fails and reports the table line and the
 * step. Opening succeeds once the kernels load. */
MF_TEST(refuses_kernels_that_do_not_load, .count_rows = once_if_emulated)
{
    const char *fault, *tables[1];
    struct served_row row = {.token = 8, .us = 50};
    struct fmoe_error error = {""};
    struct fmoe_layer_model model;
    struct fmoe_layer *l = NULL;
    struct fmoe *f = NULL;
    struct mf_shape shape;
    char place[96];

    ck_assert_int_eq(mf_shape_parse(layers[0], &shape), 0);
    shape.token = 8;
    row.pipeline = serving_pipeline(device, &shape, 0);
    tables[0] = serving_table(device, &shape, &row, 1);
    shape.token = MOST;
    model = serving_model(&shape, MOST);
    fault = serving_file("refused hipModuleLoadData 1+");
    ck_assert_int_eq(setenv("FAKE_HIP_FAULT", fault, 1), 0);
    ck_assert_msg(fmoe_open(name, tables, 1, &error, &f) == 0, "%s", error.text);
    ck_assert_int_eq(fmoe_layer_open(f, &model, &error, &l), -ENOTSUP);
    mf_format(place, sizeof(place), "%s:2: ", tables[0]);
    ck_assert_msg(strncmp(error.text, place, strlen(place)) == 0, "%s", error.text);
    ck_assert_msg(strstr(error.text, " for this shape: ") != NULL, "%s", error.text);
    ck_assert_int_eq(unlink(fault), 0);
    ck_assert_msg(fmoe_layer_open(f, &model, &error, &l) == 0, "%s", error.text);
    fmoe_close(f);
    device = mf_device_close(device);
}

int main(void)
{
    is_real = getenv("MOEFARM_TEST_DEVICE") != NULL;
    if (!is_real) {
        hip_release_use(6);
        if (setenv("MOEFARM_TEST_DEVICE", "hip:amd:0", 1) != 0)
            return 1;
    }
    return mf_check_main(&(struct mf_test_group){.timeout_s = 300, .setup = open_device});
}
