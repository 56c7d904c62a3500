#include "common/moe/consumer.h"

#include <string.h>

#include "common/base/cleanup.h"
#include "support/mf_check.h"

#define GEMM1 MF_OP_BIT(MF_OP_GEMM1)
#define GEMM2 MF_OP_BIT(MF_OP_GEMM2)
#define PART                                     \
    {                                            \
        "two_stage", "bm64", GEMM1, false, false \
    }
#define ASM                                              \
    {                                                    \
        "aiter", "fmoe_g1u1", GEMM1 | GEMM2, true, false \
    }
#define PY                                              \
    {                                                   \
        "aiter", "fmoe_g1u1", GEMM1 | GEMM2, true, true \
    }
#define VLLM                                             \
    {                                                    \
        "vllm", "triton_m64", GEMM1 | GEMM2, false, true \
    }
#define SGL                                                \
    {                                                      \
        "sglang", "triton_m64", GEMM1 | GEMM2, false, true \
    }

/* clang-format off */
static const struct {
    enum mf_consumer consumer;
    struct mf_consumer_step steps[2];
    size_t n;
    const char *why; /* part of the reason; NULL: dispatched */
} pipelines[] = {
    {MF_CONSUMER_MOEFARM, {PART},        1, NULL},
    {MF_CONSUMER_MOEFARM, {PART, ASM},   2, NULL}, /* a simulated device */
    {MF_CONSUMER_MOEFARM, {PY},          1, "libfmoe does not dispatch aiter:fmoe_g1u1"},
    {MF_CONSUMER_MOEFARM, {PART, VLLM},  2, "libfmoe does not dispatch vllm:triton_m64"},
    {MF_CONSUMER_AITER,   {ASM},         1, NULL},
    {MF_CONSUMER_AITER,   {PY, ASM},     2, NULL},
    {MF_CONSUMER_AITER,   {ASM, PART},   2, "AITER does not dispatch two_stage:bm64"},
    {MF_CONSUMER_AITER,   {VLLM},        1, "AITER does not dispatch vllm:triton_m64"},
    {MF_CONSUMER_VLLM,    {VLLM},        1, NULL},
    {MF_CONSUMER_VLLM,    {SGL},         1, "vLLM dispatches steps of family vllm only; this is sglang:"},
    {MF_CONSUMER_VLLM,    {VLLM, VLLM},  2, "one step for the whole layer; this pipeline has 2"},
    {MF_CONSUMER_VLLM,    {{"vllm", "half", GEMM1, false, true}}, 1, "vllm:half is a part of a layer"},
    {MF_CONSUMER_SGLANG,  {SGL},         1, NULL},
    {MF_CONSUMER_SGLANG,  {PART},        1, "SGLang dispatches steps of family sglang only"},
    {MF_CONSUMER_ANY,     {PART, VLLM},  2, NULL},
};
/* clang-format on */

MF_TEST(pipelines_of_consumers, .rows = MF_ARRAY_LEN(pipelines))
{
    char why[MF_CONSUMER_WHY_MAX] = "";
    bool takes =
        mf_consumer_takes_pipeline(pipelines[_i].consumer, pipelines[_i].steps, pipelines[_i].n, why);
    ck_assert_msg(takes == !pipelines[_i].why, "%s", why);
    ck_assert_msg(takes || strstr(why, pipelines[_i].why), "%s", why);
}

#define SHAPE(act, q)                                                                                    \
    "64,4096,1024,16,4,ActivationType." act ",torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType." q \
    ",1,0"

static const struct {
    enum mf_consumer consumer;
    const char *row;
    const char *why;
} shapes[] = {
    {MF_CONSUMER_AITER, SHAPE("Silu", "No"), NULL},
    {MF_CONSUMER_AITER, SHAPE("Relu2", "No"), "AITER's table format cannot express form '', "},
    {MF_CONSUMER_MOEFARM, SHAPE("Relu2", "No"), NULL},
    {MF_CONSUMER_ANY, SHAPE("Relu2", "No"), NULL},
};

MF_TEST(shapes_of_consumers, .rows = MF_ARRAY_LEN(shapes))
{
    struct mf_shape shape;
    char why[MF_CONSUMER_WHY_MAX] = "";
    ck_assert_int_eq(mf_shape_parse(shapes[_i].row, &shape), 0);
    ck_assert_int_eq(mf_consumer_takes_shape(shapes[_i].consumer, &shape, why), !shapes[_i].why);
    ck_assert_msg(!shapes[_i].why || strstr(why, shapes[_i].why), "%s", why);
}

MF_TEST(errors_of_consumers)
{
    char why[MF_CONSUMER_WHY_MAX] = "";
    ck_assert(mf_consumer_takes_error(MF_CONSUMER_AITER, 0.2, why));
    ck_assert(!mf_consumer_takes_error(MF_CONSUMER_AITER, 0.25, why));
    ck_assert_str_eq(why, "the mismatch ratio 25.0% exceeds 20%, the limit of AITER's table check");
    ck_assert(mf_consumer_takes_error(MF_CONSUMER_MOEFARM, 0.25, why));
}

/* The step that a consumer runs without a table. */
MF_TEST(default_of_consumers)
{
    static const struct {
        const char *family, *name;
        enum mf_consumer of; /* MF_CONSUMER_N_: of none */
    } cases[] = {{"vllm", "default", MF_CONSUMER_VLLM},
                 {"sglang", "default", MF_CONSUMER_SGLANG},
                 {"vllm", "triton_m64", MF_CONSUMER_N_},
                 {"mine", "default", MF_CONSUMER_N_}};
    for (size_t i = 0; i < MF_ARRAY_LEN(cases); i++) {
        const struct mf_consumer_step step = {cases[i].family, cases[i].name, GEMM1 | GEMM2, false, true};
        for (enum mf_consumer c = 0; c < MF_CONSUMER_N_; c++)
            ck_assert(mf_consumer_default(c, &step) == (c == cases[i].of));
        ck_assert(mf_consumer_any_default(&step) == (cases[i].of != MF_CONSUMER_N_));
    }
}

MF_TEST(tables_of_consumers)
{
    for (enum mf_consumer c = 0; c < MF_CONSUMER_N_; c++)
        ck_assert_int_eq(mf_consumer_has_table(c), c != MF_CONSUMER_ANY);
}

int main(void)
{
    return mf_check_main(NULL);
}
