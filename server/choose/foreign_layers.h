/* Pipelines of one step of another program, such as a whole layer of vLLM. The search for pipelines keeps
 * only the cheapest ones. A ranking also needs the best layer of each other program, to show it beside ours,
 * and the layer that a consumer runs without a table, which the table must beat. */
#pragma once

#include <stddef.h>

#include "common/moe/consumer.h"
#include "common/moe/pipeline_search.h"

enum mf_foreign_layer {
    MF_LAYER_OTHER = 0, /* not a step of another program, or neither of the following */
    MF_LAYER_SHOWN,     /* the best layer of its program: is stored */
    MF_LAYER_RACES,     /* the consumer's default step (mf_consumer_default): is stored and races */
};

/* Which of these a pipeline of the problem is. */
enum mf_foreign_layer mf_foreign_layer(const struct mf_path_problem *p, enum mf_consumer c,
                                       const struct mf_path *path);
/* Adds to the sorted paths those of these layers that they lack. On an error, *paths stays valid. */
int mf_foreign_layers_add(const struct mf_path_problem *p, enum mf_consumer c, struct mf_path **paths,
                          size_t *n);
