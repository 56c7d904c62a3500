#include "measure/session/unit.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "common/base/json.h"

MF_NAMES_DEFINE(mf_phase, MF_PHASE_, MF_PHASE_MAP)

#define DEFAULT_TIME_CAP_MS 10000

static int parse_routing(const cJSON *json, struct mf_routing *ret)
{
    const char *text;
    int r = mf_json_text(json, "routing", &text);
    return r < 0 ? r : mf_routing_parse(text, ret);
}

static int parse_err_ratio(const cJSON *json, double *ret)
{
    double value;
    int r = mf_json_double(json, "err_ratio", &value);
    if (r < 0)
        return r;
    if (!(value >= 0 && value <= 1))
        return -EINVAL;
    *ret = value;
    return 0;
}

static int parse_seed(const cJSON *json, uint64_t *ret)
{
    int64_t value;
    int r = mf_json_i64(json, "seed", 0, INT64_C(1) << 53, &value);
    if (r == 0)
        *ret = (uint64_t)value;
    return r;
}

static int parse_search(const cJSON *json, bool *ret_exhaustive)
{
    const char *text;
    int r = mf_json_text(json, "search", &text);
    if (r < 0)
        return r;
    if (strcmp(text, "race") != 0 && strcmp(text, "exhaustive") != 0)
        return -EINVAL;
    *ret_exhaustive = text[0] == 'e';
    return 0;
}

int mf_unit_options_parse(const cJSON *json, struct mf_unit_options *ret, const char **ret_field)
{
    struct mf_unit_options o = {
        .routing = {.kind = MF_ROUTING_UNIFORM},
        .err_ratio = 0.1,
        .seed = 1,
        .time_cap_ms = DEFAULT_TIME_CAP_MS,
    };
    if (json && !cJSON_IsObject(json)) {
        *ret_field = "options";
        return -EINVAL;
    }
    const struct {
        const char *field;
        int r;
    } parsed[] = {
        {"routing", parse_routing(json, &o.routing)},
        {"err_ratio", parse_err_ratio(json, &o.err_ratio)},
        {"seed", parse_seed(json, &o.seed)},
        {"time_cap_ms", mf_json_i64(json, "time_cap_ms", 1, 3600000, &o.time_cap_ms)},
        {"warmup", mf_json_i64(json, "warmup", 0, 1000, &o.warmup)},
        {"search", parse_search(json, &o.exhaustive)},
    };
    for (size_t i = 0; i < MF_ARRAY_LEN(parsed); i++) {
        if (parsed[i].r < 0 && parsed[i].r != -ENOENT) {
            *ret_field = parsed[i].field;
            return -EINVAL;
        }
    }
    *ret = o;
    return 0;
}

struct mf_unit_result mf_unit_result_unmeasured(int64_t id, bool is_pipeline)
{
    return (struct mf_unit_result){.id = id,
                                   .is_pipeline = is_pipeline,
                                   .status = MF_STATUS_OK,
                                   .us = NAN,
                                   .mad = NAN,
                                   .err = NAN,
                                   .row_err = NAN,
                                   .row_limit = NAN,
                                   .canary = NAN,
                                   .mode = ""};
}
