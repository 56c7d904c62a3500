#include "common/table/triton/triton_file.h"

#include "common/base/array.h"
#include "common/base/json.h"
#include "common/base/text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct mf_triton_file *mf_triton_file_free(struct mf_triton_file *f)
{
    if (f) {
        free(f->path);
        free(f->entries);
        free(f);
    }
    return NULL;
}

struct mf_triton_entry *mf_triton_file_find(const struct mf_triton_file *f, int64_t token)
{
    for (size_t i = 0; i < f->n_entries; i++)
        if (f->entries[i].token == token)
            return &f->entries[i];
    return NULL;
}

int mf_triton_file_add(struct mf_triton_file *f, const struct mf_triton_entry *entry)
{
    struct mf_triton_entry *known = mf_triton_file_find(f, entry->token);
    if (known) {
        *known = *entry;
        return 0;
    }
    int r = mf_array_grow(&f->entries, f->n_entries, &f->cap, sizeof(*f->entries));
    if (r == 0)
        f->entries[f->n_entries++] = *entry;
    return r;
}

const struct mf_triton_entry *mf_triton_file_nearest(const struct mf_triton_file *f, int64_t token)
{
    const struct mf_triton_entry *best = NULL;
    for (size_t i = 0; i < f->n_entries; i++) {
        const struct mf_triton_entry *e = &f->entries[i];
        if (!best || llabs(e->token - token) < llabs(best->token - token))
            best = e;
    }
    return best;
}

static void write_entry(const struct mf_triton_entry *e, struct mf_buf *out)
{
    _cleanup_(cJSON_Deletep) cJSON *json = mf_triton_config_json(&e->config);
    const cJSON *field;
    (void)mf_buf_addf(out, "    \"%" PRId64 "\": {", e->token);
    cJSON_ArrayForEach (field, json) {
        (void)mf_buf_addf(out, "%s\n        \"%s\": ", field == json->child ? "" : ",", field->string);
        if (cJSON_IsBool(field))
            (void)mf_buf_adds(out, cJSON_IsTrue(field) ? "true" : "false");
        else
            (void)mf_buf_addf(out, "%d", field->valueint);
    }
    (void)mf_buf_adds(out, "\n    }");
}

int mf_triton_file_write(enum mf_framework framework, const struct mf_triton_entry *entries, size_t n,
                         const char *version, struct mf_buf *out)
{
    bool with_version = framework == MF_FRAMEWORK_VLLM && *version;
    (void)mf_buf_adds(out, "{\n");
    if (with_version)
        (void)mf_buf_addf(out, "    \"" MF_TRITON_VERSION_KEY "\": \"%s\"%s\n", version, n > 0 ? "," : "");
    for (size_t i = 0; i < n; i++) {
        write_entry(&entries[i], out);
        (void)mf_buf_adds(out, i + 1 < n ? ",\n" : "\n");
    }
    (void)mf_buf_adds(out, "}\n");
    return mf_buf_error(out);
}
