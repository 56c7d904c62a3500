/* moefarm csv: tests the commands on local tables, without a coordinator. */
#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "support/mf_check.h"
#include "support/run_moefarm.h"
#include "support/table_columns.h"

#include <sys/stat.h>

#define SHIPPED(file) MF_TEST_DATA "/aiter/" file
#define KEY(T)      \
    "gfx950,256," T \
    ",7168,256,257,9,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0,"
#define K1 \
    "moe_ck2stages_gemm1_256x32x64x64_1x4_TypeCast_v1_Nswizzle0_Quant0_MulRoutedWeight0_silu_B16_B16_B16"
#define K2                                                                                                \
    "moe_ck2stages_gemm2_256x32x64x64_1x4_TypeCastExpertWeight_v1_Nswizzle0_Quant0_MulRoutedWeight1_B16_" \
    "B16_B16"
#define RESULT(k1, us) "32,0,20.5," k1 ",0.1%,30.5," K2 ",0.1%," us ",0,0,0,1.0,1.0"
#define ROW(T, us)     KEY(T) RESULT(K1, us) "\n"
#define TABLE(rows)    TUNED_COLUMNS "\n" rows
#define OWN(T, us, steps) \
    KEY(T) RESULT("none", us) "," steps ",w1=row,MI355X,r1,gcc,uniform,1,9,0.1,moefarm:race\n"
#define TABLE_OWN(rows) TUNED_COLUMNS OWN_COLUMNS "\n" rows

/* --- check ---------------------------------------------------------------------------------------------- */

/* clang-format off */
static const struct {
    const char *table, *other; /* NULL: the file does not exist */
    const char *words[2];
    int code;
    const char *out, *err;
} checks[] = {
    {TABLE(ROW("1", "51.5") ROW("2", "61.5")), TABLE(ROW("4", "91.5")), {0}, 0,
     "2 files, 3 rows: no errors, no warnings\n", ""},
    {TABLE(ROW("1", "51.5") ROW("2", "61.5")), TABLE(ROW("1", "50.5")), {0}, 1,
     "other.csv:2: error: duplicate: same key as table.csv line 2, which has 51.5 us (here 50.5 us)", ""},
    {TABLE("gfx950,256,1,7168,256,257,9,Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0,"
     RESULT(K1, "51.5") "\n"),
     NULL, {0}, 1, "table.csv:2: error: spelling: act_type is spelled 'Silu'", ""},
    {TABLE(ROW("1", "51.5") ROW("8", "151.5")), NULL, {0}, 0,
     "table.csv:3: warning: hole: the ladder of this layer lacks 2, 4 tokens", ""},
    {TABLE(ROW("1", "51.5") ROW("2", "51.5")), NULL, {0}, 1,
     "table.csv:2: error: copied_time: us is 51.5 for 2 token counts", ""},
    {TABLE(ROW("1", "51.5") ROW("2", "51.5")), NULL, {"--silence", "copied_time"}, 0,
     "no errors, no warnings\n", ""},
    {TABLE(ROW("1", "51.5") ROW("8", "51.5")), NULL, {"--only", "hole,kernel"}, 0,
     "1 file, 2 rows: 0 errors, 1 warning\n", ""},
    {TABLE(ROW("1", "51.5") ROW("8", "51.5")), NULL, {"--summary"}, 1,
     "    2  copied_time  error     same time for several", ""},
    {TABLE(ROW("1", "51.5")), NULL, {"--err-ratio", "0.0005"}, 1, "err1 is 0.1%, above the limit of 0.1%",
     ""},
    {TABLE(KEY("1") RESULT("moe_ck2stages_gemm3", "51.5") "\n"), NULL, {0}, 1,
     "table.csv:2: error: kernel: kernelName1 'moe_ck2stages_gemm3': not an AITER kernel name", ""},
    /* An AITER kernel with tile width 64 cannot run an inter_dim that is not a multiple of 64. */
    {TABLE("gfx942,304,1,7168,200,257,9,ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fnuz,"
     "torch.float8_e4m3fnuz,QuantType.per_Token,1,0,"
     RESULT("_ZN5aiter47fmoe_stage1_bf16_pertokenFp8_g1u1_32x64_4tg_pf3E", "81.5") "\n"),
     NULL, {0}, 1, "inter_dim 200 is not a multiple of the tile width 64", ""},
    {TABLE_OWN(OWN("1", "51.5", "move:sort|tile:gemm_m32")), NULL, {0}, 0,
     "1 file, 1 row: no errors, no warnings\n", ""},
    {TABLE_OWN(OWN("1", "51.5", "move:sort|tile gemm")), NULL, {0}, 1,
     "pipeline has 'tile gemm', which is not family:step", ""},
    {TABLE_OWN(OWN("1", "51.5", "move:sort|aiter:nothing")), NULL, {0}, 1,
     "which is not a kernel of family aiter", ""},
    {TABLE_OWN(OWN("1", "51.5", "move:sort|triton:gemm")), NULL, {0}, 0,
     "warning: foreign: pipeline has a step of family 'triton'", ""},
    {TUNED_COLUMNS ",note\n" KEY("1") RESULT(K1, "51.5") ",x\n", NULL, {0}, 0,
     "table.csv:1: warning: unknown_column: unknown column 'note'", ""},
    {TUNED_COLUMNS ",frm\n" KEY("1") RESULT(K1, "51.5") ",\n", NULL, {0}, 1,
     "table.csv:1: error: misspelt_column: unknown column 'frm'", ""},
    {TABLE(ROW("1", "51.5")), "", {0}, 1, "other.csv:1: error: malformed: the table is empty", ""},
    {TABLE(ROW("1", "51.5")), NULL, {"--only", "nothing"}, 2, "",
     "--only: unknown code 'nothing'; the codes are ragged, malformed, "},
    {NULL, NULL, {0}, 2, "", "table.csv: No such file"},
};
/* clang-format on */

