#include "common/moe/pipeline_search.h"
#include "common/base/array.h"

#include "common/base/cleanup.h"
#include "common/base/text.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BITS_WORDS       4
#define TENSOR_SPECS_MAX (64 * BITS_WORDS)
#define STATES_MAX       (1u << 16)
/* Budget of a search. Beyond it the search is cut: of each level it then expands only the BEAM best
 * states. */
#define WORK_MAX      (UINT64_C(1) << 26)
#define STATES_BUDGET (1u << 15)
#define BEAM          64
/* Number of complete paths beyond which a state contributes only its best two, because ranking takes long. */
#define FOUND_MANY (1u << 14)
/* Units of work; a comparison of a state with a group is one unit, about 20 ns */
#define WORK_PATH       4
#define WORK_STATE      64
#define NEEDED_SLOTS    4096 /* power of two */
#define CONVERSIONS_MAX 6
#define LAYOUTS_MAX     15
#define LEVELS          (MF_OP_N_ + CONVERSIONS_MAX + 1)

/* A set of tensor specs. */
struct bits {
    uint64_t w[BITS_WORDS];
};

/* A group: steps that differ only in time and name. The cheapest pipelines contain only the cheapest steps of
 * a group. */
struct group {
    mf_ops covers;
    int32_t block_m;
    /* index + 1 of the layout in which the steps read the weight; 0 if the steps do not read the weight */
    uint8_t w1, w2;
    struct bits needs, gives;    /* tensor specs that the steps read and write, without weights */
    struct bits redundant_zeros; /* set by find_redundant_zeros() */
    int n;
    int32_t ranks[MF_PATH_KEEP_MAX]; /* members, cheapest first */
};

/* The bits of a structure from ZERO_SHIFT on hold 1 + the lowest op of the step that zeroes y; 0 if no step
 * with ops zeroes y. */
#define ZERO_SHIFT 60
_Static_assert(4 * MF_OP_N_ <= ZERO_SHIFT, "bits of a structure");

struct partial {
    double us;
    int32_t n;
    /* the steps in ascending order, so that paths with the same steps compare equal and their times have the
     * same floating-point sum */
    int32_t ranks[MF_PATH_STEPS_MAX];
};

/* Properties of a partial path that decide which steps may follow and which paths compete. */
struct key {
    uint64_t structure;
    struct bits live;      /* specs that are available and that a later step may read */
    struct bits unused;    /* conversion results and redundant zeros that no step has used so far */
    struct bits converted; /* results of conversions; no other step may write these specs */
    mf_ops covered;
    int32_t block_m;
    uint8_t w1, w2;
    uint8_t conversions;
    uint8_t zero[5]; /* explicit padding, because keys are hashed and compared as bytes */
};

struct state {
    struct key key;
    int32_t next_in_level; /* next state of the same level; -1: end */
    int n;
    struct partial *best; /* cheapest partial paths of the state, ascending by (us, ranks) */
};

/* The specs that a path still needs, by the properties of its key on which they depend. */
struct needed {
    uint64_t key; /* 0: empty */
    struct bits specs;
};

/* State of one search. Steps are identified by their rank in (family, name) order, so that the result does
 * not depend on the input order. The level of a state is the number of its covered ops and conversions. Each
 * transition raises the level, so the search completes the states level by level. */
struct mf_path_search {
    const struct mf_path_problem *p;
    int32_t *order; /* rank → index of the step */
    struct mf_tensor_spec tensor_specs[TENSOR_SPECS_MAX];
    int n_tensor_specs;
    char layouts[LAYOUTS_MAX][MF_ORDER_MAX];
    int n_layouts;
    struct group *groups;
    size_t n_groups;
    struct bits inputs, outputs, zeroed;
    struct state *states;
    size_t n_states, cap_states;
    int32_t *table; /* hash table of state indices, -1: empty */
    size_t table_size;
    int32_t first_in_level[LEVELS];
    struct mf_path *found;
    size_t n_found, cap_found;
    struct needed needed[NEEDED_SLOTS];
    /* progress */
    int level;
    int32_t *queue; /* states of this level, to be expanded */
    size_t n_queue, cap_queue, at;
    uint64_t work;
    bool cut;
    bool trimmed; /* complete paths were left out */
};

