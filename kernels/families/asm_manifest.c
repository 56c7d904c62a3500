#include "kernels/families/asm_manifest.h"

#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/array.h"
#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "common/table/csv.h"

#define KERNELS_MAX  16384
#define PROBLEMS_MAX 256
#define FILES_MAX    1024
#define TEXT_MAX     (4u << 20)
#define PATH_CAP     1024

/* clang-format off */
static const struct column {
    const char *name;
    size_t offset;
    int32_t least, most;
    bool one, stage1; /* kinds of manifest that have the column */
} columns[] = {
    {"atm",          offsetof(struct mf_asm_kernel, atm),           0, 16,    true,  false},
    {"vskip",        offsetof(struct mf_asm_kernel, vskip),         0, 1,     true,  false},
    {"smf",          offsetof(struct mf_asm_kernel, smf),           0, 16,    true,  false},
    {"tg_num_perCU", offsetof(struct mf_asm_kernel, tg_num_per_cu), 0, 64,    true,  false},
    {"ps",           offsetof(struct mf_asm_kernel, ps),            0, 1,     true,  false},
    {"subGU_m",      offsetof(struct mf_asm_kernel, sub_m),         1, 65536, true,  false},
    {"subGU_n",      offsetof(struct mf_asm_kernel, sub_n),         1, 65536, true,  false},
    {"flat",         offsetof(struct mf_asm_kernel, flat),          0, 2,     true,  false},
    {"tile_m",       offsetof(struct mf_asm_kernel, sub_m),         1, 65536, false, true},
    {"tile_n",       offsetof(struct mf_asm_kernel, sub_n),         1, 65536, false, true},
};
/* clang-format on */

#define N_COLUMNS MF_ARRAY_LEN(columns)

void mf_asm_manifest_release(struct mf_asm_manifest *m)
{
    free(m->kernels);
    free(m->problems);
    *m = (struct mf_asm_manifest)MF_ASM_MANIFEST_INIT;
}

__attribute__((format(printf, 4, 5))) static int add_problem(struct mf_asm_manifest *m, const char *file,
                                                             int64_t line, const char *format, ...)
{
    if (m->n_problems == PROBLEMS_MAX)
        return 0;
    int r = mf_array_grow(&m->problems, m->n_problems, &m->problems_cap, sizeof(*m->problems));
    if (r < 0)
        return r;
    struct mf_asm_problem *p = &m->problems[m->n_problems++];
    va_list args;
    p->line = line;
    mf_format(p->file, sizeof(p->file), "%s", file);
    va_start(args, format);
    (void)vsnprintf(p->reason, sizeof(p->reason), format, args);
    va_end(args);
    return 0;
}

/* Overwrites comments with spaces, which preserves line numbers. Returns the line of an unterminated
 * comment, or 0. */
static int64_t blank_comments(char *text, size_t len)
{
    int64_t line = 1;
    for (size_t i = 0; i < len; i++) {
        char c = text[i], next = i + 1 < len ? text[i + 1] : '\0';
        line += c == '\n';
        if (c == '/' && next == '*') {
            int64_t from = line;
            size_t end = i + 2;
            while (end + 1 < len && !(text[end] == '*' && text[end + 1] == '/'))
                end++;
            bool closed = end + 1 < len;
            end = closed ? end + 2 : len;
            for (; i < end; i++) {
                line += text[i] == '\n';
                if (text[i] != '\n')
                    text[i] = ' ';
            }
            i--;
            if (!closed)
                return from;
        } else if (c == '#' || c == ';' || (c == '/' && next == '/')) {
            for (; i < len && text[i] != '\n'; i++)
                text[i] = ' ';
            line += i < len;
        }
    }
    return 0;
}

struct reader {
    struct mf_asm_manifest *m;
    const char *arch, *file;
    struct mf_csv csv;
    enum mf_asm_kind kind;
    int name_at, co_at, at[N_COLUMNS];
    size_t n_cells;
};

static bool is_of_kind(const struct column *c, enum mf_asm_kind kind)
{
    return kind == MF_ASM_ONE ? c->one : c->stage1;
}