/* --- files of vLLM and SGLang --------------------------------------------------------------------------- */

#define CONFIG(m)                                                                         \
    "{\"BLOCK_SIZE_M\":" m ",\"BLOCK_SIZE_N\":64,\"BLOCK_SIZE_K\":64,\"GROUP_SIZE_M\":1," \
    "\"num_warps\":4,\"num_stages\":3}"
#define H200  "device_name=NVIDIA_H200"
#define BLOCK "dtype=fp8_w8a8,block_shape=[128,128]"
#define FP8   "E=256,N=256," H200 "," BLOCK ".json"

/* clang-format off */
static const struct {
    const char *name, *text, *other_name, *other; /* other NULL: one file */
    const char *command;
    const char *words[4]; /* before the files */
    int code;
    const char *out, *err;
} configs[] = {
    {FP8, "{\n\"1\":" CONFIG("16") ",\n\"64\":" CONFIG("48") "\n}", NULL, NULL, "check", {0}, 1,
     FP8 ":3: error: value: BLOCK_SIZE_M 48: expected a power of two from 8 to 512\n", ""},
    {FP8, "{\"1\":" CONFIG("16") "}", NULL, NULL, "check", {0}, 0,
     "hole: no entry for 2, 4, 8, 16, 24, 32,", ""},
    {FP8, "{\"1\":" CONFIG("16") "}", NULL, NULL, "check", {"--only", "value"}, 0,
     "1 file, 1 row: no errors, no warnings\n", ""},
    {FP8, "{\"1\":" CONFIG("16") "}", NULL, NULL, "check", {"--format", "sglang", "--only", "unreachable"}, 1,
     "never read: SGLang looks up E=256,N=256," H200 ",dtype=fp8_w8a8,block_shape=[128, 128].json", ""},
    {FP8, "{\"1\":" CONFIG("16") "}", NULL, NULL, "check", {"--format", "csv"}, 1, "malformed", ""},
    {FP8, "{\"1\":" CONFIG("16") "}", NULL, NULL, "check", {"--format", "json"}, 2, "",
     "--format 'json': expected csv, vllm or sglang"},
    {"E=8,N=64," H200 ".json", "{\"1\":" CONFIG("16") "}", "E=8,N=64," H200 "_down.json",
     "{\"1\":" CONFIG("32") "}", "check", {"--format", "sglang", "--only", "ignored"}, 0,
     "_down.json:1: warning: ignored: BLOCK_SIZE_M 32: SGLang uses 16 from the first GEMM's file", ""},
    {FP8, "{\"1\":" CONFIG("16") ",\"2\":" CONFIG("16") ",\"4\":" CONFIG("16") "}", "new.json",
     "{\"1\":" CONFIG("16") ",\"2\":" CONFIG("32") ",\"8\":" CONFIG("32") "}", "diff", {0}, 1,
     "changed    2 tokens: BLOCK_SIZE_M 16 -> 32\n"
     "removed    4 tokens\n"
     "added      8 tokens\n"
     "1 same, 0 respelled, 1 changed, 1 added, 1 removed\n", ""},
    {FP8, "{\"1\":" CONFIG("16") "}", "E=257,N=256," H200 "," BLOCK ".json", "{\"1\":" CONFIG("16") "}",
     "diff", {0}, 0, "other layer: E 256 -> 257\n1 same", ""},
    {FP8, "{\"1\":" CONFIG("16") "}", "new.json", "{\"1\":" CONFIG("17") "}", "diff", {0}, 2, "",
     "new.json: not a configuration file: BLOCK_SIZE_M 17"},
    {"E=256,N=256," H200 ",backend=flydsl.json", "{}", "new.json", "{\"1\":" CONFIG("16") "}", "diff", {0},
     2, "", "flydsl.json: not a configuration file: the name belongs to another kernel than the Triton one"},
    {FP8, "{\"1\":" CONFIG("16") "}", "new.csv", TABLE(ROW("1", "51.5")), "diff", {0}, 2, "",
     "compare files of one format"},
    {FP8, "{\"1\":" CONFIG("16") ",\"4\":" CONFIG("32") "}", NULL, NULL, "coverage",
     {"--model", "deepseek-v3", "--tp", "8"}, 0, "    1..2      1  triton_m16_n64_k64_g1_w4_s3\n", ""},
    {FP8, "{\"1\":" CONFIG("16") "}", FP8, "{\"1\":" CONFIG("16") "}", "coverage",
     {"--model", "deepseek-v3", "--tp", "8"}, 0, FP8 ": another file with this name is read instead: /", ""},
    {FP8, "{\"1\":" CONFIG("16") "}", NULL, NULL, "coverage", {"--model", "deepseek-v3", "--tp", "16"}, 1,
     "N 256 instead of 128; deepseek-v3 reads it with tp 8, ep 1, 0 fused", ""},
    {"E=8,N=3584," H200 ".json", "{\"1\":" CONFIG("16") "}", NULL, NULL, "coverage",
     {"--model=mixtral-8x7b", "--tp=4", "--untuned=-"}, 0,
     "doweight_stage1\n2,4096,3584,8,2,ActivationType.Silu,torch.bfloat16,", ""},
    {"E=257,N=256," H200 "," BLOCK ".json", "{\"1\":" CONFIG("16") "}", NULL, NULL, "coverage",
     {"--model", "deepseek-v3", "--tp", "8"}, 1,
     "E 257 instead of 256; deepseek-v3 reads it with tp 8, ep 1, 1 fused", ""},
    {"E=32,N=2048," H200 "," BLOCK ".json", "{\"1\":" CONFIG("16") "}", NULL, NULL, "coverage",
     {"--model", "deepseek-v3", "--ep", "8"}, 0, "vLLM looks up: E=32,N=2048,", ""},
    {FP8, "{\"1\":" CONFIG("16") "}", "E=256,N=256,device_name=NVIDIA_H20," BLOCK ".json",
     "{\"1\":" CONFIG("16") "}", "coverage", {"--model", "deepseek-v3"}, 2, "",
     "the files are for several devices (NVIDIA_H200, NVIDIA_H20); choose one with --device"},
    {FP8, "{\"1\":" CONFIG("16") "}", NULL, NULL, "coverage", {"--model", "deepseek-r1-mxfp4"}, 1, "",
     "vLLM has no Triton kernel for weights torch.float4_e2m1fn_x2"},
};
/* clang-format on */

