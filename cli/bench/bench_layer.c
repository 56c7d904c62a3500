#include "cli/bench/bench_layer.h"

#include <string.h>

#include "cli/support/cli.h"
#include "cli/support/shape_arg.h"
#include "common/base/text.h"

#define FP8   "fp8_w8a8"
#define BLOCK 128

void mf_bench_layer_opts(struct mf_bench_layer *o, struct mf_opt opts[MF_BENCH_LAYER_OPTS])
{
    opts[0] = (struct mf_opt){.name = "format",
                              .type = MF_OPT_TEXT,
                              .value = &o->format,
                              .argument = "NAME",
                              .help = "framework of a JSON file: vllm or sglang (default: by its content)"};
    opts[1] = (struct mf_opt){.name = "model",
                              .type = MF_OPT_TEXT,
                              .value = &o->model.model,
                              .argument = "MODEL",
                              .help = "model of a JSON file: a name, a path on the hub, or a config.json"};
    opts[2] = (struct mf_opt){.name = "tp",
                              .type = MF_OPT_INT,
                              .value = &o->tp,
                              .argument = "N",
                              .help = "tensor-parallel ranks that share each expert of --model",
                              .min = 1,
                              .max = 1024};
    opts[3] = (struct mf_opt){.name = "ep",
                              .type = MF_OPT_INT,
                              .value = &o->ep,
                              .argument = "N",
                              .help = "expert-parallel ranks that share the experts of --model",
                              .min = 1,
                              .max = 4096};
    opts[4] = (struct mf_opt){.name = "layer",
                              .type = MF_OPT_TEXT,
                              .value = &o->layer,
                              .argument = "COLUMNS",
                              .help = "layer of a JSON file without --model: model_dim=7168,topk=8; other "
                                      "columns override the file's name"};
}

/* ---- from the name of the file ---- */

static enum mf_dtype fp8_of(const char *gfx)
{
    return strcmp(gfx, "gfx942") == 0 ? MF_DTYPE_FP8_E4M3FNUZ : MF_DTYPE_FP8_E4M3FN;
}

static bool has_fp8(const struct mf_triton_key *key)
{
    return strcmp(key->dtype, FP8) == 0 &&
           (key->block_n == 0 || (key->block_n == BLOCK && key->block_k == BLOCK));
}

static enum mf_qtype qtype_of(const struct mf_triton_key *key)
{
    return !*key->dtype       ? MF_QTYPE_NO
           : key->block_n > 0 ? MF_QTYPE_PER_1X128
           : key->per_channel ? MF_QTYPE_PER_TOKEN
                              : MF_QTYPE_PER_TENSOR;
}

/* The layer that the name describes; model_dim and topk are 0. */
static struct mf_shape of_key(const struct mf_triton_key *key, const char *gfx)
{
    enum mf_dtype weights = *key->dtype ? fp8_of(gfx) : MF_DTYPE_BF16;

    return (struct mf_shape){.token = 1,
                             .inter_dim = key->inter_dim,
                             .expert = key->expert,
                             .act_type = MF_ACT_SILU,
                             .dtype = MF_DTYPE_BF16,
                             .q_dtype_a = weights,
                             .q_dtype_w = weights,
                             .q_type = qtype_of(key),
                             .use_g1u1 = true};
}

static int apply_pattern(const char *text, struct mf_shape *layer, struct mf_shape_pattern *ret)
{
    char why[MF_REASON_MAX] = "", value[MF_SHAPE_FORM_MAX];
    const char *column, *expected;

    if (text && mf_shape_pattern_parse(text, ret, why, sizeof(why)) < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "--layer: %s", why);
    for (int i = 0; i <= MF_SHAPE_N_COLUMNS; i++) {
        column = i < MF_SHAPE_N_COLUMNS ? mf_shape_columns[i] : MF_SHAPE_FORM;
        if (ret->set[i] && mf_shape_get(&ret->shape, column, value, sizeof(value)) == 0)
            (void)mf_shape_set(layer, column, value, &expected);
    }
    return 0;
}

static int refuse_column(const struct mf_shape *layer, const char *column, const char *expected)
{
    char value[MF_SHAPE_FORM_MAX] = "";

    (void)mf_shape_get(layer, column, value, sizeof(value));
    return mf_cli_fail(MF_EXIT_USAGE, "--layer: %s=%s: expected %s", column, value, expected);
}

static int read_layer(const struct mf_bench_layer *o, const struct mf_triton_file *file, const char *gfx,
                      struct mf_shape *ret)
{
    struct mf_shape_pattern pattern = {.set = {false}};
    const char *column, *expected;
    int code;

    *ret = of_key(&file->key, gfx);
    code = apply_pattern(o->layer, ret, &pattern);
    if (code != 0)
        return code;
    if (ret->model_dim == 0 || ret->topk == 0)
        return mf_cli_fail(MF_EXIT_USAGE,
                           "%s: the name does not contain the hidden size and topk; give --model MODEL, or "
                           "--layer model_dim=N,topk=N",
                           file->path);
    if (*file->key.dtype && !has_fp8(&file->key) && ret->q_type == qtype_of(&file->key))
        return mf_cli_fail(MF_EXIT_USAGE,
                           "%s: dtype=%s is not a type of the families; they run bf16, fp16 and " FP8
                           " with block_shape [128, 128] or none",
                           file->path, file->key.dtype);
    if (mf_shape_check(ret, &column, &expected) < 0)
        return refuse_column(ret, column, expected);
    return 0;
}

/* ---- from a model ---- */

/* Fails if the framework looks up another file for the layer. Ignores the device. */
static int check_key(const struct mf_bench_layer *o, const struct mf_triton_file *file,
                     const struct mf_shape *layer)
{
    struct mf_triton_key key;
    char why[MF_REASON_MAX] = "", name[MF_TRITON_NAME_MAX];

    if (mf_triton_key(file->framework, layer, file->key.device, &key, why) < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "%s: %s", file->path, why);
    if ((mf_triton_key_differences(&key, &file->key) & ~(1u << MF_TRITON_PART_DEVICE)) == 0)
        return 0;
    mf_triton_key_print(file->framework, &key, name);
    return mf_cli_fail(MF_EXIT_USAGE,
                       "%s: %s with --tp %lld --ep %lld never reads this file, but %s; `moefarm csv "
                       "coverage` shows the split that reads it",
                       file->path, o->model.model, (long long)o->tp, (long long)o->ep, name);
}

static int read_model(const struct mf_bench_layer *o, const struct mf_triton_file *file, const char *gfx,
                      struct mf_shape *ret)
{
    const struct mf_model_split split = {.tp = (int32_t)o->tp, .ep = (int32_t)o->ep, .gfx = gfx};
    struct mf_model model;
    char why[MF_REASON_MAX] = "";
    int code = mf_model_arg_read(&o->model, &model);

    if (code == 0 && mf_model_layer(&model, &split, ret, why) < 0)
        code = mf_cli_fail(MF_EXIT_USAGE, "%s", why);
    if (code != 0)
        return code;
    /* the frameworks' tuners measure a rank of an expert-parallel group as a layer of its own */
    ret->ep_first = ret->ep_experts = 0;
    return check_key(o, file, ret);
}

int mf_bench_layer_read(const struct mf_bench_layer *o, const struct mf_triton_file *file, const char *gfx,
                        struct mf_shape *ret)
{
    if (o->model.model && o->layer)
        return mf_cli_fail(MF_EXIT_USAGE, "--model and --layer describe the same layer; give one of them");
    return o->model.model ? read_model(o, file, gfx, ret) : read_layer(o, file, gfx, ret);
}
