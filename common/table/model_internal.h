/* Parts of the reader of checkpoints: config.json gives the sizes (model_config.c), and one or more files
 * give the quantisation of the experts (model_quant.c, quant_method.c, quant_match.c). */
#pragma once

#include <stdarg.h>

#include "common/base/json.h"
#include "common/table/model.h"

/* The parts of a config that describe the MoE layer, the innermost first: for example
 * thinker_config.text_config, thinker_config, and the config itself. A member is read from the first part
 * that has it. */
#define MF_MODEL_SCOPES 5
struct mf_model_scopes {
    const cJSON *object[MF_MODEL_SCOPES];
    size_t n;
};

/* Returns the text of a member, or "" if no part has it as text. */
const char *mf_model_text(const struct mf_model_scopes *scopes, const char *key);
/* Returns a non-negative integer, or 0 if no part has it. */
int64_t mf_model_number(const struct mf_model_scopes *scopes, const char *key);
/* Returns the number of layers, or 0 if no part has it. */
int64_t mf_model_layers(const struct mf_model_scopes *scopes);
/* Returns an array, or NULL if no part has it. */
const cJSON *mf_model_array(const struct mf_model_scopes *scopes, const char *key);

/* ---- quantisation ---- */

struct mf_quant {
    enum mf_qtype type;
    enum mf_dtype a, w;
};

/* The first expert of one layer: its gate and up projections, or its down projection. */
struct mf_expert_module {
    int32_t layer;
    bool down;
};

enum mf_quant_kind {
    MF_QUANT_SILENT,  /* the section does not say anything */
    MF_QUANT_PLAIN,   /* the module is not quantised */
    MF_QUANT_KNOWN,   /* `quant` is set */
    MF_QUANT_UNKNOWN, /* no tuned table can express the quantisation, or the text was not understood */
};

#define MF_QUANT_FROM_MAX 200
struct mf_quant_answer {
    enum mf_quant_kind kind;
    struct mf_quant quant;
    char from[MF_QUANT_FROM_MAX]; /* members and values that gave the answer */
};

/* One object that describes a quantisation. */
struct mf_quant_section {
    const char *file, *member; /* member is "" for the whole file */
    const char *method;        /* used if the object has no quant_method; "" if there is no default */
    const cJSON *object;
    const struct mf_model_scopes *scopes; /* config.json; empty if there is none */
};

/* Answers how a section quantises a module. */
void mf_quant_of_module(const struct mf_quant_section *section, const struct mf_expert_module *module,
                        struct mf_quant_answer *ret);

/* Matches an entry of a list of modules ("lm_head", "model.layers.3", "mlp.experts", "*.experts.*",
 * "re:.*experts.*") against a module. Returns 1 or 0; -EBADMSG: the regular expression is not supported. */
int mf_module_matches(const char *entry, const struct mf_expert_module *module);
/* As mf_module_matches for a regular expression without "re:", matched at the start of the module's name. */
int mf_module_matches_regex(const char *regex, const struct mf_expert_module *module);

/* The parsed files of a checkpoint; NULL: absent. */
struct mf_checkpoint_json {
    cJSON *file[MF_CHECKPOINT_N_];
};

/* Sets the quantisation of m->layer, quant_source and quant_error. m->layer.dtype must be set. */
void mf_model_quant_read(const struct mf_checkpoint_json *files, const struct mf_model_scopes *scopes,
                         struct mf_model *m);
