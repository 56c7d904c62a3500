/* Finds the quantisation of the experts in the files of a checkpoint. All files must agree. Layers can
 * differ: the quantisation of most MoE layers counts, and quant_source lists the other layers. */
#include <inttypes.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "common/table/model_internal.h"

#define LAYERS_MAX   256
#define KINDS_MAX    4
#define SECTIONS_MAX 12
#define LIST_MAX     64

/* ---- MoE layers ---- */

/* mlp_layer_types: ["dense", "sparse", …] */
static bool is_dense(const struct mf_model_scopes *scopes, int32_t layer)
{
    const cJSON *type = cJSON_GetArrayItem(mf_model_array(scopes, "mlp_layer_types"), layer);
    return cJSON_IsString(type) && strcmp(type->valuestring, "dense") == 0;
}

static bool has_number(const cJSON *array, int64_t number)
{
    const cJSON *item;
    int64_t value;

    cJSON_ArrayForEach (item, array) {
        if (mf_json_value_i64(item, INT32_MIN, INT32_MAX, &value) == 0 && value == number)
            return true;
    }
    return false;
}

/* True if the layer has experts. Members that are absent exclude nothing. */
static bool is_moe_layer(const struct mf_model_scopes *scopes, int32_t layer)
{
    const char *pattern = mf_model_text(scopes, "hybrid_override_pattern");
    const cJSON *frequency = mf_model_array(scopes, "moe_layer_freq");
    int64_t step = mf_model_number(scopes, "decoder_sparse_step"), each = 1;

    if (*pattern)
        return (size_t)layer < strlen(pattern) && pattern[layer] == 'E';
    if (frequency && mf_json_value_i64(cJSON_GetArrayItem(frequency, layer), 0, 1, &each) == 0 && each == 0)
        return false;
    return !is_dense(scopes, layer) && layer >= mf_model_number(scopes, "first_k_dense_replace") &&
           (step < 2 || (layer + 1) % step == 0) &&
           !has_number(mf_model_array(scopes, "mlp_only_layers"), layer);
}

/* ---- one section ---- */

/* Layers with the same answer. */
struct kind {
    struct mf_quant_answer answer;
    int32_t n, previous, first; /* layers; the last one; the first of the current run */
    char layers[LIST_MAX];      /* finished runs, as in "0-2, 7" */
};

struct kinds {
    struct kind kind[KINDS_MAX];
    size_t n;
    int32_t layers;
};

static bool is_same_quant(const struct mf_quant_answer *a, const struct mf_quant_answer *b)
{
    return a->kind == b->kind &&
           (a->kind != MF_QUANT_KNOWN ||
            (a->quant.type == b->quant.type && a->quant.a == b->quant.a && a->quant.w == b->quant.w));
}

static void print_run(const struct kind *k, char *buf, size_t cap)
{
    if (k->first == k->previous)
        mf_format(buf, cap, "%s%s%" PRId32, k->layers, *k->layers ? ", " : "", k->first);
    else
        mf_format(buf, cap, "%s%s%" PRId32 "-%" PRId32, k->layers, *k->layers ? ", " : "", k->first,
                  k->previous);
}

static void add_layer(struct kinds *kinds, int32_t layer, const struct mf_quant_answer *answer)
{
    size_t i = 0;

    while (i < kinds->n && !is_same_quant(&kinds->kind[i].answer, answer))
        i++;
    if (i == KINDS_MAX)
        i--;
    struct kind *k = &kinds->kind[i];
    if (i == kinds->n) {
        *k = (struct kind){.answer = *answer, .first = layer, .previous = layer};
        kinds->n++;
    } else if (k->previous != layer - 1) {
        char layers[LIST_MAX];
        print_run(k, layers, sizeof(layers));
        memcpy(k->layers, layers, sizeof(layers));
        k->first = layer;
    }
    k->previous = layer;
    k->n++;
    kinds->layers++;
}

static const char *short_name(const char *name)
{
    const char *dot = strchr(name, '.');
    return dot ? dot + 1 : name;
}

