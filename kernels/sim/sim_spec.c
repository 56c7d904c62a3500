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
MF_NAMES_DEFINE(mf_sim_part, MF_SIM_PART_, MF_SIM_PART_MAP)

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

static int parse_disturbance(const cJSON *json, struct mf_sim_disturbance *d, const char **ret_field)
{
    const char *part;
    *ret_field = "part";
    if (mf_json_text(json, "part", &part) < 0 || mf_sim_part_parse(part, &d->part) < 0)
        return -EINVAL;
    *ret_field = "factor";
    if (mf_json_double(json, "factor", &d->factor) < 0 || !(d->factor > 0 && d->factor < 1e6))
        return -EINVAL;
    *ret_field = "token";
    int r = mf_json_i64(json, "token", 1, INT32_MAX, &d->token);
    if (r < 0 && r != -ENOENT)
        return r;
    *ret_field = "first";
    r = mf_json_i64(json, "first", 1, 1000000, &d->first);
    return r == -ENOENT ? 0 : r;
}

/* The three arrays of a spec file. */
static int parse_item(struct mf_sim_spec *s, size_t list, const cJSON *item, const char **ret_field)
{
    switch (list) {
    case 0:
        return parse_time(item, &s->times[s->n_times++], ret_field);
    case 1:
        return parse_rule(item, &s->rules[s->n_rules++], ret_field);
    default:
        return parse_disturbance(item, &s->disturbances[s->n_disturbances++], ret_field);
    }
}

static int parse_lists(const cJSON *json, struct mf_sim_spec *s, char *why, size_t why_cap)
{
    static const char *const names[] = {"times", "faults", "disturbances"};
    s->times = calloc(MF_SIM_FAULTS_MAX, sizeof(*s->times));
    s->rules = calloc(MF_SIM_FAULTS_MAX, sizeof(*s->rules));
    s->disturbances = calloc(MF_SIM_FAULTS_MAX, sizeof(*s->disturbances));
    if (!s->times || !s->rules || !s->disturbances)
        return -ENOMEM;
    for (size_t list = 0; list < MF_ARRAY_LEN(names); list++) {
        const cJSON *array = mf_json_array(json, names[list]), *item;
        int n = cJSON_GetArraySize(array), i = 0;
        if (n > MF_SIM_FAULTS_MAX) {
            mf_format(why, why_cap, "%s has %d members, at most %d are allowed", names[list], n,
                      MF_SIM_FAULTS_MAX);
            return -EINVAL;
        }
        cJSON_ArrayForEach (item, array) {
            const char *field;
            int r = parse_item(s, list, item, &field);
            if (r < 0) {
                mf_format(why, why_cap, "%s[%d].%s is missing or invalid", names[list], i, field);
                return r;
            }
            i++;
        }
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
    return parse_lists(json, s, why, why_cap);
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
    free(s->disturbances);
    *s = (struct mf_sim_spec){0};
}

/* Counts a hit by appending one byte to a file next to the spec file, so that the count survives the runner
 * that the fault kills. `file` numbers the rules, then the disturbances. first 0: any number of hits. */
static bool count_hit(const struct mf_sim_spec *s, size_t file, int64_t first)
{
    if (first == 0)
        return true;
    _cleanup_(mf_freep) char *path = NULL;
    if (asprintf(&path, "%s.hits.%zu", s->path, file) < 0) {
        path = NULL;
        return false;
    }
    _cleanup_(mf_closep) int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    struct stat st;
    if (fd < 0 || flock(fd, LOCK_EX) < 0 || fstat(fd, &st) < 0 || st.st_size >= first)
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
        if (mf_glob(s->rules[i].match, step_name) && count_hit(s, i, s->rules[i].first))
            return s->rules[i].fault;
    }
    return MF_SIM_FAULT_NONE;
}

double mf_sim_spec_disturb(const struct mf_sim_spec *s, enum mf_sim_part part, int64_t token)
{
    for (size_t i = 0; i < s->n_disturbances; i++) {
        const struct mf_sim_disturbance *d = &s->disturbances[i];
        if (d->part == part && (d->token == 0 || d->token == token) && count_hit(s, s->n_rules + i, d->first))
            return d->factor;
    }
    return 1;
}
