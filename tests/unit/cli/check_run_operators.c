/* moefarm run-config and compare with rows that run through the operator of a framework, in a Python
 * interpreter: rows of AITER's tables, and configuration files of vLLM and SGLang. The families of
 * tests/support/kernels/rows_family.py stand for the frameworks. */
#include <string.h>

#include "common/base/cleanup.h"
#include "support/cpu_device.h"
#include "support/mf_check.h"
#include "support/run_moefarm.h"
#include "support/tuned_table.h"

#define PYTHON   "/usr/bin/python3"
#define FAMILIES MF_SOURCE_DIR "/tests/support/kernels/rows_family.py"
#define LAYER    "64,32,4,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0"
#define PLAIN    "--layer", "model_dim=64,topk=2"
#define SLACK    "--slack", "1e6", "--rounds", "3"
#define OPERATOR "--python", PYTHON, "--family-py", FAMILIES

#define RUN_CONFIG(...) moefarm("", "run-config", __VA_ARGS__, SLACK, OPERATOR, NULL)

/* Writes a file. The path that is returned outlives the next commands, unlike in_folder(). */
static const char *write_file(const char *name, const char *text)
{
    static char kept[8][160];
    static unsigned next;
    char *path = kept[next++ % MF_ARRAY_LEN(kept)];

    mf_format(path, sizeof(kept[0]), "%s", in_folder(name));
    text_file_write(path, text);
    return path;
}

/* Appends a row of AITER's table, with the kernels of two stages. */
static void add_aiter(char *text, size_t cap, const char *shape, const char *us, const char *kernel1,
                      const char *kernel2)
{
    size_t len = strlen(text);

    mf_format(text + len, cap - len, "%s,%s,16,0,1.0,%s,0.0%%,2.0,%s,0.0%%,%s,0,0,0,1.0,2.0\n", class_text,
              shape, kernel1, kernel2, us);
}

static const char *table(const char *name, const char *kernel1, const char *kernel2)
{
    char text[4096] = TUNED_COLUMNS "\n";

    add_aiter(text, sizeof(text), "4," LAYER, "1000.0", kernel1, kernel2);
    return write_file(name, text);
}

/* Each row of AITER's table gets its verdict, and the rows of moefarm run too. */
MF_TEST(rows_of_aiter)
{
    char text[4096] = TUNED_COLUMNS "\n";
    struct ran r;

    add_aiter(text, sizeof(text), "4," LAYER, "1000.0", "one", "two");
    add_aiter(text, sizeof(text), "8," LAYER, "1000.0", "wrong", "two");
    add_aiter(text, sizeof(text), "16," LAYER, "0.0001", "one", "two");
    add_aiter(text, sizeof(text), "32," LAYER, "1000.0", "refuse", "two");
    text_file_write(in_folder("table.csv"), text);
    r = RUN_CONFIG(in_folder("table.csv"));
    assert_code(r, 1);
    assert_says(r.out, "OK       T4 H64");
    assert_says(r.out, "aiter:one|aiter:two block_m=16 ksplit=0\n");
    assert_says(r.out, "WRONG    T8 H64");
    assert_says(r.out, "SLOWER   T16 H64");
    assert_says(r.out, ", OK is 1e-06 to 1e+06\n");
    assert_says(r.out, "REFUSED  T32 H64");
    assert_says(r.out, "ValueError: no kernel refuse (rows_family.py:");
    assert_says(r.out, "4 rows: 1 OK, 3 not OK; OK is a ratio of");
    assert_says(r.err, "aiter: ['act_type', 'block_m', 'cu_num', 'doweight_stage1', 'dtype', 'expert', "
                       "'flat', 'gfx', 'inter_dim', 'kernelName1', 'kernelName2', 'ksplit', 'model_dim', "
                       "'q_dtype_a', 'q_dtype_w', 'q_type', 'run_1stage', 'token', 'topk', 'use_g1u1', "
                       "'xbf16']\n");
}

/* Standard output is JSON alone, although the family prints. */
MF_TEST(json)
{
    const char *file = table("table.csv", "one", "two");
    struct ran r = RUN_CONFIG(file, "--json");

    assert_code(r, 0);
    ck_assert_int_eq(r.out[0], '[');
    assert_says(r.out, "\"verdict\":\t\"OK\"");
    assert_says(r.out, "\"pipeline\":\t\"aiter:one|aiter:two block_m=16 ksplit=0\"");
    assert_says(r.out, "\"ok_to\":\t1000000");
}

