#include "server/farm/result.h"

#include "common/base/buf.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "common/base/text.h"
#include "common/net/wire_bounds.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#define ID_MAX (INT64_C(1) << 53)

static int refuse(const char **ret_why, const char *why)
{
    *ret_why = why;
    return -EINVAL;
}

/* Reads an optional number; absent: NAN. The number is within its bounds (wire_bounds.h). */
static int optional_number(const cJSON *json, const char *key, double *ret)
{
    int r = mf_json_double(json, key, ret);
    if (r == -ENOENT) {
        *ret = (double)NAN;
        return 0;
    }
    return r;
}

static const struct samples_field {
    const char *key, *not_array, *too_many, *not_number;
} samples_texts = {"samples", "samples: expected an array", "samples: expected at most 4096 numbers",
                   "samples: expected numbers"},
  fresh_texts = {"fresh", "fresh: expected an array", "fresh: expected at most 4096 numbers",
                 "fresh: expected numbers"};

/* Reads an array of samples. `to` NULL: only checks and counts the samples. */
static int read_samples(const cJSON *json, const struct samples_field *field, float *to, size_t *ret_n,
                        const char **ret_why)
{
    const cJSON *item;
    const cJSON *samples = cJSON_GetObjectItemCaseSensitive(json, field->key);
    size_t n = 0;
    if (samples && !cJSON_IsArray(samples) && !cJSON_IsNull(samples))
        return refuse(ret_why, field->not_array);
    cJSON_ArrayForEach (item, samples) {
        if (n == MF_SAMPLES_KEEP_MAX)
            return refuse(ret_why, field->too_many);
        if (!cJSON_IsNumber(item))
            return refuse(ret_why, field->not_number);
        if (to)
            to[n] = (float)item->valuedouble;
        n++;
    }
    *ret_n = n;
    return 0;
}

static int read_race(const cJSON *json, struct mf_result_message *ret, const char **ret_why)
{
    ret->race = mf_json_object(json, "race");
    if (!ret->race)
        return 0;
    _cleanup_(mf_freep) char *text = mf_json_print(ret->race);
    return text && strlen(text) <= MF_RESULT_RACE_MAX ? 0 : refuse(ret_why, "race: expected at most 16 KiB");
}

static int read_enumeration(const cJSON *json, struct mf_result_message *ret, const char **ret_why)
{
    ret->steps = mf_json_array(json, "steps");
    ret->rejections = mf_json_array(json, "rejections");
    if (cJSON_GetArraySize(ret->steps) > MF_RESULT_STEPS_MAX)
        return refuse(ret_why, "steps: expected at most 256; split the list over several results");
    if (cJSON_GetArraySize(ret->rejections) > 16 * MF_RESULT_STEPS_MAX)
        return refuse(ret_why, "rejections: expected at most 4096; split the list over several results");
    return 0;
}

int mf_result_read_key(const cJSON *json, struct mf_result_message *ret, const char **ret_why)
{
    ret->unit = ret->attempt = ret->epoch = ret->seq = ret->step = ret->pipeline = 0;
    ret->last = false;
    if (mf_json_bool(json, "last", &ret->last) == -EINVAL)
        return refuse(ret_why, "last: expected true or false");
    if (mf_json_i64(json, "unit", 1, ID_MAX, &ret->unit) < 0)
        return refuse(ret_why, "unit: expected an id");
    if (mf_json_i64(json, "attempt", 1, ID_MAX, &ret->attempt) < 0)
        return refuse(ret_why, "attempt: expected an integer from 1");
    if (mf_json_i64(json, "seq", 1, ID_MAX, &ret->seq) < 0)
        return refuse(ret_why, "seq: expected an integer from 1");
    if (mf_json_i64(json, "epoch", 1, ID_MAX, &ret->epoch) < 0)
        return refuse(ret_why, "epoch: expected an integer from 1");
    if (mf_json_i64(json, "step", 1, ID_MAX, &ret->step) == -EINVAL)
        return refuse(ret_why, "step: expected an id");
    if (mf_json_i64(json, "pipeline", 1, ID_MAX, &ret->pipeline) == -EINVAL)
        return refuse(ret_why, "pipeline: expected an id");
    if (ret->step && ret->pipeline)
        return refuse(ret_why, "step and pipeline: expected one of them, not both");
    return 0;
}

