/* Resource usage of a step's code: recorded with the result, read from the CUDA runtime, checked before the
 * first run. Also: arguments of GPU launches, and the number of compilers. */
#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "kernels/core/code.h"
#include "kernels/core/family.h"
#include "kernels/core/layout.h"
#include "kernels/gpu/src/args.h"
#include "measure/session/session.h"
#include "support/kernels/fake_cuda.h"
#include "support/kernels/planted.h"
#include "support/mf_check.h"
#include "support/remove_tree.h"
#include "worker/runner/runner_sink.h"

typedef int32_t i32;
typedef uint32_t u32;
#define MF_DEVICE static
#include "kernels/gpu/src/tma_coord.h"

/* ---- the check: the planted family with kernels that report a given usage ---- */

static struct mf_resource_usage reported_usage;
static int launches;

static int open_with_usage(const struct mf_family *f, struct mf_device *device, const struct mf_shape *shape,
                           const char *name, struct mf_kernel **ret)
{
    ck_assert_ptr_nonnull(device->use);
    *device->use = reported_usage;
    return planted_family.open(f, device, shape, name, ret);
}

static int launch_if_it_fits(struct mf_kernel *kernel, const struct mf_launch *l)
{
    if (reported_usage.occupancy < 0)
        return -E2BIG;
    launches++;
    return planted_family.launch(kernel, l);
}

/* clang-format off */
static const struct {
    struct mf_resource_usage reported_usage;
    bool exhaustive;
    enum mf_status status;
    const char *reason;
} cases[] = {
    {{.registers = 168, .lds = 98304, .occupancy = 2}, false, MF_STATUS_OK, ""},
    {{.registers = 255, .spills = 1024, .lds = 1, .occupancy = 1}, false, MF_STATUS_OK, ""},
    {{.registers = 255, .spills = 1025, .occupancy = 1}, false, MF_STATUS_UNSUPPORTED,
     "not run: the kernel spills 1025 bytes per thread (limit 1024) and uses 255 registers"},
    {{.registers = 255, .spills = 1025, .occupancy = 1}, true, MF_STATUS_OK, ""},
    {{.registers = 255, .lds = 240000, .occupancy = -1}, false, MF_STATUS_UNSUPPORTED,
     "not run: one block exceeds an SM or CU: 255 registers per thread, 240000 bytes of shared memory"},
    {{0}, false, MF_STATUS_OK, ""}, /* unknown, as on the CPU */
};
/* clang-format on */

MF_TEST(usage_is_recorded_and_checked, .rows = MF_ARRAY_LEN(cases))
{
    struct mf_family reporting_family = planted_family;
    const struct mf_family *const list[] = {&reporting_family};
    const struct mf_family_set set = {list, 1};
    const struct mf_unit_options options = {
        .err_ratio = 0.1, .seed = 1, .time_cap_ms = 10000, .exhaustive = cases[_i].exhaustive};
    struct mf_device *device = planted_device(CLOCK_HONEST);
    const struct mf_shape shape = planted_shape(0, 5);
    struct mf_session *session = NULL;
    struct planted_sink sink;
    char why[MF_REASON_MAX];

    reporting_family.open = open_with_usage;
    reporting_family.launch = launch_if_it_fits;
    reported_usage = cases[_i].reported_usage;
    const struct mf_session_args args = {
        .device = device, .shape = shape, .options = &options, .extra = &set};
    ck_assert_msg(mf_session_new(&args, why, sizeof(why), &session) == 0, "%s", why);
    const struct mf_probe_step step = {1, planted_step(&shape, "stage1", 16, PLANTED_NONE)};
    planted_sink_init(&sink);
    ck_assert_int_eq(mf_session_probe(session, &step, 1, NULL, NULL, &sink.sink), 0);
    const struct mf_unit_result *r = &sink.results[0];
    ck_assert_msg(r->status == cases[_i].status, "%s", r->reason);
    ck_assert_str_eq(r->reason, cases[_i].reason);
    ck_assert_mem_eq(&r->use, &reported_usage, sizeof(reported_usage));
    ck_assert(r->status == MF_STATUS_OK ? launches > 1 : launches == 0);
    ck_assert_ptr_null(device->use);
    session = mf_session_free(session);
    device->ops->free(device);
}

