/* Known answers of the Random123 distribution (kat_vectors, philox4x32 10). */
#include "kernels/core/philox.h"
#include "support/mf_check.h"

static const struct {
    uint64_t key, low, high;
    uint32_t v[4];
} answers[] = {
    {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {0x299f31d0a4093822,
     0x85a308d3243f6a88,
     0x0370734413198a2e,
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

MF_TEST(known_answer, .rows = MF_ARRAY_LEN(answers))
{
    struct mf_philox4 v = mf_philox(answers[_i].key, answers[_i].low, answers[_i].high);
    for (int i = 0; i < 4; i++)
        ck_assert_uint_eq(v.v[i], answers[_i].v[i]);
}

int main(void)
{
    return mf_check_main(NULL);
}
