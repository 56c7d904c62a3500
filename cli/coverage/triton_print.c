/* Prints which configuration files of vLLM or SGLang a layer reads. */
#include "cli/coverage/triton_coverage.h"

#include <inttypes.h>
#include <string.h>

#include "cli/support/text_out.h"
#include "common/base/json.h"
#include "common/base/text.h"

static void add_query(const struct mf_triton_query *q, const struct mf_triton_coverage *c, struct mf_buf *out)
{
    char name[MF_TRITON_NAME_MAX];

    mf_triton_key_print(q->framework, &c->key, name);
    (void)mf_buf_addf(out, "%s on %s: tp %" PRId32 ", ep %" PRId32 ", %" PRId32 " fused shared expert%s\n",
                      q->model->name, c->key.device, q->split.tp, q->split.ep, q->split.fused_shared,
                      q->split.fused_shared == 1 ? "" : "s");
    (void)mf_buf_addf(out, "%s looks up: %s\n", mf_framework_title(q->framework), name);
}

static void add_spans(const struct mf_triton_coverage *c, struct mf_buf *out)
{
    struct mf_columns table;

    (void)mf_buf_addf(out, "\nread: %s, %zu entries\n", c->up->file->path, c->up->file->n_entries);
    if (c->down)
        (void)mf_buf_addf(out, "read for the second GEMM: %s, %zu entries\n", c->down->file->path,
                          c->down->file->n_entries);
    mf_columns_init(&table, 3);
    mf_columns_add(&table, "tokens");
    mf_columns_add(&table, "entry");
    mf_columns_add(&table, "configuration");
    for (size_t i = 0; i < c->n_spans; i++) {
        const struct mf_triton_span *s = &c->spans[i];
        const struct mf_triton_step step = {.up = s->entry->config};
        char name[MF_STEP_NAME_MAX];

        mf_triton_step_print(&step, name);
        if (s->last > s->first)
            mf_columns_addf(&table, "%" PRId64 "..%" PRId64, s->first, s->last);
        else
            mf_columns_addf(&table, "%" PRId64, s->first);
        mf_columns_addf(&table, "%" PRId64, s->entry->token);
        mf_columns_add(&table, name);
    }
    mf_columns_print(&table, out);
    mf_columns_release(&table);
}

/* Appends "E 257 instead of 256 and N 128 instead of 256". */
static void add_differences(const struct mf_triton_coverage *c, const struct mf_triton_use *use,
                            struct mf_buf *out)
{
    const char *between = "";

    for (enum mf_triton_part i = 0; i < MF_TRITON_PART_N_; i++) {
        char file[MF_TRITON_DEVICE_MAX], layer[MF_TRITON_DEVICE_MAX];

        if (!(use->differs & 1u << i))
            continue;
        mf_triton_key_part(&use->file->key, i, file);
        mf_triton_key_part(&c->key, i, layer);
        (void)mf_buf_addf(out, "%s%s %s instead of %s", between, mf_triton_part_name(i), file, layer);
        between = " and ";
    }
}

static void add_unread(const struct mf_triton_query *q, const struct mf_triton_coverage *c,
                       const struct mf_triton_use *use, struct mf_buf *out)
{
    const struct mf_model_split *with = &use->read_with;
    const struct mf_triton_use *read = use->file->key.down ? c->down : c->up;

    (void)mf_buf_addf(out, "  %s: ", use->file->path);
    if (use->other_framework)
        (void)mf_buf_addf(out, "a file of %s", mf_framework_title(use->file->framework));
    else if (use->differs)
        add_differences(c, use, out);
    else if (use->misspelt)
        (void)mf_buf_adds(out, "the name is spelled in another way");
    else if (!*use->file->version || strcmp(use->file->version, read->file->version) == 0)
        (void)mf_buf_addf(out, "another file with this name is read instead: %s", read->file->path);
    else
        (void)mf_buf_addf(out, "the file for Triton %s is read instead, unless the server has Triton %s",
                          read->file->version, use->file->version);
    if (with->tp > 0)
        (void)mf_buf_addf(out, "; %s reads it with tp %" PRId32 ", ep %" PRId32 ", %" PRId32 " fused",
                          q->model->name, with->tp, with->ep, with->fused_shared);
    (void)mf_buf_adds(out, "\n");
}

