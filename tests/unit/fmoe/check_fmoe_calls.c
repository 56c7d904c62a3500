/* libfmoe's calls on a GPU, tested with a fake CUDA driver whose kernels do nothing: the token count, the
 * arguments and the stream of a call reach that call's launches, and no others. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "fmoe/fmoe.h"
#include "kernels/gpu/src/args.h"
#include "support/farm/serving_model.h"
#include "support/kernels/fake_cuda.h"
#include "support/mf_check.h"
#include "support/remove_tree.h"

#define FAKE_DRIVER MF_BINARY_DIR "/tests/fake_cuda"
#define ENOUGH      20000 /* calls of a caller */

static char folder[] = "/tmp/check_fmoe_calls.XXXXXX";
static fake_cuda_launch_fn **launched;
static struct fmoe *f;

/* Callers have tensors in address ranges of their own: bits 40 and up of an address are the caller's number.
 * The number is also in the low bits of the stream. */
struct caller {
    uintptr_t number;
    int64_t tokens;
    struct fmoe_layer *l;
    int failed;
};

static atomic_uint n_launches, n_mixed;
static pthread_barrier_t both_ready;

static int32_t token_of(const char *function, const void *arguments)
{
    static const struct {
        const char *function;
        size_t token;
    } functions[] = {{"mf_one", offsetof(struct mf_hip_one_args, token)},
                     {"mf_tile_hopper", offsetof(struct mf_hip_bulk_args, tile.token)},
                     {"mf_pair", offsetof(struct mf_hip_pair_args, up.tile.token)},
                     {"mf_layer", offsetof(struct mf_hip_layer_args, token)}};
    int32_t token = 0;

    for (size_t i = 0; i < MF_ARRAY_LEN(functions); i++) {
        if (strcmp(functions[i].function, function) == 0)
            memcpy(&token, (const char *)arguments + functions[i].token, sizeof(token));
    }
    return token;
}

static int64_t tokens_of(uintptr_t number)
{
    return number == 1 ? 9 : 13; /* one bucket */
}

/* Checks that a launch has the arguments of only the caller whose stream it is in. */
static void check_launch(void *stream, const char *function, const void *arguments, size_t bytes)
{
    const uintptr_t number = (uintptr_t)stream >> 4;
    bool is_mixed = token_of(function, arguments) != tokens_of(number);

    for (size_t at = 0; at + sizeof(uintptr_t) <= bytes; at += sizeof(uintptr_t)) {
        uintptr_t word;
        memcpy(&word, (const char *)arguments + at, sizeof(word));
        is_mixed = is_mixed || (word >> 40 == 3 - number);
    }
    n_launches++;
    n_mixed += is_mixed;
}

static void open_handle(void)
{
    struct fmoe_error error = {""};
    void *driver;

    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(setenv("MOEFARM_CODE_CACHE", folder, 1), 0);
    ck_assert_int_eq(setenv("LD_LIBRARY_PATH", FAKE_DRIVER, 1), 0); /* for the compiler's process */
    driver = dlopen(FAKE_DRIVER "/libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    ck_assert_msg(driver != NULL, "%s", dlerror());
    launched = dlsym(driver, "fake_cuda_launched");
    ck_assert_ptr_nonnull(launched);
    ck_assert_msg(fmoe_open("hip:nvidia:0", NULL, 0, &error, &f) == 0, "%s", error.text);
}

static void close_handle(void)
{
    *launched = NULL;
    fmoe_close(f);
    ck_assert_int_eq(remove_tree(folder), 0);
}

static struct fmoe_layer *open_layer(void)
{
    struct mf_shape s;
    struct fmoe_layer_model model;
    struct fmoe_error error = {""};
    struct fmoe_layer *l = NULL;

    ck_assert_int_eq(mf_shape_parse("16,2048,768,16,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,"
                                    "torch.bfloat16,QuantType.No,1,0",
                                    &s),
                     0);
    model = serving_model(&s, 16);
    ck_assert_msg(fmoe_layer_open(f, &model, &error, &l) == 0, "%s", error.text);
    return l;
}

static const void *at(uintptr_t number, uintptr_t tensor)
{
    return (const void *)(number << 40 | tensor << 34);
}

static struct fmoe_call call_of(const struct caller *c)
{
    return (struct fmoe_call){.tokens = c->tokens,
                              .x = at(c->number, 1),
                              .ids = at(c->number, 2),
                              .weights = at(c->number, 3),
                              .weights_type = FMOE_FLOAT32,
                              .w1 = {at(c->number, 4)},
                              .w2 = {at(c->number, 5)},
                              .y = (void *)(uintptr_t)at(c->number, 6),
                              .workspace = (void *)(uintptr_t)at(c->number, 7),
                              .workspace_bytes = fmoe_workspace_bytes(c->l),
                              .stream = (void *)(c->number << 4)};
}

static void *call_often(void *context)
{
    struct caller *c = context;
    const struct fmoe_call call = call_of(c);

    (void)pthread_barrier_wait(&both_ready);
    for (int i = 0; i < ENOUGH; i++)
        c->failed += fmoe_run(c->l, &call) != 0;
    return NULL;
}

static const struct mf_test_group gpu_tests = {
    .timeout_s = 100, .setup = open_handle, .teardown = close_handle};

/* Two streams of one thread, with other token counts and workspaces. */
MF_TEST(one_thread_two_streams, .group = &gpu_tests)
{
    struct fmoe_layer *l = open_layer();
    const struct fmoe_call calls[] = {call_of(&(struct caller){.number = 1, .tokens = tokens_of(1), .l = l}),
                                      call_of(&(struct caller){.number = 2, .tokens = tokens_of(2), .l = l})};

    *launched = check_launch;
    for (int i = 0; i < 20; i++)
        ck_assert_int_eq(fmoe_run(l, &calls[i % 2]), 0);
    ck_assert_uint_ge(n_launches, 20);
    ck_assert_uint_eq(n_mixed, 0);
}

/* Two threads call two layers of one model, and the same layer. */
MF_TEST(two_threads, .rows = 2, .group = &gpu_tests)
{
    struct fmoe_layer *first = open_layer(), *second = _i == 0 ? open_layer() : first;
    struct caller callers[] = {{.number = 1, .tokens = tokens_of(1), .l = first},
                               {.number = 2, .tokens = tokens_of(2), .l = second}};
    pthread_t other;

    *launched = check_launch;
    ck_assert_int_eq(pthread_barrier_init(&both_ready, NULL, 2), 0);
    ck_assert_int_eq(pthread_create(&other, NULL, call_often, &callers[1]), 0);
    (void)call_often(&callers[0]);
    ck_assert_int_eq(pthread_join(other, NULL), 0);
    ck_assert_int_eq(callers[0].failed + callers[1].failed, 0);
    ck_assert_uint_ge(n_launches, 2 * ENOUGH);
    ck_assert_uint_eq(n_mixed, 0);
}

int main(void)
{
    return mf_check_main(&gpu_tests);
}
