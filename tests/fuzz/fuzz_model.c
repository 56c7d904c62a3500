/* Fuzzes model descriptions. An accepted checkpoint, list or name gives a layer that a table can hold, both
 * as a whole layer and split over ranks.
 *
 * An input is a list of models, the name of one, or a checkpoint. A checkpoint begins with config.json. Lines
 * with their names start its other files:
 *
 *     {"num_experts": 8}
 *     == hf_quant_config.json
 *     {"quantization": {"quant_algo": "NVFP4"}} */
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "common/table/model.h"
#include "fuzz.h"

static void check_shape(const struct mf_shape *s)
{
    char text[MF_SHAPE_TEXT_MAX];
    struct mf_shape again;

    mf_shape_print(s, text);
    MF_MUST(mf_shape_parse(text, &again) == 0 && mf_shape_equal(&again, s));
}

static void check_split(const struct mf_model *m, const struct mf_model_split *split)
{
    char why[MF_REASON_MAX] = "";
    struct mf_shape s;

    if (mf_model_layer(m, split, &s, why) < 0) {
        MF_MUST(why[0]);
        return;
    }
    MF_MUST(split->tp > 0 && split->ep > 0 && split->fused_shared >= 0 && split->fused_shared <= m->shared);
    check_shape(&s);
}

static void check_layer(const struct mf_model *m)
{
    check_shape(&m->layer);
    MF_MUST(m->shared >= 0 && m->context >= 0);
    for (int ranks = 1; ranks <= 64; ranks *= 4) {
        check_split(m, &(struct mf_model_split){
                           .tp = ranks, .ep = ranks, .fused_shared = m->shared, .gfx = "gfx942"});
        check_split(m, &(struct mf_model_split){.tp = 1, .ep = ranks, .fused_shared = m->shared + 1});
    }
}

/* True for the line "== params.json\n" and those of the other files. */
static bool names_file(const char *line, size_t len, enum mf_checkpoint *ret)
{
    char name[64];

    mf_format(name, sizeof(name), "%.*s", (int)MF_MIN(len, sizeof(name)), line);
    name[strcspn(name, "\n")] = '\0';
    return strncmp(name, "== ", 3) == 0 && mf_checkpoint_parse(name + 3, ret) == 0;
}

static void split_files(const char *text, size_t size, struct mf_checkpoint_text *ret)
{
    enum mf_checkpoint file = MF_CHECKPOINT_CONFIG;
    const char *start = text, *end = text + size;

    for (const char *line = text, *next; line < end; line = next) {
        const char *newline = memchr(line, '\n', (size_t)(end - line));

        next = newline ? newline + 1 : end;
        if (names_file(line, (size_t)(next - line), &file)) {
            start = next;
        } else {
            ret->text[file] = start;
            ret->len[file] = (size_t)(next - start);
        }
    }
}

static void try_checkpoint(const char *text, size_t size)
{
    struct mf_checkpoint_text files = {0};
    char why[MF_REASON_MAX] = "";
    struct mf_model m;

    split_files(text, size, &files);
    if (mf_model_read(&files, "fuzz", &m, why) < 0) {
        MF_MUST(why[0]);
        return;
    }
    /* an unknown quantisation has none set */
    MF_MUST(*m.quant_error ? m.layer.q_type == MF_QTYPE_NO : *m.quant_source != '\0');
    check_layer(&m);
}

static void try_list(const char *text, size_t size)
{
    _cleanup_(mf_freep) struct mf_model *models = NULL;
    char why[MF_REASON_MAX] = "";
    size_t n = 0;

    if (mf_model_list_read(text, size, &models, &n, why) < 0)
        return;
    for (size_t i = 0; i < n; i++) {
        MF_MUST(mf_is_name(models[i].name, MF_MODEL_NAME_MAX - 1));
        check_layer(&models[i]);
    }
}

static void try_name(const char *text, size_t size)
{
    _cleanup_(mf_freep) char *name = strndup(text, size);
    struct mf_model found, similar;

    if (!name || strlen(name) >= MF_MODEL_NAME_MAX)
        return;
    if (mf_model_find(name, &found) == 0)
        check_layer(&found);
    if (mf_model_similar(name, &similar) == 0)
        check_layer(&similar);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    try_checkpoint((const char *)data, size);
    try_list((const char *)data, size);
    try_name((const char *)data, size);
    return 0;
}
