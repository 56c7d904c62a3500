#include "cli/support/model_arg.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/support/api.h"
#include "cli/support/file.h"
#include "cli/support/shape_arg.h"
#include "cli/support/text_out.h"
#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/base/text.h"

#define TEXT_MAX (1u << 20)

int mf_model_list_print(const struct mf_cli *cli)
{
    _cleanup_(mf_freep) struct mf_model *models = NULL;
    _cleanup_(mf_buf_release) struct mf_buf out;
    struct mf_columns c;
    size_t n = 0;

    mf_buf_init(&out, TEXT_MAX);
    if (mf_model_list(&models, &n) < 0)
        return mf_cli_out_of_memory();
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

/* Folder and name of the file that --model names: a file, or the folder of a checkpoint. */
struct place {
    char folder[4096], name[256];
    enum mf_checkpoint file; /* kind of the file */
};

static void find_place(const char *text, struct place *p)
{
    const char *slash = strrchr(text, '/');
    struct stat st;

    p->file = MF_CHECKPOINT_CONFIG;
    if (stat(text, &st) == 0 && S_ISDIR(st.st_mode)) {
        mf_format(p->folder, sizeof(p->folder), "%s", text);
        mf_format(p->name, sizeof(p->name), "%s", mf_checkpoint_name(MF_CHECKPOINT_CONFIG));
        return;
    }
    mf_format(p->folder, sizeof(p->folder), "%.*s", slash ? (int)(slash - text) : 1, slash ? text : ".");
    mf_format(p->name, sizeof(p->name), "%s", slash ? slash + 1 : text);
    if (strcmp(p->name, mf_checkpoint_name(MF_CHECKPOINT_PARAMS)) == 0)
        p->file = MF_CHECKPOINT_PARAMS;
}

/* True for a file, and for a folder with a config. */
static bool is_checkpoint(const char *text)
{
    static const enum mf_checkpoint configs[] = {MF_CHECKPOINT_CONFIG, MF_CHECKPOINT_PARAMS};
    char path[4400];
    struct stat st;

    if (stat(text, &st) != 0)
        return false;
    for (size_t i = 0; S_ISDIR(st.st_mode) && i < MF_ARRAY_LEN(configs); i++) {
        mf_format(path, sizeof(path), "%s/%s", text, mf_checkpoint_name(configs[i]));
        if (access(path, F_OK) == 0)
            return true;
    }
    return !S_ISDIR(st.st_mode);
}

/* Texts of the files of a checkpoint. */
struct texts {
    struct mf_buf buf[MF_CHECKPOINT_N_];
};

static void texts_release(struct texts *t)
{
    for (int i = 0; i < MF_CHECKPOINT_N_; i++)
        mf_buf_release(&t->buf[i]);
}

static int read_file(const char *path, enum mf_checkpoint file, struct texts *texts,
                     struct mf_checkpoint_text *ret)
{
    int code = mf_file_read(path, &texts->buf[file]);

    if (code == 0) {
        ret->text[file] = texts->buf[file].data;
        ret->len[file] = texts->buf[file].len;
    }
    return code;
}

/* Reads the named file and, if it is a checkpoint's config.json, the other files of the checkpoint. */
static int read_files(const char *text, const struct place *p, struct texts *texts,
                      struct mf_checkpoint_text *ret)
{
    bool alone = strcmp(p->name, mf_checkpoint_name(p->file)) != 0; /* a file with a name of its own */
    char path[4400];
    int code = 0;

    for (int i = 0; i < MF_CHECKPOINT_N_ && code == 0; i++) {
        mf_format(path, sizeof(path), "%s/%s", p->folder, mf_checkpoint_name((enum mf_checkpoint)i));
        if (alone ? i == (int)p->file : access(path, F_OK) == 0)
            code = read_file(alone ? text : path, (enum mf_checkpoint)i, texts, ret);
    }
    return code;
}

static int read_checkpoint(const char *text, struct mf_model *ret)
{
    _cleanup_(texts_release) struct texts texts;
    struct mf_checkpoint_text files = {0};
    struct place place;
    char why[MF_REASON_MAX] = "";
    int code;

    for (int i = 0; i < MF_CHECKPOINT_N_; i++)
        mf_buf_init(&texts.buf[i], MF_CHECKPOINT_FILE_MAX);
    find_place(text, &place);
    code = read_files(text, &place, &texts, &files);
    if (code != 0)
        return code;
    if (mf_model_read(&files, text, ret, why) < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "%s: %s", text, why);
    return 0;
}

static int refuse_name(const char *text)
{
    struct mf_model similar;

    if (mf_model_similar(text, &similar) == 0)
        return mf_cli_fail(MF_EXIT_USAGE,
                           "--model '%s': neither a known model nor a config.json; did you mean %s? "
                           "--list-models lists all",
                           text, similar.name);
    return mf_cli_fail(MF_EXIT_USAGE,
                       "--model '%s': neither a known model nor a config.json; see --list-models", text);
}

static int read_model(const char *text, struct mf_model *ret)
{
    size_t len = strlen(text);
    bool named_file = len > 5 && strcmp(text + len - 5, ".json") == 0;

    /* A local checkpoint with the name of a known model can have another quantisation, so it comes first. */
    if (named_file || is_checkpoint(text))
        return read_checkpoint(text, ret);
    return mf_model_find(text, ret) == 0 ? 0 : refuse_name(text);
}

/* Prints to stderr where a checkpoint's quantisation was read, and what a shape cannot express. */
static void print_sources(const struct mf_model_arg *o, const struct mf_model *m)
{
    const struct mf_shape *s = &m->layer;
    bool given = o->q_type || o->q_dtype_a || o->q_dtype_w;

    if (*m->quant_source || *m->quant_error)
        fprintf(stderr, "moefarm: %s: experts have %s activations and %s weights, %s%s (%s)\n", m->name,
                mf_dtype_name(s->q_dtype_a), mf_dtype_name(s->q_dtype_w), mf_qtype_name(s->q_type),
                given ? ", with the options given" : "", *m->quant_error ? m->quant_error : m->quant_source);
    if (*m->not_modelled)
        fprintf(stderr, "moefarm: %s: not modelled: %s\n", m->name, m->not_modelled);
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
    if (code != 0)
        return code;
    print_sources(o, &model);
    *ret = model;
    return 0;
}

int mf_model_arg_fused(const char *text, const struct mf_model *m, int32_t *ret)
{
    int64_t n;
    bool yes;

    if (mf_parse_i64(text, 0, 64, &n) == 0)
        *ret = (int32_t)n;
    else if (mf_parse_bool(text, &yes) == 0)
        *ret = yes ? m->shared : 0;
    else
        return mf_cli_fail(MF_EXIT_USAGE,
                           "--fused-shared-experts '%s': expected yes, no, or a number from 0 to 64", text);
    return 0;
}
