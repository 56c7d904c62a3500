#include "common/moe/timeouts.h"

#include "support/mf_check.h"

#include "common/base/cleanup.h"

#define BF16 ",ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0"
#define S    INT64_C(1000)

/* Shapes with known times on two cores, and extreme shapes. */
static const struct {
    const char *row;
    long cores;
    int64_t least_ms, most_ms;
} rows[] = {
    {"1,64,32,4,2" BF16, 2, 0, S},
    {"8192,4096,1536,8,8" BF16, 2, 300 * S, 1200 * S}, /* took 96 s on a loaded machine */
    {"8192,7168,2048,8,8" BF16, 2, 900 * S, 3600 * S}, /* takes more than two minutes */
    {"8192,7168,2048,8,8" BF16, 64, 20 * S, 120 * S},
    {"1,7168,2048,256,8" BF16, 2, 600 * S, 3600 * S}, /* one token: mostly the time of the weights */
    {"131072,7168,2048,256,8" BF16, 1, 7200 * S, 7200 * S},
    {"8192,7168,2048,8,8" BF16, -1, 900 * S, 7200 * S}, /* number of cores unknown */
};

MF_TEST(timeout_is_in_range, .rows = MF_ARRAY_LEN(rows))
{
    struct mf_shape shape;
    ck_assert_int_eq(mf_shape_parse(rows[_i].row, &shape), 0);
    int64_t ms = mf_data_timeout_ms(&shape, rows[_i].cores);
    ck_assert_msg(ms >= rows[_i].least_ms && ms <= rows[_i].most_ms, "%s: %lld ms", rows[_i].row,
                  (long long)ms);
}

int main(void)
{
    return mf_check_main(NULL);
}
