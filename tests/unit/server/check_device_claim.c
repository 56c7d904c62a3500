#include "server/farm/device_claim.h"

#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "support/mf_check.h"

#define CEILINGS "\"peak_gflops\":{\"bf16\":1e6},\"mem_read_gbs\":5000"
/* device: members of the object; reason: NULL if it is accepted */
static const struct {
    const char *class;
    bool simulated;
    const char *device, *reason;
} claims[] = {
    {"gfx942/304", false, CEILINGS, NULL},
    {"gfx942/304", false, CEILINGS ",\"unknown\":[]", NULL},
    {"gfx942/304", true, "", NULL},
    {"cpu-x/2", true, "\"gap_us\":1", NULL},
    {"gfx942/304", false, "", "device.peak_gflops.bf16: missing or 0; measure it"},
    {"cpu-x/2", false, "", "device.peak_gflops.bf16: missing or 0"},
    {"gfx942/304", false, "\"peak_gflops\":{\"fp8\":1e6},\"mem_read_gbs\":5000",
     "device.peak_gflops.bf16: missing"},
    {"gfx942/304", false, "\"peak_gflops\":{\"bf16\":1e6}", "device.mem_read_gbs: missing or 0"},
    {"gfx942/304", false, "\"peak_gflops\":{\"bf16\":1e6},\"mem_read_gbs\":0",
     "device.mem_read_gbs: missing or 0"},
    {"gfx942/304", true, "\"peak_gflops\":[]", "device.peak_gflops: [] is not an object; send an object"},
    {"gfx942/304", false, "\"peak_gflops\":{\"bf16\":1e6,\"fp8\":[]},\"mem_read_gbs\":5000",
     "device.peak_gflops.fp8: [] is not a number"},
    {"gfx942/304", false, "\"peak_gflops\":{\"bf16\":1e6},\"mem_read_gbs\":\"\"",
     "device.mem_read_gbs: \"\" is not a number"},
    {"gfx942/304", false, CEILINGS ",\"llc\":[]", "device.llc: [] is not a number"},
    {"gfx942/304", false, CEILINGS ",\"gap_us\":\"\"", "device.gap_us: \"\" is not a number"},
    {"gfx942/304", false, CEILINGS ",\"cores\":null", "device.cores: null is not a number"},
    {"gfx942/304", true, "\"compiler\":5", "device.compiler: 5 is not a text; send a text"},
    {"gfx942/304", false, CEILINGS ",\"simulated\":\"no\"", "device.simulated: \"no\" is not true or false"},
    {"gfx942/304", false, "\"peak_gflops\":{\"bf16\":2e6},\"mem_read_gbs\":5000",
     "device.peak_gflops.bf16: 2e+06 GFLOP/s is more than the 1.9611e+06 GFLOP/s that is 1.5 times what the"},
    {"gfx942/304", false, "\"peak_gflops\":{\"bf16\":1e6,\"fp8\":1e8},\"mem_read_gbs\":5000",
     "device.peak_gflops: 1e+08 GFLOP/s is more than the 3.92235e+06 GFLOP/s"},
    {"gfx942/304", false, "\"peak_gflops\":{\"bf16\":1e6},\"mem_read_gbs\":477000",
     "device.mem_read_gbs: 477000 GB/s is more than the 9000 GB/s"},
    {"gfx999/304", false, "\"peak_gflops\":{\"bf16\":1e8},\"mem_read_gbs\":477000",
     NULL}, /* unknown product */
    /* a 96-core server with AMX, and its memory; a CPU that claims more than its threads can reach */
    {"cpu-graniterapids/96", false,
     "\"peak_gflops\":{\"bf16\":3e5,\"f32\":2e4},\"mem_read_gbs\":800,\"llc\":5e8", NULL},
    {"cpu-x/2", false, "\"peak_gflops\":{\"bf16\":21000},\"mem_read_gbs\":50",
     "device.peak_gflops.bf16: 21000 GFLOP/s is more than the 20480 GFLOP/s that 2 CPU threads can"},
    {"cpu-x/2", false, "\"peak_gflops\":{\"bf16\":200,\"f32\":1e9},\"mem_read_gbs\":50",
     "device.peak_gflops: 1e+09 GFLOP/s is more than the 20480"},
    {"cpu-x/2", false, "\"peak_gflops\":{\"bf16\":200},\"mem_read_gbs\":641",
     "device.mem_read_gbs: 641 GB/s is more than the 640 GB/s"},
};

MF_TEST(claims_are_checked, .rows = MF_ARRAY_LEN(claims))
{
    char text[400], why[MF_REASON_MAX] = "";
    struct mf_device_class class;
    struct mf_ceilings ceilings;
    (void)snprintf(text, sizeof(text), "{%s}", claims[_i].device);
    _cleanup_(cJSON_Deletep) cJSON *device = cJSON_Parse(text);
    ck_assert_ptr_nonnull(device);
    ck_assert_int_eq(mf_device_class_parse(claims[_i].class, &class), 0);
    int r = mf_device_claim_read(device, &class, claims[_i].simulated, &ceilings, why);
    ck_assert_msg(r == (claims[_i].reason ? -EINVAL : 0), "%s: %d %s", text, r, why);
    ck_assert_msg(!claims[_i].reason || strstr(why, claims[_i].reason), "%s: %s", text, why);
}

MF_TEST(ceilings_are_read)
{
    char why[MF_REASON_MAX];
    struct mf_ceilings c;
    _cleanup_(cJSON_Deletep) cJSON *device = cJSON_Parse(
        "{\"peak_gflops\":{\"bf16\":1e6,\"fp8\":2e6,\"f32\":5},\"mem_read_gbs\":5000,\"gap_us\":2,"
        "\"llc\":1e15}");
    const struct mf_device_class gpu = {"gfx942", 304}, cpu = {"cpu-znver4", 2};
    ck_assert_int_eq(mf_device_claim_read(device, &gpu, false, &c, why), 0);
    ck_assert_double_eq(c.peak_gflops, 2e6);
    ck_assert_double_eq(c.mem_read_gbs, 5000);
    ck_assert_double_eq(c.gap_us, 2);
    ck_assert_double_eq(c.llc_bytes, 1.5 * 288e6); /* of the product at most */
    ck_assert_int_eq(c.cpu_threads, 0);
    ck_assert_int_eq(mf_device_claim_read(device, &cpu, true, &c, why), 0);
    ck_assert_double_eq(c.llc_bytes, 1e15);
    ck_assert_int_eq(c.cpu_threads, 2);
}

int main(void)
{
    return mf_check_main(NULL);
}