MF_TEST(configs_of_frameworks, .rows = MF_ARRAY_LEN(configs))
{
    const char *const *w = configs[_i].words;
    const char *words[6] = {0};
    size_t n = 0;

    text_file_write(in_folder(configs[_i].name), configs[_i].text);
    if (configs[_i].other)
        text_file_write(in_folder(configs[_i].other_name), configs[_i].other);
    for (; n < 4 && w[n]; n++)
        words[n] = w[n];
    words[n++] = in_folder(configs[_i].name);
    if (configs[_i].other)
        words[n] = in_folder(configs[_i].other_name);
    struct ran r = moefarm("", "csv", configs[_i].command, words[0], words[1], words[2], words[3], words[4],
                           words[5], NULL);
    (void)unlink(in_folder(configs[_i].name));
    if (configs[_i].other)
        (void)unlink(in_folder(configs[_i].other_name));
    assert_code(r, configs[_i].code);
    assert_says(r.out, configs[_i].out);
    assert_says(r.err, configs[_i].err);
}

/* The manifest of a release tells which rows of a table in AITER's format are unstable. */
MF_TEST(check_reads_manifest)
{
    struct ran r;

    text_file_write(in_folder("table.csv"), TABLE(ROW("1", "51.5") ROW("2", "61.5")));
    text_file_write(in_folder("manifest.json"),
                    "{\"rows\":[{\"key\":\"gfx950,256,1,7168,256,257,9,ActivationType.Silu,torch.bfloat16,"
                    "torch.bfloat16,torch.bfloat16,QuantType.No,1,0\",\"unstable\":\"\"},"
                    "{\"key\":\"gfx950,256,2,7168,256,257,9,ActivationType.Silu,torch.bfloat16,"
                    "torch.bfloat16,torch.bfloat16,QuantType.No,1,0\",\"unstable\":\"it scatters\"}]}");
    r = moefarm("", "csv", "check", in_folder("table.csv"), "--manifest", in_folder("manifest.json"), NULL);
    assert_code(r, 1);
    assert_says(r.out,
                "table.csv:3: error: unstable: us is 61.5, but no measurement was accepted: it scatters;");
    assert_says(r.out, "1 error, 0 warnings");
    text_file_write(in_folder("manifest.json"), "[]");
    r = moefarm("", "csv", "check", in_folder("table.csv"), "--manifest", in_folder("manifest.json"), NULL);
    assert_code(r, 2);
    assert_says(r.err, "manifest.json: expected the manifest.json of a release");
    ck_assert_int_eq(unlink(in_folder("manifest.json")), 0);
}

