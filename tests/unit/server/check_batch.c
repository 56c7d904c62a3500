/* The options of a batch as JSON: tests the text in the database and the text that workers receive. */
#include "server/farm/farm_private.h"

#include "support/farm/bare_farm.h"
#include "support/mf_check.h"

#include "common/base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct mf_farm farm;

static void setup(void)
{
    bare_farm_open(&farm);
}

static void teardown(void)
{
    bare_farm_close(&farm);
}

static int64_t submit(const struct mf_batch_options *options)
{
    struct mf_shape shape;
    struct mf_submission s = {.name = "one", .body_hash = "0", .shapes = &shape, .n_shapes = 1};
    _cleanup_(cJSON_Deletep) cJSON *receipt = NULL;
    int64_t batch = 0;
    s.options = *options;
    ck_assert_int_eq(mf_shape_parse("4,2048,768,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,"
                                    "torch.bfloat16,QuantType.No,1,0",
                                    &shape),
                     0);
    ck_assert_int_eq(mf_farm_submit(&farm, &s, &receipt), 0);
    ck_assert_int_eq(mf_json_i64(receipt, "batch", 1, INT64_MAX, &batch), 0);
    return batch;
}

static const struct {
    const char *classes, *warnings;
} absent[] = {
    {"", "[\"no worker is connected; the tasks wait for the first one\"]"},
    {"gfx942/304", "[\"no worker of class gfx942/304 is connected; its tasks wait for one\"]"},
    {"sm_90/132,gfx942/304", "[\"no worker of class sm_90/132 is connected; its tasks wait for one\","
                             "\"no worker of class gfx942/304 is connected; its tasks wait for one\"]"},
};

static void assert_warnings(const char *classes, const char *warnings)
{
    struct mf_shape shape;
    struct mf_submission s = {.name = "one",
                              .body_hash = "0",
                              .shapes = &shape,
                              .n_shapes = 1,
                              .options = mf_batch_options_default()};
    _cleanup_(cJSON_Deletep) cJSON *receipt = NULL;
    ck_assert_int_eq(mf_shape_parse("4,2048,768,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,"
                                    "torch.bfloat16,QuantType.No,1,0",
                                    &shape),
                     0);
    if (*classes)
        ck_assert_int_eq(mf_batch_option_parse(mf_batch_option_find("classes"), classes, &s.options), 0);
    ck_assert_int_eq(mf_farm_submit(&farm, &s, &receipt), 0);
    _cleanup_(mf_freep) char *text = mf_json_print(mf_json_array(receipt, "warnings"));
    ck_assert_str_eq(text, warnings);
}

MF_TEST(warns_of_classes_without_worker, .rows = MF_ARRAY_LEN(absent))
{
    assert_warnings(absent[_i].classes, absent[_i].warnings);
}

static void add_worker(const char *name, const char *class)
{
    struct mf_peer peer = {.len = 1, .id = {(uint8_t)name[0]}};
    struct mf_slot *slot;
    ck_assert_int_eq(mf_slots_add(&farm.slots, name, &peer, &slot), 0);
    ck_assert_int_eq(mf_device_class_parse(class, &slot->class), 0);
    ck_assert_int_eq(mf_store_class(farm.store, &slot->class, &slot->class_id), 0);
}

/* A mistyped class is easy to see beside the classes of the connected workers. */
MF_TEST(warns_with_the_connected_classes)
{
    add_worker("a", "cpu-x/2");
    add_worker("b", "cpu-x/2");
    add_worker("c", "gfx942/304");
    assert_warnings("gfx942/3044", "[\"no worker of class gfx942/3044 is connected (connected: cpu-x/2, "
                                   "gfx942/304); its tasks wait for one\"]");
    assert_warnings("gfx942/304", "[]");
}

