/* Production's look-up: which rows of a tuned table may answer a call, and in what order they are tried.
 *
 * A call is a layer model and its real token count: production pads the count itself. By three sets of rules:
 *
 *   moefarm   libfmoe. The key is what the caller asks for, its bucket apart. The type that activations are quantised to is
 *             part of what was asked: nothing else is ever put in its place, for a coarser one costs accuracy that nobody
 *             agreed to, and a row of another one is of another layer model, whose weights may lie in another layout.
 *   drop-in   libfmoe for a caller that names no activation type, as AITER's fused_moe() takes none: with 1x32 weights the
 *             type is chosen as fused_moe() chooses it (production_key.h). Such a caller has to hand weights to both layer
 *             models that its token counts reach, or see that mf_pipeline_weight says the same of both.
 *   aiter     AITER's dispatcher as it is (ROCm/aiter, fused_moe.py: get_2stage_cfgs, _lookup_cfg): that choice, and then a
 *             dictionary without the activation function, the first row in the order of the file. Its exact dictionary is
 *             never hit: its key holds an enum, and the table holds texts. This is for showing what AITER would serve;
 *             nothing of ours looks up so.
 *
 * All: the bucket of the count, and for the bucket of 131072 the tier below it, 32768. There is no other neighbour: a call
 * of 65,536 tokens has the bucket 32768, and one whose bucket has no row gets none.
 *
 * The key has experts and routes as the kernel sees them: expert counts those whose weights are here, fused shared ones
 * among them, and topk their routes too. AITER's callers under expert parallelism append one always-masked route to topk,
 * which its key takes off again (topk - is_ep); a call here says the routes without it. Which of all ranks' experts are here
 * makes no kernel faster: under moefarm and drop-in a row of another rank's share of the same size answers behind the own. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "common/base/names.h"
#include "common/moe/shape.h"

struct mf_device_class;
struct mf_table;
struct mf_table_row;

/* clang-format off */
#define MF_LOOKUP_MAP(X, P)    \
    X(P, MOEFARM, "moefarm")   \
    X(P, DROP_IN, "drop-in")   \
    X(P, AITER, "aiter")
/* clang-format on */
MF_NAMES_DECLARE(mf_lookup, MF_LOOKUP_, MF_LOOKUP_MAP);

/* What of a key a row need not have; bits. */
enum {
    MF_LOOKUP_ANY_RANK = 1, /* the first expert of a rank's share */
    MF_LOOKUP_ANY_ACT = 2,  /* the activation function */
    MF_LOOKUP_ANY_FORM = 4, /* all that the twelve columns cannot say */
};

struct mf_lookup_try {
    struct mf_shape key; /* its token count is a bucket */
    unsigned any;
};

/* The bucket, and the tier below it; each for the own rank, and for any. */
#define MF_LOOKUP_TRIES_MAX 4

/* The tries of a call in order; token must be at least 1. Returns how many: 1 to MF_LOOKUP_TRIES_MAX. The first one's key is
 * what a table has to hold for the call to be served by a row of its own. */
size_t mf_lookup_tries(const struct mf_shape *call, enum mf_lookup rules,
                       struct mf_lookup_try tries[MF_LOOKUP_TRIES_MAX]);
/* Whether a row of that shape answers the try. */
bool mf_lookup_answers(const struct mf_lookup_try *attempt, const struct mf_shape *row);
/* Whether a row takes part in the look-up. Tags: libfmoe passes over every tagged row, AITER over the fallbacks that it keeps for
 * hosts without FlyDSL. Spelling: libfmoe matches by value, AITER by text, so a row of `dtypes.bf16` is never met there. */
bool mf_lookup_reads(enum mf_lookup rules, const struct mf_table *table, const struct mf_table_row *row);

struct mf_lookup_found {
    const struct mf_table *table;
    const struct mf_table_row *row;
    size_t attempt; /* which try it answers */
};

/* The row that answers the call: of the first try that any row answers, the first row in the order of the tables and of their
 * rows. False: none. No allocation; reads all rows. */
bool mf_lookup_find(const struct mf_table *const *tables, size_t n, const struct mf_device_class *class,
                    const struct mf_shape *call, enum mf_lookup rules, struct mf_lookup_found *ret);
