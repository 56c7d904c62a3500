/* common/table/triton: reading, checking and writing configuration files of vLLM and SGLang. */
#include "common/table/triton/triton_file.h"
#include "support/mf_check.h"

#define C(m, k)                                                       \
    "{\"BLOCK_SIZE_M\":" m ",\"BLOCK_SIZE_N\":64,\"BLOCK_SIZE_K\":" k \
    ",\"GROUP_SIZE_M\":1,\"num_warps\":4,\"num_stages\":3}"
#define OK C("16", "64")
#define LADDER                                                                                             \
    "\"1\":" OK ",\"2\":" OK ",\"4\":" OK ",\"8\":" OK ",\"16\":" OK ",\"24\":" OK ",\"32\":" OK           \
    ",\"48\":" OK ",\"64\":" OK ",\"96\":" OK ",\"128\":" OK ",\"256\":" OK ",\"512\":" OK ",\"1024\":" OK \
    ",\"1536\":" OK ",\"2048\":" OK ",\"3072\":" OK ",\"4096\":" OK
#define V "E=8,N=512,device_name=NVIDIA_H200"
#define S "configs/triton_3_6_0/" V

#define X10     "xxxxxxxxxx"
#define X100    X10 X10 X10 X10 X10 X10 X10 X10 X10 X10
#define LONG    X100 X100 X100 X100 X100 X100 X100
#define EXCERPT X10 X10 X10 X10 "xxxx..."

