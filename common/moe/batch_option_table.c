#include "common/moe/batch_option_table.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"

MF_NAMES_DEFINE(mf_search, MF_SEARCH_, MF_SEARCH_MAP)
MF_NAMES_DEFINE(mf_promote, MF_PROMOTE_, MF_PROMOTE_MAP)

static const char *const searches[] = {MF_SEARCH_MAP(MF_NAMES_TEXT_, MF_SEARCH_) NULL};
static const char *const promotes[] = {MF_PROMOTE_MAP(MF_NAMES_TEXT_, MF_PROMOTE_) NULL};

/* ---- classes: duplicates are dropped ---- */

static int add_class(const char *text, struct mf_batch_options *ret)
{
    struct mf_device_class class;
    if (mf_device_class_parse(text, &class) < 0)
        return -EINVAL;
    for (int i = 0; i < ret->n_classes; i++) {
        if (mf_device_class_equal(&ret->classes[i], &class))
            return 0;
    }
    ret->classes[ret->n_classes++] = class;
    return 0;
}

static void print_class(const struct mf_batch_options *o, int item, char buf[MF_OPTION_VALUE_MAX])
{
    mf_device_class_print(&o->classes[item], buf);
}

static const struct mf_option_syntax classes = {add_class, print_class,
                                                "device classes, such as gfx942/304,cpu-znver4/2", NULL};

/* ---- consumers: duplicates are dropped ---- */

static int add_consumer(const char *text, struct mf_batch_options *ret)
{
    enum mf_consumer c;
    if (mf_consumer_parse(text, &c) < 0)
        return -EINVAL;
    if (!(mf_batch_consumers(ret) & MF_CONSUMER_BIT(c)))
        ret->consumers[ret->n_consumers++] = c;
    return 0;
}

static void print_consumer(const struct mf_batch_options *o, int item, char buf[MF_OPTION_VALUE_MAX])
{
    mf_format(buf, MF_OPTION_VALUE_MAX, "%s", mf_consumer_name(o->consumers[item]));
}

mf_consumers mf_batch_consumers(const struct mf_batch_options *o)
{
    mf_consumers set = 0;
    for (int i = 0; i < o->n_consumers; i++)
        set |= MF_CONSUMER_BIT(o->consumers[i]);
    return set;
}

static const struct mf_option_syntax consumer = {add_consumer, print_consumer,
                                                 "consumers, such as moefarm,aiter", NULL};

/* ---- routing, regret ---- */

static int parse_routing(const char *text, struct mf_batch_options *ret)
{
    return mf_routing_parse(text, &ret->routing);
}

static void print_routing(const struct mf_batch_options *o, int item, char buf[MF_OPTION_VALUE_MAX])
{
    (void)item;
    mf_routing_print(&o->routing, buf);
}

static const struct mf_option_syntax routing = {parse_routing, print_routing, NULL, NULL};

static int add_regret(const char *text, struct mf_batch_options *ret)
{
    if (mf_routing_parse(text, &ret->regret[ret->n_regret]) < 0)
        return -EINVAL;
    ret->n_regret++;
    return 0;
}

static void print_regret(const struct mf_batch_options *o, int item, char buf[MF_OPTION_VALUE_MAX])
{
    mf_routing_print(&o->regret[item], buf);
}

static const struct mf_option_syntax regret = {add_regret, print_regret,
                                               "routing profiles, such as balanced,zipf:1.2", "none"};

/* ---- layout ---- */

static int parse_layout(const char *text, struct mf_batch_options *ret)
{
    bool given = mf_path_is_layout(text), free = strcmp(text, "free") == 0;
    if (!given && !free && strcmp(text, "common") != 0)
        return -EINVAL;
    ret->layout_free = free;
    return mf_copy(ret->layout, sizeof(ret->layout), given ? text : "");
}

const char *mf_batch_layout(const struct mf_batch_options *o)
{
    return o->layout_free ? "free" : *o->layout ? o->layout : "common";
}

static void print_layout(const struct mf_batch_options *o, int item, char buf[MF_OPTION_VALUE_MAX])
{
    (void)item;
    mf_format(buf, MF_OPTION_VALUE_MAX, "%s", mf_batch_layout(o));
}

static const struct mf_option_syntax layout = {parse_layout, print_layout, NULL, NULL};

/* ---- no_fuse ---- */

static int add_no_fuse(const char *text, struct mf_batch_options *ret)
{
    mf_ops *ops = &ret->no_fuse[ret->n_no_fuse];
    if (mf_ops_parse(text, ops) < 0 || __builtin_popcount(*ops) < 2)
        return -EINVAL;
    ret->n_no_fuse++;
    return 0;
}

