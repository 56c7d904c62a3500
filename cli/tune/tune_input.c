#include "cli/tune/tune_input.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/support/api.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/table/table_file.h"

void mf_tune_input_release(struct mf_tune_input *in)
{
    mf_table_free(in->untuned);
    for (size_t i = 0; i < in->n_tables; i++)
        mf_table_free(in->tuned[i]);
}

/* ---- files ---- */

int mf_tune_input_name(struct mf_tune_input *in, const char *list)
{
    while (*list) {
        size_t len = strcspn(list, ":");
        if (len >= sizeof(in->paths[0]) || in->n_tables == MF_TUNE_TABLES_MAX)
            return mf_cli_fail(MF_EXIT_USAGE,
                               "-o: more than %d colon-separated files or a path that is too long",
                               MF_TUNE_TABLES_MAX);
        if (len > 0)
            mf_format(in->paths[in->n_tables++], sizeof(in->paths[0]), "%.*s", (int)len, list);
        list += len + (list[len] == ':');
    }
    return 0;
}

int mf_tune_input_tables(struct mf_tune_input *in)
{
    char why[MF_REASON_MAX];

    for (size_t i = 0; i < in->n_tables; i++) {
        int r = mf_table_file_read(in->paths[i], &in->tuned[i], why);
        if (r == -ENOENT) {
            printf("Not exist tuned file: %s%s\n", in->paths[i], i == 0 ? ", it will be created" : "");
            r = mf_table_new(in->paths[i], true, &in->tuned[i]);
        }
        if (r < 0)
            return mf_cli_fail(MF_EXIT_USAGE, "-o: %s", why);
    }
    return 0;
}

void mf_tune_print_unreadable(const char *path, const struct mf_table *t)
{
    for (size_t i = 0; i < t->n_problems; i++) {
        const struct mf_problem *p = &t->problems[i];
        if (p->severity == MF_ERROR)
            fprintf(stderr, "%s:%" PRId64 ": %s%s%s\n", path, p->line, p->column, *p->column ? ": " : "",
                    p->reason);
    }
}

static int check_columns(const char *path, const struct mf_table *t)
{
    int code = 0;

    for (size_t i = 0; i < t->n_problems; i++) {
        const struct mf_problem *p = &t->problems[i];
        if (p->code == MF_PROBLEM_MISSPELT_COLUMN)
            code = mf_cli_fail(MF_EXIT_USAGE, "-i: %s: %s", path, p->reason);
        else if (p->code == MF_PROBLEM_UNKNOWN_COLUMN)
            fprintf(stderr, "%s:%" PRId64 ": warning: %s\n", path, p->line, p->reason);
    }
    return code;
}

int mf_tune_input_untuned(struct mf_tune_input *in, const char *path)
{
    char why[MF_REASON_MAX];

    /* Read only keys and classes, because a tuned table may have rows without a result, and these rows must
     * be tuned too. */
    if (mf_table_file_read_part(path, MF_TABLE_KEYS, &in->untuned, why) < 0)
        return mf_cli_fail(MF_EXIT_USAGE, "-i: %s", why);
    mf_tune_print_unreadable(path, in->untuned);
    return check_columns(path, in->untuned);
}

/* ---- classes ---- */

static int add_class(struct mf_tune_input *in, const struct mf_device_class *class)
{
    for (size_t i = 0; i < in->n_classes; i++) {
        if (mf_device_class_equal(&in->classes[i], class))
            return 0;
    }
    if (in->n_classes == MF_TUNE_CLASSES_MAX)
        return mf_cli_fail(MF_EXIT_USAGE, "more than %d device classes; select some with --classes",
                           MF_TUNE_CLASSES_MAX);
    in->classes[in->n_classes++] = *class;
    return 0;
}

static int classes_named(struct mf_tune_input *in, const char *list)
{
    int code = 0;

    while (*list && code == 0) {
        size_t len = strcspn(list, ",");
        char text[MF_DEVICE_CLASS_TEXT_MAX];
        struct mf_device_class class;
        mf_format(text, sizeof(text), "%.*s", (int)len, list);
        if (mf_device_class_parse(text, &class) < 0)
            return mf_cli_fail(MF_EXIT_USAGE, "--classes '%s': expected a device class such as gfx942/304",
                               text);
        code = add_class(in, &class);
        list += len + (list[len] == ',');
    }
    return code;
}

static int classes_of_workers(struct mf_tune_input *in, struct mf_cli *cli)
{
    _cleanup_(cJSON_Deletep) cJSON *workers = NULL;
    const cJSON *w;
    int code = mf_api_list(cli, "/api/v1/workers", &workers);

    cJSON_ArrayForEach (w, workers) {
        struct mf_device_class class;
        const char *state = mf_api_text(w, "state", "");
        bool connected = strcmp(state, "idle") == 0 || strcmp(state, "busy") == 0;
        if (code == 0 && connected && mf_device_class_parse(mf_api_text(w, "class", ""), &class) == 0)
            code = add_class(in, &class);
    }
    if (code == 0 && in->n_classes == 0)
        return mf_cli_fail(MF_EXIT_FAILED,
                           "the farm has no connected worker; give the device classes with --classes");
    return code;
}

int mf_tune_input_classes(struct mf_tune_input *in, const struct mf_tune_options *o, struct mf_cli *cli)
{
    int code;

    if (*cli->url)
        return o->classes ? classes_named(in, o->classes) : classes_of_workers(in, cli);
    code = mf_tune_devices(o->devices, o->mp, in->devices, &in->n_devices);
    for (size_t i = 0; i < in->n_devices && code == 0; i++)
        code = add_class(in, &in->devices[i].class);
    return code;
}
