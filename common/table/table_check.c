#include "common/table/table_check.h"

#include "common/base/text.h"
#include "common/moe/device_peak.h"
#include "common/moe/layer.h"
#include "common/moe/production_key.h"
#include "common/moe/production_lookup.h"
#include "common/moe/token_order.h"
#include "common/table/table_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------ severity */

enum severity_rule { AS_READ, WARNS, FAILS };

/* clang-format off */
static const struct {
    enum severity_rule severity;
    const char *meaning;
} codes[MF_PROBLEM_N_] = {
    [MF_PROBLEM_RAGGED]      = {AS_READ, "more or fewer cells than the header"},
    [MF_PROBLEM_MALFORMED]   = {FAILS,   "not a valid CSV row"},
    [MF_PROBLEM_VALUE]       = {FAILS,   "invalid cell for its column"},
    [MF_PROBLEM_RANGE]       = {FAILS,   "value out of range"},
    [MF_PROBLEM_MISSING]     = {AS_READ, "empty cell"},
    [MF_PROBLEM_ZERO_TIME]   = {FAILS,   "time of 0"},
    [MF_PROBLEM_NO_TIME]     = {WARNS,   "row without a time"},
    [MF_PROBLEM_COPIED_TIME] = {FAILS,   "same time for several token counts or device classes"},
    [MF_PROBLEM_TAGGED]      = {WARNS,   "tag is set: libfmoe skips the row, AITER may"},
    [MF_PROBLEM_SPELLING]    = {FAILS,   "production matches the canonical spelling only"},
    [MF_PROBLEM_BUCKET]      = {WARNS,   "token count is not a look-up bucket"},
    [MF_PROBLEM_DUPLICATE]   = {FAILS,   "two rows with the same key"},
    [MF_PROBLEM_OPERATOR]    = {WARNS,   "table of another operator"},
    [MF_PROBLEM_CONFLICT]    = {FAILS,   "git conflict marker"},
    [MF_PROBLEM_MIXED]       = {FAILS,   "two spellings in one column: no row matches"},
    [MF_PROBLEM_UNKNOWN_COLUMN]  = {WARNS, "unknown column"},
    [MF_PROBLEM_MISSPELT_COLUMN] = {FAILS, "misspelt shape column"},
    [MF_PROBLEM_SHADOWED]    = {FAILS,   "AITER serves a row with another activation"},
    [MF_PROBLEM_BEYOND_PEAK] = {FAILS,   "time below what the device can reach"},
    [MF_PROBLEM_UNSTABLE]    = {FAILS,   "no measurement of the time was accepted"},
    [MF_PROBLEM_TOKEN_ORDER] = {FAILS,   "slower than a row with more tokens"},
    [MF_PROBLEM_ERR_LIMIT]   = {FAILS,   "err1 or err2 above the limit"},
    [MF_PROBLEM_KERNEL]      = {FAILS,   "unknown kernel name"},
    [MF_PROBLEM_UNLISTED]    = {WARNS,   "kernel name that this build's AITER lists lack"},
    [MF_PROBLEM_FOREIGN]     = {WARNS,   "kernel family that this build lacks"},
    [MF_PROBLEM_UNREACHABLE]     = {WARNS,   "key that production never looks up"},
    [MF_PROBLEM_HOLE]        = {WARNS,   "missing token count in a ladder"},
    [MF_PROBLEM_KEY_ORDER]   = {WARNS,   "token counts out of order"},
    [MF_PROBLEM_IGNORED]     = {WARNS,   "value that the kernel ignores"},
};
/* clang-format on */

enum mf_severity mf_check_severity(enum mf_problem_code code, enum mf_severity as_read)
{
    if (as_read == MF_ERROR || codes[code].severity == FAILS)
        return MF_ERROR;
    return MF_WARNING;
}

const char *mf_check_meaning(enum mf_problem_code code)
{
    return codes[code].meaning;
}

/* ---------------------------------------------------------------------------------------- checked rows */

