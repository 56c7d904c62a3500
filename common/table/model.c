#include "common/table/model.h"
#include "common/base/array.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "common/table/csv.h"
#include "common/table/model_list.h"

/* Columns of the model list in addition to the columns of a shape. */
#define COLUMN_NAME    "name"
#define COLUMN_SHARED  "shared"
#define COLUMN_CONTEXT "context"
#define COLUMN_HUB     "hub"
#define COLUMN_SOURCE  "source"

static const char *const shape_columns[] = {
    "model_dim", "inter_dim", "expert", "topk",     "act_type",        "dtype",
    "q_dtype_a", "q_dtype_w", "q_type", "use_g1u1", "doweight_stage1",
};

#define SHARED_MAX    64
#define TP_LISTED_MAX 64
#define CONTEXT_MAX   INT64_C(1) << 40

static int refuse(char why[MF_REASON_MAX], int64_t line, const char *column, const char *sentence)
{
    mf_format(why, MF_REASON_MAX, "line %" PRId64 ": %s: expected %s", line, column, sentence);
    return -EBADMSG;
}

struct list {
    struct mf_csv csv;
    char **header;
    size_t n_header;
    struct mf_model *models;
    size_t n, cap;
};

static void list_release(struct list *l)
{
    mf_csv_release(&l->csv);
    for (size_t i = 0; i < l->n_header; i++)
        free(l->header[i]);
    free(l->header);
    free(l->models);
}

static int read_header(struct list *l, char why[MF_REASON_MAX])
{
    int r = mf_csv_next(&l->csv);
    if (r <= 0)
        return r < 0 ? r : refuse(why, 1, "header", "the column names, but the list is empty");
    l->header = calloc(l->csv.n_cells, sizeof(*l->header));
    if (!l->header)
        return -ENOMEM;
    for (size_t i = 0; i < l->csv.n_cells; i++) {
        l->header[i] = strdup(l->csv.cells[i]);
        if (!l->header[i])
            return -ENOMEM;
        l->n_header++;
    }
    return 0;
}

/* Returns the cell of the column, or "" if the row has no such cell. */
static const char *cell_of(const struct list *l, const char *column)
{
    int i = mf_csv_column(l->header, l->n_header, column);
    return i >= 0 && (size_t)i < l->csv.n_cells ? l->csv.cells[i] : "";
}

static int read_shape(const struct list *l, struct mf_shape *ret, char why[MF_REASON_MAX])
{
    struct mf_shape s = {.token = 1, .use_g1u1 = true};
    const char *column, *expected;

    for (size_t i = 0; i < MF_ARRAY_LEN(shape_columns); i++) {
        if (mf_shape_set(&s, shape_columns[i], cell_of(l, shape_columns[i]), &expected) < 0)
            return refuse(why, l->csv.line, shape_columns[i], expected);
    }
    if (mf_shape_set(&s, MF_SHAPE_FORM, cell_of(l, MF_SHAPE_FORM), &expected) < 0)
        return refuse(why, l->csv.line, MF_SHAPE_FORM, expected);
    if (mf_shape_check(&s, &column, &expected) < 0)
        return refuse(why, l->csv.line, column, expected);
    *ret = s;
    return 0;
}

static int read_model(const struct list *l, struct mf_model *ret, char why[MF_REASON_MAX])
{
    struct mf_model m = {0};
    int64_t shared;

    if (mf_copy(m.name, sizeof(m.name), cell_of(l, COLUMN_NAME)) < 0 ||
        !mf_is_name(m.name, sizeof(m.name) - 1))
        return refuse(why, l->csv.line, COLUMN_NAME, "letters, digits and _.-");
    if (mf_copy(m.source, sizeof(m.source), cell_of(l, COLUMN_SOURCE)) < 0 || !m.source[0])
        return refuse(why, l->csv.line, COLUMN_SOURCE, "the URL of the model's config.json");
    if (mf_copy(m.hub, sizeof(m.hub), cell_of(l, COLUMN_HUB)) < 0 || !strchr(m.hub, '/'))
        return refuse(why, l->csv.line, COLUMN_HUB, "the path on the hub, as in deepseek-ai/DeepSeek-V3");
    if (mf_parse_i64(cell_of(l, COLUMN_SHARED), 0, SHARED_MAX, &shared) < 0)
        return refuse(why, l->csv.line, COLUMN_SHARED, "the number of shared experts, 0 for none");
    if (mf_parse_i64(cell_of(l, COLUMN_CONTEXT), 1, CONTEXT_MAX, &m.context) < 0)
        return refuse(why, l->csv.line, COLUMN_CONTEXT, "the maximum context in tokens");
    m.shared = (int32_t)shared;
    int r = read_shape(l, &m.layer, why);
    if (r == 0)
        *ret = m;
    return r;
}

static int add_model(struct list *l, const struct mf_model *m)
{
    int r = mf_array_grow(&l->models, l->n, &l->cap, sizeof(*l->models));
    if (r < 0)
        return r;
    l->models[l->n++] = *m;
    return 0;
}

int mf_model_list_read(const char *text, size_t len, struct mf_model **ret, size_t *ret_n,
                       char why[MF_REASON_MAX])
{
    _cleanup_(list_release) struct list l = {0};
    struct mf_model model;
    int r;

    mf_csv_init(&l.csv, text, len, &MF_CSV_LIMITS_DEFAULT);
    r = read_header(&l, why);
    while (r == 0 && (r = mf_csv_next(&l.csv)) > 0) {
        r = read_model(&l, &model, why);
        if (r == 0)
            r = add_model(&l, &model);
    }
    if (r < 0)
        return r;
    *ret = MF_TAKE(l.models);
    *ret_n = l.n;
    return 0;
}

