#include "common/table/table.h"
#include "common/base/array.h"

#include "common/base/text.h"
#include "common/table/csv.h"
#include "common/table/table_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

MF_NAMES_DEFINE(mf_result, MF_RESULT_, MF_RESULT_MAP)
MF_NAMES_DEFINE(mf_own, MF_OWN_, MF_OWN_MAP)
MF_NAMES_DEFINE(mf_problem_code, MF_PROBLEM_, MF_PROBLEM_MAP)

#define CHUNK_SIZE 65536

struct mf_table_arena {
    struct mf_table_arena *next;
    size_t used, cap;
    _Alignas(max_align_t) char data[];
};

int mf_table_new(const char *name, bool tuned, struct mf_table **ret)
{
    _cleanup_(mf_table_freep) struct mf_table *t = calloc(1, sizeof(*t));
    if (!t)
        return -ENOMEM;
    t->tuned = tuned;
    t->name = mf_table_keep(t, name);
    if (!t->name)
        return -ENOMEM;
    *ret = MF_TAKE(t);
    return 0;
}

struct mf_table *mf_table_free(struct mf_table *t)
{
    if (!t)
        return NULL;
    for (struct mf_table_arena *chunk = t->arena, *next; chunk; chunk = next) {
        next = chunk->next;
        free(chunk);
    }
    free(t->rows);
    free(t->problems);
    free(t->strays);
    free(t->slots);
    free(t);
    return NULL;
}

static void *alloc(struct mf_table *t, size_t bytes, size_t align)
{
    struct mf_table_arena *chunk = t->arena;
    size_t start = chunk ? (chunk->used + align - 1) / align * align : 0;
    if (!chunk || start > chunk->cap || chunk->cap - start < bytes) {
        size_t size, cap = MF_MAX(bytes, (size_t)CHUNK_SIZE);
        if (__builtin_add_overflow(cap, sizeof(*chunk), &size))
            return NULL;
        chunk = calloc(1, size);
        if (!chunk)
            return NULL;
        chunk->cap = cap;
        chunk->next = t->arena;
        t->arena = chunk;
        start = 0;
    }
    chunk->used = start + bytes;
    return chunk->data + start;
}

void *mf_table_alloc(struct mf_table *t, size_t n, size_t size)
{
    size_t bytes;
    return __builtin_mul_overflow(n, size, &bytes) ? NULL : alloc(t, bytes, _Alignof(max_align_t));
}

const char *mf_table_keep(struct mf_table *t, const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = alloc(t, size, 1);
    return copy ? memcpy(copy, text, size) : NULL;
}

static uint64_t key_hash(const struct mf_device_class *class, const struct mf_shape *s)
{
    const int64_t key[] = {class->cu_num, s->token,    s->model_dim,      s->inter_dim, s->expert,
                           s->topk,       s->act_type, s->dtype,          s->q_dtype_a, s->q_dtype_w,
                           s->q_type,     s->use_g1u1, s->doweight_stage1};
    uint64_t hash = mf_hash64(class->gfx, strlen(class->gfx), MF_HASH_SEED);
    return mf_hash64(key, sizeof(key), hash);
}

bool mf_table_key_equal(const struct mf_table_row *a, const struct mf_table_row *b)
{
    return mf_device_class_equal(&a->class, &b->class) && mf_shape_equal(&a->shape, &b->shape) &&
           strcmp(a->variant ? a->variant : "", b->variant ? b->variant : "") == 0;
}

static bool same_tag(const struct mf_table_row *a, const struct mf_table_row *b)
{
    return strcmp(a->tag ? a->tag : "", b->tag ? b->tag : "") == 0;
}

void mf_table_key(const struct mf_table_row *row, char buf[MF_TABLE_KEY_MAX])
{
    char shape[MF_SHAPE_TEXT_MAX];
    mf_shape_print(&row->shape, shape);
    mf_format(buf, MF_TABLE_KEY_MAX, "%s,%d,%s%s%s", row->class.gfx, row->class.cu_num, shape,
              row->variant ? "," : "", row->variant ? row->variant : "");
}

/* Returns the slot of the first row with this key and tag, or a free slot if there is no such row. */
static size_t find_slot(const struct mf_table *t, const struct mf_table_row *key)
{
    size_t slot = key_hash(&key->class, &key->shape) & (t->n_slots - 1);
    for (; t->slots[slot]; slot = (slot + 1) & (t->n_slots - 1)) {
        const struct mf_table_row *row = &t->rows[t->slots[slot] - 1];
        if (mf_table_key_equal(row, key) && same_tag(row, key))
            break;
    }
    return slot;
}

