/* Fuzzes peer messages. A message has a header of 16 bytes and a JSON body, which may be a step or a result.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/base/json.h"
#include "common/moe/step.h"
#include "common/net/wire.h"
#include "common/net/wire_bounds.h"
#include "fuzz.h"
#include "server/farm/result.h"

static void try_header(const uint8_t *data, size_t size)
{
    struct mf_wire_header header;
    uint8_t again[MF_WIRE_HEADER_SIZE];
    int version;
    if (mf_wire_decode(data, size, &header, &version) < 0)
        return;
    mf_wire_encode(&header, again);
    MF_MUST(version == MF_WIRE_VERSION && memcmp(data, again, sizeof(again)) == 0);
}

/* An integer is printed with all its digits, and read if a double can represent it. */
static void try_integer(const uint8_t *data, size_t size)
{
    const int64_t exact = INT64_C(1) << 53;
    int64_t value = 0, again = 0;
    double number = 0;
    char text[32];
    memcpy(&value, data, MF_MIN(size, sizeof(value)));
    snprintf(text, sizeof(text), "{\"n\":%" PRId64 "}", value);
    _cleanup_(cJSON_Deletep) cJSON *object = cJSON_CreateObject();
    MF_MUST(object && mf_json_add_i64(object, "n", value));
    bool is_exact = value >= -exact && value <= exact;
    MF_MUST((mf_json_i64(object, "n", -exact, exact, &again) == 0) == is_exact);
    MF_MUST(!is_exact || again == value);
    MF_MUST(mf_json_double(object, "n", &number) == 0 && !(fabs(number - (double)value) > 0));
    _cleanup_(mf_freep) char *printed = mf_json_print(object);
    MF_MUST(printed && strcmp(printed, text) == 0);
}

/* Only the factor of split-K is missing from a plain name. */
static void try_ksplit(const struct mf_step *step)
{
    char plain[MF_STEP_NAME_MAX];
    int32_t factor = mf_step_drop_ksplit(step->name, plain);
    size_t len = strlen(plain);
    MF_MUST(strncmp(step->name, plain, len) == 0 && (factor > 0) == (step->name[len] != '\0'));
}

/* An accepted step round-trips through JSON unchanged. */
static void try_step(const cJSON *json)
{
    struct mf_step step, again;
    const char *field = NULL;
    if (mf_step_from_json(json, &step, &field) < 0) {
        MF_MUST(field);
        return;
    }
    _cleanup_(mf_freep) char *written = mf_step_print(&step);
    _cleanup_(cJSON_Deletep) cJSON *read = written ? mf_json_parse(written, strlen(written), SIZE_MAX) : NULL;
    MF_MUST(read && mf_step_from_json(read, &again, &field) == 0);
    MF_MUST(mf_step_compare(&step, &again) == 0);
    try_ksplit(&step);
    _cleanup_(mf_freep) char *rewritten = mf_step_print(&again);
    MF_MUST(rewritten && strcmp(written, rewritten) == 0);
}

static bool is_time(double us)
{
    return isnan(us) || (us >= 0 && us <= MF_TIME_US_MAX);
}

/* An accepted result has plausible numbers, and a rejected result has a reason. */
static void try_result(const cJSON *json)
{
    static struct mf_result_message m;
    const char *why = NULL;
    char *extra = NULL;
    if (mf_result_read(json, &m, &why) < 0) {
        MF_MUST(why && why[0]);
        return;
    }
    MF_MUST(is_time(m.us) && is_time(m.mad));
    for (size_t i = 0; i < m.n_samples; i++)
        MF_MUST(is_time((double)m.samples[i]));
    MF_MUST(m.unit > 0 && m.attempt > 0 && m.seq > 0 && m.n_samples <= MF_SAMPLES_KEEP_MAX);
    MF_MUST(strlen(m.reason) < sizeof(m.reason));
    mf_result_judge(&m, &(struct mf_work){.token_bytes = 1e9}, &(struct mf_ceilings){.mem_read_gbs = 1e3});
    mf_result_judge(&m, &(struct mf_work){.gemm = true, .flops = 1e12, .weight_bytes = 1e9},
                    &(struct mf_ceilings){.dtype_gflops = {1e5}, .mem_read_gbs = 1e3});
    MF_MUST(m.status != MF_STATUS_OK || m.us >= MF_TIME_US_MIN);
    if (mf_result_extra(json, &(struct mf_result_note){.died = "crash"}, &extra) == 0 && extra) {
        _cleanup_(cJSON_Deletep) cJSON *again = mf_json_parse(extra, strlen(extra), MF_RESULT_EXTRA_MAX);
        MF_MUST(again);
    }
    free(extra);
}

