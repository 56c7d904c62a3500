#include "common/moe/pipeline_search.h"

#include "support/mf_check.h"

#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The test creates random steps. A step either covers a run of consecutive ops, or converts between the two
 * variants of a tensor spec. There are so few steps that the test can try every order of every subset. */
#define STEPS_MAX 18
#define FOUND_MAX 20000

struct step_set {
    struct mf_step steps[STEPS_MAX];
    struct mf_path_step timed[STEPS_MAX];
    size_t n;
    mf_ops ops;
    double gap_us;
};

static uint64_t seed_state;

static uint32_t draw(uint32_t n)
{
    seed_state = seed_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((seed_state >> 33) % n);
}

static struct mf_tensor_spec tensor_spec(const char *format, ...) __attribute__((format(printf, 1, 2)));
static struct mf_tensor_spec tensor_spec(const char *format, ...)
{
    char text[MF_TENSOR_SPEC_TEXT_MAX];
    struct mf_tensor_spec a;
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    ck_assert_msg(mf_tensor_spec_parse(text, &a) == 0, "%s", text);
    return a;
}

/* Returns the tensor spec in front of op `op` in the chain quant1 … combine, in one of two variants. */
static struct mf_tensor_spec tensor_before(int op, int variant, int block)
{
    switch (op) {
    case MF_OP_QUANT1:
        return tensor_spec("x/bf16/none/token");
    case MF_OP_GATHER:
        return variant ? tensor_spec("x/fp8fn/per_token/token") : tensor_spec("x/fp8fn/per_1x128/token");
    case MF_OP_GEMM1:
        return variant ? tensor_spec("x/fp8fn/per_token/sorted.%d", block)
                       : tensor_spec("x/fp8fn/per_1x128/sorted.%d", block);
    case MF_OP_ACT:
        return variant ? tensor_spec("g/f32/none/sorted.%d", block)
                       : tensor_spec("g/bf16/none/sorted.%d", block);
    case MF_OP_QUANT2:
        return variant ? tensor_spec("h/f32/none/sorted.%d", block)
                       : tensor_spec("h/bf16/none/sorted.%d", block);
    case MF_OP_GEMM2:
        return variant ? tensor_spec("h/fp8fn/per_token/sorted.%d", block)
                       : tensor_spec("h/fp8fn/per_1x128/sorted.%d", block);
    case MF_OP_WEIGHT:
        return variant ? tensor_spec("z/f32/none/slot") : tensor_spec("z/bf16/none/slot");
    case MF_OP_COMBINE:
        return variant ? tensor_spec("zw/f32/none/slot") : tensor_spec("zw/bf16/none/slot");
    default:
        return variant ? tensor_spec("y/f32/none/token") : tensor_spec("y/bf16/none/token");
    }
}

static const char *layouts[] = {"row", "panel16"};

static struct mf_step random_step(int i, int from, int to)
{
    int block = draw(2) ? 32 : 64;
    struct mf_step s = {.block_m = draw(3) ? block : 0};
    /* a step without block_m still has inputs and outputs whose tensor specs contain a block size */
    (void)snprintf(s.name, sizeof(s.name), "k%02d", i);
    (void)snprintf(s.family, sizeof(s.family), "%s", draw(2) ? "a" : "b");
    for (int op = from; op <= to; op++)
        s.covers |= MF_OP_BIT(op);
    s.needs[s.n_needs++] = tensor_before(from, (int)draw(2), block);
    if (s.covers & MF_OP_BIT(MF_OP_GATHER))
        s.needs[s.n_needs++] = tensor_spec("sorted/index/none/sorted.%d", block);
    if (s.covers & MF_OP_BIT(MF_OP_GEMM1))
        s.needs[s.n_needs++] = tensor_spec("w1/fp8fn/per_token/%s", layouts[draw(2)]);
    if (s.covers & MF_OP_BIT(MF_OP_GEMM2))
        s.needs[s.n_needs++] = tensor_spec("w2/fp8fn/per_token/%s", layouts[draw(2)]);
    if (to == MF_OP_COMBINE && draw(2)) /* the step accumulates into a zeroed y */
        s.needs[s.n_needs++] = tensor_spec("y/bf16/none/token+zeroed");
    s.gives[s.n_gives++] = tensor_before(to + 1, to == MF_OP_COMBINE ? draw(4) == 0 : (int)draw(2), block);
    if ((s.covers & MF_OP_BIT(MF_OP_GEMM1)) && to != MF_OP_COMBINE && draw(3) == 0)
        s.gives[s.n_gives++] = tensor_spec("y/bf16/none/token+zeroed");
    return s;
}

