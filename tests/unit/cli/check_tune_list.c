/* moefarm tune without child processes: tests options, missing shapes, the baseline, the device list and the
 * summary. */
#include <string.h>
#include <unistd.h>

#include "cli/tune/tune.h"
#include "common/base/text.h"
#include "support/mf_check.h"
#include "support/table_columns.h"
#include "support/table_text.h"

/* ---- options ---- */

/* clang-format off */
/* Every option of AITER's tuner (the parsers of base_tuner.py and gemm_moe_tune.py) in every spelling that
 * argparse accepts, with the field that the option sets. */
static const struct {
    const char *words[4];
    size_t offset;
    enum mf_opt_type type;
    const char *text; /* expected text */
    double number;    /* expected value of a field that is not a text */
} option_cases[] = {
#define AT(field) offsetof(struct mf_tune_options, field)
    {{"-v"},                              AT(verbose),             MF_OPT_BOOL,     NULL, 1},
    {{"--verbose"},                       AT(verbose),             MF_OPT_BOOL,     NULL, 1},
    {{"-i", "a.csv"},                     AT(untune_file),         MF_OPT_TEXT,     "a.csv", 0},
    {{"--untune_file", "a.csv"},          AT(untune_file),         MF_OPT_TEXT,     "a.csv", 0},
    {{"--untune-file=a.csv"},             AT(untune_file),         MF_OPT_TEXT,     "a.csv", 0},
    {{"-o", "a.csv:b.csv"},               AT(tune_file),           MF_OPT_TEXT,     "a.csv:b.csv", 0},
    {{"--tune_file", "a.csv"},            AT(tune_file),           MF_OPT_TEXT,     "a.csv", 0},
    {{"-o2", "p.csv"},                    AT(profile_file),        MF_OPT_TEXT,     "p.csv", 0},
    {{"--profile_file", "p.csv"},         AT(profile_file),        MF_OPT_TEXT,     "p.csv", 0},
    {{"--mp", "3"},                       AT(mp),                  MF_OPT_INT,      NULL, 3},
    {{"-k"},                              AT(split_k),             MF_OPT_BOOL,     NULL, 1},
    {{"--splitK"},                        AT(split_k),             MF_OPT_BOOL,     NULL, 1},
    {{"--no-splitK"},                     AT(split_k),             MF_OPT_BOOL,     NULL, 0},
    {{"--shape_grouped"},                 AT(shape_grouped),       MF_OPT_BOOL,     NULL, 1},
    {{"--shape-grouped"},                 AT(shape_grouped),       MF_OPT_BOOL,     NULL, 1},
    {{"--sort", "True"},                  AT(sort),                MF_OPT_TEXT,     "True", 0},
    {{"--errRatio", "0.05"},              AT(err_ratio),           MF_OPT_DOUBLE,   NULL, 0.05},
    {{"--batch", "6"},                    AT(batch),               MF_OPT_INT,      NULL, 6},
    {{"--all"},                           AT(all),                 MF_OPT_BOOL,     NULL, 1},
    {{"--last"},                          AT(last),                MF_OPT_BOOL,     NULL, 1},
    {{"--warmup", "5"},                   AT(warmup),              MF_OPT_INT,      NULL, 5},
    {{"--iters", "101"},                  AT(iters),               MF_OPT_INT,      NULL, 101},
    {{"--timeout", "1800"},               AT(timeout_s),           MF_OPT_INT,      NULL, 1800},
    {{"--run_config"},                    AT(run_config),          MF_OPT_OPTIONAL, "", 0},
    {{"--run_config", "t.csv"},           AT(run_config),          MF_OPT_OPTIONAL, "t.csv", 0},
    {{"--run-config", "--all"},           AT(run_config),          MF_OPT_OPTIONAL, "", 0},
    {{"--compare"},                       AT(compare),             MF_OPT_BOOL,     NULL, 1},
    {{"--update_improved"},               AT(update_improved),     MF_OPT_BOOL,     NULL, 1},
    {{"--min_improvement_pct", "2.5"},    AT(min_improvement_pct), MF_OPT_DOUBLE,   NULL, 2.5},
    {{"--grouped-gemm"},                  AT(grouped_gemm),        MF_OPT_BOOL,     NULL, 1},
    {{"--grouped_gemm"},                  AT(grouped_gemm),        MF_OPT_BOOL,     NULL, 1},
    {{"--mxfp4-flydsl"},                  AT(mxfp4_flydsl),        MF_OPT_BOOL,     NULL, 1},
};
/* clang-format on */

