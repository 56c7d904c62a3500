#include "common/table/triton/triton_export.h"

#include "common/base/array.h"
#include "common/base/text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void mf_triton_export_release(struct mf_triton_export *x)
{
    for (size_t i = 0; i < x->n_files; i++)
        free(x->files[i].content);
    free(x->files);
    *x = MF_TRITON_EXPORT_INIT;
}

/* The rows of one file name. */
struct group {
    struct mf_triton_key key; /* of the first GEMM */
    const struct mf_triton_row *first;
    const char *version; /* "" if the rows have different ones */
    bool has_down;       /* SGLang: a row has a configuration for the second GEMM */
    struct mf_triton_file up, down;
};

struct exporter {
    enum mf_framework framework;
    mf_triton_left_out_fn left_out;
    void *data;
    struct group *groups;
    size_t n, cap;
};

static void release(struct exporter *x)
{
    for (size_t i = 0; i < x->n; i++) {
        free(x->groups[i].up.entries);
        free(x->groups[i].down.entries);
    }
    free(x->groups);
}

/* ---- rows ---- */

/* Returns 0 if the framework can launch the step, or -EINVAL with the reason. */
static int check_step(enum mf_framework framework, const struct mf_triton_step *step, char why[MF_REASON_MAX])
{
    if (framework == MF_FRAMEWORK_VLLM && (step->has_down || step->up.value[MF_TRITON_TMA])) {
        mf_format(why, MF_REASON_MAX, "vLLM has neither USE_TMA nor a configuration for the second GEMM");
        return -EINVAL;
    }
    if (step->has_down && step->down.value[MF_TRITON_BLOCK_M] != step->up.value[MF_TRITON_BLOCK_M]) {
        mf_format(why, MF_REASON_MAX,
                  "BLOCK_SIZE_M %" PRId32 " of the second GEMM differs from %" PRId32
                  " of the first one; SGLang needs equal ones",
                  step->down.value[MF_TRITON_BLOCK_M], step->up.value[MF_TRITON_BLOCK_M]);
        return -EINVAL;
    }
    return 0;
}

/* Parses the row's step and computes its key. -EINVAL, with why: the row has no file. */
static int read_row(enum mf_framework framework, const struct mf_triton_row *row, struct mf_triton_step *step,
                    struct mf_triton_key *key, char why[MF_REASON_MAX])
{
    int r = mf_triton_step_parse(row->step, step);
    if (r == -ENOENT)
        mf_format(why, MF_REASON_MAX,
                  "the default configuration of %s is the fastest one for %" PRId64
                  " tokens; if the layer has a file, its nearest entry replaces the default",
                  mf_framework_title(framework), row->shape.token);
    else if (r < 0)
        mf_format(why, MF_REASON_MAX, "%s is not a configuration of the Triton kernels", row->step);
    if (r < 0)
        return -EINVAL;
    if (framework == MF_FRAMEWORK_SGLANG && !*row->version) {
        mf_format(why, MF_REASON_MAX,
                  "the version of Triton is unknown, and SGLang's folder contains it; give triton=X.Y.Z");
        return -EINVAL;
    }
    r = check_step(framework, step, why);
    return r < 0 || mf_triton_key(framework, &row->shape, row->model, key, why) < 0 ? -EINVAL : 0;
}

/* SGLang has a folder for each version of Triton. */
static bool is_same_file(const struct exporter *x, const struct group *g, const struct mf_triton_key *key,
                         const struct mf_triton_row *row)
{
    return mf_triton_key_differences(&g->key, key) == 0 &&
           (x->framework == MF_FRAMEWORK_VLLM || strcmp(g->version, row->version) == 0);
}

static int find_group(struct exporter *x, const struct mf_triton_key *key, const struct mf_triton_row *row,
                      struct group **ret)
{
    for (size_t i = 0; i < x->n; i++) {
        if (is_same_file(x, &x->groups[i], key, row)) {
            *ret = &x->groups[i];
            return 0;
        }
    }
    int r = mf_array_grow(&x->groups, x->n, &x->cap, sizeof(*x->groups));
    if (r < 0)
        return r;
    *ret = &x->groups[x->n++];
    **ret = (struct group){.key = *key, .first = row, .version = row->version};
    return 0;
}

