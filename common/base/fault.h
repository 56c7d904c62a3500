/* Named crash points for tests, placed around the durable operations of the coordinator, a worker, a runner
 * and an export. At its crash point a process kills itself with SIGKILL.
 *
 *   MOEFARM_FAULT=NAME:N:FILE     the process that reaches crash point NAME for the N-th time kills itself
 *
 * All processes, including restarted ones, map the counter in FILE. N therefore counts the hits of all
 * processes, and exactly one process dies. The test creates FILE empty and reads the total number of hits
 * from FILE afterwards. If MOEFARM_FAULT is not set, a crash point costs one comparison. mf_fault_init()
 * reads the variable once, before threads start. */
#pragma once

#include "common/base/names.h"

/* clang-format off */
#define MF_FAULT_MAP(X, P)                                                                                  \
    X(P, NONE, "none")                                                                                      \
    /* coordinator */                                                                                       \
    X(P, SCHEMA_WRITTEN, "schema_written")               /* schema created, but not committed */            \
    X(P, FARM_LOADED, "farm_loaded")                     /* epoch and leases written, but not committed */  \
    X(P, UNIT_LEASED, "unit_leased")                     /* lease written, but not committed */             \
    X(P, RESULT_STORED, "result_stored")                 /* result written, but not committed */            \
    X(P, LAYER_RANKED, "layer_ranked")                   /* wrote pipelines and races of a layer model */ \
    X(P, LAYOUT_SETTLED, "layout_settled")               /* winning layout of a layer model written */      \
    X(P, CONFIG_STORED, "config_stored")                 /* winner written, but not committed */            \
    X(P, CHANNEL_MOVED, "channel_moved")                 /* channel pointer written, but not committed */   \
    X(P, TRANSACTION_WRITTEN, "transaction_written")     /* all statements executed, but not committed */   \
    X(P, WAL_WRITTEN, "wal_written")                     /* commit is in the WAL, but WAL not synced */     \
    X(P, TRANSACTION_COMMITTED, "transaction_committed") /* committed, but no reply sent */                 \
    X(P, REPLIES_SENT, "replies_sent")                                                                      \
    /* worker */                                                                                            \
    X(P, HELLO_SENT, "hello_sent")                                                                          \
    X(P, UNIT_RECEIVED, "unit_received")                 /* message UNIT received */                        \
    X(P, RECORD_PARTIAL, "record_partial")               /* record header spooled, but no payload */        \
    X(P, RESULT_SPOOLED, "result_spooled")               /* result spooled, but not sent */                 \
    X(P, RESULT_SENT, "result_sent")                                                                        \
    X(P, ACK_RECEIVED, "ack_received")                   /* result acknowledged, but still spooled */       \
    X(P, ACK_APPLIED, "ack_applied")                     /* acknowledged result removed from the spool */   \
    X(P, SPOOL_WRITTEN, "spool_written")                 /* compacted spool written, but not renamed */     \
    X(P, SPOOL_RENAMED, "spool_renamed")                                                                    \
    /* runner */                                                                                            \
    X(P, STEP_OFFERED, "step_offered")                   /* one step enumerated */                          \
    X(P, STEP_STARTED, "step_started")                   /* a step or a race's pipeline started */          \
    X(P, STEP_REPORTED, "step_reported")                 /* step result sent to the worker */               \
    X(P, RACE_REPORTED, "race_reported")                 /* final race result sent to the worker */         \
    X(P, WORK_ENDED, "work_ended")                       /* worker notified that the unit is finished */    \
    /* export */                                                                                            \
    X(P, TABLE_WRITTEN, "table_written")                 /* new table synced, but not renamed */            \
    X(P, TABLE_RENAMED, "table_renamed")
/* clang-format on */
MF_NAMES_DECLARE(mf_fault, MF_FAULT_, MF_FAULT_MAP);

/* Crash point armed in this process; MF_FAULT_NONE outside tests. */
extern enum mf_fault mf_fault_armed;

/* Reads MOEFARM_FAULT. -EINVAL: its value is not in the form NAME:N:FILE. Other negative errno values: FILE
 * could not be mapped. */
int mf_fault_init(void);
/* Increments the counter in FILE; kills the process on the N-th hit. */
void mf_fault_hit(void);

static inline void mf_fault_at(enum mf_fault here)
{
    if (mf_fault_armed == here)
        mf_fault_hit();
}
