#include "worker/runner/runner_sink.h"

#include <errno.h>
#include <math.h>

#include "common/base/clock.h"
#include "common/base/fault.h"
#include "common/base/json.h"
#include "worker/runner/device_info.h"

/* Rounds to 0.1 ns to keep the messages short. */
static double rounded(double us)
{
    return round(us * 1e4) / 1e4;
}

static bool add_number(cJSON *object, const char *key, double value)
{
    return !isfinite(value) || cJSON_AddNumberToObject(object, key, value);
}

static bool add_samples(cJSON *object, const char *key, const double *samples, size_t n)
{
    if (n == 0)
        return true;
    cJSON *array = cJSON_AddArrayToObject(object, key);
    for (size_t i = 0; array && i < n && i < MF_SAMPLES_MAX; i++) {
        cJSON *item = cJSON_CreateNumber(rounded(samples[i]));
        if (!cJSON_AddItemToArray(array, item)) {
            cJSON_Delete(item);
            return false;
        }
    }
    return array != NULL;
}

static int send_message(struct mf_runner_sink *s, const cJSON *message, bool complete)
{
    if (!message || !complete)
        return -ENOMEM;
    return mf_channel_send_wait(s->channel, message, -1);
}

static int sink_begin(struct mf_sink *sink, int64_t id, bool is_pipeline, int64_t limit_ms)
{
    struct mf_runner_sink *s = (struct mf_runner_sink *)sink;
    _cleanup_(cJSON_Deletep) cJSON *m = mf_channel_message("begin");
    bool ok = m && mf_json_add_i64(m, is_pipeline ? "pipeline" : "step", id) &&
              mf_json_add_i64(m, "limit_ms", limit_ms);
    int r = send_message(s, m, ok);
    mf_fault_at(MF_FAULT_STEP_STARTED);
    return r;
}

/* Adds the resource usage. Leaves out unknown values. */
static bool add_use(cJSON *m, const struct mf_resource_usage *use)
{
    const struct {
        const char *key;
        int value;
    } members[] = {{"registers", use->registers},
                   {"spills", use->spills},
                   {"lds", use->lds},
                   {"occupancy", MF_MAX(use->occupancy, 0)}};
    bool ok = true;
    for (size_t i = 0; use->registers > 0 && i < MF_ARRAY_LEN(members); i++)
        ok = ok && mf_json_add_i64(m, members[i].key, members[i].value);
    return ok;
}

static bool fill_result(cJSON *m, const struct mf_unit_result *r)
{
    bool ok = mf_json_add_i64(m, r->is_pipeline ? "pipeline" : "step", r->id) &&
              cJSON_AddStringToObject(m, "status", mf_status_name(r->status)) &&
              cJSON_AddStringToObject(m, "reason", r->reason) && mf_json_add_i64(m, "verified", r->verified);
    ok = ok && add_number(m, "us", rounded(r->us)) && add_number(m, "mad", rounded(r->mad)) &&
         add_number(m, "err", r->err) && add_number(m, "row_err", r->row_err) &&
         add_number(m, "row_limit", r->row_limit) && add_number(m, "canary", r->canary);
    ok = ok && add_samples(m, "samples", r->samples, r->n_samples) &&
         add_samples(m, "fresh", r->fresh, r->n_fresh);
    if (ok && r->mode && r->mode[0])
        ok = cJSON_AddStringToObject(m, "mode", r->mode);
    if (ok && r->dropped_at > 0)
        ok = mf_json_add_i64(m, "dropped_at", r->dropped_at);
    if (ok && r->differs)
        ok = cJSON_AddTrueToObject(m, "differs");
    return ok && add_use(m, &r->use);
}

static double ceilings(const struct mf_device_info *d)
{
    return d->peak_gflops_bf16 + d->peak_gflops_f32 + d->mem_read_gbs;
}

int mf_runner_sink_describe(struct mf_runner_sink *s, const struct mf_device_info *device)
{
    _cleanup_(cJSON_Deletep) cJSON *m = mf_channel_message("described");
    s->device = device;
    s->sent_ceilings = ceilings(device);
    return send_message(s, m, m && mf_device_info_add(m, device) == 0);
}

static int sink_result(struct mf_sink *sink, const struct mf_unit_result *result)
{
    struct mf_runner_sink *s = (struct mf_runner_sink *)sink;
    if (s->device && ceilings(s->device) > s->sent_ceilings) {
        int r = mf_runner_sink_describe(s, s->device);
        if (r < 0)
            return r;
    }
    _cleanup_(cJSON_Deletep) cJSON *m = mf_channel_message("result");
    int r = send_message(s, m, m && fill_result(m, result));
    mf_fault_at(MF_FAULT_STEP_REPORTED);
    return r;
}

