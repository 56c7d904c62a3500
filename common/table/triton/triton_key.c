#include "common/table/triton/triton_key.h"

#include "common/base/cleanup.h"
#include "common/base/text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

MF_NAMES_DEFINE(mf_framework, MF_FRAMEWORK_, MF_FRAMEWORK_MAP)
MF_NAMES_DEFINE(mf_triton_part, MF_TRITON_PART_, MF_TRITON_PART_MAP)

static const struct {
    const char *title, *variable;
} frameworks[MF_FRAMEWORK_N_] = {
    [MF_FRAMEWORK_VLLM] = {"vLLM", "VLLM_TUNED_CONFIG_FOLDER"},
    [MF_FRAMEWORK_SGLANG] = {"SGLang", "SGLANG_MOE_CONFIG_DIR"},
};

const char *mf_framework_title(enum mf_framework framework)
{
    return frameworks[framework].title;
}

const char *mf_framework_variable(enum mf_framework framework)
{
    return frameworks[framework].variable;
}

/* ---- device names ---- */

/* True if a part of the name between underscores is "H200". vLLM uses the files of NVIDIA_H200 for all of
 * these devices. */
static bool is_h200(const char *name)
{
    for (const char *at = name; (at = strstr(at, "H200")); at++)
        if ((at == name || at[-1] == '_') && (at[4] == '\0' || at[4] == '_'))
            return true;
    return false;
}

void mf_triton_device(enum mf_framework framework, const char *model, char buf[MF_TRITON_DEVICE_MAX])
{
    bool vllm = framework == MF_FRAMEWORK_VLLM;
    const char *gaps = vllm ? " \t\n\v\f\r/" : " ";
    size_t n = 0;
    for (const char *p = model; *p && n < MF_TRITON_DEVICE_MAX - 1; p++) {
        bool gap = strchr(gaps, *p) != NULL;
        if (gap && vllm && p > model && strchr(gaps, p[-1]))
            continue; /* vLLM writes one underscore for a run of spaces and slashes */
        buf[n++] = gap ? '_' : *p;
    }
    buf[n] = '\0';
    if (vllm && is_h200(buf))
        mf_format(buf, MF_TRITON_DEVICE_MAX, "NVIDIA_H200");
}

/* ---- key of a layer ---- */

static bool is_fp8(enum mf_dtype d)
{
    return d == MF_DTYPE_FP8_E4M3FN || d == MF_DTYPE_FP8_E4M3FNUZ;
}

static bool is_half(enum mf_dtype d)
{
    return d == MF_DTYPE_BF16 || d == MF_DTYPE_FP16;
}

/* Returns the dtype selector, or NULL if no Triton kernel of the framework computes the layer. */
static const char *dtype_of(enum mf_framework framework, const struct mf_shape *s)
{
    bool vllm = framework == MF_FRAMEWORK_VLLM;
    enum mf_dtype a = s->q_dtype_a, w = s->q_dtype_w;
    if (s->q_type == MF_QTYPE_NO)
        return is_half(w) ? "" : NULL;
    if (w == MF_DTYPE_INT4)
        return is_half(a) ? "int4_w4a16" : NULL;
    if (s->q_type == MF_QTYPE_PER_1X32 || s->q_type == MF_QTYPE_PER_1X16)
        return NULL;
    if (is_fp8(w) && is_fp8(a))
        return "fp8_w8a8";
    if (is_fp8(w) && is_half(a))
        return vllm ? "fp8_w8a16" : NULL;
    if (w == MF_DTYPE_INT8 && is_half(a))
        return "int8_w8a16";
    if (w == MF_DTYPE_INT8 && a == MF_DTYPE_INT8)
        return vllm ? "" : "int8_w8a8"; /* vLLM's _get_config_dtype_str has no case for int8 activations */
    return NULL;
}

