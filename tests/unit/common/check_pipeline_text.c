/* common/moe/pipeline_text.c: iterating over, splitting and composing the text of a pipeline. */
#include "common/moe/pipeline_text.h"

#include <errno.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "support/mf_check.h"

static const struct {
    const char *text, *names[4];
} iterations[] = {
    {"one:a", {"one:a"}},
    {"one:a|two:b|c", {"one:a", "two:b", "c"}},
    {"", {""}}, /* an invalid name, which mf_step_name_split rejects */
    {"one:a|", {"one:a", ""}},
    {"|one:a", {"", "one:a"}},
};

MF_TEST(iterate, .rows = MF_ARRAY_LEN(iterations))
{
    const char *at = iterations[_i].text, *name;
    size_t len;
    int n = 0;

    for (; mf_pipeline_text_next(&at, &name, &len); n++) {
        ck_assert_ptr_nonnull(iterations[_i].names[n]);
        ck_assert_uint_eq(len, strlen(iterations[_i].names[n]));
        ck_assert_mem_eq(name, iterations[_i].names[n], len);
    }
    ck_assert_ptr_null(iterations[_i].names[n]);
    ck_assert(!mf_pipeline_text_next(&at, &name, &len));
}

#define LONGEST_FAMILY "0123456789012345678901234567890"
#define FORTY          "a123456789b123456789c123456789d123456789"
#define LONGEST        FORTY FORTY FORTY "a123456789b123456789c123456789d12345678"

static const struct {
    const char *name;
    int r;
    const char *family, *step;
} splits[] = {
    {"one:a", 0, "one", "a"},
    {"one:a:b", 0, "one", "a:b"},
    {"one:", 0, "one", ""},
    {":a", 0, "", "a"},
    {"one", -EINVAL, NULL, NULL},
    {"", -EINVAL, NULL, NULL},
    {LONGEST_FAMILY ":" LONGEST, 0, LONGEST_FAMILY, LONGEST},
    {LONGEST_FAMILY "1:a", -ENAMETOOLONG, NULL, NULL},
    {"one:" LONGEST "9", -ENAMETOOLONG, NULL, NULL},
};

MF_TEST(split, .rows = MF_ARRAY_LEN(splits))
{
    char text[256], family[MF_FAMILY_NAME_MAX], step[MF_STEP_NAME_MAX];
    size_t len = strlen(splits[_i].name);

    mf_format(text, sizeof(text), "%s|two:b", splits[_i].name); /* text after len is ignored */
    ck_assert_int_eq(mf_step_name_split(text, len, family, step), splits[_i].r);
    if (splits[_i].r < 0)
        return;
    ck_assert_str_eq(family, splits[_i].family);
    ck_assert_str_eq(step, splits[_i].step);
}

MF_TEST(add_steps)
{
    char text[12] = "";

    ck_assert_int_eq(mf_pipeline_text_add(text, sizeof(text), "one", "a"), 0);
    ck_assert_str_eq(text, "one:a");
    ck_assert_int_eq(mf_pipeline_text_add(text, sizeof(text), "two", "bc"), -ENAMETOOLONG);
    ck_assert_str_eq(text, "one:a");
    ck_assert_int_eq(mf_pipeline_text_add(text, sizeof(text), "two", "b"), 0);
    ck_assert_str_eq(text, "one:a|two:b");
    ck_assert_int_eq(mf_pipeline_text_add(text, sizeof(text), "", ""), -ENAMETOOLONG);
}

static const struct {
    const char *text, *current;
} renamed[] = {
    {"move:sort_m16|tile:s1|pair:tile|lib:d:x",
     "move:sort_m16|two_stage:s1|two_stage_single_launch:tile|onednn:d:x"},
    {"two_stage:a", "two_stage:a"},
    {"python:one", "python:one"},
    {"tile|one:b|", "tile|one_stage:b|"},
    {"|mx:", "|two_stage_mx:"},
    {"", ""},
};

MF_TEST(current_names, .rows = MF_ARRAY_LEN(renamed))
{
    char text[256];

    ck_assert_int_eq(mf_pipeline_text_current(renamed[_i].text, text, sizeof(text)), 0);
    ck_assert_str_eq(text, renamed[_i].current);
    ck_assert(mf_pipeline_text_equal(renamed[_i].text, text));
    ck_assert(mf_pipeline_text_equal(text, renamed[_i].text));
    ck_assert_int_eq(mf_pipeline_text_current(renamed[_i].text, text, strlen(text)), -ENAMETOOLONG);
}

MF_TEST(unequal_texts)
{
    static const char *const texts[] = {"", "tile", "tile:a", "tile:b", "mx:a", "tile:a|tile:b", "tile:a|"};

    for (size_t i = 0; i < MF_ARRAY_LEN(texts); i++) {
        for (size_t k = 0; k < MF_ARRAY_LEN(texts); k++)
            ck_assert_int_eq(mf_pipeline_text_equal(texts[i], texts[k]), i == k);
    }
}

static const struct {
    const char *text, *json;
} lists[] = {
    {"one:a", "[\"one:a\"]"},
    {"one:a|two:b|c", "[\"one:a\",\"two:b\",\"c\"]"},
    {"", "[]"},
};

MF_TEST(json_array, .rows = MF_ARRAY_LEN(lists))
{
    cJSON *list = mf_pipeline_text_json(lists[_i].text);
    _cleanup_(mf_freep) char *text = cJSON_PrintUnformatted(list);

    ck_assert_str_eq(text, lists[_i].json);
    cJSON_Delete(list);
}

int main(void)
{
    return mf_check_main(NULL);
}
