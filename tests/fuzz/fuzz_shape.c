/* Fuzzes texts from users and peers. An accepted text must print to a second text, which must parse to the
 * same value and print as itself. */
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "common/moe/device_class.h"
#include "common/moe/layer.h"
#include "common/moe/routing.h"
#include "common/moe/shape.h"
#include "common/moe/tensor_spec.h"
#include "fuzz.h"

#define A_SHAPE \
    "4,2048,96,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0"

static void try_shape(const char *text)
{
    struct mf_shape shape, again;
    char printed[MF_SHAPE_TEXT_MAX], reprinted[MF_SHAPE_TEXT_MAX];
    if (mf_shape_parse(text, &shape) < 0)
        return;
    mf_shape_print(&shape, printed);
    MF_MUST(mf_shape_parse(printed, &again) == 0 && mf_shape_equal(&shape, &again));
    mf_shape_print(&again, reprinted);
    MF_MUST(strcmp(printed, reprinted) == 0);
    again.token = 2 * shape.token;
    MF_MUST(mf_shape_same_layer_model(&shape, &again) && mf_shape_compare(&shape, &again) < 0);
    mf_shape_print_layer_model(&shape, printed);
    mf_shape_print_layer_model(&again, reprinted);
    MF_MUST(strcmp(printed, reprinted) == 0);
    MF_MUST(mf_layer_ops(&shape) & MF_OP_BIT(MF_OP_GEMM1));
    MF_MUST(mf_token_bucket(shape.token) >= 1 && mf_layer_flops(&shape) > 0);
    MF_MUST(mf_layer_min_bytes(&shape, shape.expert) > 0);
    MF_MUST(mf_layer_expected_active(&shape) <= shape.expert);
    MF_MUST(mf_layer_expected_blocks(&shape, 64) >= 0.999 * mf_layer_expected_active(&shape));
}

/* Parses a column that is given in the input, like "topk=9". */
static void try_column(const char *text)
{
    char column[32] = "", canonical[64];
    const char *value = strchr(text, '='), *why = NULL;
    struct mf_shape shape = {0}, again = {0};
    if (!value || (size_t)(value - text) >= sizeof(column))
        return;
    memcpy(column, text, (size_t)(value - text));
    int r = mf_shape_set(&shape, column, value + 1, &why);
    MF_MUST(r == 0 || (r == -EINVAL && why) || r == -ENOENT);
    if (r < 0)
        return;
    const char *of;
    (void)mf_shape_check(&shape, &of, &why);
    MF_MUST(mf_shape_get(&shape, column, canonical, sizeof(canonical)) == 0);
    MF_MUST(mf_shape_set(&again, column, canonical, &why) == 0 && mf_shape_equal(&shape, &again));
}

static void try_tensor_spec(const char *text)
{
    struct mf_tensor_spec tensor_spec, again;
    char printed[MF_TENSOR_SPEC_TEXT_MAX];
    if (mf_tensor_spec_parse(text, &tensor_spec) < 0)
        return;
    mf_tensor_spec_print(&tensor_spec, printed);
    MF_MUST(mf_tensor_spec_parse(printed, &again) == 0 && mf_tensor_spec_equal(&tensor_spec, &again));
    MF_MUST(!mf_tensor_spec_is_weight(&tensor_spec) || !mf_tensor_spec_is_input(&tensor_spec));
}

static void try_ops(const char *text)
{
    mf_ops ops, again;
    char printed[MF_OPS_TEXT_MAX];
    if (mf_ops_parse(text, &ops) < 0)
        return;
    mf_ops_print(ops, printed);
    MF_MUST(mf_ops_parse(printed, &again) == 0 && ops == again);
}

static void try_routing(const char *text)
{
    struct mf_routing routing, again;
    char printed[MF_ROUTING_TEXT_MAX];
    if (mf_routing_parse(text, &routing) < 0)
        return;
    mf_routing_print(&routing, printed);
    MF_MUST(mf_routing_parse(printed, &again) == 0 && mf_routing_equal(&routing, &again));
    struct mf_shape shape;
    char why[256] = "";
    MF_MUST(mf_shape_parse(A_SHAPE, &shape) == 0);
    MF_MUST(mf_routing_fits(&routing, &shape, why, sizeof(why)) == 0 || why[0]);
}

static void try_device_class(const char *text)
{
    struct mf_device_class class, again;
    char printed[MF_DEVICE_CLASS_TEXT_MAX];
    if (mf_device_class_parse(text, &class) < 0)
        return;
    mf_device_class_print(&class, printed);
    MF_MUST(mf_device_class_parse(printed, &again) == 0 && mf_device_class_equal(&class, &again));
    const char *gfx = mf_gfx_of_cu_num(class.cu_num);
    MF_MUST(!gfx || strlen(gfx) < sizeof(class.gfx));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    _cleanup_(mf_freep) char *text = malloc(size + 1);
    if (!text)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';

    double number;
    (void)mf_parse_double(text, &number);
    try_shape(text);
    try_column(text);
    try_tensor_spec(text);
    try_ops(text);
    try_routing(text);
    try_device_class(text);
    return 0;
}
