#include "common/moe/device_class.h"

#include <errno.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/moe/status.h"
#include "support/mf_check.h"

/* clang-format off */
static const struct {
    const char *text, *gfx;     /* gfx is NULL if the text is rejected */
    int cu_num;
} classes[] = {
    {"gfx942/304", "gfx942", 304}, {"cpu-znver4/2", "cpu-znver4", 2}, {"sm_90/132", "sm_90", 132},
    {"a/1", "a", 1}, {"sim.x-1/1000000", "sim.x-1", 1000000},
    /* gfx has 31 characters */
    {"abcdefghijklmnopqrstuvwxyz01234/7", "abcdefghijklmnopqrstuvwxyz01234", 7},
    {"abcdefghijklmnopqrstuvwxyz012345/7", NULL, 0},
    {"", NULL, 0}, {"/", NULL, 0}, {"gfx942", NULL, 0}, {"gfx942/", NULL, 0}, {"/304", NULL, 0},
    {"gfx942/0", NULL, 0}, {"gfx942/-1", NULL, 0}, {"gfx942/+1", NULL, 0}, {"gfx942/1000001", NULL, 0},
    {"gfx942/304/", NULL, 0}, {"gfx942/304 ", NULL, 0}, {" gfx942/304", NULL, 0},
    {"-gfx942/304", NULL, 0}, {".gfx942/304", NULL, 0}, {"GFX942/304", NULL, 0},
    {"gfx 942/304", NULL, 0}, {"gfx942/30x", NULL, 0}, {"gfx942//304", NULL, 0},
};

static const struct {
    int cu_num;
    const char *gfx;
} known[] = {
    {256, "gfx950"}, {80, "gfx942"}, {304, "gfx942"}, {0, NULL}, {-1, NULL}, {228, NULL}, {132, NULL},
};
/* clang-format on */

MF_TEST(class_round_trips, .rows = MF_ARRAY_LEN(classes))
{
    struct mf_device_class c = {"before", 77};
    char text[MF_DEVICE_CLASS_TEXT_MAX];
    ck_assert_int_eq(mf_device_class_parse(classes[_i].text, &c), classes[_i].gfx ? 0 : -EINVAL);
    if (!classes[_i].gfx) {
        ck_assert_str_eq(c.gfx, "before");
        ck_assert_int_eq(c.cu_num, 77);
        return;
    }
    ck_assert_str_eq(c.gfx, classes[_i].gfx);
    ck_assert_int_eq(c.cu_num, classes[_i].cu_num);
    mf_device_class_print(&c, text);
    ck_assert_str_eq(text, classes[_i].text);
}

MF_TEST(equality_compares_gfx_and_cu_num)
{
    struct mf_device_class a = {"gfx942", 304}, b = {"gfx942", 80}, c = {"gfx950", 304};
    ck_assert(mf_device_class_equal(&a, &a));
    ck_assert(!mf_device_class_equal(&a, &b));
    ck_assert(!mf_device_class_equal(&a, &c));
}

MF_TEST(gfx_from_cu_num, .rows = MF_ARRAY_LEN(known))
{
    ck_assert_pstr_eq(mf_gfx_of_cu_num(known[_i].cu_num), known[_i].gfx);
}

/* The test covers only one enum, because the macros of common/base/names.h generate the same code for every
 * enum. */
MF_TEST(names_round_trip)
{
    for (int i = 0; i < MF_STATUS_N_; i++) {
        enum mf_status back = MF_STATUS_N_;
        ck_assert_int_eq(mf_status_parse(mf_status_name((enum mf_status)i), &back), 0);
        ck_assert_int_eq(back, i);
    }
    static const char *const invalid_names[] = {"", "OK", "ok ", "o", "?", NULL};
    for (size_t i = 0; i < MF_ARRAY_LEN(invalid_names); i++) {
        enum mf_status status = MF_STATUS_HANG;
        ck_assert_int_eq(mf_status_parse(invalid_names[i], &status), -EINVAL);
        ck_assert_int_eq(status, MF_STATUS_HANG);
    }
    ck_assert_str_eq(mf_status_name(MF_STATUS_N_), "?");
}

int main(void)
{
    return mf_check_main(NULL);
}
