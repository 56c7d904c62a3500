/* Tests the rows of a framework's own table that a Python family opens (worker/runner/python_family.h). */
#include "worker/runner/python_family.h"

#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "support/mf_check.h"

#define SHAPE \
    "4,256,128,8,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0"

static char opened[4096]; /* the step that the family opened last */

static int open_kernel(int64_t family, const char *shape, const char *step, int64_t *ret_kernel, char *why,
                       size_t why_cap)
{
    (void)family, (void)shape, (void)why, (void)why_cap;
    ck_assert_int_eq(mf_copy(opened, sizeof(opened), step), 0);
    *ret_kernel = 1;
    return 0;
}

static int close_kernel(int64_t kernel, char *why, size_t why_cap)
{
    (void)kernel, (void)why, (void)why_cap;
    return 0;
}

static struct mf_python_family *make_family(struct mf_shape *shape)
{
    static const char *const command[] = {"unused", NULL};
    static const struct moefarm_runner_callbacks callbacks = {.open = open_kernel, .close = close_kernel};
    const struct mf_python_family_options o = {.name = "odd",
                                               .revision = "",
                                               .device = "cpu:0",
                                               .opens_rows = true,
                                               .enumerate = command,
                                               .callbacks = &callbacks};
    struct mf_python_family *f = NULL;
    char why[MF_REASON_MAX];
    ck_assert_msg(mf_python_family_new(&o, why, sizeof(why), &f) == 0, "%s", why);
    ck_assert_int_eq(mf_shape_parse(SHAPE, shape), 0);
    return f;
}

/* The coordinator may ask for any number of rows: the family keeps the last one. */
MF_TEST(keeps_one_row_for_production)
{
    static const char *const kernels[] = {"first", "second"};
    const struct mf_device_info info = {.class = {.gfx = "gfx942", .cu_num = 304}};
    struct mf_device device = {.info = info};
    struct mf_shape shape;
    struct mf_python_family *f = make_family(&shape);
    const struct mf_family *family = mf_python_family(f);
    struct mf_step row;
    struct mf_kernel *kernel = NULL;

    for (size_t i = 0; i < MF_ARRAY_LEN(kernels); i++) {
        struct mf_step winner = {.covers = MF_OP_BIT(MF_OP_GEMM1) | MF_OP_BIT(MF_OP_GEMM2), .aiter = true};
        (void)mf_copy(winner.family, sizeof(winner.family), "odd");
        (void)mf_copy(winner.name, sizeof(winner.name), kernels[i]);
        ck_assert_int_eq(family->production(family, &info, &shape, &winner, 1, &row), 0);
        ck_assert_str_eq(row.name, "row_1");
        ck_assert_int_eq(family->open(family, &device, &shape, row.name, &kernel), 0);
        ck_assert_msg(strstr(opened, kernels[i]) != NULL, "%s: %s", kernels[i], opened);
        kernel = family->close(kernel);
    }
    mf_python_family_free(f);
}

/* A command keeps all rows of its table. */
MF_TEST(keeps_each_row_of_a_table)
{
    struct mf_shape shape;
    struct mf_step step;
    struct mf_python_family *f = make_family(&shape);
    static const char *const rows[][2] = {
        {"{\"row\":0}", "row_1"}, {"{\"row\":1}", "row_2"}, {"{\"row\":0}", "row_1"}};

    for (size_t i = 0; i < MF_ARRAY_LEN(rows); i++) {
        ck_assert_int_eq(mf_python_family_add_row(f, &shape, rows[i][0], &step), 0);
        ck_assert_str_eq(step.name, rows[i][1]);
    }
    mf_python_family_free(f);
}

int main(void)
{
    return mf_check_main(NULL);
}