/* Keeps the first of several rows with the same key and tag. Otherwise each of them would be compared with
 * all earlier ones. */
static void insert_slot(struct mf_table *t, size_t i)
{
    size_t slot = find_slot(t, &t->rows[i]);
    if (!t->slots[slot])
        t->slots[slot] = (uint32_t)i + 1;
}

/* Makes room in the hash table for one more row, and keeps the table at most half full. Rows are inserted in
 * order. */
static int grow_slots(struct mf_table *t)
{
    if (t->n_rows >= UINT32_MAX / 4)
        return -EFBIG;
    if ((t->n_rows + 1) * 2 <= t->n_slots)
        return 0;
    size_t n = t->n_slots ? t->n_slots * 2 : 64;
    uint32_t *slots = calloc(n, sizeof(*slots));
    if (!slots)
        return -ENOMEM;
    free(t->slots);
    t->slots = slots;
    t->n_slots = n;
    for (size_t i = 0; i < t->n_rows; i++)
        insert_slot(t, i);
    return 0;
}

static const struct mf_table_row *find_key_and_tag(const struct mf_table *t, const struct mf_table_row *key)
{
    if (t->n_slots == 0)
        return NULL;
    size_t slot = find_slot(t, key);
    return t->slots[slot] ? &t->rows[t->slots[slot] - 1] : NULL;
}

const struct mf_table_row *mf_table_find(const struct mf_table *t, const struct mf_device_class *class,
                                         const struct mf_shape *shape)
{
    return find_key_and_tag(t, &(struct mf_table_row){.class = *class, .shape = *shape});
}

int mf_table_push(struct mf_table *t, const struct mf_table_row *row, const struct mf_table_row **ret_earlier)
{
    int r = mf_array_grow(&t->rows, t->n_rows, &t->rows_cap, sizeof(*t->rows));
    if (r == 0)
        r = grow_slots(t);
    if (r < 0)
        return r;
    *ret_earlier = find_key_and_tag(t, row);
    t->rows[t->n_rows] = *row;
    insert_slot(t, t->n_rows++);
    return 0;
}

/* Compares gfx, cu_num and the shape columns: numbers by value, names by text. Rows with equal keys are
 * ordered by line. */
static int compare_keys(const void *va, const void *vb)
{
    const struct mf_table_row *a = va, *b = vb;
    const struct mf_shape *x = &a->shape, *y = &b->shape;
    const int64_t numbers[][2] = {
        {strcmp(a->class.gfx, b->class.gfx), 0},
        {a->class.cu_num, b->class.cu_num},
        {x->token, y->token},
        {x->model_dim, y->model_dim},
        {x->inter_dim, y->inter_dim},
        {x->expert, y->expert},
        {x->topk, y->topk},
    };
    char p[MF_SHAPE_TEXT_MAX], q[MF_SHAPE_TEXT_MAX];
    for (size_t i = 0; i < MF_ARRAY_LEN(numbers); i++) {
        if (numbers[i][0] != numbers[i][1])
            return numbers[i][0] < numbers[i][1] ? -1 : 1;
    }
    /* The sizes are equal, so only names can differ. */
    mf_shape_print(x, p);
    mf_shape_print(y, q);
    int order = strcmp(p, q);
    return order != 0 ? order : (a->line > b->line) - (a->line < b->line);
}

int mf_table_sort(struct mf_table *t)
{
    uint32_t *slots = calloc(MF_MAX(t->n_slots, (size_t)1), sizeof(*slots));
    if (!slots)
        return -ENOMEM;
    if (t->n_rows > 0)
        qsort(t->rows, t->n_rows, sizeof(*t->rows), compare_keys);
    for (size_t i = 0; i < t->n_strays; i++)
        t->strays[i].before = t->n_rows;
    free(t->slots);
    t->slots = slots;
    for (size_t i = 0; i < t->n_rows; i++)
        insert_slot(t, i);
    return 0;
}

int mf_table_push_stray(struct mf_table *t, const struct mf_table_stray *stray)
{
    int r = mf_array_grow(&t->strays, t->n_strays, &t->strays_cap, sizeof(*t->strays));
    if (r < 0)
        return r;
    t->strays[t->n_strays++] = *stray;
    return 0;
}