static const struct {
    const char *options[20][2];
    bool baseline;
    const char *stored, *units;
} cases[] = {
    {{{NULL}},
     false,
     "{\"classes\":[],\"priority\":50,\"topk\":8,\"err_ratio\":0.1,\"time_cap_ms\":10000,"
     "\"routing\":\"uniform\",\"search\":\"race\",\"layout\":\"common\",\"consumer\":[\"moefarm\"],"
     "\"promote\":\"always\",\"min_effect\":0.03,\"baseline\":false,\"seed\":1,"
     "\"regret\":[\"balanced\",\"zipf:1.2\"]}",
     "{\"err_ratio\":0.1,\"time_cap_ms\":10000,\"routing\":\"uniform\",\"search\":\"race\",\"seed\":1,"
     "\"keep_samples\":true}"},
    {{{"seed", "9007199254740991"},
      {"min_effect", "0.05"},
      {"promote", "improved"},
      {"layout", "w1=panel16 w2=row"},
      {"consumer", "aiter"},
      {"search", "exhaustive"},
      {"shape_grouped", "1"},
      {"split_k", "0"},
      {"iters", "101"},
      {"warmup", "5"},
      {"fuse_saves", "65536.5"},
      {"no_fuse", "gemm1+act,gemm1+gemm2"},
      {"regret", "hot:0.5"},
      {"routing", "router:sigmoid_groups+shared"},
      {"time_cap_ms", "2000"},
      {"err_ratio", "0.05"},
      {"topk", "4"},
      {"priority", "90"},
      {"classes", "gfx942/304,cpu-znver4/2,gfx942/304"}},
     true,
     "{\"classes\":[\"gfx942/304\",\"cpu-znver4/2\"],\"priority\":90,\"topk\":4,\"err_ratio\":0.05,"
     "\"time_cap_ms\":2000,\"routing\":\"router:sigmoid_groups+shared\",\"search\":\"exhaustive\","
     "\"layout\":\"w1=panel16 w2=row\",\"consumer\":[\"aiter\"],\"promote\":\"improved\",\"min_effect\":0.05,"
     "\"baseline\":true,\"seed\":9007199254740991,\"regret\":[\"hot:0.5\"],\"fuse_saves\":65536.5,"
     "\"warmup\":5,\"iters\":101,\"split_k\":0,\"shape_grouped\":1,"
     "\"no_fuse\":[\"gemm1+act\",\"gemm1+gemm2\"]}",
     "{\"err_ratio\":0.05,\"time_cap_ms\":2000,\"routing\":\"router:sigmoid_groups+shared\","
     "\"search\":\"exhaustive\",\"seed\":9007199254740991,\"fuse_saves\":65536.5,\"warmup\":5,"
     "\"no_fuse\":[\"gemm1+act\",\"gemm1+gemm2\"],\"keep_samples\":true}"},
    /* options that are set, but to their default */
    {{{"regret", "none"},
      {"layout", "free"},
      {"routing", "recorded:3.0.1"},
      {"split_k", "1"},
      {"shape_grouped", "0"},
      {"warmup", "0"},
      {"fuse_saves", "0"},
      {"seed", "0"}},
     false,
     "{\"classes\":[],\"priority\":50,\"topk\":8,\"err_ratio\":0.1,\"time_cap_ms\":10000,"
     "\"routing\":\"recorded:3.0.1\",\"search\":\"race\",\"layout\":\"free\",\"consumer\":[\"moefarm\"],"
     "\"promote\":\"always\",\"min_effect\":0.03,\"baseline\":false,\"seed\":0,\"regret\":[]}",
     "{\"err_ratio\":0.1,\"time_cap_ms\":10000,\"routing\":\"recorded:3.0.1\",\"search\":\"race\",\"seed\":0,"
     "\"keep_samples\":true}"},
};

/* The options in a batch's units are read back from the stored text. */
MF_TEST(options_are_stored, .rows = MF_ARRAY_LEN(cases))
{
    struct mf_batch_options options = mf_batch_options_default();
    struct mf_batch *b;
    options.has_baseline = cases[_i].baseline;
    for (size_t i = 0; cases[_i].options[i][0]; i++)
        ck_assert_int_eq(mf_batch_option_parse(mf_batch_option_find(cases[_i].options[i][0]),
                                               cases[_i].options[i][1], &options),
                         0);
    ck_assert_int_eq(mf_batch_get(&farm, submit(&options), &b), 0);
    ck_assert_str_eq(b->options_text, cases[_i].stored);
    ck_assert_str_eq(b->unit_options, cases[_i].units);
}

MF_TEST(units_with_other_routing)
{
    struct mf_batch_options options = mf_batch_options_default();
    struct mf_batch *b;
    ck_assert_int_eq(mf_batch_get(&farm, submit(&options), &b), 0);
    _cleanup_(mf_freep) char *text = mf_batch_unit_options(b, "zipf:1.2");
    ck_assert_str_eq(text, "{\"err_ratio\":0.1,\"time_cap_ms\":10000,\"routing\":\"zipf:1.2\","
                           "\"search\":\"race\",\"seed\":1,\"keep_samples\":true}");
    ck_assert_ptr_null(mf_batch_unit_options(b, "zipf"));
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.setup = setup, .teardown = teardown});
}