/* ---- transfer to the worker ---- */

MF_TEST(known_usage_is_sent)
{
    const struct mf_unit_result known = {
        .id = 7, .mode = "", .reason = "", .use = {.registers = 96, .lds = 2048, .occupancy = -1}};
    const struct mf_unit_result unknown = {.id = 8, .mode = "", .reason = ""};
    struct mf_channel out, in;
    struct mf_runner_sink s;
    cJSON *m = NULL;
    int64_t value = -1;
    int fds[2];

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    mf_channel_init(&out, fds[0]);
    mf_channel_init(&in, fds[1]);
    mf_runner_sink_init(&s, &out);
    ck_assert_int_eq(s.sink.result(&s.sink, &known), 0);
    ck_assert_int_eq(s.sink.result(&s.sink, &unknown), 0);
    ck_assert_int_eq(mf_channel_wait(&in, 10000, &m), 1);
    ck_assert(mf_json_i64(m, "registers", 96, 96, &value) == 0 &&
              mf_json_i64(m, "lds", 2048, 2048, &value) == 0);
    ck_assert(mf_json_i64(m, "spills", 0, 0, &value) == 0 && mf_json_i64(m, "occupancy", 0, 0, &value) == 0);
    cJSON_Delete(m);
    ck_assert_int_eq(mf_channel_wait(&in, 10000, &m), 1);
    ck_assert_ptr_null(cJSON_GetObjectItem(m, "registers"));
    cJSON_Delete(m);
    mf_channel_release(&out);
    mf_channel_release(&in);
}

/* ---- the runtime: a fake CUDA driver ---- */

static char folder[] = "/tmp/check_resource_usage.XXXXXX";

/* Code cache of all tests: the measuring kernels are compiled once. */
static void make_folder(void)
{
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(setenv("MOEFARM_CODE_CACHE", folder, 1), 0);
}

static void remove_folder(void)
{
    ck_assert_int_eq(remove_tree(folder), 0);
}

/* Loads the fake driver, which the device then finds by its soname, and opens the device. Returns NULL and
 * skips the test if the compiler is missing. */
static struct mf_device *open_fake_device(void)
{
    char text[MF_CODE_WHY_MAX], version[64];
    struct mf_device *d = NULL;

    ck_assert_ptr_nonnull(dlopen(MF_BINARY_DIR "/tests/fake_cuda/libcuda.so.1", RTLD_NOW | RTLD_GLOBAL));
    if (mf_code_version("nvidia", version, text, sizeof(text)) < 0) {
        mf_check_skip("%s", text);
        return NULL;
    }
    ck_assert_msg(mf_device_open("hip:nvidia:0", text, sizeof(text), &d) == 0, "%s", text);
    return d;
}

static const struct mf_test_group runtime_tests = {
    .timeout_s = 100, .setup_all = make_folder, .teardown_all = remove_folder, .optional = true};

