/* common/moe/batch_options.c: the table of batch options. Tests texts, defaults, JSON, help, and the table in
 * docs/api.md. */
#include "common/moe/batch_options.h"

#include "support/mf_check.h"

#include "common/base/json.h"
#include "common/base/text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Valid texts. `stored` is the value of the option in the JSON of a batch that has only this option, or NULL
 * if the JSON does not contain the option. */
static const struct {
    const char *name, *text, *stored;
} good[] = {
    {"classes", "", "[]"},
    {"classes", "gfx942/304,cpu-znver4/2,gfx942/304", "[\"gfx942/304\",\"cpu-znver4/2\"]"},
    {"classes", "a/1,a/2,a/3,a/4,a/5,a/6,a/7,a/8,a/9,a/10,a/11,a/12,a/13,a/14,a/15,a/16",
     "[\"a/1\",\"a/2\",\"a/3\",\"a/4\",\"a/5\",\"a/6\",\"a/7\",\"a/8\",\"a/9\",\"a/10\",\"a/11\",\"a/12\","
     "\"a/13\",\"a/14\",\"a/15\",\"a/16\"]"},
    {"priority", "0", "0"},
    {"priority", "100", "100"},
    {"topk", "1", "1"},
    {"topk", "64", "64"},
    {"err_ratio", "0", "0"},
    {"err_ratio", "1", "1"},
    {"err_ratio", "5e-2", "0.05"},
    {"time_cap_ms", "100", "100"},
    {"time_cap_ms", "600000", "600000"},
    {"routing", "balanced", "\"balanced\""},
    {"routing", "zipf:1.2", "\"zipf:1.2\""},
    {"routing", "hot:0.5", "\"hot:0.5\""},
    {"routing", "recorded:3.0.131070.65535", "\"recorded:1.0.65535.32767\""},
    {"routing", "router:softmax+shared", "\"router:softmax+shared\""},
    {"search", "race", "\"race\""},
    {"search", "exhaustive", "\"exhaustive\""},
    {"search", "enumerate", "\"enumerate\""},
    {"layout", "common", "\"common\""},
    {"layout", "free", "\"free\""},
    {"layout", "w1=panel16 w2=row", "\"w1=panel16 w2=row\""},
    {"consumer", "moefarm", "[\"moefarm\"]"},
    {"consumer", "aiter,vllm,aiter", "[\"aiter\",\"vllm\"]"},
    {"consumer", "sglang,any", "[\"sglang\",\"any\"]"},
    {"promote", "always", "\"always\""},
    {"promote", "improved", "\"improved\""},
    {"min_effect", "0", "0"},
    {"min_effect", "0.999", "0.999"},
    {"seed", "0", "0"},
    {"seed", "9007199254740991", "9007199254740991"},
    {"regret", "", "[]"},
    {"regret", "none", "[]"},
    {"regret", "uniform,balanced,zipf:1,hot:1", "[\"uniform\",\"balanced\",\"zipf:1\",\"hot:1\"]"},
    {"fuse_saves", "0", NULL},
    {"fuse_saves", "65536.5", "65536.5"},
    {"fuse_saves", "1e15", "1e+15"},
    {"warmup", "0", NULL},
    {"warmup", "1000", "1000"},
    {"iters", "5", "5"},
    {"iters", "4000", "4000"},
    {"split_k", "1", NULL},
    {"split_k", "true", NULL},
    {"split_k", "false", "0"},
    {"shape_grouped", "0", NULL},
    {"shape_grouped", "yes", "1"},
    {"no_fuse", "act+gemm1", "[\"gemm1+act\"]"},
    {"no_fuse", "gemm1+act,gemm1+gemm2", "[\"gemm1+act\",\"gemm1+gemm2\"]"},
};

static struct mf_batch_options parse(const char *name, const char *text)
{
    struct mf_batch_options options = mf_batch_options_default();
    ck_assert_msg(mf_batch_option_parse(mf_batch_option_find(name), text, &options) == 0, "%s=%s", name,
                  text);
    return options;
}

