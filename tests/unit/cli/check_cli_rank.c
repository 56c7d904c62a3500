/* moefarm rank and why against a fake HTTP server. */
#include <signal.h>

#include "common/base/text.h"
#include "support/farm/fake_answers.h"
#include "support/farm/fake_http.h"
#include "support/mf_check.h"
#include "support/run_moefarm.h"

static struct fake_http server;

static void teardown(void)
{
    fake_http_release(&server);
    remove_folder();
}

#define PIPELINES                                                                                         \
    "{\"items\":[{\"id\":31,\"place\":2,\"names\":[\"move:sort16\",\"tile:a\"],\"structure\":\"sort | "   \
    "gemm1\",\"block_m\":16,"                                                                             \
    "\"layout\":\"w1=row "                                                                                \
    "w2=row\",\"forecast_us\":110,\"finalist\":true,\"us\":100.5,\"mad\":1,\"samples_n\":20,\"winner\":"  \
    "true,"                                                                                               \
    "\"tie\":false,\"ops\":[{\"covers\":\"sort\",\"step\":1,\"name\":\"sort16\",\"us\":20},{\"covers\":"  \
    "\"gather+gemm1\",\"step\":2,"                                                                        \
    "\"name\":\"a\",\"us\":80}]},"                                                                        \
    "{\"id\":32,\"place\":1,\"names\":[\"move:sort16\",\"tile:b\"],\"structure\":\"sort | "               \
    "gemm1\",\"block_m\":16,\"layout\":\"w1=row w2=row\","                                                \
    "\"forecast_us\":105,\"us\":120,\"mad\":1,\"samples_n\":10,\"dropped_at\":10,\"ops\":[{\"covers\":"   \
    "\"sort\",\"step\":1,"                                                                                \
    "\"name\":\"sort16\",\"us\":20},{\"covers\":\"gather+gemm1\",\"step\":3,\"name\":\"b\",\"us\":85}]}," \
    "{\"id\":33,\"place\":1,\"names\":[\"move:sort16\",\"tile:d\"],\"layout\":\"w1=panel16 "              \
    "w2=row\",\"us\":95,\"other_layout\":true,"                                                           \
    "\"forecast_us\":100},{\"id\":34,\"place\":2,\"names\":[\"tile:b\"],\"layout\":\"w1=panel16 "         \
    "w2=row\",\"us\":96,"                                                                                 \
    "\"forecast_us\":100}],"                                                                              \
    "\"next\":null}"

static const struct fake_answer task_answers[] = {
    {.request = "GET /api/v1/tasks/1",
     .status = 200,
     .body =
         "{\"layout\":{\"layout\":\"w1=row w2=row\",\"by\":\"race\",\"layouts\":["
         "{\"layout\":\"w1=panel16 w2=row\",\"chosen\":false,\"reason\":\"lost the races: 1,234.0 "
         "us\"},"
         "{\"layout\":\"w1=row w2=row\",\"chosen\":true,\"reason\":\"won the races: 1,200.0 us\"}]},"
         "\"config\":{\"pipeline\":31,\"us\":101.5,\"mad\":0.5,\"n\":13,\"tries\":3,\"unstable\":\"after 3 "
         "reruns: it scatters\",\"ties\":[40],\"regret\":["
         "{\"routing\":\"balanced\",\"us\":120,\"best_us\":119,\"regret\":0,\"best\":32,\"tie\":true,"
         "\"reason\":\"\"},"
         "{\"routing\":\"zipf:1.2\",\"us\":90,\"best_us\":80,\"regret\":0.125,\"best\":32,\"tie\":false,"
         "\"reason\":\"\"},"
         "{\"routing\":\"hot:1\",\"us\":null,\"regret\":null,\"best\":null,\"tie\":false,\"reason\":\"not "
         "timed\"}]},"
         "\"promotion\":{\"decision\":\"kept\",\"reason\":\"SAME on w0: -1.0%\",\"source\":\"batch 3\","
         "\"known_us\":99},"
         "\"id\":1,\"class\":\"cpu-x/2\",\"state\":\"done\",\"candidates\":1920,\"steps\":150,"
         "\"measured\":150,\"shape\":" SHAPE("4") "}"},
    {.request = "GET /api/v1/tasks/1/pipelines*", .status = 200, .body = PIPELINES},
    {.request = "GET /api/v1/tasks/1/rejections*",
     .status = 200,
     .body = "{\"items\":[{\"family\":\"lib\",\"kernel\":\"onednn_*\",\"rule\":\"dtype\",\"reason\":\"oneDNN "
             "has no "
             "fp8 here\"}],\"next\":null}"},
    {.request = "GET /api/v1/tasks/1/steps*",
     .status = 200,
     .body = "{\"items\":[{\"id\":2,\"family\":\"tile\",\"name\":\"a\",\"covers\":\"gather+gemm1\","
             "\"status\":\"ok\",\"us\":80},"
             "{\"id\":3,\"family\":\"tile\",\"name\":\"b\",\"covers\":\"gather+gemm1\",\"status\":\"ok\","
             "\"us\":85},"
             "{\"id\":5,\"family\":\"tile\",\"name\":\"d\",\"covers\":\"gemm1\",\"status\":\"ok\",\"us\":75},"
             "{\"id\":4,\"family\":\"tile\",\"name\":\"c\",\"covers\":\"gather+gemm1\",\"status\":\"ok\","
             "\"us\":200,\"registers\":168,\"spills\":48,\"lds\":98304,\"occupancy\":2}],\"next\":null}"},
    /* patterns are tried in order, so the more specific pattern comes first */
    {.request = "GET /api/v1/batches/7/tasks*",
     .status = 200,
     .body = "{\"items\":[" TASK("1", "4", "done", "") "," TASK("2", "8", "done", "") "],\"next\":null}"},
    {.request = "GET /api/v1/batches?*", .status = 200, .body = "{\"items\":[{\"id\":7}],\"next\":null}"},
};

