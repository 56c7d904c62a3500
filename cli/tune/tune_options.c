/* The options of moefarm tune: AITER's under their names, then ours. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "cli/tune/tune.h"
#include "common/base/text.h"

/* What AITER takes when nothing is said; its own paths, below its repository's folder. */
#define UNTUNE_FILE "aiter/configs/untuned_fmoe.csv"
#define TUNE_FILE   "aiter/configs/tuned_fmoe.csv"
#define INT_ANY     INT64_C(1000000000)

#define MP_HELP "workers of a farm of its own, one a device: at most N; all devices otherwise"
#define COMPARE_HELP \
    "race the old rows against the new ones on the production operator, and say which are faster"

/* What later revisions of base_tuner.py take, and what is done here in its place. */
#define VERIFIED "every gate holds for every candidate here, worst row and all; leave the option out"
/* clang-format off */
static const struct {
    const char *name, *why;
} later[MF_TUNE_N_LATER] = {
    {"fast_tune",                "nothing is timed here before it was found right; leave the option out"},
    {"post_verify",              VERIFIED},
    {"post_verify_slack_tol",    VERIFIED},
    {"post_verify_max_fallback", VERIFIED},
    {"post_verify_iters",        VERIFIED},
    {"tune_tie_break_rel_tol",   "what the samples cannot tell apart is a tie here, of which the pick is always the same; leave the option out"},
    {"auto_group_small_m",       "a race is run whole on one device here, whatever the token count; leave the option out, or give --shape_grouped for the steps before it"},
};
/* clang-format on */

void mf_tune_options(struct mf_tune_options *o, struct mf_opt *opts, size_t *ret_n)
{
    /* clang-format off */
    const struct mf_opt all[] = {
        {"i",                   MF_OPT_TEXT,     &o->untune_file,   "FILE", "the shapes", 0, 0},
        {"untune_file",         MF_OPT_TEXT,     &o->untune_file,   "FILE", NULL, 0, 0},
        {"o",                   MF_OPT_TEXT,     &o->tune_file,     "FILES", "the tuned table (AITER_CONFIG_FMOE); of a list with colons all are read and the first is written", 0, 0},
        {"tune_file",           MF_OPT_TEXT,     &o->tune_file,     "FILES", NULL, 0, 0},
        {"o2",                  MF_OPT_TEXT,     &o->profile_file,  "FILE", "append AITER's merged table of each shape there", 0, 0},
        {"profile_file",        MF_OPT_TEXT,     &o->profile_file,  "FILE", NULL, 0, 0},
        {"v",                   MF_OPT_BOOL,     &o->verbose,       NULL,   "say more: rows passed over, winners' kernels", 0, 0},
        {"verbose",             MF_OPT_BOOL,     &o->verbose,       NULL,   NULL, 0, 0},
        {"mp",                  MF_OPT_INT,      &o->mp,            "N",    MP_HELP, 1, MF_TUNE_DEVICES_MAX},
        {"k",                   MF_OPT_BOOL,     &o->split_k,       NULL,   "split-K kernels are candidates", 0, 0},
        {"splitK",              MF_OPT_BOOL,     &o->split_k,       NULL,   NULL, 0, 0},
        {"shape_grouped",       MF_OPT_BOOL,     &o->shape_grouped, NULL,   "a shape's candidates are all measured on one device", 0, 0},
        {"sort",                MF_OPT_TEXT,     &o->sort,          "BOOL", "order the table by its key; True or False", 0, 0},
        {"errRatio",            MF_OPT_DOUBLE,   &o->err_ratio,     "X",    "mismatch ratio that is still right", 0, 0},
        {"batch",               MF_OPT_INT,      &o->batch,         "N",    "shapes handed in at a time", 1, 20000},
        {"all",                 MF_OPT_BOOL,     &o->all,           NULL,   "tune rows anew that the table has", 0, 0},
        {"last",                MF_OPT_BOOL,     &o->last,          NULL,   "only the last row of the shapes", 0, 0},
        {"warmup",              MF_OPT_INT,      &o->warmup,        "N",    "runs of each candidate before its time counts; as many as its device needs otherwise", 0, 1000},
        {"iters",               MF_OPT_INT,      &o->iters,         "N",    "samples behind a row's time; as many as settle it otherwise", 5, 4000},
        {"timeout",             MF_OPT_INT,      &o->timeout_s,     "S",    "of one candidate, in seconds, at most 600; 10 otherwise", 1, INT_ANY},
        {"run_config",          MF_OPT_OPTIONAL, &o->run_config,    "CSV",  "no tuning: run the rows of a tuned table on the production operator, or the shapes of -i by what it runs where no row is", 0, 0},
        {"compare",             MF_OPT_BOOL,     &o->compare,       NULL,   COMPARE_HELP, 0, 0},
        {"update_improved",     MF_OPT_BOOL,     &o->update_improved, NULL, "with --compare: write only what is faster by --min_improvement_pct", 0, 0},
        {"min_improvement_pct", MF_OPT_DOUBLE,   &o->min_improvement_pct, "PCT", "least effect of --update_improved", 0, 0},
        {"grouped-gemm",        MF_OPT_BOOL,     &o->grouped_gemm,  NULL,   "refused: gfx1250's grouped operator is not tuned here", 0, 0},
        {"mxfp4-flydsl",        MF_OPT_BOOL,     &o->mxfp4_flydsl,  NULL,   "refused: AITER's coupled FlyDSL search is not done here", 0, 0},
        {"device",              MF_OPT_TEXT,     &o->devices,       "LIST", "of a farm of its own: cpu:0, hip:amd:0,…; every GPU of this machine otherwise, or its CPU", 0, 0},
        {"families",            MF_OPT_TEXT,     &o->families,      "LIST", "of a farm of its own: only these families of kernels", 0, 0},
        {"runner",              MF_OPT_TEXT,     &o->runner,        "COMMAND", "of a farm of its own: a foreign runner beside the families", 0, 0},
        {"classes",             MF_OPT_TEXT,     &o->classes,       "LIST", "of a farm elsewhere: gfx942/304,…; all that have workers there otherwise", 0, 0},
        {"state",               MF_OPT_TEXT,     &o->state,         "DIR",  "where a farm of its own keeps its database; beside the table otherwise, FILE.moefarm", 0, 0},
        {"consumer",            MF_OPT_TEXT,     &o->consumer,      "NAME", "moefarm, or aiter: only rows whose kernels AITER dispatches, under the keys that it computes", 0, 0},
        {"routing",             MF_OPT_TEXT,     &o->routing,       "PROFILE", "as of moefarm submit; uniform otherwise", 0, 0},
        {"topk",                MF_OPT_INT,      &o->topk,          "N",    "finalists of each race", 1, 64},
        {"compat",              MF_OPT_BOOL,     &o->compat,        NULL,   "rank by AITER's additive rule too, and show its picks beside the race's", 0, 0},
        {"candidates",          MF_OPT_TEXT,     &o->candidates,    "FILE", "with --compat: rank this recorded table (AITER's profile_fmoe.csv) and measure nothing", 0, 0},
        {"simulated",           MF_OPT_BOOL,     &o->simulated,     NULL,   "rows of simulated devices too", 0, 0},
    };
    /* clang-format on */
    static_assert(MF_ARRAY_LEN(all) + MF_TUNE_N_LATER <= MF_TUNE_N_OPTIONS, "room for the options");
    memcpy(opts, all, sizeof(all));
    for (size_t i = 0; i < MF_TUNE_N_LATER; i++)
        opts[MF_ARRAY_LEN(all) + i] =
            (struct mf_opt){.name = later[i].name, .type = MF_OPT_OPTIONAL, .value = &o->later[i]};
    *ret_n = MF_ARRAY_LEN(all) + MF_TUNE_N_LATER;
}