static int parse(const char *const *words, size_t n, struct mf_tune_options *o)
{
    struct mf_opt opts[MF_TUNE_N_OPTIONS];
    char *argv[6] = {(char *)"tune"};
    size_t n_opts;
    int argc = 1, rest;

    for (size_t i = 0; i < n && words[i]; i++)
        argv[argc++] = (char *)words[i];
    mf_tune_defaults(o);
    mf_tune_options(o, opts, &n_opts);
    int r = mf_opts_parse("tune", opts, n_opts, argc, argv, &rest);
    ck_assert(r != 0 || rest == argc);
    return r;
}

MF_TEST(every_option_is_accepted, .rows = MF_ARRAY_LEN(option_cases))
{
    struct mf_tune_options o;
    ck_assert_int_eq(parse(option_cases[_i].words, 4, &o), 0);
    const void *at = (const char *)&o + option_cases[_i].offset;
    switch (option_cases[_i].type) {
    case MF_OPT_BOOL:
        ck_assert_int_eq(*(const bool *)at, (int)option_cases[_i].number);
        break;
    case MF_OPT_INT:
        ck_assert_int_eq(*(const int64_t *)at, (int64_t)option_cases[_i].number);
        break;
    case MF_OPT_DOUBLE:
        ck_assert_double_eq(*(const double *)at, option_cases[_i].number);
        break;
    case MF_OPT_OPTIONAL:
    case MF_OPT_TEXT:
        ck_assert_str_eq(*(const char *const *)at, option_cases[_i].text);
        break;
    case MF_OPT_LIST: /* moefarm tune has no such option */
        ck_abort_msg("unexpected type");
    }
}

/* clang-format off */
static const struct {
    const char *words[4];
    bool refused;
    const char *says;
} check_cases[] = {
    {{NULL},                                    false, ""},
    {{"--sort", "False"},                       false, ""},
    {{"--sort", "maybe"},                       true,  "--sort 'maybe': expected True or False"},
    {{"--errRatio", "1.5"},                     true,  "--errRatio 1.5: expected a number from 0 to 1"},
    {{"--update_improved"},                     true,  "--update_improved requires --compare"},
    {{"--grouped-gemm"},                        true,  "--grouped-gemm: gfx1250's grouped operator"},
    {{"--mxfp4-flydsl"},                        true,
     "--mxfp4-flydsl: moefarm cannot run AITER's coupled FlyDSL kernels"},
    {{"--fast_tune", "--post_verify"},          true,
     "--fast_tune: candidates are always verified before they are timed"},
    {{"--post_verify"},                         true,
     "--post_verify: every candidate passes every correctness gate"},
    {{"--post-verify-slack-tol", "10"},         true,  "--post_verify_slack_tol: every candidate passes"},
    {{"--post_verify_max_fallback", "3"},       true,  "--post_verify_max_fallback: every candidate passes"},
    {{"--post_verify_iters=3"},                 true,  "--post_verify_iters: every candidate passes"},
    {{"--tune_tie_break_rel_tol", "0.02"},      true,  "--tune_tie_break_rel_tol: statistical ties"},
    {{"--auto_group_small_m", "64"},            true,
     "--auto_group_small_m: a race always runs on one device"},
    {{"--consumer", "vllm"},                    true,  "--consumer 'vllm': expected moefarm or aiter"},
    {{"--consumer", "aiter,hf"},                true,  "--consumer 'aiter,hf': expected moefarm or aiter"},
    {{"--consumer", "vllm,aiter,any,sglang"},   false, ""},
    {{"--family-py", "a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,,p,"}, false, ""},
    {{"--family-py", "a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q"}, true,
     "--family-py 'a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q': expected at most 16 names"},
    {{"-o", ":b.csv"},                          true,  "-o: no table to write"},
};
/* clang-format on */

