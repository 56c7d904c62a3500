/* moefarm csv check: checks tables and prints one line per finding, in the format of compilers. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/commands/csv.h"
#include "cli/support/aiter_dir.h"
#include "cli/support/aiter_env.h"
#include "cli/support/api.h"
#include "cli/support/file.h"
#include "cli/support/text_out.h"
#include "cli/tables/table_names.h"
#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/table/table_check.h"
#include "common/table/table_file.h"
#include "common/table/table_fix.h"

#define FILES_MAX    4096
#define TEXT_MAX     (1 << 20)
#define MANIFEST_MAX (256u << 20)

#define N_FIXED_OPTIONS 8 /* options before those of aiter_env.h */

struct options {
    const char *only, *silence, *manifest, *format;
    double err_ratio;
    bool summary, fix;
    int64_t lock_ms;
};

/* The repairs that --fix made, in the order of the files. */
struct fixes {
    const char *file; /* the file being repaired */
    cJSON *json;      /* NULL: print each repair at once as text */
    size_t n;
    bool quiet;
};

/* The findings with selected codes. */
struct findings {
    const struct mf_csv_files *files;
    bool selected[MF_PROBLEM_N_];
    size_t n[MF_PROBLEM_N_][2]; /* number of findings by code and severity */
    size_t n_all[2];
    size_t n_rows, n_unlisted;
};

static bool is_reported(const struct findings *f, const struct mf_table *t, enum mf_problem_code code)
{
    return f->selected[code] && mf_check_applies(t, code);
}

static const char *severity_name(enum mf_severity severity)
{
    return severity == MF_ERROR ? "error" : "warning";
}

static int refuse_code(const char *option, const char *name)
{
    _cleanup_(mf_buf_release) struct mf_buf list;

    mf_buf_init(&list, TEXT_MAX);
    for (enum mf_problem_code code = 0; code < MF_PROBLEM_N_; code++)
        (void)mf_buf_addf(&list, "%s%s", code > 0 ? ", " : "", mf_problem_code_name(code));
    return mf_cli_fail(MF_EXIT_USAGE, "csv check: --%s: unknown code '%s'; the codes are %s", option, name,
                       mf_buf_error(&list) == 0 ? list.data : "in docs/guide.md");
}

/* Sets selected[] to value for the codes in a comma-separated list. */
static int mark_codes(const char *option, const char *list, bool value, bool selected[MF_PROBLEM_N_])
{
    for (size_t len; *list; list += len + (list[len] == ',')) {
        char name[32];
        enum mf_problem_code code;

        len = strcspn(list, ",");
        if (len == 0)
            continue;
        mf_format(name, sizeof(name), "%.*s", (int)MF_MIN(len, sizeof(name)), list);
        if (mf_problem_code_parse(name, &code) < 0)
            return refuse_code(option, name);
        selected[code] = value;
    }
    return 0;
}

static int choose_codes(const struct options *o, struct findings *f)
{
    int code = 0;

    for (size_t i = 0; i < MF_PROBLEM_N_; i++)
        f->selected[i] = !o->only;
    if (o->only)
        code = mark_codes("only", o->only, true, f->selected);
    if (code == 0 && o->silence)
        code = mark_codes("silence", o->silence, false, f->selected);
    return code;
}

static void count(struct findings *f)
{
    for (size_t i = 0; i < f->files->n; i++) {
        const struct mf_table *t = f->files->tables[i];
        size_t n_kept[MF_PROBLEM_N_] = {0};

        f->n_rows += f->files->triton[i] ? f->files->triton[i]->n_entries : t->n_rows + t->n_strays;
        for (size_t k = 0; k < t->n_problems; k++)
            n_kept[t->problems[k].code]++;
        for (enum mf_problem_code c = 0; c < MF_PROBLEM_N_; c++) {
            if (!is_reported(f, t, c))
                continue;
            for (enum mf_severity s = 0; s < 2; s++) {
                f->n[c][mf_check_severity(c, s)] += t->n_of[c][s];
                f->n_all[mf_check_severity(c, s)] += t->n_of[c][s];
                f->n_unlisted += t->n_of[c][s];
            }
            f->n_unlisted -= n_kept[c];
        }
    }
}

/* ---- the manifest of a release ---- */

