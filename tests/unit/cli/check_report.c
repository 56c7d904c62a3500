/* moefarm report: tests the floors, the times and pipelines of the winners, and the activities of the
 * workers. */
#include <signal.h>

#include "common/base/cleanup.h"
#include "support/farm/fake_http.h"
#include "support/mf_check.h"
#include "support/run_moefarm.h"

static struct fake_http server;

static void teardown(void)
{
    fake_http_release(&server);
    remove_folder();
}

#define SHAPE_OF(T, q_dtype, q_type, rest)                                                                 \
    "{\"token\":" T                                                                                        \
    ",\"model_dim\":2048,\"inter_dim\":96,\"expert\":128,\"topk\":8,\"act_type\":\"ActivationType.Silu\"," \
    "\"dtype\":\"torch.bfloat16\",\"q_dtype_a\":\"" q_dtype "\",\"q_dtype_w\":\"" q_dtype                  \
    "\",\"q_type\":\"" q_type "\",\"use_g1u1\":1,\"doweight_stage1\":0" rest "}"
#define SHAPE(T, q_dtype, q_type) SHAPE_OF(T, q_dtype, q_type, "")
#define BF16(T)                   SHAPE(T, "torch.bfloat16", "QuantType.No")
#define FP8(T)                    SHAPE(T, "torch.float8_e4m3fn", "QuantType.per_Token")
#define EP(T)                     SHAPE_OF(T, "torch.bfloat16", "QuantType.No", ",\"form\":\"ep:0/1024\"")

#define TASK(id, shape, rest) \
    "{\"id\":" id ",\"class\":\"sm_90/132\",\"model\":\"H200\",\"shape\":" shape "," rest "}"

/* The first worker was connected earlier from the same device. The last two workers have another model and
 * another class. */
#define WORKERS                                                                                       \
    "{\"items\":[{\"name\":\"old\",\"class\":\"sm_90/132\",\"model\":\"H200\",\"device\":{"           \
    "\"mem_read_gbs\":1,\"peak_gflops\":{\"bf16\":1}}},"                                              \
    "{\"name\":\"w\",\"class\":\"sm_90/132\",\"model\":\"H200\",\"busy\":{\"timing\":0.5,\"verify\":" \
    "0.25,\"data\":0.15,\"load\":0.1},\"device\":{\"mem_read_gbs\":4000,\"peak_gflops\":{\"bf16\":"   \
    "600000,\"fp8\":1200000}}},"                                                                      \
    "{\"name\":\"y\",\"class\":\"sm_90/132\",\"model\":\"H100\",\"device\":{}},"                      \
    "{\"name\":\"x\",\"class\":\"cpu-x/2\",\"model\":\"H200\",\"device\":{}}],\"next\":null}"

static const struct fake_answer answers[] = {
    {.request = "GET /api/v1/workers*", .status = 200, .body = WORKERS},
    {.request = "GET /api/v1/batches/7/tasks*",
     .status = 200,
     .body = "{\"items\":[" TASK("1", BF16("1"),
                                 "\"state\":\"done\",\"us\":5,\"mad\":0.1,\"unstable\":\"after 3 reruns: it "
                                 "scatters\"") "," TASK("2", BF16("16384"),
                                                        "\"state\":\"failed\",\"us\":null,\"reason\":\"no "
                                                        "pipeline\"") "],\"next\":null}"},
    {.request = "GET /api/v1/batches/8/tasks*",
     .status = 200,
     .body =
         "{\"items\":[" TASK("3", FP8("16384"), "\"state\":\"probing\",\"us\":null,\"reason\":\"\"") "," TASK(
             "4", EP("1"), "\"state\":\"probing\",\"us\":null,\"reason\":\"\"") "],\"next\":null}"},
    {.request = "GET /api/v1/batches/9/tasks*",
     .status = 200,
     .body = "{\"items\":[{\"id\":9,\"class\":null,\"state\":\"waiting\",\"reason\":\"\",\"shape\":" BF16(
         "1") "}],\"next\":null}"},
    {.request = "GET /api/v1/tasks/1",
     .status = 200,
     .body = "{\"id\":1,\"config\":{\"race\":{\"active_experts\":7}}}"},
    {.request = "GET /api/v1/tasks/1/pipelines?finalists=1*",
     .status = 200,
     .body = "{\"items\":[{\"id\":3,\"us\":6,\"winner\":false,\"ops\":[{\"covers\":\"gemm1\",\"us\":9,"
             "\"name\":\"tile:no\"}]},{\"id\":4,\"us\":5,\"winner\":true,\"ops\":[{\"covers\":\"sort\","
             "\"us\":1,\"name\":\"move:s\"},{\"covers\":\"gather+gemm1+act\",\"us\":2.5,\"name\":\"tile:a\"},"
             "{\"covers\":\"gemm2+weight\",\"us\":1.25,\"name\":\"tile:b\"},{\"covers\":\"combine\",\"us\":1,"
             "\"name\":\"move:c\"}]}],\"next\":null}"},
};