int mf_triton_key(enum mf_framework framework, const struct mf_shape *layer, const char *model,
                  struct mf_triton_key *ret, char why[MF_REASON_MAX])
{
    bool sglang = framework == MF_FRAMEWORK_SGLANG, int4 = layer->q_dtype_w == MF_DTYPE_INT4;
    struct mf_triton_key key = {.expert = layer->expert, .inter_dim = layer->inter_dim};
    const char *dtype = dtype_of(framework, layer);
    if (!dtype) {
        mf_format(why, MF_REASON_MAX,
                  "%s has no Triton kernel for weights %s with activations %s and %s, so it reads no file",
                  frameworks[framework].title, mf_dtype_name(layer->q_dtype_w),
                  mf_dtype_name(layer->q_dtype_a), mf_qtype_name(layer->q_type));
        return -ENOTSUP;
    }
    mf_triton_device(framework, model, key.device);
    mf_format(key.dtype, sizeof(key.dtype), "%s", dtype);
    if (sglang && int4)
        key.inter_dim /= 2; /* SGLang takes N from the packed w2, two weights per byte */
    if (layer->q_type == MF_QTYPE_PER_1X128 && !int4)
        key.block_n = key.block_k = 128;
    key.per_channel = sglang && layer->q_type == MF_QTYPE_PER_TOKEN && !is_half(layer->q_dtype_a);
    *ret = key;
    return 0;
}

/* ---- names ---- */

void mf_triton_key_print(enum mf_framework framework, const struct mf_triton_key *key,
                         char buf[MF_TRITON_NAME_MAX])
{
    char *at = buf, *end = buf + MF_TRITON_NAME_MAX;
    at = mf_append(at, end, "E=");
    at = mf_append_i64(at, end, key->expert);
    at = mf_append(at, end, ",N=");
    at = mf_append_i64(at, end, key->inter_dim);
    at = mf_append(mf_append(at, end, ",device_name="), end, key->device);
    if (*key->dtype)
        at = mf_append(mf_append(at, end, ",dtype="), end, key->dtype);
    if (key->block_n > 0) {
        at = mf_append_i64(mf_append(at, end, ",block_shape=["), end, key->block_n);
        at = mf_append(at, end, framework == MF_FRAMEWORK_VLLM ? "," : ", ");
        at = mf_append(mf_append_i64(at, end, key->block_k), end, "]");
    }
    if (key->per_channel)
        at = mf_append(at, end, ",per_channel_quant=True");
    if (*key->other)
        at = mf_append(mf_append(at, end, ","), end, key->other);
    if (key->down)
        at = mf_append(at, end, "_down");
    (void)mf_append(at, end, ".json");
}

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

bool mf_triton_key_names(enum mf_framework framework, const struct mf_triton_key *key, const char *path,
                         char name[MF_TRITON_NAME_MAX])
{
    mf_triton_key_print(framework, key, name);
    return strcmp(file_name(path), name) == 0;
}

void mf_triton_key_path(enum mf_framework framework, const struct mf_triton_key *key, const char *version,
                        char buf[MF_TRITON_NAME_MAX])
{
    char name[MF_TRITON_NAME_MAX], folder[MF_TRITON_VERSION_MAX] = "";
    mf_triton_key_print(framework, key, name);
    if (framework == MF_FRAMEWORK_VLLM) {
        mf_format(buf, MF_TRITON_NAME_MAX, "%s", name);
        return;
    }
    mf_format(folder, sizeof(folder), "%s", version);
    for (char *p = folder; *p; p++)
        if (*p == '.')
            *p = '_';
    mf_format(buf, MF_TRITON_NAME_MAX, "configs/triton_%s/%s", folder, name);
}

/* Reads one "name=value" of a file's name. */
static int parse_selector(const char *text, struct mf_triton_key *key)
{
    const char *value = strchr(text, '=');
    int64_t number = 0;
    size_t n = value ? (size_t)(value - text) : 0;
    if (!value)
        return -EINVAL;
    value++;
    if (n == 1 && (*text == 'E' || *text == 'N')) {
        int r = mf_parse_i64(value, 1, INT32_MAX, &number);
        *(*text == 'E' ? &key->expert : &key->inter_dim) = (int32_t)number;
        return r;
    }
    if (n == strlen("device_name") && strncmp(text, "device_name", n) == 0)
        return mf_copy(key->device, sizeof(key->device), value);
    if (n == strlen("dtype") && strncmp(text, "dtype", n) == 0)
        return mf_copy(key->dtype, sizeof(key->dtype), value);
    if (strcmp(text, "per_channel_quant=True") == 0) {
        key->per_channel = true;
        return 0;
    }
    if (sscanf(text, "block_shape=[%9" SCNd32 ",%9" SCNd32 "]", &key->block_n, &key->block_k) == 2)
        return 0;
    return mf_copy(key->other, sizeof(key->other), text);
}