static void bits_add(struct bits *b, int i)
{
    b->w[i / 64] |= UINT64_C(1) << (i % 64);
}

static bool bits_subset(const struct bits *subset, const struct bits *superset)
{
    for (int i = 0; i < BITS_WORDS; i++) {
        if (subset->w[i] & ~superset->w[i])
            return false;
    }
    return true;
}

static bool bits_empty(const struct bits *b)
{
    return bits_subset(b, &(struct bits){{0}});
}

static struct bits bits_or(struct bits a, struct bits b)
{
    for (int i = 0; i < BITS_WORDS; i++)
        a.w[i] |= b.w[i];
    return a;
}

static struct bits bits_and(struct bits a, struct bits b)
{
    for (int i = 0; i < BITS_WORDS; i++)
        a.w[i] &= b.w[i];
    return a;
}

static struct bits bits_minus(struct bits a, struct bits b)
{
    for (int i = 0; i < BITS_WORDS; i++)
        a.w[i] &= ~b.w[i];
    return a;
}

static const struct mf_path_step *step_of(const struct mf_path_search *s, int32_t rank)
{
    return &s->p->steps[s->order[rank]];
}

static int compare_order(const void *a, const void *b, void *context)
{
    const struct mf_path_problem *p = context;
    return mf_step_compare(p->steps[*(const int32_t *)a].step, p->steps[*(const int32_t *)b].step);
}

static int intern_tensor_spec(struct mf_path_search *s, const struct mf_tensor_spec *a)
{
    for (int i = 0; i < s->n_tensor_specs; i++) {
        if (mf_tensor_spec_equal(&s->tensor_specs[i], a))
            return i;
    }
    if (s->n_tensor_specs == TENSOR_SPECS_MAX)
        return -E2BIG;
    s->tensor_specs[s->n_tensor_specs] = *a;
    return s->n_tensor_specs++;
}

static int intern_layout(struct mf_path_search *s, const char *order)
{
    for (int i = 0; i < s->n_layouts; i++) {
        if (strcmp(s->layouts[i], order) == 0)
            return i + 1;
    }
    if (s->n_layouts == LAYOUTS_MAX)
        return -E2BIG;
    memcpy(s->layouts[s->n_layouts], order, MF_ORDER_MAX);
    return ++s->n_layouts;
}

/* Computes a step's signature. Returns 1, or 0 if no pipeline can contain the step because the step reads one
 * weight in two layouts. */
static int make_signature(struct mf_path_search *s, const struct mf_step *step, struct group *ret)
{
    *ret = (struct group){.covers = step->covers, .block_m = step->block_m};
    for (int i = 0; i < step->n_needs; i++) {
        const struct mf_tensor_spec *a = &step->needs[i];
        bool weight = mf_tensor_spec_is_weight(a);
        int id = weight ? intern_layout(s, a->order) : intern_tensor_spec(s, a);
        if (id < 0)
            return id;
        if (!weight) {
            bits_add(&ret->needs, id);
            if (mf_tensor_spec_is_input(a))
                bits_add(&s->inputs, id);
            continue;
        }
        uint8_t *layout = a->tensor == MF_TENSOR_W1 ? &ret->w1 : &ret->w2;
        if (*layout && *layout != id)
            return 0;
        *layout = (uint8_t)id;
    }
    for (int i = 0; i < step->n_gives; i++) {
        int id = intern_tensor_spec(s, &step->gives[i]);
        if (id < 0)
            return id;
        bits_add(&ret->gives, id);
        if (step->gives[i].zeroed)
            bits_add(&s->zeroed, id);
    }
    return 1;
}

static bool same_signature(const struct group *a, const struct group *b)
{
    return a->covers == b->covers && a->block_m == b->block_m && a->w1 == b->w1 && a->w2 == b->w2 &&
           memcmp(&a->needs, &b->needs, sizeof(a->needs)) == 0 &&
           memcmp(&a->gives, &b->gives, sizeof(a->gives)) == 0;
}