struct ref {
    struct mf_table *table;
    const struct mf_table_row *row;
    size_t n_table; /* position of the table */
    size_t order;   /* position among all rows of all tables */
    /* false: production's look-up skips the row because of its tag or, in AITER, because of its spelling */
    bool considered;
};

struct check {
    const struct mf_check_options *options;
    struct ref *refs; /* rows of tuned fmoe tables */
    size_t n;
    int r; /* first error while a finding was stored */
};

static bool is_checked(const struct mf_table *t)
{
    return t->tuned && t->op == MF_TABLE_FMOE;
}

/* True for rows that AITER serves, which are those without `pipeline`. libfmoe serves the rows with
 * `pipeline`, and libfmoe's key includes the activation. */
static bool is_for_aiter(const struct mf_table_row *row)
{
    return !row->own[MF_OWN_PIPELINE] || !*row->own[MF_OWN_PIPELINE];
}

static int collect(struct mf_table *const *tables, size_t n, struct check *c)
{
    size_t cap = 0, order = 0;
    for (size_t i = 0; i < n; i++)
        cap += tables[i]->n_rows;
    c->refs = calloc(cap + 1, sizeof(*c->refs));
    if (!c->refs)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < tables[i]->n_rows && is_checked(tables[i]); k++) {
            const struct mf_table_row *row = &tables[i]->rows[k];
            bool considered =
                mf_lookup_considers(is_for_aiter(row) ? MF_LOOKUP_AITER : MF_LOOKUP_MOEFARM, tables[i], row);
            c->refs[c->n++] = (struct ref){tables[i], row, i, order++, considered};
        }
    }
    return 0;
}

/* Removes rows that production skips, because such rows shadow no row and fill no hole. */
static void drop_ignored(struct check *c)
{
    size_t n = 0;
    for (size_t i = 0; i < c->n; i++)
        if (c->refs[i].considered)
            c->refs[n++] = c->refs[i];
    c->n = n;
}

__attribute__((format(printf, 5, 6))) static void add_finding(struct check *c, const struct ref *ref,
                                                              enum mf_problem_code code, const char *column,
                                                              const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int r = mf_table_problemv(
        ref->table, &(struct mf_problem){MF_WARNING, code, ref->row->line, column, NULL}, format, args);
    va_end(args);
    if (r < 0 && c->r == 0)
        c->r = r;
}

#define LOCATION_MAX 160
/* Formats the location of a row as seen from table `from`: "line 7", "other.csv line 7". */
static const char *format_location(const struct mf_table *from, const struct mf_table *table, int64_t line,
                                   char buf[LOCATION_MAX])
{
    const char *slash = strrchr(table->name, '/');
    if (from == table)
        mf_format(buf, LOCATION_MAX, "line %" PRId64, line);
    else
        mf_format(buf, LOCATION_MAX, "%.120s line %" PRId64, slash ? slash + 1 : table->name, line);
    return buf;
}

/* ------------------------------------------------------------------------------ duplicates and shadows */

static int check_duplicates(struct mf_table *const *tables, size_t n, struct check *c)
{
    _cleanup_(mf_freep) const struct mf_table **checked = calloc(n + 1, sizeof(*checked));
    _cleanup_(mf_freep) struct mf_table_clash *clashes = NULL;
    size_t n_checked = 0, n_clashes = 0;
    if (!checked)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++)
        if (is_checked(tables[i]))
            checked[n_checked++] = tables[i];
    int r = mf_table_clashes(checked, n_checked, &clashes, &n_clashes);
    for (size_t i = 0; i < n_clashes && r == 0; i++) {
        const struct mf_table_clash *clash = &clashes[i];
        char place[LOCATION_MAX];
        if (clash->table_a == clash->table_b)
            continue; /* reported by the reader */
        for (size_t k = 0; k < n; k++)
            if (tables[k] == clash->table_b)
                add_finding(c, &(struct ref){.table = tables[k], .row = clash->b}, MF_PROBLEM_DUPLICATE, "",
                            "same key as %s, which has %.10g us (here %.10g us); production "
                            "refuses such a set of files: remove one of the rows",
                            format_location(clash->table_b, clash->table_a, clash->a->line, place),
                            clash->a->us, clash->b->us);
    }
    return r;
}