MF_TEST(check, .rows = MF_ARRAY_LEN(checks))
{
    if (checks[_i].table)
        text_file_write(in_folder("table.csv"), checks[_i].table);
    if (checks[_i].other)
        text_file_write(in_folder("other.csv"), checks[_i].other);
    const char *words[4] = {in_folder("table.csv")};
    size_t n = 1;
    if (checks[_i].other)
        words[n++] = in_folder("other.csv");
    for (size_t i = 0; i < 2 && checks[_i].words[i]; i++)
        words[n++] = checks[_i].words[i];
    struct ran r = moefarm("", "csv", "check", words[0], words[1], words[2], words[3], NULL);
    assert_code(r, checks[_i].code);
    assert_says(r.out, checks[_i].out);
    assert_says(r.err, checks[_i].err);
}

static int64_t found(const cJSON *json, const char *code)
{
    int64_t n = 0;
    (void)mf_json_i64(mf_json_object(json, "counts"), code, 0, INT64_MAX, &n);
    return n;
}

/* Checks five of AITER's tables. Together these tables produce every finding that has one of the codes below.
 * check_table_check checks all 51 tables. */
MF_TEST(shipped)
{
    struct ran r =
        moefarm("", "csv", "check", "--summary", "--json", SHIPPED("a8w8_blockscale_tuned_fmoe_ds_v3.csv"),
                SHIPPED("a8w8_blockscale_tuned_fmoe_glm5_1.csv"), SHIPPED("tuned_fmoe.csv"),
                SHIPPED("glm5_fp4_tuned_fmoe.csv"), SHIPPED("gptoss_fp8fp4_tuned_fmoe.csv"), NULL);
    assert_code(r, 1);
    _cleanup_(cJSON_Deletep) cJSON *json = mf_json_parse(r.out, strlen(r.out), 1 << 20);
    ck_assert_msg(json != NULL, "%s", r.out);
    ck_assert_int_eq(found(json, "copied_time"), 654);
    ck_assert_int_eq(found(json, "beyond_peak"), 172);
    ck_assert_int_eq(found(json, "zero_time"), 13);
    ck_assert_int_eq(found(json, "ragged"), 11);
    ck_assert_int_eq(found(json, "tagged"), 14);
    ck_assert_int_eq(found(json, "kernel"), 0); /* all of AITER's kernel names are known */
    ck_assert_ptr_null(mf_json_array(json, "findings"));
}