static struct mf_step sort_step(int i, int block)
{
    struct mf_step s = {
        .covers = MF_OP_BIT(MF_OP_SORT), .block_m = block, .n_needs = 1, .n_gives = 1, .family = "move"};
    (void)snprintf(s.name, sizeof(s.name), "k%02d", i);
    s.needs[0] = tensor_spec("topk/index/none/token");
    s.gives[0] = tensor_spec("sorted/index/none/sorted.%d", block);
    if (draw(3) == 0)
        s.gives[s.n_gives++] = tensor_spec("y/bf16/none/token+zeroed");
    return s;
}

/* Returns a copy of the step that does not zero y. */
static struct mf_step without_zeroing(const struct mf_step *of, int i)
{
    struct mf_step s = *of;
    (void)snprintf(s.name, sizeof(s.name), "k%02d", i);
    s.n_gives = 1;
    return s;
}

static struct mf_step zero_step(int i)
{
    struct mf_step s = {.n_gives = 1, .family = "move"};
    (void)snprintf(s.name, sizeof(s.name), "k%02d", i);
    s.gives[0] = tensor_spec("y/bf16/none/token+zeroed");
    return s;
}

static struct mf_step conversion(int i)
{
    struct mf_step s = {.n_needs = 1, .n_gives = 1, .family = "move"};
    int op = MF_OP_GATHER + (int)draw(MF_OP_COMBINE - MF_OP_GATHER + 2);
    int variant = (int)draw(2), block = draw(2) ? 32 : 64;
    (void)snprintf(s.name, sizeof(s.name), "k%02d", i);
    s.needs[0] = tensor_before(op, variant, block);
    s.gives[0] = tensor_before(op, !variant, block);
    return s;
}

static void make_step_set(struct step_set *o)
{
    *o = (struct step_set){.ops = (1u << MF_OP_N_) - 1, .gap_us = draw(2) ? 0.5 : 0};
    int first = MF_OP_QUANT1;
    for (int i = 0; i < STEPS_MAX; i++) {
        struct mf_step *s = &o->steps[o->n++];
        if (i < 3)
            *s = sort_step(i, i ? 32 : 64);
        else if (i < 5)
            *s = conversion(i);
        else if (i == 5)
            *s = draw(2) ? zero_step(i) : conversion(i);
        else if (i == 6 && draw(2))
            *s = without_zeroing(&o->steps[draw(3)], i);
        else {
            /* each step starts at the op after the last step's ops, so that complete pipelines are frequent
             */
            int last = first + (int)draw((uint32_t)(MF_OP_COMBINE - first + 1));
            *s = random_step(i, first, last);
            first = last == MF_OP_COMBINE ? MF_OP_QUANT1 : last + 1;
        }
    }
    for (size_t i = 0; i < o->n; i++)
        o->timed[i] = (struct mf_path_step){&o->steps[i], 1 + draw(1000000) / 1000.0};
}

/* ---- exhaustive search: every order of every subset ---- */

struct path_group {
    char text[MF_PATH_STRUCTURE_MAX + MF_PATH_LAYOUT_MAX + 16];
};

struct exhaustive {
    const struct step_set *o;
    uint32_t masks[FOUND_MAX];
    size_t n;
    int chosen[STEPS_MAX];
};

static bool available(const struct exhaustive *e, int n, const struct mf_tensor_spec *a)
{
    if (mf_tensor_spec_is_input(a))
        return true;
    for (int i = 0; i < n; i++) {
        const struct mf_step *s = &e->o->steps[e->chosen[i]];
        for (int g = 0; g < s->n_gives; g++) {
            if (mf_tensor_spec_equal(&s->gives[g], a))
                return true;
        }
    }
    return false;
}

/* True if chosen step i is a conversion and is the first chosen step that has the tensor spec as an output.
 */
