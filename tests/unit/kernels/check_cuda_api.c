/* Compares kernels/gpu/host/cuda_api.h with the CUDA Toolkit's cuda.h. */
#include "kernels/gpu/host/cuda_api.h"

#include "support/kernels/cuda_facts.h"
#include "support/mf_check.h"

/* clang-format off */
static const struct cuda_fact facts[] = {CUDA_FACTS(CUDA_FACT)};
/* clang-format on */

MF_TEST(matches_the_toolkit)
{
    if (n_cuda_toolkit_facts == 0) {
        mf_check_skip("cuda.h is missing (NVIDIA's CUDA Toolkit)");
        return;
    }
    ck_assert_uint_eq(n_cuda_toolkit_facts, MF_ARRAY_LEN(facts));
    for (size_t i = 0; i < MF_ARRAY_LEN(facts); i++)
        ck_assert_msg(facts[i].value == cuda_toolkit_facts[i].value, "%s: %zu here, %zu in the toolkit",
                      facts[i].text, facts[i].value, cuda_toolkit_facts[i].value);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){0});
}