MF_TEST(findings_as_json)
{
    text_file_write(in_folder("table.csv"), TABLE(ROW("1", "51.5") ROW("1", "52.5")));
    struct ran r = moefarm("", "csv", "check", "--json", in_folder("table.csv"), NULL);
    assert_code(r, 1);
    _cleanup_(cJSON_Deletep) cJSON *json = mf_json_parse(r.out, strlen(r.out), 1 << 20);
    const cJSON *first = cJSON_GetArrayItem(mf_json_array(json, "findings"), 0);
    const char *file = "", *code = "", *severity = "";
    int64_t line = 0;
    ck_assert_int_eq(mf_json_text(first, "file", &file), 0);
    ck_assert_int_eq(mf_json_text(first, "code", &code), 0);
    ck_assert_int_eq(mf_json_text(first, "severity", &severity), 0);
    ck_assert_int_eq(mf_json_i64(first, "line", 1, 9, &line), 0);
    ck_assert_str_eq(file, in_folder("table.csv"));
    ck_assert_str_eq(code, "duplicate");
    ck_assert_str_eq(severity, "error");
    ck_assert_int_eq(line, 3);
}

/* --- check --fix ---------------------------------------------------------------------------------------- */

#define SILU_ROW                                                                                    \
    "gfx950,256,1,7168,256,257,9,Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1," \
    "0," RESULT(K1, "51.5") "\n"

/* clang-format off */
static const struct {
    const char *before, *option;
    int code;
    const char *out, *err;
    const char *after;
} fixes[] = {
    {TABLE(SILU_ROW), NULL, 0,
     "table.csv:2: fixed: spelling: act_type is written 'ActivationType.Silu'\n1 fixed\n"
     "1 file, 1 row: no errors, no warnings\n",
     "", TABLE(ROW("1", "51.5"))},
    {TABLE(SILU_ROW), "--json", 0, "\"fixed\":\t1,", "", TABLE(ROW("1", "51.5"))},
    {TABLE(SILU_ROW), "--summary", 0, "1 fixed\n1 file, 1 row: no errors, no warnings\n", "",
     TABLE(ROW("1", "51.5"))},
    {TABLE(ROW("1", "51.5") ROW("1", "51.5")), NULL, 0, "fixed: duplicate: the row is removed", "",
     TABLE(ROW("1", "51.5"))},
    /* Problems that need a decision by the user are reported, and the file is not changed. */
    {TABLE(ROW("1", "51.5") ROW("1", "50.5") "\n"), NULL, 1, "0 fixed\n", "",
     TABLE(ROW("1", "51.5") ROW("1", "50.5") "\n")},
    {TABLE(SILU_ROW ROW("2", "51.50")), NULL, 1, "error: copied_time", "",
     TABLE(ROW("1", "51.5") ROW("2", "51.50"))},
    {"rubbish\n", NULL, 1, "error: malformed", "", "rubbish\n"},
};
/* clang-format on */

