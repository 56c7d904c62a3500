/* Tests workers that lie about their device or about their kernels, so that impossible times look plausible.
 * The farm must refuse the claim or judge the times as implausible. Uses a real moefarmd with fake workers.
 */
#include "support/mf_check.h"

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "support/farm/fake_farm.h"

#include <stdio.h>
#include <string.h>

/* ---- devices ---- */

/* device: of a worker whose device is not simulated */
static const struct {
    const char *device, *reason;
} device_claims[] = {
    {"", "device.peak_gflops.bf16: missing or 0; measure it"},
    {"\"peak_gflops\":{\"bf16\":1e6},\"mem_read_gbs\":\"\"", "device.mem_read_gbs: \"\" is not a number"},
    {"\"peak_gflops\":{\"bf16\":1e8},\"mem_read_gbs\":5000", "that is 1.5 times what the vendor publishes"},
};

/* HELLO and BEAT with such a device are refused, and it is not stored. */
MF_TEST(refuses_false_devices, .rows = MF_ARRAY_LEN(device_claims))
{
    struct fake_farm f;
    struct fake_worker w, other;
    fake_farm_start(&f);
    ck_assert_int_eq(fake_worker_open(&w, f.zmq, f.process.hub, "w"), 0);
    ck_assert_int_eq(fake_worker_send(&w, MF_MESSAGE_HELLO,
                                      "{\"worker\":\"w\",\"instance\":\"i\",\"class\":\"gfx942/304\","
                                      "\"model\":\"m\",\"device\":{%s},\"revision\":\"r1\",\"families\":{},"
                                      "\"simulated\":false}",
                                      device_claims[_i].device),
                     0);
    fake_farm_expect_refusal(&w, device_claims[_i].reason);
    ck_assert_double_eq(fake_farm_number(&f, "SELECT count(*) FROM worker"), 0);
    ck_assert_int_eq(fake_worker_open(&other, f.zmq, f.process.hub, "other"), 0);
    other.real = true;
    ck_assert_int_eq(fake_worker_greet(&other, "[]", FAKE_FARM_LIMIT_MS), 0);
    ck_assert_int_eq(fake_worker_send(&other, MF_MESSAGE_BEAT, "{\"running\":[],\"busy\":{},\"device\":{%s}}",
                                      device_claims[_i].device),
                     0);
    fake_farm_expect_refusal(&other, device_claims[_i].reason);
    ck_assert_double_eq(fake_farm_number(&f, "SELECT device ->> '$.mem_read_gbs' FROM worker"), 8000);
    fake_worker_close(&w);
    fake_worker_close(&other);
    fake_farm_stop(&f);
}

static const struct {
    const char *class;
    double peak_gflops, mem_read_gbs;
    const char *reason; /* "": trusted */
} ceilings[] = {
    {"gfx999/8", 4e6, 1000, "its peak is 4e+06 GFLOP/s; the median of 2 other workers"},
    {"gfx999/8", 1e6, 4000, "its memory bandwidth is 4e+03 GB/s; the median of 2 other workers"},
    {"gfx999/8", 2e6, 2000, ""},
    {"cpu-x/9999", 4e6, 4000, ""}, /* the others may be busy */
    {"cpu-x/9999", 1e6, 2e6, "its memory bandwidth is 2e+06 GB/s"},
};

static void join_real(struct fake_farm *f, struct fake_worker *w, const char *name, const char *class)
{
    ck_assert_int_eq(fake_worker_open(w, f->zmq, f->process.hub, name), 0);
    w->real = true;
    w->class = class;
    w->peak_gflops = 1e6;
    w->mem_read_gbs = 1000;
}

/* Two workers of a model claim ceilings of 1e6 GFLOP/s and 1000 GB/s, one claims more in HELLO. */
MF_TEST(ceilings_need_a_majority, .rows = MF_ARRAY_LEN(ceilings))
{
    static const char *const names[] = {"a", "b", "hostile"};
    struct fake_farm f;
    struct fake_worker w[3];
    fake_farm_start(&f);
    for (int i = 0; i < 3; i++) {
        join_real(&f, &w[i], names[i], ceilings[_i].class);
        if (i == 2) {
            w[i].peak_gflops = ceilings[_i].peak_gflops;
            w[i].mem_read_gbs = ceilings[_i].mem_read_gbs;
        }
        ck_assert_int_eq(fake_worker_greet(&w[i], "[]", FAKE_FARM_LIMIT_MS), 0);
    }
    fake_farm_expect_quarantine(&f, "a", "");
    fake_farm_expect_quarantine(&f, "hostile", ceilings[_i].reason);
    for (int i = 0; i < 3; i++)
        fake_worker_close(&w[i]);
    fake_farm_stop(&f);
}

static void beat(struct fake_worker *w, const char *peaks, double mem_read_gbs)
{
    ck_assert_int_eq(fake_worker_send(w, MF_MESSAGE_BEAT,
                                      "{\"running\":[],\"busy\":{},\"device\":{\"peak_gflops\":{%s},"
                                      "\"mem_read_gbs\":%g}}",
                                      peaks, mem_read_gbs),
                     0);
    _cleanup_(cJSON_Deletep) cJSON *answer = fake_worker_await(w, MF_MESSAGE_BEAT, FAKE_FARM_LIMIT_MS);
    ck_assert_ptr_nonnull(answer);
}

