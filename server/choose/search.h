/* Batch options `search` (how much of the search space is measured) and `promote` (which row is exported). */
#pragma once

#include "common/base/names.h"

/* clang-format off */
#define MF_SEARCH_MAP(X, P)                                                    \
    X(P, RACE, "race")                                                         \
    X(P, EXHAUSTIVE, "exhaustive") /* every step gets all gates and samples */ \
    X(P, ENUMERATE, "enumerate")   /* lists steps and rejections, measures nothing */
/* clang-format on */
MF_NAMES_DECLARE(mf_search, MF_SEARCH_, MF_SEARCH_MAP);

/* clang-format off */
#define MF_PROMOTE_MAP(X, P)                     \
    X(P, ALWAYS, "always")     /* the new row */ \
    X(P, IMPROVED, "improved") /* the known row, unless the new row beats it (promote.h) */
/* clang-format on */
MF_NAMES_DECLARE(mf_promote, MF_PROMOTE_, MF_PROMOTE_MAP);
