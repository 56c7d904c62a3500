#include "kernels/sim/sim_spec.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/base/text.h"

MF_NAMES_DEFINE(mf_sim_fault, MF_SIM_FAULT_, MF_SIM_FAULT_MAP)

static int read_file(const char *path, char **ret, size_t *ret_len)
{
    _cleanup_(mf_closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    _cleanup_(mf_freep) char *text = malloc(MF_SIM_SPEC_BYTES_MAX + 1);
    if (!text)
        return -ENOMEM;
    size_t len = 0;
    for (;;) {
        ssize_t n = read(fd, text + len, MF_SIM_SPEC_BYTES_MAX + 1 - len);
        if (n < 0)
            return -errno;
        if (n == 0)
            break;
        len += (size_t)n;
        if (len > MF_SIM_SPEC_BYTES_MAX)
            return -EFBIG;
    }
    *ret = MF_TAKE(text);
    *ret_len = len;
    return 0;
}

static int parse_rule(const cJSON *json, struct mf_sim_rule *rule, const char **ret_field)
{
    const char *match, *fault;
    *ret_field = "match";
    if (mf_json_text(json, "match", &match) < 0 || mf_copy(rule->match, sizeof(rule->match), match) < 0)
        return -EINVAL;
    *ret_field = "fault";
    if (mf_json_text(json, "fault", &fault) < 0 || mf_sim_fault_parse(fault, &rule->fault) < 0)
        return -EINVAL;
    *ret_field = "first";
    int r = mf_json_i64(json, "first", 1, 1000000, &rule->first);
    return r == -ENOENT ? 0 : r;
}

static int parse_time(const cJSON *json, struct mf_sim_time *time, const char **ret_field)
{
    const char *match;
    *ret_field = "match";
    if (mf_json_text(json, "match", &match) < 0 || mf_copy(time->match, sizeof(time->match), match) < 0)
        return -EINVAL;
    *ret_field = "factor";
    return mf_json_double(json, "factor", &time->factor) < 0 || !(time->factor > 0 && time->factor < 1e6)
               ? -EINVAL
               : 0;
}

static int parse_times(const cJSON *times, struct mf_sim_spec *s, char *why, size_t why_cap)
{
    const cJSON *item;
    size_t n = (size_t)cJSON_GetArraySize(times);
    if (n > MF_SIM_FAULTS_MAX) {
        mf_format(why, why_cap, "times has %zu members, at most %d are allowed", n, MF_SIM_FAULTS_MAX);
        return -EINVAL;
    }
    s->times = calloc(n + 1, sizeof(*s->times));
    if (!s->times)
        return -ENOMEM;
    cJSON_ArrayForEach (item, times) {
        const char *field;
        int r = parse_time(item, &s->times[s->n_times], &field);
        if (r < 0) {
            mf_format(why, why_cap, "times[%zu].%s is missing or invalid", s->n_times, field);
            return r;
        }
        s->n_times++;
    }
    return 0;
}

static int parse_spec(const cJSON *json, struct mf_sim_spec *s, char *why, size_t why_cap)
{
    int r = mf_json_i64(json, "step_ms", 0, 600000, &s->step_ms);
    if (r < 0 && r != -ENOENT) {
        mf_format(why, why_cap, "step_ms: expected a number from 0 to 600000");
        return r;
    }
    s->pipeline_ms = s->step_ms;
    r = mf_json_i64(json, "pipeline_ms", 0, 600000, &s->pipeline_ms);
    if (r < 0 && r != -ENOENT) {
        mf_format(why, why_cap, "pipeline_ms: expected a number from 0 to 600000");
        return r;
    }
    r = parse_times(mf_json_array(json, "times"), s, why, why_cap);
    if (r < 0)
        return r;
    const cJSON *faults = mf_json_array(json, "faults"), *item;
    if (!faults)
        return 0;
    size_t n = (size_t)cJSON_GetArraySize(faults), i = 0;
    if (n > MF_SIM_FAULTS_MAX) {
        mf_format(why, why_cap, "faults has %zu members, at most %d are allowed", n, MF_SIM_FAULTS_MAX);
        return -EINVAL;
    }
    s->rules = calloc(n + 1, sizeof(*s->rules));
    if (!s->rules)
        return -ENOMEM;
    cJSON_ArrayForEach (item, faults) {
        const char *field;
        r = parse_rule(item, &s->rules[i], &field);
        if (r < 0) {
            mf_format(why, why_cap, "faults[%zu].%s is missing or invalid", i, field);
            return r;
        }
        i++;
    }
    s->n_rules = n;
    return 0;
}

int mf_sim_spec_load(const char *path, struct mf_sim_spec *ret, char *why, size_t why_cap)
{
    _cleanup_(mf_freep) char *text = NULL;
    size_t len = 0;
    int r = read_file(path, &text, &len);
    if (r < 0) {
        mf_format(why, why_cap, "spec file %s: %s", path, strerror(-r));
        return r;
    }
    _cleanup_(cJSON_Deletep) cJSON *json = mf_json_parse(text, len, MF_SIM_SPEC_BYTES_MAX);
    if (!cJSON_IsObject(json)) {
        mf_format(why, why_cap, "spec file %s is not a JSON object", path);
        return -EINVAL;
    }
    struct mf_sim_spec s = {0};
    char detail[160] = "out of memory";
    r = parse_spec(json, &s, detail, sizeof(detail));
    if (r == 0) {
        s.path = strdup(path);
        r = s.path ? 0 : -ENOMEM;
    }
    if (r < 0) {
        mf_format(why, why_cap, "spec file %s: %s", path, detail);
        mf_sim_spec_release(&s);
        return r;
    }
    *ret = s;
    return 0;
}

void mf_sim_spec_release(struct mf_sim_spec *s)
{
    free(s->path);
    free(s->rules);
    free(s->times);
    *s = (struct mf_sim_spec){0};
}

/* Counts a hit by appending one byte to a file next to the spec file, so that the count survives the runner
 * that the fault kills. */
static bool count_hit(const struct mf_sim_spec *s, size_t rule)
{
    _cleanup_(mf_freep) char *path = NULL;
    if (asprintf(&path, "%s.hits.%zu", s->path, rule) < 0) {
        path = NULL;
        return false;
    }
    _cleanup_(mf_closep) int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    struct stat st;
    if (fd < 0 || flock(fd, LOCK_EX) < 0 || fstat(fd, &st) < 0 || st.st_size >= s->rules[rule].first)
        return false;
    return write(fd, "x", 1) == 1;
}

double mf_sim_spec_factor(const struct mf_sim_spec *s, const char *step_name)
{
    double factor = 1;
    for (size_t i = 0; i < s->n_times; i++)
        factor *= mf_glob(s->times[i].match, step_name) ? s->times[i].factor : 1;
    return factor;
}

enum mf_sim_fault mf_sim_spec_hit(const struct mf_sim_spec *s, const char *step_name)
{
    for (size_t i = 0; i < s->n_rules; i++) {
        if (mf_glob(s->rules[i].match, step_name) && (s->rules[i].first == 0 || count_hit(s, i)))
            return s->rules[i].fault;
    }
    return MF_SIM_FAULT_NONE;
}