static bool introduced_by_conversion(const struct exhaustive *e, int i, const struct mf_tensor_spec *a)
{
    return !e->o->steps[e->chosen[i]].covers && !available(e, i, a) && available(e, i + 1, a);
}

/* True if the step zeroes y and the set contains a variant of the step that does not zero y but is otherwise
 * equal. */
static bool has_variant_without_zeroing(const struct step_set *o, const struct mf_step *s)
{
    for (size_t i = 0; s->covers && s->n_gives == 2 && i < o->n; i++) {
        const struct mf_step *t = &o->steps[i];
        if (t->n_gives == 1 && t->covers == s->covers && t->block_m == s->block_m &&
            t->n_needs == s->n_needs && memcmp(t->needs, s->needs, sizeof(s->needs)) == 0 &&
            mf_tensor_spec_equal(&t->gives[0], &s->gives[0]))
            return true;
    }
    return false;
}

/* True if the step zeroes a y that is already zeroed, and this step or an earlier step that zeroes y has a
 * variant without zeroing. */
static bool zeroes_redundantly(const struct exhaustive *e, int n, const struct mf_step *s)
{
    const struct mf_tensor_spec zeroed = tensor_spec("y/bf16/none/token+zeroed");
    bool zeroes = false, redundant = has_variant_without_zeroing(e->o, s);
    for (int g = 0; g < s->n_gives; g++)
        zeroes |= mf_tensor_spec_equal(&s->gives[g], &zeroed);
    if (!zeroes || !available(e, n, &zeroed))
        return false;
    for (int i = 0; i < n; i++)
        redundant |= has_variant_without_zeroing(e->o, &e->o->steps[e->chosen[i]]);
    return redundant;
}

static bool can_append(const struct exhaustive *e, int n, const struct mf_step *s)
{
    if (zeroes_redundantly(e, n, s))
        return false;
    for (int i = 0; i < n; i++) {
        const struct mf_step *t = &e->o->steps[e->chosen[i]];
        if ((t->covers & s->covers) || (t->block_m && s->block_m && t->block_m != s->block_m))
            return false;
        for (int a = 0; a < t->n_needs; a++) {
            for (int b = 0; b < s->n_needs; b++) {
                if (mf_tensor_spec_is_weight(&t->needs[a]) && t->needs[a].tensor == s->needs[b].tensor &&
                    !mf_tensor_spec_equal(&t->needs[a], &s->needs[b]))
                    return false;
            }
        }
    }
    for (int a = 0; a < s->n_needs; a++) {
        if (!mf_tensor_spec_is_weight(&s->needs[a]) && !available(e, n, &s->needs[a]))
            return false;
    }
    bool is_new = false;
    for (int g = 0; g < s->n_gives; g++) {
        is_new |= !available(e, n, &s->gives[g]);
        for (int i = 0; i < n; i++) {
            if (introduced_by_conversion(e, i, &s->gives[g]))
                return false;
        }
    }
    return s->covers || is_new;
}

/* True if each tensor spec that a conversion introduced is either the output or an input of a later step. A y
 * that is zeroed by a step with a variant without zeroing must be an input of a later step, too. */
static bool conversions_used(const struct exhaustive *e, int n, const struct mf_tensor_spec *y)
{
    for (int i = 0; i < n; i++) {
        const struct mf_step *s = &e->o->steps[e->chosen[i]];
        for (int g = 0; g < s->n_gives; g++) {
            bool must_be_used = introduced_by_conversion(e, i, &s->gives[g]) ||
                                (g == 1 && has_variant_without_zeroing(e->o, s));
            bool used = !must_be_used || mf_tensor_spec_equal(&s->gives[g], y);
            for (int j = i + 1; j < n && !used; j++) {
                const struct mf_step *t = &e->o->steps[e->chosen[j]];
                for (int a = 0; a < t->n_needs; a++)
                    used |= mf_tensor_spec_equal(&t->needs[a], &s->gives[g]);
            }
            if (!used)
                return false;
        }
    }
    return true;
}

