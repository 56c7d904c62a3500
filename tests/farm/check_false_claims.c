/* Tests workers that lie about their device or about their kernels, so that impossible times look plausible.
 * The farm must refuse the claim or judge the times as implausible. Uses a real moefarmd with fake workers.
 */
#include "support/mf_check.h"

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "support/farm/fake_farm.h"

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
    ck_assert_double_eq(fake_farm_number(&f, "SELECT device ->> '$.mem_read_gbs' FROM worker"), 100);
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

int main(void)
{
    return mf_check_main(NULL);
}
