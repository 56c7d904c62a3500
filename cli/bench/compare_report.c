#include "cli/bench/compare_report.h"

#include <math.h>
#include <stdio.h>

#include "cli/support/shape_arg.h"
#include "cli/support/text_out.h"
#include "common/base/text.h"

static const char *const only_in[MF_SIDES] = {[MF_SIDE_OLD] = "only in OLD", [MF_SIDE_NEW] = "only in NEW"};

static bool is_alone(const struct mf_compared *c)
{
    return !c->row[MF_SIDE_OLD] || !c->row[MF_SIDE_NEW];
}

static const struct mf_shape *shape_of(const struct mf_compared *c)
{
    return &(c->row[MF_SIDE_OLD] ? c->row[MF_SIDE_OLD] : c->row[MF_SIDE_NEW])->shape;
}

static const char *verdict_of(const struct mf_compared *c)
{
    if (is_alone(c))
        return only_in[c->row[MF_SIDE_OLD] ? MF_SIDE_OLD : MF_SIDE_NEW];
    if (mf_compared_is_wrong(c))
        return "WRONG";
    return mf_paired_verdict_name(c->is_same ? MF_PAIRED_SAME : c->paired.verdict);
}

void mf_compare_count(struct mf_compare_sum *sum, const struct mf_compared *c)
{
    if (is_alone(c)) {
        sum->n_alone[c->row[MF_SIDE_OLD] ? MF_SIDE_OLD : MF_SIDE_NEW]++;
        return;
    }
    if (mf_compared_is_wrong(c)) {
        sum->n_wrong++;
        return;
    }
    sum->n[c->is_same ? MF_PAIRED_SAME : c->paired.verdict]++;
    sum->n_unmeasured += c->is_same;
    if (c->rounds > 0) {
        sum->n_measured++;
        sum->log_sum += log1p(c->paired.change.mid);
    }
}

void mf_compare_print_header(const struct mf_compare_plan *plan, const char *device)
{
    printf("on %s; least effect %g%%, confidence %g%%, random order from seed %llu\n", device,
           100 * plan->rule.least_effect, 100 * plan->rule.confidence, (unsigned long long)plan->seed);
    printf("%-11s  %-44s %11s %11s %8s %20s %6s\n", "verdict", "shape", "old", "new", "change", "interval",
           "rounds");
}

void mf_compare_print_row(const struct mf_compared *c)
{
    char brief[MF_SHAPE_BRIEF_MAX], us[MF_SIDES][MF_US_MAX], interval[64];
    const struct mf_interval *change = &c->paired.change;

    mf_shape_brief(shape_of(c), brief);
    printf("%-11s  ", verdict_of(c));
    if (is_alone(c)) {
        printf("%s\n", brief);
    } else if (c->is_same) {
        printf("%-44s same pipeline in both tables\n", brief);
    } else if (mf_compared_is_wrong(c)) {
        printf("%s\n", brief);
        for (enum mf_side i = 0; i < MF_SIDES; i++) {
            if (c->wrong[i])
                printf("%13s%s: %s\n%13s     %s\n", "", i == MF_SIDE_OLD ? "old" : "new", c->reason[i], "",
                       c->row[i]->names);
        }
    } else {
        for (enum mf_side i = 0; i < MF_SIDES; i++)
            mf_us(c->us[i], us[i]);
        mf_format(interval, sizeof(interval), "%+.1f%% to %+.1f%%", 100 * change->low, 100 * change->high);
        printf("%-44s %11s %11s %+7.1f%% %20s %6lld\n", brief, us[MF_SIDE_OLD], us[MF_SIDE_NEW],
               100 * change->mid, interval, (long long)c->rounds);
    }
    (void)fflush(stdout);
}

static size_t n_compared(const struct mf_compare_sum *sum)
{
    size_t n = sum->n_wrong;

    for (enum mf_paired_verdict i = 0; i < MF_PAIRED_N_; i++)
        n += sum->n[i];
    return n;
}

static double geometric_mean(const struct mf_compare_sum *sum)
{
    return sum->n_measured > 0 ? exp(sum->log_sum / (double)sum->n_measured) : (double)NAN;
}

