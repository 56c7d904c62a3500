#include "common/moe/production_lookup.h"

#include <string.h>

#include "common/moe/production_key.h"
#include "common/table/table.h"

MF_NAMES_DEFINE(mf_lookup, MF_LOOKUP_, MF_LOOKUP_MAP)

/* The two largest token buckets (fused_moe.py, _PADDED_M_TIERS). If the table has no row for the upper
 * bucket, production tries the lower one. */
#define TIER_UPPER 131072
#define TIER_LOWER 32768

/* Tag of AITER's fallback rows for hosts without FlyDSL. */
#define TAG_FALLBACK "flydsl_fallback"

static struct mf_shape key_of(const struct mf_shape *call, enum mf_lookup rules,
                              const struct mf_production_env *env)
{
    struct mf_shape key = *call;

    if (rules == MF_LOOKUP_MOEFARM)
        key.token = mf_token_bucket(call->token);
    else
        (void)mf_production_shape(call, env, &key, NULL, 0);
    return key;
}

size_t mf_lookup_tries(const struct mf_shape *call, enum mf_lookup rules, const struct mf_production_env *env,
                       struct mf_lookup_try tries[MF_LOOKUP_TRIES_MAX])
{
    struct mf_shape key = key_of(call, rules, env);
    unsigned any = rules == MF_LOOKUP_AITER ? MF_LOOKUP_ANY_ACT | MF_LOOKUP_ANY_FORM : 0;
    size_t n = 0;

    for (;;) {
        tries[n++] = (struct mf_lookup_try){.key = key, .any = any};
        if (rules != MF_LOOKUP_AITER && key.ep_experts > 0)
            tries[n++] = (struct mf_lookup_try){.key = key, .any = MF_LOOKUP_ANY_RANK};
        if (key.token != TIER_UPPER)
            return n;
        key.token = TIER_LOWER;
    }
}

/* Returns a shape with the twelve columns of `shape` and the form of `form`. */
static struct mf_shape with_form(const struct mf_shape *shape, const struct mf_shape *form)
{
    struct mf_shape s = *form;

    s.token = shape->token;
    s.model_dim = shape->model_dim;
    s.inter_dim = shape->inter_dim;
    s.expert = shape->expert;
    s.topk = shape->topk;
    s.act_type = shape->act_type;
    s.dtype = shape->dtype;
    s.q_dtype_a = shape->q_dtype_a;
    s.q_dtype_w = shape->q_dtype_w;
    s.q_type = shape->q_type;
    s.use_g1u1 = shape->use_g1u1;
    s.doweight_stage1 = shape->doweight_stage1;
    return s;
}

bool mf_lookup_matches(const struct mf_lookup_try *attempt, const struct mf_shape *row)
{
    const struct mf_shape *key = &attempt->key;
    struct mf_shape s = attempt->any & MF_LOOKUP_ANY_FORM ? with_form(row, key) : *row;

    if (attempt->any & MF_LOOKUP_ANY_ACT)
        s.act_type = key->act_type;
    if (attempt->any & MF_LOOKUP_ANY_RANK)
        s.ep_first = key->ep_first;
    return mf_shape_equal(&s, key);
}

/* True if the row's key is spelled as production writes it. AITER reads a flag `True` as 1 only if all rows
 * of the table use this spelling; in a table with both spellings, AITER matches no row. */
static bool is_spelled(const struct mf_table *table, const struct mf_table_row *row)
{
    const unsigned flags = 3u << (MF_SHAPE_N_COLUMNS - 2); /* use_g1u1, doweight_stage1 */

    return table->n_of[MF_PROBLEM_MIXED][MF_WARNING] == 0 && (row->misspelled & ~flags) == 0;
}

bool mf_lookup_considers(enum mf_lookup rules, const struct mf_table *table, const struct mf_table_row *row)
{
    bool tagged = row->tag && *row->tag;

    if (rules != MF_LOOKUP_AITER)
        return !tagged && !row->variant;
    return !(tagged && strcmp(row->tag, TAG_FALLBACK) == 0) && is_spelled(table, row);
}

/* Returns the first row of the table that matches the try, or NULL. */
static const struct mf_table_row *scan(const struct mf_table *table, const struct mf_device_class *class,
                                       const struct mf_lookup_try *attempt, enum mf_lookup rules)
{
    for (size_t i = 0; i < table->n_rows; i++) {
        const struct mf_table_row *row = &table->rows[i];

        if (mf_lookup_matches(attempt, &row->shape) && mf_device_class_equal(&row->class, class) &&
            mf_lookup_considers(rules, table, row))
            return row;
    }
    return NULL;
}

bool mf_lookup_find(const struct mf_table *const *tables, size_t n, const struct mf_device_class *class,
                    const struct mf_shape *call, enum mf_lookup rules, const struct mf_production_env *env,
                    struct mf_lookup_found *ret)
{
    struct mf_lookup_try tries[MF_LOOKUP_TRIES_MAX];
    size_t n_tries = mf_lookup_tries(call, rules, env, tries);

    for (size_t i = 0; i < n_tries; i++) {
        for (size_t j = 0; j < n; j++) {
            const struct mf_table_row *row = scan(tables[j], class, &tries[i], rules);
            if (row) {
                *ret = (struct mf_lookup_found){tables[j], row, i};
                return true;
            }
        }
    }
    return false;
}
