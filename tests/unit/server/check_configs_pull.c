/* The files of vLLM and SGLang on their way from the farm to a host, with the real REST API and command line:
 * export, release, channel, pull, check and coverage. */
#include "support/farm/http_harness.h"
#include "support/mf_check.h"
#include "support/remove_tree.h"
#include "support/run_program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIXTRAL_TP2 "E=8,N=7168,device_name=NVIDIA_H200.json"
#define HOST        "--model", "mixtral-8x7b", "--tp", "2"

static struct http_harness *h;
static char folder[] = "/tmp/moefarm-configs-XXXXXX", exported[64], host[64], file[128];

static void start(void)
{
    char url[64];
    h = http_harness_start(&(struct http_harness_options){.configs = true});
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(url, sizeof(url), "http://127.0.0.1:%d", http_harness_port(h));
    (void)snprintf(exported, sizeof(exported), "%s/exported", folder);
    (void)snprintf(host, sizeof(host), "%s/host", folder);
    (void)snprintf(file, sizeof(file), "%s/" MIXTRAL_TP2, host);
    ck_assert_int_eq(setenv("MOEFARM_URL", url, 1), 0);
}

static void stop(void)
{
    http_harness_stop(h);
    (void)remove_tree(folder);
}

static struct ran moefarm(const char *const *words, int code)
{
    static const char *const program[] = {MF_BINARY_DIR "/cli/moefarm", NULL};
    struct ran r = run_program(program, words);
    ck_assert_msg(r.code == code, "moefarm %s %s: exit code %d, expected %d: %s", words[0], words[1], r.code,
                  code, r.text);
    return r;
}
#define RUN(code, ...) moefarm((const char *const[]){__VA_ARGS__, NULL}, code)

static void publish(const char *name, const char *consumer)
{
    RUN(0, "release", "freeze", "--name", name, "--consumer", consumer);
    RUN(0, "release", "stage", consumer, name);
    RUN(0, "release", "approve", consumer, name);
}

MF_TEST(files_of_vllm_reach_a_host)
{
    struct ran r = RUN(0, "export", "--consumer", "vllm", "-o", exported);
    assert_says(r, "the default configuration of vLLM is the fastest one for 4096 tokens");
    assert_says(r, "wrote 2 files to ");
    assert_says(r, "VLLM_TUNED_CONFIG_FOLDER=");
    publish("files", "vllm");
    r = RUN(10, "pull", "vllm", "--format", "vllm", HOST, "-o", host, "--exit-code");
    assert_says(r, "release 1 of channel vllm, 1 file: 1 written, 0 removed");
    ck_assert_int_eq(access(file, R_OK), 0);
    assert_says(RUN(0, "pull", "vllm", "--format", "vllm", HOST, "-o", host, "--exit-code"), "already");
    assert_says(RUN(1, "pull", "vllm", "--format", "vllm", "--model", "mixtral-8x7b", "-o", host),
                "has no file E=8,N=14336,device_name=NVIDIA_H200.json; the folder is unchanged");
    assert_says(RUN(2, "pull", "vllm", "-o", file), "configuration files of vLLM or SGLang, not a table");
    assert_says(RUN(0, "csv", "check", file), "1 file, 2 rows: 0 errors, 1 warning");
    assert_says(RUN(0, "csv", "coverage", HOST, file), "33..32768     64  triton_m64_n128_k64_g8_w4_s3");
    assert_says(RUN(1, "csv", "coverage", "--model", "mixtral-8x7b", "--tp", "4", file),
                "N 7168 instead of 3584; mixtral-8x7b reads it with tp 2, ep 1, 0 fused");
}

MF_TEST(files_of_sglang_reach_a_host)
{
    char down[160];
    publish("files", "sglang");
    struct ran r = RUN(0, "pull", "sglang", "--format", "sglang", HOST, "-o", host);
    assert_says(r, "2 files: 2 written, 0 removed");
    assert_says(r, "SGLANG_MOE_CONFIG_DIR=");
    (void)snprintf(file, sizeof(file), "%s/configs/triton_3_6_0/" MIXTRAL_TP2, host);
    (void)snprintf(down, sizeof(down), "%s/configs/triton_3_6_0/E=8,N=7168,device_name=NVIDIA_H200_down.json",
                   host);
    assert_says(RUN(0, "csv", "coverage", HOST, file, down), "read for the second GEMM: ");
    assert_says(RUN(0, "csv", "check", file, down), "2 files, 2 rows: 0 errors, 2 warnings");
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 60, .setup = start, .teardown = stop});
}
