/* Tests names, types and shapes of the tensors that Python families see. */
#include "worker/runner/python_tensors.h"

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "support/mf_check.h"

#define SHAPE(a, w, q) "4,256,128,8,2,ActivationType.Silu,torch.bfloat16," a "," w "," q ",1,0"
#define FP8            "torch.float8_e4m3fn"
#define FP4            "torch.float4_e2m1fn_x2"
#define BF16           SHAPE("torch.bfloat16", "torch.bfloat16", "QuantType.No")

/* clang-format off */
static const struct {
    const char *shape, *spec;
    const char *tensors; /* "name dtype dims" of each part */
} specs[] = {
    {BF16, "x/bf16/none/token",   "x bfloat16 4x256"},
    {BF16, "y/bf16/none/token",   "y bfloat16 4x256"},
    {BF16, "y/f32/none/token",    "y float32 4x256"},
    {BF16, "topk/index/none/token", "topk_ids int32 4x2, topk_weights float32 4x2"},
    {BF16, "w1/bf16/none/row",    "w1 bfloat16 8x256x256"},
    {BF16, "w2/bf16/none/row",    "w2 bfloat16 8x256x128"},
    {BF16, "sorted/index/none/sorted.16",
     "sorted_ids int32 128, sorted_weights float32 128, sorted_experts int32 8, sorted_num_valid int32 2"},
    {BF16, "aligned/index/none/sorted.16",
     "aligned_ids int32 128, aligned_experts int32 8, aligned_num_post_pad int32 1"},
    {BF16, "zw/bf16/none/slot",   "zw bfloat16 8x256"},
    {BF16 ",b1", "b1/f32/none/row", "b1 float32 8x256"},
    {SHAPE(FP8, FP8, "QuantType.per_Token"), "x/fp8fn/per_token/token",
     "x float8_e4m3fn 4x256, x_scale float32 4x1"},
    {SHAPE(FP8, FP8, "QuantType.per_Token"), "w1/fp8fn/per_token/row",
     "w1 float8_e4m3fn 8x256x256, w1_scale float32 8x256x1"},
    {SHAPE(FP8, FP8, "QuantType.per_1x128"), "w1/fp8fn/per_128x128/row",
     "w1 float8_e4m3fn 8x256x256, w1_scale float32 8x2x2"},
    {SHAPE(FP8, FP8, "QuantType.per_1x128"), "w2/fp8fn/per_128x128/row",
     "w2 float8_e4m3fn 8x256x128, w2_scale float32 8x2x1"},
    {"4,128,128,8,2,ActivationType.Silu,torch.bfloat16," FP8 "," FP8 ",QuantType.per_1x128,1,0",
     "w2/fp8fn/per_128x128/row", "w2 float8_e4m3fn 8x128x128, w2_scale float32 8x1x1"},
    {SHAPE(FP8, FP8, "QuantType.per_Tensor"), "w1/fp8fn/per_tensor/row",
     "w1 float8_e4m3fn 8x256x256, w1_scale float32 8"},
    {SHAPE("torch.int8", "torch.int8", "QuantType.per_Token"), "w2/int8/per_token/row",
     "w2 int8 8x256x128, w2_scale float32 8x256x1"},
    {SHAPE("torch.bfloat16", FP4, "QuantType.per_1x32"), "w1/fp4/per_1x32/row",
     "w1 float4_e2m1fn_x2 8x256x128, w1_scale float8_e8m0fnu 8x256x8"},
    {SHAPE(FP4, FP4, "QuantType.per_1x16"), "w2/fp4/per_1x16/row",
     "w2 float4_e2m1fn_x2 8x256x64, w2_scale float8_e4m3fn 8x256x8, w2_global float32 8"},
    {SHAPE("torch.bfloat16", "torch.int4", "QuantType.per_1x32"), "w2/int4/per_1x32/row",
     "w2 int4_x2 8x256x64, w2_scale bfloat16 8x256x4"},
};
/* clang-format on */

static void print_tensors(const cJSON *tensors, char *out, size_t cap)
{
    const cJSON *tensor, *dim;
    out[0] = '\0';
    cJSON_ArrayForEach (tensor, tensors) {
        const char *name = "", *dtype = "";
        size_t n = strlen(out);
        (void)mf_json_text(tensor, "name", &name);
        (void)mf_json_text(tensor, "dtype", &dtype);
        mf_format(out + n, cap - n, "%s%s %s ", n > 0 ? ", " : "", name, dtype);
        cJSON_ArrayForEach (dim, mf_json_array(tensor, "shape")) {
            n = strlen(out);
            mf_format(out + n, cap - n, "%s%d", out[n - 1] == ' ' ? "" : "x", dim->valueint);
        }
    }
}

static cJSON *tensors_of(const char *shape_text, struct mf_step *step)
{
    struct mf_shape shape;
    struct mf_tensor_ref refs[1] = {{{(void *)64, (void *)128, (void *)192, (void *)256}}};
    const struct mf_launch launch = {.needs = refs, .gives = refs, .workspace = (void *)512};
    cJSON *tensors = cJSON_CreateArray();
    ck_assert_int_eq(mf_shape_parse(shape_text, &shape), 0);
    ck_assert_int_eq(mf_python_tensors_add(tensors, step, &shape, &launch), 0);
    return tensors;
}

MF_TEST(describes_tensors, .rows = MF_ARRAY_LEN(specs))
{
    char text[512];
    struct mf_step step = {.n_needs = 1};
    ck_assert_int_eq(mf_tensor_spec_parse(specs[_i].spec, &step.needs[0]), 0);
    _cleanup_(cJSON_Deletep) cJSON *tensors = tensors_of(specs[_i].shape, &step);
    print_tensors(tensors, text, sizeof(text));
    ck_assert_str_eq(text, specs[_i].tensors);
}

MF_TEST(marks_outputs_and_workspace_as_writable)
{
    struct mf_step step = {.n_needs = 1, .n_gives = 1, .workspace_bytes = 100};
    ck_assert_int_eq(mf_tensor_spec_parse("x/bf16/none/token", &step.needs[0]), 0);
    ck_assert_int_eq(mf_tensor_spec_parse("y/bf16/none/token", &step.gives[0]), 0);
    _cleanup_(cJSON_Deletep) cJSON *tensors = tensors_of(BF16, &step);
    static const struct {
        bool writable;
        int64_t pointer;
    } want[] = {{false, 64}, {true, 64}, {true, 512}};
    ck_assert_int_eq(cJSON_GetArraySize(tensors), MF_ARRAY_LEN(want));
    for (int i = 0; i < (int)MF_ARRAY_LEN(want); i++) {
        const cJSON *tensor = cJSON_GetArrayItem(tensors, i);
        bool writable = !want[i].writable;
        int64_t pointer = 0;
        ck_assert_int_eq(mf_json_bool(tensor, "writable", &writable), 0);
        ck_assert_int_eq(mf_json_i64(tensor, "pointer", 0, INT64_C(1) << 53, &pointer), 0);
        ck_assert(writable == want[i].writable && pointer == want[i].pointer);
    }
}

int main(void)
{
    return mf_check_main(NULL);
}
