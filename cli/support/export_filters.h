/* Options that select rows of the farm, for `export` and `release freeze`. */
#pragma once

#include <stdbool.h>

#include "common/base/opts.h"
#include "common/net/http_client.h"

struct mf_export_filters {
    const char *batch, *class, *model, *gfx, *layer_model, *consumer, *triton; /* NULL if not given */
    bool simulated;
};

/* Initialisers for an option table. */
/* clang-format off */
#define MF_EXPORT_FILTER_OPTS(f)                                                               \
    {.name = "batch", .type = MF_OPT_TEXT, .value = &(f).batch, .argument = "B",               \
     .help = "batch of the rows"},                                                             \
    {.name = "class", .type = MF_OPT_TEXT, .value = &(f).class, .argument = "GFX/CU",          \
     .help = "device class of the rows"},                                                      \
    {.name = "model", .type = MF_OPT_TEXT, .value = &(f).model, .argument = "TEXT",            \
     .help = "device model of the rows; required if the class has two"},                       \
    {.name = "gfx", .type = MF_OPT_TEXT, .value = &(f).gfx, .argument = "GFX",                 \
     .help = "gfx of the rows"},                                                               \
    {.name = "layer-model", .type = MF_OPT_TEXT, .value = &(f).layer_model, .argument = "ROW", \
     .help = "layer model of the rows: the key without its token"},                            \
    {.name = "consumer", .type = MF_OPT_TEXT, .value = &(f).consumer, .argument = "NAME",      \
     .help = "consumer: moefarm, aiter, vllm or sglang (default: moefarm)"},                   \
    {.name = "triton-version", .type = MF_OPT_TEXT, .value = &(f).triton, .argument = "X.Y.Z", \
     .help = "for vllm and sglang: Triton version of rows that do not state it"},                    \
    {.name = "simulated", .type = MF_OPT_BOOL, .value = &(f).simulated,                        \
     .help = "include results of simulated devices"}
/* clang-format on */

/* Appends the filters as query parameters. */
void mf_export_filters_query(struct mf_buf *path, const struct mf_export_filters *f);
