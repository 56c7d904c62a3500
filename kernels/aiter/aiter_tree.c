/* Makes kernel lists from an AITER source tree: manifests of prebuilt kernels (hsa/GFX/fmoe…, CSV), instances
 * of composable kernel and of Opus (Python sources under csrc).
 *
 * The Python sources are not interpreted. A list of composable kernel starts with "…_kernels_list… = {" and
 * has one call with seven integers per line. A list of Opus is a tuple of calls with one keyword argument per
 * line. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "common/table/csv.h"
#include "kernels/aiter/aiter_lists.h"

#define FILE_MAX ((size_t)4 << 20) /* bytes of one file */

#define CK_FILE   "csrc/ck_gemm_moe_2stages_codegen/gemm_moe_ck2stages_common.py"
#define OPUS_FILE "csrc/opus_moe/opus_moe_common.py"

struct tree {
    char root[PATH_MAX];
    struct mf_buf *out;
    char *why;
};

static int misunderstood(const struct tree *t, const char *file, const char *what)
{
    mf_format(t->why, MF_REASON_MAX, "%s/%s: %s; this version of moefarm cannot read this version of AITER",
              t->root, file, what);
    return -EBADMSG;
}

/* Reads a file below the root. -ENOENT if it is missing; other errors have their reason in why. */
static int read_file(const struct tree *t, const char *file, struct mf_buf *ret)
{
    char path[PATH_MAX], chunk[16384];
    mf_format(path, sizeof(path), "%s/%s", t->root, file);
    _cleanup_(mf_closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : 0;
    mf_buf_init(ret, FILE_MAX);
    while (n >= 0 && (n = read(fd, chunk, sizeof(chunk))) > 0)
        if (mf_buf_add(ret, chunk, (size_t)n) < 0)
            break;
    int r = n < 0 ? -errno : mf_buf_error(ret);
    if (r < 0)
        mf_format(t->why, MF_REASON_MAX, "%s: %s", path,
                  r == -EFBIG ? "the file is longer than 4 MiB" : strerrordesc_np(-r));
    return r;
}

static void start_list(const struct tree *t, const char *name, const char *gfx)
{
    (void)mf_buf_addf(t->out, "list %s%s%s\n", name, gfx ? " " : "", gfx ? gfx : "");
}

/* ---- manifests ---- */

/* Columns of a manifest in the order of an entry's integers; both kinds of manifest have the first two. */
static const char *const sizes[][2] = {{"subGU_m", "tile_m"}, {"subGU_n", "tile_n"}, {"smf"}, {"flat"}};

/* True for the comments that AITER's code generator strips from manifests. */
static bool is_comment(const struct mf_csv *csv)
{
    const char *cell = csv->cells[0];
    return cell[0] == '#' || cell[0] == ';' || strncmp(cell, "//", 2) == 0 || strncmp(cell, "/*", 2) == 0;
}

struct manifest {
    int name, size[MF_ARRAY_LEN(sizes)]; /* column numbers; -1: the manifest lacks the column */
};

static void find_columns(const struct mf_csv *csv, struct manifest *m)
{
    m->name = mf_csv_column(csv->cells, csv->n_cells, "knl_name");
    for (size_t i = 0; i < MF_ARRAY_LEN(sizes); i++) {
        m->size[i] = -1;
        for (size_t k = 0; k < MF_ARRAY_LEN(sizes[i]) && sizes[i][k] && m->size[i] < 0; k++)
            m->size[i] = mf_csv_column(csv->cells, csv->n_cells, sizes[i][k]);
    }
}

static bool add_kernel(const struct tree *t, const struct mf_csv *csv, const struct manifest *m)
{
    if ((size_t)m->name >= csv->n_cells || !mf_is_name(csv->cells[m->name], MF_STEP_NAME_MAX - 1))
        return false;
    int64_t values[MF_ARRAY_LEN(sizes)] = {0};
    size_t n = 0;
    for (size_t i = 0; i < MF_ARRAY_LEN(sizes); i++) {
        bool given = m->size[i] >= 0 && (size_t)m->size[i] < csv->n_cells && *csv->cells[m->size[i]];
        if (given && mf_parse_i64(csv->cells[m->size[i]], 0, 65536, &values[i]) < 0)
            return false;
        if (values[i] != 0)
            n = i + 1;
    }
    (void)mf_buf_adds(t->out, csv->cells[m->name]);
    for (size_t i = 0; i < n; i++)
        (void)mf_buf_addf(t->out, " %d", (int)values[i]);
    (void)mf_buf_addc(t->out, '\n');
    return true;
}

static int read_rows(const struct tree *t, const char *file, struct mf_csv *csv)
{
    struct manifest m = {.name = -1};
    int r;
    while ((r = mf_csv_next(csv)) > 0) {
        if (is_comment(csv))
            continue;
        if (m.name < 0) {
            find_columns(csv, &m);
            if (m.name < 0 || m.size[0] < 0 || m.size[1] < 0)
                return misunderstood(t, file, "the manifest lacks knl_name or the tile sizes");
        } else if (!add_kernel(t, csv, &m)) {
            return misunderstood(t, file, "a kernel of the manifest has no valid name or size");
        }
    }
    return r < 0 ? misunderstood(t, file, csv->why) : 0;
}

static int read_manifest(const struct tree *t, const char *file, const char *list, const char *gfx)
{
    _cleanup_(mf_buf_release) struct mf_buf text;
    struct mf_csv csv;
    int r = read_file(t, file, &text);
    if (r < 0)
        return r;
    start_list(t, list, gfx);
    mf_csv_init(&csv, text.data, text.len, &MF_CSV_LIMITS_DEFAULT);
    r = read_rows(t, file, &csv);
    mf_csv_release(&csv);
    return r;
}

typedef int (*entry_fn)(const struct tree *t, const char *folder, const char *name);

/* Calls fn for each name in a folder that has the prefix and suffix, sorted by name. A missing folder has no
 * names. Returns the number of calls, or the first error. */
static int each_name(const struct tree *t, const char *folder, const char *prefix, const char *suffix,
                     entry_fn fn)
{
    char path[PATH_MAX];
    struct dirent **entries = NULL;
    int r = 0, n_calls = 0;
    mf_format(path, sizeof(path), "%s/%s", t->root, folder);
    int n = scandir(path, &entries, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        const char *name = entries[i]->d_name;
        size_t len = strlen(name), tail = strlen(suffix);
        if (r == 0 && strncmp(name, prefix, strlen(prefix)) == 0 && len >= tail &&
            strcmp(name + len - tail, suffix) == 0) {
            r = fn(t, folder, name);
            n_calls++;
        }
        free(entries[i]);
    }
    free(entries);
    return r < 0 ? r : n_calls;
}

/* folder is "hsa/GFX/fmoe/ACT" or "hsa/GFX/fmoe_2stages"; name is that of a manifest. */
static int add_manifest(const struct tree *t, const char *folder, const char *name)
{
    char file[PATH_MAX], list[256], gfx[32];
    const char *rest = folder + strlen("hsa/");
    size_t len = strcspn(rest, "/");
    mf_format(gfx, sizeof(gfx), "%.*s", (int)len, rest);
    mf_format(list, sizeof(list), "%s/%.*s", rest + len + 1, (int)(strlen(name) - strlen(".csv")), name);
    mf_format(file, sizeof(file), "%s/%s", folder, name);
    return read_manifest(t, file, list, gfx);
}

static int add_gfx(const struct tree *t, const char *folder, const char *gfx)
{
    static const char *const folders[] = {"fmoe/gelu", "fmoe/silu", "fmoe_2stages"};
    int r = 0;
    for (size_t i = 0; i < MF_ARRAY_LEN(folders) && r >= 0; i++) {
        char manifests[PATH_MAX];
        mf_format(manifests, sizeof(manifests), "%s/%s/%s", folder, gfx, folders[i]);
        r = each_name(t, manifests, "fmoe_", ".csv", add_manifest);
    }
    return r < 0 ? r : 0;
}

/* ---- instances of composable kernel ---- */

/* Returns the next line of a text and its length, without leading spaces; NULL at the end. */
static const char *take_line(const char **at, size_t *ret_len)
{
    const char *line = *at;
    if (!*line)
        return NULL;
    size_t len = strcspn(line, "\n");
    *at = line + len + (line[len] == '\n');
    size_t skipped = strspn(line, " \t");
    *ret_len = len > skipped ? len - skipped : 0;
    return line + MF_MIN(skipped, len);
}

/* Copies the name before '=' and spaces to ret if the line assigns a list of instances. */
static bool starts_ck_list(const char *line, size_t len, char ret[64])
{
    size_t name = strspn(line, "abcdefghijklmnopqrstuvwxyz0123456789_");
    mf_format(ret, 64, "%.*s", (int)MF_MIN(name, len), line);
    return name < len && strstr(ret, "_kernels_list") && line[name + strspn(line + name, " =")] == '{';
}

static int add_instance(const struct tree *t, const char *line)
{
    int v[7];
    const char *open = strchr(line, '(');
    if (!open || sscanf(open, "( %d , %d , %d , %d , %d , %d , %d", &v[0], &v[1], &v[2], &v[3], &v[4], &v[5],
                        &v[6]) != 7)
        return misunderstood(t, CK_FILE, "an instance has no seven integers");
    return mf_buf_addf(t->out, "%dx%dx%dx%d_%dx%d %d %d %d %d\n", v[0], v[1], v[2], v[3], v[4], v[5], v[1],
                       v[2], v[3], v[6]);
}

static int add_ck(const struct tree *t)
{
    _cleanup_(mf_buf_release) struct mf_buf text;
    char name[64];
    bool inside = false;
    size_t len, n_lists = 0;
    int r = read_file(t, CK_FILE, &text);
    const char *line, *at = text.data;
    while (r >= 0 && (line = take_line(&at, &len))) {
        if (starts_ck_list(line, len, name)) {
            inside = true;
            n_lists++;
            start_list(t, name, NULL);
        } else if (len > 0 && line[0] == '}') {
            inside = false;
        } else if (inside && len > 0 && line[0] != '#') {
            r = add_instance(t, line);
        }
    }
    return r >= 0 && n_lists == 0 ? misunderstood(t, CK_FILE, "it has no list of instances") : r;
}

/* ---- instances of Opus ---- */

struct opus {
    char name[MF_STEP_NAME_MAX];
    int block_m, block_n, sort_block_m, k_wave, from, to;
    bool split; /* gate and up of a tile belong to different groups of waves */
};

static const struct {
    const char *key;
    size_t offset;
} opus_integers[] = {
    {"block_m", offsetof(struct opus, block_m)},           {"block_n", offsetof(struct opus, block_n)},
    {"sort_block_m", offsetof(struct opus, sort_block_m)}, {"k_wave", offsetof(struct opus, k_wave)},
    {"min_tuner_token", offsetof(struct opus, from)},      {"max_tuner_token", offsetof(struct opus, to)},
};

/* Reads one keyword argument, such as `block_m=16,`. */
static void read_argument(const char *line, size_t len, struct opus *o)
{
    size_t key = strcspn(line, "=\n");
    if (key >= len)
        return;
    const char *value = line + key + 1;
    if (key == 4 && strncmp(line, "name", 4) == 0 && value[0] == '"')
        mf_format(o->name, sizeof(o->name), "%.*s", (int)strcspn(value + 1, "\"\n"), value + 1);
    if (strncmp(line, "gate_up_group_split=True", strlen("gate_up_group_split=True")) == 0)
        o->split = true;
    for (size_t i = 0; i < MF_ARRAY_LEN(opus_integers); i++)
        if (strlen(opus_integers[i].key) == key && strncmp(line, opus_integers[i].key, key) == 0)
            (void)sscanf(value, "%d", (int *)(void *)((char *)o + opus_integers[i].offset));
}

/* A wave of a kernel whose waves share K computes 32 columns of h; another kernel computes half of block_n,
 * because w1 has gate and up (opus_moe_common.py, opus_a8w4_stage1_output_cols_per_tile). */
static int add_opus_stage1(const struct tree *t, const struct opus *o)
{
    size_t len = strlen(o->name);
    bool fused = len > 4 && strcmp(o->name + len - 4, "_fp8") == 0;
    return mf_buf_addf(t->out, "%s%s %d %d %d\n", o->name, fused ? "" : "_fp8", o->block_m,
                       o->split ? o->block_n / 2 : 32, o->k_wave > 0 ? o->k_wave : 1);
}

static int add_opus_stage2(const struct tree *t, const struct opus *o)
{
    return mf_buf_addf(t->out, "%s %d %d %d %d\n", o->name, o->sort_block_m,
                       o->block_n > 0 ? o->block_n : 256, o->from, o->to);
}

struct opus_list {
    const char *variable, *list;
    int (*add)(const struct tree *t, const struct opus *o);
};

static int add_opus_list(const struct tree *t, const char *text, const struct opus_list *l)
{
    struct opus o = {.name = ""};
    const char *line, *at = strstr(text, l->variable);
    size_t len, n = 0;
    int r = 0;
    at = at ? strchr(at, '\n') : NULL;
    if (!at)
        return misunderstood(t, OPUS_FILE, "it has no list of instances");
    start_list(t, l->list, NULL);
    for (at++; r >= 0 && (line = take_line(&at, &len)) && !(len == 1 && line[0] == ')');) {
        if (len > 0 && line[len - 1] == '(') {
            o = (struct opus){.name = ""};
        } else if (len == 2 && strncmp(line, "),", 2) == 0) {
            if (!mf_is_name(o.name, MF_STEP_NAME_MAX - 8))
                return misunderstood(t, OPUS_FILE, "an instance has no name");
            r = l->add(t, &o);
            n++;
        } else {
            read_argument(line, len, &o);
        }
    }
    return r >= 0 && n == 0 ? misunderstood(t, OPUS_FILE, "a list of instances is empty") : r;
}

static int add_opus(const struct tree *t)
{
    static const struct opus_list lists[] = {
        {"\nOPUS_A8W4_STAGE1_INSTANCES = (\n", "opus_stage1", add_opus_stage1},
        {"\nOPUS_A8W4_DECODE_STAGE2_INSTANCES = (\n", "opus_stage2", add_opus_stage2},
    };
    _cleanup_(mf_buf_release) struct mf_buf text;
    int r = read_file(t, OPUS_FILE, &text);
    if (r == -ENOENT)
        return 0; /* a version of AITER before Opus */
    for (size_t i = 0; i < MF_ARRAY_LEN(lists) && r >= 0; i++)
        r = add_opus_list(t, text.data, &lists[i]);
    return r;
}

/* ---- the tree ---- */

/* Finds the root: a source tree, or the folder of an installed package. */
static int find_root(const char *path, struct tree *t)
{
    static const char *const below[] = {"", "/aiter_meta"};
    for (size_t i = 0; i < MF_ARRAY_LEN(below); i++) {
        char hsa[PATH_MAX];
        mf_format(t->root, sizeof(t->root), "%s%s", path, below[i]);
        mf_format(hsa, sizeof(hsa), "%s/hsa", t->root);
        if (access(hsa, R_OK | X_OK) == 0)
            return 0;
    }
    mf_format(
        t->why, MF_REASON_MAX,
        "%s: not an AITER source tree: it has no folder hsa; name the folder of a checkout of ROCm/aiter "
        "or of an installed aiter_meta",
        path);
    return -ENOENT;
}

int mf_aiter_tree_read(const char *path, struct mf_buf *ret, char why[MF_REASON_MAX])
{
    struct tree t = {.out = ret, .why = why};
    why[0] = '\0';
    int r = find_root(path, &t);
    if (r == 0)
        r = mf_buf_addf(ret, "version %s\n", path);
    if (r == 0)
        r = each_name(&t, "hsa", "gfx", "", add_gfx);
    if (r == 0)
        r = misunderstood(&t, "hsa", "it has no folder of a GPU");
    if (r >= 0)
        r = add_ck(&t);
    if (r >= 0)
        r = add_opus(&t);
    if (r >= 0)
        r = mf_buf_error(ret);
    if (r < 0 && !*why)
        mf_format(why, MF_REASON_MAX, "%s: %s", path, strerrordesc_np(-r));
    return r < 0 ? r : 0;
}

uint64_t mf_aiter_tree_hash(const char *path)
{
    _cleanup_(mf_buf_release) struct mf_buf text;
    char why[MF_REASON_MAX];
    mf_buf_init(&text, MF_AITER_LISTS_MAX);
    if (!path || !*path || mf_aiter_tree_read(path, &text, why) < 0)
        return 0;
    /* without the first line, which has the path */
    const char *lists = text.data + strcspn(text.data, "\n");
    return mf_hash64(lists, strlen(lists), MF_HASH_SEED);
}