#define QUANT_TEXT_MAX 96
static void print_quant(const struct mf_quant_answer *a, char buf[QUANT_TEXT_MAX])
{
    if (a->kind == MF_QUANT_KNOWN)
        mf_format(buf, QUANT_TEXT_MAX, "%s/%s %s", short_name(mf_dtype_name(a->quant.a)),
                  short_name(mf_dtype_name(a->quant.w)), short_name(mf_qtype_name(a->quant.type)));
    else
        mf_format(buf, QUANT_TEXT_MAX, "%s", a->kind == MF_QUANT_PLAIN ? "not quantised" : "unknown");
}

/* Answers for both projections of a layer, which a tuned table describes with one type. */
static void answer_layer(const struct mf_quant_section *s, int32_t layer, struct mf_quant_answer *ret)
{
    struct mf_quant_answer up, down;
    char a[QUANT_TEXT_MAX], b[QUANT_TEXT_MAX];

    mf_quant_of_module(s, &(struct mf_expert_module){layer, false}, &up);
    mf_quant_of_module(s, &(struct mf_expert_module){layer, true}, &down);
    *ret = up;
    if (is_same_quant(&up, &down))
        return;
    print_quant(&up, a);
    print_quant(&down, b);
    ret->kind = MF_QUANT_UNKNOWN;
    mf_format(ret->from, sizeof(ret->from), "gate and up are %s, but down is %s", a, b);
}

/* Appends the layers that differ from the chosen kind. */
static void add_others(const struct kinds *kinds, const struct kind *chosen, struct mf_quant_answer *ret)
{
    for (size_t i = 0; i < kinds->n; i++) {
        const struct kind *k = &kinds->kind[i];
        size_t len = strlen(ret->from);
        char layers[LIST_MAX + 24], quant[QUANT_TEXT_MAX];

        if (k == chosen)
            continue;
        print_run(k, layers, sizeof(layers));
        print_quant(&k->answer, quant);
        mf_format(ret->from + len, sizeof(ret->from) - len, "; layers %s: %s", layers, quant);
    }
}

/* Answers for the whole model: the most frequent answer of its MoE layers. */
static void answer_section(const struct mf_quant_section *s, struct mf_quant_answer *ret)
{
    struct kinds kinds = {.n = 0};
    int64_t layers = mf_model_layers(s->scopes);
    const struct kind *most = &kinds.kind[0];

    layers = layers < 1 ? 1 : layers > LAYERS_MAX ? LAYERS_MAX : layers;
    for (int32_t i = 0; i < layers; i++) {
        struct mf_quant_answer answer;

        if (!is_moe_layer(s->scopes, i) && (i < layers - 1 || kinds.layers > 0))
            continue;
        answer_layer(s, i, &answer);
        add_layer(&kinds, i, &answer);
    }
    bool tied = false;
    for (size_t i = 1; i < kinds.n; i++) {
        tied = kinds.kind[i].n == most->n || (tied && kinds.kind[i].n < most->n);
        if (kinds.kind[i].n > most->n)
            most = &kinds.kind[i];
    }
    *ret = most->answer;
    if (tied)
        ret->kind = MF_QUANT_UNKNOWN;
    add_others(&kinds, most, ret);
}

/* ---- all sections ---- */

struct sections {
    struct mf_quant_section section[SECTIONS_MAX];
    size_t n;
};

static void add_section(struct sections *list, const struct mf_model_scopes *scopes, enum mf_checkpoint file,
                        const cJSON *object, const char *member, const char *method)
{
    const cJSON *found = *member ? mf_json_object(object, member) : object;

    if (found && list->n < SECTIONS_MAX)
        list->section[list->n++] = (struct mf_quant_section){.file = mf_checkpoint_name(file),
                                                             .member = member,
                                                             .method = method,
                                                             .object = found,
                                                             .scopes = scopes};
}

static void find_sections(const struct mf_checkpoint_json *files, const struct mf_model_scopes *scopes,
                          struct sections *ret)
{
    static const char *const members[] = {"quantization_config", "compression_config", "quantization"};
    enum mf_checkpoint main = files->file[MF_CHECKPOINT_CONFIG] ? MF_CHECKPOINT_CONFIG : MF_CHECKPOINT_PARAMS;
    const cJSON *modelopt = files->file[MF_CHECKPOINT_HF_QUANT];

