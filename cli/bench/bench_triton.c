/* Entries of configuration files of vLLM and SGLang, which run through fused_experts. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bench/bench_rows.h"
#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/table/table_file.h"
#include "common/table/triton/triton_file.h"

/* ---- files ---- */

static int parse_format(const char *format, enum mf_framework *ret)
{
    if (mf_framework_parse(format, ret) == 0)
        return 0;
    return mf_cli_fail(MF_EXIT_USAGE, "--format '%s': expected vllm or sglang", format);
}

static int read_text(const char *path, const struct mf_buf *text, const enum mf_framework *framework,
                     struct mf_triton_file **ret)
{
    _cleanup_(mf_table_freep) struct mf_table *findings = NULL;

    if (mf_table_new(path, false, &findings) < 0 ||
        mf_triton_file_read(path, text->data, text->len, framework, findings, ret) < 0)
        return mf_cli_out_of_memory();
    for (size_t i = 0; i < findings->n_problems; i++) {
        if (findings->problems[i].severity == MF_ERROR)
            return mf_cli_fail(MF_EXIT_USAGE, "%s:%lld: %s", path, (long long)findings->problems[i].line,
                               findings->problems[i].reason);
    }
    if (!(*ret)->has_key)
        return mf_cli_fail(MF_EXIT_USAGE,
                           "%s: the name is not that of a configuration file; expected "
                           "E=…,N=…,device_name=….json",
                           path);
    return (*ret)->n_entries > 0
               ? 0
               : mf_cli_fail(MF_EXIT_USAGE, "%s: the file has no entry; add one per token count", path);
}

/* Reads a file of the framework that --format names. Without --format, guesses the framework from the
 * content; if only the other framework's family is loaded, reads the file as one of that framework. */
static int read_file(const struct mf_bench *b, const char *path, const struct mf_buf *text,
                     struct mf_triton_file **ret)
{
    enum mf_framework framework;
    int code = 0;

    if (b->options.layer.format) {
        code = parse_format(b->options.layer.format, &framework);
        return code != 0 ? code : read_text(path, text, &framework, ret);
    }
    code = read_text(path, text, NULL, ret);
    if (code != 0)
        return code;
    framework = (*ret)->framework == MF_FRAMEWORK_VLLM ? MF_FRAMEWORK_SGLANG : MF_FRAMEWORK_VLLM;
    if (mf_operators_have(b->operators, mf_framework_name((*ret)->framework)) ||
        !mf_operators_have(b->operators, mf_framework_name(framework)))
        return 0;
    *ret = mf_triton_file_free(*ret);
    return read_text(path, text, &framework, ret);
}

static int check_family(const struct mf_bench *b, const struct mf_triton_file *file)
{
    const char *family = mf_framework_name(file->framework);

    if (mf_operators_have(b->operators, family))
        return 0;
    return mf_cli_fail(MF_EXIT_USAGE,
                       "%s: a configuration file of %s, which runs through its fused_experts; name an "
                       "interpreter that imports %s: --python PATH --family-py "
                       "moefarm.families.triton_moe.%s_family",
                       file->path, mf_framework_title(file->framework), family, family);
}

/* Reads SGLang's file for the second GEMM, which has the same name with the suffix "_down". Sets *ret to NULL
 * if the file does not exist. */
static int read_down(const struct mf_triton_file *file, struct mf_triton_file **ret)
{
    static const char ending[] = ".json";
    _cleanup_(mf_buf_release) struct mf_buf text;
    char path[PATH_MAX], why[MF_REASON_MAX] = "";
    size_t len = strlen(file->path), stem = len - (sizeof(ending) - 1);
    int r;

    mf_buf_init(&text, MF_TRITON_FILE_MAX);
    *ret = NULL;
    if (file->framework != MF_FRAMEWORK_SGLANG)
        return 0;
    if (file->key.down)
        return mf_cli_fail(MF_EXIT_USAGE,
                           "%s: the file is for the second GEMM only; name the file without _down, which "
                           "also reads this one",
                           file->path);
    mf_format(path, sizeof(path), "%.*s_down%s", (int)stem, file->path, ending);
    r = mf_table_file_text(path, &text, why);
    if (r == -ENOENT)
        return 0;
    if (r < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "%s", *why ? why : "out of memory");
    return read_text(path, &text, &file->framework, ret);
}

static void warn_other_device(const struct mf_bench *b, const struct mf_triton_file *file)
{
    char here[MF_TRITON_DEVICE_MAX];

    mf_triton_device(file->framework, b->device->info.model, here);
    if (strcmp(here, file->key.device) != 0)
        (void)fprintf(stderr, "%s: tuned on %s; this device is %s, which does not read the file\n",
                      file->path, file->key.device, here);
}

/* ---- entries ---- */

/* Adds the row of an entry. down: file for the second GEMM; NULL: none. */
static int add_entry(struct mf_bench_rows *r, const struct mf_bench *b, const struct mf_shape *layer,
                     const struct mf_triton_entry *entry, const struct mf_triton_file *down)
{
    const char *family = mf_framework_name(r->file->framework);
    struct mf_triton_step step = {.up = entry->config, .has_down = down != NULL};
    struct mf_bench_row *row = &r->items[r->n++];
    char name[MF_STEP_NAME_MAX], names[MF_FAMILY_NAME_MAX + MF_STEP_NAME_MAX];
    int code;

    *row = (struct mf_bench_row){.shape = *layer, .us = NAN, .model = r->file->key.device, .reachable = true};
    row->shape.token = entry->token;
    if (down)
        step.down = mf_triton_file_nearest(down, entry->token)->config;
    mf_triton_step_print(&step, name);
    mf_format(names, sizeof(names), "%s:%s", family, name);
    row->chosen = strdup(names);
    row->names = row->chosen;
    _cleanup_(cJSON_Deletep) cJSON *json = cJSON_CreateObject();
    if (!row->chosen || !cJSON_AddStringToObject(json, "config", name))
        return mf_cli_out_of_memory();
    code = mf_bench_row_provenance(b, NULL, row);
    return code != 0 ? code : mf_bench_row_operate(b, family, json, row);
}

int mf_bench_triton_open(struct mf_bench_rows *r, const struct mf_bench *b, const char *path,
                         const struct mf_buf *text)
{
    _cleanup_(mf_triton_file_freep) struct mf_triton_file *down = NULL;
    struct mf_shape layer;
    int code = read_file(b, path, text, &r->file);

    if (code == 0)
        code = check_family(b, r->file);
    if (code == 0)
        code = read_down(r->file, &down);
    if (code == 0)
        code = mf_bench_layer_read(&b->options.layer, r->file, b->device->info.class.gfx, &layer);
    if (code != 0)
        return code;
    warn_other_device(b, r->file);
    r->items = calloc(r->file->n_entries, sizeof(*r->items));
    if (!r->items)
        return mf_cli_out_of_memory();
    for (size_t i = 0; i < r->file->n_entries && code == 0; i++)
        code = add_entry(r, b, &layer, &r->file->entries[i], down);
    return code;
}
