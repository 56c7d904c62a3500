/* Outcome of a step. A failed kernel is data, not an error. Every status except ok has a reason, a sentence
 * for display. */
#pragma once

#include "common/base/names.h"

/* clang-format off */
#define MF_STATUS_MAP(X, P)                                                                         \
    X(P, OK, "ok")                   /* passed every verification gate and was timed */             \
    X(P, SLOW, "slow")               /* passed its first run; too slow for the remaining gates */   \
    X(P, WRONG, "wrong")             /* failed a verification gate */                               \
    X(P, IMPLAUSIBLE, "implausible") /* time not positive, or faster than the device's peak */      \
    X(P, CRASH, "crash")             /* the runner died */                                          \
    X(P, HANG, "hang")               /* the runner was killed at the step's time limit */           \
    X(P, NO_MEMORY, "no_memory")                                                                    \
    X(P, NO_COMPILE, "no_compile")                                                                  \
    X(P, UNSUPPORTED, "unsupported") /* the family enumerated the step and rejected it at launch */ \
    X(P, QUARANTINED, "quarantined") /* killed two runners; no longer run */
/* clang-format on */
MF_NAMES_DECLARE(mf_status, MF_STATUS_, MF_STATUS_MAP);

#define MF_REASON_MAX 320