/* Inserts a member into the group in (us, rank) order. The caller adds ranks in ascending order. */
static void group_add(struct mf_path_search *s, struct group *g, int32_t rank)
{
    int at = g->n;
    while (at > 0 && step_of(s, rank)->us < step_of(s, g->ranks[at - 1])->us)
        at--;
    if (at == s->p->keep)
        return;
    if (g->n < s->p->keep)
        g->n++;
    memmove(&g->ranks[at + 1], &g->ranks[at], (size_t)(g->n - 1 - at) * sizeof(g->ranks[0]));
    g->ranks[at] = rank;
}

/* Finds the redundant zeros of each group. Zeros that a group writes are redundant if another group differs
 * only in that it does not write them. A pipeline in which no later step uses the zeros should contain the
 * other group. */
static void find_redundant_zeros(struct mf_path_search *s)
{
    for (size_t i = 0; i < s->n_groups; i++) {
        struct group *g = &s->groups[i], without = *g;
        const struct bits zeroes = bits_and(g->gives, s->zeroed);
        without.gives = bits_minus(g->gives, zeroes);
        for (size_t j = 0; g->covers && !bits_empty(&zeroes) && j < s->n_groups; j++) {
            if (same_signature(&s->groups[j], &without))
                g->redundant_zeros = zeroes;
        }
    }
}

static int make_groups(struct mf_path_search *s)
{
    s->groups = calloc(s->p->n_steps + 1, sizeof(*s->groups));
    if (!s->groups)
        return -ENOMEM;
    for (size_t rank = 0; rank < s->p->n_steps; rank++) {
        struct group signature;
        int r = make_signature(s, step_of(s, (int32_t)rank)->step, &signature);
        if (r < 0)
            return r;
        if (r == 0 || (signature.covers & ~s->p->ops))
            continue;
        size_t i = 0;
        while (i < s->n_groups && !same_signature(&s->groups[i], &signature))
            i++;
        if (i == s->n_groups)
            s->groups[s->n_groups++] = signature;
        group_add(s, &s->groups[i], (int32_t)rank);
    }
    find_redundant_zeros(s);
    struct mf_tensor_spec y = {
        .tensor = MF_TENSOR_Y, .format = s->p->format, .scale = MF_SCALE_NONE, .order = "token"};
    int id = intern_tensor_spec(s, &y);
    if (id < 0)
        return id;
    bits_add(&s->outputs, id);
    return 0;
}

/* True if the ops, block_m and weight layouts of the group fit the path. Ignores inputs other than weights.
 */
static bool is_compatible(const struct key *k, const struct group *g)
{
    return !(g->covers & k->covered) && (!g->block_m || !k->block_m || g->block_m == k->block_m) &&
           (!g->w1 || !k->w1 || g->w1 == k->w1) && (!g->w2 || !k->w2 || g->w2 == k->w2);
}

/* Returns the tensor specs that a path still needs: the output, and the inputs of all steps that may follow.
 */
static struct bits still_needed(struct mf_path_search *s, const struct key *k)
{
    /* never 0, because of the highest bit */
    uint64_t key = UINT64_C(1) << 63 | (uint64_t)(uint32_t)k->block_m << 31 | (uint64_t)k->w1 << 23 |
                   (uint64_t)k->w2 << 15 | k->covered;
    struct needed *slot = &s->needed[(key * UINT64_C(0x9E3779B97F4A7C15)) >> 52 & (NEEDED_SLOTS - 1)];
    if (slot->key == key)
        return slot->specs;
    *slot = (struct needed){key, s->outputs};
    for (size_t i = 0; i < s->n_groups; i++) {
        if (is_compatible(k, &s->groups[i]))
            slot->specs = bits_or(slot->specs, s->groups[i].needs);
    }
    s->work += s->n_groups;
    return slot->specs;
}
_Static_assert(MF_OP_N_ <= 15, "bits of covered in the key of struct needed");

