#include "server/choose/shape_distance.h"

#include "support/mf_check.h"

#include "common/base/text.h"

#include <math.h>

#define BF16 "ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0"
#define FP8 \
    "ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fn,torch.float8_e4m3fn,QuantType.per_Token,1,0"

static const struct {
    const char *a, *b;
    double distance;
} cases[] = {
    {"4,2048,96,128,8," BF16, "4,2048,96,128,8," BF16, 0},
    {"4,2048,96,128,8," BF16, "16,2048,96,128,8," BF16, 2},
    {"4,2048,96,128,8," BF16, "4,4096,96,64,8," BF16, 4},
    {"4,2048,96,128,8," BF16, "4,2048,96,128,8," FP8, INFINITY},
    {"4,2048,96,128,8," BF16, "4,2048,96,128,8," BF16 ",limit:10", INFINITY},
};

MF_TEST(shapes_are_compared, .rows = MF_ARRAY_LEN(cases))
{
    struct mf_shape a, b;
    ck_assert_int_eq(mf_shape_parse(cases[_i].a, &a), 0);
    ck_assert_int_eq(mf_shape_parse(cases[_i].b, &b), 0);
    ck_assert_double_eq(mf_shape_distance(&a, &b), cases[_i].distance);
    ck_assert_double_eq(mf_shape_distance(&b, &a), cases[_i].distance);
}

int main(void)
{
    return mf_check_main(NULL);
}
