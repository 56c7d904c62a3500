#include "worker/runner/python_rows.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/array.h"
#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "worker/runner/python_enumerator.h"

/* A production operator may sum with atomic additions, in any order. */
#define REORDER_TOLERANCE 0.01

/* Describes the step of a row: the whole layer, as the farm describes it to families. */
static int describe(const char *family, const char *name, const struct mf_shape *shape, struct mf_step *ret)
{
    _cleanup_(cJSON_Deletep) cJSON *described = mf_python_shape(shape);
    cJSON *layer = cJSON_GetObjectItemCaseSensitive(described, "layer");
    const char *field;
    if (!layer)
        return -ENOMEM;
    if (!cJSON_AddStringToObject(layer, "name", name) || !cJSON_AddStringToObject(layer, "family", family) ||
        !cJSON_AddStringToObject(layer, "stage", mf_stage_name(MF_STAGE_ONE)) ||
        !mf_json_add_i64(layer, "block_m", 0) || !mf_json_add_i64(layer, "ksplit", 0) ||
        !mf_json_add_i64(layer, "workspace", 0) ||
        !cJSON_AddNumberToObject(layer, "reorder_tolerance", REORDER_TOLERANCE) ||
        !cJSON_AddBoolToObject(layer, "aiter", false) || !cJSON_AddBoolToObject(layer, "foreign", true))
        return -ENOMEM;
    return mf_step_from_json(layer, ret, &field);
}

static const struct mf_python_row *find_same(const struct mf_python_rows *r, const struct mf_shape *shape,
                                             const char *json)
{
    for (size_t i = 0; i < r->n; i++) {
        if (strcmp(r->items[i].json, json) == 0 && mf_shape_equal(&r->items[i].shape, shape))
            return &r->items[i];
    }
    return NULL;
}

static int add(struct mf_python_rows *r, const char *family, const struct mf_shape *shape, const char *json)
{
    char name[MF_STEP_NAME_MAX];
    int x = mf_array_grow(&r->items, r->n, &r->cap, sizeof(*r->items));
    if (x < 0)
        return x;
    struct mf_python_row *row = &r->items[r->n];
    *row = (struct mf_python_row){.shape = *shape};
    mf_format(name, sizeof(name), "row_%zu", r->n + 1);
    x = describe(family, name, shape, &row->step);
    if (x < 0)
        return x;
    row->json = strdup(json);
    if (!row->json)
        return -ENOMEM;
    r->n++;
    return 0;
}

int mf_python_rows_add(struct mf_python_rows *r, const char *family, const struct mf_shape *shape,
                       const char *json, struct mf_step *ret)
{
    const struct mf_python_row *same = find_same(r, shape, json);
    int x = same ? 0 : add(r, family, shape, json);
    if (x == 0)
        *ret = same ? same->step : r->items[r->n - 1].step;
    return x;
}

const struct mf_python_row *mf_python_rows_find(const struct mf_python_rows *r, const char *name)
{
    for (size_t i = 0; i < r->n; i++) {
        if (strcmp(r->items[i].step.name, name) == 0)
            return &r->items[i];
    }
    return NULL;
}

void mf_python_rows_release(struct mf_python_rows *r)
{
    for (size_t i = 0; i < r->n; i++)
        free(r->items[i].json);
    free(r->items);
    *r = (struct mf_python_rows){0};
}
