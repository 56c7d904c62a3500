#include "server/farm/device_claim.h"

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/moe/device_peak.h"

#include <errno.h>
#include <math.h>
#include <string.h>

/* Tolerance of published figures: measuring errors, and products with a higher clock. */
#define PUBLISHED_SLACK 1.5
/* No thread of a CPU does more. The AMX unit of a core executes 2,048 int8 operations per cycle, and a core
 * reads 64 bytes per cycle from its L2 cache; both at 5 GHz. */
#define THREAD_GFLOPS 10240.0
#define THREAD_GBS    320.0

static const struct {
    const char *key;
    int type;
    const char *type_name;
} members[] = {
    {"class", cJSON_String, "a text"},          {"clock_mhz", cJSON_Number, "a number"},
    {"compiler", cJSON_String, "a text"},       {"cores", cJSON_Number, "a number"},
    {"driver", cJSON_String, "a text"},         {"gap_us", cJSON_Number, "a number"},
    {"identity", cJSON_String, "a text"},       {"isa", cJSON_String, "a text"},
    {"lds", cJSON_Number, "a number"},          {"llc", cJSON_Number, "a number"},
    {"memory", cJSON_Number, "a number"},       {"memory_mhz", cJSON_Number, "a number"},
    {"model", cJSON_String, "a text"},          {"mem_read_gbs", cJSON_Number, "a number"},
    {"peak_gflops", cJSON_Object, "an object"},
};

static int refuse_type(const char *object, const cJSON *member, const char *expected, char why[MF_REASON_MAX])
{
    _cleanup_(mf_freep) char *value = mf_json_print(member);
    mf_format(why, MF_REASON_MAX, "device.%s%s: %.100s is not %s; send %s", object, member->string,
              value ? value : "?", expected, expected);
    return -EINVAL;
}

static int check_types(const cJSON *device, char why[MF_REASON_MAX])
{
    const cJSON *peak, *simulated = cJSON_GetObjectItemCaseSensitive(device, "simulated");
    for (size_t i = 0; i < MF_ARRAY_LEN(members); i++) {
        const cJSON *member = cJSON_GetObjectItemCaseSensitive(device, members[i].key);
        if (member && (member->type & 0xff) != members[i].type)
            return refuse_type("", member, members[i].type_name, why);
    }
    if (simulated && !cJSON_IsBool(simulated))
        return refuse_type("", simulated, "true or false", why);
    cJSON_ArrayForEach (peak, mf_json_object(device, "peak_gflops")) {
        if (!cJSON_IsNumber(peak))
            return refuse_type("peak_gflops.", peak, "a number", why);
    }
    return 0;
}

/* The most that a device of a class can reach; 0: unknown. */
struct limits {
    double bf16_gflops, peak_gflops, gbs, cache_bytes;
    char source[64]; /* for messages */
};

static struct limits limits_of_cpu(int threads)
{
    struct limits l = {.bf16_gflops = THREAD_GFLOPS * threads,
                       .peak_gflops = THREAD_GFLOPS * threads,
                       .gbs = THREAD_GBS * threads};
    mf_format(l.source, sizeof(l.source), "that %d CPU threads can reach", threads);
    return l;
}

static struct limits limits_of_gpu(const struct mf_device_class *class)
{
    const struct mf_device_peak *known = mf_device_peak_find(class);
    if (!known)
        return (struct limits){.bf16_gflops = 0};
    double fastest = fmax(fmax(known->tf_16, known->tf_8), fmax(known->tf_4, known->ti_8));
    return (struct limits){.bf16_gflops = PUBLISHED_SLACK * 1e3 * known->tf_16,
                           .peak_gflops = PUBLISHED_SLACK * 1e3 * fastest,
                           .gbs = PUBLISHED_SLACK * known->gbs,
                           .cache_bytes = PUBLISHED_SLACK * 1e6 * known->cache_mb,
                           .source = "that is 1.5 times what the vendor publishes"};
}

static int check_ceiling(const char *key, const char *unit, double value, double limit, const char *source,
                         char why[MF_REASON_MAX])
{
    if (!(value > 0)) {
        mf_format(why, MF_REASON_MAX, "device.%s: missing or 0; measure it and send a number above 0 in %s",
                  key, unit);
        return -EINVAL;
    }
    if (!(limit > 0) || value <= limit)
        return 0;
    mf_format(why, MF_REASON_MAX, "device.%s: %g %s is more than the %g %s %s; measure it again", key, value,
              unit, limit, unit, source);
    return -EINVAL;
}

static int check_ceilings(const cJSON *device, const struct mf_ceilings *c, const struct limits *limits,
                          char why[MF_REASON_MAX])
{
    double bf16 = 0;
    (void)mf_json_double(mf_json_object(device, "peak_gflops"), "bf16", &bf16);
    int r = check_ceiling("peak_gflops.bf16", "GFLOP/s", bf16, limits->bf16_gflops, limits->source, why);
    if (r == 0)
        r = check_ceiling("peak_gflops", "GFLOP/s", c->peak_gflops, limits->peak_gflops, limits->source, why);
    return r < 0 ? r
                 : check_ceiling("mem_read_gbs", "GB/s", c->mem_read_gbs, limits->gbs, limits->source, why);
}

static double dtype_gflops(const struct mf_ceilings *c, const struct mf_device_class *class,
                           const struct mf_device_peak *known, double bf16, enum mf_dtype dtype)
{
    if (!known)
        return c->peak_gflops * mf_device_peak_ratio(class, dtype);
    double published = 1e3 * mf_device_peak_tflops(known, dtype) * fmax(1, bf16 / (1e3 * known->tf_16));
    return mf_dtype_bits(dtype) < 16 ? fmax(published, c->peak_gflops) : published;
}

int mf_device_claim_read(const cJSON *device, const struct mf_device_class *class, bool simulated,
                         struct mf_ceilings *ret, char why[MF_REASON_MAX])
{
    const cJSON *peak;
    double bf16 = 0;
    struct mf_ceilings c = {.cpu_threads = mf_device_class_is_cpu(class) ? class->cu_num : 0};
    int r = check_types(device, why);
    if (r < 0)
        return r;
    cJSON_ArrayForEach (peak, mf_json_object(device, "peak_gflops"))
        c.peak_gflops = fmax(c.peak_gflops, peak->valuedouble);
    (void)mf_json_double(device, "mem_read_gbs", &c.mem_read_gbs);
    (void)mf_json_double(device, "llc", &c.llc_bytes);
    (void)mf_json_double(device, "gap_us", &c.gap_us);
    const struct mf_device_peak *known = simulated ? NULL : mf_device_peak_find(class);
    (void)mf_json_double(mf_json_object(device, "peak_gflops"), "bf16", &bf16);
    for (int i = 0; i < MF_DTYPE_N_; i++)
        c.dtype_gflops[i] = dtype_gflops(&c, class, known, bf16, (enum mf_dtype)i);
    struct limits limits = c.cpu_threads ? limits_of_cpu(c.cpu_threads) : limits_of_gpu(class);
    if (!simulated && limits.cache_bytes > 0)
        c.llc_bytes = fmin(c.llc_bytes, limits.cache_bytes);
    r = simulated ? 0 : check_ceilings(device, &c, &limits, why);
    if (r == 0)
        *ret = c;
    return r;
}
