/* Defines the options of moefarm tune: AITER's options under AITER's names, then moefarm's own options. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "cli/tune/tune.h"
#include "common/base/text.h"
#include "common/moe/batch_options.h"

/* AITER's default paths, relative to its repository. */
#define UNTUNE_FILE "aiter/configs/untuned_fmoe.csv"
#define TUNE_FILE   "aiter/configs/tuned_fmoe.csv"
#define INT_ANY     INT64_C(1000000000)

#define MP_HELP "maximum devices of a private farm, one worker each (default: all)"
#define COMPARE_HELP \
    "race the new rows against the old ones on the production operator and print the decisions"

/* Options of later revisions of AITER's base_tuner.py that moefarm rejects, with the reason. */
#define VERIFIED "every candidate passes every correctness gate here, the worst row included; omit the option"
/* clang-format off */
static const struct {
    const char *name, *why;
} later[MF_TUNE_N_LATER] = {
    {"fast_tune",                "candidates are always verified before they are timed; omit the option"},
    {"post_verify",              VERIFIED},
    {"post_verify_slack_tol",    VERIFIED},
    {"post_verify_max_fallback", VERIFIED},
    {"post_verify_iters",        VERIFIED},
    {"tune_tie_break_rel_tol",   "statistical ties are always resolved the same way; omit the option"},
    {"auto_group_small_m",       "a race always runs on one device, for every token count; omit the option, "
                                 "or give --shape_grouped for the probes"},
};
/* clang-format on */