/* A table with rows of AITER and of moefarm, whose pipeline is that of a Python family. */
MF_TEST(mixed_table)
{
    write_rows(in_folder("table.csv"), class_text,
               TUNED({"4," LAYER, "1000.0", "steps:py_layer"}, {"8," LAYER, "1000.0", ""}));
    struct ran r = RUN_CONFIG(in_folder("table.csv"));
    assert_code(r, 0);
    assert_says(r.out, "OK       T4 H64");
    assert_says(r.out, "OK       T8 H64");
    assert_says(r.out, "2 rows: 2 OK");
    r = moefarm("", "run-config", in_folder("table.csv"), SLACK, NULL);
    assert_code(r, 2); /* this build has neither of the two */
    assert_says(r.err, "1 rows have no pipeline, so they are AITER's own");
    assert_says(r.err, "name an interpreter that imports aiter: --python PATH --family-py "
                       "moefarm.families.aiter");
}

/* Rows that AITER's dispatcher never finds are refused. */
MF_TEST(misspelt_row)
{
    char text[4096] = TUNED_COLUMNS "\n";
    struct ran r;

    add_aiter(text, sizeof(text),
              "4,64,32,4,2,ActivationType.Silu,dtypes.bf16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0",
              "1000.0", "one", "two");
    text_file_write(in_folder("table.csv"), text);
    r = RUN_CONFIG(in_folder("table.csv"));
    assert_code(r, 1);
    assert_says(r.out, "REFUSED  T4 H64");
    assert_says(r.out, "AITER never matches the row");
}

/* The command says which row ran when the interpreter died. */
MF_TEST(crash)
{
    struct ran r = RUN_CONFIG(table("table.csv", "crash", "two"));

    assert_code(r, 1);
    assert_says(r.err, "the interpreter /usr/bin/python3 ended with signal 11 (Segmentation fault)");
}

MF_TEST(compares_rows_of_aiter)
{
    const char *old = table("table.csv", "one", "two"), *new = table("other.csv", "one", "three");
    struct ran r =
        moefarm("", "compare", old, new, "--rounds", "4", "--max-rounds", "4", "--json", OPERATOR, NULL);

    assert_says(r.out, "\"pipeline\":\t\"aiter:one|aiter:two block_m=16 ksplit=0\"");
    assert_says(r.out, "\"rounds\":\t4");
    assert_says(r.out, "\"wrong\":\tfalse");
    r = moefarm("", "compare", old, old, OPERATOR, NULL);
    assert_code(r, 0);
    assert_says(r.out, "same pipeline in both tables");
    new = table("other.csv", "refuse", "two");
    r = moefarm("", "compare", old, new, OPERATOR, NULL);
    assert_code(r, 1);
    assert_says(r.out, "new: cannot open aiter:row_2 for this shape: ValueError: no kernel refuse");
}

/* The replacement of AITER's tuner passes the interpreter to run-config. */
MF_TEST(run_config_of_tune)
{
    const char *file = table("table.csv", "one", "two");
    struct ran r =
        moefarm("", "tune", "--run_config", file, "--iters", "5", "--device", "cpu:0", OPERATOR, NULL);

    assert_says(r.out, "T4 H64 I32 E4 k2 bf16");
    assert_says(r.out, "aiter:one|aiter:two block_m=16 ksplit=0\n");
}

/* ---- configuration files ---- */

#define CONFIG(m, s)                                                                              \
    "{\"BLOCK_SIZE_M\": " m ", \"BLOCK_SIZE_N\": 64, \"BLOCK_SIZE_K\": 64, \"GROUP_SIZE_M\": 1, " \
    "\"num_warps\": 4, \"num_stages\": " s "}"
#define VLLM_NAME "E=4,N=32,device_name=NVIDIA_H200.json"

MF_TEST(entries_of_vllm)
{
    const char *file = write_file(VLLM_NAME, "{\"1\": " CONFIG("16", "3") ", \"8\": " CONFIG("32", "9") "}");
    struct ran r = RUN_CONFIG(file, PLAIN);

    assert_code(r, 1);
    assert_says(r.out, "OK       T1 H64 I32 E4 k2 bf16");
    assert_says(r.out, "vllm:triton_m16_n64_k64_g1_w4_s3\n");
    assert_says(r.out, "REFUSED  T8 H64 I32 E4 k2 bf16");
    assert_says(r.out, "2 rows: 1 OK, 1 not OK\n");
    assert_says(r.err, "tuned on NVIDIA_H200; this device is ");
    r = moefarm("", "compare", "--aa", file, PLAIN, OPERATOR, "--shape", "token=1", "--rounds", "4",
                "--max-rounds", "4", NULL);
    assert_code(r, 0);
    assert_says(r.out, "T1 H64 I32 E4 k2 bf16");
    (void)unlink(in_folder(VLLM_NAME));
}

#define SGLANG_NAME "E=4,N=32,device_name=NVIDIA_H200"

