#include <string.h>

#include "common/cleanup.h"
#include "kernels/layout.h"
#include "mf_check.h"

static const struct {
    const char *layout;
    int bytes;
    size_t N, K;
    bool legal;
} cases[] = {
    {"row", 2, 3, 5, true},       {"panel16", 2, 32, 6, true},  {"panel16", 1, 48, 12, true},
    {"panel32", 2, 64, 34, true}, {"panel32", 1, 32, 4, true},  {"panel16", 2, 24, 6, false},
    {"panel16", 2, 16, 7, false}, {"panel16", 1, 16, 6, false}, {"panel32", 2, 48, 6, false},
};

/* pack() is index() for every element, and index() is a permutation. */
START_TEST(pack_follows_index)
{
    const struct mf_layout *l = mf_layout_find(cases[_i].layout);
    size_t N = cases[_i].N, K = cases[_i].K, n = N * K, bytes = (size_t)cases[_i].bytes;
    ck_assert_ptr_nonnull(l);
    ck_assert_int_eq(mf_layout_legal(l, 8 * cases[_i].bytes, N, K), cases[_i].legal);
    if (!cases[_i].legal)
        return;
    _cleanup_(mf_freep) uint8_t *from = malloc(n * bytes), *to = calloc(n, bytes), *seen = calloc(n, 1);
    for (size_t i = 0; i < n * bytes; i++)
        from[i] = (uint8_t)(i * 37 + i / 251);
    mf_layout_pack(l, 8 * cases[_i].bytes, N, K, from, to);
    for (size_t r = 0; r < N; r++) {
        for (size_t k = 0; k < K; k++) {
            size_t at = mf_layout_index(l, 8 * cases[_i].bytes, N, K, r, k);
            ck_assert_uint_lt(at, n);
            ck_assert_int_eq(seen[at]++, 0);
            ck_assert_int_eq(memcmp(to + at * bytes, from + (r * K + k) * bytes, bytes), 0);
        }
    }
}
END_TEST

/* [N/16][K/2][16][2] of bf16: two of K together, then sixteen rows. */
START_TEST(panel16_is_as_documented)
{
    const struct mf_layout *l = mf_layout_find("panel16");
    ck_assert_uint_eq(mf_layout_index(l, 16, 32, 8, 0, 1), 1);
    ck_assert_uint_eq(mf_layout_index(l, 16, 32, 8, 1, 0), 2);
    ck_assert_uint_eq(mf_layout_index(l, 16, 32, 8, 0, 2), 32);
    ck_assert_uint_eq(mf_layout_index(l, 16, 32, 8, 16, 0), 128);
    ck_assert_uint_eq(mf_layout_index(l, 8, 32, 8, 1, 0), 4);
    ck_assert_uint_eq(mf_layout_index(l, 8, 32, 8, 0, 4), 64);
    ck_assert_uint_eq(mf_layout_index(l, 4, 32, 16, 1, 0), 8);
    ck_assert_uint_eq(mf_layout_index(l, 4, 32, 16, 0, 8), 128);
}
END_TEST

START_TEST(unknown_layout)
{
    ck_assert_ptr_null(mf_layout_find("panel17"));
    ck_assert_ptr_null(mf_layout_find(""));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("layout");
    TCase *t = tcase_create("layout");
    tcase_add_loop_test(t, pack_follows_index, 0, MF_ARRAY_LEN(cases));
    tcase_add_test(t, panel16_is_as_documented);
    tcase_add_test(t, unknown_layout);
    suite_add_tcase(s, t);
    return mf_check_main(s);
}
