/* Errors of the stand-alone operators (fmoe_ops.h): refused arguments and failed launches, with their
 * messages. Results are tested on the emulator (tests/emulator/check_emulator_ops.c) and against torch
 * (tests/python). */
#include <limits.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "fmoe/ops/private.h"
#include "support/kernels/launch_recorder.h"
#include "support/mf_check.h"

static struct fmoe_ops *ops;

static void open_ops(void)
{
    struct fmoe_error error = {""};

    ck_assert_msg(fmoe_ops_open("cpu:0", &error, &ops) == 0, "%s", error.text);
}
static void close_ops(void)
{
    fmoe_ops_close(ops);
}

/* A call with the arguments of a row must fail with a message that contains the row's text. */
struct refused {
    int32_t topk, experts, type;
    int64_t tokens;
    int32_t block;
    const char *text;
};

static const struct refused sorts[] = {
    {2, 4, 7, 3, 16, "ids_type 7"},
    {0, 4, FMOE_INT32, 3, 16, "topk 0"},
    {2, 0, FMOE_INT64, 3, 16, "0 experts"},
    {2, 4, FMOE_INT32, -1, 16, "-1 tokens"},
    {2, 4, FMOE_INT32, INT64_C(1) << 31, 16, "fewer than 2^31"},
    {2, 4, FMOE_INT32, 3, 0, "block 0"},
};

static struct fmoe_op_routes routes_of(const struct refused *s)
{
    return (struct fmoe_op_routes){
        .ids_type = s->type, .topk = s->topk, .tokens = s->tokens, .experts = s->experts};
}

MF_TEST(test_sort_arguments, .rows = MF_ARRAY_LEN(sorts))
{
    const struct refused *s = &sorts[_i];
    const struct fmoe_op_align align = {.routes = routes_of(s), .block = s->block, .rows = 1 << 20};
    const struct fmoe_op_moe_sort sort = {.routes = routes_of(s), .block = s->block};
    struct fmoe_error error = {""};

    ck_assert_int_eq(fmoe_op_align(ops, &align, &error), -EINVAL);
    ck_assert_msg(strstr(error.text, s->text) != NULL, "%s", error.text);
    error.text[0] = '\0';
    ck_assert_int_eq(fmoe_op_moe_sort(ops, &sort, &error), -EINVAL);
    ck_assert_msg(strstr(error.text, s->text) != NULL, "%s", error.text);
    ck_assert_int_eq(fmoe_op_align(ops, &align, NULL), -EINVAL);
}

/* Positions are int32, so blocks of this size have too many rows even without tokens. */
MF_TEST(test_too_many_rows)
{
    int32_t num_valid[2];
    const struct fmoe_op_moe_sort s = {
        .routes = {.topk = 2, .experts = 8}, .block = 1 << 30, .num_valid = num_valid};
    struct fmoe_error error = {""};

    ck_assert_int_eq(fmoe_op_moe_sort(ops, &s, &error), -EINVAL);
    ck_assert_msg(strstr(error.text, "block 1073741824: 8589934590 rows") != NULL, "%s", error.text);
}

MF_TEST(test_too_few_rows)
{
    const int32_t ids[4] = {0, 1, 1, 0};
    const struct fmoe_op_align a = {
        .routes = {.ids = ids, .topk = 2, .tokens = 2, .experts = 4}, .block = 16, .rows = 5};
    struct fmoe_error error = {""};

    ck_assert_int_eq(fmoe_op_align(ops, &a, &error), -EINVAL);
    ck_assert_msg(strstr(error.text, "5 rows of sorted_ids: expected 64 or more") != NULL, "%s", error.text);
}

