#include "server/choose/least_time.h"

#include <string.h>

#include "common/base/cleanup.h"
#include "support/mf_check.h"

/* An H200 as it reports itself, and a CPU with 2 threads. */
static const struct mf_ceilings h200 = {
    .dtype_gflops = {[MF_DTYPE_BF16] = 989e3, [MF_DTYPE_FP8_E4M3FN] = 1979e3},
    .mem_read_gbs = 4200,
    .llc_bytes = 50e6};
static const struct mf_ceilings cpu = {
    .dtype_gflops = {[MF_DTYPE_BF16] = 400}, .mem_read_gbs = 40, .llc_bytes = 32e6, .cpu_threads = 2};
static const struct mf_ceilings unknown = {.peak_gflops = 0};

#define SMALL "1,64,32,4,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0"
/* one expert has 2 x 7168 x 2048 + 7168 x 2048 = 44.04e6 bytes in fp8 */
#define FP8(tokens)                                                                                       \
    tokens ",7168,2048,256,8,ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fn,torch.float8_e4m3fn," \
           "QuantType.per_1x128,1,0"
#define TOP1 \
    "4096,2048,1024,128,1,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0"
#define ALL "sort+quant1+gather+gemm1+act+quant2+gemm2+weight+combine"

static const struct {
    const struct mf_ceilings *device;
    const char *shape, *routing, *ops;
    double us;
    const char *why;
} cases[] = {
    /* launch floors; steps that only move data have none */
    {&h200, SMALL, "uniform", "gather+gemm1+act", 0.5, "no GEMM is faster"},
    {&h200, SMALL, "uniform", "sort", 0.001, "no kernel is faster"},
    {&h200, SMALL, "uniform", "combine", 0.001, "no kernel is faster"},
    {&cpu, SMALL, "uniform", "sort", 0.001, "no kernel is faster"},
    {&cpu, SMALL, "uniform", "act", 0.001, "no kernel is faster"},
    {&cpu, SMALL, "uniform", "gather+gemm1+act", 0.037236,
     "GFLOP at the device's peak of at most 440 GFLOP/s"},
    {&cpu, SMALL, "uniform", "gemm2", 0.02, "no GEMM is faster"},
    {&unknown, FP8("1"), "uniform", ALL, 0.5, "no GEMM is faster"},
    {&unknown, FP8("1"), "uniform", "-", 0.001, "no kernel is faster"},
    /* one token reads the weights of 8 experts, of which 100 MB may be in caches */
    {&h200, FP8("1"), "uniform", ALL, (352.32e6 - 100e6) / (1.1 * 4200e3),
     "0.2523 GB at the device's memory band"},
    {&h200, FP8("1"), "uniform", "gemm2+weight+combine", (117.44e6 - 100e6) / (1.1 * 4200e3),
     "memory bandwidth"},
    {&h200, FP8("1"), "uniform", "gather+gemm1+act", (234.88e6 - 100e6) / (1.1 * 4200e3), "memory bandwidth"},
    /* many tokens compute at the peak of the type */
    {&h200, FP8("16384"), "uniform", ALL, 2.0 * 16384 * 8 * 3 * 7168 * 2048 / (1.1 * 1979e6), "peak"},
    /* one hot expert is all that is read */
    {&h200, TOP1, "hot:1", "gather+gemm1+act", 2.0 * 4096 * 2 * 2048 * 1024 / (1.1 * 989e6), "peak"},
    {&h200, TOP1, "uniform", "gather+gemm1+act", (107.99 * 2 * 2048 * 1024 * 2 - 100e6) / (1.1 * 4200e3),
     "memory"},
    /* quantisation reads and combine writes the tokens, perhaps from and to a cache */
    {&h200, FP8("16384"), "uniform", "quant1", 16384 * 7168 * 2 / (20 * 4200e3), "cache bandwidth"},
    {&h200, FP8("16384"), "uniform", "weight+combine", 16384 * 7168 * 2 / (20 * 4200e3), "cache bandwidth"},
    {&h200, FP8("16384"), "uniform", "quant2", 0.001, "no kernel is faster"},
    /* the caches of a CPU hold all weights of a small layer */
    {&cpu, "1,512,512,32,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0",
     "uniform", "gemm2", 2.0 * 8 * 512 * 512 / (1.1 * 400e3), "peak"},
};

static struct mf_work work_of(const char *row, const char *profile, const char *covers)
{
    struct mf_shape shape;
    struct mf_routing routing;
    struct mf_work work = {.gemm = false};
    mf_ops ops;
    ck_assert_int_eq(mf_shape_parse(row, &shape), 0);
    ck_assert_int_eq(mf_routing_parse(profile, &routing), 0);
    ck_assert_int_eq(mf_ops_parse(covers, &ops), 0);
    mf_work_add(&work, &shape, &routing, ops);
    return work;
}

MF_TEST(least_times, .rows = MF_ARRAY_LEN(cases))
{
    char why[MF_REASON_MAX];
    struct mf_work work = work_of(cases[_i].shape, cases[_i].routing, cases[_i].ops);
    double us = mf_least_us(&work, cases[_i].device, why);
    ck_assert_msg(us > 0.999 * cases[_i].us && us < 1.001 * cases[_i].us, "%g us (%s), expected %g us", us,
                  why, cases[_i].us);
    ck_assert_msg(strstr(why, cases[_i].why) != NULL, "%s", why);
}

/* A fused step has the work of its parts, and so has a pipeline. */
MF_TEST(work_adds_up)
{
    static const char *const parts[] = {"sort",   "quant1",       "gather+gemm1+act",
                                        "quant2", "gemm2+weight", "combine"};
    struct mf_work whole = work_of(FP8("64"), "uniform", ALL), sum = {.gemm = false};
    for (size_t i = 0; i < MF_ARRAY_LEN(parts); i++) {
        struct mf_work part = work_of(FP8("64"), "uniform", parts[i]);
        sum.flops += part.flops;
        sum.weight_bytes += part.weight_bytes;
        sum.token_bytes += part.token_bytes;
    }
    ck_assert_double_eq_tol(sum.flops, whole.flops, 1);
    ck_assert_double_eq_tol(sum.weight_bytes, whole.weight_bytes, 1);
    ck_assert_double_eq_tol(sum.token_bytes, whole.token_bytes, 1);
    ck_assert(whole.gemm);
    ck_assert_int_eq(whole.activations, MF_DTYPE_FP8_E4M3FN);
}

int main(void)
{
    return mf_check_main(NULL);
}