int mf_result_read(const cJSON *json, struct mf_result_message *ret, const char **ret_why)
{
    const char *status = NULL, *reason = "";
    int64_t verified = 0;
    ret->n_samples = 0;
    if (mf_result_read_key(json, ret, ret_why) < 0)
        return -EINVAL;
    ret->status = MF_STATUS_OK;
    ret->differs = false;
    if (mf_json_bool(json, "differs", &ret->differs) == -EINVAL)
        return refuse(ret_why, "differs: expected true or false");
    if (mf_json_text(json, "status", &status) == -EINVAL ||
        (status && mf_status_parse(status, &ret->status) < 0))
        return refuse(ret_why, "status: unknown value");
    if (mf_json_text(json, "reason", &reason) == -EINVAL)
        return refuse(ret_why, "reason: expected a text");
    mf_format(ret->reason, sizeof(ret->reason), "%s", reason);
    if (optional_number(json, "us", &ret->us) < 0 || optional_number(json, "mad", &ret->mad) < 0 ||
        optional_number(json, "err", &ret->err) < 0 || optional_number(json, "row_err", &ret->row_err) < 0)
        return refuse(ret_why, "us, mad, err and row_err: expected numbers");
    if (mf_json_i64(json, "verified", 0, 2, &verified) == -EINVAL)
        return refuse(ret_why, "verified: expected 0, 1 or 2");
    ret->verified = (int)verified;
    if (mf_json_i64(json, "at_ms", 0, ID_MAX, &ret->at_ms) < 0)
        ret->at_ms = 0;
    int r = read_samples(json, &samples_texts, ret->samples, &ret->n_samples, ret_why);
    if (r == 0)
        r = read_samples(json, &fresh_texts, NULL, &ret->n_fresh, ret_why);
    if (r == 0)
        r = read_race(json, ret, ret_why);
    return r < 0 ? r : read_enumeration(json, ret, ret_why);
}

void mf_result_judge(struct mf_result_message *m, const struct mf_work *work,
                     const struct mf_ceilings *ceilings)
{
    char why[MF_REASON_MAX];
    if (m->status != MF_STATUS_OK && m->status != MF_STATUS_SLOW)
        return;
    const char *status = mf_status_name(m->status);
    double least = mf_least_us(work, ceilings, why);
    log_debug("unit %" PRId64 ", item %" PRId64
              ": %.4g us, %.3g times the least plausible time of %.4g us (%s)",
              m->unit, m->step ? m->step : m->pipeline, m->us, m->us / least, least, why);
    if (m->us >= least)
        return;
    if (isnan(m->us))
        mf_format(m->reason, sizeof(m->reason), "status %s without a time", status);
    else
        mf_format(m->reason, sizeof(m->reason),
                  "status %s with a time of %.4g us; expected at least %.4g us: %.300s", status, m->us, least,
                  why);
    m->status = MF_STATUS_IMPLAUSIBLE;
}

static void add_separator(struct mf_buf *b)
{
    (void)mf_buf_adds(b, b->len ? "," : "{");
}

static void add_number(struct mf_buf *b, const cJSON *json, const char *key)
{
    double value;
    if (mf_json_double(json, key, &value) < 0 || !isfinite(value))
        return;
    add_separator(b);
    mf_json_put_text(b, key);
    (void)mf_buf_addc(b, ':');
    mf_json_put_number(b, value);
}

static int add_json(struct mf_buf *b, const char *key, const cJSON *value)
{
    if (!value)
        return 0;
    _cleanup_(mf_freep) char *text = mf_json_print(value);
    if (!text)
        return -ENOMEM;
    add_separator(b);
    return mf_buf_addf(b, "\"%s\":%s", key, text);
}

static void add_text(struct mf_buf *b, const char *key, const char *value)
{
    if (!value)
        return;
    add_separator(b);
    (void)mf_buf_addf(b, "\"%s\":\"%s\"", key, value);
}

int mf_result_extra(const cJSON *json, const struct mf_result_note *note, char **ret)
{
    static const char *const numbers[] = {"canary", "row_limit", "dropped_at", "registers",
                                          "spills", "lds",       "occupancy"};
    const char *mode;
    struct mf_buf b;
    mf_buf_init(&b, MF_RESULT_EXTRA_MAX);
    if (mf_json_text(json, "mode", &mode) == 0 && mf_is_name(mode, 32))
        add_text(&b, "mode", mode);
    for (size_t i = 0; i < MF_ARRAY_LEN(numbers); i++)
        add_number(&b, json, numbers[i]);
    add_text(&b, "died", note->died);
    add_text(&b, "routing", note->routing);
    add_text(&b, "unit", note->unit);
    int r = add_json(&b, "fresh", mf_json_array(json, "fresh"));
    if (r == 0)
        r = add_json(&b, "race", mf_json_object(json, "race"));
    if (b.len)
        (void)mf_buf_adds(&b, "}");
    if (r == 0)
        r = mf_buf_error(&b);
    *ret = r == 0 && b.len ? mf_buf_take(&b) : NULL;
    mf_buf_release(&b);
    return r;
}