static void print_no_fuse(const struct mf_batch_options *o, int item, char buf[MF_OPTION_VALUE_MAX])
{
    mf_ops_print(o->no_fuse[item], buf);
}

static const struct mf_option_syntax no_fuse = {
    add_no_fuse, print_no_fuse, "sets of two or more ops, such as gemm1+act,gemm1+gemm2", NULL};

/* ---- the table ---- */

#define FIELD(member) .offset = offsetof(struct mf_batch_options, member)

static const struct mf_batch_option table[] = {
    {.name = "classes",
     .type = MF_OPTION_LIST,
     FIELD(n_classes),
     .max = MF_BATCH_CLASSES_MAX,
     .syntax = &classes,
     .initial_help = "every class with a live worker",
     .argument = "LIST",
     .summary = "comma-separated device classes, such as gfx942/304,cpu-znver4/2"},
    {.name = "priority",
     .type = MF_OPTION_INT,
     FIELD(priority),
     .max = 100,
     .initial = "50",
     .argument = "N",
     .summary = "priority of the batch, higher runs sooner"},
    {.name = "topk",
     .type = MF_OPTION_INT,
     FIELD(topk),
     .min = 1,
     .max = 64,
     .initial = "8",
     .argument = "N",
     .summary = "number of cheapest pipelines in the race"},
    {.name = "err_ratio",
     .type = MF_OPTION_NUMBER,
     FIELD(err_ratio),
     .max = 1,
     .initial = "0.1",
     .argument = "X",
     .summary = "maximum ratio of mismatching elements, defined as in AITER",
     .for_units = true},
    {.name = "time_cap_ms",
     .type = MF_OPTION_INT,
     FIELD(time_cap_ms),
     .min = 100,
     .max = 600000,
     .initial = "10000",
     .argument = "MS",
     .summary = "time limit of a step in ms",
     .for_units = true},
    {.name = "time_budget",
     .type = MF_OPTION_INT,
     FIELD(time_budget),
     .max = 1000000,
     .initial = "0",
     .argument = "S",
     .summary =
         "seconds that workers may spend on a task's candidates: a search selects which ones to measure; 0 "
         "measures all",
     .if_changed = true},
    {.name = "routing",
     .type = MF_OPTION_ROUTING,
     FIELD(routing),
     .syntax = &routing,
     .initial = "uniform",
     .argument = "PROFILE",
     .summary =
         "routing profile: uniform, balanced, zipf:S, hot:SHARE, recorded:COUNTS (separated by dots) or "
         "router:RULE[+shared]",
     .expected =
         "uniform, balanced, zipf:S with S in (0, 4], hot:SHARE with SHARE in [0, 1], recorded:COUNTS "
         "(up to 1024 integers separated by dots, or an array of integers) or router:RULE with an "
         "optional +shared",
     .for_units = true},
    {.name = "search",
     .type = MF_OPTION_NAME,
     FIELD(search),
     .names = searches,
     .initial = "race",
     .argument = "MODE",
     .summary =
         "search mode: race, exhaustive (all gates and samples for every step) or enumerate (lists the "
         "candidates without measuring them)",
     .for_units = true},
    {.name = "layout",
     .type = MF_OPTION_TEXT,
     FIELD(layout),
     .syntax = &layout,
     .initial = "common",
     .argument = "MODE",
     .summary = "weight layout: common (one per layer model), free (one per task) or a given \"w1=LAYOUT "
                "w2=LAYOUT\"",
     .expected = "common, free or \"w1=LAYOUT w2=LAYOUT\""},
    {.name = "consumer",
     .type = MF_OPTION_LIST,
     FIELD(n_consumers),
     .min = 1,
     .max = MF_CONSUMER_N_,
     .syntax = &consumer,
     .initial = "moefarm",
     .argument = "LIST",
     .summary = "comma-separated consumers, each with its own ranking and table: moefarm, aiter (tunes the "
                "key that AITER computes from each row), vllm, sglang, or any (ranks every pipeline, for "
                "display only)",
     .expected = "one or more of moefarm, aiter, vllm, sglang and any, separated by commas"},
    {.name = "aiter_bf16_fp8_moe_bound",
     .type = MF_OPTION_INT,
     FIELD(aiter_env.bf16_fp8_bound),
     .max = 1 << 20,
     .initial = "256",
     .argument = "TOKENS",
     .summary = "with consumer aiter: AITER_BF16_FP8_MOE_BOUND of production",
     .environment = "AITER_BF16_FP8_MOE_BOUND",
     .if_changed = true},
    {.name = "aiter_situv2_a8w4",
     .type = MF_OPTION_FLAG,
     FIELD(aiter_env.situv2_a8w4),
     .initial = "0",
     .argument = "0|1",
     .summary = "with consumer aiter: AITER_SITUV2_A8W4 of production",
     .environment = "AITER_SITUV2_A8W4",
     .if_changed = true},
    {.name = "aiter_situv2_a4w4",
     .type = MF_OPTION_FLAG,
     FIELD(aiter_env.situv2_a4w4),
     .initial = "0",
     .argument = "0|1",
     .summary = "with consumer aiter: AITER_SITUV2_A4W4 of production",
     .environment = "AITER_SITUV2_A4W4",
     .if_changed = true},
    {.name = "promote",
     .type = MF_OPTION_NAME,
     FIELD(promote),
     .names = promotes,
     .initial = "always",
     .argument = "MODE",
     .summary =
         "promotion: always (replaces the known row) or improved (the default with a baseline; replaces "
         "the known row only if the new row wins a race against it)"},
    {.name = "min_effect",
     .type = MF_OPTION_NUMBER,
     FIELD(min_effect),
     .max = 1,
     .below_max = true,
     .initial = "0.03",
     .argument = "X",
     .summary = "minimum improvement of a new row with promote=improved, as a fraction",
     .expected = "a fraction from 0 to below 1; 0.03 means 3 percent"},
    {.name = "baseline", .type = MF_OPTION_PRIVATE, FIELD(has_baseline)},
    {.name = "seed",
     .type = MF_OPTION_INT,
     FIELD(seed),
     .max = 9007199254740991, /* the largest integer that JSON numbers represent exactly */
     .initial = "1",
     .argument = "N",
     .summary = "seed of the test data",
     .for_units = true},
    {.name = "regret",
     .type = MF_OPTION_LIST,
     FIELD(n_regret),
     .max = MF_BATCH_REGRET_MAX,
     .syntax = &regret,
     .initial = "balanced,zipf:1.2",
     .argument = "LIST",
     .summary = "none, or comma-separated routing profiles of additional races of the winner"},
    {.name = "fuse_saves",
     .type = MF_OPTION_NUMBER,
     FIELD(fuse_saves),
     .max = 1e15,
     .initial = "0",
     .argument = "BYTES",
     .summary = "minimum memory traffic in bytes per call that a fused step must save over separate kernels",
     .expected = "0 to 1e15 bytes",
     .for_units = true,
     .if_changed = true},
    {.name = "warmup",
     .type = MF_OPTION_INT,
     FIELD(warmup),
     .max = 1000,
     .initial = "0",
     .argument = "N",
     .summary = "untimed runs of each candidate before its samples",
     .for_units = true,
     .if_changed = true},
    {.name = "iters",
     .type = MF_OPTION_INT,
     FIELD(iters),
     .min = 5,
     /* maximum number of samples that a result can hold in addition to the samples of the race's rounds */
     .max = 4000,
     .initial_help = "at most 20, as time allows",
     .argument = "N",
     .summary = "samples of the winner",
     .if_changed = true},
    {.name = "split_k",
     .type = MF_OPTION_FLAG,
     FIELD(split_k),
     .initial = "1",
     .argument = "0|1",
     .summary = "0 excludes split-K steps",
     .if_changed = true},
    {.name = "shape_grouped",
     .type = MF_OPTION_FLAG,
     FIELD(shape_grouped),
     .initial = "0",
     .argument = "0|1",
     .summary = "1 lets one worker measure all steps of a shape while it stays connected",
     .if_changed = true},
    {.name = "no_fuse",
     .type = MF_OPTION_LIST,
     FIELD(n_no_fuse),
     .min = 1,
     .max = MF_BATCH_NO_FUSE_MAX,
     .syntax = &no_fuse,
     .initial_help = "none",
     .argument = "LIST",
     .summary = "comma-separated sets of ops that one step must not cover together, such as "
                "gemm1+act,gemm1+gemm2",
     .for_units = true,
     .if_changed = true},
};

static_assert(MF_ARRAY_LEN(table) <= MF_BATCH_N_OPTIONS_MAX, "MF_BATCH_N_OPTIONS_MAX is too small");

const struct mf_batch_option *mf_batch_option_table(size_t *ret_n)
{
    *ret_n = MF_ARRAY_LEN(table);
    return table;
}