static const struct {
    const char *peaks;
    double mem_read_gbs;
    const char *reason; /* "": trusted */
} raised[] = {
    {"\"bf16\":4e6", 1000, "its peak is 4e+06 GFLOP/s"},
    {"\"bf16\":1e6,\"other\":4e6", 1000, "its peak is 4e+06 GFLOP/s"}, /* the fastest data type counts */
    {"\"bf16\":1e6", 4000, "its memory bandwidth is 4e+03 GB/s"},
    {"\"bf16\":1.2e6", 1100, ""}, /* measured again after a busy minute */
};

/* A worker claims more in BEAT than in HELLO. The ceilings that it has claimed once apply to its results, so
 * claiming less later does not end its quarantine. */
MF_TEST(raised_ceilings_need_a_majority, .rows = MF_ARRAY_LEN(raised))
{
    static const char *const names[] = {"a", "b", "hostile"};
    struct fake_farm f;
    struct fake_worker w[3];
    fake_farm_start(&f);
    for (int i = 0; i < 3; i++) {
        join_real(&f, &w[i], names[i], "gfx999/8");
        ck_assert_int_eq(fake_worker_greet(&w[i], "[]", FAKE_FARM_LIMIT_MS), 0);
    }
    fake_farm_expect_quarantine(&f, "hostile", "");
    beat(&w[2], raised[_i].peaks, raised[_i].mem_read_gbs);
    fake_farm_expect_quarantine(&f, "hostile", raised[_i].reason);
    beat(&w[2], "\"bf16\":1e6", 1000);
    fake_farm_expect_quarantine(&f, "hostile", raised[_i].reason);
    for (int i = 0; i < 3; i++)
        fake_worker_close(&w[i]);
    fake_farm_stop(&f);
}

/* ---- times ---- */

static double one_us(const struct fake_worker *w, const char *name)
{
    (void)w;
    (void)name;
    return 1;
}

static double time_10ns(const struct fake_worker *w, const char *name)
{
    (void)w;
    (void)name;
    return 0.01;
}

/* us: of every step. The worker says that its steps have no FLOPs and no bytes. The shape has 1 token and 8
 * active experts: GEMM2 has 3.1 MFLOP and reads 3.1 MB of weights. */
static const struct {
    double (*us)(const struct fake_worker *w, const char *name);
    const char *class;
    double peak_gflops, mem_read_gbs;
} impossible[] = {
    {time_10ns, "gfx942/304", 1.5e6, 8000}, /* shorter than any launch */
    {one_us, "gfx999/8", 1000, 8000},       /* 3,100 GFLOP/s */
    {one_us, "gfx942/304", 1.5e6, 100},     /* 3,100 GB/s, which no cache has */
    {time_10ns, "cpu-x/9999", 1e6, 1000},   /* 310,000 GB/s */
};

/* An impossible time decides no step with a GEMM, whatever costs the worker reported for its steps. */
MF_TEST(impossible_times_are_implausible, .rows = MF_ARRAY_LEN(impossible))
{
    struct fake_farm f;
    struct fake_worker w;
    fake_farm_start(&f);
    ck_assert_int_eq(fake_worker_open(&w, f.zmq, f.process.hub, "w"), 0);
    w.real = true;
    w.class = impossible[_i].class;
    w.us = impossible[_i].us;
    w.peak_gflops = impossible[_i].peak_gflops;
    w.mem_read_gbs = impossible[_i].mem_read_gbs;
    w.flops = w.bytes = 0;
    ck_assert_int_eq(fake_worker_greet(&w, "[]", FAKE_FARM_LIMIT_MS), 0);
    fake_farm_finish(&f, &w, fake_farm_submit(&f, 1, ""));
    ck_assert_double_eq(fake_farm_number(&f, "SELECT count(r.us) FROM result r JOIN step s ON s.id = r.step"
                                             " WHERE r.status = 'ok' AND s.covers LIKE '%gemm%'"),
                        0);
    ck_assert_double_gt(fake_farm_number(&f, "SELECT count(*) FROM result WHERE status = 'implausible'"), 0);
    ck_assert_double_eq(fake_farm_number(&f, "SELECT count(*) FROM config"), 0);
    fake_worker_close(&w);
    fake_farm_stop(&f);
}

static const struct {
    const char *routing;
    double n_configs;
} routings[] = {
    {"uniform", 0},  /* at least 100 experts, of which GEMM1 reads 78 MB */
    {"balanced", 0}, /* all 128 experts */
    {"zipf:4", 1},   /* perhaps only 8 experts, of which GEMM1 reads 6 MB */
    {"router:softmax", 1},
};

/* A time that is impossible for 64 tokens with uniform routing is possible if all tokens take the same
 * experts. The caches of the device read at most 20,000 GB/s. */
MF_TEST(fewer_experts_take_less_time, .rows = MF_ARRAY_LEN(routings))
{
    struct fake_farm f;
    struct fake_worker w;
    char query[64];
    fake_farm_start(&f);
    join_real(&f, &w, "w", "gfx999/8");
    w.us = one_us;
    ck_assert_int_eq(fake_worker_greet(&w, "[]", FAKE_FARM_LIMIT_MS), 0);
    (void)snprintf(query, sizeof(query), "&routing=%s", routings[_i].routing);
    fake_farm_finish(&f, &w, fake_farm_submit(&f, 7, query));
    ck_assert_double_eq(
        fake_farm_number(&f, "SELECT count(*) FROM config c JOIN task t ON t.id = c.task JOIN shape s"
                             " ON s.id = t.shape WHERE s.token = 64"),
        routings[_i].n_configs);
    fake_worker_close(&w);
    fake_farm_stop(&f);
}

int main(void)
{
    return mf_check_main(NULL);
}