static int read_header(struct reader *r)
{
    char *const *cells = r->csv.cells;
    size_t n = r->csv.n_cells;
    r->n_cells = n;
    r->name_at = mf_csv_column(cells, n, "knl_name");
    r->co_at = mf_csv_column(cells, n, "co_name");
    if (r->name_at < 0 || r->co_at < 0) {
        (void)add_problem(r->m, r->file, r->csv.line, "the header has no column %s: not a kernel manifest",
                          r->name_at < 0 ? "knl_name" : "co_name");
        return -EBADMSG;
    }
    r->kind = mf_csv_column(cells, n, "tile_m") >= 0 ? MF_ASM_STAGE1 : MF_ASM_ONE;
    for (size_t i = 0; i < N_COLUMNS; i++)
        r->at[i] = is_of_kind(&columns[i], r->kind) ? mf_csv_column(cells, n, columns[i].name) : -1;
    return 0;
}

/* True for a plain file name: no path separator, no leading dot. */
static bool is_file_name(const char *text)
{
    return mf_is_name(text, MF_ASM_FILE_MAX - 1) && text[0] != '.';
}

static int read_numbers(struct reader *r, struct mf_asm_kernel *k, const char **ret_column)
{
    for (size_t i = 0; i < N_COLUMNS; i++) {
        const struct column *c = &columns[i];
        if (!is_of_kind(c, r->kind))
            continue;
        const char *text = r->at[i] >= 0 ? r->csv.cells[r->at[i]] : "";
        int64_t value = 0;
        *ret_column = c->name;
        if (*text && mf_parse_i64(text, 0, INT32_MAX, &value) < 0)
            return -EINVAL;
        if (value < c->least || value > c->most)
            return -ERANGE;
        *(int32_t *)((char *)k + c->offset) = (int32_t)value;
    }
    return 0;
}

/* Reads one row of a manifest. An invalid row is recorded as a problem, and the function also returns 0. */
static int read_row(struct reader *r)
{
    struct mf_asm_manifest *m = r->m;
    struct mf_asm_kernel k = {.kind = r->kind};
    const char *column = "";
    if (r->csv.n_cells != r->n_cells)
        return add_problem(m, r->file, r->csv.line, "the row has %zu cells, the header has %zu",
                           r->csv.n_cells, r->n_cells);
    const char *name = r->csv.cells[r->name_at], *co = r->csv.cells[r->co_at];
    if (!mf_is_name(name, sizeof(k.name) - 1))
        return add_problem(m, r->file, r->csv.line,
                           "knl_name '%.80s': expected 1 to %zu letters, digits, '_', '.' or '-'", name,
                           sizeof(k.name) - 1);
    if (!is_file_name(co))
        return add_problem(m, r->file, r->csv.line,
                           "co_name '%.80s': expected the name of a file in the manifest's folder", co);
    if (read_numbers(r, &k, &column) < 0)
        return add_problem(m, r->file, r->csv.line, "%s: column %s is missing, not a number or out of range",
                           name, column);
    (void)mf_copy(k.arch, sizeof(k.arch), r->arch);
    (void)mf_copy(k.name, sizeof(k.name), name);
    (void)mf_copy(k.co_name, sizeof(k.co_name), co);
    (void)mf_copy(k.file, sizeof(k.file), r->file);
    const struct mf_asm_kernel *known = mf_asm_manifest_find(m, r->arch, name);
    if (known)
        return add_problem(m, r->file, r->csv.line, "kernel %s is already listed in %s", name, known->file);
    if (m->n == KERNELS_MAX)
        return -EFBIG;
    int x = mf_array_grow(&m->kernels, m->n, &m->cap, sizeof(*m->kernels));
    if (x == 0)
        m->kernels[m->n++] = k;
    return x;
}