/* Copies a string of the caller's row into the table; NULL stays NULL. */
static int keep(struct mf_table *t, const char *text, const char **ret)
{
    *ret = NULL;
    if (!text)
        return 0;
    if (!mf_csv_is_plain(text))
        return -EINVAL;
    *ret = mf_table_keep(t, text);
    return *ret ? 0 : -ENOMEM;
}

static int check_row(const struct mf_table *t, const struct mf_table_row *row)
{
    const char *column, *why;
    if (mf_shape_check(&row->shape, &column, &why) < 0)
        return -EINVAL;
    bool classless = row->class.gfx[0] == '\0' && row->class.cu_num == 0;
    if (!classless && (row->class.cu_num < 1 || !mf_is_name(row->class.gfx, MF_GFX_MAX - 1)))
        return -EINVAL;
    if (classless && t->tuned)
        return -EINVAL;
    for (enum mf_result c = 0; c < MF_RESULT_N_; c++)
        if (mf_result_is_number(c) && !mf_result_number_ok(mf_result_number(row, c)))
            return -EINVAL;
    return 0;
}

static int copy_row(struct mf_table *t, const struct mf_table_row *row, struct mf_table_row *ret)
{
    int r = check_row(t, row);
    if (r < 0)
        return r;
    struct mf_table_row copy = *row;
    copy.line = 0;
    copy.misspelled = 0;
    copy.other = NULL;
    copy.n_other = 0;
    memset(copy.text, 0, sizeof(copy.text));
    r = keep(t, row->kernel1, &copy.kernel1);
    if (r == 0)
        r = keep(t, row->kernel2, &copy.kernel2);
    if (r == 0)
        r = keep(t, row->tag, &copy.tag);
    if (r == 0)
        r = keep(t, row->variant, &copy.variant);
    for (int i = 0; i < MF_OWN_N_ && r == 0; i++)
        r = keep(t, row->own[i], &copy.own[i]);
    if (r == 0)
        *ret = copy;
    return r;
}

int mf_table_add(struct mf_table *t, const struct mf_table_row *row)
{
    struct mf_table_row copy;
    const struct mf_table_row *earlier;
    int r = copy_row(t, row, &copy);
    return r < 0 ? r : mf_table_push(t, &copy, &earlier);
}

/* Gives `copy` the cells of `old` in unknown columns that are part of the key. The other unknown columns are
 * empty, because their values belong to the old row. */
static int keep_key_cells(struct mf_table *t, const struct mf_table_row *old, struct mf_table_row *copy)
{
    copy->other = mf_table_alloc(t, t->n_other + 1, sizeof(*copy->other));
    copy->n_other = t->n_other;
    for (size_t i = 0; i < t->n_other && copy->other; i++)
        if (i < old->n_other && mf_newer_is_key(t->other[i]))
            copy->other[i] = old->other[i];
    return copy->other ? 0 : -ENOMEM;
}

int mf_table_replace(struct mf_table *t, size_t i, const struct mf_table_row *row)
{
    struct mf_table_row copy;
    if (i >= t->n_rows || !mf_table_key_equal(&t->rows[i], row) || !same_tag(&t->rows[i], row))
        return -EINVAL;
    int r = copy_row(t, row, &copy);
    if (r < 0)
        return r;
    r = keep_key_cells(t, &t->rows[i], &copy);
    if (r == 0)
        t->rows[i] = copy;
    return r;
}

const struct mf_table_row *mf_table_find_same(const struct mf_table *t, const struct mf_table_row *key)
{
    return find_key_and_tag(t, key);
}

/* Copies the cells of unknown columns from a row of another table, by column name. Adds columns that t lacks
 * to t. In columns that only t has, the cells of `copy` stay as they are. */
static int copy_unknown_cells(struct mf_table *t, const struct mf_table *from, const struct mf_table_row *row,
                              struct mf_table_row *copy)
{
    size_t n = t->n_other + from->n_other;
    if (from->n_other == 0)
        return 0;
    const char **names = mf_table_alloc(t, n + 1, sizeof(*names));
    const char **cells = mf_table_alloc(t, n + 1, sizeof(*cells));
    if (!names || !cells)
        return -ENOMEM;
    for (size_t i = 0; i < t->n_other; i++) {
        names[i] = t->other[i];
        cells[i] = i < copy->n_other ? copy->other[i] : NULL;
    }
    n = t->n_other;
    for (size_t i = 0; i < row->n_other; i++) {
        size_t at = 0;
        while (at < n && strcmp(names[at], from->other[i]) != 0)
            at++;
        if (at == n) {
            if (!row->other[i] || !*row->other[i])
                continue; /* an empty cell does not add its column */
            names[n++] = mf_table_keep(t, from->other[i]);
        }
        int r = keep(t, row->other[i], &cells[at]);
        if (r < 0 || !names[at])
            return r < 0 ? r : -ENOMEM;
    }
    t->other = names;
    t->n_other = n;
    copy->other = cells;
    copy->n_other = n;
    return 0;
}

