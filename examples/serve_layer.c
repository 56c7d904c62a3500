/* Serves a bf16 layer on the CPU from a tuned table. SIGHUP reloads the table while calls continue.
 *     cc serve_layer.c $(pkg-config --cflags --libs fmoe) -o serve_layer
 *     ./serve_layer tuned_fmoe.csv 2048 96 128 8 64
 * The numbers are model_dim, inter_dim, experts, topk and the maximum tokens of a call. */
#include <fmoe.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct fmoe_layer_model model = {.act_type = "ActivationType.Silu", .q_type = "QuantType.No"};
static struct fmoe_layer *layer;
static struct fmoe_call call;
static atomic_int stopping, failed;
static atomic_llong calls;

static void *serve(void *unused)
{
    for (; !stopping; calls++) {
        call.tokens = 1 + calls % model.max_tokens;
        int r = fmoe_run(layer, &call);
        if (r < 0 && failed++ == 0)
            (void)fprintf(stderr, "a call of %lld tokens failed: %s\n", (long long)call.tokens, strerror(-r));
    }
    return unused;
}

static void *filled(int64_t bytes)
{
    return memset(aligned_alloc(64, (size_t)(bytes + 63) / 64 * 64), 0x3c, (size_t)bytes);
}

int main(int argc, char **argv)
{
    struct fmoe_error error = {"usage: serve_layer TABLE MODEL_DIM INTER_DIM EXPERTS TOPK MAX_TOKENS"};
    struct fmoe_weight w1, w2;
    struct fmoe_served served;
    struct fmoe_rows rows;
    struct fmoe *f;
    sigset_t signals;
    pthread_t thread;
    int got = SIGHUP;

    /* Block the signals before any thread starts, so that a signal stays pending while the table is read. */
    (void)sigemptyset(&signals), (void)sigaddset(&signals, SIGHUP), (void)sigaddset(&signals, SIGTERM);
    (void)pthread_sigmask(SIG_BLOCK, &signals, NULL);
    model.dtype = model.q_dtype_a = model.q_dtype_w = "torch.bfloat16";
    model.use_g1u1 = 1;
    model.workspace_bytes = 256 << 20; /* room for the rows of later tables */
    for (int i = 2; i < argc && i < 6; i++)
        (&model.model_dim)[i - 2] = atoi(argv[i]);
    model.max_tokens = argc == 7 ? atoi(argv[6]) : 0;
    if (argc != 7 || fmoe_open("cpu:0", (const char *const *)&argv[1], 1, &error, &f) < 0 ||
        fmoe_layer_open(f, &model, &error, &layer) < 0)
        return fprintf(stderr, "%s\n", error.text), 1;
    (void)fmoe_layer_weight(layer, 1, &w1), (void)fmoe_layer_weight(layer, 2, &w2);
    call =
        (struct fmoe_call){.x = filled(model.max_tokens * model.model_dim * 2),
                           .weights = filled(model.max_tokens * model.topk * 4),
                           .weights_type = FMOE_FLOAT32,
                           .w1 = {filled((int64_t)w1.bytes[0])}, /* for a checkpoint, use fmoe_layer_pack */
                           .w2 = {filled((int64_t)w2.bytes[0])},
                           .y = filled(model.max_tokens * model.model_dim * 2),
                           .workspace = filled((int64_t)fmoe_workspace_bytes(layer)),
                           .workspace_bytes = fmoe_workspace_bytes(layer)};
    int32_t *ids = filled(model.max_tokens * model.topk * 4);
    for (int64_t i = 0; i < model.max_tokens * model.topk; i++)
        ids[i] = (int32_t)(i % model.experts);
    call.ids = ids;
    (void)pthread_create(&thread, NULL, serve, NULL);
    for (; got == SIGHUP; (void)sigwait(&signals, &got)) {
        if (fmoe_reload(f, (const char *const *)&argv[1], 1, &error) < 0)
            (void)fprintf(stderr, "%s; the previous table stays in use\n", error.text);
        fmoe_rows(f, &rows);
        if (rows.n_other_model > 0)
            printf("%zu of %zu rows were tuned on %s, this is %s\n", rows.n_other_model, rows.n,
                   rows.other_model, rows.model);
        for (int64_t t = 1; t <= model.max_tokens && fmoe_served(layer, t, &served) == 0; t *= 2)
            printf("%lld: %s %s%s%s\n", (long long)t, served.tuned ? "tuned" : "miss", served.pipeline,
                   served.tuned ? "" : ": ", served.reason);
        printf("%lld calls, %llu misses\n", calls, (unsigned long long)fmoe_n_misses(f));
        (void)fflush(stdout);
        (void)fmoe_drop_old(f);
    }
    stopping = 1;
    (void)pthread_join(thread, NULL);
    printf("%lld calls, %d failed\n", calls, failed);
    fmoe_close(f);
    return failed > 0;
}