/* A consumer is listed while its race still runs. */
static const struct fake_answer racing_answers[] = {
    {.request = "GET /api/v1/tasks/1",
     .status = 200,
     .body = "{\"config\":null,\"id\":1,\"state\":\"racing\",\"class\":\"cpu-x/2\",\"shape\":" SHAPE(
         "4") ","
              "\"consumers\":[{\"consumer\":\"moefarm\",\"us\":null,\"ratio\":null,\"winner\":[],\"reason\":"
              "\"\"},"
              "{\"consumer\":\"vllm\",\"us\":20,\"ratio\":1.5,\"winner\":[\"vllm:default\"],\"reason\":\"\"}]"
              "}"},
    {.request = "GET /api/v1/tasks/1/*", .status = 200, .body = "{\"items\":[],\"next\":null}"},
};

MF_TEST(rank_of_a_running_race)
{
    fake_http_start(&server, racing_answers, MF_ARRAY_LEN(racing_answers));
    struct ran r = moefarm(server.url, "rank", "1", NULL);
    assert_code(r, 0);
    assert_says(r.out, "  moefarm  not decided yet\n  vllm       20.00 us  1.50x  vllm:default\n");
}

MF_TEST(rank)
{
    struct ran r;

    fake_http_start(&server, task_answers, MF_ARRAY_LEN(task_answers));
    r = moefarm(server.url, "rank", "--shape", "token=4", "--top", "2", NULL);
    assert_code(r, 0);
    ck_assert_str_eq(
        r.out, "task 1  cpu-x/2  T4 H2048 I96 E128 k8 bf16  done: 101.5 us +-0.49% (n 13) by pipeline 31, "
               "statistically tied with 1 other\n"
               "  UNSTABLE: after 3 reruns: it scatters\n"
               "  measured 150 of 1920 candidates (7.8%)\n"
               "  weights as w1=row w2=row, which won the races: 1,200.0 us\n"
               "  kept: SAME on w0: -1.0% (known from batch 3, 99.00 us there)\n"
               "  under balanced: 120.0 us, no regret\n"
               "  under zipf:1.2: 90.00 us, 12.5% slower than pipeline 32 (80.00 us)\n"
               "  under hot:1: not timed\n"
               "  1  pipeline 31  100.5 us +-1% raced (n 20), forecast 110.0 us  winner\n"
               "     sort | gemm1  block_m 16  w1=row w2=row\n"
               "       sort         ########                           20.00 us  sort16\n"
               "       gather+gemm1 ##############################     80.00 us  a\n"
               "  2  pipeline 32  120.0 us +-0.83% raced (n 10), forecast 105.0 us  dropped in round 10\n"
               "     sort | gemm1  block_m 16  w1=row w2=row\n"
               "       sort         ########                           20.00 us  sort16\n"
               "       gather+gemm1 ################################   85.00 us  b\n"
               "… and 2 more (--top)\n");
    r = moefarm(server.url, "rank", "1", NULL);
    assert_says(r.out, "  3  pipeline 33  95.00 us raced (n 0), forecast 100.0 us  other weight layout\n");
    r = moefarm(server.url, "rank", "inter_dim=96", NULL);
    assert_code(r, 2);
    assert_says(r.err, "2 tasks of batch 7 have the shape 'inter_dim=96'; give the number of one:");
    assert_says(r.err, "task 2  cpu-x/2  T8 H2048");
    r = moefarm(server.url, "rank", "token=16", NULL);
    assert_code(r, 2);
}

