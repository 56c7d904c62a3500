/* Outcome of a step. A failed kernel is data, not an error. Every status except ok has a reason, a sentence
 * for display. */
#pragma once

#include "common/base/names.h"

/* clang-format off */
#define MF_STATUS_MAP(X, P)                                                                         \
    X(P, OK, "ok")                   /* passed every verification gate and was timed */             \
    X(P, SLOW, "slow")               /* passed its first run, but too slow for more gates */        \
    X(P, WRONG, "wrong")             /* failed a verification gate */                               \
    X(P, IMPLAUSIBLE, "implausible") /* time is not positive or beats the device's peak */          \
    X(P, CRASH, "crash")             /* the runner process died */                                  \
    X(P, HANG, "hang")               /* the runner was killed at the step's time limit */           \
    X(P, NO_MEMORY, "no_memory")                                                                    \
    X(P, NO_COMPILE, "no_compile")                                                                  \
    X(P, UNSUPPORTED, "unsupported") /* the family enumerated the step and rejected it at launch */ \
    X(P, QUARANTINED, "quarantined") /* killed two runners; the step is not run any more */
/* clang-format on */
MF_NAMES_DECLARE(mf_status, MF_STATUS_, MF_STATUS_MAP);

#define MF_REASON_MAX 320