int mf_table_copy_row(struct mf_table *t, const struct mf_table *from, const struct mf_table_row *row,
                      const struct mf_table_row *old)
{
    struct mf_table_row copy;
    const struct mf_table_row *earlier;
    size_t at = old ? (size_t)(old - t->rows) : 0;
    int r = copy_row(t, row, &copy);
    if (r == 0 && old)
        r = keep_key_cells(t, old, &copy);
    if (r == 0)
        r = copy_unknown_cells(t, from, row, &copy);
    for (enum mf_result c = 0; c < MF_RESULT_N_ && r == 0; c++)
        r = keep(t, row->text[c], &copy.text[c]);
    if (r < 0)
        return r;
    if (!old)
        return mf_table_push(t, &copy, &earlier);
    t->rows[at] = copy;
    return 0;
}

void mf_table_drop(struct mf_table *t, const bool *drop)
{
    size_t n = 0, stray = 0;
    for (size_t i = 0; i < t->n_rows; i++) {
        for (; stray < t->n_strays && t->strays[stray].before == i; stray++)
            t->strays[stray].before = n;
        if (!drop[i])
            t->rows[n++] = t->rows[i];
    }
    for (; stray < t->n_strays; stray++)
        t->strays[stray].before = n;
    t->n_rows = n;
    if (t->n_slots > 0)
        memset(t->slots, 0, t->n_slots * sizeof(*t->slots));
    for (size_t i = 0; i < n; i++)
        insert_slot(t, i);
}

struct place {
    const struct mf_table *table;
    const struct mf_table_row *row;
};

/* Returns the slot of an earlier row with this key and tag, or a free slot if there is no such row. */
static struct place *find_place(struct place *places, size_t n, const struct mf_table_row *row)
{
    size_t at = key_hash(&row->class, &row->shape) & (n - 1);
    while (places[at].row && !(mf_table_key_equal(places[at].row, row) && same_tag(places[at].row, row)))
        at = (at + 1) & (n - 1);
    return &places[at];
}

static int add_clash(struct mf_table_clash **clashes, size_t *n, size_t *cap,
                     const struct mf_table_clash *clash)
{
    int r = mf_array_grow(clashes, *n, cap, sizeof(**clashes));
    if (r < 0)
        return r;
    (*clashes)[(*n)++] = *clash;
    return 0;
}

int mf_table_clashes(const struct mf_table *const *tables, size_t n, struct mf_table_clash **ret,
                     size_t *ret_n)
{
    size_t n_rows = 0, n_places = 64;
    for (size_t i = 0; i < n; i++)
        n_rows += tables[i]->n_rows;
    while (n_places < n_rows * 2)
        n_places *= 2;
    _cleanup_(mf_freep) struct place *places = calloc(n_places, sizeof(*places));
    _cleanup_(mf_freep) struct mf_table_clash *clashes = NULL;
    size_t n_clashes = 0, cap = 0;
    if (!places)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < tables[i]->n_rows; k++) {
            const struct mf_table_row *row = &tables[i]->rows[k];
            struct place *place = find_place(places, n_places, row);
            if (!place->row) {
                *place = (struct place){tables[i], row};
                continue;
            }
            const struct mf_table_clash clash = {place->table, tables[i], place->row, row};
            int r = add_clash(&clashes, &n_clashes, &cap, &clash);
            if (r < 0)
                return r;
        }
    }
    *ret = MF_TAKE(clashes);
    *ret_n = n_clashes;
    return 0;
}

bool mf_table_no_kernel(const char *name)
{
    static const char *const none[] = {"", "None", "Null", "nan"};
    for (size_t i = 0; name && i < MF_ARRAY_LEN(none); i++)
        if (strcmp(name, none[i]) == 0)
            return true;
    return !name;
}
