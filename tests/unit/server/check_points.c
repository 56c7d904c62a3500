#include "server/choose/points.h"

#include "support/mf_check.h"

#include "common/base/cleanup.h"
#include "common/base/text.h"

#include <stdlib.h>

#define NAMES_MAX 4

static const struct {
    const char *names[NAMES_MAX];
    int n_dimensions;
    int steps; /* from the first to the second name */
} cases[] = {
    {{"triton_m16_n32", "triton_m16_n32"}, 0, 0},
    {{"triton_m16_n32", "triton_m64_n32", "triton_m32_n32"}, 1, 2},
    {{"triton_m16_n32", "triton_m64_n64", "triton_m256_n64"}, 2, 2},
    {{"m16", "m16_tma"}, 1, 1},
    {{"m16-down_m16", "m16-down_m64", "m16-down_m32"}, 1, 2}, /* the second m is another parameter */
    {{"m16", "m16-down_m64", "m16-down_m32"}, 2, 2},          /* absent: one step from every value */
    {{"ps_32x256E", "ps_64x128E"}, 2, 2},
    {{"a99999999999999999999", "a1000000000"}, 0, 0}, /* larger numbers are equal */
    {{"", "x1", "-"}, 1, 1},
};

MF_TEST(names_become_points, .rows = MF_ARRAY_LEN(cases))
{
    _cleanup_(mf_freep) struct mf_points *p = NULL;
    size_t n = 0;
    while (n < NAMES_MAX && cases[_i].names[n])
        n++;
    ck_assert_int_eq(mf_points_new(cases[_i].names, n, &p), 0);
    ck_assert_uint_eq(p->n, n);
    ck_assert_int_eq(p->n_dimensions, cases[_i].n_dimensions);
    ck_assert_int_eq(mf_points_steps(p, 0, 1), cases[_i].steps);
    ck_assert_int_eq(mf_points_steps(p, 1, 0), cases[_i].steps);
}

/* A scaled distance is at most 1 for each dimension. */
MF_TEST(distances_are_scaled)
{
    static const char *const names[] = {"m16_w4", "m256_w8", "m32_w4", "m64_w4"};
    _cleanup_(mf_freep) struct mf_points *p = NULL;
    ck_assert_int_eq(mf_points_new(names, MF_ARRAY_LEN(names), &p), 0);
    ck_assert_double_eq(mf_points_distance(p, 0, 1), 2);
    ck_assert_double_eq_tol(mf_points_distance(p, 0, 2), 1.0 / 3, 1e-12);
    ck_assert_int_eq(mf_points_steps(p, 0, 1), 4);
}

/* Parameters beyond the limit are ignored. */
MF_TEST(many_parameters_are_bounded)
{
    char names[2][600];
    const char *list[2] = {names[0], names[1]};
    for (int i = 0; i < 2; i++) {
        char *at = names[i], *end = at + sizeof(names[i]) - 1;
        for (int d = 0; d < 100; d++) {
            char part[16];
            mf_format(part, sizeof(part), "_%c%c%d", 'a' + d % 26, 'a' + d / 26, i);
            at = mf_append(at, end, part);
        }
    }
    _cleanup_(mf_freep) struct mf_points *p = NULL;
    ck_assert_int_eq(mf_points_new(list, 2, &p), 0);
    ck_assert_int_eq(p->n_dimensions, MF_POINTS_DIMENSIONS_MAX);
}

int main(void)
{
    return mf_check_main(NULL);
}