static void try_all(struct exhaustive *e, int n, mf_ops covered, uint32_t mask)
{
    struct mf_tensor_spec y = tensor_spec("y/bf16/none/token");
    if (covered == e->o->ops && available(e, n, &y) && conversions_used(e, n, &y)) {
        bool known = false;
        for (size_t i = 0; i < e->n; i++)
            known |= e->masks[i] == mask;
        if (!known) {
            ck_assert_uint_lt(e->n, FOUND_MAX);
            e->masks[e->n++] = mask;
        }
    }
    for (size_t i = 0; i < e->o->n; i++) {
        if ((mask >> i) & 1 || !can_append(e, n, &e->o->steps[i]))
            continue;
        e->chosen[n] = (int)i;
        try_all(e, n + 1, covered | e->o->steps[i].covers, mask | 1u << i);
    }
}

static struct path_group group_of_mask(const struct step_set *o, uint32_t mask, double *ret_us)
{
    struct mf_path path = {.us = 0};
    uint64_t zeroes = 0;
    *ret_us = 0;
    for (size_t i = 0; i < o->n; i++) {
        if (!((mask >> i) & 1))
            continue;
        const struct mf_step *s = &o->steps[i];
        *ret_us += o->timed[i].us + o->gap_us;
        if (s->block_m)
            path.block_m = s->block_m;
        for (int op = 0; op < MF_OP_N_; op++) {
            if (s->covers & MF_OP_BIT(op))
                path.structure |= ((uint64_t)__builtin_ctz(s->covers) + 1) << (4 * op);
        }
        uint64_t lowest = s->covers && s->n_gives == 2 ? (uint64_t)__builtin_ctz(s->covers) + 1 : 0;
        if (lowest > 0 && (zeroes == 0 || lowest < zeroes))
            zeroes = lowest;
        for (int a = 0; a < s->n_needs; a++) {
            if (s->needs[a].tensor == MF_TENSOR_W1)
                memcpy(path.w1, s->needs[a].order, sizeof(path.w1));
            if (s->needs[a].tensor == MF_TENSOR_W2)
                memcpy(path.w2, s->needs[a].order, sizeof(path.w2));
        }
    }
    char structure[MF_PATH_STRUCTURE_MAX], layout[MF_PATH_LAYOUT_MAX];
    struct path_group group;
    mf_path_structure(path.structure, structure);
    mf_path_layout(&path, layout);
    (void)snprintf(group.text, sizeof(group.text), "%s %d %d %s", structure, (int)zeroes, path.block_m,
                   layout);
    return group;
}

static uint32_t mask_of_path(const struct mf_path *p)
{
    uint32_t mask = 0;
    for (int i = 0; i < p->n; i++)
        mask |= 1u << p->steps[i];
    return mask;
}

/* Collects the expected result: all masks for which fewer than `keep` masks of the same group are cheaper. */
static size_t count_expected(const struct exhaustive *e, int keep, uint32_t *expected)
{
    size_t n = 0;
    struct path_group *groups = calloc(e->n + 1, sizeof(*groups));
    double *us = calloc(e->n + 1, sizeof(*us));
    ck_assert(groups && us);
    for (size_t i = 0; i < e->n; i++)
        groups[i] = group_of_mask(e->o, e->masks[i], &us[i]);
    for (size_t i = 0; i < e->n; i++) {
        int cheaper = 0;
        for (size_t j = 0; j < e->n; j++)
            cheaper += strcmp(groups[i].text, groups[j].text) == 0 && us[j] < us[i];
        if (cheaper < keep)
            expected[n++] = e->masks[i];
    }
    free(groups);
    free(us);
    return n;
}

static const int keeps[] = {1, 3, 32};