static char *print(const struct mf_batch_options *options)
{
    cJSON *json = mf_batch_options_print(options, false);
    char *text = mf_json_print(json);
    cJSON_Delete(json);
    return text;
}

MF_TEST(good_texts, .rows = MF_ARRAY_LEN(good))
{
    const struct mf_batch_options options = parse(good[_i].name, good[_i].text);
    _cleanup_(cJSON_Deletep) cJSON *json = mf_batch_options_print(&options, false);
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(json, good[_i].name);
    _cleanup_(mf_freep) char *text = value ? mf_json_print(value) : NULL;
    ck_assert_msg(!text == !good[_i].stored, "%s=%s: %s", good[_i].name, good[_i].text, text);
    if (text)
        ck_assert_str_eq(text, good[_i].stored);
}

/* Reading the stored text and printing it again gives the same text. */
MF_TEST(stored_texts_are_read, .rows = MF_ARRAY_LEN(good))
{
    const struct mf_batch_options options = parse(good[_i].name, good[_i].text);
    struct mf_batch_options read;
    _cleanup_(mf_freep) char *stored = print(&options);
    _cleanup_(cJSON_Deletep) cJSON *json = cJSON_Parse(stored);
    mf_batch_options_read(json, &read);
    _cleanup_(mf_freep) char *again = print(&read);
    ck_assert_str_eq(again, stored);
}

static const struct {
    const char *name, *text, *expected; /* part of the error */
} bad[] = {
    {"classes", "gfx942", "expected up to 16 device classes, such as gfx942/304"},
    {"classes", "gfx942/304,", "device classes"},
    {"classes", ",gfx942/304", "device classes"},
    {"classes", "none", "device classes"},
    {"classes", "a/1,a/2,a/3,a/4,a/5,a/6,a/7,a/8,a/9,a/10,a/11,a/12,a/13,a/14,a/15,a/16,a/17", "up to 16"},
    {"priority", "", "expected an integer from 0 to 100"},
    {"priority", "101", "expected an integer from 0 to 100"},
    {"priority", "-1", "0 to 100"},
    {"priority", "1.5", "an integer"},
    {"topk", "0", "expected an integer from 1 to 64"},
    {"topk", "65", "1 to 64"},
    {"err_ratio", "1.5", "expected a number from 0 to 1"},
    {"err_ratio", "-0.1", "0 to 1"},
    {"err_ratio", "nan", "0 to 1"},
    {"err_ratio", "10%", "0 to 1"},
    {"time_cap_ms", "99", "expected an integer from 100 to 600000"},
    {"time_cap_ms", "600001", "100 to 600000"},
    {"routing", "", "expected uniform, balanced, zipf:S with S in (0, 4]"},
    {"routing", "zipf", "zipf:S"},
    {"routing", "router:best", "router:RULE"},
    {"search", "fast", "expected race, exhaustive or enumerate"},
    {"search", "Race", "race"},
    {"layout", "any", "expected common, free or \"w1=LAYOUT w2=LAYOUT\""},
    {"layout", "w1=panel16", "common, free or"},
    {"layout", "w1=a/b w2=row", "common, free or"},
    {"consumer", "moefarm,hf", "expected one or more of moefarm, aiter, vllm, sglang and any"},
    {"consumer", "", "expected one or more of moefarm, aiter, vllm, sglang and any"},
    {"promote", "perhaps", "expected always or improved"},
    {"min_effect", "1", "expected a fraction from 0 to below 1; 0.03 means 3 percent"},
    {"min_effect", "3", "0.03 means 3 percent"},
    {"min_effect", "nan", "a fraction"},
    {"min_effect", "-0.01", "a fraction"},
    {"seed", "-1", "expected an integer from 0 to 9007199254740991"},
    {"seed", "9007199254740992", "an integer"},
    {"regret", "balanced,", "expected none or up to 4 routing profiles, such as balanced,zipf:1.2"},
    {"regret", "none,balanced", "none or up to 4"},
    {"regret", "uniform,balanced,zipf:1,hot:1,hot:0", "up to 4"},
    {"fuse_saves", "-1", "expected 0 to 1e15 bytes"},
    {"fuse_saves", "inf", "0 to 1e15 bytes"},
    {"fuse_saves", "2e15", "0 to 1e15 bytes"},
    {"warmup", "1001", "expected an integer from 0 to 1000"},
    {"iters", "4", "expected an integer from 5 to 4000"},
    {"iters", "0", "5 to 4000"},
    {"iters", "4001", "5 to 4000"},
    {"split_k", "2", "expected 0 or 1"},
    {"shape_grouped", "maybe", "expected 0 or 1"},
    {"no_fuse", "", "expected up to 8 sets of two or more ops, such as gemm1+act"},
    {"no_fuse", "gemm1", "sets of two or more ops"},
    {"no_fuse", "gemm1+cast", "sets of two or more ops"},
    {"no_fuse", "gemm1+act,", "sets of two or more ops"},
    {"no_fuse", "gemm1+act,gemm1+act,gemm1+act,gemm1+act,gemm1+act,gemm1+act,gemm1+act,gemm1+act,gemm1+act",
     "up to 8"},
};