/* Prints the unread files of the layer's device, or those of other devices. */
static void add_unread_of(const struct mf_triton_query *q, const struct mf_triton_coverage *c,
                          bool own_device, int64_t top, int64_t *n, struct mf_buf *out)
{
    for (size_t i = 0; i < c->n_uses; i++) {
        const struct mf_triton_use *use = &c->uses[i];
        bool own = !(use->differs & 1u << MF_TRITON_PART_DEVICE);

        if (use == c->up || use == c->down || own != own_device)
            continue;
        if (*n == 0)
            (void)mf_buf_adds(out, "\nnever read by this layer:\n");
        if (top == 0 || *n < top)
            add_unread(q, c, use, out);
        (*n)++;
    }
}

void mf_triton_coverage_print(const struct mf_triton_query *q, const struct mf_triton_coverage *c,
                              int64_t top, struct mf_buf *out)
{
    int64_t n = 0;

    add_query(q, c, out);
    if (c->up)
        add_spans(c, out);
    else
        (void)mf_buf_addf(out, "\nnot found: %s uses its packaged file, or else its default configuration\n",
                          mf_framework_title(q->framework));
    add_unread_of(q, c, true, top, &n, out);
    add_unread_of(q, c, false, top, &n, out);
    if (top > 0 && n > top)
        (void)mf_buf_addf(out, "  … and %" PRId64 " more (--top 0)\n", n - top);
}

/* ---- JSON ---- */

static cJSON *json_of_use(const struct mf_triton_coverage *c, const struct mf_triton_use *use)
{
    cJSON *o = cJSON_CreateObject(), *list, *with;

    cJSON_AddStringToObject(o, "file", use->file->path);
    cJSON_AddBoolToObject(o, "read", use == c->up || use == c->down);
    cJSON_AddStringToObject(o, "framework", mf_framework_name(use->file->framework));
    cJSON_AddBoolToObject(o, "misspelt", use->misspelt);
    list = cJSON_AddArrayToObject(o, "differs");
    for (enum mf_triton_part i = 0; i < MF_TRITON_PART_N_; i++) {
        char file[MF_TRITON_DEVICE_MAX], layer[MF_TRITON_DEVICE_MAX];
        cJSON *part;

        if (!(use->differs & 1u << i))
            continue;
        mf_triton_key_part(&use->file->key, i, file);
        mf_triton_key_part(&c->key, i, layer);
        cJSON_AddItemToArray(list, part = cJSON_CreateObject());
        cJSON_AddStringToObject(part, "part", mf_triton_part_name(i));
        cJSON_AddStringToObject(part, "file", file);
        cJSON_AddStringToObject(part, "layer", layer);
    }
    if (use->read_with.tp == 0) {
        cJSON_AddNullToObject(o, "read_with");
        return o;
    }
    with = cJSON_AddObjectToObject(o, "read_with");
    cJSON_AddNumberToObject(with, "tp", use->read_with.tp);
    cJSON_AddNumberToObject(with, "ep", use->read_with.ep);
    cJSON_AddNumberToObject(with, "fused_shared", use->read_with.fused_shared);
    return o;
}

cJSON *mf_triton_coverage_json(const struct mf_triton_query *q, const struct mf_triton_coverage *c)
{
    cJSON *o = cJSON_CreateObject(), *list;
    char name[MF_TRITON_NAME_MAX];

    mf_triton_key_print(q->framework, &c->key, name);
    cJSON_AddStringToObject(o, "model", q->model->name);
    cJSON_AddStringToObject(o, "framework", mf_framework_name(q->framework));
    cJSON_AddNumberToObject(o, "tp", q->split.tp);
    cJSON_AddNumberToObject(o, "ep", q->split.ep);
    cJSON_AddNumberToObject(o, "fused_shared", q->split.fused_shared);
    cJSON_AddStringToObject(o, "name", name);
    cJSON_AddBoolToObject(o, "found", c->up != NULL);
    list = cJSON_AddArrayToObject(o, "spans");
    for (size_t i = 0; i < c->n_spans; i++) {
        cJSON *span = cJSON_CreateObject();

        cJSON_AddItemToArray(list, span);
        (void)mf_json_add_i64(span, "first", c->spans[i].first);
        (void)mf_json_add_i64(span, "last", c->spans[i].last);
        (void)mf_json_add_i64(span, "entry", c->spans[i].entry->token);
    }
    list = cJSON_AddArrayToObject(o, "files");
    for (size_t i = 0; i < c->n_uses; i++)
        cJSON_AddItemToArray(list, json_of_use(c, &c->uses[i]));
    return o;
}