void mf_tune_defaults(struct mf_tune_options *o)
{
    const char *table = getenv("AITER_CONFIG_FMOE");

    *o = (struct mf_tune_options){.untune_file = UNTUNE_FILE,
                                  .tune_file = table && *table ? table : TUNE_FILE,
                                  .profile_file = "",
                                  .sort = "False",
                                  .batch = 100,
                                  .warmup = -1,
                                  .iters = -1,
                                  .timeout_s = -1,
                                  .err_ratio = 0.1,
                                  .min_improvement_pct = 3,
                                  .split_k = true,
                                  .consumer = "moefarm",
                                  .topk = 8};
}

/* Modes of AITER's program that are other programs. */
static int refuse_modes(const struct mf_tune_options *o)
{
    if (o->grouped_gemm)
        return mf_cli_fail(MF_EXIT_USAGE,
                           "--grouped-gemm: gfx1250's grouped operator has another table and other kernels; "
                           "moefarm tunes fused_moe's, leave the option out");
    if (o->mxfp4_flydsl)
        return mf_cli_fail(
            MF_EXIT_USAGE,
            "--mxfp4-flydsl: the coupled FlyDSL kernels are AITER's, in Python; moefarm does not "
            "run them, leave the option out and its own MXFP4 kernels are tuned");
    for (size_t i = 0; i < MF_TUNE_N_LATER; i++) {
        if (o->later[i])
            return mf_cli_fail(MF_EXIT_USAGE, "--%s: %s", later[i].name, later[i].why);
    }
    if (o->candidates && !o->compat)
        return mf_cli_fail(MF_EXIT_USAGE,
                           "--candidates: a recorded table is ranked by AITER's rule; give --compat too");
    if (o->update_improved && !o->compare)
        return mf_cli_fail(MF_EXIT_USAGE, "--update_improved requires --compare");
    return 0;
}

int mf_tune_check(struct mf_tune_options *o)
{
    int code = refuse_modes(o);

    if (code != 0)
        return code;
    if (mf_parse_bool(o->sort, &o->sorted) < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "--sort: '%s' is neither True nor False", o->sort);
    if (!(o->err_ratio >= 0 && o->err_ratio <= 1))
        return mf_cli_fail(MF_EXIT_USAGE, "--errRatio: %g is no number from 0 to 1", o->err_ratio);
    if (!(o->min_improvement_pct >= 0 && o->min_improvement_pct < 100))
        return mf_cli_fail(MF_EXIT_USAGE, "--min_improvement_pct: %g is no number from 0 to 100",
                           o->min_improvement_pct);
    o->for_aiter = strcmp(o->consumer, "aiter") == 0;
    if (!o->for_aiter && strcmp(o->consumer, "moefarm") != 0)
        return mf_cli_fail(MF_EXIT_USAGE, "--consumer: '%s' is neither moefarm nor aiter", o->consumer);
    if (!*o->tune_file || *o->tune_file == ':')
        return mf_cli_fail(MF_EXIT_USAGE, "-o: give the table that is written, first of the list");
    return 0;
}
