#include "cli/bench/compare.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/text.h"
#include "kernels/core/philox.h"
#include "measure/race/entrant.h"

MF_DEFINE_CLEANUP(struct mf_session *, mf_session_free);

/* A comparison in progress. */
struct comparison {
    const struct mf_compare_plan *plan;
    size_t row_index;
    struct mf_compared *c;
    struct mf_race_buffers buffers;
    struct mf_entrant side[MF_SIDES];
    double *us[MF_SIDES]; /* sample times by round */
    double *scratch;
    size_t n;
};

/* Maximum number of looks at a row's samples. */
static int max_looks(const struct mf_compare_plan *plan)
{
    int looks = 1;
    for (int64_t rounds = plan->rounds; rounds < plan->max_rounds; rounds *= 2)
        looks++;
    return looks;
}

bool mf_compared_is_wrong(const struct mf_compared *c)
{
    return c->wrong[MF_SIDE_OLD] || c->wrong[MF_SIDE_NEW];
}

static void set_status(struct comparison *d, enum mf_side side, enum mf_status status)
{
    d->c->wrong[side] = status != MF_STATUS_OK;
}

/* Verifies both sides, even if the first fails, so that the report has the failures of both. */
static void verify(struct comparison *d)
{
    for (enum mf_side i = 0; i < MF_SIDES; i++) {
        const struct mf_bench_row *row = d->c->row[i];
        enum mf_status status = MF_STATUS_UNSUPPORTED;

        if (row->refused)
            (void)mf_copy(d->c->reason[i], sizeof(d->c->reason[i]), row->refused);
        else
            status = mf_entrant_init(&d->side[i], &d->buffers, row->pipeline, d->c->reason[i]);
        if (status == MF_STATUS_OK)
            status = mf_entrant_verify(&d->side[i], d->c->reason[i]);
        set_status(d, i, status);
    }
}

static void sample_round(struct comparison *d, double *us[MF_SIDES], size_t round)
{
    bool swapped = mf_philox(d->plan->seed, d->row_index, round).v[0] & 1;
    for (int position = 0; position < MF_SIDES && !mf_compared_is_wrong(d->c); position++) {
        enum mf_side i = swapped ? MF_SIDES - 1 - position : position;
        set_status(d, i, mf_entrant_sample(&d->side[i], &us[i][round], d->c->reason[i]));
    }
}

/* Samples rounds until the verdict is clear or a limit is reached. The first round only warms up caches and
 * clocks; the next round overwrites its times. The error probability is split over all looks (Bonferroni). */
static int sample(struct comparison *d)
{
    const struct mf_compare_plan *plan = d->plan;
    const struct mf_paired_rule rule = {plan->rule.least_effect,
                                        1 - (1 - plan->rule.confidence) / max_looks(plan)};
    uint64_t end = mf_now_ns() + (uint64_t)(plan->seconds * 1e9);
    size_t max_rounds_total = (size_t)MF_MAX(plan->rounds, plan->max_rounds), look = (size_t)plan->rounds;

    sample_round(d, d->us, 0);
    for (;;) {
        for (; d->n < look && !mf_compared_is_wrong(d->c); d->n++)
            sample_round(d, d->us, d->n);
        if (mf_compared_is_wrong(d->c))
            return 0;
        if (mf_paired_judge(d->us[MF_SIDE_OLD], d->us[MF_SIDE_NEW], d->n, &rule, d->scratch, &d->c->paired) <
            0)
            return mf_cli_fail(MF_EXIT_FAILED, "measured a time of zero or below; run the comparison again");
        if (d->c->paired.verdict != MF_PAIRED_AMBIGUOUS || look == max_rounds_total || mf_now_ns() > end)
            return 0;
        look = MF_MIN(2 * look, max_rounds_total);
    }
}

static void set_medians(struct comparison *d)
{
    if (mf_compared_is_wrong(d->c))
        return;
    d->c->rounds = (int64_t)d->n;
    for (enum mf_side i = 0; i < MF_SIDES; i++) {
        memcpy(d->scratch, d->us[i], d->n * sizeof(double));
        d->c->us[i] = mf_median(d->scratch, d->n);
    }
}

int mf_compare_rows(struct mf_bench *b, const struct mf_compare_plan *plan, size_t row_index,
                    struct mf_compared *c)
{
    _cleanup_(mf_session_freep) struct mf_session *session = NULL;
    size_t max_rounds_total = (size_t)MF_MAX(plan->rounds, plan->max_rounds);
    _cleanup_(mf_freep) double *memory = calloc(3 * max_rounds_total, sizeof(*memory));
    struct comparison d = {.plan = plan, .row_index = row_index, .c = c};
    int code;

    if (!memory)
        return mf_cli_out_of_memory();
    d.us[MF_SIDE_OLD] = memory;
    d.us[MF_SIDE_NEW] = memory + max_rounds_total;
    d.scratch = memory + 2 * max_rounds_total;
    code = mf_bench_session(c->row[MF_SIDE_NEW], b, &session);
    if (code != 0)
        return code;
    if (mf_race_buffers_init(&d.buffers, session) < 0)
        return mf_cli_out_of_memory();
    verify(&d);
    if (!mf_compared_is_wrong(c))
        code = sample(&d);
    set_medians(&d);
    return code;
}