int mf_model_list(struct mf_model **ret, size_t *ret_n)
{
    char why[MF_REASON_MAX];
    return mf_model_list_read(mf_model_list_csv, strlen(mf_model_list_csv), ret, ret_n, why);
}

/* Returns the text after the last slash. */
static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool has_name(const struct mf_model *m, const char *name)
{
    return strcasecmp(m->name, name) == 0 || strcasecmp(base_name(m->hub), name) == 0;
}

int mf_model_find(const char *name, struct mf_model *ret)
{
    _cleanup_(mf_freep) struct mf_model *models = NULL;
    size_t n;

    if (strchr(name, '/') != strrchr(name, '/')) /* a path of files */
        return -ENOENT;
    int r = mf_model_list(&models, &n);
    if (r < 0)
        return r;
    for (size_t i = 0; i < n; i++) {
        if (has_name(&models[i], base_name(name))) {
            *ret = models[i];
            return 0;
        }
    }
    return -ENOENT;
}

/* Returns the number of edits from name to the model's nearer name. */
static size_t distance_to(const struct mf_model *m, const char *name)
{
    const char *hub = base_name(m->hub);
    size_t own = mf_edit_distance(name, strlen(name), m->name, strlen(m->name));
    size_t theirs = mf_edit_distance(name, strlen(name), hub, strlen(hub));

    return own < theirs ? own : theirs;
}

int mf_model_similar(const char *name, struct mf_model *ret)
{
    _cleanup_(mf_freep) struct mf_model *models = NULL;
    size_t n, best = SIZE_MAX;
    int r = mf_model_list(&models, &n);

    if (r < 0)
        return r;
    name = base_name(name);
    for (size_t i = 0; i < n; i++) {
        size_t distance = distance_to(&models[i], name);
        if (distance < best) {
            best = distance;
            *ret = models[i];
        }
    }
    return best <= strlen(name) / 3 ? 0 : -ENOENT;
}

/* Converts an fp8 type to the fp8 type of the device: e4m3fnuz on gfx942, e4m3fn on others, as in AITER. */
static enum mf_dtype dtype_on(enum mf_dtype dtype, const char *gfx)
{
    return dtype == MF_DTYPE_FP8_E4M3FN && gfx && strcmp(gfx, "gfx942") == 0 ? MF_DTYPE_FP8_E4M3FNUZ : dtype;
}

static int refuse_split(char why[MF_REASON_MAX], const struct mf_model *m, const char *what, int32_t size,
                        int32_t ranks)
{
    mf_format(why, MF_REASON_MAX, "%s: %s %" PRId32 " of %s cannot be divided over %" PRId32 " ranks", what,
              strcmp(what, "tp") == 0 ? "inter_dim" : "expert", size, m->name, ranks);
    return -EINVAL;
}

/* Refuses a split that mf_shape_splits_blocks describes, and lists the splits that work. */
static int refuse_blocks(char why[MF_REASON_MAX], const struct mf_model *model, int32_t tp)
{
    struct mf_shape s = model->layer;
    char good[96] = "", *at = good;
    for (int32_t n = 1; n <= TP_LISTED_MAX && model->layer.inter_dim % n == 0; n *= 2) {
        s.inter_dim = model->layer.inter_dim / n;
        if (mf_shape_splits_blocks(&s))
            continue;
        at = mf_append(at, good + sizeof(good), at > good ? ", " : "");
        at = mf_append_i64(at, good + sizeof(good), n);
    }
    mf_format(why, MF_REASON_MAX,
              "tp %" PRId32 " of %s: inter_dim %" PRId32 " is not a multiple of 128, so that a block of 128 "
              "rows of w1 would hold the end of gate and the beginning of up; tp values that work: %s",
              tp, model->name, model->layer.inter_dim / tp, *good ? good : "none; use ep");
    return -EINVAL;
}

int mf_model_layer(const struct mf_model *model, const struct mf_model_split *split, struct mf_shape *ret,
                   char why[MF_REASON_MAX])
{
    struct mf_shape s = model->layer;
    const char *column, *expected;

    if (split->tp < 1 || s.inter_dim % split->tp != 0)
        return refuse_split(why, model, "tp", s.inter_dim, split->tp);
    if (split->ep < 1 || s.expert % split->ep != 0)
        return refuse_split(why, model, "ep", s.expert, split->ep);
    if (split->fused_shared < 0 || split->fused_shared > model->shared) {
        mf_format(why, MF_REASON_MAX,
                  "%s has %" PRId32 " shared expert%s of the size of a routed one, not %" PRId32, model->name,
                  model->shared, model->shared == 1 ? "" : "s", split->fused_shared);
        return -EINVAL;
    }
    s.inter_dim /= split->tp;
    if (mf_shape_splits_blocks(&s))
        return refuse_blocks(why, model, split->tp);
    /* Every rank computes the fused shared experts in addition to its own routed experts. */
    int32_t all = s.ep_experts > 0 ? s.ep_experts : s.expert; /* including zero experts */
    s.ep_experts = split->ep > 1 || s.ep_experts > 0 ? all + split->fused_shared : 0;
    s.expert = s.expert / split->ep + split->fused_shared;
    s.topk += split->fused_shared;
    s.q_dtype_a = dtype_on(s.q_dtype_a, split->gfx);
    s.q_dtype_w = dtype_on(s.q_dtype_w, split->gfx);
    if (mf_shape_check(&s, &column, &expected) < 0) {
        mf_format(why, MF_REASON_MAX, "%s of %s: expected %s", column, model->name, expected);
        return -EINVAL;
    }
    *ret = s;
    return 0;
}
