#include "worker/runner/unit_request.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"

#define STEPS_MAX 65536

void mf_unit_request_release(struct mf_unit_request *q)
{
    for (size_t i = 0; q->entries && i < q->n + q->n_dropped; i++)
        free((void *)q->entries[i].steps);
    free(q->entries);
    free(q->steps);
}

int mf_unit_shape_parse(const cJSON *message, struct mf_shape *ret)
{
    const char *text;
    int r = mf_json_text(message, "shape", &text);
    return r < 0 ? r : mf_shape_parse(text, ret);
}

static int parse_steps(const cJSON *array, struct mf_unit_request *q, const char **ret_field)
{
    const cJSON *item;
    q->steps = calloc((size_t)cJSON_GetArraySize(array) + 1, sizeof(*q->steps));
    if (!q->steps)
        return -ENOMEM;
    cJSON_ArrayForEach (item, array) {
        struct mf_probe_step *p = &q->steps[q->n++];
        *ret_field = "id";
        if (mf_json_i64(item, "id", 0, INT64_C(1) << 53, &p->id) < 0 ||
            mf_step_from_json(item, &p->step, ret_field) < 0)
            return -EINVAL;
    }
    return 0;
}

static int parse_entry(const cJSON *json, struct mf_race_entry *entry, const char **ret_field)
{
    const cJSON *array = mf_json_array(json, "steps"), *item;
    *ret_field = "pipelines.id";
    if (mf_json_i64(json, "id", 0, INT64_C(1) << 53, &entry->id) < 0)
        return -EINVAL;
    *ret_field = "pipelines.group";
    int64_t group = 0;
    if (mf_json_i64(json, "group", 0, MF_RACE_GROUPS_MAX - 1, &group) == -EINVAL)
        return -EINVAL;
    entry->group = (int)group;
    *ret_field = "pipelines.forecast_us";
    if (mf_json_double(json, "forecast_us", &entry->forecast_us) < 0)
        return -EINVAL;
    *ret_field = "pipelines.steps";
    if (!array || cJSON_GetArraySize(array) < 1 || cJSON_GetArraySize(array) > MF_OP_N_ * 2)
        return -EINVAL;
    struct mf_step *steps = calloc((size_t)cJSON_GetArraySize(array), sizeof(*steps));
    if (!steps)
        return -ENOMEM;
    entry->steps = steps;
    cJSON_ArrayForEach (item, array) {
        if (mf_step_from_json(item, &steps[entry->n_steps++], ret_field) < 0)
            return -EINVAL;
    }
    return 0;
}

static int parse_pipelines(const cJSON *array, struct mf_unit_request *q, const char **ret_field)
{
    const cJSON *item;
    q->entries = calloc((size_t)cJSON_GetArraySize(array) + 1, sizeof(*q->entries));
    if (!q->entries)
        return -ENOMEM;
    cJSON_ArrayForEach (item, array) {
        int r = parse_entry(item, &q->entries[q->n++], ret_field);
        if (r < 0)
            return r;
    }
    return 0;
}

int mf_unit_request_parse(const cJSON *unit, const char *kind, struct mf_unit_request *q,
                          const char **ret_field)
{
    *ret_field = "shape";
    if (mf_unit_shape_parse(unit, &q->shape) < 0)
        return -EINVAL;
    if (mf_unit_options_parse(cJSON_GetObjectItemCaseSensitive(unit, "options"), &q->options, ret_field) < 0)
        return -EINVAL;
    q->best = mf_json_object(unit, "best_us");
    bool race = strcmp(kind, "race") == 0;
    const cJSON *array = mf_json_array(unit, race ? "pipelines" : "steps");
    *ret_field = race ? "pipelines" : "steps";
    if (!array || cJSON_GetArraySize(array) > STEPS_MAX)
        return -EINVAL;
    if (!race)
        return parse_steps(array, q, ret_field);
    int r = parse_pipelines(array, q, ret_field);
    if (r < 0)
        return r;
    *ret_field = "plan";
    return mf_race_plan_parse(cJSON_GetObjectItemCaseSensitive(unit, "plan"), &q->plan, ret_field);
}
