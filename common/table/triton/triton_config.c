#include "common/table/triton/triton_config.h"

#include "common/base/json.h"
#include "common/base/text.h"

#include <errno.h>
#include <string.h>

MF_NAMES_DEFINE(mf_triton, MF_TRITON_, MF_TRITON_MAP)

enum { REQUIRED = 1, POWER = 2, FLAG = 4, BACKEND = 8 };

/* clang-format off */
static const struct {
    const char *letters;  /* in a step's name, before the number */
    int32_t min, max;
    int flags;
    const char *expected;
} fields[MF_TRITON_N_] = {
    [MF_TRITON_BLOCK_M] = {"m",    8,  512,  REQUIRED | POWER, "a power of two from 8 to 512"},
    [MF_TRITON_BLOCK_N] = {"n",    16, 512,  REQUIRED | POWER, "a power of two from 16 to 512"},
    [MF_TRITON_BLOCK_K] = {"k",    16, 1024, REQUIRED | POWER, "a power of two from 16 to 1024"},
    [MF_TRITON_GROUP_M] = {"g",    1,  1024, REQUIRED,         "an integer from 1 to 1024"},
    [MF_TRITON_WARPS]   = {"w",    1,  32,   POWER,            "a power of two from 1 to 32"},
    [MF_TRITON_STAGES]  = {"s",    0,  16,   0,                "an integer from 0 to 16"},
    [MF_TRITON_TMA]     = {"tma",  0,  1,    FLAG,             "true or false"},
    [MF_TRITON_SPLIT_K] = {"sk",   1,  64,   0,                "an integer from 1 to 64"},
    [MF_TRITON_WAVES]   = {"eu",   0,  10,   BACKEND,          "an integer from 0 to 10"},
    [MF_TRITON_MFMA]    = {"mi",   0,  32,   BACKEND,          "0, 16 or 32"},
    [MF_TRITON_KPACK]   = {"kp",   1,  2,    BACKEND,          "1 or 2"},
    [MF_TRITON_CTAS]    = {"cta",  1,  16,   POWER,            "a power of two from 1 to 16"},
    [MF_TRITON_GRF]     = {"grf",  128, 256, BACKEND | POWER,  "128 or 256"},
};
/* clang-format on */

bool mf_triton_is_required(enum mf_triton field)
{
    return fields[field].flags & REQUIRED;
}

bool mf_triton_is_backend_option(enum mf_triton field)
{
    return fields[field].flags & BACKEND;
}

bool mf_triton_config_equal(const struct mf_triton_config *a, const struct mf_triton_config *b)
{
    bool equal = a->set == b->set;
    for (int i = 0; i < MF_TRITON_N_ && equal; i++)
        equal = !mf_triton_has(a, i) || a->value[i] == b->value[i];
    return equal;
}

static bool is_valid(enum mf_triton field, int64_t value)
{
    if (value < fields[field].min || value > fields[field].max)
        return false;
    if (field == MF_TRITON_MFMA)
        return value % 16 == 0;
    return !(fields[field].flags & POWER) || (value & (value - 1)) == 0;
}

/* ---- JSON ---- */

int mf_triton_value(enum mf_triton field, const cJSON *json, int32_t *ret, const char **ret_expected)
{
    int64_t value = 0;
    int r = -EINVAL;
    *ret_expected = fields[field].expected;
    if (fields[field].flags & FLAG) {
        value = cJSON_IsTrue(json);
        r = cJSON_IsBool(json) ? 0 : -EINVAL;
    } else if (field == MF_TRITON_GRF && cJSON_IsString(json)) {
        r = mf_parse_i64(json->valuestring, INT32_MIN, INT32_MAX, &value);
    } else {
        r = mf_json_value_i64(json, INT32_MIN, INT32_MAX, &value);
    }
    if (r < 0 || !is_valid(field, value))
        return -EINVAL;
    *ret = (int32_t)value;
    return 0;
}

cJSON *mf_triton_config_json(const struct mf_triton_config *c)
{
    cJSON *o = cJSON_CreateObject();
    for (enum mf_triton i = 0; i < MF_TRITON_N_; i++) {
        if (!mf_triton_has(c, i))
            continue;
        if (fields[i].flags & FLAG)
            cJSON_AddBoolToObject(o, mf_triton_name(i), c->value[i] != 0);
        else
            cJSON_AddNumberToObject(o, mf_triton_name(i), c->value[i]);
    }
    return o;
}

/* ---- step names ---- */

static int parse_part(const char *part, struct mf_triton_config *c)
{
    size_t n = strcspn(part, "0123456789");
    int64_t value = 1;
    for (enum mf_triton i = 0; i < MF_TRITON_N_; i++) {
        if (strlen(fields[i].letters) != n || strncmp(part, fields[i].letters, n) != 0 || mf_triton_has(c, i))
            continue;
        bool is_flag = fields[i].flags & FLAG;
        if (is_flag != (part[n] == '\0') ||
            (!is_flag && mf_parse_i64(part + n, INT32_MIN, INT32_MAX, &value) < 0) || !is_valid(i, value))
            return -EINVAL;
        c->set |= 1u << i;
        c->value[i] = (int32_t)value;
        return 0;
    }
    return -EINVAL;
}

/* Parses "_m64_n128_…", len bytes. */
static int parse_parts(const char *text, size_t len, struct mf_triton_config *ret)
{
    struct mf_triton_config c = {0};
    const char *end = text + len;
    while (text < end) {
        char part[16];
        size_t n = strcspn(text + 1, "_-");
        if (*text != '_' || n >= sizeof(part))
            return -EINVAL;
        mf_format(part, sizeof(part), "%.*s", (int)n, text + 1);
        if (parse_part(part, &c) < 0)
            return -EINVAL;
        text += n + 1;
    }
    for (enum mf_triton i = 0; i <= MF_TRITON_STAGES; i++)
        if (!mf_triton_has(&c, i))
            return -EINVAL;
    *ret = c;
    return 0;
}

#define UP   "triton"
#define DOWN "-down"

int mf_triton_step_parse(const char *name, struct mf_triton_step *ret)
{
    struct mf_triton_step step = {0};
    const char *down = strstr(name, DOWN);
    if (strcmp(name, MF_TRITON_DEFAULT) == 0)
        return -ENOENT;
    if (strncmp(name, UP, strlen(UP)) != 0)
        return -EINVAL;
    name += strlen(UP);
    int r = parse_parts(name, down ? (size_t)(down - name) : strlen(name), &step.up);
    if (r == 0 && down) {
        step.has_down = true;
        r = parse_parts(down + strlen(DOWN), strlen(down + strlen(DOWN)), &step.down);
    }
    if (r == 0)
        *ret = step;
    return r;
}

static char *print_parts(const struct mf_triton_config *c, char *at, char *end)
{
    for (enum mf_triton i = 0; i < MF_TRITON_N_; i++) {
        bool is_flag = fields[i].flags & FLAG;
        if (!mf_triton_has(c, i) || (is_flag && c->value[i] == 0))
            continue;
        at = mf_append(at, end, "_");
        at = mf_append(at, end, fields[i].letters);
        if (!is_flag)
            at = mf_append_i64(at, end, c->value[i]);
    }
    return at;
}

void mf_triton_step_print(const struct mf_triton_step *step, char buf[MF_STEP_NAME_MAX])
{
    char *end = buf + MF_STEP_NAME_MAX, *at = mf_append(buf, end, UP);
    at = print_parts(&step->up, at, end);
    if (step->has_down) {
        at = mf_append(at, end, DOWN);
        (void)print_parts(&step->down, at, end);
    }
}