MF_TEST(fix, .rows = MF_ARRAY_LEN(fixes))
{
    text_file_write(in_folder("table.csv"), fixes[_i].before);
    struct ran r = moefarm("", "csv", "check", "--fix", in_folder("table.csv"), fixes[_i].option, NULL);
    assert_code(r, fixes[_i].code);
    assert_says(r.out, fixes[_i].out);
    assert_says(r.err, fixes[_i].err);
    ck_assert_str_eq(read_file(in_folder("table.csv")), fixes[_i].after);
}

MF_TEST(fix_missing_file)
{
    struct ran r = moefarm("", "csv", "check", "--fix", in_folder("table.csv"), NULL);
    assert_code(r, 2);
    ck_assert_int_ne(access(in_folder("table.csv.lock"), F_OK), 0); /* no lock file remains */
    ck_assert_int_ne(access(in_folder("table.csv"), F_OK), 0);
}

/* A folder or a FIFO is rejected without blocking, and no file is created next to it. */
static const struct {
    bool folder;
    const char *says;
} not_regular[] = {
    {true, "is a folder; name a file in it"},
    {false, "is a device or a FIFO; a table must be a regular file"},
};

MF_TEST(fix_not_regular_file, .rows = MF_ARRAY_LEN(not_regular))
{
    const char *path = in_folder("table.csv");
    ck_assert_int_eq(not_regular[_i].folder ? mkdir(path, 0700) : mkfifo(path, 0600), 0);
    struct ran r = moefarm("", "csv", "check", "--fix", path, NULL);
    assert_code(r, 2);
    assert_says(r.err, not_regular[_i].says);
    ck_assert_int_ne(access(in_folder("table.csv.lock"), F_OK), 0);
    ck_assert_int_eq(remove(in_folder("table.csv")), 0);
}

/* --- diff ----------------------------------------------------------------------------------------------- */

#define KEY_1                                                                                       \
    "gfx950,256,1,7168,256,257,9,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16," \
    "QuantType.No,1,0"

/* clang-format off */
static const struct {
    const char *before, *after, *option;
    int code;
    const char *out, *err;
} diffs[] = {
    {TABLE(ROW("1", "51.5")), TABLE(ROW("1", "51.5")), NULL, 0,
     "1 same, 0 respelled, 0 changed, 0 added, 0 removed\n", ""},
    {TABLE(ROW("1", "50.0") ROW("2", "60.5")), TABLE(ROW("1", "45.0") ROW("4", "70.5")), NULL, 1,
     "changed    " KEY_1 ": us 50.0 -> 45.0 (-10.0%)\nremoved    gfx950,256,2,", ""},
    {TABLE(ROW("1", "50.0") ROW("2", "60.5")), TABLE(ROW("1", "45.0") ROW("4", "70.5")), NULL, 1,
     "QuantType.No,1,0: 70.5 us\n0 same, 0 respelled, 1 changed, 1 added, 1 removed; "
     "of the changed rows, 1 faster and 0 slower\n", ""},
    {TABLE(ROW("1", "50.0")), TABLE(KEY("1") RESULT(K1, "50.00") "\n"), NULL, 1,
     "respelled  " KEY_1 ": us 50.0 -> 50.00\n", ""},
    {TABLE(ROW("1", "50.0")), TABLE(KEY("1") RESULT("k\xc2\x9b", "50.0") "\n"), NULL, 1,
     "_B16_B16_B16 -> k??\n", ""},
    {TABLE(ROW("1", "50.0")), TABLE(ROW("1", "45.0")), "--json", 1, "\"what\":\t\"changed\"", ""},
    {TABLE(ROW("1", "50.0")), TABLE(ROW("1", "45.0")), "--summary", 1, "0 same, 0 respelled, 1 changed", ""},
    {TABLE(ROW("1", "50.0")), TABLE(ROW("1", "50.0") "rubbish\n"), NULL, 2,
     "other.csv: 1 unreadable row not compared", ""},
    {TABLE(ROW("1", "50.0")), "rubbish\n", NULL, 2, "", "other.csv: not a table: the header has no column"},
    {TABLE(ROW("1", "50.0")), NULL, NULL, 2, "", "other.csv: No such file"},
};
/* clang-format on */