static const struct {
    const char *kernel, *says;
} why_cases[] = {
    {"lib", "lib:onednn_*: oneDNN has no fp8 here (dtype)\n"},
    {"onednn_x",
     /* the reason for a rejected pattern is printed for every kernel that matches the pattern */
     "lib:onednn_*: oneDNN has no fp8 here (dtype)\n"},
    {"*", "lib:onednn_*: oneDNN has no fp8 here (dtype)\n"},
    {"b", "tile:b covers gather+gemm1 in 85.00 us; tile:a takes 80.00 us. Its best pipeline 32 lost the "
          "race: 120.0 us against 100.5 us "
          "of pipeline 31, dropped in round 10.\n"},
    /* Kernel d is faster, but only in a layout that was not chosen. Kernel b is judged by its pipeline in the
     * chosen layout. */
    {"d", "tile:d covers gemm1 in 75.00 us, the fastest of its kind. Its best pipeline 33, raced at 95.00 "
          "us, needs the weights as "
          "w1=panel16 w2=row: that layout lost the races: 1,234.0 us.\n"},
    {"tile:a",
     "tile:a covers gather+gemm1 in 80.00 us, the fastest of its kind. It is in the winning pipeline 31.\n"},
    {"c",
     "tile:c covers gather+gemm1 in 200.0 us; tile:a takes 80.00 us. It uses 168 registers per thread "
     "and 96.0 KiB of shared memory per block, spills 48 bytes per thread, 2 blocks per SM or CU. No stored "
     "pipeline contains it.\n"},
};

MF_TEST(why, .rows = MF_ARRAY_LEN(why_cases))
{
    struct ran r;

    fake_http_start(&server, task_answers, MF_ARRAY_LEN(task_answers));
    r = moefarm(server.url, "why", "1", why_cases[_i].kernel, NULL);
    assert_code(r, 0);
    assert_says(r.out, why_cases[_i].says);
}

static const struct {
    const char *kernel, *says;
} why_unknown_cases[] = {
    {"tile:f", "no kernel matches 'tile:f'; did you mean 'tile:"},
    {"onednm_x", "no kernel matches 'onednm_x'; did you mean 'lib:onednn_*'?"},
    {"nosuchkernel", "no kernel matches 'nosuchkernel'; leave the name out to list the kernels"},
};

MF_TEST(why_of_an_unknown_kernel_fails, .rows = MF_ARRAY_LEN(why_unknown_cases))
{
    fake_http_start(&server, task_answers, MF_ARRAY_LEN(task_answers));
    struct ran r = moefarm(server.url, "why", "1", why_unknown_cases[_i].kernel, NULL);
    assert_code(r, 2);
    assert_says(r.err, why_unknown_cases[_i].says);
}

/* Text from workers and submitters is printed without terminal control characters such as ESC, BEL and U+009B
 * (CSI). */
static const struct fake_answer control_answers[] = {
    {.request = "GET /api/v1/tasks/1",
     .status = 200,
     .body = "{\"config\":null,\"id\":1,\"state\":\"failed\",\"class\":\"cpu-x/"
             "2\",\"reason\":\"\\u001b]0;owned\\u0007\",\"shape\":" SHAPE("4") "}"},
    {.request = "GET /api/v1/tasks/1/rejections*",
     .status = 200,
     .body = "{\"items\":[{\"family\":\"lib\",\"kernel\":\"x\\u001b[2J\",\"rule\":\"r\",\"reason\":"
             "\"\\u009b31mred\\u007f "
             "\\u00b7\",\"step\":null}],\"next\":null}"},
    {.request = "GET /api/v1/tasks/1/*", .status = 200, .body = "{\"items\":[],\"next\":null}"},
};

MF_TEST(control_characters_are_replaced)
{
    struct ran r;

    fake_http_start(&server, control_answers, MF_ARRAY_LEN(control_answers));
    r = moefarm(server.url, "why", "1", "*", NULL);
    assert_code(r, 0);
    assert_says(r.out, "lib:x?[2J: ??31mred? \xc2\xb7 (r)\n");
    ck_assert(!strchr(r.out, '\x1b') && !strchr(r.err, '\x1b'));
}

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
    return mf_check_main(
        &(struct mf_test_group){.timeout_s = 60, .setup = make_folder, .teardown = teardown});
}
