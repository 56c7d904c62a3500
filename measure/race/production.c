#include "measure/race/production.h"

#include <errno.h>

#include "common/base/text.h"
#include "measure/session/session_data.h"

static const struct mf_family *find_family(const struct mf_session *s, const struct mf_step *steps, size_t n)
{
    const struct mf_family *f =
        n > 0 ? mf_family_set_find(s->extra, s->device->ops->kind, steps[0].family) : NULL;
    return f && f->production ? f : NULL;
}

bool mf_production_has(const struct mf_session *s, const struct mf_step *steps, size_t n)
{
    return find_family(s, steps, n) != NULL;
}

static enum mf_status verify(struct mf_race_buffers *c, const struct mf_step *step,
                             char reason[MF_REASON_MAX])
{
    struct mf_session *s = c->session;
    struct mf_pipeline *pipeline = NULL;
    struct mf_entrant e;
    int r = mf_pipeline_open_steps(s->device, &s->shape, s->extra, step, 1, reason, MF_REASON_MAX, &pipeline);
    if (r < 0)
        return r == -ENOMEM ? MF_STATUS_NO_MEMORY : MF_STATUS_UNSUPPORTED;
    enum mf_status status = mf_entrant_init(&e, c, pipeline, reason);
    if (status == MF_STATUS_OK)
        status = mf_entrant_verify(&e, reason);
    mf_pipeline_close(pipeline);
    return status;
}

enum mf_status mf_production_check(struct mf_race_buffers *c, const struct mf_step *steps, size_t n,
                                   char reason[MF_REASON_MAX])
{
    const struct mf_session *s = c->session;
    const struct mf_family *f = find_family(s, steps, n);
    char why[MF_REASON_MAX] = "";
    struct mf_step step;
    int r = f ? f->production(f, &s->device->info, &s->shape, steps, n, &step) : -ENOENT;
    if (r == -ENOENT)
        return MF_STATUS_OK;
    if (r == -EINVAL) {
        mf_format(reason, MF_REASON_MAX, "%s's tables have no row for these steps", f->name);
        return MF_STATUS_UNSUPPORTED;
    }
    if (r < 0) {
        mf_format(reason, MF_REASON_MAX, "the tuned row: out of memory");
        return MF_STATUS_NO_MEMORY;
    }
    enum mf_status status = verify(c, &step, why);
    if (status != MF_STATUS_OK)
        mf_format(reason, MF_REASON_MAX, "the tuned row, through %s's own operator: %.200s", f->name, why);
    return status;
}