/* Adds a step to a structure: stores 1 + the lowest op of the step in the four bits of each covered op. If
 * the step zeroes y, stores the same number at ZERO_SHIFT; if several steps zero y, the lowest number
 * remains. */
static uint64_t add_structure(uint64_t structure, mf_ops covers, bool zeroes)
{
    if (!covers)
        return structure;
    uint64_t lowest = (uint64_t)__builtin_ctz(covers) + 1, before = structure >> ZERO_SHIFT;
    for (int op = 0; op < MF_OP_N_; op++) {
        if (covers & MF_OP_BIT(op))
            structure |= lowest << (4 * op);
    }
    if (zeroes && (before == 0 || lowest < before))
        structure = (structure & ((UINT64_C(1) << ZERO_SHIFT) - 1)) | lowest << ZERO_SHIFT;
    return structure;
}

/* Computes the state of a path after one more step, a member of the group. Returns false if the step may not
 * follow. */
static bool advance(struct mf_path_search *s, const struct key *from, const struct group *g, struct key *ret)
{
    if (!is_compatible(from, g) || !bits_subset(&g->needs, &from->live))
        return false;
    const struct bits zeroes = bits_and(g->gives, s->zeroed),
                      useless =
                          bits_or(bits_and(g->redundant_zeros, from->live), bits_and(zeroes, from->unused));
    const struct bits rejected = bits_or(bits_and(g->gives, from->converted), useless);
    if ((!g->covers && from->conversions == CONVERSIONS_MAX) || !bits_empty(&rejected))
        return false;
    *ret = (struct key){
        .structure = add_structure(from->structure, g->covers, !bits_empty(&zeroes)),
        .covered = from->covered | g->covers,
        .block_m = from->block_m ? from->block_m : g->block_m,
        .w1 = from->w1 ? from->w1 : g->w1,
        .w2 = from->w2 ? from->w2 : g->w2,
        .conversions = (uint8_t)(from->conversions + !g->covers),
    };
    struct bits new = bits_minus(g->gives, from->live);
    ret->unused = bits_or(bits_minus(from->unused, g->needs), g->redundant_zeros);
    ret->converted = from->converted;
    if (!g->covers) {
        if (bits_empty(&new))
            return false;
        ret->unused = bits_or(ret->unused, new);
        ret->converted = bits_or(ret->converted, new);
    }
    struct bits want = still_needed(s, ret);
    ret->live = bits_and(bits_or(from->live, g->gives), want);
    /* A spec in `unused` that is no longer live can never be used, so the path is illegal. Remove the layer's
     * outputs from `unused`, because the caller uses them. */
    ret->unused = bits_minus(ret->unused, s->outputs);
    return bits_subset(&ret->unused, &ret->live);
}

static uint64_t hash_key(const struct key *k)
{
    const unsigned char *bytes = (const unsigned char *)k;
    uint64_t h = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < sizeof(*k); i += 8) {
        uint64_t word;
        memcpy(&word, bytes + i, 8);
        h = (h ^ word) * UINT64_C(0x9E3779B97F4A7C15);
        h ^= h >> 29;
    }
    return h;
}
_Static_assert(sizeof(struct key) % 8 == 0, "hashed in words");
_Static_assert(sizeof(struct key) == 8 + 3 * sizeof(struct bits) + 4 + 4 + 8, "no padding to hash");

static int rehash(struct mf_path_search *s)
{
    size_t size = s->table_size ? s->table_size * 4 : 1024;
    int32_t *table = malloc(size * sizeof(*table));
    if (!table)
        return -ENOMEM;
    memset(table, 0xff, size * sizeof(*table));
    for (size_t i = 0; i < s->n_states; i++) {
        size_t at = hash_key(&s->states[i].key) & (size - 1);
        while (table[at] >= 0)
            at = (at + 1) & (size - 1);
        table[at] = (int32_t)i;
    }
    free(s->table);
    s->table = table;
    s->table_size = size;
    return 0;
}