MF_TEST(bad_texts, .rows = MF_ARRAY_LEN(bad))
{
    const struct mf_batch_option *o = mf_batch_option_find(bad[_i].name);
    struct mf_batch_options options = mf_batch_options_default();
    char expected[MF_OPTION_HELP_MAX];
    ck_assert_msg(mf_batch_option_parse(o, bad[_i].text, &options) == -EINVAL, "%s=%s is accepted",
                  bad[_i].name, bad[_i].text);
    mf_batch_option_expected(o, expected);
    ck_assert_msg(strstr(expected, bad[_i].expected) != NULL, "%s=%s: %s", bad[_i].name, bad[_i].text,
                  expected);
}

MF_TEST(unknown_options)
{
    ck_assert_ptr_null(mf_batch_option_find("speed"));
    ck_assert_ptr_null(mf_batch_option_find(""));
    /* the JSON of a batch contains `baseline`, but users cannot set it as an option */
    ck_assert_ptr_null(mf_batch_option_find("baseline"));
}

/* Missing, invalid and unknown members of the JSON leave the defaults unchanged. Of a list with invalid
 * items, the valid items are read. */
MF_TEST(unreadable_members)
{
    static const char text[] =
        "{\"classes\":\"a/1\",\"priority\":101,\"topk\":\"8\",\"err_ratio\":-1,\"routing\":\"zipf\","
        "\"search\":\"fast\",\"layout\":\"w1\",\"baseline\":1,\"split_k\":2,\"seed\":null,"
        "\"regret\":[\"hot:0.5\",7,\"later\"],\"colour\":\"red\"}";
    struct mf_batch_options read, expected = parse("regret", "hot:0.5");
    _cleanup_(cJSON_Deletep) cJSON *json = cJSON_Parse(text);
    mf_batch_options_read(json, &read);
    _cleanup_(mf_freep) char *a = print(&read);
    _cleanup_(mf_freep) char *b = print(&expected);
    ck_assert_str_eq(a, b);
    mf_batch_options_read(NULL, &read);
    ck_assert_int_eq(read.priority, 50);
}

MF_TEST(defaults_are_valid)
{
    const struct mf_batch_options standard = mf_batch_options_default();
    _cleanup_(mf_freep) char *text = print(&standard);
    for (const struct mf_batch_option *o = mf_batch_option_next(NULL); o; o = mf_batch_option_next(o)) {
        struct mf_batch_options options = standard;
        ck_assert_msg(mf_batch_option_initial(o) != NULL, "%s: the help has no default", o->name);
        if (!o->initial)
            continue;
        ck_assert_msg(mf_batch_option_parse(o, o->initial, &options) == 0, "%s: %s", o->name, o->initial);
        _cleanup_(mf_freep) char *again = print(&options);
        ck_assert_str_eq(again, text);
    }
}

