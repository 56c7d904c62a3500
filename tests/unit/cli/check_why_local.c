/* moefarm why --local: tests which kernels this machine or a simulated device offers, and why others are
 * rejected. No coordinator runs. */
#include "common/base/cleanup.h"
#include "kernels/core/device.h"
#include "support/mf_check.h"
#include "support/run_moefarm.h"

#define SIZES "token=4,model_dim=2048,inter_dim=96,expert=128,topk=8"
#define ROW                                                                                                 \
    "4,2048,96,128,8,ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fn,torch.float8_e4m3fn,QuantType." \
    "per_Token,1,0"

static const struct {
    const char *shape, *kernel, *option, *value;
    int code;
    const char *out, *err;
    const char *without_avx512; /* output if the machine lacks AVX-512; NULL if the output is the same */
} cases[] = {
    {SIZES, NULL, NULL, NULL, 0, "T4 H2048 I96 E128 k8 bf16\n", "", NULL},
    {SIZES, NULL, NULL, NULL, 0,
     "two_stage:s1_n64: inter_dim 96 is not a multiple of block_n 64 (remainder 32) (divisibility)\n", "",
     NULL},
    {SIZES, NULL, NULL, NULL, 0, "legal steps: move ", "", NULL},
    {SIZES, "move:combine_z_t*", NULL, NULL, 0, "move:combine_z_t1 covers weight+combine: legal\n", "", NULL},
    {SIZES ",form=gate_up:tiled", "s1_*", NULL, NULL, 0, "gate and up of w1 are stored tiled", "", NULL},
    {SIZES ",form=ep:0/256", "asm", NULL, NULL, 0,
     "asm:asm: the shape has the local experts 0 to 127 of 256; asm does not support expert "
     "parallelism",
     "", NULL},
    {ROW, "lib", NULL, NULL, 0,
     "dequant_w1 as a prologue of gemm1 would run while rows of 2048 values are loaded", "",
     "bf16 in oneDNN 2.6 needs AVX-512 (isa)"},
    {ROW, "onednn", "--json", NULL, 0, "\"rule\":\t\"prologue\"", "", "\"rule\":\t\"isa\""},
    {ROW, NULL, "--families", "onednn", 0, "legal steps: none\n", "", NULL},
    {SIZES, NULL, "--families", "tile", 0, "\nlegal steps: two_stage ", "", NULL},
    {SIZES, "tile:s1_n64", NULL, NULL, 0, "two_stage:s1_n64: inter_dim 96", "", NULL},
    {SIZES, "two_stage:s1_n64", NULL, NULL, 0, "two_stage:s1_n64: inter_dim 96", "", NULL},
    {SIZES, "nothing", NULL, NULL, 2, "", "no kernel matches 'nothing'; leave the name out", NULL},
    {SIZES, "two_stag", NULL, NULL, 2, "", "no kernel matches 'two_stag'; did you mean 'two_stage'?", NULL},
    {SIZES, "two_stage:s1_x64", NULL, NULL, 2, "", "did you mean 'two_stage:s1_", NULL},
    {SIZES, NULL, "--device", "sim:gfx942/304:0", 0, "gfx942/304  T4 H2048", "", NULL},
    {SIZES, NULL, "--device", "tpu:0", 2, "", "--device: ", NULL},
    {"token=4,model_dim=2048", NULL, NULL, NULL, 2, "", "inter_dim is missing in 'token=4,model_dim=2048'",
     NULL},
    {"token=four", NULL, NULL, NULL, 2, "", "token 'four': expected", NULL},
    {SIZES ",topk=8,expert=4", NULL, NULL, NULL, 2, "", "topk: expected at most the number of experts", NULL},
};

MF_TEST(why_local, .rows = MF_ARRAY_LEN(cases))
{
    const char *words[4] = {NULL};
    size_t n = 0;
    if (cases[_i].kernel)
        words[n++] = cases[_i].kernel;
    if (cases[_i].option)
        words[n++] = cases[_i].option;
    if (cases[_i].value)
        words[n++] = cases[_i].value;
    struct ran r = moefarm("", "why", "--local", cases[_i].shape, words[0], words[1], words[2], NULL);
    assert_code(r, cases[_i].code);
    assert_says(r.out, cases[_i].without_avx512 && mf_isa_best() != MF_ISA_AVX512 ? cases[_i].without_avx512
                                                                                  : cases[_i].out);
    assert_says(r.err, cases[_i].err);
}

int main(void)
{
    return mf_check_main(
        &(struct mf_test_group){.timeout_s = 120, .setup = make_folder, .teardown = remove_folder});
}