static int grow_states(struct mf_path_search *s)
{
    int r = mf_array_grow(&s->states, s->n_states, &s->cap_states, sizeof(*s->states));
    if (r < 0)
        return r;
    return s->n_states * 2 >= s->table_size ? rehash(s) : 0;
}

/* Returns the index of the state with this key; creates the state if needed. -E2BIG: there are too many. */
static int find_state(struct mf_path_search *s, const struct key *k)
{
    int r = grow_states(s);
    if (r < 0)
        return r;
    size_t at = hash_key(k) & (s->table_size - 1);
    while (s->table[at] >= 0) {
        if (memcmp(&s->states[s->table[at]].key, k, sizeof(*k)) == 0)
            return s->table[at];
        at = (at + 1) & (s->table_size - 1);
    }
    if (s->n_states == STATES_MAX)
        return -E2BIG;
    s->work += WORK_STATE;
    struct partial *best = calloc((size_t)s->p->keep, sizeof(*best));
    if (!best)
        return -ENOMEM;
    int level = __builtin_popcount(k->covered) + k->conversions;
    int32_t i = (int32_t)s->n_states++;
    s->states[i] = (struct state){.key = *k, .next_in_level = s->first_in_level[level], .best = best};
    s->first_in_level[level] = i;
    s->table[at] = i;
    return i;
}

static int compare_partials(const struct partial *a, const struct partial *b)
{
    if (a->us != b->us)
        return a->us < b->us ? -1 : 1;
    for (int i = 0; i < a->n && i < b->n; i++) {
        if (a->ranks[i] != b->ranks[i])
            return a->ranks[i] < b->ranks[i] ? -1 : 1;
    }
    return a->n - b->n;
}

/* Inserts a partial path into the sorted list, unless the list contains an equal path or is full of better
 * ones. */
static void insert_partial(const struct mf_path_search *s, struct state *state, const struct partial *add)
{
    int at = state->n;
    while (at > 0) {
        int c = compare_partials(add, &state->best[at - 1]);
        if (c == 0)
            return;
        if (c > 0)
            break;
        at--;
    }
    if (at == s->p->keep)
        return;
    if (state->n < s->p->keep)
        state->n++;
    memmove(&state->best[at + 1], &state->best[at], (size_t)(state->n - 1 - at) * sizeof(*add));
    state->best[at] = *add;
}

static bool extend(const struct mf_path_search *s, const struct partial *from, int32_t rank,
                   struct partial *ret)
{
    if (from->n == MF_PATH_STEPS_MAX)
        return false;
    int i = 0, n = 0;
    *ret = (struct partial){.n = from->n + 1};
    for (; i < from->n && from->ranks[i] < rank; i++)
        ret->ranks[n++] = from->ranks[i];
    ret->ranks[n++] = rank;
    for (; i < from->n; i++)
        ret->ranks[n++] = from->ranks[i];
    /* Sum in rank order, so that the result does not depend on the order in which the path was built */
    for (i = 0; i < n; i++)
        ret->us += step_of(s, ret->ranks[i])->us + s->p->gap_us;
    return true;
}

static int expand(struct mf_path_search *s, int32_t index)
{
    s->work += s->n_groups;
    for (size_t g = 0; g < s->n_groups; g++) {
        struct key key;
        if (!advance(s, &s->states[index].key, &s->groups[g], &key))
            continue;
        int to = find_state(s, &key);
        if (to == -E2BIG) {
            s->cut = true;
            continue;
        }
        if (to < 0)
            return to;
        const struct state *from = &s->states[index];
        struct state *state = &s->states[to];
        for (int i = 0; i < from->n; i++) {
            for (int m = 0; m < s->groups[g].n; m++) {
                struct partial add;
                s->work += WORK_PATH;
                if (!extend(s, &from->best[i], s->groups[g].ranks[m], &add))
                    continue;
                /* The remaining members are more expensive */
                if (state->n == s->p->keep && add.us > state->best[state->n - 1].us)
                    break;
                insert_partial(s, state, &add);
            }
        }
    }
    return 0;
}