    for (size_t i = 0; i < scopes->n; i++) {
        for (size_t j = 0; j < MF_ARRAY_LEN(members); j++)
            add_section(ret, scopes, main, scopes->object[i], members[j], "");
    }
    add_section(ret, scopes, MF_CHECKPOINT_HF_QUANT, modelopt,
                mf_json_object(modelopt, "quantization") ? "quantization" : "", "modelopt");
    add_section(ret, scopes, MF_CHECKPOINT_QUANTIZE, files->file[MF_CHECKPOINT_QUANTIZE], "", "gptq");
    add_section(ret, scopes, MF_CHECKPOINT_QUANT, files->file[MF_CHECKPOINT_QUANT], "", "awq");
    if (main != MF_CHECKPOINT_PARAMS)
        add_section(ret, scopes, MF_CHECKPOINT_PARAMS, files->file[MF_CHECKPOINT_PARAMS], "quantization", "");
}

static void print_place(const struct mf_quant_section *s, const struct mf_quant_answer *a, char *buf,
                        size_t cap)
{
    mf_format(buf, cap, "%s: %s%s%s", s->file, s->member, *s->member ? ": " : "", a->from);
}

/* Returns the name of a tensor that only quantised experts have, or NULL. */
static const char *find_quantised_tensor(const cJSON *index)
{
    static const char *const endings[] = {"weight_scale", "weight_scale_inv", "weight_packed", "qweight",
                                          "_scales",      "_blocks",          "scales",        NULL};
    const cJSON *tensor;

    cJSON_ArrayForEach (tensor, mf_json_object(index, "weight_map")) {
        const char *name = tensor->string;

        for (const char *const *ending = endings; strstr(name, ".experts.") && *ending; ending++) {
            size_t len = strlen(name), end = strlen(*ending);
            if (len > end && strcmp(name + len - end, *ending) == 0)
                return name;
        }
    }
    return NULL;
}

static void set_layer(const struct mf_quant_answer *a, struct mf_shape *layer)
{
    layer->q_type = a->kind == MF_QUANT_KNOWN ? a->quant.type : MF_QTYPE_NO;
    layer->q_dtype_a = a->kind == MF_QUANT_KNOWN && a->quant.a != MF_DTYPE_BF16 ? a->quant.a : layer->dtype;
    layer->q_dtype_w = a->kind == MF_QUANT_KNOWN ? a->quant.w : layer->dtype;
}

void mf_model_quant_read(const struct mf_checkpoint_json *files, const struct mf_model_scopes *scopes,
                         struct mf_model *m)
{
    struct mf_quant_answer first = {.kind = MF_QUANT_SILENT}, next;
    struct sections list = {.n = 0};
    char place[MF_REASON_MAX];

    find_sections(files, scopes, &list);
    for (size_t i = 0; i < list.n && !*m->quant_error; i++) {
        answer_section(&list.section[i], &next);
        print_place(&list.section[i], &next, place, sizeof(place));
        if (next.kind == MF_QUANT_SILENT)
            continue;
        if (next.kind == MF_QUANT_UNKNOWN) {
            mf_format(m->quant_error, sizeof(m->quant_error),
                      "%s is not a quantisation of the experts that tuned tables can express", place);
        } else if (first.kind == MF_QUANT_SILENT) {
            first = next;
            mf_format(m->quant_source, sizeof(m->quant_source), "%s", place);
        } else if (!is_same_quant(&first, &next)) {
            mf_format(m->quant_error, sizeof(m->quant_error), "%.140s contradicts %.140s", m->quant_source,
                      place);
        }
    }
    const char *tensor = find_quantised_tensor(files->file[MF_CHECKPOINT_INDEX]);
    if (!*m->quant_error && first.kind == MF_QUANT_SILENT && tensor)
        mf_format(m->quant_error, sizeof(m->quant_error),
                  "%s: weight_map has %.100s, but no file says how the experts are quantised",
                  mf_checkpoint_name(MF_CHECKPOINT_INDEX), tensor);
    if (*m->quant_error)
        first = (struct mf_quant_answer){0};
    else if (first.kind == MF_QUANT_SILENT)
        mf_format(m->quant_source, sizeof(m->quant_source), "%s",
                  list.n > 0 ? place : "no quantisation in any file of the checkpoint");
    set_layer(&first, &m->layer);
}