MF_TEST(matches_exhaustive_search, .rows = MF_ARRAY_LEN(keeps))
{
    uint64_t seed = mf_now_ns();
    static struct exhaustive e;
    static uint32_t expected[FOUND_MAX];
    size_t n_legal = 0;
    printf("seed %llu\n", (unsigned long long)seed);
    seed_state = seed;
    for (int round = 0; round < 300; round++) {
        struct step_set o;
        make_step_set(&o);
        e = (struct exhaustive){.o = &o};
        try_all(&e, 0, 0, 0);
        n_legal += e.n;
        struct mf_path_problem p = {.ops = o.ops,
                                    .format = MF_FORMAT_BF16,
                                    .steps = o.timed,
                                    .n_steps = o.n,
                                    .gap_us = o.gap_us,
                                    .keep = keeps[_i]};
        _cleanup_(mf_freep) struct mf_path *paths = NULL;
        size_t n = 0;
        ck_assert_int_eq(mf_path_find(&p, &paths, &n), 0);
        size_t n_expected = count_expected(&e, keeps[_i], expected);
        ck_assert_msg(n == n_expected, "seed %llu, round %d: found %zu of %zu pipelines",
                      (unsigned long long)seed, round, n, n_expected);
        for (size_t i = 0; i < n; i++) {
            bool known = false;
            double us;
            for (size_t j = 0; j < n_expected; j++)
                known |= expected[j] == mask_of_path(&paths[i]);
            (void)group_of_mask(&o, mask_of_path(&paths[i]), &us);
            ck_assert_msg(known && fabs(us - paths[i].us) < 1e-6, "seed %llu, round %d: unexpected path %zu",
                          (unsigned long long)seed, round, i);
            ck_assert(i == 0 || paths[i - 1].us <= paths[i].us);
        }
    }
    /* ensures that the generator makes enough legal pipelines */
    ck_assert_uint_gt(n_legal, 300);
}

/* The result depends neither on the order of the input steps nor on ties between equal times. */
MF_TEST(independent_of_order)
{
    seed_state = 7;
    for (int round = 0; round < 100; round++) {
        struct step_set o;
        make_step_set(&o);
        for (size_t i = 0; i < o.n; i++)
            o.timed[i].us = 1 + (double)(i % 2);
        for (size_t i = o.n - 1; i > 0; i--) {
            size_t j = draw((uint32_t)i + 1);
            struct mf_path_step t = o.timed[i];
            o.timed[i] = o.timed[j];
            o.timed[j] = t;
        }
        struct mf_path_step straight[STEPS_MAX];
        for (size_t i = 0; i < o.n; i++)
            straight[i] = (struct mf_path_step){&o.steps[i], 1 + (double)(i % 2)};
        struct mf_path_problem a = {
            .ops = o.ops, .format = MF_FORMAT_BF16, .steps = straight, .n_steps = o.n, .keep = 4};
        struct mf_path_problem b = a;
        b.steps = o.timed;
        _cleanup_(mf_freep) struct mf_path *pa = NULL;
        _cleanup_(mf_freep) struct mf_path *pb = NULL;
        size_t na = 0, nb = 0;
        ck_assert_int_eq(mf_path_find(&a, &pa, &na), 0);
        ck_assert_int_eq(mf_path_find(&b, &pb, &nb), 0);
        ck_assert_uint_eq(na, nb);
        for (size_t i = 0; i < na; i++) {
            ck_assert_int_eq(pa[i].n, pb[i].n);
            for (int k = 0; k < pa[i].n; k++)
                ck_assert_ptr_eq(a.steps[pa[i].steps[k]].step, b.steps[pb[i].steps[k]].step);
        }
    }
}

MF_TEST(uncovered_ops)
{
    seed_state = 3;
    struct mf_step only = random_step(0, MF_OP_QUANT1, MF_OP_ACT);
    struct mf_path_step timed = {&only, 1};
    struct mf_path_problem p = {.ops = (1u << MF_OP_N_) - 1, .steps = &timed, .n_steps = 1, .keep = 1};
    char text[MF_OPS_TEXT_MAX];
    mf_ops_print(mf_path_uncovered(&p), text);
    ck_assert_str_eq(text, "sort+quant2+gemm2+weight+combine");
}

/* Pipelines that zero y in different steps have different structures. No pipeline zeroes y twice if one of
 * the steps has a variant without zeroing. */