int mf_triton_key_parse(const char *path, struct mf_triton_key *ret)
{
    static const char end_down[] = "_down", end_json[] = ".json";
    char name[MF_TRITON_NAME_MAX], *at = name;
    struct mf_triton_key key = {0};
    if (mf_copy(name, sizeof(name), file_name(path)) < 0)
        return -EINVAL;
    size_t len = strlen(name);
    if (len < sizeof(end_json) || strcmp(name + len - strlen(end_json), end_json) != 0)
        return -EINVAL;
    name[len -= strlen(end_json)] = '\0';
    if (len > strlen(end_down) && strcmp(name + len - strlen(end_down), end_down) == 0) {
        key.down = true;
        name[len - strlen(end_down)] = '\0';
    }
    while (*at) {
        size_t n = strcspn(at, ",");
        if (strncmp(at, "block_shape=[", 13) == 0) /* the value contains a comma */
            n = strcspn(at, "]") + (strchr(at, ']') != NULL);
        bool last = at[n] == '\0';
        at[n] = '\0';
        if (parse_selector(at, &key) < 0)
            return -EINVAL;
        at += n + !last;
    }
    if (key.expert < 1 || key.inter_dim < 1 || !*key.device)
        return -EINVAL;
    *ret = key;
    return 0;
}

/* ---- parts ---- */

void mf_triton_key_part(const struct mf_triton_key *key, enum mf_triton_part part,
                        char buf[MF_TRITON_DEVICE_MAX])
{
    const char *text = NULL;
    int32_t number = 0;
    switch (part) {
    case MF_TRITON_PART_E:
        number = key->expert;
        break;
    case MF_TRITON_PART_N:
        number = key->inter_dim;
        break;
    case MF_TRITON_PART_DEVICE:
        text = key->device;
        break;
    case MF_TRITON_PART_DTYPE:
        text = *key->dtype ? key->dtype : "none";
        break;
    case MF_TRITON_PART_BLOCK:
        if (key->block_n > 0) {
            mf_format(buf, MF_TRITON_DEVICE_MAX, "[%" PRId32 ",%" PRId32 "]", key->block_n, key->block_k);
            return;
        }
        text = "none";
        break;
    case MF_TRITON_PART_CHANNEL:
        text = key->per_channel ? "True" : "False";
        break;
    case MF_TRITON_PART_OTHER:
        text = *key->other ? key->other : "none";
        break;
    case MF_TRITON_PART_DOWN:
        text = key->down ? "yes" : "no";
        break;
    case MF_TRITON_PART_N_:
        break;
    }
    if (text)
        mf_format(buf, MF_TRITON_DEVICE_MAX, "%s", text);
    else
        mf_format(buf, MF_TRITON_DEVICE_MAX, "%" PRId32, number);
}

unsigned mf_triton_key_differences(const struct mf_triton_key *a, const struct mf_triton_key *b)
{
    unsigned mask = 0;
    for (enum mf_triton_part i = 0; i < MF_TRITON_PART_N_; i++) {
        char x[MF_TRITON_DEVICE_MAX], y[MF_TRITON_DEVICE_MAX];
        mf_triton_key_part(a, i, x);
        mf_triton_key_part(b, i, y);
        if (strcmp(x, y) != 0)
            mask |= 1u << i;
    }
    return mask;
}

/* ---- Triton's version ---- */

bool mf_triton_version_ok(const char *text)
{
    int a, b, c, n = 0;
    /* sscanf also accepts signs and white space */
    return text[strspn(text, "0123456789.")] == '\0' && sscanf(text, "%5d.%5d.%5d%n", &a, &b, &c, &n) == 3 &&
           text[n] == '\0';
}

int mf_triton_version_find(const char *text, char buf[MF_TRITON_VERSION_MAX])
{
    for (const char *at = text; (at = strstr(at, "triton")); at++) {
        const char *from = at + strlen("triton");
        char version[MF_TRITON_VERSION_MAX];
        from += strspn(from, " =-");
        mf_format(version, sizeof(version), "%.*s", (int)MF_MIN(strspn(from, "0123456789."), 20), from);
        if (mf_triton_version_ok(version)) {
            mf_format(buf, MF_TRITON_VERSION_MAX, "%s", version);
            return 0;
        }
    }
    return -ENOENT;
}