MF_TEST(values_are_checked, .rows = MF_ARRAY_LEN(check_cases))
{
    struct mf_tune_options o;
    char output[512] = "";
    FILE *err = tmpfile();
    ck_assert_int_eq(parse(check_cases[_i].words, 4, &o), 0);
    (void)fflush(stderr);
    ck_assert_int_ge(dup2(fileno(err), STDERR_FILENO), 0);
    ck_assert_int_eq(mf_tune_check(&o), check_cases[_i].refused ? MF_EXIT_USAGE : 0);
    (void)fflush(stderr);
    rewind(err);
    output[fread(output, 1, sizeof(output) - 1, err)] = '\0';
    ck_assert_msg(strstr(output, check_cases[_i].says) != NULL, "no '%s' in: %s", check_cases[_i].says,
                  output);
    (void)fclose(err);
}

MF_TEST(table_from_the_environment)
{
    struct mf_tune_options o;
    (void)unsetenv("AITER_CONFIG_FMOE");
    mf_tune_defaults(&o);
    ck_assert_str_eq(o.tune_file, "aiter/configs/tuned_fmoe.csv");
    (void)setenv("AITER_CONFIG_FMOE", "/a.csv:/b.csv", 1);
    mf_tune_defaults(&o);
    ck_assert_str_eq(o.tune_file, "/a.csv:/b.csv");
}

/* ---- missing shapes ---- */

#define UNTUNED_HEAD SHAPE_COLUMNS "\n"
#define TUNED_HEAD   TUNED_COLUMNS ",_tag\n"
#define BF16(token) \
#    token ",2048,768,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0"
/* The same shape in the spelling of AITER's README. AITER's own tuner does not recognise a row with this
 * spelling when it reads the row back. */
#define README_SPELLING(token) \
#    token ",2048,768,128,8,ActivationType.Silu,dtypes.bf16,dtypes.bf16,dtypes.bf16,QuantType.No,True,False"
#define RESULT ",32,0,3.0,k1,0.0%,4.0,k2,0.0%,7.0,0,0,0,1.0,1.0,"

/* clang-format off */
static const struct {
    const char *untuned, *tuned, *other;
    struct mf_tune_choice choice;
    int64_t tokens[4]; /* token counts that remain to tune; 0 ends the list */
    size_t n_tuned, n_elsewhere;
} list_cases[] = {
    /* each shape is listed once */
    {UNTUNED_HEAD BF16(1) "\n" BF16(2) "\n" BF16(1) "\n", TUNED_HEAD, NULL, {.all = false}, {1, 2}, 0, 0},
    /* the shape is already tuned, but the untuned or the tuned table spells the shape differently */
    {UNTUNED_HEAD README_SPELLING(1) "\n" BF16(2) "\n", TUNED_HEAD "gfx942,304," BF16(1) RESULT "\n", NULL,
     {.all = false}, {2}, 1, 0},
    {UNTUNED_HEAD BF16(1) "\n" BF16(2) "\n", TUNED_HEAD "gfx942,304," README_SPELLING(1) RESULT "\n", NULL,
     {.all = false}, {2}, 1, 0},
    {UNTUNED_HEAD
     "1,2048,768,128,8,Silu,bfloat16,torch.float8_e4m3fnuz,torch.float8_e4m3fnuz,QuantType.per_128x128,1,0\n",
     TUNED_HEAD
     "gfx942,304,1,2048,768,128,8,ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fnuz,"
     "torch.float8_e4m3fnuz,QuantType.per_1x128,1,0" RESULT "\n",
     NULL, {.all = false}, {0}, 1, 0},
    /* rows of another class are ignored, and so are rows with a tag, because production skips them */
    {UNTUNED_HEAD BF16(1) "\n", TUNED_HEAD "gfx942,80," BF16(1) RESULT "\n", NULL, {.all = false}, {1}, 0, 0},
    {UNTUNED_HEAD BF16(1) "\n", TUNED_HEAD "gfx942,304," BF16(1) RESULT "flydsl_fallback\n", NULL,
     {.all = false}, {1}, 0, 0},
    /* Shapes in the other files of -o are already tuned. With --all, shapes of the first file are tuned
     * again, but no key is written to two files. */
    {UNTUNED_HEAD BF16(1) "\n" BF16(2) "\n", TUNED_HEAD, TUNED_HEAD "gfx942,304," BF16(2) RESULT "\n",
     {.all = false}, {1}, 1, 0},
    {UNTUNED_HEAD BF16(1) "\n" BF16(2) "\n" BF16(4) "\n", TUNED_HEAD "gfx942,304," BF16(1) RESULT "\n",
     TUNED_HEAD "gfx942,304," BF16(2) RESULT "\n", {.all = true}, {1, 4}, 0, 1},
    {UNTUNED_HEAD BF16(1) "\n" BF16(2) "\n", TUNED_HEAD, NULL, {.last = true}, {2}, 0, 0},
    /* if -i and -o are the same file, the file's rows of this class are tuned again */
    {TUNED_HEAD "gfx942,304," BF16(1) RESULT "\ngfx942,80," BF16(2) RESULT "\n",
     TUNED_HEAD "gfx942,304," BF16(1) RESULT "\ngfx942,80," BF16(2) RESULT "\n", NULL, {.all = true}, {1}, 0,
     0},
    /* AITER's production pads 3 tokens to 4 */
    {UNTUNED_HEAD BF16(3) "\n" BF16(4) "\n", TUNED_HEAD, NULL, {.for_aiter = true}, {4}, 0, 0},
};
/* clang-format on */

