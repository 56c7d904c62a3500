#include "common/moe/family_name.h"

#include "support/mf_check.h"

static const struct {
    const char *name, *current, *old;
} names[] = {
    {"tile", "two_stage", "tile"},
    {"mx", "two_stage_mx", "mx"},
    {"wint4", "two_stage_int4", "wint4"},
    {"pair", "two_stage_single_launch", "pair"},
    {"one", "one_stage", "one"},
    {"layer", "whole_layer_persistent", "layer"},
    {"lib", "onednn", "lib"},
    {"two_stage", "two_stage", "tile"},
    {"move", "move", NULL},
    {"", "", NULL},
};

MF_TEST(renamed_families, .rows = (sizeof(names) / sizeof(names[0])))
{
    ck_assert_str_eq(mf_family_current_name(names[_i].name), names[_i].current);
    ck_assert_pstr_eq(mf_family_old_name(names[_i].name), names[_i].old);
}

static const struct {
    const char *list, *name;
    bool is_listed;
} lists[] = {
    {NULL, "two_stage", true},
    {"", "two_stage", false},
    {"move,two_stage", "two_stage", true},
    {"move,tile", "two_stage", true},
    {"two_stage", "tile", true},
    {"tile,move", "move", true},
    {"tile", "two_stage_mx", false},
    {"two_stage_mx,til,tiles", "two_stage", false},
    {",,odd", "odd", true},
};

MF_TEST(listed, .rows = (sizeof(lists) / sizeof(lists[0])))
{
    ck_assert_int_eq(mf_family_is_listed(lists[_i].list, lists[_i].name), lists[_i].is_listed);
}

int main(void)
{
    return mf_check_main(NULL);
}
