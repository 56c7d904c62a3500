/* Going on with what a predecessor had in hand: its units from the journal, less what the spool and the journal say is done.
 * The coordinator decides (WELCOME's keep): a lease that has ended is not resumed. */
#include "worker/agent/agent_private.h"

#include <errno.h>

/* Results that are in the spool, though the death came before the journal heard of them. */
static bool read_spool(struct mf_agent *a, struct mf_job *job)
{
    struct mf_spool_key key;
    const char *body;
    size_t len;
    bool ended = false;
    while (mf_spool_next(a->spool, &key, &body, &len)) {
        if (key.unit == job->unit && key.attempt == job->attempt) {
            _cleanup_(cJSON_Deletep) cJSON *json = mf_json_parse(body, len, MF_SPOOL_RECORD_MAX);
            int64_t item = 0;
            bool last = false;
            if (mf_json_i64(json, "step", 0, INT64_C(1) << 53, &item) < 0)
                (void)mf_json_i64(json, "pipeline", 0, INT64_C(1) << 53, &item);
            (void)mf_json_bool(json, "last", &last);
            mf_job_done_before(job, item, key.seq);
            ended |= last;
        }
        mf_spool_sent(a->spool);
    }
    mf_spool_resend(a->spool);
    return ended;
}

/* A race is paired or nothing, and an enumeration is told anew: of those only what has said nothing yet goes on. */
static bool can_go_on(const struct mf_job *job)
{
    return job->kind == MF_UNIT_PROBE ? job->n_done < job->n_items : job->seq == 0;
}

static void resume(struct mf_agent *a, struct mf_journal_unit *u)
{
    char why[MF_REASON_MAX];
    struct mf_job *job = NULL;
    if (u->n_fell >= MF_JOURNAL_STUCK || a->n_jobs == MF_AGENT_JOBS_MAX ||
        mf_job_new(cJSON_DetachItemViaPointer(u->record, u->body), mf_agent_spool_result, a, &job, why,
                   sizeof(why)) < 0)
        return;
    for (size_t i = 0; i < u->n_done; i++)
        mf_job_done_before(job, u->done[i].id, u->done[i].seq);
    if (read_spool(a, job) || !can_go_on(job)) {
        mf_job_free(job);
        return;
    }
    log_info("%s: goes on with unit %lld, of which %zu of %zu are done", a->o.name, (long long)job->unit,
             job->n_done, job->n_items);
    mf_journal_retake(&a->journal, u);
    a->jobs[a->n_jobs++] = job;
}

void mf_agent_resume(struct mf_agent *a)
{
    const char *class = "", *revision = "";
    (void)mf_json_text(mf_runner_pool_described(a->runner_pool), "class", &class);
    (void)mf_json_text(mf_runner_pool_hello(a->runner_pool), "revision", &revision);
    for (size_t i = 0; i < a->journal.n_found; i++) {
        struct mf_journal_unit *u = &a->journal.found[i];
        /* Another device, or other kernels, than it was leased for */
        if (strcmp(u->class, class) == 0 && strcmp(u->revision, revision) == 0)
            resume(a, u);
    }
    int r = mf_journal_forget(&a->journal);
    if (r < 0)
        log_err(r, "%s: shorten the journal", a->o.name);
}
