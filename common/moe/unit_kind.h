/* Kinds of work units (docs/protocol.md, UNIT). */
#pragma once

#include "common/base/names.h"

/* clang-format off */
#define MF_UNIT_KIND_MAP(X, P)   \
    X(P, ENUMERATE, "enumerate") \
    X(P, PROBE, "probe")         \
    X(P, RACE, "race")           \
    X(P, COMPARE, "compare")
/* clang-format on */
MF_NAMES_DECLARE(mf_unit_kind, MF_UNIT_, MF_UNIT_KIND_MAP);
