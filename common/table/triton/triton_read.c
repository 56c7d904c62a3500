/* Reads the JSON of a configuration file, and reports invalid entries with their lines. */
#include "common/base/array.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/table/table_reader.h"
#include "common/table/triton/triton_file.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A pass over the text that finds the lines of the keys, which cJSON does not keep. */
struct key_lines {
    const char *at, *end;
    int64_t line;
    int depth;
};

/* Moves past a string and returns true if it is a key. `at` is at the opening quote. */
static bool skip_string(struct key_lines *k)
{
    for (k->at++; k->at < k->end && *k->at != '"'; k->at++)
        k->at += *k->at == '\\' && k->at + 1 < k->end;
    k->at += k->at < k->end;
    const char *next = k->at;
    while (next < k->end && isspace((unsigned char)*next))
        next++;
    return next < k->end && *next == ':';
}

/* Returns the line of the next key at the depth; 0: none. */
static int64_t next_line(struct key_lines *k, int depth)
{
    while (k->at < k->end) {
        char c = *k->at;
        if (c == '"') {
            if (skip_string(k) && k->depth == depth)
                return k->line;
            continue;
        }
        k->line += c == '\n';
        k->depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        k->at++;
    }
    return 0;
}

struct reader {
    struct mf_triton_file *file;
    struct mf_table *findings;
    struct key_lines lines;
    int r; /* first error */
};

static void report(struct reader *x, enum mf_severity severity, enum mf_problem_code code, int64_t line,
                   const char *column, const char *format, ...) __attribute__((format(printf, 6, 7)));
static void report(struct reader *x, enum mf_severity severity, enum mf_problem_code code, int64_t line,
                   const char *column, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const char *kept = mf_table_keep(x->findings, column);
    int r = kept ? mf_table_problemv(x->findings, &(struct mf_problem){severity, code, line, kept, NULL},
                                     format, args)
                 : -ENOMEM;
    va_end(args);
    if (x->r == 0)
        x->r = r;
}

static const char *print_value(const cJSON *json, char buf[MF_EXCERPT_MAX])
{
    _cleanup_(mf_freep) char *text = mf_json_print(json);
    return mf_table_excerpt(text ? text : "?", buf);
}

/* True if the device of the file is NVIDIA's, whose Triton backend refuses options of other backends. */
static bool is_nvidia(const struct mf_triton_file *f)
{
    return f->has_key && strncmp(f->key.device, "NVIDIA", 6) == 0;
}

/* Returns the reason why the kernel cannot be launched with the field, or NULL. */
static const char *refused(const struct mf_triton_file *f, enum mf_triton field)
{
    if (field == MF_TRITON_TMA && f->framework == MF_FRAMEWORK_VLLM)
        return "vLLM's kernel has no such parameter";
    if (mf_triton_is_backend_option(field) && is_nvidia(f))
        return "Triton's NVIDIA backend has no such option";
    return NULL;
}

static void read_field(struct reader *x, const cJSON *json, int64_t line, struct mf_triton_config *c)
{
    char text[MF_EXCERPT_MAX], shown[MF_EXCERPT_MAX];
    const char *expected, *why, *name = mf_table_excerpt(json->string, shown);
    enum mf_triton field;
    int32_t value;
    if (mf_triton_parse(json->string, &field) < 0) {
        report(x, MF_ERROR, MF_PROBLEM_UNKNOWN_COLUMN, line, name,
               "%s: the kernel has no such parameter, so its launch fails; remove the field", name);
        return;
    }
    c->set |= 1u << field;
    if (mf_triton_value(field, json, &value, &expected) < 0) {
        report(x, MF_ERROR, MF_PROBLEM_VALUE, line, name, "%s %s: expected %s", name, print_value(json, text),
               expected);
        return;
    }
    if ((why = refused(x->file, field)))
        report(x, MF_ERROR, MF_PROBLEM_UNKNOWN_COLUMN, line, name,
               "%s: %s, so the launch fails; remove the field", name, why);
    c->value[field] = value;
}

static void report_missing(struct reader *x, int64_t line, const char *key, const struct mf_triton_config *c)
{
    for (enum mf_triton i = 0; i <= MF_TRITON_STAGES; i++) {
        if (mf_triton_has(c, i))
            continue;
        bool required = mf_triton_is_required(i);
        report(x, required ? MF_ERROR : MF_WARNING, MF_PROBLEM_MISSING, line, mf_triton_name(i),
               "entry \"%s\" has no %s%s", key, mf_triton_name(i),
               required ? "; the kernel needs it" : ": Triton uses its default; write the value");
    }
}