void mf_tune_options(struct mf_tune_options *o, struct mf_opt *opts, size_t *ret_n)
{
    const struct mf_batch_option *topk = mf_batch_option_find("topk");
    const struct mf_batch_option *budget = mf_batch_option_find("time_budget");
    const struct mf_batch_option *warmup = mf_batch_option_find("warmup");
    const struct mf_batch_option *iters = mf_batch_option_find("iters");
    /* clang-format off */
    const struct mf_opt all[] = {
        {"i",                   MF_OPT_TEXT,     &o->untune_file,   "FILE",
         "untuned table with the shapes", 0, 0},
        {"untune_file",         MF_OPT_TEXT,     &o->untune_file,   "FILE", NULL, 0, 0},
        {"o",                   MF_OPT_TEXT,     &o->tune_file,     "FILES",
         "tuned tables, colon-separated: all are read, the first is written; AITER_CONFIG_FMOE replaces the "
         "default", 0, 0},
        {"tune_file",           MF_OPT_TEXT,     &o->tune_file,     "FILES", NULL, 0, 0},
        {"o2",                  MF_OPT_TEXT,     &o->profile_file,  "FILE",
         "file to which AITER's merged table of each shape is appended", 0, 0},
        {"profile_file",        MF_OPT_TEXT,     &o->profile_file,  "FILE", NULL, 0, 0},
        {"v",                   MF_OPT_BOOL,     &o->verbose,       NULL,
         "more output: skipped rows, kernels of the winners", 0, 0},
        {"verbose",             MF_OPT_BOOL,     &o->verbose,       NULL,   NULL, 0, 0},
        {"mp",                  MF_OPT_INT,      &o->mp,            "N",    MP_HELP, 1, MF_TUNE_DEVICES_MAX},
        {"k",                   MF_OPT_BOOL,     &o->split_k,       NULL,
         "include split-K kernels", 0, 0},
        {"splitK",              MF_OPT_BOOL,     &o->split_k,       NULL,   NULL, 0, 0},
        {"shape_grouped",       MF_OPT_BOOL,     &o->shape_grouped, NULL,
         "measure all candidates of a shape on one device", 0, 0},
        {"sort",                MF_OPT_TEXT,     &o->sort,          "BOOL",
         "sort the table by its key, True or False", 0, 0},
        {"errRatio",            MF_OPT_DOUBLE,   &o->err_ratio,     "X",
         "maximum mismatch ratio", 0, 0},
        {"batch",               MF_OPT_INT,      &o->batch,         "N",
         "maximum shapes per batch", 1, 20000},
        {"all",                 MF_OPT_BOOL,     &o->all,           NULL,
         "tune rows again that the table already has", 0, 0},
        {"last",                MF_OPT_BOOL,     &o->last,          NULL,
         "only the last row of the untuned table", 0, 0},
        {"warmup",              MF_OPT_INT,      &o->warmup,        "N",
         "warm-up runs of each candidate (default: as many as the device needs)", (int64_t)warmup->min,
         (int64_t)warmup->max},
        {"iters",               MF_OPT_INT,      &o->iters,         "N",
         "samples per row (default: as many as the result needs)", (int64_t)iters->min,
         (int64_t)iters->max},
        {"timeout",             MF_OPT_INT,      &o->timeout_s,     "S",
         "time limit per candidate in seconds, at most 600 (default: 10)", 1, INT_ANY},
        {"run_config",          MF_OPT_OPTIONAL, &o->run_config,    "CSV",
         "no tuning: run the rows of a tuned table on the production operator; without CSV, run the shapes "
         "of -i with its fallback", 0, 0},
        {"compare",             MF_OPT_BOOL,     &o->compare,       NULL,   COMPARE_HELP, 0, 0},
        {"update_improved",     MF_OPT_BOOL,     &o->update_improved, NULL,
         "with --compare: write only rows faster by --min_improvement_pct", 0, 0},
        {"min_improvement_pct", MF_OPT_DOUBLE,   &o->min_improvement_pct, "PCT",
         "minimum improvement of --update_improved in percent", 0, 0},
        {"grouped-gemm",        MF_OPT_BOOL,     &o->grouped_gemm,  NULL,
         "not supported: tuning of gfx1250's grouped operator", 0, 0},
        {"mxfp4-flydsl",        MF_OPT_BOOL,     &o->mxfp4_flydsl,  NULL,
         "not supported: AITER's coupled FlyDSL search", 0, 0},
        {"device",              MF_OPT_TEXT,     &o->devices,       "LIST",
         "private farm: devices, cpu:0, hip:amd:0,… (default: all local GPUs, or the CPU)", 0, 0},
        {"families",            MF_OPT_TEXT,     &o->families,      "LIST",
         "private farm: kernel families to use (default: the workers' default)", 0, 0},
        {"python",              MF_OPT_TEXT,     &o->python,        "PATH",
         "private farm and --run_config: Python interpreter for --family-py", 0, 0},
        {"family-py",           MF_OPT_TEXT,     &o->family_py,     "LIST",
         "private farm and --run_config: Python families, files or modules, comma-separated", 0, 0},
        {"aiter-dir",           MF_OPT_TEXT,     &o->aiter_dir,     "PATH",
         "private farm: folder of your AITER, whose kernel lists replace the built-in ones", 0, 0},
        {"classes",             MF_OPT_TEXT,     &o->classes,       "LIST",
         "external farm: device classes, gfx942/304,… (default: those of its workers)", 0, 0},
        {"state",               MF_OPT_TEXT,     &o->state,         "DIR",
         "state folder, with the private farm's database (default: FILE.moefarm next to the table)", 0, 0},
        {"consumer",            MF_OPT_TEXT,     &o->consumer,      "LIST",
         "consumers, comma-separated: moefarm, or aiter for a table that AITER reads; vllm and sglang also "
         "write their files to TABLE.vllm and TABLE.sglang", 0, 0},
        {"routing",             MF_OPT_TEXT,     &o->routing,       "PROFILE",
         "routing profile, as for moefarm submit (default: uniform)", 0, 0},
        {"topk",                MF_OPT_INT,      &o->topk,          "N",
         "finalists per race", (int64_t)topk->min, (int64_t)topk->max},
        {"time-budget",         MF_OPT_INT,      &o->time_budget_s, "S",
         "seconds to spend on a shape's candidates: a search selects which ones to measure; 0 measures all",
         (int64_t)budget->min, (int64_t)budget->max},
        {"compat",              MF_OPT_BOOL,     &o->compat,        NULL,
         "also rank by AITER's additive rule and print its winners next to the race's", 0, 0},
        {"candidates",          MF_OPT_TEXT,     &o->candidates,    "FILE",
         "with --compat: rank this recorded table (AITER's profile_fmoe.csv), no measurement", 0, 0},
        {"simulated",           MF_OPT_BOOL,     &o->simulated,     NULL,
         "include rows of simulated devices", 0, 0},
    };
    /* clang-format on */
    static_assert(MF_ARRAY_LEN(all) + MF_TUNE_N_LATER + MF_AITER_ENV_N <= MF_TUNE_N_OPTIONS,
                  "room for the options");
    memcpy(opts, all, sizeof(all));
    for (size_t i = 0; i < MF_TUNE_N_LATER; i++)
        opts[MF_ARRAY_LEN(all) + i] =
            (struct mf_opt){.name = later[i].name, .type = MF_OPT_OPTIONAL, .value = &o->later[i]};
    mf_aiter_env_options(&o->env, opts + MF_ARRAY_LEN(all) + MF_TUNE_N_LATER);
    *ret_n = MF_ARRAY_LEN(all) + MF_TUNE_N_LATER + MF_AITER_ENV_N;
}