MF_TEST(usage_is_read_from_the_runtime, .group = &runtime_tests)
{
    const struct mf_grid small = {1, 1, 1, 128, 4096, false, false},
                         large = {1, 1, 1, 256, 1024, false, false};
    const char *const image = MF_SOURCE_DIR "/README.md"; /* the fake driver loads any file */
    struct mf_resource_usage use = {0};
    struct mf_module *module;
    char why[256];
    void *function;
    double us;

    struct mf_device *d = open_fake_device();
    if (!d)
        return;
    ck_assert_int_eq(d->ops->module_load(d, image, why, sizeof(why), &module), 0);
    d->use = &use;
    ck_assert_int_eq(setenv("FAKE_CUDA_SPILLS", "48", 1), 0);
    ck_assert_int_eq(d->ops->module_function(d, module, "f", &function), 0);
    ck_assert(use.registers == 96 && use.spills == 48 && use.lds == 0 && use.occupancy == 0);
    ck_assert_int_eq(d->ops->module_launch(d, function, &small, why, 8, NULL), 0);
    ck_assert(use.lds == 4096 && use.occupancy == 65536 / (96 * 128));
    /* the canary has 256 threads, but its usage is not recorded */
    ck_assert_int_eq(d->ops->canary(d, &us), 0);
    ck_assert(use.lds == 4096 && use.occupancy == 65536 / (96 * 128));
    ck_assert_int_eq(d->ops->module_launch(d, function, &large, why, 8, NULL), 0);
    ck_assert(use.lds == 4096 && use.occupancy == 65536 / (96 * 256));
    ck_assert_int_eq(setenv("FAKE_CUDA_REGISTERS", "300", 1), 0);
    ck_assert_int_eq(d->ops->module_launch(d, function, &large, why, 8, NULL), -E2BIG);
    ck_assert_int_eq(use.occupancy, -1);
    d->use = NULL;
    ck_assert_int_eq(d->ops->module_launch(d, function, &large, why, 8, NULL), 0);
    (void)d->ops->module_unload(d, module);
    mf_device_close(d);
}

/* Programmatic launches overlap with the end of the kernel before them, on hardware that supports them. */
static const struct {
    const char *major;
    int programmatic;
} machines[] = {{"9", 1}, {"8", 0}};

MF_TEST(programmatic_launch_if_supported, .rows = MF_ARRAY_LEN(machines), .group = &runtime_tests)
{
    const struct mf_grid grid = {.x = 1, .y = 1, .z = 1, .block = 32, .programmatic_launch = true},
                         plain = {1, 1, 1, 32, 0, false, false};
    struct mf_module *module;
    char why[256];
    void *function;

    ck_assert_int_eq(setenv("FAKE_CUDA_MAJOR", machines[_i].major, 1), 0);
    struct mf_device *d = open_fake_device();
    if (!d)
        return;
    const int *programmatic = dlsym(RTLD_DEFAULT, "fake_cuda_serialized");
    ck_assert_ptr_nonnull(programmatic);
    ck_assert_int_eq(*programmatic, 0);
    ck_assert_int_eq(d->ops->module_load(d, MF_SOURCE_DIR "/README.md", why, sizeof(why), &module), 0);
    ck_assert_int_eq(d->ops->module_function(d, module, "f", &function), 0);
    ck_assert_int_eq(d->ops->module_launch(d, function, &plain, why, 8, NULL), 0);
    ck_assert_int_eq(*programmatic, 0);
    ck_assert_int_eq(d->ops->module_launch(d, function, &grid, why, 8, NULL), 0);
    ck_assert_int_eq(*programmatic, machines[_i].programmatic);
    (void)d->ops->module_unload(d, module);
    mf_device_close(d);
}

/* The L2 partition of each SM, detected in a runner and in a guest process. */
static const struct {
    const char *halves, *major, *busy;
    bool guest;
    int near;
} halves[] = {
    {"1", "9", "0", false, 66}, {"1", "9", "0", true, 66}, {"0", "9", "0", false, 0},
    {"0", "9", "0", true, 0},   {"1", "8", "0", true, 0},  {"1", "9", "2", true, 66},
    {"1", "9", "3", true, 0},
};