/* True if each input of the step is a weight, an input of the layer, or available. */
static bool is_runnable(const struct mf_step *step, const struct mf_tensor_spec *available, int n)
{
    for (int i = 0; i < step->n_needs; i++) {
        const struct mf_tensor_spec *a = &step->needs[i];
        bool met = mf_tensor_spec_is_weight(a) || mf_tensor_spec_is_input(a);
        for (int j = 0; j < n && !met; j++)
            met = mf_tensor_spec_equal(a, &available[j]);
        if (!met)
            return false;
    }
    return true;
}

/* Orders the steps by the ops of the layer. A conversion is placed only if no other step can run, so that it
 * directly precedes the step that uses its result. */
static void order_for_execution(const struct mf_path_search *s, const struct partial *from,
                                struct mf_path *path)
{
    struct mf_tensor_spec available[MF_PATH_STEPS_MAX * MF_STEP_TENSOR_SPECS_MAX];
    int n_available = 0;
    bool used[MF_PATH_STEPS_MAX] = {false};
    for (path->n = 0; path->n < from->n;) {
        int pick = -1;
        int lowest = 0;
        for (int i = 0; i < from->n; i++) {
            const struct mf_step *step = step_of(s, from->ranks[i])->step;
            int first = step->covers ? __builtin_ctz(step->covers) : MF_OP_N_;
            if (!used[i] && is_runnable(step, available, n_available) && (pick < 0 || first < lowest)) {
                pick = i;
                lowest = first;
            }
        }
        assert(pick >= 0);
        used[pick] = true;
        const struct mf_step *step = step_of(s, from->ranks[pick])->step;
        for (int i = 0; i < step->n_gives; i++)
            available[n_available++] = step->gives[i];
        path->steps[path->n++] = s->order[from->ranks[pick]];
    }
}

static int collect(struct mf_path_search *s, const struct state *state)
{
    const struct key *k = &state->key;
    if (k->covered != s->p->ops || !bits_empty(&k->unused) || !bits_subset(&s->outputs, &k->live))
        return 0;
    int n = s->n_found < FOUND_MANY ? state->n : MF_MIN(state->n, 2);
    s->trimmed |= n < state->n;
    for (int i = 0; i < n; i++) {
        int r = mf_array_grow(&s->found, s->n_found, &s->cap_found, sizeof(*s->found));
        if (r < 0)
            return r;
        struct mf_path *path = &s->found[s->n_found++];
        *path = (struct mf_path){.us = state->best[i].us, .structure = k->structure, .block_m = k->block_m};
        if (k->w1)
            memcpy(path->w1, s->layouts[k->w1 - 1], MF_ORDER_MAX);
        if (k->w2)
            memcpy(path->w2, s->layouts[k->w2 - 1], MF_ORDER_MAX);
        order_for_execution(s, &state->best[i], path);
    }
    return 0;
}

static int compare_paths(const void *va, const void *vb, void *context)
{
    const struct mf_path *a = va, *b = vb;
    const struct mf_path_problem *p = context;
    if (a->us != b->us)
        return a->us < b->us ? -1 : 1;
    for (int i = 0; i < a->n && i < b->n; i++) {
        int c = mf_step_compare(p->steps[a->steps[i]].step, p->steps[b->steps[i]].step);
        if (c)
            return c;
    }
    return a->n - b->n;
}

static bool same_kind(const struct mf_path *a, const struct mf_path *b)
{
    return a->structure == b->structure && a->block_m == b->block_m && strcmp(a->w1, b->w1) == 0 &&
           strcmp(a->w2, b->w2) == 0;
}

static uint64_t hash_kind(const struct mf_path *a)
{
    const uint64_t parts[] = {a->structure, (uint64_t)(uint32_t)a->block_m};
    uint64_t h = mf_hash64(parts, sizeof(parts), MF_HASH_SEED);
    return mf_hash64(a->w2, strlen(a->w2), mf_hash64(a->w1, strlen(a->w1), h));
}

/* Keeps the best paths of each kind (structure, block_m, weight layouts). Paths of one kind can end in
 * several states, for example because their conversions differ. */