MF_TEST(structure_includes_zeroing)
{
    enum { SORT, SORT_ZERO, UP, UP_ZERO, DOWN, ZERO, N_STEPS };
    static const mf_ops sort = MF_OP_BIT(MF_OP_SORT),
                        up = MF_OP_BIT(MF_OP_GATHER) | MF_OP_BIT(MF_OP_GEMM1) | MF_OP_BIT(MF_OP_ACT),
                        down = MF_OP_BIT(MF_OP_GEMM2) | MF_OP_BIT(MF_OP_WEIGHT) | MF_OP_BIT(MF_OP_COMBINE);
    const struct {
        const char *name;
        mf_ops covers;
        double us;
        const char *needs[3], *gives[2];
    } rows[N_STEPS] = {
        [SORT] = {"sort", sort, 5, {"topk/index/none/token"}, {"sorted/index/none/sorted.16"}},
        [SORT_ZERO] = {"sort_zero",
                       sort,
                       6,
                       {"topk/index/none/token"},
                       {"sorted/index/none/sorted.16", "y/bf16/none/token+zeroed"}},
        [UP] =
            {"up", up, 10, {"x/bf16/none/token", "sorted/index/none/sorted.16"}, {"h/bf16/none/sorted.16"}},
        [UP_ZERO] = {"up_zero",
                     up,
                     12,
                     {"x/bf16/none/token", "sorted/index/none/sorted.16"},
                     {"h/bf16/none/sorted.16", "y/bf16/none/token+zeroed"}},
        [DOWN] = {"down",
                  down,
                  8,
                  {"h/bf16/none/sorted.16", "sorted/index/none/sorted.16", "y/bf16/none/token+zeroed"},
                  {"y/bf16/none/token"}},
        [ZERO] = {"zero", 0, 4, {NULL}, {"y/bf16/none/token+zeroed"}},
    };
    static const struct {
        double us;
        const char *structure;
    } expected[] = {{24, "sort+zero | gather+gemm1+act | gemm2+weight+combine"},
                    {25, "sort | gather+gemm1+act+zero | gemm2+weight+combine"},
                    {27, "sort | gather+gemm1+act | gemm2+weight+combine"}};
    struct mf_step steps[N_STEPS];
    struct mf_path_step timed[N_STEPS];
    for (int i = 0; i < N_STEPS; i++) {
        steps[i] = (struct mf_step){.covers = rows[i].covers, .family = "two_stage"};
        (void)mf_copy(steps[i].name, sizeof(steps[i].name), rows[i].name);
        for (int n = 0; n < 3 && rows[i].needs[n]; n++)
            steps[i].needs[steps[i].n_needs++] = tensor_spec("%s", rows[i].needs[n]);
        for (int n = 0; n < 2 && rows[i].gives[n]; n++)
            steps[i].gives[steps[i].n_gives++] = tensor_spec("%s", rows[i].gives[n]);
        timed[i] = (struct mf_path_step){&steps[i], rows[i].us};
    }
    const struct mf_path_problem p = {
        .ops = sort | up | down, .format = MF_FORMAT_BF16, .steps = timed, .n_steps = N_STEPS, .keep = 8};
    _cleanup_(mf_freep) struct mf_path *paths = NULL;
    size_t n = 0;
    char text[MF_PATH_STRUCTURE_MAX];
    ck_assert_int_eq(mf_path_find(&p, &paths, &n), 0);
    ck_assert_uint_eq(n, MF_ARRAY_LEN(expected));
    for (size_t i = 0; i < n; i++) {
        ck_assert_double_eq_tol(paths[i].us, expected[i].us, 1e-9);
        mf_path_structure(paths[i].structure, text);
        ck_assert_str_eq(text, expected[i].structure);
    }
}

/* A problem as large as that of a real device class must take well below two seconds, because the
 * coordinator's writer thread waits for the result. */
