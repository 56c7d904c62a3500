#include "common/moe/consumer.h"

#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"

MF_NAMES_DEFINE(mf_consumer, MF_CONSUMER_, MF_CONSUMER_MAP)

#define AITER_ERR_MAX 0.2 /* limit of AITER's table test (test_csv_validation) */

struct rules;
typedef bool (*takes_step_fn)(const struct rules *r, const struct mf_consumer_step *step, char *why);

/* What a consumer dispatches. A missing function or a limit of 0 accepts everything. */
struct rules {
    const char *title;
    const char *family; /* the only family whose steps it dispatches; NULL: any */
    takes_step_fn takes_step;
    bool (*takes_shape)(const struct mf_shape *shape, char *why);
    double err_max; /* maximum mismatch ratio of a step with a GEMM */
    bool has_table;
};

static bool libfmoe_takes(const struct rules *r, const struct mf_consumer_step *step, char *why)
{
    if (step->foreign)
        mf_format(why, MF_CONSUMER_WHY_MAX, "%s does not dispatch %s:%s, a kernel of another program",
                  r->title, step->family, step->name);
    return !step->foreign;
}

static bool aiter_takes(const struct rules *r, const struct mf_consumer_step *step, char *why)
{
    if (!step->aiter)
        mf_format(why, MF_CONSUMER_WHY_MAX,
                  "%s does not dispatch %s:%s: not an AITER kernel; export it with consumer=moefarm",
                  r->title, step->family, step->name);
    return step->aiter;
}

static bool whole_layer_takes(const struct rules *r, const struct mf_consumer_step *step, char *why)
{
    const mf_ops gemms = MF_OP_BIT(MF_OP_GEMM1) | MF_OP_BIT(MF_OP_GEMM2);
    if (strcmp(step->family, r->family) != 0)
        mf_format(why, MF_CONSUMER_WHY_MAX, "%s dispatches steps of family %s only; this is %s:%s", r->title,
                  r->family, step->family, step->name);
    else if ((step->covers & gemms) != gemms)
        mf_format(why, MF_CONSUMER_WHY_MAX, "%s dispatches whole layers only; %s:%s is a part of a layer",
                  r->title, step->family, step->name);
    else
        return true;
    return false;
}

/* AITER's table has no columns for these values. */
static bool aiter_takes_shape(const struct mf_shape *shape, char *why)
{
    char form[MF_SHAPE_FORM_MAX];
    (void)mf_shape_get(shape, MF_SHAPE_FORM, form, sizeof(form));
    if (!*form && shape->act_type != MF_ACT_GELU_TANH && shape->act_type != MF_ACT_SILU_STEP &&
        shape->act_type != MF_ACT_RELU2 && shape->q_type != MF_QTYPE_PER_1X16)
        return true;
    mf_format(why, MF_CONSUMER_WHY_MAX,
              "AITER's table format cannot express form '%s', %s or %s of this shape; export it with "
              "consumer=moefarm",
              form, mf_act_name(shape->act_type), mf_qtype_name(shape->q_type));
    return false;
}

/* clang-format off */
static const struct rules table[MF_CONSUMER_N_] = {
    [MF_CONSUMER_MOEFARM] = {"libfmoe", NULL,     libfmoe_takes,     NULL,              0,             true},
    [MF_CONSUMER_AITER]   = {"AITER",   NULL,     aiter_takes,       aiter_takes_shape, AITER_ERR_MAX, true},
    [MF_CONSUMER_VLLM]    = {"vLLM",    "vllm",   whole_layer_takes, NULL,              0,             true},
    [MF_CONSUMER_SGLANG]  = {"SGLang",  "sglang", whole_layer_takes, NULL,              0,             true},
    [MF_CONSUMER_ANY]     = {"any",     NULL,     NULL,              NULL,              0,             false},
};
/* clang-format on */

struct mf_consumer_step mf_consumer_step(const struct mf_step *step)
{
    return (struct mf_consumer_step){step->family, step->name, step->covers, step->aiter, step->foreign};
}

bool mf_consumer_takes_shape(enum mf_consumer c, const struct mf_shape *shape, char why[MF_CONSUMER_WHY_MAX])
{
    return !table[c].takes_shape || table[c].takes_shape(shape, why);
}

bool mf_consumer_takes_step(enum mf_consumer c, const struct mf_consumer_step *step,
                            char why[MF_CONSUMER_WHY_MAX])
{
    return !table[c].takes_step || table[c].takes_step(&table[c], step, why);
}

bool mf_consumer_takes_pipeline(enum mf_consumer c, const struct mf_consumer_step *steps, size_t n,
                                char why[MF_CONSUMER_WHY_MAX])
{
    for (size_t i = 0; i < n; i++) {
        if (!mf_consumer_takes_step(c, &steps[i], why))
            return false;
    }
    if (table[c].family && n != 1)
        mf_format(why, MF_CONSUMER_WHY_MAX,
                  "%s dispatches one step for the whole layer; this pipeline has %zu", table[c].title, n);
    return !table[c].family || n == 1;
}

bool mf_consumer_takes_error(enum mf_consumer c, double err, char why[MF_CONSUMER_WHY_MAX])
{
    if (table[c].err_max == 0 || !(err > table[c].err_max))
        return true;
    mf_format(why, MF_CONSUMER_WHY_MAX,
              "the mismatch ratio %.1f%% exceeds %.0f%%, the limit of %s's table check", 100 * err,
              100 * table[c].err_max, table[c].title);
    return false;
}

bool mf_consumer_default(enum mf_consumer c, const struct mf_consumer_step *step)
{
    return table[c].family && strcmp(table[c].family, step->family) == 0 &&
           strcmp(step->name, MF_CONSUMER_DEFAULT_STEP) == 0;
}

bool mf_consumer_any_default(const struct mf_consumer_step *step)
{
    for (enum mf_consumer c = 0; c < MF_CONSUMER_N_; c++) {
        if (mf_consumer_default(c, step))
            return true;
    }
    return false;
}

bool mf_consumer_has_table(enum mf_consumer c)
{
    return table[c].has_table;
}