/* Findings as "SEVERITY line code column;" without the codes in `silent`. */
static const struct {
    const char *path, *text, *findings, *reason; /* reason: part of a finding's text; NULL: not compared */
    size_t n_entries;
} cases[] = {
    {V ".json", "{" LADDER "}", "", NULL, 18},
    {V ".json", "{\"triton_version\":\"3.6.0\"," LADDER "}", "", NULL, 18},
    {S ".json", "{" LADDER "}", "", NULL, 18},
    {"/opt/triton_utils/" S ",dtype=int8_w8a8.json", "{" LADDER "}", "", NULL, 18},
    {S ".json", "{\"triton_version\":\"3.6.0\"," LADDER "}", "E1 value triton_version;",
     "SGLang reads every key as a token count", 18},
    {V ".json", "{\n\"64\":" OK "\n}", "W1 hole token;", "no entry for 1, 2, 4, 8, 16, 24, 32, 48, 96, 128",
     1},
    /* entries */
    {V ".json", "{" LADDER ",\n\n\"8192\":" C("24", "64") "}", "E3 value BLOCK_SIZE_M;",
     "BLOCK_SIZE_M 24: expected a power of two from 8 to 512", 18},
    {V ".json", "{" LADDER ",\"8192\":" C("16", "\"64\"") "}", "E1 value BLOCK_SIZE_K;", NULL, 18},
    {V ".json", "{" LADDER ",\"8192\":{\"BLOCK_SIZE_M\":16}}",
     "E1 missing BLOCK_SIZE_N;E1 missing BLOCK_SIZE_K;E1 missing GROUP_SIZE_M;W1 missing num_warps;"
     "W1 missing num_stages;",
     "entry \"8192\" has no BLOCK_SIZE_N; the kernel needs it", 18},
    {V ".json", "{" LADDER ",\n\"0\":" OK ",\n\"x\":" OK ",\n\"9\":7}", "E2 value 0;E3 value x;E4 value 9;",
     "expected a token count", 18},
    {V ".json", "{" LADDER ",\n\"16\":" C("32", "64") "}", "E2 duplicate 16;", "also on line 1", 18},
    {V ".json", "{\n\"2\":" OK "," LADDER "}", "E2 duplicate 2;W2 key_order token;", NULL, 18},
    {V ".json", "{" LADDER ",\n\"9000\":" OK ",\n\"8192\":" OK "}", "W3 key_order token;",
     "\"8192\" follows \"9000\"", 20},
    {V ".json",
     "{" LADDER ",\"8192\":{\"a\":1,"
     "\"BLOCK_SIZE_M\":16,\"BLOCK_SIZE_N\":64,"
     "\"BLOCK_SIZE_K\":64,\"GROUP_SIZE_M\":1,\"num_warps\":4,\"num_stages\":3,\"USE_TMA\":true,\n"
     "\"waves_per_eu\":2,\"SPLIT_K\":1}}",
     "E1 unknown_column a;E1 unknown_column USE_TMA;E2 unknown_column waves_per_eu;",
     "vLLM's kernel has no such parameter", 18},
    {"E=8,N=512,device_name=AMD_Instinct_MI300X.json",
     "{" LADDER ",\"8192\":{\"BLOCK_SIZE_M\":16,\"BLOCK_SIZE_N\":64,\"BLOCK_SIZE_K\":64,\"GROUP_SIZE_M\":1,"
     "\"num_warps\":4,\"num_stages\":3,\"waves_per_eu\":2,\"SPLIT_K\":1}}",
     "W1 ignored SPLIT_K;", "vLLM always uses 1", 19},
    {V ",dtype=fp8_w8a8,block_shape=[128,128].json", "{" LADDER ",\n\"8192\":" C("16", "256") "}",
     "W2 ignored BLOCK_SIZE_K;", "at most 128", 19},
    {V ".json", "{" LADDER ",\"" LONG "\":" OK "}", "E1 value " EXCERPT ";",
     "key \"" EXCERPT "\": expected a token count", 18},
    {V ".json",
     "{" LADDER ",\"8192\":{\"" LONG "\":1,\"BLOCK_SIZE_M\":16,\"BLOCK_SIZE_N\":64,\"BLOCK_SIZE_K\":64,"
     "\"GROUP_SIZE_M\":1,\"num_warps\":4,\"num_stages\":3}}",
     "E1 unknown_column " EXCERPT ";", EXCERPT ": the kernel has no such parameter", 18},
    /* names */
    {"mine.json", "{" LADDER "}", "E1 unreachable name;", "expected E=…,N=…,device_name=….json", 18},
    {V ",dtype=int8_w8a8.json", "{" LADDER "}", "E1 unreachable name;", "without a dtype", 18},
    {V ",dtype=int4_w4a16,backend=flydsl.json", "{" LADDER "}", "E1 unreachable name;", "another kernel", 0},
    {"E=8,N=512,device_name=NVIDIA_H200_NVL.json", "{" LADDER "}", "E1 unreachable name;",
     "device_name=NVIDIA_H200 for NVIDIA_H200_NVL", 18},
    {S ",dtype=fp8_w8a8,block_shape=[128,128].json", "{" LADDER "}", "E1 unreachable name;",
     "SGLang looks up " V ",dtype=fp8_w8a8,block_shape=[128, 128].json", 18},
    {V ",dtype=fp8_w8a8,block_shape=[128, 128].json", "{\"triton_version\":\"3.6.0\"," LADDER "}",
     "E1 unreachable name;", "vLLM looks up " V ",dtype=fp8_w8a8,block_shape=[128,128].json", 18},
    /* text */
    {V ".json", "{}", "E1 malformed ;", "no entry", 0},
    {V ".json", "{\n\n\"1\":", "E3 malformed ;", "not a JSON object", 0},
    {V ".json", "[1]", "E1 malformed ;", "not a JSON object", 0},
};

static void print_findings(const struct mf_table *t, char *buf, size_t cap)
{
    size_t at = 0;
    buf[0] = '\0';
    for (size_t i = 0; i < t->n_problems && at < cap; i++) {
        const struct mf_problem *p = &t->problems[i];
        at += (size_t)snprintf(buf + at, cap - at, "%c%d %s %s;", p->severity == MF_ERROR ? 'E' : 'W',
                               (int)p->line, mf_problem_code_name(p->code), p->column);
    }
}

