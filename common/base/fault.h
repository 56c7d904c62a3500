/* Named places where a test has the process die as by kill -9: around every durable step of the coordinator, of a worker, of
 * a runner and of an export.
 *
 *     MOEFARM_FAULT=NAME:N:FILE    the N-th time that any process gets to NAME, counted in FILE, it kills itself
 *
 * The count is in a file that all of them map, made empty by the test: the place is met N times over all processes and all
 * their successors, one of them dies, and afterwards the file says how often it was met. Without the variable, which is
 * read once by mf_fault_init(), a place costs one comparison. Set before threads start, read by all of them. */
#pragma once

#include "common/base/names.h"

/* clang-format off */
#define MF_FAULT_MAP(X, P)                                                                                        \
    X(P, NONE, "none")                                                                                            \
    /* coordinator */                                                                                             \
    X(P, SCHEMA_WRITTEN, "schema_written")   /* the schema is made, its transaction open */                       \
    X(P, FARM_LOADED, "farm_loaded")         /* the new epoch and longer leases are written, not committed */      \
    X(P, UNIT_LEASED, "unit_leased")         /* in a turn: a lease is written */                                  \
    X(P, RESULT_STORED, "result_stored")     /* in a turn: a result is written */                                 \
    X(P, LAYER_RANKED, "layer_ranked")       /* in a turn: pipelines and races of a layer model are written */    \
    X(P, LAYOUT_SETTLED, "layout_settled")   /* in a turn: the layout that won a layer model's races is written */ \
    X(P, CONFIG_STORED, "config_stored")     /* in a turn: a winner is written */                                 \
    X(P, CHANNEL_MOVED, "channel_moved")     /* in a turn: a channel's move is written */                          \
    X(P, TURN_WRITTEN, "turn_written")       /* all of a turn is written, not committed */                        \
    X(P, LOG_WRITTEN, "log_written")         /* the commit is in the log, the log not synced */                   \
    X(P, TURN_COMMITTED, "turn_committed")   /* nobody was answered yet */                                        \
    X(P, TURN_ANSWERED, "turn_answered")                                                                          \
    /* worker */                                                                                                  \
    X(P, HELLO_SENT, "hello_sent")                                                                                \
    X(P, UNIT_TAKEN, "unit_taken")           /* a UNIT was received */                                            \
    X(P, RECORD_HALF, "record_half")         /* spool: a record's header is written, its payload is not */         \
    X(P, RESULT_SPOOLED, "result_spooled")   /* in the spool, not sent */                                         \
    X(P, RESULT_SENT, "result_sent")                                                                              \
    X(P, ACK_TAKEN, "ack_taken")             /* acknowledged, still in the spool */                               \
    X(P, ACK_KEPT, "ack_kept")               /* taken out of the spool */                                         \
    X(P, SPOOL_WRITTEN, "spool_written")     /* the shorter spool lies beside the old one */                      \
    X(P, SPOOL_RENAMED, "spool_renamed")                                                                          \
    /* runner */                                                                                                  \
    X(P, STEP_OFFERED, "step_offered")       /* in an enumeration */                                              \
    X(P, STEP_BEGUN, "step_begun")           /* a step, or a pipeline of a race */                                \
    X(P, STEP_TOLD, "step_told")             /* its result is with the worker */                                  \
    X(P, RACE_TOLD, "race_told")             /* the closing result of a race is */                                \
    X(P, WORK_ENDED, "work_ended")           /* the worker was told that the unit is over */                      \
    /* export */                                                                                                  \
    X(P, TABLE_WRITTEN, "table_written")     /* the new table is synced beside the old one */                     \
    X(P, TABLE_RENAMED, "table_renamed")
/* clang-format on */
MF_NAMES_DECLARE(mf_fault, MF_FAULT_, MF_FAULT_MAP);

/* Where this process dies; MF_FAULT_NONE in every process that is not tested. */
extern enum mf_fault mf_fault_armed;

/* Reads MOEFARM_FAULT. -EINVAL: it does not say NAME:N:FILE; or what keeps it from mapping the file. */
int mf_fault_init(void);
/* Counts; does not come back the N-th time. */
void mf_fault_met(void);

static inline void mf_fault_at(enum mf_fault here)
{
    if (mf_fault_armed == here)
        mf_fault_met();
}