/* A row without a configuration for the second GEMM runs it with that of the first one. */
static int add_entries(struct group *g, const struct mf_triton_row *row, const struct mf_triton_step *step)
{
    struct mf_triton_entry up = {.token = row->shape.token, .config = step->up}, down = up;
    if (step->has_down)
        down.config = step->down;
    g->has_down = g->has_down || step->has_down;
    int r = mf_triton_file_add(&g->up, &up);
    return r < 0 ? r : mf_triton_file_add(&g->down, &down);
}

static int add_row(struct exporter *x, const struct mf_triton_row *row)
{
    struct mf_triton_step step;
    struct mf_triton_key key;
    struct group *g;
    char why[MF_REASON_MAX] = "", name[MF_TRITON_NAME_MAX];
    if (read_row(x->framework, row, &step, &key, why) < 0)
        return x->left_out(row, why, x->data);
    int r = find_group(x, &key, row, &g);
    if (r < 0)
        return r;
    if (!mf_shape_same_layer_model(&g->first->shape, &row->shape)) {
        mf_triton_key_print(x->framework, &key, name);
        mf_format(why, sizeof(why),
                  "another layer model already has the file %s, which contains neither hidden size nor topk "
                  "nor activation; choose one with layer_model=…",
                  name);
        return x->left_out(row, why, x->data);
    }
    if (strcmp(g->version, row->version) != 0)
        g->version = "";
    return add_entries(g, row, &step);
}

/* ---- files ---- */

static int compare_tokens(const void *a, const void *b)
{
    const struct mf_triton_entry *x = a, *y = b;
    return (x->token > y->token) - (x->token < y->token);
}

static int add_file(const struct exporter *x, const struct group *g, bool down, struct mf_triton_export *ret)
{
    const struct mf_triton_file *f = down ? &g->down : &g->up;
    struct mf_triton_export_file *file = &ret->files[ret->n_files];
    struct mf_triton_key key = g->key;
    _cleanup_(mf_buf_release) struct mf_buf out;
    key.down = down;
    mf_buf_init(&out, MF_TRITON_FILE_MAX);
    qsort(f->entries, f->n_entries, sizeof(*f->entries), compare_tokens);
    mf_triton_key_path(x->framework, &key, g->version, file->path);
    int r = mf_triton_file_write(x->framework, f->entries, f->n_entries, g->version, &out);
    if (r < 0)
        return r;
    file->content = mf_buf_take(&out);
    ret->n_files++;
    return file->content ? 0 : -ENOMEM;
}

static int make_files(const struct exporter *x, struct mf_triton_export *ret)
{
    int r = 0;
    ret->files = calloc(2 * x->n + 1, sizeof(*ret->files));
    if (!ret->files)
        return -ENOMEM;
    for (size_t i = 0; i < x->n && r == 0; i++) {
        r = add_file(x, &x->groups[i], false, ret);
        if (r == 0 && x->groups[i].has_down)
            r = add_file(x, &x->groups[i], true, ret);
    }
    return r;
}

int mf_triton_export(enum mf_framework framework, const struct mf_triton_row *rows, size_t n,
                     mf_triton_left_out_fn left_out, void *data, struct mf_triton_export *ret)
{
    struct exporter x = {.framework = framework, .left_out = left_out, .data = data};
    struct mf_triton_export made = MF_TRITON_EXPORT_INIT;
    int r = 0;
    for (size_t i = 0; i < n && r >= 0; i++)
        r = add_row(&x, &rows[i]);
    if (r >= 0)
        r = make_files(&x, &made);
    release(&x);
    if (r < 0)
        mf_triton_export_release(&made);
    else
        *ret = made;
    return r < 0 ? r : 0;
}