static bool fill_won(cJSON *to, const struct mf_race_won *won)
{
    bool ok = mf_json_add_i64(to, "winner", won->winner) && add_number(to, "us", rounded(won->us)) &&
              add_number(to, "mad", rounded(won->mad)) && mf_json_add_i64(to, "tries", won->tries) &&
              (!won->unstable[0] || cJSON_AddStringToObject(to, "unstable", won->unstable));
    cJSON *ties = ok ? cJSON_AddArrayToObject(to, "ties") : NULL;
    for (size_t i = 0; ties && i < won->n_ties; i++) {
        cJSON *item = cJSON_CreateNumber((double)won->ties[i]);
        if (!cJSON_AddItemToArray(ties, item)) {
            cJSON_Delete(item);
            return false;
        }
    }
    return ties != NULL;
}

/* Adds the outcomes per group, if the race has more than one group. */
static bool add_groups(cJSON *race, const struct mf_race_outcome *o)
{
    cJSON *groups = o->n_groups > 1 ? cJSON_AddArrayToObject(race, "groups") : NULL;
    for (size_t k = 0; groups && k < o->n_groups; k++) {
        if (o->groups[k].winner == 0)
            continue;
        cJSON *group = cJSON_CreateObject();
        if (!cJSON_AddItemToArray(groups, group)) {
            cJSON_Delete(group);
            return false;
        }
        if (!mf_json_add_i64(group, "group", (int64_t)k) || !fill_won(group, &o->groups[k]))
            return false;
    }
    return groups || o->n_groups <= 1;
}

static bool fill_race(cJSON *race, const struct mf_race_outcome *o)
{
    return fill_won(race, &o->won) && mf_json_add_i64(race, "rounds", o->rounds) &&
           mf_json_add_i64(race, "calls", o->calls) &&
           (o->repeated <= 0 || mf_json_add_i64(race, "repeated", o->repeated)) &&
           (o->active <= 0 || mf_json_add_i64(race, "active_experts", o->active)) && add_groups(race, o);
}

static int sink_race(struct mf_sink *sink, const struct mf_race_outcome *outcome)
{
    struct mf_runner_sink *s = (struct mf_runner_sink *)sink;
    _cleanup_(cJSON_Deletep) cJSON *m = mf_channel_message("result");
    bool ok = m && cJSON_AddStringToObject(m, "status", mf_status_name(MF_STATUS_OK));
    cJSON *race = ok ? cJSON_AddObjectToObject(m, "race") : NULL;
    int r = send_message(s, m, race && fill_race(race, outcome));
    mf_fault_at(MF_FAULT_RACE_REPORTED);
    return r;
}

static void switch_phase(struct mf_runner_sink *s, enum mf_phase phase)
{
    uint64_t now = mf_now_ns();
    s->busy_s[s->phase] += (double)(now - s->since_ns) / 1e9;
    s->since_ns = now;
    s->phase = phase;
}

static void sink_phase(struct mf_sink *sink, enum mf_phase phase)
{
    struct mf_runner_sink *s = (struct mf_runner_sink *)sink;
    if (phase == s->phase)
        return;
    switch_phase(s, phase);
    _cleanup_(cJSON_Deletep) cJSON *m = mf_channel_message("phase");
    if (m && cJSON_AddStringToObject(m, "name", mf_phase_name(phase)))
        (void)mf_channel_send_wait(s->channel, m, -1);
}

void mf_runner_sink_init(struct mf_runner_sink *s, struct mf_channel *channel)
{
    *s = (struct mf_runner_sink){
        .sink = {.begin = sink_begin, .result = sink_result, .race = sink_race, .phase = sink_phase},
        .channel = channel,
        .phase = MF_PHASE_WAIT,
        .since_ns = mf_now_ns(),
    };
}

int mf_runner_sink_end(struct mf_runner_sink *s)
{
    switch_phase(s, MF_PHASE_WAIT);
    _cleanup_(cJSON_Deletep) cJSON *m = mf_channel_message("end");
    cJSON *busy = m ? cJSON_AddObjectToObject(m, "busy") : NULL;
    for (int i = 0; busy && i < MF_PHASE_N_; i++) {
        if (!cJSON_AddNumberToObject(busy, mf_phase_name((enum mf_phase)i), s->busy_s[i]))
            return -ENOMEM;
        s->busy_s[i] = 0;
    }
    int r = send_message(s, m, busy != NULL);
    mf_fault_at(MF_FAULT_WORK_ENDED);
    return r;
}