static int keep_best(struct mf_path_search *s)
{
    struct kind {
        size_t first; /* index of the first kept path of this kind */
        int n;        /* 0: the slot is empty */
    };
    size_t size = 16;
    while (size < 2 * s->n_found)
        size *= 2;
    _cleanup_(mf_freep) struct kind *kinds = calloc(size, sizeof(*kinds));
    size_t n = 0;
    if (!kinds)
        return -ENOMEM;
    if (s->n_found > 0)
        qsort_r(s->found, s->n_found, sizeof(*s->found), compare_paths, (void *)s->p);
    for (size_t i = 0; i < s->n_found; i++) {
        size_t k = hash_kind(&s->found[i]) & (size - 1);
        while (kinds[k].n > 0 && !same_kind(&s->found[kinds[k].first], &s->found[i]))
            k = (k + 1) & (size - 1);
        if (kinds[k].n == 0)
            kinds[k].first = n;
        if (kinds[k].n++ < s->p->keep)
            s->found[n++] = s->found[i];
    }
    s->n_found = n;
    return 0;
}

/* ---- progress ---- */

/* States with few conversions first, because these complete a pipeline in the fewest further levels. */
static int compare_states(const void *va, const void *vb, void *context)
{
    const struct mf_path_search *s = context;
    const struct state *a = &s->states[*(const int32_t *)va], *b = &s->states[*(const int32_t *)vb];
    if (a->key.conversions != b->key.conversions)
        return a->key.conversions - b->key.conversions;
    return compare_partials(&a->best[0], &b->best[0]);
}

/* Keeps only the best of the states that this level still has to expand. */
static void cut_queue(struct mf_path_search *s)
{
    size_t left = s->n_queue - s->at;
    if (left <= BEAM)
        return;
    qsort_r(s->queue + s->at, left, sizeof(*s->queue), compare_states, s);
    s->n_queue = s->at + BEAM;
}

/* Collects the complete paths of the level and queues its states. Each transition raises the level, so the
 * level has all its states. */
static int enter_level(struct mf_path_search *s)
{
    s->n_queue = s->at = 0;
    for (int32_t i = s->first_in_level[s->level]; i >= 0; i = s->states[i].next_in_level) {
        int r = collect(s, &s->states[i]);
        if (r == 0)
            r = mf_array_grow(&s->queue, s->n_queue, &s->cap_queue, sizeof(*s->queue));
        if (r < 0)
            return r;
        s->queue[s->n_queue++] = i;
    }
    if (s->cut)
        cut_queue(s);
    return 0;
}

static int expand_next(struct mf_path_search *s)
{
    bool was_cut = s->cut;
    int r = expand(s, s->queue[s->at++]);
    s->cut |= s->work > WORK_MAX || s->n_states > STATES_BUDGET;
    if (s->cut && !was_cut)
        cut_queue(s);
    return r;
}

static int start(struct mf_path_search *s)
{
    for (size_t i = 0; i < s->p->n_steps; i++)
        s->order[i] = (int32_t)i;
    qsort_r(s->order, s->p->n_steps, sizeof(*s->order), compare_order, (void *)s->p);
    for (int i = 0; i < LEVELS; i++)
        s->first_in_level[i] = -1;
    int r = make_groups(s);
    if (r < 0)
        return r;
    struct key first_key = {.live = s->inputs};
    int first = find_state(s, &first_key);
    if (first < 0)
        return first;
    s->states[first].n = 1;
    return enter_level(s);
}

int mf_path_search_new(const struct mf_path_problem *p, struct mf_path_search **ret)
{
    assert(p->keep >= 1 && p->keep <= MF_PATH_KEEP_MAX);
    _cleanup_(mf_path_search_freep) struct mf_path_search *s = calloc(1, sizeof(*s));
    if (!s)
        return -ENOMEM;
    s->p = p;
    s->order = calloc(p->n_steps + 1, sizeof(*s->order));
    int r = s->order ? start(s) : -ENOMEM;
    if (r < 0)
        return r;
    *ret = MF_TAKE(s);
    return 0;
}

