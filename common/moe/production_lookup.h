/* Production's table lookup: which rows of a tuned table may serve a call, and in which order they are tried.
 *
 * A call is a layer model and its real token count; production pads the count. There are three sets of rules:
 *
 *   moefarm   libfmoe. The key is the caller's request with a padded token count. The activation type is part
 *             of the request and never replaced, because a coarser type costs accuracy, and because a row of
 *             another type is for another layer model, which may have another weight layout.
 *   drop-in   libfmoe for callers that pass no activation type, like those of AITER's fused_moe(). With 1x32
 *             weights, libfmoe chooses the type as fused_moe() does (production_key.h). The caller must pass
 *             weights for both layer models that its token counts select, or check that mf_pipeline_weight
 *             returns the same layout for both.
 *   aiter     AITER's dispatcher (ROCm/aiter, fused_moe.py: get_2stage_cfgs, _lookup_cfg). AITER chooses the
 *             type as in drop-in, then looks up a dictionary whose key lacks the activation function; the
 *             first row of the file wins. AITER also has an exact dictionary, but it never matches, because
 *             its key has an enum where the table has text. This set of rules is used only to show the row
 *             that AITER would serve.
 *
 * All rules look up the bucket of the token count. If bucket 131072 has no row, they look up bucket 32768.
 * There is no other fallback. For example, 65,536 tokens use bucket 32768; if this bucket has no row, the
 * call has no row.
 *
 * The key has experts and routes as the kernel sees them: `expert` is the number of local experts including
 * fused shared experts, and topk includes their routes. Under expert parallelism AITER's callers append one
 * always-masked route to topk. AITER subtracts this route from its key (topk - is_ep), and a call here does
 * not contain the route. The position of the local experts among all ranks does not affect speed. Therefore
 * moefarm and drop-in first try a row for the call's own rank, then a row for another rank with the same
 * number of experts. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "common/base/names.h"
#include "common/moe/shape.h"

struct mf_device_class;
struct mf_production_env;
struct mf_table;
struct mf_table_row;

/* clang-format off */
#define MF_LOOKUP_MAP(X, P)  \
    X(P, MOEFARM, "moefarm") \
    X(P, DROP_IN, "drop-in") \
    X(P, AITER, "aiter")
/* clang-format on */
MF_NAMES_DECLARE(mf_lookup, MF_LOOKUP_, MF_LOOKUP_MAP);

/* Bit flags: parts of the key in which a row may differ from the call. */
enum {
    MF_LOOKUP_ANY_RANK = 1, /* first local expert (ep_first) */
    MF_LOOKUP_ANY_ACT = 2,  /* activation function */
    MF_LOOKUP_ANY_FORM = 4, /* everything in the form column */
};

struct mf_lookup_try {
    struct mf_shape key; /* key to look up in the table; its token count is a bucket */
    unsigned any;
};

/* The bucket and the next lower bucket, each tried with the call's own rank and then with any rank. */
#define MF_LOOKUP_TRIES_MAX 4

/* Writes the tries of a call in order and returns their number, 1 to MF_LOOKUP_TRIES_MAX. call->token must be
 * at least 1. A row with the key of the first try is an exact match. env: AITER's environment variables;
 * NULL: they are unset. */
size_t mf_lookup_tries(const struct mf_shape *call, enum mf_lookup rules, const struct mf_production_env *env,
                       struct mf_lookup_try tries[MF_LOOKUP_TRIES_MAX]);
/* True if a row with the shape `row` matches the try. */
bool mf_lookup_matches(const struct mf_lookup_try *attempt, const struct mf_shape *row);
/* True if the lookup considers the row. libfmoe skips every row with a tag or a variant; AITER skips only its
 * fallback rows for hosts without FlyDSL. libfmoe compares values; AITER compares text, so AITER never
 * matches a row that is spelled with `dtypes.bf16`. */
bool mf_lookup_considers(enum mf_lookup rules, const struct mf_table *table, const struct mf_table_row *row);

struct mf_lookup_found {
    const struct mf_table *table;
    const struct mf_table_row *row;
    size_t attempt; /* index of the try that the row matches */
};

/* Finds the row that serves the call. Uses the first try that matches any row. If the try matches several
 * rows, returns the first in the order of the tables and their rows. False if no row matches. Allocates
 * nothing; reads all rows. */
bool mf_lookup_find(const struct mf_table *const *tables, size_t n, const struct mf_device_class *class,
                    const struct mf_shape *call, enum mf_lookup rules, const struct mf_production_env *env,
                    struct mf_lookup_found *ret);