void mf_compare_print_sum(const struct mf_compare_sum *sum, bool is_aa)
{
    size_t n = n_compared(sum), n_false = sum->n[MF_PAIRED_FASTER] + sum->n[MF_PAIRED_SLOWER];

    printf("%zu rows in both: %zu SAME", n, sum->n[MF_PAIRED_SAME]);
    if (sum->n_unmeasured > 0)
        printf(" (%zu with the same pipeline)", sum->n_unmeasured);
    printf(", %zu FASTER, %zu SLOWER, %zu AMBIGUOUS, %zu WRONG", sum->n[MF_PAIRED_FASTER],
           sum->n[MF_PAIRED_SLOWER], sum->n[MF_PAIRED_AMBIGUOUS], sum->n_wrong);
    if (sum->n_alone[MF_SIDE_OLD] + sum->n_alone[MF_SIDE_NEW] > 0)
        printf("; %zu only in OLD, %zu only in NEW", sum->n_alone[MF_SIDE_OLD], sum->n_alone[MF_SIDE_NEW]);
    (void)putchar('\n');
    if (sum->n_measured > 0)
        printf("new / old: geometric mean %.4f over %zu measured rows\n", geometric_mean(sum),
               sum->n_measured);
    if (is_aa && n > 0)
        printf("A/A: %zu of %zu rows FASTER or SLOWER, all false positives: %.2f%%; %zu AMBIGUOUS: %.2f%%\n",
               n_false, n, 100.0 * (double)n_false / (double)n, sum->n[MF_PAIRED_AMBIGUOUS],
               100.0 * (double)sum->n[MF_PAIRED_AMBIGUOUS] / (double)n);
}

static void add_side(cJSON *item, const char *name, const struct mf_compared *c, enum mf_side i)
{
    cJSON *side = c->row[i] ? cJSON_AddObjectToObject(item, name) : cJSON_AddNullToObject(item, name);

    if (!c->row[i])
        return;
    cJSON_AddStringToObject(side, "pipeline", c->row[i]->names);
    cJSON_AddNumberToObject(side, "table_us", c->row[i]->us);
    if (c->rounds > 0)
        cJSON_AddNumberToObject(side, "us", c->us[i]);
    cJSON_AddBoolToObject(side, "wrong", c->wrong[i]);
    cJSON_AddStringToObject(side, "reason", c->reason[i]);
}

cJSON *mf_compare_row_json(const struct mf_compared *c)
{
    cJSON *item = cJSON_CreateObject(), *change;
    char shape[MF_SHAPE_TEXT_MAX];

    mf_shape_print(shape_of(c), shape);
    cJSON_AddStringToObject(item, "shape", shape);
    cJSON_AddStringToObject(item, "verdict", verdict_of(c));
    add_side(item, "old", c, MF_SIDE_OLD);
    add_side(item, "new", c, MF_SIDE_NEW);
    cJSON_AddNumberToObject(item, "rounds", (double)c->rounds);
    if (c->rounds > 0) {
        change = cJSON_AddObjectToObject(item, "change");
        cJSON_AddNumberToObject(change, "low", c->paired.change.low);
        cJSON_AddNumberToObject(change, "mid", c->paired.change.mid);
        cJSON_AddNumberToObject(change, "high", c->paired.change.high);
    }
    return item;
}

cJSON *mf_compare_sum_json(const struct mf_compare_sum *sum, const struct mf_compare_plan *plan,
                           const char *device)
{
    cJSON *item = cJSON_CreateObject(), *verdicts = cJSON_AddObjectToObject(item, "verdicts");

    for (enum mf_paired_verdict i = 0; i < MF_PAIRED_N_; i++)
        cJSON_AddNumberToObject(verdicts, mf_paired_verdict_name(i), (double)sum->n[i]);
    cJSON_AddNumberToObject(verdicts, "WRONG", (double)sum->n_wrong);
    for (enum mf_side i = 0; i < MF_SIDES; i++)
        cJSON_AddNumberToObject(verdicts, only_in[i], (double)sum->n_alone[i]);
    cJSON_AddStringToObject(item, "device", device);
    cJSON_AddNumberToObject(item, "measured", (double)sum->n_measured);
    cJSON_AddNumberToObject(item, "geometric_mean", geometric_mean(sum)); /* NAN prints as null */
    cJSON_AddNumberToObject(item, "least_effect", plan->rule.least_effect);
    cJSON_AddNumberToObject(item, "confidence", plan->rule.confidence);
    cJSON_AddNumberToObject(item, "seed", (double)plan->seed);
    return item;
}