static void read_entry(struct reader *x, const cJSON *json, int64_t line)
{
    struct mf_triton_entry entry = {.line = line};
    char buf[MF_EXCERPT_MAX];
    const char *key = mf_table_excerpt(json->string, buf);
    size_t n_errors = x->findings->n_errors;
    const struct mf_triton_entry *same;
    const cJSON *field;
    if (mf_parse_i64(json->string, 1, MF_TRITON_TOKEN_MAX, &entry.token) < 0) {
        report(x, MF_ERROR, MF_PROBLEM_VALUE, line, key, "key \"%s\": expected a token count from 1 to %d",
               key, MF_TRITON_TOKEN_MAX);
        return;
    }
    if (!cJSON_IsObject(json)) {
        report(x, MF_ERROR, MF_PROBLEM_VALUE, line, key,
               "entry \"%s\": expected an object with BLOCK_SIZE_M and the other fields", key);
        return;
    }
    cJSON_ArrayForEach (field, json)
        read_field(x, field, next_line(&x->lines, 2), &entry.config);
    report_missing(x, line, key, &entry.config);
    if ((same = mf_triton_file_find(x->file, entry.token)))
        report(x, MF_ERROR, MF_PROBLEM_DUPLICATE, line, key,
               "entry \"%s\" is also on line %" PRId64 "; the last one is used", key, same->line);
    if (x->findings->n_errors == n_errors && x->r == 0)
        x->r = mf_triton_file_add(x->file, &entry);
}

static void read_version(struct reader *x, const cJSON *json, int64_t line)
{
    if (cJSON_IsString(json) && mf_triton_version_ok(json->valuestring))
        mf_format(x->file->version, sizeof(x->file->version), "%s", json->valuestring);
    if (x->file->framework == MF_FRAMEWORK_SGLANG)
        report(x, MF_ERROR, MF_PROBLEM_VALUE, line, MF_TRITON_VERSION_KEY,
               MF_TRITON_VERSION_KEY ": SGLang reads every key as a token count and fails; remove the key");
}

static void read_members(struct reader *x, const cJSON *root)
{
    const cJSON *json;
    size_t n = 0;
    cJSON_ArrayForEach (json, root) {
        int64_t line = next_line(&x->lines, 1);
        if (strcmp(json->string, MF_TRITON_VERSION_KEY) == 0)
            read_version(x, json, line);
        else if (++n <= MF_TRITON_ENTRIES_MAX)
            read_entry(x, json, line);
    }
    if (n > MF_TRITON_ENTRIES_MAX)
        report(x, MF_ERROR, MF_PROBLEM_MALFORMED, 1, "", "%zu entries: expected at most %d", n,
               MF_TRITON_ENTRIES_MAX);
    else if (n == 0)
        report(x, MF_ERROR, MF_PROBLEM_MALFORMED, 1, "", "the file has no entry");
}

/* Finds the version in a folder of the path, such as triton_3_6_0. */
static void find_folder_version(struct mf_triton_file *f)
{
    for (const char *folder = f->path; (folder = strstr(folder, "triton_"));) {
        char version[MF_TRITON_VERSION_MAX];
        folder += strlen("triton_");
        mf_format(version, sizeof(version), "%.*s", (int)MF_MIN(strspn(folder, "0123456789_"), 20), folder);
        for (char *p = version; *p; p++)
            if (*p == '_')
                *p = '.';
        if (mf_triton_version_ok(version))
            mf_format(f->version, sizeof(f->version), "%s", version);
    }
}

/* vLLM's files lie in one folder, SGLang's in one folder per version of Triton. Only SGLang has _down and
 * per_channel_quant, and a space in block_shape. Only vLLM's tuner writes "triton_version". */
static enum mf_framework guess(const struct mf_triton_file *f, const cJSON *root)
{
    bool has_version = cJSON_HasObjectItem(root, MF_TRITON_VERSION_KEY);
    bool spaced = f->has_key && f->key.block_n > 0 && strstr(f->path, ", ");
    if (*f->version || (f->has_key && (f->key.down || f->key.per_channel)) || (spaced && !has_version))
        return MF_FRAMEWORK_SGLANG;
    return MF_FRAMEWORK_VLLM;
}

bool mf_triton_file_is(const char *text, size_t len)
{
    size_t at = 0;
    while (at < len && isspace((unsigned char)text[at]))
        at++;
    return at < len && text[at] == '{';
}

int mf_triton_file_read(const char *path, const char *text, size_t len, const enum mf_framework *framework,
                        struct mf_table *findings, struct mf_triton_file **ret)
{
    _cleanup_(mf_triton_file_freep) struct mf_triton_file *f = calloc(1, sizeof(*f));
    _cleanup_(cJSON_Deletep) cJSON *root = mf_json_parse(text, len, MF_TRITON_FILE_MAX);
    struct reader x = {.file = f, .findings = findings, .lines = {text, text + len, 1, 0}};
    if (!f || !(f->path = strdup(path)))
        return -ENOMEM;
    findings->op = MF_TABLE_TRITON;
    f->has_key = mf_triton_key_parse(path, &f->key) == 0;
    find_folder_version(f);
    f->framework = framework ? *framework : guess(f, root);
    if (!cJSON_IsObject(root))
        report(&x, MF_ERROR, MF_PROBLEM_MALFORMED,
               root ? 1 : (int64_t)mf_json_error_line(text, MF_MIN(len, MF_TRITON_FILE_MAX)), "",
               "not a JSON object of token counts and configurations");
    else if (!*f->key.other) /* the file of another kernel has other fields */
        read_members(&x, root);
    if (x.r == 0)
        *ret = MF_TAKE(f);
    return x.r;
}