MF_TEST(l2_partitions_are_detected, .rows = MF_ARRAY_LEN(halves), .group = &runtime_tests)
{
    const struct mf_device_open_options how = {.guest = halves[_i].guest};
    struct mf_device *again;
    char why[256];

    ck_assert_int_eq(setenv("FAKE_CUDA_MAJOR", halves[_i].major, 1), 0);
    ck_assert_int_eq(setenv("FAKE_CUDA_L2_PARTITIONS", halves[_i].halves, 1), 0);
    struct mf_device *d = open_fake_device();
    if (!d)
        return;
    mf_device_close(d);
    ck_assert_int_eq(setenv("FAKE_CUDA_BUSY", halves[_i].busy, 1), 0);
    ck_assert_msg(mf_device_open_with("hip:nvidia:0", &how, why, sizeof(why), &again) == 0, "%s", why);
    ck_assert_int_eq(again->info.halves.near, halves[_i].near);
    for (int u = 0; u < again->info.cores; u++)
        ck_assert_uint_eq(again->info.halves.far[u / 32] >> u % 32 & 1,
                          halves[_i].near > 0 && u / 2 % 2 == 1);
    mf_device_close(again);
}

#define OF_TYPE(t, q) "ActivationType.Silu,torch.bfloat16,torch." t ",torch." t ",QuantType." q
#define FP8           OF_TYPE("float8_e4m3fn", "per_1x128") ",1,0"
#define BF16          OF_TYPE("bfloat16", "No") ",1,0"
#define BF16_GATE     OF_TYPE("bfloat16", "No") ",0,0"

static char y_buffer, operands[7]; /* output of a launch; its inputs (`needs`) */

/* Opens a family's step for a row of a table and launches it for a token count. Returns the device, which the
 * caller closes, or NULL if the test was skipped. */
static struct mf_device *launch_on_fake_device(const char *family, const char *row, int64_t token,
                                               const char *step, struct mf_shape *ret_shape)
{
    const bool is_pair = strcmp(family, "two_stage_single_launch") == 0,
               zeroes = strstr(step, "_zero") != NULL;
    const struct mf_tensor_ref gives[2] = {{.part = {&y_buffer}}};
    const struct mf_family *f = mf_family_find("hip", family);
    struct mf_kernel *k;
    struct mf_device *d = open_fake_device();

    if (!d)
        return NULL;
    ck_assert_int_eq(mf_shape_parse(row, ret_shape), 0);
    size_t n = is_pair ? (size_t)(5 - zeroes + ret_shape->has_b1 + ret_shape->has_b2) : 3;
    _cleanup_(mf_freep) struct mf_tensor_ref *needs = calloc(n, sizeof(*needs));
    const struct mf_launch launch = {.needs = needs, .gives = gives};
    for (size_t i = 0; i < n; i++)
        needs[i].part[0] = operands + i;
    ck_assert_int_eq(f->open(f, d, ret_shape, step, &k), 0);
    f->set_token_count(k, token);
    ck_assert_int_eq(f->launch(k, &launch), 0);
    (void)f->close(k);
    return d;
}

/* Each L2 partition gets its own experts. y is computed column by column, because the L2 cache holds h. */
MF_TEST(l2_partitions_are_passed_to_the_kernel, .group = &runtime_tests)
{
    struct mf_shape shape;

    ck_assert_int_eq(setenv("FAKE_CUDA_L2_PARTITIONS", "1", 1), 0);
    struct mf_device *d = launch_on_fake_device("two_stage", "64,7168,256,256,8," FP8, 64,
                                                "s2_fp8fn_128_m128_n256_bs_y", &shape);
    if (!d)
        return;
    const struct mf_hip_bulk_args *args = dlsym(RTLD_DEFAULT, "fake_cuda_bulk_args");
    ck_assert_ptr_nonnull(args);
    ck_assert_uint_eq(args->tile.near, UINT32_C(1) << 31);
    ck_assert_int_eq(args->tile.columns, 1);
    ck_assert_mem_eq(args->far, d->info.halves.far, sizeof(args->far));
    ck_assert_uint_ne(args->far[0], 0);
    mf_device_close(d);
}

/* Stage 2 of a pair computes all columns of a block before the next block if each expert has one block,
 * because blocks of h become ready one by one. If experts have several blocks, stage 2 of a pair computes
 * column by column. A separate stage 2 always computes column by column. */