static int compare_class(const struct mf_device_class *a, const struct mf_device_class *b)
{
    int r = strcmp(a->gfx, b->gfx);
    return r != 0 ? r : (a->cu_num > b->cu_num) - (a->cu_num < b->cu_num);
}

static int compare_order(const struct ref *a, const struct ref *b)
{
    return (a->order > b->order) - (a->order < b->order);
}

/* Compares the keys of AITER's look-up, which exclude the activation. */
static int compare_aiter_key(const struct ref *a, const struct ref *b)
{
    struct mf_shape x = a->row->shape, y = b->row->shape;
    int r = compare_class(&a->row->class, &b->row->class);
    x.act_type = y.act_type = MF_ACT_NO;
    return r != 0 ? r : mf_shape_compare(&x, &y);
}

static int compare_aiter(const void *a, const void *b)
{
    int r = compare_aiter_key(a, b);
    return r != 0 ? r : compare_order(a, b);
}

static void check_shadowed(struct check *c)
{
    char place[LOCATION_MAX];
    qsort(c->refs, c->n, sizeof(*c->refs), compare_aiter);
    for (size_t i = 0, first = 0; i < c->n; i++) {
        const struct ref *ref = &c->refs[i];
        if (i > 0 && compare_aiter_key(&c->refs[first], ref) != 0)
            first = i;
        const struct ref *served = &c->refs[first];
        if (!is_for_aiter(ref->row) || !is_for_aiter(served->row) ||
            served->row->shape.act_type == ref->row->shape.act_type)
            continue;
        add_finding(
            c, ref, MF_PROBLEM_SHADOWED, "act_type",
            "AITER never serves this row, because AITER's look-up ignores the activation and finds "
            "the row for %s in %s first; keep one activation per layer in files that are loaded together",
            mf_act_name(served->row->shape.act_type),
            format_location(ref->table, served->table, served->row->line, place));
    }
}

/* ---------------------------------------------------------------------------------------- copied times */

/* Compares layer model and time, but not the token count and the device class. */
static int compare_time(const struct ref *a, const struct ref *b)
{
    struct mf_shape x = a->row->shape, y = b->row->shape;
    x.token = y.token = 0;
    int r = mf_shape_compare(&x, &y);
    return r != 0 ? r : (a->row->us > b->row->us) - (a->row->us < b->row->us);
}

/* Orders rows by layer model and time, then by table, device class and token count. */
static int compare_copies(const void *va, const void *vb)
{
    const struct ref *a = va, *b = vb;
    int r = compare_time(a, b);
    if (r == 0)
        r = (a->n_table > b->n_table) - (a->n_table < b->n_table);
    if (r == 0)
        r = compare_class(&a->row->class, &b->row->class);
    if (r == 0)
        r = (a->row->shape.token > b->row->shape.token) - (a->row->shape.token < b->row->shape.token);
    return r != 0 ? r : compare_order(a, b);
}

static void report_copy(struct check *c, const struct ref *ref, const struct ref *other)
{
    const struct mf_table_row *row = other->row;
    char place[LOCATION_MAX];
    if (compare_class(&ref->row->class, &row->class) == 0 && ref->row->shape.token == row->shape.token)
        return; /* a duplicate */
    add_finding(c, ref, MF_PROBLEM_COPIED_TIME, "us",
                "us is %.10g here and for %" PRId64 " tokens on %s/%d (%s): at most one was measured; tune "
                "these shapes again",
                ref->row->us, row->shape.token, row->class.gfx, row->class.cu_num,
                format_location(ref->table, other->table, row->line, place));
}

/* Returns how many of the rows have the table and device class of the first. */
static size_t count_together(const struct ref *refs, size_t n)
{
    size_t k = 1;
    while (k < n && refs[k].table == refs[0].table &&
           compare_class(&refs[k].row->class, &refs[0].row->class) == 0)
        k++;
    return k;
}

