#include "cli/support/model_arg.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/support/api.h"
#include "cli/support/file.h"
#include "cli/support/shape_arg.h"
#include "cli/support/text_out.h"
#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/base/text.h"

#define TEXT_MAX   (1u << 20)
#define CONFIG_MAX (4u << 20)

int mf_model_list_print(const struct mf_cli *cli)
{
    _cleanup_(mf_freep) struct mf_model *models = NULL;
    _cleanup_(mf_buf_release) struct mf_buf out;
    struct mf_columns c;
    size_t n = 0;

    mf_buf_init(&out, TEXT_MAX);
    if (mf_model_list(&models, &n) < 0)
        return mf_cli_fail(MF_EXIT_FAILED, "out of memory");
    if (cli->json) {
        _cleanup_(cJSON_Deletep) cJSON *list = cJSON_CreateArray();
        for (size_t i = 0; i < n; i++) {
            cJSON *item = cJSON_CreateObject();
            char layer[MF_SHAPE_TEXT_MAX];

            mf_shape_print_layer_model(&models[i].layer, layer);
            cJSON_AddStringToObject(item, "name", models[i].name);
            cJSON_AddStringToObject(item, "layer", layer);
            cJSON_AddNumberToObject(item, "shared", models[i].shared);
            cJSON_AddNumberToObject(item, "context", (double)models[i].context);
            cJSON_AddStringToObject(item, "source", models[i].source);
            cJSON_AddItemToArray(list, item);
        }
        return mf_api_print(list);
    }
    mf_columns_init(&c, 5);
    static const char *const header[] = {"model", "layer (tp 1)", "shared", "context", "source"};
    for (size_t i = 0; i < MF_ARRAY_LEN(header); i++)
        mf_columns_add(&c, header[i]);
    for (size_t i = 0; i < n; i++) {
        char brief[MF_SHAPE_BRIEF_MAX];

        mf_shape_brief_layer_model(&models[i].layer, brief);
        mf_columns_add(&c, models[i].name);
        mf_columns_add(&c, brief);
        mf_columns_addf(&c, "%" PRId32, models[i].shared);
        mf_columns_addf(&c, "%" PRId64, models[i].context);
        mf_columns_add(&c, models[i].source);
    }
    mf_columns_print(&c, &out);
    mf_columns_release(&c);
    (void)fwrite(out.data, 1, out.len, stdout);
    return MF_EXIT_OK;
}

/* Stores the path of the config.json that `text` names. `text` is the file or the folder of a checkpoint.
 * Returns false if there is no such file. */
static bool is_path(const char *text, char *path, size_t cap)
{
    struct stat st;

    mf_format(path, cap, "%s", text);
    if (stat(text, &st) != 0)
        return false;
    if (S_ISDIR(st.st_mode))
        mf_format(path, cap, "%s/config.json", text);
    return true;
}

static int read_model(const char *text, struct mf_model *ret)
{
    _cleanup_(mf_buf_release) struct mf_buf config;
    char path[4096], why[MF_REASON_MAX] = "";
    size_t len = strlen(text);
    int code;

    mf_buf_init(&config, CONFIG_MAX);
    if (mf_model_find(text, ret) == 0)
        return 0;
    if (!is_path(text, path, sizeof(path)) && (len < 5 || strcmp(text + len - 5, ".json") != 0))
        return mf_cli_fail(MF_EXIT_USAGE,
                           "--model '%s': neither a known model nor a config.json; see --list-models", text);
    code = mf_file_read(path, &config);
    if (code != 0)
        return code;
    if (mf_model_config_read(config.data, config.len, path, ret, why) < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "%s: %s", path, why);
    return 0;
}

/* Sets a column of the layer from the text of an option; NULL leaves it unchanged. */
static int set_column(struct mf_shape *layer, const char *option, const char *column, const char *text)
{
    const char *expected;

    if (text && mf_shape_set(layer, column, text, &expected) < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "--%s '%s': expected %s", option, text, expected);
    return 0;
}

static enum mf_dtype default_activation_dtype(enum mf_dtype w)
{
    return w == MF_DTYPE_INT4 ? MF_DTYPE_BF16 : w;
}

/* Applies the options to the layer. If they change the quantisation, derives the data types from it. */
static int apply_quant(const struct mf_model_arg *o, struct mf_model *m)
{
    struct mf_shape *s = &m->layer;
    int code;

    if ((code = set_column(s, "dtype", "dtype", o->dtype)) != 0 ||
        (code = set_column(s, "act-type", "act_type", o->act_type)) != 0 ||
        (code = set_column(s, "q-type", "q_type", o->q_type)) != 0)
        return code;
    if (!o->q_type && m->quant_error[0] && !(o->q_dtype_a && o->q_dtype_w))
        return mf_cli_fail(MF_EXIT_USAGE, "%s: %s; give --q-type, --q-dtype-a and --q-dtype-w", m->name,
                           m->quant_error);
    if (s->q_type == MF_QTYPE_NO)
        s->q_dtype_a = s->q_dtype_w = s->dtype;
    else if (o->q_type && s->q_type != MF_QTYPE_PER_1X32)
        s->q_dtype_a = s->q_dtype_w = s->q_type == MF_QTYPE_PER_1X16 ? MF_DTYPE_FP4X2 : MF_DTYPE_FP8_E4M3FN;
    else if (o->q_type && !o->q_dtype_w)
        return mf_cli_fail(
            MF_EXIT_USAGE,
            "--q-type per_1x32: needs a weight type; give --q-dtype-w too (fp4x2, fp8 or int4)");
    if ((code = set_column(s, "q-dtype-w", "q_dtype_w", o->q_dtype_w)) != 0)
        return code;
    if (o->q_dtype_w)
        s->q_dtype_a = default_activation_dtype(s->q_dtype_w);
    return set_column(s, "q-dtype-a", "q_dtype_a", o->q_dtype_a);
}

int mf_model_arg_read(const struct mf_model_arg *o, struct mf_model *ret)
{
    struct mf_model model;
    int code = read_model(o->model, &model);

    if (code == 0)
        code = apply_quant(o, &model);
    if (code == 0)
        *ret = model;
    return code;
}
