/* What became of a step: a failed kernel is data, not an error. Every status but ok carries a reason, a
 * sentence for people. */
#pragma once

#include "common/base/names.h"

/* clang-format off */
#define MF_STATUS_MAP(X, P)                                                                         \
    X(P, OK, "ok")                   /* right in every gate, and timed */                           \
    X(P, SLOW, "slow")               /* right on its first run, dropped by time before all gates */ \
    X(P, WRONG, "wrong")             /* a gate of verification refused it */                        \
    X(P, IMPLAUSIBLE, "implausible") /* a time of zero or below, or beyond the device's peak */     \
    X(P, CRASH, "crash")             /* its runner died */                                          \
    X(P, HANG, "hang")               /* its runner was stopped at the step's time limit */          \
    X(P, NO_MEMORY, "no_memory")                                                                    \
    X(P, NO_COMPILE, "no_compile")                                                                  \
    X(P, UNSUPPORTED, "unsupported") /* the family refused at launch what it had offered */         \
    X(P, QUARANTINED, "quarantined") /* killed two runners; not run any more */
/* clang-format on */
MF_NAMES_DECLARE(mf_status, MF_STATUS_, MF_STATUS_MAP);

#define MF_REASON_MAX 320
