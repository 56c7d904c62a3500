/* Faults that a simulated step can have, and parts of a race that can be disturbed. */
#pragma once

#include "common/base/names.h"

/* clang-format off */
#define MF_SIM_FAULT_MAP(X, P)                                                 \
    X(P, NONE, "none")                                                         \
    X(P, CRASH, "crash")             /* SIGSEGV */                             \
    X(P, ABORT, "abort")                                                       \
    X(P, EXIT, "exit")               /* exit status 3 during a step */         \
    X(P, HANG, "hang")                                                         \
    X(P, WRONG, "wrong")             /* one corrupted row */                   \
    X(P, NAN, "nan")                                                           \
    X(P, NO_MEMORY, "no_memory")                                               \
    X(P, ZERO_TIME, "zero_time")                                               \
    X(P, BEYOND_PEAK, "beyond_peak")                                           \
    X(P, SLOW, "slow")               /* takes 20 times its true time */
/* clang-format on */
MF_NAMES_DECLARE(mf_sim_fault, MF_SIM_FAULT_, MF_SIM_FAULT_MAP);

/* clang-format off */
#define MF_SIM_PART_MAP(X, P)                                                     \
    X(P, UNIT, "unit")   /* all samples of a race unit */                         \
    X(P, RERUN, "rerun") /* one rerun of the winners; the canary does not see it */ \
    X(P, ROUND, "round") /* one round or round of a rerun; the canary sees it */
/* clang-format on */
MF_NAMES_DECLARE(mf_sim_part, MF_SIM_PART_, MF_SIM_PART_MAP);