MF_TEST(test_permute_arguments)
{
    struct fmoe_op_permute_ep ep = {.routes = {.topk = 2, .tokens = 2, .experts = 4}, .first = 3, .last = 5};
    struct fmoe_op_permute_map map = {.tokens = 4, .experts = 4, .align = 1, .num_out_tokens = 6};
    const struct fmoe_op_unpermute back = {.tokens = 4, .topk = 2, .width = 0};
    struct fmoe_error error = {""};

    ck_assert_int_eq(fmoe_op_permute_ep(ops, &ep, &error), -EINVAL);
    ck_assert_msg(strstr(error.text, "rows 3 to 5") != NULL, "%s", error.text);
    ep = (struct fmoe_op_permute_ep){.routes = ep.routes, .last = 4, .padded_mode = 1};
    ck_assert_int_eq(fmoe_op_permute_ep(ops, &ep, &error), -EINVAL);
    ck_assert_msg(strstr(error.text, "padded_mode") != NULL, "%s", error.text);
    map.drop_and_pad = 1;
    ck_assert_int_eq(fmoe_op_permute_map(ops, &map, &error), -EINVAL);
    ck_assert_msg(strstr(error.text, "num_out_tokens 6") != NULL, "%s", error.text);
    ck_assert_int_eq(fmoe_op_unpermute(ops, &back, &error), -EINVAL);
    ck_assert_msg(strstr(error.text, "width 0") != NULL, "%s", error.text);
}

/* The caller's bound of rows is checked before any row is written. */
MF_TEST(test_map_has_too_many_rows)
{
    unsigned char routed[8] = {1, 1, 1, 0, 0, 1, 1, 1};
    int32_t row_of[8], token_of[8];
    int64_t per_expert[2], pad_offsets[2];
    uint16_t x[4] = {0}, y[8] = {7, 7, 7, 7, 7, 7, 7, 7};
    struct fmoe_op_permute_map p = {
        .routing_map = routed,
        .tokens = 4,
        .experts = 2,
        .align = 1,
        .num_out_tokens = -1,
        .rows = {x, y, 2},
        .max_rows = 5,
        .row_of = row_of,
        .token_of = token_of,
        .per_expert = per_expert,
        .pad_offsets = pad_offsets,
    };
    struct fmoe_error error = {""};

    ck_assert_int_eq(fmoe_op_permute_map(ops, &p, &error), -EINVAL);
    ck_assert_msg(strstr(error.text, "max_rows 5: the routing map has 6 rows") != NULL, "%s", error.text);
    ck_assert_int_eq(y[0], 7);
    p.max_rows = 6;
    ck_assert_int_eq(fmoe_op_permute_map(ops, &p, &error), 0);
}

MF_TEST(test_route_arguments)
{
    struct fmoe_op_route r = {
        .logits_type = FMOE_FLOAT32, .tokens = 1, .experts = 12, .topk = 2, .groups = 5, .groups_kept = 2};
    struct fmoe_error error = {""};

    ck_assert_int_eq(fmoe_op_route(ops, &r, &error), -EINVAL);
    ck_assert_msg(strstr(error.text, "5 groups") != NULL, "%s", error.text);
    r.groups = 0;
    r.topk = 13;
    ck_assert_int_eq(fmoe_op_route(ops, &r, &error), -EINVAL);
    ck_assert_msg(strstr(error.text, "topk 13") != NULL, "%s", error.text);
    r.logits_type = FMOE_INT32;
    ck_assert_int_eq(fmoe_op_route(ops, &r, &error), -EINVAL);
    ck_assert_msg(strstr(error.text, "logits_type 0") != NULL, "%s", error.text);
}

MF_TEST(test_format_arguments)
{
    struct fmoe_op_quantised z;
    struct fmoe_op_quantise q = {.format = "nvfp4", .matrices = 1, .rows = 1, .cols = 16};
    int64_t n;
    struct fmoe_error error = {""};

    ck_assert_int_eq(fmoe_op_quantised_sizes("fp9", 1, 8, &z, &error), -EINVAL);
    ck_assert_msg(strstr(error.text, "format 'fp9'") != NULL, "%s", error.text);
    ck_assert_int_eq(fmoe_op_quantised_sizes("mxfp4", 1, 12, &z, &error), -EINVAL);
    ck_assert_msg(strstr(error.text, "12 columns") != NULL, "%s", error.text);
    ck_assert_int_eq(fmoe_op_quantised_sizes("nvfp4", 3, 40, &z, &error), 0);
    ck_assert_int_eq(z.row_bytes, 20);
    ck_assert_int_eq(z.scale_cols, 3);
    ck_assert_int_eq(fmoe_op_quantise(ops, &q, &error), -EINVAL);
    ck_assert_msg(strstr(error.text, "needs a factor") != NULL, "%s", error.text);
    ck_assert_int_eq(fmoe_op_shuffled_elements("16x17", 16, 32, 1, &n, &error), -EINVAL);
    ck_assert_msg(strstr(error.text, "order '16x17'") != NULL, "%s", error.text);
    ck_assert_int_eq(fmoe_op_shuffled_elements("16x16", 17, 32, 1, &n, &error), -EINVAL);
    ck_assert_msg(strstr(error.text, "multiples of 16 rows") != NULL, "%s", error.text);
    ck_assert_int_eq(fmoe_op_shuffled_elements("32_4_4", 5, 7, 1, &n, &error), 0);
    ck_assert_int_eq(n, 1024);
}