/* Marks the rows with this key as unstable. The reason points into the manifest. */
static void mark_unstable(const struct mf_csv_files *files, const char *key, const char *reason)
{
    for (size_t i = 0; i < files->n; i++) {
        struct mf_table *t = files->tables[i];

        for (size_t k = 0; k < t->n_rows; k++) {
            char own[MF_TABLE_KEY_MAX];

            mf_table_key(&t->rows[k], own);
            if (strcmp(own, key) == 0)
                t->rows[k].own[MF_OWN_UNSTABLE] = reason;
        }
    }
}

/* Marks rows that the manifest of their release calls unstable. AITER's format has no column for it. The
 * rows point into *ret, which must outlive the check. */
static int apply_manifest(const char *path, const struct mf_csv_files *files, cJSON **ret)
{
    _cleanup_(mf_buf_release) struct mf_buf text;
    const cJSON *row;
    int code;

    mf_buf_init(&text, MANIFEST_MAX);
    code = mf_file_read(path, &text);
    if (code != 0)
        return code;
    *ret = mf_json_parse(text.data, text.len, MANIFEST_MAX);
    if (!mf_json_array(*ret, "rows"))
        return mf_cli_fail(MF_EXIT_USAGE, "csv check: --manifest %s: expected the manifest.json of a release",
                           path);
    cJSON_ArrayForEach (row, mf_json_array(*ret, "rows")) {
        const char *reason = mf_api_text(row, "unstable", "");

        if (*reason)
            mark_unstable(files, mf_api_text(row, "key", ""), reason);
    }
    return 0;
}

/* ---- repairs ---- */

static void report_fix(void *data, int64_t line, enum mf_problem_code code, const char *what)
{
    struct fixes *f = data;
    cJSON *o;

    if (f->quiet)
        return;
    if (!f->json) {
        printf("%s:%" PRId64 ": fixed: %s: %s\n", f->file, line, mf_problem_code_name(code), what);
        return;
    }
    o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "file", f->file);
    (void)mf_json_add_i64(o, "line", line);
    cJSON_AddStringToObject(o, "code", mf_problem_code_name(code));
    cJSON_AddStringToObject(o, "what", what);
    cJSON_AddItemToArray(f->json, o);
}

static int fix_table(struct mf_table *t, void *data, char why[MF_REASON_MAX])
{
    struct fixes *f = data;
    size_t n = 0;
    int r = mf_table_fix(t, report_fix, f, &n);

    f->n += n;
    if (r < 0)
        mf_format(why, MF_REASON_MAX, "%s", strerrordesc_np(-r));
    return r < 0 ? r : n == 0;
}

/* Repairs the files. Called before the check, so that the check reports only the remaining findings. */
static int fix_files(const struct options *o, char *const *paths, size_t n, struct fixes *f)
{
    for (size_t i = 0; i < n; i++) {
        char why[MF_REASON_MAX] = "";
        size_t n_before = f->n;
        int r;

        if (access(paths[i], R_OK) < 0)
            /* skip a missing file, because locking it would create a lock file; the check reports it */
            continue;
        if (mf_table_file_check_path(paths[i], why) < 0)
            return mf_cli_fail(MF_EXIT_USAGE, "csv check: --fix: %s", why);
        f->file = paths[i];
        r = mf_table_file_update(paths[i], (int)o->lock_ms, fix_table, f, why);
        /* Ignore a file that is not a table, because the check reports it. */
        if (r < 0 && (r != -EBADMSG || f->n > n_before))
            return mf_cli_fail(MF_EXIT_FAILED, "csv check: %s: %s; the file is unchanged", paths[i], why);
    }
    return 0;
}

/* ---- text output ---- */

static void print_findings(const struct findings *f)
{
    for (size_t i = 0; i < f->files->n; i++) {
        const struct mf_table *t = f->files->tables[i];

        for (size_t k = 0; k < t->n_problems; k++) {
            const struct mf_problem *p = &t->problems[k];

            if (is_reported(f, t, p->code))
                printf("%s:%" PRId64 ": %s: %s: %s\n", t->name, p->line,
                       severity_name(mf_check_severity(p->code, p->severity)), mf_problem_code_name(p->code),
                       p->reason);
        }
    }
}

static const char *plural(size_t n)
{
    return n == 1 ? "" : "s";
}