MF_TEST(list_of_missing_shapes, .rows = MF_ARRAY_LEN(list_cases))
{
    struct mf_table *untuned = read_text("t", list_cases[_i].untuned);
    struct mf_table *tuned[2] = {read_text("t", list_cases[_i].tuned)};
    struct mf_device_class class;
    struct mf_tune_list l;
    size_t n_tuned = 1, n = 0;

    if (list_cases[_i].other)
        tuned[n_tuned++] = read_text("t", list_cases[_i].other);
    ck_assert_int_eq(mf_device_class_parse("gfx942/304", &class), 0);
    ck_assert_int_eq(mf_tune_list_make(untuned, (const struct mf_table *const *)tuned, n_tuned, &class,
                                       &list_cases[_i].choice, &l),
                     0);
    while (n < 4 && list_cases[_i].tokens[n])
        n++;
    ck_assert_uint_eq(l.n, n);
    for (size_t i = 0; i < n; i++)
        ck_assert_int_eq(l.shapes[i].token, list_cases[_i].tokens[i]);
    ck_assert_uint_eq(l.n_tuned, list_cases[_i].n_tuned);
    for (size_t i = 0; i < l.n_tuned; i++)
        ck_assert_ptr_nonnull(mf_table_find(tuned[list_cases[_i].other ? 1 : 0], &class, &l.tuned[i]));
    ck_assert_uint_eq(l.n_elsewhere, list_cases[_i].n_elsewhere);
    if (n > 0) {
        struct mf_shape first = l.shapes[0];
        ck_assert(mf_tune_list_drop(&l, &first));
        ck_assert(!mf_tune_list_drop(&l, &first));
        ck_assert_uint_eq(l.n, n - 1);
    }
    mf_tune_list_release(&l);
    mf_table_free(untuned);
    for (size_t i = 0; i < n_tuned; i++)
        mf_table_free(tuned[i]);
}

/* ---- baseline ---- */

/* The table also has other shapes, another class, a duplicate row and a tagged row. The baseline contains
 * only the rows that the shapes look up. Each row is on the same line as in the table. */
