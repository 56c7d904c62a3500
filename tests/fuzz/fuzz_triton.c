/* Fuzzes configuration files of vLLM and SGLang. The first line of an input is the path of a file, the name
 * of a step, or a layer. The other lines are the content of the file. */
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "common/table/triton/triton_file.h"
#include "fuzz.h"

/* A printed name parses to the same configuration. */
static void try_step(const char *name)
{
    struct mf_triton_step step, again;
    char text[MF_STEP_NAME_MAX];
    if (strlen(name) >= MF_STEP_NAME_MAX || mf_triton_step_parse(name, &step) < 0)
        return;
    mf_triton_step_print(&step, text);
    MF_MUST(mf_triton_step_parse(text, &again) == 0 && again.has_down == step.has_down);
    MF_MUST(mf_triton_config_equal(&step.up, &again.up) && mf_triton_config_equal(&step.down, &again.down));
}

static void check_key(enum mf_framework framework, const struct mf_triton_key *key)
{
    char path[MF_TRITON_NAME_MAX], name[MF_TRITON_NAME_MAX];
    struct mf_triton_key again;
    mf_triton_key_path(framework, key, "3.6.0", path);
    MF_MUST(mf_triton_key_parse(path, &again) == 0 && mf_triton_key_differences(key, &again) == 0);
    MF_MUST(mf_triton_key_names(framework, key, path, name));
}

static void try_layer(const char *row)
{
    struct mf_shape layer;
    struct mf_triton_key key;
    if (mf_shape_parse(row, &layer) < 0)
        return;
    for (enum mf_framework i = 0; i < MF_FRAMEWORK_N_; i++) {
        char why[MF_REASON_MAX] = "";
        if (mf_triton_key(i, &layer, "NVIDIA H200", &key, why) == 0)
            check_key(i, &key);
        else
            MF_MUST(why[0]);
    }
}

/* A device called "…_down" could be mistaken for the file of the second GEMM. */
static void try_path(const char *path)
{
    struct mf_triton_key key;
    if (strlen(path) >= 200 || mf_triton_key_parse(path, &key) < 0)
        return;
    key.down = false;
    for (enum mf_framework i = 0; i < MF_FRAMEWORK_N_ && !strstr(path, "_down"); i++)
        check_key(i, &key);
}

static void try_version(const char *text)
{
    char version[MF_TRITON_VERSION_MAX];
    MF_MUST(mf_triton_version_find(text, version) < 0 || mf_triton_version_ok(version));
}

/* Reads and checks a file. framework NULL: guessed. */
static struct mf_triton_file *read_file(const char *path, const char *text, size_t len,
                                        const enum mf_framework *framework)
{
    _cleanup_(mf_table_freep) struct mf_table *findings = NULL;
    struct mf_triton_file *f = NULL;
    MF_MUST(mf_table_new(path, false, &findings) == 0);
    MF_MUST(mf_triton_file_read(path, text, len, framework, findings, &f) == 0);
    MF_MUST(mf_triton_files_check(&f, &findings, 1) == 0);
    MF_MUST(f->n_entries > 0 || findings->n_errors > 0);
    return f;
}

/* The valid entries are written to a file that has the same entries. */
static void try_file(const char *path, const char *text, size_t len)
{
    _cleanup_(mf_triton_file_freep) struct mf_triton_file *f = read_file(path, text, len, NULL);
    _cleanup_(mf_triton_file_freep) struct mf_triton_file *again = NULL;
    _cleanup_(mf_buf_release) struct mf_buf out;
    mf_buf_init(&out, MF_TRITON_FILE_MAX);
    MF_MUST(mf_triton_file_write(f->framework, f->entries, f->n_entries, f->version, &out) == 0);
    again = read_file(path, out.data, out.len, &f->framework);
    MF_MUST(again->n_entries == f->n_entries);
    for (size_t i = 0; i < f->n_entries; i++) {
        const struct mf_triton_entry *e = &f->entries[i], *read = &again->entries[i];
        MF_MUST(mf_triton_file_find(f, e->token) == e && mf_triton_file_nearest(f, e->token) == e);
        MF_MUST(read->token == e->token && mf_triton_config_equal(&read->config, &e->config));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *newline = size > 0 ? memchr(data, '\n', size) : NULL;
    size_t len = newline ? (size_t)(newline - (const char *)data) : size;
    _cleanup_(mf_freep) char *line = strndup((const char *)data, len);
    MF_MUST(line);
    try_step(line);
    try_layer(line);
    try_path(line);
    try_version(line);
    if (newline)
        try_file(line, newline + 1, size - len - 1);
    return 0;
}
