#include "worker/runner/python_tensors.h"

#include <errno.h>
#include <stdint.h>

#include "common/base/json.h"
#include "common/base/text.h"
#include "kernels/core/codec.h"

static const char *const element_types[MF_FORMAT_N_] = {
    [MF_FORMAT_INDEX] = "int32",
    [MF_FORMAT_F32] = "float32",
    [MF_FORMAT_BF16] = "bfloat16",
    [MF_FORMAT_FP8FN] = "float8_e4m3fn",
    [MF_FORMAT_FP8FNUZ] = "float8_e4m3fnuz",
    [MF_FORMAT_FP16] = "float16",
    [MF_FORMAT_INT8] = "int8",
    [MF_FORMAT_INT4] = "int4_x2",
    [MF_FORMAT_FP4] = "float4_e2m1fn_x2",
};

static const char *const scale_types[] = {
    [MF_SCALE_F32] = "float32",
    [MF_SCALE_BF16] = "bfloat16",
    [MF_SCALE_E8M0] = "float8_e8m0fnu",
    [MF_SCALE_E4M3] = "float8_e4m3fn",
};

static const char *dtype_of(const struct mf_tensor_spec *a, int part)
{
    const struct mf_codec *codec = mf_codec_find(a->format, a->scale);
    if (a->format == MF_FORMAT_INDEX)
        return part == 1 && a->tensor != MF_TENSOR_ALIGNED ? "float32" : "int32";
    if (part == 1 && codec)
        return scale_types[codec->scale_format];
    return part == 0 ? element_types[a->format] : "float32";
}

static bool is_stacked(const struct mf_tensor_spec *a)
{
    return mf_tensor_spec_is_weight(a) || mf_tensor_spec_is_decoded(a);
}

/* True for a part of a weight with one value per expert. */
static bool is_per_expert(const struct mf_tensor_spec *a, int part)
{
    return is_stacked(a) && (part == 2 || (part == 1 && a->scale == MF_SCALE_PER_TENSOR));
}

/* Weights are [E, N, K], their scales [E, rows, cols]. Values per expert and columns of index tensors have
 * one dimension. */
static int add_shape(cJSON *tensor, const struct mf_tensor_spec *a, int i, const struct mf_part *part,
                     const struct mf_shape *shape)
{
    int64_t dims[3] = {part->rows, part->cols};
    bool column = a->format == MF_FORMAT_INDEX && part->cols == 1;
    int n = column || is_per_expert(a, i) ? 1 : 2;
    if (is_stacked(a) && !is_per_expert(a, i)) {
        dims[0] = shape->expert;
        dims[1] = part->rows / shape->expert;
        dims[2] = part->cols;
        n = 3;
    }
    cJSON *array = cJSON_AddArrayToObject(tensor, "shape");
    for (int d = 0; array && d < n; d++) {
        cJSON *number = cJSON_CreateNumber((double)dims[d]);
        if (!cJSON_AddItemToArray(array, number)) {
            cJSON_Delete(number);
            return -ENOMEM;
        }
    }
    return array ? 0 : -ENOMEM;
}

static cJSON *add_tensor(cJSON *array, const char *name, const char *dtype, const void *at, bool writable)
{
    cJSON *tensor = cJSON_CreateObject();
    if (!cJSON_AddItemToArray(array, tensor)) {
        cJSON_Delete(tensor);
        return NULL;
    }
    return cJSON_AddStringToObject(tensor, "name", name) && cJSON_AddStringToObject(tensor, "dtype", dtype) &&
                   mf_json_add_i64(tensor, "pointer", (int64_t)(uintptr_t)at) &&
                   cJSON_AddBoolToObject(tensor, "writable", writable)
               ? tensor
               : NULL;
}

static int add_spec(cJSON *array, const struct mf_tensor_spec *a, const struct mf_shape *shape,
                    const struct mf_tensor_ref *ref, bool writable)
{
    struct mf_part parts[MF_PARTS_MAX];
    int n = mf_tensor_spec_parts(a, shape, parts);
    for (int i = 0; i < n; i++) {
        char name[32];
        mf_format(name, sizeof(name), "%s%s%s", mf_tensor_name(a->tensor),
                  i > 0 || a->format == MF_FORMAT_INDEX ? "_" : "",
                  i > 0 || a->format == MF_FORMAT_INDEX ? parts[i].name : "");
        cJSON *tensor = add_tensor(array, name, dtype_of(a, i), ref->part[i], writable);
        int r = tensor ? add_shape(tensor, a, i, &parts[i], shape) : -ENOMEM;
        if (r < 0)
            return r;
    }
    return n < 0 ? n : 0;
}

static int add_workspace(cJSON *array, const struct mf_step *step, const struct mf_launch *launch)
{
    if (step->workspace_bytes == 0)
        return 0;
    cJSON *tensor = add_tensor(array, "workspace", "uint8", launch->workspace, true);
    cJSON *shape = tensor ? cJSON_AddArrayToObject(tensor, "shape") : NULL;
    return shape && cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)step->workspace_bytes)) ? 0
                                                                                                   : -ENOMEM;
}

int mf_python_tensors_add(cJSON *array, const struct mf_step *step, const struct mf_shape *shape,
                          const struct mf_launch *launch)
{
    int r = 0;
    for (int32_t i = 0; i < step->n_needs && r == 0; i++)
        r = add_spec(array, &step->needs[i], shape, &launch->needs[i], false);
    /* outputs last: an output that accumulates has the name of its input and is writable */
    for (int32_t i = 0; i < step->n_gives && r == 0; i++)
        r = add_spec(array, &step->gives[i], shape, &launch->gives[i], true);
    return r < 0 ? r : add_workspace(array, step, launch);
}
