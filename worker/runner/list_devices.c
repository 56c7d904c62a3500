#include "worker/runner/list_devices.h"

#include <errno.h>
#include <stdio.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "worker/agent/runner_pool.h"
#include "worker/runner/device_info.h"
#include "worker/runner/device_query.h"

#define TIMEOUT_MS 60000
#define GIB        (1024.0 * 1024 * 1024)

void mf_print_described(const char *name, const cJSON *described)
{
    struct mf_device_info d;
    const char *field, *indent = "              ";
    if (mf_device_info_parse(described, &d, &field) < 0) {
        printf("%-13s not usable: described.%s missing or invalid\n", name, field);
        return;
    }
    char class[MF_DEVICE_CLASS_TEXT_MAX];
    mf_device_class_print(&d.class, class);
    printf("%-13s %s: %s, %s\n", name, class, d.model, d.isa);
    printf("%s%.1f GiB, %d %s, last-level cache %.0f MiB", indent, (double)d.memory_bytes / GIB, d.cores,
           d.lds_bytes ? "compute units" : "threads", (double)d.llc_bytes / (1024 * 1024));
    if (d.lds_bytes)
        printf(", %.0f KiB shared memory per block, %.0f MHz, memory %.0f MHz", (double)d.lds_bytes / 1024,
               d.clock_mhz, d.memory_mhz);
    printf("\n");
    if (d.driver[0])
        printf("%s%s, compiler %s, %s\n", indent, d.driver, d.compiler, d.identity);
    printf("%smemory read %.0f GB/s, bf16 %.0f GFLOP/s", indent, d.mem_read_gbs, d.peak_gflops_bf16);
    if (d.peak_gflops_fp8 > 0)
        printf(", fp8 %.0f GFLOP/s", d.peak_gflops_fp8);
    printf(", launch gap %.2f us\n", d.gap_us);
}

/* Describes the device through a runner, as a worker does, so that no driver is loaded into this process. */
static int describe(struct mf_runner_pool *runner_pool)
{
    int64_t until = mf_now_ms() + TIMEOUT_MS;
    while (mf_now_ms() < until) {
        _cleanup_(cJSON_Deletep) cJSON *message = NULL;
        enum mf_runner_pool_event event = mf_runner_pool_iterate(runner_pool, &message, until);
        if (event == MF_RUNNER_POOL_READY)
            return 0;
        if (event == MF_RUNNER_POOL_FAILED)
            return -ENODEV;
    }
    return -ETIMEDOUT;
}

static void list(const char *const *argv, enum mf_isolation isolation, const char *name)
{
    struct mf_runner_pool *runner_pool = NULL;
    struct mf_runner_pool_options o = {.argv = argv, .isolation = isolation, .keep_bytes = 1 << 20};
    int r = mf_runner_pool_new(&o, &runner_pool);
    if (r == 0)
        r = describe(runner_pool);
    if (r == 0)
        mf_print_described(name, mf_runner_pool_described(runner_pool));
    else
        printf("%-13s not usable: %s\n", name,
               r == -ETIMEDOUT ? "no answer within a minute"
               : runner_pool   ? mf_runner_pool_why(runner_pool)
                               : "out of memory");
    mf_runner_pool_free(runner_pool);
}

int mf_list_devices(const char *const *argv, enum mf_isolation isolation, char *device, size_t device_cap)
{
    static const char *const vendors[] = {"nvidia", "amd"};
    mf_format(device, device_cap, "cpu:0");
    list(argv, isolation, device);
    for (size_t i = 0; i < MF_ARRAY_LEN(vendors); i++) {
        char why[256];
        int n = mf_device_query_count(vendors[i], why, sizeof(why));
        if (n < 0)
            printf("hip:%-9s not usable: %s\n", vendors[i], why);
        for (int ordinal = 0; ordinal < n; ordinal++) {
            mf_format(device, device_cap, "hip:%s:%d", vendors[i], ordinal);
            list(argv, isolation, device);
        }
    }
    printf("sim           sim:<class>:<ordinal>[:<spec file>] simulates a device; select it with "
           "--device\n");
    return 0;
}