/* Reports the rows refs[0] to refs[n - 1], which have one layer model and one time, if they are of several
 * device classes or tables. Two rows with a sample count may be equal by chance (table_copied.c). The reader
 * has reported rows that have the time for several token counts of their table and class. */
static void report_copies(struct check *c, const struct ref *refs, size_t n)
{
    size_t first = count_together(refs, n);
    for (size_t i = 0, k; i < n && first < n; i += k) {
        k = count_together(refs + i, n - i);
        const char *samples = refs[i].row->own[MF_OWN_N];
        bool reported = refs[i].row->shape.token != refs[i + k - 1].row->shape.token;
        if (!reported && (!samples || !*samples || n > 2))
            report_copy(c, &refs[i], i > 0 ? &refs[0] : &refs[first]);
    }
}

static void check_copies(struct check *c)
{
    qsort(c->refs, c->n, sizeof(*c->refs), compare_copies);
    for (size_t i = 0, n; i < c->n; i += n) {
        n = 1;
        while (i + n < c->n && compare_time(&c->refs[i], &c->refs[i + n]) == 0)
            n++;
        if (c->refs[i].row->us > 0)
            report_copies(c, &c->refs[i], n);
    }
}

/* ------------------------------------------------------------------------------------------- each row */

/* Tolerance of the bandwidth check. A measured rate above 1.1 times the device's memory bandwidth is
 * impossible. */
#define BANDWIDTH_SLACK 1.1

static void check_peak(struct check *c, const struct ref *ref)
{
    const struct mf_table_row *row = ref->row;
    const struct mf_shape *s = &row->shape;
    const struct mf_device_peak *peak = mf_device_peak_find(&row->class);
    if (!peak || !(row->us > 0))
        return;
    double tflops = mf_layer_flops(s) / (row->us * 1e6), most = mf_device_peak_tflops(peak, s->q_dtype_a);
    int64_t active = llround(mf_layer_expected_active(s));
    /* The previous call may have left part of the data in the caches */
    double gbs = (mf_layer_min_bytes(s, active) - peak->cache_mb * 1048576) / (row->us * 1e3);
    if (tflops > most)
        add_finding(
            c, ref, MF_PROBLEM_BEYOND_PEAK, "us",
            "us is %.10g, which is %.0f TFLOP/s with %s; %s/%d (%s) reaches at most %.0f (%s), so the "
            "time is wrong; tune the shape again",
            row->us, tflops, mf_dtype_name(s->q_dtype_a), row->class.gfx, row->class.cu_num, peak->model,
            most, peak->source);
    else if (gbs > BANDWIDTH_SLACK * peak->gbs)
        add_finding(c, ref, MF_PROBLEM_BEYOND_PEAK, "us",
                    "us is %.10g, which is %.0f GB/s for the part of the weights of %" PRId64
                    " experts that the caches of %s/%d (%s) cannot hold; "
                    "its memory reaches at most %.0f GB/s (%s), so the time is wrong; tune the shape again",
                    row->us, gbs, active, row->class.gfx, row->class.cu_num, peak->model, peak->gbs,
                    peak->source);
}

static void check_production_key(struct check *c, const struct ref *ref)
{
    const struct mf_shape *s = &ref->row->shape;
    struct mf_shape key;
    char why[MF_REASON_MAX - 80];
    if (!ref->considered || mf_token_bucket(s->token) != s->token)
        return; /* no check, because the reader reports the tag or the token count */
    if (!is_for_aiter(ref->row) || mf_production_row(s, c->options->env, &key, why, sizeof(why)) == 0)
        return;
    const char *setting = mf_production_setting(s);
    if (setting)
        add_finding(
            c, ref, MF_PROBLEM_UNREACHABLE, "q_dtype_a",
            "no AITER call computes this key: %s. With %s calls do: set it for this check too, or tune that "
            "shape",
            why, setting);
    else
        add_finding(c, ref, MF_PROBLEM_UNREACHABLE, "q_dtype_a",
                    "no AITER call computes this key: %s; tune that shape instead", why);
}