MF_TEST(diff, .rows = MF_ARRAY_LEN(diffs))
{
    text_file_write(in_folder("table.csv"), diffs[_i].before);
    if (diffs[_i].after)
        text_file_write(in_folder("other.csv"), diffs[_i].after);
    struct ran r =
        moefarm("", "csv", "diff", in_folder("table.csv"), in_folder("other.csv"), diffs[_i].option, NULL);
    assert_code(r, diffs[_i].code);
    assert_says(r.out, diffs[_i].out);
    assert_says(r.err, diffs[_i].err);
}

/* --- merge ---------------------------------------------------------------------------------------------- */

#define RACED(T, us) OWN(T, us, "move:sort|tile:gemm_m32")

/* clang-format off */
static const struct {
    const char *into, *file; /* into is NULL if the table does not exist yet */
    const char *words[2];
    int code;
    const char *out, *err;
    const char *after; /* contents of the table after the merge; NULL if it is unchanged */
} merges[] = {
    {TABLE(ROW("1", "51.5")), TABLE(ROW("2", "61.5")), {0}, 0, "added     gfx950,256,2,", "",
     TABLE(ROW("1", "51.5") ROW("2", "61.5"))},
    {NULL, TABLE(ROW("2", "61.5")), {0}, 0, "1 added, 0 replaced, 0 kept, 0 foreign\n", "",
     TABLE(ROW("2", "61.5"))},
    {TABLE(ROW("1", "51.5")), TABLE(ROW("1", "50.5")), {0}, 0,
     "replaced  " KEY_1 "  50.5000 us (was 51.5000 us): the lower time of two rows of other tools", "",
     TABLE(ROW("1", "50.5"))},
    {TABLE(ROW("1", "51.5")), TABLE(ROW("1", "52.5")), {0}, 0, "kept      " KEY_1, "", NULL},
    {TABLE(ROW("1", "51.5")), TABLE(ROW("1", "50.5")), {"--dry-run", "--summary"}, 0,
     "0 added, 1 replaced, 0 kept, 0 foreign\n--dry-run: nothing was written\n", "", NULL},
    {TABLE(ROW("1", "51.5")), TABLE_OWN(RACED("1", "10.5")), {0}, 0, "foreign   " KEY_1, "", NULL},
    {TABLE_OWN(RACED("1", "10.5")), TABLE_OWN(RACED("1", "9.5")), {0}, 0, "faster than the row in the table",
     "",
     TABLE_OWN(RACED("1", "9.5"))},
    {TABLE_OWN(RACED("1", "10.5")), TABLE(ROW("1", "9.5")), {0}, 0,
     "is moefarm's and the new one is not: not replaced", "", NULL},
    {TABLE(ROW("1", "51.5")), TABLE(ROW("2", "50.5")), {"--json"}, 0, "\"written\":\ttrue", "",
     TABLE(ROW("1", "51.5") ROW("2", "50.5"))},
    /* the whole merge is rejected, and the table is unchanged */
    {TABLE(ROW("1", "51.5")), TABLE(ROW("2", "61.5") ROW("2", "62.5")), {0}, 1, "", "table.csv: ", NULL},
    {TABLE(ROW("1", "51.5")), TABLE(ROW("2", "61.5") "rubbish\n"), {0}, 1, "",
     "has 1 row that cannot be read; repair it first", NULL},
    /* a row with two findings is counted once */
    {TABLE(ROW("1", "51.5")), TABLE(ROW("x", "nan")), {0}, 1, "",
     "has 1 row that cannot be read; repair it first", NULL},
    {TABLE(ROW("1", "51.5")), TABLE(ROW("x", "nan") ROW("y", "nan")), {0}, 1, "",
     "has 2 rows that cannot be read; repair them first", NULL},
    {TABLE(ROW("1", "51.5")), "rubbish\n", {0}, 2, "", "other.csv: not a table", NULL},
};
/* clang-format on */