MF_TEST(large_problem_is_fast)
{
    enum { PER_BLOCK = 40 };
    static const int blocks[] = {16, 32, 64, 128};
    static struct mf_step steps[4 * (3 * PER_BLOCK + 1) + 2];
    static struct mf_path_step timed[4 * (3 * PER_BLOCK + 1) + 2];
    size_t n = 0;
    seed_state = 11;
    for (size_t b = 0; b < MF_ARRAY_LEN(blocks); b++) {
        steps[n] = sort_step((int)n, blocks[b]);
        n++;
        for (int i = 0; i < 2 * PER_BLOCK; i++, n++) {
            struct mf_step *s = &steps[n];
            bool second = i % 2;
            *s = (struct mf_step){.family = "two_stage", .block_m = blocks[b], .n_gives = 1};
            mf_format(s->name, sizeof(s->name), "k%04zu", n);
            s->covers = second ? MF_OP_BIT(MF_OP_GEMM2) | MF_OP_BIT(MF_OP_WEIGHT) | MF_OP_BIT(MF_OP_COMBINE)
                               : MF_OP_BIT(MF_OP_GATHER) | MF_OP_BIT(MF_OP_GEMM1) | MF_OP_BIT(MF_OP_ACT);
            s->needs[s->n_needs++] = tensor_spec("sorted/index/none/sorted.%d", blocks[b]);
            s->needs[s->n_needs++] =
                second ? tensor_spec("h/bf16/none/sorted.%d", blocks[b]) : tensor_spec("x/bf16/none/token");
            s->needs[s->n_needs++] =
                tensor_spec("%s/bf16/none/%s", second ? "w2" : "w1", i & 2 ? "row" : "panel16");
            s->gives[0] =
                second ? tensor_spec("y/bf16/none/token") : tensor_spec("h/bf16/none/sorted.%d", blocks[b]);
        }
    }
    for (size_t i = 0; i < n; i++)
        timed[i] = (struct mf_path_step){&steps[i], 1 + draw(100000) / 100.0};
    struct mf_path_problem p = {.ops = ((1u << MF_OP_N_) - 1) & ~MF_OP_BIT(MF_OP_QUANT1) &
                                       ~MF_OP_BIT(MF_OP_QUANT2),
                                .format = MF_FORMAT_BF16,
                                .steps = timed,
                                .n_steps = n,
                                .keep = 32};
    _cleanup_(mf_freep) struct mf_path *paths = NULL;
    size_t n_paths = 0;
    uint64_t start = mf_now_ns();
    ck_assert_int_eq(mf_path_find(&p, &paths, &n_paths), 0);
    ck_assert_uint_eq(n_paths, 4 * 4 * 32);
    ck_assert_uint_lt(mf_now_ns() - start, 2000000000u);
}

/* Many conversions of one tensor, each of which only one of the following steps can use: the search would try
 * every set of up to six conversions. */
MF_TEST(explosion_is_cut)
{
    enum { SPECS = 200, DOWN = 830 };
    static struct mf_step steps[1 + SPECS + DOWN];
    static struct mf_path_step timed[1 + SPECS + DOWN];
    const mf_ops up = MF_OP_BIT(MF_OP_GEMM1) | MF_OP_BIT(MF_OP_ACT), down = MF_OP_BIT(MF_OP_GEMM2);
    size_t n = 0;
    steps[n] =
        (struct mf_step){.covers = up, .family = "two_stage", .name = "up", .n_needs = 1, .n_gives = 1};
    steps[n].needs[0] = tensor_spec("x/bf16/none/token");
    steps[n++].gives[0] = tensor_spec("h/bf16/none/sorted.1");
    for (int i = 0; i < SPECS + DOWN; i++, n++) {
        struct mf_step *s = &steps[n];
        *s = (struct mf_step){.covers = i < SPECS ? 0 : down, .family = "move", .n_needs = 1, .n_gives = 1};
        mf_format(s->name, sizeof(s->name), "k%04d", i);
        s->needs[0] = tensor_spec("h/bf16/none/sorted.%d", i < SPECS ? 1 : 1 + i % SPECS);
        s->gives[0] =
            i < SPECS ? tensor_spec("h/bf16/none/sorted.%d", 2 + i) : tensor_spec("y/bf16/none/token");
    }
    for (size_t i = 0; i < n; i++)
        timed[i] = (struct mf_path_step){&steps[i], 1 + (double)(i % 100)};
    const struct mf_path_problem p = {
        .ops = up | down, .format = MF_FORMAT_BF16, .steps = timed, .n_steps = n, .keep = 32};
    _cleanup_(mf_path_search_freep) struct mf_path_search *search = NULL;
    _cleanup_(mf_freep) struct mf_path *paths = NULL;
    size_t n_paths = 0;
    uint64_t start = mf_now_ns(), longest = 0;
    ck_assert_int_eq(mf_path_search_new(&p, &search), 0);
    for (int r = 0; r == 0;) {
        uint64_t slice = mf_now_ns();
        r = mf_path_search_run(search, 100000);
        ck_assert_int_ge(r, 0);
        slice = mf_now_ns() - slice;
        longest = longest > slice ? longest : slice;
    }
    ck_assert_int_eq(mf_path_search_take(search, &paths, &n_paths), 1);
    printf("cut after %.3f s, longest slice %.1f ms, %zu paths\n", (double)(mf_now_ns() - start) * 1e-9,
           (double)longest * 1e-6, n_paths);
    ck_assert_uint_gt(n_paths, 0);
    ck_assert_int_eq(paths[0].n, 2); /* without a conversion */
    ck_assert_uint_lt(mf_now_ns() - start, 3000000000u);
}

