/* Findings about a whole configuration file: its name, its token counts, values without effect. */
#include "common/base/text.h"
#include "common/table/table_internal.h"
#include "common/table/triton/triton_file.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

struct check {
    const struct mf_triton_file *f;
    struct mf_table *findings;
    int r; /* first error */
};

static void report(struct check *c, enum mf_severity severity, enum mf_problem_code code, int64_t line,
                   const char *column, const char *format, ...) __attribute__((format(printf, 6, 7)));
static void report(struct check *c, enum mf_severity severity, enum mf_problem_code code, int64_t line,
                   const char *column, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int r = mf_table_problemv(c->findings, &(struct mf_problem){severity, code, line, column, NULL}, format,
                              args);
    va_end(args);
    if (c->r == 0)
        c->r = r;
}

/* ---- the name ---- */

/* Returns the reason why the framework never looks up a file with this key, or NULL. */
static const char *find_unread(const struct mf_triton_file *f, char buf[MF_REASON_MAX])
{
    const struct mf_triton_key *key = &f->key;
    const char *title = mf_framework_title(f->framework);
    char device[MF_TRITON_DEVICE_MAX];
    if (*key->other) {
        mf_format(buf, MF_REASON_MAX, "%s belongs to another kernel than the Triton one", key->other);
        return buf;
    }
    mf_triton_device(f->framework, key->device, device);
    if (strcmp(device, key->device) != 0) {
        mf_format(buf, MF_REASON_MAX, "%s looks up device_name=%s for %s", title, device, key->device);
        return buf;
    }
    if (f->framework == MF_FRAMEWORK_SGLANG)
        return strcmp(key->dtype, "fp8_w8a16") == 0 ? "SGLang has no dtype fp8_w8a16" : NULL;
    if (key->down || key->per_channel)
        return "vLLM looks up neither _down nor per_channel_quant";
    if (strcmp(key->dtype, "int8_w8a8") == 0)
        return "vLLM looks up files without a dtype for int8 activations";
    return NULL;
}

static void check_name(struct check *c)
{
    char why[MF_REASON_MAX], expected[MF_TRITON_NAME_MAX];
    const char *reason;
    if (!c->f->has_key)
        report(c, MF_ERROR, MF_PROBLEM_UNREACHABLE, 1, "name",
               "the name is not one that %s looks up; expected E=…,N=…,device_name=….json",
               mf_framework_title(c->f->framework));
    else if ((reason = find_unread(c->f, why)))
        report(c, MF_ERROR, MF_PROBLEM_UNREACHABLE, 1, "name", "never read: %s", reason);
    else if (!mf_triton_key_names(c->f->framework, &c->f->key, c->f->path, expected))
        report(c, MF_ERROR, MF_PROBLEM_UNREACHABLE, 1, "name", "never read: %s looks up %s",
               mf_framework_title(c->f->framework), expected);
}

/* ---- the token counts ---- */

/* The token counts that both frameworks' tuners measure (vLLM benchmarks/kernels/benchmark_moe.py, SGLang
 * benchmark/kernels/fused_moe_triton). */
static const int64_t ladder[] = {1,  2,   4,   8,   16,   24,   32,   48,   64,
                                 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096};

const int64_t *mf_triton_ladder(size_t *ret_n)
{
    *ret_n = MF_ARRAY_LEN(ladder);
    return ladder;
}

static void check_ladder(struct check *c)
{
    char missing[256] = "", *at = missing;
    size_t n = 0;
    if (c->f->n_entries == 0)
        return;
    for (size_t i = 0; i < MF_ARRAY_LEN(ladder); i++) {
        if (mf_triton_file_find(c->f, ladder[i]))
            continue;
        at = mf_append(at, missing + sizeof(missing), n++ ? ", " : "");
        at = mf_append_i64(at, missing + sizeof(missing), ladder[i]);
    }
    if (n > 0)
        report(c, MF_WARNING, MF_PROBLEM_HOLE, 1, "token",
               "no entry for %s tokens, which the framework's tuner measures; the nearest entry serves them",
               missing);
}