MF_TEST(baseline_of_shapes)
{
    struct mf_table *t = read_text("t", TUNED_HEAD "gfx942,304," BF16(8) RESULT "\n"
                                                                                "gfx942,304," BF16(4) RESULT
                                   "\n"
                                   "gfx942,80," BF16(1) RESULT "\n"
                                                               "gfx942,304," BF16(1) RESULT
                                   "flydsl_fallback\n"
                                   "gfx942,304," README_SPELLING(1) RESULT "\n"
                                                                           "gfx942,304," BF16(1) RESULT
                                   "\n"
                                   "gfx942,304," BF16(2) RESULT "\n");
    static const int64_t tokens[] = {16, 1, 4}, lines[] = {3, 6};
    struct mf_device_class class;
    struct mf_shape shapes[3];
    struct mf_buf text;

    ck_assert_int_eq(mf_device_class_parse("gfx942/304", &class), 0);
    for (size_t i = 0; i < MF_ARRAY_LEN(tokens); i++) {
        ck_assert_int_eq(mf_shape_parse(BF16(1), &shapes[i]), 0);
        shapes[i].token = tokens[i];
    }
    mf_buf_init(&text, 1u << 16);
    ck_assert_int_eq(mf_tune_baseline(t, &class, shapes, MF_ARRAY_LEN(tokens), &text), 0);
    struct mf_table *found = read_text("t", text.data);
    ck_assert(found->tuned);
    ck_assert_uint_eq(found->n_errors, 0);
    ck_assert_uint_eq(found->n_rows, MF_ARRAY_LEN(lines));
    for (size_t i = 0; i < MF_ARRAY_LEN(lines); i++) {
        ck_assert_int_eq(found->rows[i].line, lines[i]);
        ck_assert_ptr_eq(mf_table_find(t, &class, &found->rows[i].shape), &t->rows[lines[i] - 2]);
        ck_assert_double_eq(found->rows[i].us, 7);
    }
    mf_table_free(found);

    /* if no row is known, the baseline is a table without rows */
    mf_buf_clear(&text);
    ck_assert_int_eq(mf_tune_baseline(t, &class, shapes, 1, &text), 0);
    found = read_text("t", text.data);
    ck_assert(found->tuned);
    ck_assert_uint_eq(found->n_rows, 0);
    mf_table_free(found);
    mf_table_free(t);
    mf_buf_release(&text);
}

/* A long list of rows that cannot be compared is truncated. With -v the whole list is printed. */
MF_TEST(foreign_rows_are_listed)
{
    struct mf_buf text, out;
    char row[400];
    mf_buf_init(&text, 1u << 20);
    mf_buf_init(&out, 1u << 20);
    (void)mf_buf_adds(&text, TUNED_HEAD);
    for (int i = 1; i <= 25; i++) {
        const char *row_of_one_token = BF16(1);
        mf_format(row, sizeof(row), "gfx942,304,%d%s%s\n", i, row_of_one_token + 1, RESULT);
        (void)mf_buf_adds(&text, row);
    }
    struct mf_table *t = read_text("t", text.data);
    struct mf_tune_list lists[2] = {{.n = 0}, {.shapes = calloc(26, sizeof(struct mf_shape)), .n = 26}};
    ck_assert_int_eq(mf_device_class_parse("gfx942/80", &lists[0].class), 0);
    ck_assert_int_eq(mf_device_class_parse("gfx942/304", &lists[1].class), 0);
    for (size_t i = 0; i < 26; i++)
        lists[1].shapes[i] = t->rows[i % 25].shape;
    lists[1].shapes[25].token = 64; /* the table has no row with this token count */

    mf_tune_print_foreign(t, lists, 2, false, &out);
    ck_assert_ptr_nonnull(strstr(out.data, "  t:2: gfx942/304  T1 H2048 I768 E128 k8 bf16: k1\n"));
    ck_assert_ptr_nonnull(strstr(out.data, "  t:21: "));
    ck_assert_ptr_null(strstr(out.data, "  t:22: "));
    ck_assert_ptr_nonnull(
        strstr(out.data, "… and 5 more; -v lists them all\n25 of 26 shapes will not be tuned"));
    mf_buf_clear(&out);
    mf_tune_print_foreign(t, lists, 2, true, &out);
    ck_assert_ptr_nonnull(strstr(out.data, "  t:26: "));
    ck_assert_ptr_null(strstr(out.data, "more"));
    mf_buf_clear(&out);
    mf_tune_print_foreign(t, lists, 1, true, &out);
    ck_assert_uint_eq(out.len, 0);
    mf_tune_list_release(&lists[1]);
    mf_table_free(t);
    mf_buf_release(&text);
    mf_buf_release(&out);
}