static const struct {
    int64_t token;
    const char *pair, *stage2;
    int columns;
} column_orders[] = {
    {1024, "pair_fp8fn_128_silu_m128_n256_bs", NULL, 16},
    {1024, "pair_fp8fn_128_silu_m128_n256_bs_zero", NULL, 16},
    {1024, NULL, "s2_fp8fn_128_m128_n256_bs_y", 1},
    {2048, "pair_fp8fn_128_silu_m128_n256_bs", NULL, 1},
    {4096, "pair_fp8fn_128_silu_m128_n256_bs", NULL, 1},
};

MF_TEST(pair_column_order, .rows = MF_ARRAY_LEN(column_orders), .group = &runtime_tests)
{
    const char *pair = column_orders[_i].pair;
    struct mf_shape shape;

    ck_assert_int_eq(setenv("FAKE_CUDA_L2_PARTITIONS", "1", 1), 0);
    struct mf_device *d =
        launch_on_fake_device(pair ? "two_stage_single_launch" : "two_stage", "4096,4096,384,128,8," FP8,
                              column_orders[_i].token, pair ? pair : column_orders[_i].stage2, &shape);
    if (!d)
        return;
    const struct mf_hip_pair_args *both = dlsym(RTLD_DEFAULT, "fake_cuda_pair_args");
    const struct mf_hip_bulk_args *stage2 = dlsym(RTLD_DEFAULT, "fake_cuda_bulk_args");
    ck_assert(both && stage2);
    ck_assert_int_eq((pair ? &both->down : stage2)->tile.columns, column_orders[_i].columns);
    if (pair) {
        ck_assert_int_eq(both->up.tile.columns, 3);
        ck_assert_uint_eq(both->up.tile.near, UINT32_C(1) << 31);
        ck_assert_ptr_eq(both->up.y, strstr(pair, "_zero") ? &y_buffer : NULL);
        ck_assert_ptr_eq(both->down.tile.out, &y_buffer);
        ck_assert_ptr_eq(both->up.tile.out, both->down.tile.x);
        ck_assert_ptr_eq(both->up.tile.out_scale, both->down.tile.x_scale);
        ck_assert_int_eq(both->n_made,
                         /* one counter per block, and one for all */
                         (column_orders[_i].token * 8 + 128 * 127) / 128 + 1);
    }
    mf_device_close(d);
}

/* Each stage of a pair gets its own operands. */
static const struct {
    const char *shape, *step;
    int b1, b2; /* index of the bias in the inputs; -1: the layer has no such bias */
} with_biases[] = {
    {"64,2048,768,16,8," BF16_GATE ",b1+b2", "pair_bf16_silu_m32_n256_b", 4, 5},
    {"64,2048,768,16,8," BF16_GATE ",b2", "pair_bf16_silu_m32_n256_b_p128", -1, 4},
    {"4096,2048,768,16,8," BF16_GATE ",b1", "pair_bf16_silu_m96_n256_b_zero", 4, -1},
    {"64,7168,256,256,8," FP8, "pair_fp8fn_128_silu_m64_n256_bts", -1, -1},
};

MF_TEST(pair_operands, .rows = MF_ARRAY_LEN(with_biases), .group = &runtime_tests)
{
    struct mf_shape shape;
    struct mf_device *d = launch_on_fake_device("two_stage_single_launch", with_biases[_i].shape, 64,
                                                with_biases[_i].step, &shape);
    if (!d)
        return;
    const struct mf_hip_pair_args *both = dlsym(RTLD_DEFAULT, "fake_cuda_pair_args");
    int b1 = with_biases[_i].b1, b2 = with_biases[_i].b2;
    ck_assert_ptr_nonnull(both);
    ck_assert_ptr_eq(both->up.tile.x, operands);
    ck_assert_ptr_eq(both->up.tile.sorted_ids, operands + 1);
    ck_assert_ptr_eq(both->down.tile.sorted_ids, operands + 1);
    ck_assert_ptr_eq(both->up.tile.w, operands + 2);
    ck_assert_ptr_eq(both->down.tile.w, operands + 3);
    ck_assert_ptr_eq(both->up.tile.bias, b1 < 0 ? NULL : operands + b1);
    ck_assert_ptr_eq(both->down.tile.bias, b2 < 0 ? NULL : operands + b2);
    mf_device_close(d);
}