/* SGLang's file for the second GEMM is read with that for the first. */
MF_TEST(entries_of_sglang)
{
    const char *file = write_file(SGLANG_NAME ".json", "{\"1\": " CONFIG("16", "3") "}");
    (void)write_file(SGLANG_NAME "_down.json", "{\"4\": " CONFIG("16", "5") "}");
    struct ran r = RUN_CONFIG(file, PLAIN, "--format", "sglang");

    assert_code(r, 0);
    assert_says(r.out, "sglang:triton_m16_n64_k64_g1_w4_s3-down_m16_n64_k64_g1_w4_s5\n");
    r = RUN_CONFIG(in_folder(SGLANG_NAME "_down.json"), PLAIN, "--format", "sglang");
    assert_code(r, 2);
    assert_says(r.err, "the file is for the second GEMM only");
    (void)unlink(in_folder(SGLANG_NAME "_down.json"));
    (void)unlink(in_folder(SGLANG_NAME ".json"));
}

/* clang-format off */
static const struct {
    const char *name, *option, *value, *says;
} refused_files[] = {
    {VLLM_NAME, NULL, NULL, "does not contain the hidden size and topk; give --model MODEL, or --layer"},
    {VLLM_NAME, "--layer", "model_dim=64", "does not contain the hidden size and topk"},
    {VLLM_NAME, "--layer", "hidden=64", "--layer: "},
    {VLLM_NAME, "--layer", "model_dim=64,topk=9", "--layer: topk=9: expected"},
    {VLLM_NAME, "--model", "qwen3-30b-a3b", "with --tp 1 --ep 1 never reads this file, but E=128,N=768,"},
    {VLLM_NAME, "--model", "no-such-model", "neither a known model nor a config.json"},
    {VLLM_NAME, "--format", "csv", "--format 'csv': expected vllm or sglang"},
    {"shapes.json", "--layer", "model_dim=64,topk=2", "the name is not that of a configuration file"},
    {"E=4,N=32,device_name=NVIDIA_H200,dtype=int8_w8a8.json", "--layer", "model_dim=64,topk=2",
     "dtype=int8_w8a8 is not a type of the families"},
};
/* clang-format on */

MF_TEST(refuses_files, .rows = MF_ARRAY_LEN(refused_files))
{
    const char *file = write_file(refused_files[_i].name, "{\"1\": " CONFIG("16", "3") "}");
    struct ran r = moefarm("", "run-config", file, SLACK, OPERATOR, refused_files[_i].option,
                           refused_files[_i].value, NULL);

    (void)unlink(in_folder(refused_files[_i].name));
    assert_code(r, 2);
    assert_says(r.err, refused_files[_i].says);
}

/* A model's name replaces --layer. */
MF_TEST(layer_of_a_model)
{
    const char *name = "E=128,N=96,device_name=NVIDIA_H200.json";
    const char *file = write_file(name, "{\"1\": " CONFIG("16", "9") "}");
    struct ran r = RUN_CONFIG(file, "--model", "qwen3-30b-a3b", "--tp", "8");

    (void)unlink(in_folder(name));
    assert_code(r, 1);
    assert_says(r.out, "REFUSED  T1 H2048 I96 E128 k8 bf16");
}

/* Without the framework, the message says which interpreter to name. */
MF_TEST(names_the_interpreter)
{
    const char *file = write_file(VLLM_NAME, "{\"1\": " CONFIG("16", "3") "}");
    struct ran r = moefarm("", "run-config", file, PLAIN, NULL);

    assert_code(r, 2);
    assert_says(r.err, "a configuration file of vLLM, which runs through its fused_experts; name an "
                       "interpreter that imports vllm: --python PATH --family-py "
                       "moefarm.families.triton_moe.vllm_family");
    r = moefarm("", "run-config", file, PLAIN, "--python", PYTHON, NULL);
    assert_code(r, 2);
    assert_says(r.err, "--python and --family-py need each other");
    r = moefarm("", "compare", file, file, "--python", "python3", "--family-py", FAMILIES, NULL);
    assert_code(r, 2);
    assert_says(r.err, "--python python3: expected the absolute path of an interpreter");
    r = moefarm("", "run-config", file, "--python", PYTHON, "--family-py", "moefarm.no_such_module", NULL);
    assert_code(r, 2);
    assert_says(r.err, "--family-py moefarm.no_such_module: /usr/bin/python3 cannot load it: "
                       "ModuleNotFoundError");
    (void)unlink(in_folder(VLLM_NAME));
}

int main(void)
{
    return mf_check_main(
        &(struct mf_test_group){.timeout_s = 120, .setup = find_class, .teardown = remove_folder});
}