MF_TEST(test_one_call_at_a_time)
{
    const int32_t row_of = -1;
    uint16_t y = 9;
    const struct fmoe_op_unpermute u = {.row_of = &row_of, .tokens = 1, .topk = 1, .width = 1, .to = &y};
    struct fmoe_error error = {""};

    ck_assert(fmoe_cpu_take());
    ck_assert_int_eq(fmoe_op_unpermute(ops, &u, &error), -EBUSY);
    fmoe_cpu_give();
    ck_assert_int_eq(fmoe_op_unpermute(ops, &u, &error), 0);
    ck_assert_int_eq(y, 0);
    ck_assert_int_eq(fmoe_ops_open("tpu:0", &error, &ops), -EINVAL);
}

/* size_t members of struct mf_shuffle_size would make large numbers of them */
static const struct {
    int64_t matrices, rows, cols;
    const char *text;
} negative[] = {
    {1, -16, 32, "-16 rows, 32 columns"},
    {1, 16, -32, "16 rows, -32 columns"},
    {1, INT64_C(1) << 40, 32, "1099511627776 rows"},
    {-1, 16, 32, "-1 matrices"},
};

MF_TEST(test_shuffle_sizes, .rows = MF_ARRAY_LEN(negative))
{
    const struct fmoe_op_shuffle s = {.order = "16x16",
                                      .matrices = negative[_i].matrices,
                                      .rows = negative[_i].rows,
                                      .cols = negative[_i].cols,
                                      .element_bytes = 1};
    struct fmoe_error error = {""};
    int64_t n;

    ck_assert_int_eq(fmoe_op_shuffled_elements(s.order, s.rows, s.cols, 1, &n, NULL),
                     s.matrices < 0 ? 0 : -EINVAL);
    ck_assert_int_eq(fmoe_op_shuffle(ops, &s, &error), -EINVAL);
    ck_assert_msg(strstr(error.text, negative[_i].text) != NULL, "%s", error.text);
}

/* ---- a GPU whose launches fail ---- */

static struct launch_recorder recorder = {
    .base = {.ops = &recorder_ops, .info = {.class = {"sm_90", 132}, .cores = 132}}};

static struct fmoe_ops *open_recorder(void)
{
    struct fmoe_error error = {""};
    struct fmoe_ops *gpu = NULL;

    ck_assert_msg(fmoe_ops_open_on(&recorder.base, &error, &gpu) == 0, "%s", error.text);
    return gpu;
}

static const int failures[] = {-EINVAL, -ENOTSUP, -ENOMEM, -ECANCELED, -EIO, -E2BIG};

MF_TEST(test_failed_launch, .rows = MF_ARRAY_LEN(failures))
{
    struct fmoe_ops *gpu = open_recorder();
    const struct fmoe_op_unpermute u = {.tokens = 1, .topk = 1, .width = 8};
    struct fmoe_error error = {""};

    recorder.result = failures[_i];
    ck_assert_int_eq(fmoe_op_unpermute(gpu, &u, &error), failures[_i]);
    ck_assert_msg(strstr(error.text, "launching the operator: ") != NULL &&
                      strstr(error.text, strerror(-failures[_i])) != NULL,
                  "'%s'", error.text);
    fmoe_ops_close(gpu);
}

/* ---- sizes ---- */