static void check_order(struct check *c)
{
    for (size_t i = 1; i < c->f->n_entries; i++) {
        const struct mf_triton_entry *e = &c->f->entries[i], *before = e - 1;
        if (e->token < before->token)
            report(c, MF_WARNING, MF_PROBLEM_KEY_ORDER, e->line, "token",
                   "\"%" PRId64 "\" follows \"%" PRId64
                   "\": the kernel uses the first of two equally near entries; sort the entries",
                   e->token, before->token);
    }
}

/* ---- values without effect ---- */

static void check_ignored(struct check *c, const struct mf_triton_entry *e)
{
    int32_t block = MF_MIN(c->f->key.block_n, c->f->key.block_k);
    bool vllm = c->f->framework == MF_FRAMEWORK_VLLM;
    if (mf_triton_has(&e->config, MF_TRITON_SPLIT_K) && vllm)
        report(c, MF_WARNING, MF_PROBLEM_IGNORED, e->line, "SPLIT_K",
               "SPLIT_K %" PRId32 ": vLLM always uses 1; remove the field",
               e->config.value[MF_TRITON_SPLIT_K]);
    if (c->f->has_key && block > 0 && vllm && e->config.value[MF_TRITON_BLOCK_K] > block)
        report(c, MF_WARNING, MF_PROBLEM_IGNORED, e->line, "BLOCK_SIZE_K",
               "BLOCK_SIZE_K %" PRId32 ": vLLM uses at most %" PRId32 ", the side of block_shape",
               e->config.value[MF_TRITON_BLOCK_K], block);
}

int mf_triton_file_check(const struct mf_triton_file *f, struct mf_table *findings)
{
    struct check c = {.f = f, .findings = findings};
    check_name(&c);
    check_ladder(&c);
    check_order(&c);
    for (size_t i = 0; i < f->n_entries; i++)
        check_ignored(&c, &f->entries[i]);
    return c.r < 0 ? c.r : mf_table_sort_problems(findings);
}

/* ---- the second GEMM's file ---- */

static const struct mf_triton_file *find_up(struct mf_triton_file *const *files, size_t n,
                                            const struct mf_triton_file *down)
{
    for (size_t i = 0; i < n; i++) {
        const struct mf_triton_file *f = files[i];
        if (f && f->has_key && f->framework == down->framework && strcmp(f->version, down->version) == 0 &&
            mf_triton_key_differences(&f->key, &down->key) == 1u << MF_TRITON_PART_DOWN)
            return f;
    }
    return NULL;
}

static void check_down(struct check *c, const struct mf_triton_file *up)
{
    for (size_t i = 0; i < c->f->n_entries; i++) {
        const struct mf_triton_entry *down = &c->f->entries[i];
        const struct mf_triton_entry *e = mf_triton_file_nearest(up, down->token);
        if (e && e->config.value[MF_TRITON_BLOCK_M] != down->config.value[MF_TRITON_BLOCK_M])
            report(c, MF_WARNING, MF_PROBLEM_IGNORED, down->line, "BLOCK_SIZE_M",
                   "BLOCK_SIZE_M %" PRId32 ": SGLang uses %" PRId32
                   " from the first GEMM's file, because both GEMMs share the sorted tokens",
                   down->config.value[MF_TRITON_BLOCK_M], e->config.value[MF_TRITON_BLOCK_M]);
    }
}

int mf_triton_files_check(struct mf_triton_file *const *files, struct mf_table *const *findings, size_t n)
{
    int r = 0;
    for (size_t i = 0; i < n && r == 0; i++) {
        struct check c = {.f = files[i], .findings = findings[i]};
        if (!c.f)
            continue;
        const struct mf_triton_file *up = c.f->key.down ? find_up(files, n, c.f) : NULL;
        if (up)
            check_down(&c, up);
        r = c.r < 0 ? c.r : mf_triton_file_check(c.f, c.findings);
    }
    return r;
}