MF_TEST(reads_and_checks, .rows = MF_ARRAY_LEN(cases))
{
    _cleanup_(mf_table_freep) struct mf_table *findings = NULL;
    _cleanup_(mf_triton_file_freep) struct mf_triton_file *f = NULL;
    char found[1024];
    bool has_reason = !cases[_i].reason;
    ck_assert_int_eq(mf_table_new(cases[_i].path, false, &findings), 0);
    ck_assert_int_eq(
        mf_triton_file_read(cases[_i].path, cases[_i].text, strlen(cases[_i].text), NULL, findings, &f), 0);
    ck_assert_int_eq(mf_triton_file_check(f, findings), 0);
    print_findings(findings, found, sizeof(found));
    ck_assert_str_eq(found, cases[_i].findings);
    ck_assert_uint_eq(f->n_entries, cases[_i].n_entries);
    for (size_t i = 0; i < findings->n_problems && !has_reason; i++)
        has_reason = strstr(findings->problems[i].reason, cases[_i].reason);
    ck_assert_msg(has_reason, "no finding says '%s'", cases[_i].reason);
}

/* Python: configs[min(configs, key=lambda x: abs(x - M))] */
static const struct {
    const char *keys; /* comma-separated, in the order of the file */
    int64_t token, nearest;
} nearest[] = {
    {"1,2,4,8,16", 1, 1}, {"1,2,4,8,16", 3, 2},   {"1,2,4,8,16", 12, 8}, {"16,8,4,2,1", 12, 16},
    {"1,4096", 2048, 1},  {"1,4096", 2049, 4096}, {"64", 1, 64},         {"64", 1000000, 64},
};

MF_TEST(takes_the_nearest_entry, .rows = MF_ARRAY_LEN(nearest))
{
    struct mf_triton_file f = {0};
    const char *at = nearest[_i].keys;
    while (at) {
        struct mf_triton_entry e = {.token = strtoll(at, NULL, 10)};
        ck_assert_int_eq(mf_triton_file_add(&f, &e), 0);
        at = strchr(at, ',');
        at = at ? at + 1 : NULL;
    }
    ck_assert_int_eq(mf_triton_file_nearest(&f, nearest[_i].token)->token, nearest[_i].nearest);
    free(f.entries);
}

/* The bytes equal those of Python's json.dump(configs, f, indent=4) and a line end. */
MF_TEST(writes_as_the_frameworks, .rows = MF_FRAMEWORK_N_)
{
    _cleanup_(mf_buf_release) struct mf_buf out;
    struct mf_triton_step step;
    struct mf_triton_entry entries[2] = {{.token = 1}, {.token = 64}};
    mf_buf_init(&out, 4096);
    ck_assert_int_eq(mf_triton_step_parse("triton_m16_n64_k128_g1_w4_s5", &step), 0);
    entries[0].config = entries[1].config = step.up;
    ck_assert_int_eq(mf_triton_file_write((enum mf_framework)_i, entries, 2, "3.6.0", &out), 0);
#define ENTRY                                                                                           \
    "{\n        \"BLOCK_SIZE_M\": 16,\n        \"BLOCK_SIZE_N\": 64,\n        \"BLOCK_SIZE_K\": 128,\n" \
    "        \"GROUP_SIZE_M\": 1,\n        \"num_warps\": 4,\n        \"num_stages\": 5\n    }"
    ck_assert_str_eq(out.data, _i == MF_FRAMEWORK_VLLM
                                   ? "{\n    \"triton_version\": \"3.6.0\",\n    \"1\": " ENTRY
                                     ",\n    \"64\": " ENTRY "\n}\n"
                                   : "{\n    \"1\": " ENTRY ",\n    \"64\": " ENTRY "\n}\n");
}

int main(void)
{
    return mf_check_main(NULL);
}
