/* Roles of access tokens. */
#pragma once

#include "common/base/names.h"

/* READ to ADMIN are ordered: each role includes the roles before it. WORKER neither includes another role nor
 * is included. */
/* clang-format off */
#define MF_ROLE_MAP(X, P)                                              \
    X(P, NONE, "none")     /* no token required */                     \
    X(P, READ, "read")                                                 \
    X(P, SUBMIT, "submit") /* create batches */                        \
    X(P, ADMIN, "admin")   /* manage workers, tokens and keys */       \
    X(P, WORKER, "worker") /* enrols one worker key, nothing else */
/* clang-format on */
MF_NAMES_DECLARE(mf_role, MF_ROLE_, MF_ROLE_MAP);