/* T1: the 7 active experts of the race (3 x 2048 x 96 in bf16) plus one row in and one row out are 8.2657 MB,
 * read at 4 TB/s. T16384: 154.6 GFLOP at 600 TFLOP/s, or in fp8 at 1200 TFLOP/s. With expert parallelism, one
 * of eight routes to the 1024 experts reaches an expert of this rank, which has 128: 1.1878 MB. */
MF_TEST(floors_and_winners)
{
    struct ran r;

    fake_http_start(&server, answers, MF_ARRAY_LEN(answers));
    r = moefarm(server.url, "report", "7", "8", "9", NULL);
    assert_code(r, 0);
    /* collapse the spaces between the columns */
    for (char *at = strchr(r.out, ' '); at; at = strchr(at + 1, ' ')) {
        while (at[1] == ' ')
            memmove(at, at + 1, strlen(at));
    }
    assert_says(r.out, "layer class T floor us e2e us +- e2e/floor GEMMs us winner\n");
    assert_says(r.out, "H2048 I96 E128 k8 bf16 sm_90/132 1 2.07 5.00 2% 2.42 3.75 "
                       "UNSTABLE (after 3 reruns: it scatters) move:s + tile:a + tile:b + move:c\n");
    assert_says(r.out, "H2048 I96 E128 k8 bf16 sm_90/132 16384 257.70 - - - - failed: no pipeline\n");
    assert_says(r.out, "H2048 I96 E128 k8 fp8_e4m3fn per_Token sm_90/132 16384 128.85 - - - - probing\n");
    assert_says(r.out, "H2048 I96 E128 k8 bf16 ep:0/1024 sm_90/132 1 0.30 - - - - probing\n");
    assert_says(r.out,
                "H2048 I96 E128 k8 bf16 1 - - - - - waiting\n"); /* the task's device is not known yet */
    assert_says(
        r.out, "w, sm_90/132 (H200): 75% of its time timing and verifying (timing 50%, verify 25%, data 15%, "
               "load 10%, wait 0%); reads 4000 GB/s, 600000 GFLOP/s in bf16, 1200000 in fp8\n");
    r = moefarm(server.url, "report", "7", "--json", NULL);
    assert_code(r, 0);
    assert_says(r.out, "\"gemm_us\":\t3.75");
    assert_says(r.out, "\"winner\":\t\"move:s + tile:a");
    assert_says(r.out, "\"mad\":\t0.1");
    assert_says(r.out, "\"unstable\":\t\"after 3 reruns: it scatters\"");
    assert_says(r.out, "\"us\":\tnull");
    r = moefarm(server.url, "report", "x", NULL);
    assert_code(r, 2);
    assert_says(r.err, "'x' is not the number of a batch");
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.setup = make_folder, .teardown = teardown});
}