/* Eviction fills a buffer of twice the L2 size and then discards its lines. Reading a buffer instead would
 * leave dirty lines in the cache. Then each SM runs unrelated code. */
MF_TEST(eviction_fills_and_discards, .rows = MF_ARRAY_LEN(machines), .group = &runtime_tests)
{
    double bytes = 0;

    ck_assert_int_eq(setenv("FAKE_CUDA_MAJOR", machines[_i].major, 1), 0);
    struct mf_device *d = open_fake_device();
    if (!d)
        return;
    const struct mf_hip_evict_args *filled = dlsym(RTLD_DEFAULT, "fake_cuda_filled"),
                                   *discarded = dlsym(RTLD_DEFAULT, "fake_cuda_discarded");
    const unsigned *n_blocks = dlsym(RTLD_DEFAULT, "fake_cuda_code_blocks");
    ck_assert(filled && discarded && n_blocks);
    ck_assert_uint_eq(filled->bytes, 0);
    ck_assert_int_eq(d->ops->evict_caches(d, &bytes), 0);
    ck_assert(bytes == 2.0 * (double)d->info.llc_bytes);
    ck_assert(filled->at != NULL && filled->bytes == (uint64_t)bytes);
    ck_assert_mem_eq(discarded, filled, sizeof(*filled));
    ck_assert_uint_eq(*n_blocks, (unsigned)d->info.cores);
    mf_device_close(d);
}

/* Stage 1 gets the expected number of blocks. For 64 tokens per expert, this is about one block of 128 rows
 * per expert; if few experts are active, the number passed to stage 1 is 0. Stage 2 gets 0, because it knows
 * the actual number of blocks. */
static const struct {
    int64_t token;
    const char *step;
    int least, most;
} likely_cases[] = {
    {1024, "s1_fp8fn_128_silu_m128_n256_bs_q", 128, 129},
    {1, "s1_fp8fn_128_silu_m128_n256_bs_q", 0, 0},
    {1024, "s2_fp8fn_128_m128_n256_bs_y", 0, 0},
};

MF_TEST(likely_blocks_are_passed_to_stage1, .rows = MF_ARRAY_LEN(likely_cases), .group = &runtime_tests)
{
    struct mf_shape shape;
    struct mf_device *d = launch_on_fake_device("two_stage", "1024,4096,384,128,8," FP8,
                                                likely_cases[_i].token, likely_cases[_i].step, &shape);

    if (!d)
        return;
    const struct mf_hip_bulk_args *args = dlsym(RTLD_DEFAULT, "fake_cuda_bulk_args");
    ck_assert_ptr_nonnull(args);
    ck_assert_msg(args->likely_blocks >= likely_cases[_i].least &&
                      args->likely_blocks <= likely_cases[_i].most,
                  "%d", args->likely_blocks);
    ck_assert_int_eq(args->n_experts, 128);
    mf_device_close(d);
}

/* The TMA box of panel128 weights holds 128 bytes of K of each column of a tile. For w1 these are gate and up
 * columns that alternate in groups of eight. At the coordinates of kernels/gpu/src/tma_coord.h, the bytes of
 * the box are those of the layout. */