static void print_counts(const struct findings *f)
{
    _cleanup_(mf_columns_release) struct mf_columns c;
    _cleanup_(mf_buf_release) struct mf_buf out;

    mf_columns_init(&c, 4);
    mf_buf_init(&out, TEXT_MAX);
    for (size_t i = 0; i < 4; i++)
        mf_columns_add(&c, ((const char *const[]){"found", "code", "severity", "meaning"})[i]);
    for (int s = MF_ERROR; s >= MF_WARNING; s--) {
        for (enum mf_problem_code code = 0; code < MF_PROBLEM_N_; code++) {
            if (f->n[code][s] == 0)
                continue;
            mf_columns_addf(&c, "%zu", f->n[code][s]);
            mf_columns_add(&c, mf_problem_code_name(code));
            mf_columns_add(&c, severity_name((enum mf_severity)s));
            mf_columns_add(&c, mf_check_meaning(code));
        }
    }
    mf_columns_print(&c, &out);
    (void)fwrite(out.data, 1, out.len, stdout);
}

static void print_sum(const struct findings *f)
{
    size_t n_errors = f->n_all[MF_ERROR], n_warnings = f->n_all[MF_WARNING];

    if (n_errors + n_warnings > 0)
        print_counts(f);
    printf("%zu file%s, %zu row%s: ", f->files->n, plural(f->files->n), f->n_rows, plural(f->n_rows));
    if (n_errors + n_warnings == 0)
        printf("no errors, no warnings\n");
    else
        printf("%zu error%s, %zu warning%s\n", n_errors, plural(n_errors), n_warnings, plural(n_warnings));
    if (f->n_unlisted > 0)
        printf("%zu of them are not listed: each file lists at most %d per code\n", f->n_unlisted,
               MF_TABLE_PROBLEMS_MAX);
}

/* ---- JSON output ---- */

static void add_findings(const struct findings *f, cJSON *list)
{
    for (size_t i = 0; i < f->files->n; i++) {
        const struct mf_table *t = f->files->tables[i];

        for (size_t k = 0; k < t->n_problems; k++) {
            const struct mf_problem *p = &t->problems[k];
            cJSON *o;

            if (!is_reported(f, t, p->code))
                continue;
            o = cJSON_CreateObject();
            cJSON_AddStringToObject(o, "file", t->name);
            (void)mf_json_add_i64(o, "line", p->line);
            cJSON_AddStringToObject(o, "severity", severity_name(mf_check_severity(p->code, p->severity)));
            cJSON_AddStringToObject(o, "code", mf_problem_code_name(p->code));
            cJSON_AddStringToObject(o, "column", p->column);
            cJSON_AddStringToObject(o, "reason", p->reason);
            cJSON_AddItemToArray(list, o);
        }
    }
}

static int print_json(const struct findings *f, const struct fixes *fixes, bool summary)
{
    _cleanup_(cJSON_Deletep) cJSON *all = cJSON_CreateObject();
    cJSON *counts;

    (void)mf_json_add_i64(all, "files", (int64_t)f->files->n);
    (void)mf_json_add_i64(all, "rows", (int64_t)f->n_rows);
    (void)mf_json_add_i64(all, "errors", (int64_t)f->n_all[MF_ERROR]);
    (void)mf_json_add_i64(all, "warnings", (int64_t)f->n_all[MF_WARNING]);
    (void)mf_json_add_i64(all, "unlisted", (int64_t)f->n_unlisted);
    counts = cJSON_AddObjectToObject(all, "counts");
    for (enum mf_problem_code code = 0; code < MF_PROBLEM_N_; code++) {
        size_t n = f->n[code][MF_ERROR] + f->n[code][MF_WARNING];

        if (n > 0)
            (void)mf_json_add_i64(counts, mf_problem_code_name(code), (int64_t)n);
    }
    (void)mf_json_add_i64(all, "fixed", (int64_t)fixes->n);
    if (!summary) {
        (void)cJSON_AddItemReferenceToObject(all, "fixes", fixes->json);
        add_findings(f, cJSON_AddArrayToObject(all, "findings"));
    }
    return mf_api_print(all);
}

/* ---- the command ---- */

static int report(const struct mf_cli *cli, const struct options *o, const struct fixes *fixes,
                  struct findings *f)
{
    int code = 0;

