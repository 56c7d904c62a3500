/* Fuzzes model descriptions. An accepted config.json, list or name gives a layer that a table can hold, both
 * as a whole layer and split over ranks. */
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/table/model.h"
#include "fuzz.h"

static void check_layer(const struct mf_model *m)
{
    char text[MF_SHAPE_TEXT_MAX], why[MF_REASON_MAX] = "";
    struct mf_shape again;

    mf_shape_print(&m->layer, text);
    MF_MUST(mf_shape_parse(text, &again) == 0 && mf_shape_equal(&again, &m->layer));
    MF_MUST(m->shared >= 0 && m->context >= 0);
    for (int ranks = 1; ranks <= 64; ranks *= 4) {
        const struct mf_model_split split = {
            .tp = ranks, .ep = ranks, .fused_shared = m->shared, .gfx = "gfx942"};

        why[0] = '\0';
        if (mf_model_layer(m, &split, &again, why) < 0) {
            MF_MUST(why[0]);
            continue;
        }
        mf_shape_print(&again, text);
        MF_MUST(mf_shape_parse(text, &again) == 0);
    }
}

/* Every second input also serves as hf_quant_config.json. */
static const char *hf_quant(const uint8_t *data, size_t size)
{
    return size % 2 == 1 ? (const char *)data : NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    _cleanup_(mf_freep) struct mf_model *models = NULL;
    char why[MF_REASON_MAX] = "";
    struct mf_model m;
    size_t n = 0;
    int r;

    const struct mf_checkpoint_text files = {
        .text =
            {[MF_CHECKPOINT_CONFIG] = (const char *)data, [MF_CHECKPOINT_HF_QUANT] = hf_quant(data, size)},
        .len = {[MF_CHECKPOINT_CONFIG] = size, [MF_CHECKPOINT_HF_QUANT] = size}};
    r = mf_model_read(&files, "fuzz", &m, why);
    if (r == 0)
        check_layer(&m);
    else
        MF_MUST(why[0]);
    r = mf_model_list_read((const char *)data, size, &models, &n, why);
    for (size_t i = 0; r == 0 && i < n; i++)
        check_layer(&models[i]);
    _cleanup_(mf_freep) char *name = strndup((const char *)data, size);
    if (name && strlen(name) < MF_MODEL_NAME_MAX && mf_model_find(name, &m) == 0)
        check_layer(&m);
    return 0;
}
