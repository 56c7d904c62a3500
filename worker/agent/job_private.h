/* Private parts of a job. job.c: UNIT, request for the runner; job_result.c: runner messages to RESULTs. */
#pragma once

#include "common/base/json.h"
#include "worker/agent/job.h"

#define MF_JOB_ID_MAX (INT64_C(1) << 53)

/* True if the job is a race or a comparison. */
bool mf_job_is_race(const struct mf_job *j);
/* Adds unit, attempt and epoch. False: out of memory. */
bool mf_job_add_key(cJSON *body, const struct mf_job *j);