static void check_err(struct check *c, const struct ref *ref)
{
    if (!is_for_aiter(ref->row))
        return;
    const double errs[] = {ref->row->err1, ref->row->err2};
    static const char *const columns[] = {"err1", "err2"};
    for (size_t i = 0; i < MF_ARRAY_LEN(errs); i++)
        if (errs[i] > c->options->err_ratio)
            add_finding(c, ref, MF_PROBLEM_ERR_LIMIT, columns[i],
                        "%s is %.1f%%, above the limit of %.1f%%: too many results differ; "
                        "tune the shape again with that limit, or remove the row",
                        columns[i], 100 * errs[i], 100 * c->options->err_ratio);
}

static void check_name(struct check *c, const struct ref *ref)
{
    struct mf_check_name wrong = {.column = ""};
    if (c->options->name && c->options->name(ref->row, c->options->name_data, &wrong))
        add_finding(c, ref, wrong.code, wrong.column, "%s", wrong.reason);
}

static void check_unstable(struct check *c, const struct ref *ref)
{
    const char *reason = ref->row->own[MF_OWN_UNSTABLE];
    if (reason && *reason)
        add_finding(c, ref, MF_PROBLEM_UNSTABLE, "us",
                    "us is %.10g, but no measurement was accepted: %s; tune the shape again on a quiet host",
                    ref->row->us, reason);
}

/* -------------------------------------------------------------------------------------------- ladders */

static int compare_model(const struct ref *a, const struct ref *b)
{
    struct mf_shape x = a->row->shape, y = b->row->shape;
    int r = compare_class(&a->row->class, &b->row->class);
    x.token = y.token = 0;
    return r != 0 ? r : mf_shape_compare(&x, &y);
}

static int compare_ladder(const void *a, const void *b)
{
    const struct ref *x = a, *y = b;
    int r = compare_model(x, y);
    if (r == 0)
        r = (x->row->shape.token > y->row->shape.token) - (x->row->shape.token < y->row->shape.token);
    return r != 0 ? r : compare_order(x, y);
}

/* Compares device model and routing of the measurement. Times with different ones cannot be compared. */
static int compare_basis(const struct ref *a, const struct ref *b)
{
    static const enum mf_own basis[] = {MF_OWN_MODEL, MF_OWN_ROUTING};
    for (size_t i = 0; i < MF_ARRAY_LEN(basis); i++) {
        const char *x = a->row->own[basis[i]], *y = b->row->own[basis[i]];
        int r = strcmp(x ? x : "", y ? y : "");
        if (r != 0)
            return r;
    }
    return 0;
}

static int compare_measured_ladder(const void *a, const void *b)
{
    const struct ref *x = a, *y = b;
    int r = compare_model(x, y);
    if (r == 0)
        r = compare_basis(x, y);
    return r != 0 ? r : compare_ladder(x, y);
}

static struct mf_rung rung_of(const struct mf_table_row *row)
{
    struct mf_rung rung = {row->shape.token, row->us, (double)NAN};
    const char *mad = row->own[MF_OWN_MAD];
    double value;
    if (mad && mf_parse_double(mad, &value) == 0 && value > 0)
        rung.mad = value;
    return rung;
}

static void check_breach(struct check *c, const struct ref *ref, const struct ref *fastest)
{
    char why[MF_REASON_MAX], place[LOCATION_MAX];
    const struct mf_rung own = rung_of(ref->row), other = rung_of(fastest->row);
    if (!mf_token_order_breach(&own, &other, 1))
        return;
    mf_token_order_explain(&own, &other, why);
    add_finding(c, ref, MF_PROBLEM_TOKEN_ORDER, "us", "us is %s (%s); tune both shapes again on a quiet host",
                why, format_location(ref->table, fastest->table, fastest->row->line, place));
}

/* Finds rows that are slower than a row with more tokens. Goes from the most tokens to the fewest, with the
 * fastest row so far. */
