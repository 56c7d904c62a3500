#include "worker/runner/device_info.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "common/base/json.h"
#include "common/base/text.h"

#define AT(member) offsetof(struct mf_device_info, member)

enum kind { TEXT, BYTES, COUNT, NUMBER };

/* clang-format off */
static const struct field {
    const char *object, *key;       /* object: NULL if the key is a member of the message itself */
    enum kind kind;
    size_t at;
    bool optional;                  /* true: the member is omitted if its value is empty or 0 */
} fields[] = {
    {NULL,          "model",        TEXT,   AT(model), false},
    {NULL,          "isa",          TEXT,   AT(isa), false},
    {NULL,          "compiler",     TEXT,   AT(compiler), false},
    {NULL,          "memory",       BYTES,  AT(memory_bytes), false},
    {NULL,          "llc",          BYTES,  AT(llc_bytes), false},
    {NULL,          "cores",        COUNT,  AT(cores), false},
    {"peak_gflops", "bf16",         NUMBER, AT(peak_gflops_bf16), false},
    {"peak_gflops", "f32",          NUMBER, AT(peak_gflops_f32), false},
    {"peak_gflops", "fp8",          NUMBER, AT(peak_gflops_fp8), true},
    {NULL,          "mem_read_gbs", NUMBER, AT(mem_read_gbs), false},
    {NULL,          "gap_us",       NUMBER, AT(gap_us), false},
    {NULL,          "driver",       TEXT,   AT(driver),     true},
    {NULL,          "identity",     TEXT,   AT(identity),   true},
    {NULL,          "lds",          BYTES,  AT(lds_bytes),  true},
    {NULL,          "clock_mhz",    NUMBER, AT(clock_mhz),  true},
    {NULL,          "memory_mhz",   NUMBER, AT(memory_mhz), true},
};
/* clang-format on */

static cJSON *inner(cJSON *object, const struct field *f)
{
    if (!f->object)
        return object;
    cJSON *found = cJSON_GetObjectItemCaseSensitive(object, f->object);
    return found ? found : cJSON_AddObjectToObject(object, f->object);
}

static bool is_present(const struct field *f, const void *value)
{
    static const uint64_t none;
    size_t size = f->kind == TEXT ? 1 : f->kind == COUNT ? sizeof(int) : sizeof(none);
    return !f->optional || memcmp(value, &none, size) != 0;
}

int mf_device_info_add(cJSON *object, const struct mf_device_info *info)
{
    char class[MF_DEVICE_CLASS_TEXT_MAX];
    mf_device_class_print(&info->class, class);
    bool ok = cJSON_AddStringToObject(object, "class", class) &&
              cJSON_AddBoolToObject(object, "simulated", info->simulated);
    for (size_t i = 0; ok && i < MF_ARRAY_LEN(fields); i++) {
        const struct field *f = &fields[i];
        const void *value = (const char *)info + f->at;
        if (!is_present(f, value))
            continue;
        cJSON *to = inner(object, f);
        if (f->kind == TEXT)
            ok = to && cJSON_AddStringToObject(to, f->key, value);
        else if (f->kind == BYTES)
            ok = to && cJSON_AddNumberToObject(to, f->key, (double)*(const uint64_t *)value);
        else if (f->kind == COUNT)
            ok = to && cJSON_AddNumberToObject(to, f->key, *(const int *)value);
        else
            ok = to && cJSON_AddNumberToObject(to, f->key, *(const double *)value);
    }
    return ok ? 0 : -ENOMEM;
}

static int parse_field(const cJSON *object, const struct field *f, struct mf_device_info *info)
{
    void *value = (char *)info + f->at;
    const char *text;
    int64_t number;
    int r;
    if (f->object)
        object = mf_json_object(object, f->object);
    if (f->optional && !cJSON_GetObjectItemCaseSensitive(object, f->key))
        return 0;
    switch (f->kind) {
    case TEXT:
        r = mf_json_text(object, f->key, &text);
        return r < 0 ? r : mf_copy(value, MF_DEVICE_TEXT_MAX, text);
    case BYTES:
        r = mf_json_i64(object, f->key, 0, INT64_C(1) << 53, &number);
        if (r == 0)
            *(uint64_t *)value = (uint64_t)number;
        return r;
    case COUNT:
        r = mf_json_i64(object, f->key, 1, 1 << 24, &number);
        if (r == 0)
            *(int *)value = (int)number;
        return r;
    case NUMBER:
        return mf_json_double(object, f->key, value);
    }
    return -EINVAL;
}

int mf_device_info_parse(const cJSON *object, struct mf_device_info *ret, const char **ret_field)
{
    struct mf_device_info info = {0};
    const char *class;
    *ret_field = "class";
    if (mf_json_text(object, "class", &class) < 0 || mf_device_class_parse(class, &info.class) < 0)
        return -EINVAL;
    *ret_field = "simulated";
    if (mf_json_bool(object, "simulated", &info.simulated) < 0)
        return -EINVAL;
    for (size_t i = 0; i < MF_ARRAY_LEN(fields); i++) {
        *ret_field = fields[i].key;
        if (parse_field(object, &fields[i], &info) < 0)
            return -EINVAL;
    }
    *ret = info;
    return 0;
}