struct mf_path_search *mf_path_search_free(struct mf_path_search *s)
{
    if (!s)
        return NULL;
    for (size_t i = 0; i < s->n_states; i++)
        free(s->states[i].best);
    free(s->states);
    free(s->table);
    free(s->groups);
    free(s->order);
    free(s->queue);
    free(s->found);
    free(s);
    return NULL;
}

int mf_path_search_run(struct mf_path_search *s, uint64_t work)
{
    uint64_t until = s->work + work;
    while (s->level < LEVELS) {
        if (s->work >= until)
            return 0;
        int r = 0;
        if (s->at < s->n_queue)
            r = expand_next(s);
        else if (++s->level < LEVELS)
            r = enter_level(s);
        if (r < 0)
            return r;
    }
    return 1;
}

int mf_path_search_take(struct mf_path_search *s, struct mf_path **ret, size_t *ret_n)
{
    int r = keep_best(s);
    if (r < 0)
        return r;
    *ret = MF_TAKE(s->found);
    *ret_n = s->n_found;
    return s->cut || s->trimmed;
}

int mf_path_find(const struct mf_path_problem *p, struct mf_path **ret, size_t *ret_n)
{
    _cleanup_(mf_path_search_freep) struct mf_path_search *s = NULL;
    int r = mf_path_search_new(p, &s);
    if (r == 0)
        r = mf_path_search_run(s, UINT64_MAX - WORK_MAX);
    if (r >= 0)
        r = mf_path_search_take(s, ret, ret_n);
    return r < 0 ? r : 0;
}

void mf_path_structure(uint64_t structure, char buf[MF_PATH_STRUCTURE_MAX])
{
    size_t len = 0;
    buf[0] = 0;
    for (int lowest = 0; lowest < MF_OP_N_; lowest++) {
        mf_ops covers = 0;
        char text[MF_OPS_TEXT_MAX];
        for (int op = 0; op < MF_OP_N_; op++) {
            if (((structure >> (4 * op)) & 15) == (uint64_t)lowest + 1)
                covers |= MF_OP_BIT(op);
        }
        if (!covers)
            continue;
        mf_ops_print(covers, text);
        bool zeroes = structure >> ZERO_SHIFT == (uint64_t)lowest + 1;
        int n = snprintf(buf + len, MF_PATH_STRUCTURE_MAX - len, "%s%s%s", len ? " | " : "", text,
                         zeroes ? "+zero" : "");
        assert(n > 0 && (size_t)n < MF_PATH_STRUCTURE_MAX - len);
        len += (size_t)n;
    }
}

bool mf_path_fuses_gemms(uint64_t structure)
{
    uint64_t gemm1 = structure >> (4 * MF_OP_GEMM1) & 15, gemm2 = structure >> (4 * MF_OP_GEMM2) & 15;
    return gemm1 > 0 && gemm1 == gemm2;
}

bool mf_path_is_layout(const char *text)
{
    const char *w2 = strstr(text, " w2=");
    char order[MF_ORDER_MAX];
    if (strncmp(text, "w1=", 3) != 0 || !w2 || (size_t)(w2 - text - 3) >= sizeof(order))
        return false;
    memcpy(order, text + 3, (size_t)(w2 - text - 3));
    order[w2 - text - 3] = '\0';
    return mf_is_name(order, MF_ORDER_MAX - 1) && mf_is_name(w2 + 4, MF_ORDER_MAX - 1);
}

void mf_path_layout(const struct mf_path *path, char buf[MF_PATH_LAYOUT_MAX])
{
    (void)snprintf(buf, MF_PATH_LAYOUT_MAX, "w1=%s w2=%s", *path->w1 ? path->w1 : "-",
                   *path->w2 ? path->w2 : "-");
}

mf_ops mf_path_uncovered(const struct mf_path_problem *p)
{
    mf_ops covered = 0;
    for (size_t i = 0; i < p->n_steps; i++)
        covered |= p->steps[i].step->covers;
    return p->ops & ~covered;
}