/* Every number of an accepted body is finite. */
static void try_numbers(const cJSON *value)
{
    MF_MUST(!cJSON_IsNumber(value) || isfinite(value->valuedouble));
    for (const cJSON *child = value->child; child; child = child->next)
        try_numbers(child);
}

/* Replaces the number at index `at` in document order. Returns the index after the last number. */
static int replace_number(cJSON *value, int first, int at, double number)
{
    int n = first;
    if (cJSON_IsNumber(value) && n++ == at)
        cJSON_SetNumberHelper(value, number);
    for (cJSON *child = value->child; child; child = child->next)
        n = replace_number(child, n, at, number);
    return n;
}

/* Numbers that a mutation of the input rarely finds. */
static const double extremes[] = {1e308,   -1e308, 1e-320, -1e-320, 0x1p63,           -0x1p63,          1e26,
                                  1.1e100, NAN,    -1,     0,       (double)INFINITY, (double)-INFINITY};

static void try_message(cJSON *json)
{
    char why[MF_REASON_MAX] = "";
    if (mf_wire_bounds_check(json, why) < 0) {
        MF_MUST(why[0]);
        return;
    }
    try_numbers(json);
    try_result(json);
}

/* Tries the message, and the same message with extremes in place of a few of its numbers. */
static void try_extremes(cJSON *json, size_t seed)
{
    try_message(json);
    int n = replace_number(json, 0, -1, 0);
    for (size_t i = 0; n > 0 && i < MF_ARRAY_LEN(extremes); i++) {
        _cleanup_(cJSON_Deletep) cJSON *copy = cJSON_Duplicate(json, true);
        if (!copy)
            return;
        (void)replace_number(copy, 0, (int)((seed + i) % (size_t)n), extremes[i]);
        try_message(copy);
    }
}

static size_t count_values(const cJSON *value)
{
    size_t n = 1;
    for (const cJSON *child = value->child; child; child = child->next)
        n += count_values(child);
    return n;
}

/* Accepted JSON prints to JSON that parses again, and is accepted by the reader of Python's JSON, too. */
static void try_body(const char *text, size_t size)
{
    _cleanup_(cJSON_Deletep) cJSON *json = mf_json_parse(text, size, MF_WIRE_BODY_MAX);
    _cleanup_(cJSON_Deletep) cJSON *python = mf_json_parse_python(text, size, MF_WIRE_BODY_MAX);
    size_t line = mf_json_error_line(text, size);
    MF_MUST(line >= 1 && line <= size + 1);
    if (!json)
        return;
    MF_MUST(python && count_values(json) <= mf_json_count(text, size));
    try_step(json);
    try_extremes(json, size);
    _cleanup_(mf_freep) char *printed = mf_json_print(json), *same = mf_json_print(python);
    MF_MUST(printed && same && strcmp(printed, same) == 0);
    _cleanup_(cJSON_Deletep) cJSON *again = mf_json_parse(printed, strlen(printed), SIZE_MAX);
    MF_MUST(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t header = size < MF_WIRE_HEADER_SIZE ? size : MF_WIRE_HEADER_SIZE;
    try_header(data, header);
    try_integer(data + header / 2, header - header / 2);
    try_body((const char *)data + header, size - header);
    return 0;
}