    count(f);
    if (cli->json) {
        code = print_json(f, fixes, o->summary);
    } else {
        if (!o->summary)
            print_findings(f);
        if (o->fix)
            printf("%zu fixed\n", fixes->n);
        print_sum(f);
    }
    return code != 0 ? code : f->n_all[MF_ERROR] > 0 ? MF_EXIT_FAILED : MF_EXIT_OK;
}

int mf_cmd_csv_check(struct mf_cli *cli, const struct mf_command *self, int argc, char **argv)
{
    struct options o = {.err_ratio = MF_CHECK_ERR_RATIO, .lock_ms = MF_TABLE_LOCK_MS};
    _cleanup_(mf_aiter_dir_release) struct mf_aiter_dir aiter = {0};
    struct mf_aiter_env env = {0};
    struct mf_opt opts[] = {
        {.name = "only",
         .type = MF_OPT_TEXT,
         .value = &o.only,
         .argument = "CODES",
         .help = "codes to report, comma-separated (default: all)"},
        {.name = "silence",
         .type = MF_OPT_TEXT,
         .value = &o.silence,
         .argument = "CODES",
         .help = "codes to suppress, comma-separated"},
        {.name = "manifest",
         .type = MF_OPT_TEXT,
         .value = &o.manifest,
         .argument = "FILE",
         .help = "manifest.json of the release of these tables; reports rows that it calls unstable"},
        {.name = "err-ratio",
         .type = MF_OPT_DOUBLE,
         .value = &o.err_ratio,
         .argument = "X",
         .help = "maximum err1 and err2; AITER's test of its tables allows 0.2"},
        MF_AITER_DIR_OPTION(aiter),
        MF_CSV_FORMAT_OPTION(o.format),
        {.name = "summary",
         .type = MF_OPT_BOOL,
         .value = &o.summary,
         .help = "print only the number of findings per code"},
        {.name = "fix",
         .type = MF_OPT_BOOL,
         .value = &o.fix,
         .help =
             "before the check, repair findings that need no decision and lose no row; rewrites the files"},
        {.name = "lock-ms",
         .type = MF_OPT_INT,
         .value = &o.lock_ms,
         .argument = "MS",
         .help = "with --fix: maximum wait for another writer, in ms",
         .min = 1,
         .max = 3600000},
        [N_FIXED_OPTIONS + MF_AITER_ENV_N - 1] = {0},
    };
    _cleanup_(mf_csv_files_release) struct mf_csv_files files = {0};
    _cleanup_(cJSON_Deletep) cJSON *fixed = cJSON_CreateArray();
    _cleanup_(cJSON_Deletep) cJSON *manifest = NULL;
    struct fixes fixes = {0};
    struct findings f = {.files = &files};
    int rest, r, code;

    mf_aiter_env_options(&env, opts + N_FIXED_OPTIONS);
    r = mf_cli_parse(cli, self, opts, MF_ARRAY_LEN(opts), 1, FILES_MAX, argc, argv, &rest);
    if (r != 0)
        return r < 0 ? MF_EXIT_USAGE : MF_EXIT_OK;
    fixes.json = cli->json ? fixed : NULL;
    fixes.quiet = o.summary;
    code = mf_aiter_dir_read("csv check", &aiter);
    if (code == 0)
        code = mf_aiter_env_read("csv check", &env);
    if (code == 0)
        code = choose_codes(&o, &f);
    if (code == 0 && o.fix)
        code = fix_files(&o, argv + rest, (size_t)(argc - rest), &fixes);
    if (code == 0)
        code = mf_csv_files_read(argv + rest, (size_t)(argc - rest), o.format, &files);
    if (code == 0 && o.manifest)
        code = apply_manifest(o.manifest, &files, &manifest);
    if (code != 0)
        return code;
    r = mf_tables_check(files.tables, files.n,
                        &(struct mf_check_options){.err_ratio = o.err_ratio,
                                                   .env = &env.env,
                                                   .name = mf_table_name_wrong,
                                                   .name_data = mf_aiter_dir_lists(&aiter)});
    if (r == 0)
        r = mf_triton_files_check(files.triton, files.tables, files.n);
    if (r < 0)
        return mf_cli_fail(MF_EXIT_FAILED, "csv check: %s", strerrordesc_np(-r));
    return report(cli, &o, &fixes, &f);
}