static int read_text(struct reader *r, const char *text, size_t len)
{
    const struct mf_csv_limits limits = {.row_bytes = 4096, .columns = 64, .rows = KERNELS_MAX};
    bool headed = false;
    int x, result = 0;
    mf_csv_init(&r->csv, text, len, &limits);
    while (result == 0 && (x = mf_csv_next(&r->csv)) != 0) {
        if (x < 0)
            result = x == -ENOMEM ? x : add_problem(r->m, r->file, r->csv.line, "%s", r->csv.why);
        else if (headed)
            result = read_row(r);
        else
            result = read_header(r);
        headed = headed || x > 0;
        if (x == -EFBIG)
            break;
    }
    if (!headed && result == 0)
        result = add_problem(r->m, r->file, 1, "the file is empty");
    mf_csv_release(&r->csv);
    return result == -EBADMSG ? 0 : result;
}

int mf_asm_manifest_add(struct mf_asm_manifest *m, const char *arch, const char *file, const char *text,
                        size_t len)
{
    struct reader r = {.m = m, .arch = arch, .file = file};
    _cleanup_(mf_freep) char *plain = malloc(len + 1);
    if (!plain)
        return -ENOMEM;
    if (len > 0)
        memcpy(plain, text, len);
    int64_t open_at = blank_comments(plain, len);
    if (open_at > 0) {
        int x = add_problem(m, file, open_at, "unterminated comment");
        if (x < 0)
            return x;
    }
    return read_text(&r, plain, len);
}

static int add_file(struct mf_asm_manifest *m, const char *arch, const char *path, const char *file)
{
    _cleanup_(mf_freep) char *text = malloc(TEXT_MAX);
    _cleanup_(mf_fclosep) FILE *f = fopen(path, "re");
    if (!text)
        return -ENOMEM;
    if (!f)
        return add_problem(m, file, 0, "%s", strerror(errno));
    size_t len = fread(text, 1, TEXT_MAX, f);
    if (ferror(f) || len == TEXT_MAX)
        return add_problem(m, file, 0, "%s", ferror(f) ? "read error" : "the file is larger than 4 MiB");
    return mf_asm_manifest_add(m, arch, file, text, len);
}

static int is_manifest(const struct dirent *e)
{
    size_t n = strlen(e->d_name);
    return n > 4 && strcmp(e->d_name + n - 4, ".csv") == 0;
}

static int is_visible(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

/* Visits every entry of folder/arch/below that passes the filter, sorted by name. */
static int each_entry(struct mf_asm_manifest *m, const char *folder, const char *arch, const char *below,
                      int (*filter)(const struct dirent *),
                      int (*visit)(struct mf_asm_manifest *m, const char *folder, const char *arch,
                                   const char *below))
{
    char path[PATH_CAP], inner[MF_ASM_FILE_MAX];
    struct dirent **entries = NULL;
    int r = 0;
    mf_format(path, sizeof(path), "%s/%s/%s", folder, arch, below);
    int n = scandir(path, &entries, filter, alphasort);
    for (int i = 0; i < n; i++) {
        mf_format(inner, sizeof(inner), "%s/%s", below, entries[i]->d_name);
        if (r == 0 && i < FILES_MAX)
            r = visit(m, folder, arch, inner);
        free(entries[i]);
    }
    free(entries);
    return r;
}

static int visit_file(struct mf_asm_manifest *m, const char *folder, const char *arch, const char *file)
{
    char path[PATH_CAP];
    mf_format(path, sizeof(path), "%s/%s/%s", folder, arch, file);
    return add_file(m, arch, path, file);
}

static int visit_folder(struct mf_asm_manifest *m, const char *folder, const char *arch, const char *below)
{
    return each_entry(m, folder, arch, below, is_manifest, visit_file);
}

int mf_asm_manifest_load(struct mf_asm_manifest *m, const char *folder, const char *arch)
{
    int r = each_entry(m, folder, arch, "fmoe", is_visible, visit_folder);
    return r < 0 ? r : visit_folder(m, folder, arch, "fmoe_2stages");
}

const struct mf_asm_kernel *mf_asm_manifest_find(const struct mf_asm_manifest *m, const char *arch,
                                                 const char *name)
{
    for (size_t i = 0; i < m->n; i++) {
        if (strcmp(m->kernels[i].name, name) == 0 && strcmp(m->kernels[i].arch, arch) == 0)
            return &m->kernels[i];
    }
    return NULL;
}
