/* Which rows of the farm a command asks for: the options of `export` and `release freeze`. */
#pragma once

#include <stdbool.h>

#include "common/base/opts.h"
#include "common/net/http_client.h"

struct mf_export_filters {
    const char *batch, *class, *model, *gfx, *layer_model, *consumer; /* NULL: not given */
    bool simulated;
};

/* Rows of a table of options. */
/* clang-format off */
#define MF_EXPORT_FILTER_OPTS(f)                                                                                                   \
    {.name = "batch", .type = MF_OPT_TEXT, .value = &(f).batch, .argument = "B", .help = "rows of that batch only"},               \
    {.name = "class", .type = MF_OPT_TEXT, .value = &(f).class, .argument = "GFX/CU", .help = "of that device class"},             \
    {.name = "model", .type = MF_OPT_TEXT, .value = &(f).model, .argument = "TEXT",                                                \
     .help = "of that device model; needed when a class has two"},                                                                 \
    {.name = "gfx", .type = MF_OPT_TEXT, .value = &(f).gfx, .argument = "GFX", .help = "of that gfx"},                             \
    {.name = "layer-model", .type = MF_OPT_TEXT, .value = &(f).layer_model, .argument = "ROW",                                     \
     .help = "of that layer model: the row without its token"},                                                                    \
    {.name = "consumer", .type = MF_OPT_TEXT, .value = &(f).consumer, .argument = "NAME",                                          \
     .help = "moefarm or aiter: who dispatches from it; moefarm otherwise"},                                                       \
    {.name = "simulated", .type = MF_OPT_BOOL, .value = &(f).simulated, .help = "results of simulated devices too"}
/* clang-format on */

/* Appends them as parameters. */
void mf_export_filters_query(struct mf_buf *path, const struct mf_export_filters *f);