MF_TEST(merge, .rows = MF_ARRAY_LEN(merges))
{
    if (merges[_i].into)
        text_file_write(in_folder("table.csv"), merges[_i].into);
    text_file_write(in_folder("other.csv"), merges[_i].file);
    struct ran r = moefarm("", "csv", "merge", in_folder("table.csv"), in_folder("other.csv"),
                           merges[_i].words[0], merges[_i].words[1], NULL);
    assert_code(r, merges[_i].code);
    assert_says(r.out, merges[_i].out);
    assert_says(r.err, merges[_i].err);
    ck_assert_str_eq(read_file(in_folder("table.csv")),
                     merges[_i].after ? merges[_i].after : merges[_i].into);
    ck_assert_str_eq(read_file(in_folder("other.csv")), merges[_i].file);
}

/* A dry run creates neither the table nor its lock file. */
MF_TEST(merge_dry_run)
{
    text_file_write(in_folder("other.csv"), TABLE(ROW("2", "61.5")));
    struct ran r =
        moefarm("", "csv", "merge", "--dry-run", in_folder("table.csv"), in_folder("other.csv"), NULL);
    assert_code(r, 0);
    assert_says(r.out, "1 added, 0 replaced, 0 kept, 0 foreign\n--dry-run: nothing was written\n");
    ck_assert_int_ne(access(in_folder("table.csv"), F_OK), 0);
    ck_assert_int_ne(access(in_folder("table.csv.lock"), F_OK), 0);
}

/* If a new row has the same key as a row in another file of the set, both places are reported, and no file of
 * the command is merged. */
MF_TEST(merge_with_set)
{
    /* copies, because in_folder keeps only its last four results, and moefarm() uses two of them */
    char into[160], first[160], second[160];
    mf_format(into, sizeof(into), "%s", in_folder("table.csv"));
    mf_format(first, sizeof(first), "%s", in_folder("shapes.csv"));
    mf_format(second, sizeof(second), "%s", in_folder("other.csv"));
    text_file_write(into, TABLE(ROW("1", "51.5")));
    text_file_write(second, TABLE(ROW("2", "61.5")));
    text_file_write(first, TABLE(ROW("4", "91.5")));
    struct ran r = moefarm("", "csv", "merge", into, first, second, "--set", second, NULL);
    assert_code(r, 1);
    assert_says(r.err, "other.csv line 2 have the same key; production refuses such a set");
    ck_assert_str_eq(read_file(into), TABLE(ROW("1", "51.5")));
    r = moefarm("", "csv", "merge", into, first, second, NULL);
    assert_code(r, 0);
    ck_assert_str_eq(read_file(into), TABLE(ROW("1", "51.5") ROW("4", "91.5") ROW("2", "61.5")));
}

static const struct {
    const char *words[3];
    int code;
    const char *out, *err;
} usages[] = {
    {{"csv", "--help"}, 0, "csv check FILE ...", ""},
    {{"csv"}, 2, "", "csv check FILE ..."},
    {{"csv", "chekc"}, 2, "", "unknown command 'chekc'"},
    {{"csv", "check", "--help"}, 0, "usage: moefarm csv check [options] FILE ...", ""},
    {{"csv", "check"}, 2, "", "csv check: missing argument"},
    {{"csv", "diff", "a"}, 2, "", "csv diff: missing argument"},
};

MF_TEST(usage, .rows = MF_ARRAY_LEN(usages))
{
    const char *const *w = usages[_i].words;
    struct ran r = moefarm("", w[0], w[1], w[2], NULL);
    assert_code(r, usages[_i].code);
    assert_says(r.out, usages[_i].out);
    assert_says(r.err, usages[_i].err);
}

int main(void)
{
    return mf_check_main(
        &(struct mf_test_group){.timeout_s = 60, .setup = make_folder, .teardown = remove_folder});
}
