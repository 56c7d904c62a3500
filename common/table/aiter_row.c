#include "common/table/aiter_row.h"

#include <errno.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/table/table.h"

/* True if a kernel of AITER takes bf16 hidden states and quantises them itself. Steps of the Python family
 * `aiter` cover op quant1 for every kernel, because they quantise in front of it, as fused_moe() does. */
static bool takes_bf16(const char *kernel)
{
    static const char *const marks[] = {"blockscaleBf16", "_a16_", "pertokenMXfp4"};
    for (size_t i = 0; i < MF_ARRAY_LEN(marks); i++) {
        if (strstr(kernel, marks[i]))
            return true;
    }
    return false;
}

/* Sets the columns of a kernel that covers both GEMMs. xbf16: the kernel quantises the hidden states itself.
 * flat: 0 if the kernel does not cover the sort; otherwise 1, or 2 (emsort) if it works in blocks. */
static void fill_one_stage(const struct mf_aiter_step *one, int32_t block_m, struct mf_aiter_row *row)
{
    row->run_1stage = true;
    row->xbf16 = one->covers & MF_OP_BIT(MF_OP_QUANT1) && (!one->aiter || takes_bf16(one->name));
    if (one->covers & MF_OP_BIT(MF_OP_SORT))
        row->flat = block_m > 1 ? 2 : 1;
}

int mf_aiter_row(const struct mf_aiter_step *steps, size_t n, int32_t block_m, struct mf_aiter_row *ret)
{
    const struct mf_aiter_step *one = NULL, *two = NULL;
    char plain[MF_STEP_NAME_MAX];
    for (size_t i = 0; i < n; i++) {
        if (steps[i].covers & MF_OP_BIT(MF_OP_GEMM1))
            one = &steps[i];
        if (steps[i].covers & MF_OP_BIT(MF_OP_GEMM2))
            two = &steps[i];
    }
    if (!one || !two)
        return -ENOENT;
    *ret = (struct mf_aiter_row){.block_m = MF_MAX(1, block_m), .ksplit = one->ksplit};
    (void)mf_step_drop_ksplit(one->name, plain);
    (void)mf_copy(ret->kernel1, sizeof(ret->kernel1), one->aiter && one->ksplit > 0 ? plain : one->name);
    if (one == two)
        fill_one_stage(one, block_m, ret);
    else
        (void)mf_copy(ret->kernel2, sizeof(ret->kernel2), two->name);
    return 0;
}

cJSON *mf_aiter_row_json(const struct mf_device_class *class, const struct mf_shape *shape,
                         const struct mf_aiter_row *row)
{
    const struct {
        const char *column;
        int64_t value;
    } numbers[] = {
        {"cu_num", class->cu_num},
        {mf_result_name(MF_RESULT_BLOCK_M), row->block_m},
        {mf_result_name(MF_RESULT_KSPLIT), row->ksplit},
        {mf_result_name(MF_RESULT_RUN_1STAGE), row->run_1stage},
        {mf_result_name(MF_RESULT_XBF16), row->xbf16},
        {mf_result_name(MF_RESULT_FLAT), row->flat},
    };
    _cleanup_(cJSON_Deletep) cJSON *json = cJSON_CreateObject();
    char text[MF_SHAPE_TEXT_MAX];
    bool ok = json && cJSON_AddStringToObject(json, "gfx", class->gfx) &&
              cJSON_AddStringToObject(json, mf_result_name(MF_RESULT_KERNEL1), row->kernel1) &&
              cJSON_AddStringToObject(json, mf_result_name(MF_RESULT_KERNEL2), row->kernel2);
    for (size_t i = 0; ok && i < MF_ARRAY_LEN(numbers); i++)
        ok = mf_json_add_i64(json, numbers[i].column, numbers[i].value);
    for (int i = 0; ok && i < MF_SHAPE_N_COLUMNS; i++) {
        (void)mf_shape_get(shape, mf_shape_columns[i], text, sizeof(text));
        ok = cJSON_AddStringToObject(json, mf_shape_columns[i], text) != NULL;
    }
    return ok ? MF_TAKE(json) : NULL;
}
