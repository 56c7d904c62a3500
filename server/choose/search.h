/* How far a batch looks: what becomes of the steps that a shape is found to have; and which row stands in the end. */
#pragma once

#include "common/base/names.h"

/* clang-format off */
#define MF_SEARCH_MAP(X, P)                                                                              \
    X(P, RACE, "race")                                                                                   \
    X(P, EXHAUSTIVE, "exhaustive") /* every step gets every gate and sample */                           \
    X(P, ENUMERATE, "enumerate")   /* nothing is measured: what would be tried, and what not and why */
/* clang-format on */
MF_NAMES_DECLARE(mf_search, MF_SEARCH_, MF_SEARCH_MAP);

/* clang-format off */
#define MF_PROMOTE_MAP(X, P)                                                                       \
    X(P, ALWAYS, "always")     /* the new one */                                                   \
    X(P, IMPROVED, "improved") /* the known one, unless the new one wins against it (promote.h) */
/* clang-format on */
MF_NAMES_DECLARE(mf_promote, MF_PROMOTE_, MF_PROMOTE_MAP);