static const struct {
    const char *name, *help;
} helps[] = {
    {"priority", "priority of the batch, higher runs sooner, 0 to 100 (default: 50)"},
    {"min_effect",
     "minimum improvement of a new row with promote=improved, as a fraction, 0 to below 1 (default: 0.03)"},
    {"fuse_saves",
     "minimum memory traffic in bytes per call that a fused step must save over separate kernels, 0 to 1e15 "
     "(default: 0)"},
    {"no_fuse",
     "comma-separated sets of ops that one step must not cover together, such as gemm1+act,gemm1+gemm2, up "
     "to 8 (default: none)"},
    {"split_k", "0 excludes split-K steps (default: 1)"},
    {"layout",
     "weight layout: common (one per layer model), free (one per task) or a given \"w1=LAYOUT w2=LAYOUT\" "
     "(default: common)"},
};

MF_TEST(help_has_range_and_default, .rows = MF_ARRAY_LEN(helps))
{
    char help[MF_OPTION_HELP_MAX];
    mf_batch_option_help(mf_batch_option_find(helps[_i].name), help);
    ck_assert_str_eq(help, helps[_i].help);
}

/* The help text fits its buffer and names every value of an enum option. */
MF_TEST(help_is_complete)
{
    for (const struct mf_batch_option *o = mf_batch_option_next(NULL); o; o = mf_batch_option_next(o)) {
        char help[MF_OPTION_HELP_MAX], expected[MF_OPTION_HELP_MAX];
        mf_batch_option_help(o, help);
        mf_batch_option_expected(o, expected);
        ck_assert_msg(help[strlen(help) - 1] == ')' && strlen(expected) < sizeof(expected) - 1,
                      "%s: too long", o->name);
        for (size_t i = 0; o->names && o->names[i]; i++)
            ck_assert_msg(strstr(help, o->names[i]) != NULL, "%s: help lacks %s", o->name, o->names[i]);
    }
}

/* ---- docs/api.md has one row per option ---- */

static char *read_docs(void)
{
    static char text[1 << 17];
    FILE *f = fopen(MF_SOURCE_DIR "/docs/api.md", "re");
    ck_assert_ptr_nonnull(f);
    text[fread(text, 1, sizeof(text) - 1, f)] = '\0';
    (void)fclose(f);
    char *table = strstr(text, "### Batch options");
    ck_assert_ptr_nonnull(table);
    table = strstr(table, "|---|---|---|\n");
    ck_assert_ptr_nonnull(table);
    *strstr(table, "\n\n") = '\0';
    return table;
}

/* Copies the option's row of the table to `row`, without the backticks. */
static void find_row(const char *table, const char *name, char *row, size_t cap)
{
    char start[64];
    mf_format(start, sizeof(start), "\n| `%s` |", name);
    const char *at = strstr(table, start);
    ck_assert_msg(at != NULL, "docs/api.md: no row for %s", name);
    size_t n = 0;
    for (at++; *at && *at != '\n' && n + 1 < cap; at++) {
        if (*at != '`')
            row[n++] = *at;
    }
    row[n] = '\0';
}

MF_TEST(options_are_documented)
{
    const char *table = read_docs();
    int n = 0, n_rows = 0;
    for (const struct mf_batch_option *o = mf_batch_option_next(NULL); o; o = mf_batch_option_next(o), n++) {
        char row[256], text[256], range[MF_OPTION_RANGE_MAX];
        find_row(table, o->name, row, sizeof(row));
        mf_format(text, sizeof(text), "(%s)", mf_batch_option_initial(o));
        ck_assert_msg(strstr(row, text) != NULL, "docs/api.md: expected the default %s in: %s", text, row);
        mf_batch_option_range(o, range);
        if (o->type == MF_OPTION_INT || o->type == MF_OPTION_NUMBER)
            ck_assert_msg(strstr(row, range) != NULL, "docs/api.md: expected %s in: %s", range, row);
        for (size_t i = 0; o->names && o->names[i]; i++)
            ck_assert_msg(strstr(row, o->names[i]) != NULL, "docs/api.md: expected %s in: %s", o->names[i],
                          row);
    }
    for (const char *at = table; (at = strstr(at, "\n| `")) != NULL; at++)
        n_rows++;
    ck_assert_int_eq(n_rows, n);
}

int main(void)
{
    return mf_check_main(NULL);
}
