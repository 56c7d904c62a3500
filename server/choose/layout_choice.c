#include "server/choose/layout_choice.h"

#include "common/base/text.h"

#include <string.h>

/* sums that differ from the lowest sum by less than this fraction count as equal */
#define SAME_TIME 0.0005

int mf_layout_compare(const void *va, const void *vb)
{
    const struct mf_layout_sum *a = va, *b = vb;
    if (a->n_tasks != b->n_tasks)
        return b->n_tasks - a->n_tasks;
    if (a->us != b->us)
        return a->us < b->us ? -1 : 1;
    return strcmp(a->text, b->text);
}

size_t mf_layouts_to_race(struct mf_layout_sum *layouts, size_t n)
{
    size_t in = n > 0;
    for (size_t i = 1; i < n && in < MF_LAYOUTS_RACED_MAX; i++) {
        struct mf_layout_sum l = layouts[i];
        if (l.n_tasks < layouts[0].n_tasks || l.least_us > layouts[0].most_us)
            continue;
        memmove(layouts + in + 1, layouts + in, (i - in) * sizeof(l));
        layouts[in++] = l;
    }
    return in;
}

int mf_layouts_fastest(const struct mf_layout_sum *layouts, size_t n)
{
    int best = -1, pick = -1;
    for (size_t i = 0; i < n; i++) {
        const struct mf_layout_sum *l = &layouts[i];
        if (!l->raced || l->n_raced == 0)
            continue;
        if (best < 0 || l->n_raced > layouts[best].n_raced ||
            (l->n_raced == layouts[best].n_raced && l->raced_us < layouts[best].raced_us))
            best = (int)i;
    }
    for (size_t i = 0; best >= 0 && i < n; i++) {
        const struct mf_layout_sum *l = &layouts[i];
        if (!l->raced || l->n_raced != layouts[best].n_raced ||
            l->raced_us > layouts[best].raced_us * (1 + SAME_TIME))
            continue;
        if (pick < 0 || strcmp(l->text, layouts[pick].text) < 0)
            pick = (int)i;
    }
    return pick;
}

/* "1,234.5 us", or "1e+26 us" from GROUPED_MAX */
#define US_MAX      40
#define GROUPED_MAX 1e15
static const char *print_us(double us, char buf[US_MAX])
{
    char digits[US_MAX], *to = buf, *end = buf + US_MAX;
    bool grouped = us >= 0 && us < GROUPED_MAX;
    mf_format(digits, sizeof(digits), grouped ? "%.1f" : "%.4g", us);
    size_t whole = grouped ? strcspn(digits, ".") : 0;
    for (size_t i = 0; digits[i]; i++) {
        if (i > 0 && i < whole && (whole - i) % 3 == 0)
            to = mf_append(to, end, ",");
        to = mf_append(to, end, (char[]){digits[i], '\0'});
    }
    (void)mf_append(to, end, " us");
    return buf;
}

static void explain_chosen(size_t n, const struct mf_layout_sum *l, char ret[MF_REASON_MAX])
{
    char us[US_MAX];
    if (l->raced)
        mf_format(ret, MF_REASON_MAX, "won the races: %s in total over %d token counts",
                  print_us(l->raced_us, us), l->n_raced);
    else if (n > 1)
        mf_format(ret, MF_REASON_MAX, "has the lowest forecast: %s in total over %d token counts",
                  print_us(l->us, us), l->n_tasks);
    else
        mf_format(ret, MF_REASON_MAX, "is the only layout");
}

void mf_layout_explain(const struct mf_layout_sum *layouts, size_t n, size_t i, size_t chosen,
                       char ret[MF_REASON_MAX])
{
    const struct mf_layout_sum *l = &layouts[i], *w = &layouts[chosen];
    char own_buf[US_MAX], other_buf[US_MAX];
    if (i == chosen)
        explain_chosen(n, l, ret);
    else if (l->raced && l->n_raced < w->n_raced)
        mf_format(ret, MF_REASON_MAX, "has a race time at %d token counts; %d have one with %s", l->n_raced,
                  w->n_raced, w->text);
    else if (l->raced)
        mf_format(ret, MF_REASON_MAX, "%s the races: %s in total, %s with %s",
                  l->raced_us <= w->raced_us * (1 + SAME_TIME) ? "tied in" : "lost",
                  print_us(l->raced_us, own_buf), print_us(w->raced_us, other_buf), w->text);
    else if (l->n_tasks < layouts[0].n_tasks)
        mf_format(ret, MF_REASON_MAX, "has a pipeline at %d token counts; %s has one at %d", l->n_tasks,
                  layouts[0].text, layouts[0].n_tasks);
    else
        mf_format(ret, MF_REASON_MAX, "%s: %s in total, %s with %s%s",
                  w->raced ? "was not raced" : "has a higher forecast", print_us(l->us, own_buf),
                  print_us(layouts[0].us, other_buf), layouts[0].text, w->raced ? " (forecasts)" : "");
}