static const struct {
    const char *shape, *step;
    int columns, bits;
} boxes[] = {
    {"1024,4096,384,128,8," FP8, "s1_fp8fn_128_silu_m128_n256_bs_p128_q", 128, 8},
    {"64,7168,256,256,8," FP8, "s1_fp8fn_128_silu_m32_n128_bt_p128", 64, 8},
    {"64,4096,3584,8,2," BF16, "s1_bf16_silu_m32_n256_b_p128", 128, 16},
    {"64,1024,256,8,2," BF16_GATE, "s1_bf16_silu_m32_n256_b_p128", 256, 16},
    {"1024,4096,384,128,8," FP8, "s2_fp8fn_128_m128_n256_bs_p128_y", 256, 8},
    {"64,4096,3584,8,2," BF16, "s2_bf16_m32_n128_bt_p128_y", 128, 16},
};

/* Returns the tensor map that a step's launch creates, or NULL if the test was skipped. */
static const struct fake_cuda_tensor *tensor_of(const char *row, const char *step, struct mf_shape *ret_shape)
{
    struct mf_device *d = launch_on_fake_device("two_stage", row, 64, step, ret_shape);

    if (!d)
        return NULL;
    mf_device_close(d);
    const struct fake_cuda_tensor *t = dlsym(RTLD_DEFAULT, "fake_cuda_tensor");
    ck_assert_ptr_nonnull(t);
    return t;
}

MF_TEST(panel_box_matches_layout, .rows = MF_ARRAY_LEN(boxes), .group = &runtime_tests)
{
    struct mf_shape s;
    const struct fake_cuda_tensor *t = tensor_of(boxes[_i].shape, boxes[_i].step, &s);

    if (!t)
        return;
    const struct mf_hip_bulk_args *args = dlsym(RTLD_DEFAULT, "fake_cuda_bulk_args");
    ck_assert_ptr_nonnull(args);
    bool first = strncmp(boxes[_i].step, "s1", 2) == 0;
    size_t n_halves = first && s.use_g1u1 ? 2 : 1;
    size_t I = (size_t)(first ? s.inter_dim : s.model_dim), K = (size_t)(first ? s.model_dim : s.inter_dim);
    size_t N = n_halves * I;
    size_t bytes = (size_t)boxes[_i].bits / 8, columns = (size_t)boxes[_i].columns,
           tile_elements = 128 / bytes;
    const struct mf_layout *l = mf_layout_find("panel128");
    ck_assert_uint_eq(t->rank, 5);
    /* A row has 128 bytes in this layout, and the box already holds the next row, so L2 promotion does not
     * load it. */
    ck_assert_uint_eq(t->ahead, 128);
    ck_assert_uint_eq(t->box[0], tile_elements);
    ck_assert_uint_eq(t->box[1] * t->box[2] * t->box[3] * t->box[4], columns * n_halves);
    for (size_t expert = 0; expert < (size_t)s.expert; expert += (size_t)s.expert - 1) {
        for (size_t col = 0; col < I; col += columns) {
            for (size_t k_tile = 0; k_tile < K / tile_elements; k_tile += 5) {
                const struct mf_tma_coord c = mf_tma_coord_of(&args->w, (i32)k_tile, (i32)col, (i32)expert);
                const size_t box_start[5] = {(size_t)c.c0, (size_t)c.c1, (size_t)c.c2, (size_t)c.c3,
                                             (size_t)c.c4};
                for (size_t i = 0; i < columns * n_halves; i++) { /* rows in the order of shared memory */
                    size_t in[5] = {0, i % 8, i / 8 % n_halves, 0, 0}, column_group = i / 8 / n_halves,
                           at = 0;
                    in[3] = column_group % t->box[3];
                    in[4] = column_group / t->box[3];
                    ck_assert_uint_eq(box_start[0], 0);
                    for (int dim = 1; dim < 5; dim++) {
                        ck_assert_uint_lt(box_start[dim] + in[dim], t->length[dim]);
                        at += (box_start[dim] + in[dim]) * t->stride[dim - 1];
                    }
                    size_t row = i / 8 % n_halves * I + col + column_group * 8 + i % 8;
                    ck_assert_uint_eq(at, expert * N * K * bytes +
                                              bytes * mf_layout_index(l, boxes[_i].bits, N, K, row,
                                                                      k_tile * tile_elements));
                }
            }
        }
    }
}

