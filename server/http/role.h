/* What somebody may do at the API. */
#pragma once

#include "common/base/names.h"

/* Each of the first four holds those before it. */
/* clang-format off */
#define MF_ROLE_MAP(X, P)                                      \
    X(P, NONE, "none")     /* nobody in particular */          \
    X(P, READ, "read")                                         \
    X(P, SUBMIT, "submit") /* batches of shapes */             \
    X(P, ADMIN, "admin")   /* workers, tokens and keys */      \
    X(P, WORKER, "worker") /* enrols one key, and nothing else */
/* clang-format on */
MF_NAMES_DECLARE(mf_role, MF_ROLE_, MF_ROLE_MAP);
