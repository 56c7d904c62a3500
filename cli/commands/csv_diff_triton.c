/* moefarm csv diff for two configuration files of vLLM or SGLang. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/commands/csv.h"
#include "cli/support/api.h"
#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/table/table_diff.h"

struct triton_diff {
    const struct mf_triton_file *before, *after;
    size_t n[MF_DIFFERENCE_N_];
    bool summary;
    cJSON *items; /* NULL: print each item at once as text */
};

#define VALUE_MAX 24
static const char *value_of(const struct mf_triton_config *c, enum mf_triton field, char buf[VALUE_MAX])
{
    if (!mf_triton_has(c, field))
        return "(none)";
    mf_format(buf, VALUE_MAX, "%" PRId32, c->value[field]);
    return buf;
}

/* Calls `each` for each field that differs. */
static void each_field(const struct mf_triton_config *before, const struct mf_triton_config *after,
                       void (*each)(void *data, const char *field, const char *before, const char *after),
                       void *data)
{
    for (enum mf_triton i = 0; i < MF_TRITON_N_; i++) {
        char x[VALUE_MAX], y[VALUE_MAX];
        const char *was = value_of(before, i, x), *is = value_of(after, i, y);

        if (strcmp(was, is) != 0)
            each(data, mf_triton_name(i), was, is);
    }
}

static void print_field(void *data, const char *field, const char *before, const char *after)
{
    size_t *n = data;

    printf("%s %s %s -> %s", (*n)++ > 0 ? "," : ":", field, before, after);
}

static void add_field(void *data, const char *field, const char *before, const char *after)
{
    cJSON *o = cJSON_CreateObject();

    cJSON_AddStringToObject(o, "column", field);
    cJSON_AddStringToObject(o, "old", before);
    cJSON_AddStringToObject(o, "new", after);
    cJSON_AddItemToArray(data, o);
}

static void add_line(cJSON *o, const char *name, const struct mf_triton_entry *e)
{
    (void)(e ? mf_json_add_i64(o, name, e->line) : cJSON_AddNullToObject(o, name));
}

static cJSON *json_of(enum mf_difference what, const struct mf_triton_entry *before,
                      const struct mf_triton_entry *after)
{
    cJSON *o = cJSON_CreateObject();

    cJSON_AddStringToObject(o, "what", mf_difference_name(what));
    (void)mf_json_add_i64(o, "token", (before ? before : after)->token);
    add_line(o, "old_line", before);
    add_line(o, "new_line", after);
    if (before && after)
        each_field(&before->config, &after->config, add_field, cJSON_AddArrayToObject(o, "cells"));
    return o;
}

static void report(struct triton_diff *d, const struct mf_triton_entry *before,
                   const struct mf_triton_entry *after)
{
    enum mf_difference what = !before  ? MF_DIFFERENCE_ADDED
                              : !after ? MF_DIFFERENCE_REMOVED
                              : mf_triton_config_equal(&before->config, &after->config)
                                  ? MF_DIFFERENCE_SAME
                                  : MF_DIFFERENCE_CHANGED;
    size_t n = 0;

    d->n[what]++;
    if (what == MF_DIFFERENCE_SAME || d->summary)
        return;
    if (d->items) {
        cJSON_AddItemToArray(d->items, json_of(what, before, after));
        return;
    }
    printf("%-9s  %" PRId64 " tokens", mf_difference_name(what), (before ? before : after)->token);
    if (before && after)
        each_field(&before->config, &after->config, print_field, &n);
    printf("\n");
}

static void compare(struct triton_diff *d)
{
    for (size_t i = 0; i < d->before->n_entries; i++)
        report(d, &d->before->entries[i], mf_triton_file_find(d->after, d->before->entries[i].token));
    for (size_t i = 0; i < d->after->n_entries; i++) {
        if (!mf_triton_file_find(d->before, d->after->entries[i].token))
            report(d, NULL, &d->after->entries[i]);
    }
}

/* Prints the parts in which the names differ, because a framework looks up files by name. */
static void print_names(const struct triton_diff *d)
{
    unsigned differs = mf_triton_key_differences(&d->before->key, &d->after->key);

    if (!d->before->has_key || !d->after->has_key || differs == 0)
        return;
    printf("other layer");
    for (enum mf_triton_part i = 0, n = 0; i < MF_TRITON_PART_N_; i++) {
        char was[MF_TRITON_DEVICE_MAX], is[MF_TRITON_DEVICE_MAX];

        if (!(differs & 1u << i))
            continue;
        mf_triton_key_part(&d->before->key, i, was);
        mf_triton_key_part(&d->after->key, i, is);
        printf("%s %s %s -> %s", n++ > 0 ? "," : ":", mf_triton_part_name(i), was, is);
    }
    printf("\n");
}

static int print_json(const struct triton_diff *d, size_t n_unread)
{
    _cleanup_(cJSON_Deletep) cJSON *all = cJSON_CreateObject();

    for (enum mf_difference what = 0; what < MF_DIFFERENCE_N_; what++)
        (void)mf_json_add_i64(all, mf_difference_name(what), (int64_t)d->n[what]);
    (void)mf_json_add_i64(all, "unread", (int64_t)n_unread);
    if (!d->summary)
        (void)cJSON_AddItemReferenceToObject(all, "items", d->items);
    return mf_api_print(all);
}

static void print_sum(const struct triton_diff *d, size_t n_unread)
{
    for (enum mf_difference what = 0; what < MF_DIFFERENCE_N_; what++)
        printf("%s%zu %s", what > 0 ? ", " : "", d->n[what], mf_difference_name(what));
    printf("\n");
    if (n_unread > 0)
        printf("%zu error%s in the files; moefarm csv check prints them\n", n_unread,
               n_unread == 1 ? "" : "s");
}

int mf_csv_diff_triton(const struct mf_cli *cli, const struct mf_csv_files *files, bool summary)
{
    _cleanup_(cJSON_Deletep) cJSON *items = cli->json ? cJSON_CreateArray() : NULL;
    struct triton_diff d = {files->triton[0], files->triton[1], .summary = summary, .items = items};
    size_t n_unread = files->tables[0]->n_errors + files->tables[1]->n_errors;

    if (!cli->json)
        print_names(&d);
    compare(&d);
    if (!cli->json)
        print_sum(&d, n_unread);
    else if (print_json(&d, n_unread) != 0)
        return MF_EXIT_USAGE;
    /* Entries that could not be read may differ, so the files cannot count as equal. */
    if (n_unread > 0)
        return MF_EXIT_USAGE;
    return d.n[MF_DIFFERENCE_CHANGED] + d.n[MF_DIFFERENCE_ADDED] + d.n[MF_DIFFERENCE_REMOVED] > 0
               ? MF_EXIT_FAILED
               : MF_EXIT_OK;
}