static void check_token_order(struct check *c)
{
    const struct ref *fastest = NULL;
    qsort(c->refs, c->n, sizeof(*c->refs), compare_measured_ladder);
    for (size_t i = c->n; i-- > 0;) {
        const struct ref *ref = &c->refs[i];
        if (fastest && (compare_model(ref, fastest) != 0 || compare_basis(ref, fastest) != 0))
            fastest = NULL;
        if (!(ref->row->us > 0))
            continue;
        if (fastest)
            check_breach(c, ref, fastest);
        if (!fastest || ref->row->us < fastest->row->us)
            fastest = ref;
    }
}

/* Returns the next larger bucket. */
static int64_t next_bucket(int64_t bucket)
{
    return bucket < 32768 ? bucket * 2 : 131072;
}

/* True if some production call computes this key, which is the case unless a rule selects another activation
 * type. */
static bool is_production_key(const struct check *c, struct mf_shape shape, int64_t token)
{
    struct mf_shape key;
    char why[MF_REASON_MAX];
    shape.token = token;
    return mf_production_row(&shape, c->options->env, &key, why, sizeof(why)) == 0;
}

static void check_gap(struct check *c, const struct ref *below, const struct ref *above)
{
    char missing[128] = "", place[LOCATION_MAX];
    size_t len = 0;
    int64_t end = above->row->shape.token;
    for (int64_t t = next_bucket(below->row->shape.token); t < end; t = next_bucket(t)) {
        if (!is_production_key(c, above->row->shape, t) || len + 16 > sizeof(missing))
            continue;
        mf_format(missing + len, sizeof(missing) - len, "%s%" PRId64, len ? ", " : "", t);
        len = strlen(missing);
    }
    if (len > 0)
        add_finding(c, above, MF_PROBLEM_HOLE, "token",
                    "the ladder of this layer lacks %s tokens, between its rows for %" PRId64
                    " (%s) and %" PRId64 " (here): calls of these sizes have no row; tune these token counts",
                    missing, below->row->shape.token,
                    format_location(above->table, below->table, below->row->line, place), end);
}

static void check_ladders(struct check *c)
{
    const struct ref *below = NULL;
    qsort(c->refs, c->n, sizeof(*c->refs), compare_ladder);
    for (size_t i = 0; i < c->n; i++) {
        const struct ref *ref = &c->refs[i];
        if (mf_token_bucket(ref->row->shape.token) != ref->row->shape.token)
            continue; /* not a bucket */
        if (below && compare_model(below, ref) == 0)
            check_gap(c, below, ref);
        below = ref;
    }
}

/* ---------------------------------------------------------------------------------------- entry points */

int mf_tables_check(struct mf_table *const *tables, size_t n, const struct mf_check_options *options)
{
    struct check c = {.options = options};
    int r = collect(tables, n, &c);
    if (r == 0)
        r = check_duplicates(tables, n, &c);
    for (size_t i = 0; i < c.n && r == 0; i++) {
        check_peak(&c, &c.refs[i]);
        check_err(&c, &c.refs[i]);
        check_unstable(&c, &c.refs[i]);
        check_production_key(&c, &c.refs[i]);
        check_name(&c, &c.refs[i]);
    }
    if (r == 0) {
        check_copies(&c);
        drop_ignored(&c);
        check_shadowed(&c);
        check_ladders(&c);
        check_token_order(&c);
        r = c.r;
    }
    free(c.refs);
    for (size_t i = 0; i < n && r == 0; i++)
        r = mf_table_sort_problems(tables[i]);
    return r;
}

bool mf_check_applies(const struct mf_table *t, enum mf_problem_code code)
{
    return t->op == MF_TABLE_FMOE || t->op == MF_TABLE_TRITON || code == MF_PROBLEM_OPERATOR ||
           code == MF_PROBLEM_MALFORMED || code == MF_PROBLEM_CONFLICT;
}

int mf_table_unreadable(const char *name, const char *why, struct mf_table **ret)
{
    _cleanup_(mf_table_freep) struct mf_table *t = NULL;
    int r = mf_table_new(name, false, &t);
    if (r == 0)
        r = mf_table_problem(t, &(struct mf_problem){MF_ERROR, MF_PROBLEM_MALFORMED, 1, "", NULL}, "%s", why);
    if (r < 0)
        return r;
    *ret = MF_TAKE(t);
    return 0;
}