/* ---- devices ---- */

MF_TEST(read_device_list)
{
    static const char text[] =
        "cpu:0         cpu-znver4/2: AMD EPYC, avx512_bf16+vnni\n"
        "              23.5 GiB, 2 threads, L2 cache 32 MiB\n"
        "hip:nvidia:0  sm_90/132: NVIDIA H200\n"
        "hip:amd       not usable: this build has no module for amd\n"
        "sim           sim:<class>:<ordinal>[:<spec file>] simulates a device; select it with --device";
    struct mf_tune_device d[MF_TUNE_DEVICES_MAX];

    ck_assert_uint_eq(mf_tune_devices_read(text, d), 2);
    ck_assert_str_eq(d[0].name, "cpu:0");
    ck_assert_str_eq(d[0].class.gfx, "cpu-znver4");
    ck_assert_int_eq(d[0].class.cu_num, 2);
    ck_assert_str_eq(d[1].name, "hip:nvidia:0");
    ck_assert_int_eq(d[1].class.cu_num, 132);
}

/* ---- the summary ---- */

MF_TEST(summary_text)
{
    struct mf_tune_outcomes o = {.n = 0};
    struct mf_device_class class;
    struct mf_shape shape;
    struct mf_buf out;

    mf_buf_init(&out, 65536);
    ck_assert_int_eq(mf_device_class_parse("gfx942/304", &class), 0);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(mf_shape_parse(README_SPELLING(1), &shape), 0);
        shape.token = 1 << i;
        ck_assert_int_eq(mf_tune_outcomes_add(&o, &class, &shape), 0);
    }
    struct mf_tune_outcome *first = mf_tune_outcomes_find(&o, &class, &o.items[0].shape);
    *first = (struct mf_tune_outcome){.class = class,
                                      .shape = first->shape,
                                      .end = MF_TUNE_TUNED,
                                      .us = 27.10414,
                                      .tflops = 2.79,
                                      .bw = 44567.71,
                                      .merge_status = "added",
                                      .kernels = "a | b",
                                      .unstable = "after 3 reruns: it scatters"};
    o.items[1].end = MF_TUNE_FAILED;
    mf_format(o.items[1].reason, sizeof(o.items[1].reason), "no step covers gemm1");
    mf_tune_summary(&o, &(struct mf_tune_totals){"Interrupted", 1.5, 1, false}, &out);
    ck_assert_str_eq(out.data,
                     "============= Tuning results Summary: ==============\n"
                     "Tuning Interrupted. tune 2 shapes, total tuning time is 1.5000 seconds\n"
                     "Successfully tuned shapes: 1\n"
                     "class       token  shape                         us  tflops        bw  table\n"
                     "gfx942/304      1  H2048 I768 E128 k8 bf16  27.1041    2.79  44567.71  added\n"
                     "unstable time: gfx942/304  T1 H2048 I768 E128 k8 bf16: after 3 reruns: it scatters\n"
                     "Failed shapes: 1\n"
                     "gfx942/304  T2 H2048 I768 E128 k8 bf16: no step covers gemm1\n"
                     "untuned shapes: 1\n"
                     "gfx942/304  T4 H2048 I768 E128 k8 bf16\n"
                     "unreadable rows: 1\n"
                     "\n"
                     "============= Repro CSV (1 failed shapes) =============\n"
                     "Copy the lines below into a CSV file to reproduce:\n" UNTUNED_HEAD BF16(
                         2) "\n"
                            "[Tuning not Finished] some shapes are not tuned or all failed; the reasons are "
                            "above, see also moefarm why and "
                            "-o2\n");
    mf_buf_release(&out);
    mf_tune_outcomes_release(&o);
}

int main(void)
{
    return mf_check_main(NULL);
}