MF_TEST(test_workspace_of_invalid_arguments, .rows = 2)
{
    struct fmoe_ops *o = _i == 0 ? ops : open_recorder();

    for (size_t i = 0; i < 5; i++) { /* the rows with invalid routes */
        const struct fmoe_op_routes r = routes_of(&sorts[i]);
        ck_assert_uint_eq(fmoe_op_sort_workspace(o, &r), 0);
    }
    ck_assert_uint_gt(fmoe_op_sort_workspace(o, &(struct fmoe_op_routes){.topk = 2, .experts = 4}), 0);
    ck_assert_uint_eq(fmoe_op_map_workspace(o, -1, 4), 0);
    ck_assert_uint_eq(fmoe_op_map_workspace(o, 4, 0), 0);
    ck_assert_uint_eq(fmoe_op_map_workspace(o, INT64_C(1) << 30, 2), 0);
    ck_assert_uint_eq(fmoe_op_map_workspace(o, 100, 4), _i == 0 ? 0 : 2 * 4 * sizeof(int32_t));
    ck_assert_uint_eq(fmoe_op_padded_workspace(o, -1, 4, 8), 0);
    ck_assert_uint_eq(fmoe_op_padded_workspace(o, 4, -1, 8), 0);
    ck_assert_uint_eq(fmoe_op_padded_workspace(o, 4, 4, 0), 0);
    ck_assert_uint_eq(fmoe_op_padded_workspace(o, INT64_C(1) << 31, 4, 8), 0);
    ck_assert_uint_gt(fmoe_op_padded_workspace(o, 4, 4, 8), 0);
    if (o != ops)
        fmoe_ops_close(o);
}

MF_TEST(test_rows_of_invalid_arguments)
{
    for (size_t i = 1; i < MF_ARRAY_LEN(sorts); i++) { /* all but the one with an invalid type */
        const struct fmoe_op_routes r = routes_of(&sorts[i]);
        ck_assert_int_eq(fmoe_op_moe_sort_rows(&r, sorts[i].block), 0);
    }
    ck_assert_int_eq(fmoe_op_align_rows(-1, 4, 16, 1), 0);
    ck_assert_int_eq(fmoe_op_align_rows(INT64_MAX, 4, 16, 1), 0);
    ck_assert_int_eq(fmoe_op_align_rows(8, 0, 16, 1), 0);
    ck_assert_int_eq(fmoe_op_align_rows(8, 4, 0, 1), 0);
    ck_assert_int_eq(fmoe_op_align_rows(8, 4, 16, 1), 80);
}

/* ---- compilation ---- */

static const struct mf_test_group optional_tests = {.timeout_s = 110, .optional = true};

static const struct {
    const char *vendor, *gfx;
} targets[] = {{"nvidia", "sm_90"}, {"nvidia", "sm_80"}, {"clang", "gfx942"}, {"amd", "gfx90a"}};

MF_TEST(test_kernels_compile, .group = &optional_tests, .rows = MF_ARRAY_LEN(targets))
{
    struct mf_compiler compiler = {.vendor = targets[_i].vendor};
    struct mf_device_info device = {0};
    struct mf_code codes[FMOE_OPS_MODULES];
    char paths[FMOE_OPS_MODULES][PATH_MAX], whys[FMOE_OPS_MODULES][MF_CODE_WHY_MAX];
    size_t n;

    mf_format(device.class.gfx, sizeof(device.class.gfx), "%s", targets[_i].gfx);
    mf_code_arch(&compiler, targets[_i].gfx);
    n = fmoe_ops_codes(&device, codes);
    ck_assert_uint_gt(n, 7);
    if (mf_code_version(compiler.vendor, compiler.version, whys[0], sizeof(whys[0])) < 0) {
        mf_check_skip("no compiler for %s: %s", targets[_i].gfx, whys[0]);
        return;
    }
    (void)mf_code_make(&compiler, codes, n, 2, paths, whys);
    for (size_t i = 0; i < n; i++)
        ck_assert_msg(paths[i][0] != '\0', "%s for %s: %s", codes[i].source, targets[_i].gfx, whys[i]);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 60, .setup = open_ops, .teardown = close_ops});
}
