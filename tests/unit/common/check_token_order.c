#include "common/moe/token_order.h"

#include <math.h>
#include <string.h>

#include "common/base/text.h"
#include "support/mf_check.h"

/* clang-format off */
static const struct {
    struct mf_rung rung;
    struct mf_rung others[3];
    int64_t breach; /* token count of the rung that shows the breach; 0: in order */
} cases[] = {
    /* the times of a busy host: T = 16 was disturbed by a factor of 2.4 */
    {{16, 3628, 40}, {{8, 1100, 10}, {32, 2206, 20}, {64, 2900, 30}}, 32},
    {{16, 1519, 40}, {{8, 1100, 10}, {32, 2206, 20}, {64, 2900, 30}}, 0},
    /* the fastest of several is named */
    {{1, 900, 1}, {{2, 700, 1}, {4, 500, 1}, {8, 600, 1}}, 4},
    /* fewer or as many tokens are no evidence */
    {{64, 900, 1}, {{32, 100, 1}, {64, 100, 1}, {16, 1, 1}}, 0},
    /* 5 % is no breach, 6 % is one */
    {{1, 105, 0}, {{2, 100, 0}}, 0},
    {{1, 106, 0}, {{2, 100, 0}}, 2},
    /* the noise of both is added: 3 * (2 + 3) */
    {{1, 120, 2}, {{2, 100, 3}}, 0},
    {{1, 121, 2}, {{2, 100, 3}}, 2},
    /* without a deviation the noise is 5 % of each time */
    {{1, 115, NAN}, {{2, 100, NAN}}, 0},
    {{1, 117, NAN}, {{2, 100, NAN}}, 2},
    /* a time of 0 means not measured */
    {{1, 100, 0}, {{2, 0, 0}}, 0},
    {{1, 0, 0}, {{2, 50, 0}}, 0},
};
/* clang-format on */

MF_TEST(finds_breach, .rows = MF_ARRAY_LEN(cases))
{
    const struct mf_rung *b =
        mf_token_order_breach(&cases[_i].rung, cases[_i].others, MF_ARRAY_LEN(cases[_i].others));
    ck_assert_int_eq(b ? b->token : 0, cases[_i].breach);
}

MF_TEST(lone_rung_is_in_order)
{
    ck_assert_ptr_null(mf_token_order_breach(&cases[0].rung, NULL, 0));
}

MF_TEST(sentence_has_both_times)
{
    char why[MF_REASON_MAX];
    mf_token_order_explain(&cases[0].rung, &cases[0].others[1], why);
    ck_assert_str_eq(why, "3628 us for 16 tokens but 2206 us for 32 tokens of this layer (39% less): more "
                          "tokens cannot be faster");
}

int main(void)
{
    return mf_check_main(NULL);
}