/* For bf16 weights in checkpoint layout, L2 promotion also loads the next 128 bytes of a row. */
static const struct {
    const char *shape, *step;
    unsigned ahead;
} ahead[] = {
    {"64,4096,3584,8,2," BF16, "s1_bf16_silu_m32_n256_b", 256},
    {"64,7168,256,256,8," FP8, "s1_fp8fn_128_silu_m32_n128_bt", 128},
};

MF_TEST(l2_promotion_size, .rows = MF_ARRAY_LEN(ahead), .group = &runtime_tests)
{
    struct mf_shape s;
    const struct fake_cuda_tensor *t = tensor_of(ahead[_i].shape, ahead[_i].step, &s);

    if (t)
        ck_assert_uint_eq(t->ahead, ahead[_i].ahead);
}

/* ---- concurrent compilers: these replace libc's functions that start and end them ---- */

static int compilers, most_compilers;
static bool all_got_digest = true; /* every compiler got the digest of the sources */

__attribute__((visibility("default"))) int posix_spawn(pid_t *restrict pid, const char *restrict path,
                                                       const posix_spawn_file_actions_t *restrict actions,
                                                       const posix_spawnattr_t *restrict attr,
                                                       char *const argv[restrict], char *const env[restrict])
{
    int (*real)(pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *,
                char *const[], char *const[]) = dlsym(RTLD_NEXT, "posix_spawn");
    int r = real(pid, path, actions, attr, argv, env);
    char sources[128];
    mf_format(sources, sizeof(sources), MF_CODE_SOURCES_OPTION "%s", mf_code_sources_digest);
    if (strstr(path, "moefarm-compile"))
        all_got_digest &= argv[1] && strcmp(argv[1], sources) == 0;
    compilers += r == 0;
    most_compilers = MF_MAX(most_compilers, compilers);
    return r;
}

__attribute__((visibility("default"))) pid_t waitpid(pid_t pid, int *status, int options)
{
    pid_t (*real)(pid_t, int *, int) = dlsym(RTLD_NEXT, "waitpid");
    pid_t ended = real(pid, status, options);
    if (ended > 0)
        compilers--;
    return ended;
}

/* Compilers run only on processors of the affinity mask, because other processors belong to other containers
 * or workers. */
MF_TEST(compilers_respect_cpu_affinity, .group = &runtime_tests)
{
    struct mf_code codes[3] = {0};
    cpu_set_t all, one;
    int c = 0;

    struct mf_device *d = open_fake_device();
    if (!d)
        return;
    for (size_t i = 0; i < MF_ARRAY_LEN(codes); i++) {
        codes[i].source = "quant.hip";
        mf_code_define(&codes[i], "MF_COLS=%zu", 2048 * (i + 1));
        mf_code_define(&codes[i], "MF_BLOCKS=4");
        mf_code_define(&codes[i], "MF_ELEMENT=0");
        mf_code_define(&codes[i], "MF_GROUP=128");
        mf_code_define(&codes[i], "MF_THREADS=256");
    }
    ck_assert_int_eq(sched_getaffinity(0, sizeof(all), &all), 0);
    while (!CPU_ISSET(c, &all))
        c++;
    CPU_ZERO(&one);
    CPU_SET(c, &one);
    ck_assert_int_eq(sched_setaffinity(0, sizeof(one), &one), 0);
    compilers = most_compilers = 0; /* reset, because waitpid was also called for the tests' own processes */
    ck_assert_int_eq(d->ops->compile(d, codes, MF_ARRAY_LEN(codes), NULL, NULL), MF_ARRAY_LEN(codes));
    ck_assert_int_eq(most_compilers, 1);
    ck_assert(all_got_digest);
    mf_device_close(d);
}

int main(void)
{
    return mf_check_main(NULL);
}