/* Fused steps for every run of ops, in many layouts: hundreds of thousands of complete pipelines. */
MF_TEST(many_pipelines_are_trimmed)
{
    enum { LAYOUTS = 10, OPS_MAX = 7, STEPS = 1000 };
    static const int chain[OPS_MAX] = {MF_OP_GATHER, MF_OP_GEMM1,  MF_OP_ACT,    MF_OP_QUANT2,
                                       MF_OP_GEMM2,  MF_OP_WEIGHT, MF_OP_COMBINE};
    static struct mf_step steps[STEPS];
    static struct mf_path_step timed[STEPS];
    struct mf_path_problem p = {.format = MF_FORMAT_BF16, .steps = timed, .keep = 32};
    for (int i = 0; i < OPS_MAX * OPS_MAX * LAYOUTS * 4; i++) {
        int from = i % OPS_MAX, to = i / OPS_MAX % OPS_MAX, layout = i / (OPS_MAX * OPS_MAX) % LAYOUTS;
        int block = i / (OPS_MAX * OPS_MAX * LAYOUTS) % 2 ? 32 : 16;
        bool more = i / (OPS_MAX * OPS_MAX * LAYOUTS) / 2;
        struct mf_step s = {.block_m = block, .family = "two_stage", .n_needs = 1, .n_gives = 1};
        for (int k = from; k <= to; k++)
            s.covers |= MF_OP_BIT(chain[k]);
        const mf_ops gemms = s.covers & (MF_OP_BIT(MF_OP_GEMM1) | MF_OP_BIT(MF_OP_GEMM2));
        if (!s.covers || (!gemms && layout > 0))
            continue;
        s.needs[0] = from == 0 ? tensor_spec("x/bf16/none/token") : tensor_before(chain[from], 0, block);
        s.gives[0] = tensor_before(to + 1 < OPS_MAX ? chain[to + 1] : MF_OP_N_, 0, block);
        if (gemms & MF_OP_BIT(MF_OP_GEMM1))
            s.needs[s.n_needs++] = tensor_spec("w1/fp8fn/per_token/l%d", layout);
        if (gemms & MF_OP_BIT(MF_OP_GEMM2))
            s.needs[s.n_needs++] = tensor_spec("w2/fp8fn/per_token/l%d", layout);
        if (more) /* a tensor that no step needs */
            s.gives[s.n_gives++] = tensor_spec("g/f32/none/sorted.%d", 1 + (int)p.n_steps % 150);
        mf_format(s.name, sizeof(s.name), "k%04zu", p.n_steps);
        p.ops |= s.covers;
        steps[p.n_steps] = s;
        timed[p.n_steps] =
            (struct mf_path_step){&steps[p.n_steps], 1 + (double)(p.n_steps * 7919 % 1000) / 10};
        p.n_steps++;
    }
    _cleanup_(mf_path_search_freep) struct mf_path_search *search = NULL;
    _cleanup_(mf_freep) struct mf_path *paths = NULL;
    size_t n_paths = 0;
    uint64_t start = mf_now_ns();
    ck_assert_int_eq(mf_path_search_new(&p, &search), 0);
    ck_assert_int_eq(mf_path_search_run(search, UINT64_MAX / 2), 1);
    uint64_t take = mf_now_ns();
    ck_assert_int_eq(mf_path_search_take(search, &paths, &n_paths), 1);
    uint64_t end = mf_now_ns();
    printf("%zu steps: searched in %.3f s, %zu paths taken in %.3f s\n", p.n_steps,
           (double)(take - start) * 1e-9, n_paths, (double)(end - take) * 1e-9);
    ck_assert_uint_gt(n_paths, 10000);
    ck_assert_uint_lt(n_paths, 60000);
    ck_assert_uint_lt(end - start, 3000000000u);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 60});
}