void mf_tune_defaults(struct mf_tune_options *o)
{
    const char *table = getenv("AITER_CONFIG_FMOE");
    const struct mf_batch_options batch = mf_batch_options_default();

    *o = (struct mf_tune_options){.untune_file = UNTUNE_FILE,
                                  .tune_file = table && *table ? table : TUNE_FILE,
                                  .profile_file = "",
                                  .sort = "False",
                                  .batch = 100,
                                  .warmup = -1,
                                  .iters = -1,
                                  .timeout_s = -1,
                                  .err_ratio = batch.err_ratio,
                                  .min_improvement_pct = 100 * batch.min_effect,
                                  .split_k = true,
                                  .consumer = mf_consumer_name(batch.consumers[0]),
                                  .topk = batch.topk};
}

/* Rejects AITER's modes that moefarm does not support, and contradictory options. */
static int refuse_modes(const struct mf_tune_options *o)
{
    if (o->grouped_gemm)
        return mf_cli_fail(
            MF_EXIT_USAGE,
            "--grouped-gemm: gfx1250's grouped operator has its own table and kernels; moefarm "
            "tunes those of fused_moe; omit the option");
    if (o->mxfp4_flydsl)
        return mf_cli_fail(
            MF_EXIT_USAGE,
            "--mxfp4-flydsl: moefarm cannot run AITER's coupled FlyDSL kernels (Python); omit the "
            "option to tune moefarm's MXFP4 kernels");
    for (size_t i = 0; i < MF_TUNE_N_LATER; i++) {
        if (o->later[i])
            return mf_cli_fail(MF_EXIT_USAGE, "--%s: %s", later[i].name, later[i].why);
    }
    if (o->candidates && !o->compat)
        return mf_cli_fail(MF_EXIT_USAGE,
                           "--candidates requires --compat: a recorded table is ranked by AITER's rule");
    if (o->update_improved && !o->compare)
        return mf_cli_fail(MF_EXIT_USAGE, "--update_improved requires --compare");
    return 0;
}

/* The table has the rows of moefarm or aiter, whichever comes first. */
static int read_consumers(struct mf_tune_options *o)
{
    struct mf_batch_options batch = {.n_consumers = 0};
    int i = 0;

    if (mf_batch_option_parse(mf_batch_option_find("consumer"), o->consumer, &batch) < 0)
        batch.n_consumers = 0;
    while (i < batch.n_consumers && batch.consumers[i] != MF_CONSUMER_MOEFARM &&
           batch.consumers[i] != MF_CONSUMER_AITER)
        i++;
    if (i == batch.n_consumers)
        return mf_cli_fail(MF_EXIT_USAGE,
                           "--consumer '%s': expected moefarm or aiter for the table, and optionally vllm, "
                           "sglang and any, separated by commas",
                           o->consumer);
    o->for_aiter = batch.consumers[i] == MF_CONSUMER_AITER;
    o->consumers = mf_batch_consumers(&batch);
    return 0;
}

static int read_modules(struct mf_tune_options *o)
{
    struct mf_tune_modules *m = &o->modules;
    bool fits = mf_copy(m->text, sizeof(m->text), o->family_py ? o->family_py : "") == 0;

    m->n = 0;
    for (char *save, *name = strtok_r(m->text, ",", &save); name && fits; name = strtok_r(NULL, ",", &save)) {
        fits = m->n < MF_OPERATORS_MAX;
        if (fits)
            m->names[m->n++] = name;
    }
    return fits ? 0
                : mf_cli_fail(MF_EXIT_USAGE, "--family-py '%.200s': expected at most %d names in %d bytes",
                              o->family_py, MF_OPERATORS_MAX, MF_TUNE_PATH_MAX - 1);
}

int mf_tune_check(struct mf_tune_options *o)
{
    const struct mf_batch_option *err_ratio = mf_batch_option_find("err_ratio");
    char expected[MF_OPTION_HELP_MAX];
    int code = refuse_modes(o);

    if (code != 0)
        return code;
    if (mf_parse_bool(o->sort, &o->sorted) < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "--sort '%s': expected True or False", o->sort);
    if (!mf_batch_option_fits(err_ratio, o->err_ratio)) {
        mf_batch_option_expected(err_ratio, expected);
        return mf_cli_fail(MF_EXIT_USAGE, "--errRatio %g: %s", o->err_ratio, expected);
    }
    if (!(o->min_improvement_pct >= 0 && o->min_improvement_pct < 100))
        return mf_cli_fail(MF_EXIT_USAGE, "--min_improvement_pct %g: expected a number from 0 to below 100",
                           o->min_improvement_pct);
    code = read_consumers(o);
    if (code == 0)
        code = read_modules(o);
    if (code == 0)
        code = mf_aiter_env_read("tune", &o->env);
    if (code != 0)
        return code;
    if (!*o->tune_file || *o->tune_file == ':')
        return mf_cli_fail(MF_EXIT_USAGE, "-o: no table to write; put its path first in the list");
    return 0;
}
