#include "cli/progress.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/api.h"
#include "cli/text_out.h"
#include "common/cleanup.h"
#include "common/json.h"
#include "common/text.h"

MF_NAMES_DEFINE(mf_goal, MF_GOAL_, MF_GOAL_MAP)

/* Enumerating a shape is a moment; the race takes about as long as a fifth of its probes. */
#define FRACTION_PROBING 0.02
#define FRACTION_RACING  0.80

void mf_progress_release(struct mf_progress *p)
{
    free(p->goals);
    free(p->groups);
    *p = (struct mf_progress)MF_PROGRESS_INIT;
}

void mf_progress_set_batch(struct mf_progress *p, const cJSON *batch)
{
    p->batch = mf_api_i64(batch, "id", p->batch);
    mf_say(p->state, sizeof(p->state), "%s", mf_api_text(batch, "state", p->state));
    p->eta_s = mf_api_double(batch, "eta_s", -1);
}

static struct mf_goal_progress *find_goal(const struct mf_progress *p, int64_t id)
{
    for (size_t i = 0; i < p->n_goals; i++) {
        if (p->goals[i].id == id)
            return &p->goals[i];
    }
    return NULL;
}

static size_t group_of(struct mf_progress *p, const char *class, const char *title)
{
    struct mf_progress_group *g;

    for (size_t i = 0; i < p->n_groups; i++) {
        if (!strcmp(p->groups[i].class, class) && !strcmp(p->groups[i].title, title))
            return i;
    }
    g = &p->groups[p->n_groups];
    mf_say(g->class, sizeof(g->class), "%s", class);
    mf_say(g->title, sizeof(g->title), "%s", title);
    return p->n_groups++;
}

/* The members that an item and an event share. */
static void take_state(struct mf_goal_progress *g, const cJSON *json)
{
    (void)mf_goal_parse(mf_api_text(json, "state", ""), &g->state);
    g->steps = mf_api_i64(json, "steps", g->steps);
    g->measured = mf_api_i64(json, "measured", g->measured);
    g->us = mf_api_double(json, "us", g->us);
    mf_say(g->reason, sizeof(g->reason), "%s", mf_api_text(json, "reason", g->reason));
}

int mf_progress_set_goals(struct mf_progress *p, const cJSON *goals)
{
    struct mf_progress next = *p;
    const cJSON *item;
    size_t n = (size_t)cJSON_GetArraySize(goals);

    next.n_goals = next.n_groups = 0;
    next.goals = calloc(n + 1, sizeof(*next.goals));
    next.groups = calloc(n + 1, sizeof(*next.groups));
    if (!next.goals || !next.groups)
        goto fail;
    cJSON_ArrayForEach (item, goals) {
        struct mf_goal_progress *g = &next.goals[next.n_goals];
        const struct mf_goal_progress *before;
        char title[MF_SHAPE_BRIEF_MAX];
        struct mf_shape shape;

        if (mf_api_shape(mf_json_object(item, "shape"), &shape) < 0 ||
            mf_json_i64(item, "id", 1, INT64_MAX, &g->id) < 0)
            goto fail;
        mf_shape_brief_layer_model(&shape, title);
        g->group = group_of(&next, mf_api_text(item, "class", ""), title);
        g->token = shape.token;
        take_state(g, item);
        before = find_goal(p, g->id);
        g->told = before && before->told;
        next.n_goals++;
    }
    free(p->goals);
    free(p->groups);
    *p = next;
    return 0;
fail:
    free(next.goals);
    free(next.groups);
    return next.goals && next.groups ? -EINVAL : -ENOMEM;
}

void mf_progress_event(struct mf_progress *p, const char *kind, const cJSON *data)
{
    struct mf_goal_progress *g;

    if (!strcmp(kind, "batch")) {
        if (mf_api_i64(data, "batch", p->batch) == p->batch)
            mf_say(p->state, sizeof(p->state), "%s", mf_api_text(data, "state", p->state));
        return;
    }
    g = find_goal(p, mf_api_i64(data, "goal", 0));
    if (!g)
        return;
    if (!strcmp(kind, "goal"))
        take_state(g, data);
    else if (!strcmp(kind, "config"))
        g->us = mf_api_double(data, "us", g->us);
}

bool mf_progress_ended(const struct mf_progress *p)
{
    return !strcmp(p->state, "done") || !strcmp(p->state, "cancelled");
}

size_t mf_progress_count(const struct mf_progress *p, enum mf_goal state)
{
    size_t n = 0;

    for (size_t i = 0; i < p->n_goals; i++)
        n += p->goals[i].state == state;
    return n;
}

static bool goal_ended(const struct mf_goal_progress *g)
{
    return g->state == MF_GOAL_DONE || g->state == MF_GOAL_FAILED || g->state == MF_GOAL_CANCELLED;
}

double mf_goal_fraction(const struct mf_goal_progress *g)
{
    switch (g->state) {
    case MF_GOAL_WAITING:
    case MF_GOAL_ENUMERATING:
        return 0;
    case MF_GOAL_PROBING:
        if (g->steps < 1)
            return FRACTION_PROBING;
        return FRACTION_PROBING +
               (FRACTION_RACING - FRACTION_PROBING) * MF_MIN((double)g->measured / (double)g->steps, 1.0);
    case MF_GOAL_RANKING:
    case MF_GOAL_RACING:
        return FRACTION_RACING;
    case MF_GOAL_DONE:
    case MF_GOAL_FAILED:
    case MF_GOAL_CANCELLED:
    case MF_GOAL_N_:
        break;
    }
    return 1;
}

struct sums {
    size_t goals, ended, failed;
    int64_t steps, measured;
    double fraction;
    enum mf_goal busiest; /* the furthest state of a goal that has not ended */
};

/* Of one group, or of all with SIZE_MAX. */
static struct sums sum_up(const struct mf_progress *p, size_t group)
{
    struct sums s = {0};

    for (size_t i = 0; i < p->n_goals; i++) {
        const struct mf_goal_progress *g = &p->goals[i];

        if (group != SIZE_MAX && g->group != group)
            continue;
        s.goals++;
        s.ended += goal_ended(g);
        s.failed += g->state == MF_GOAL_FAILED;
        s.steps += g->steps;
        s.measured += g->measured;
        s.fraction += mf_goal_fraction(g);
        if (!goal_ended(g))
            s.busiest = MF_MAX(s.busiest, g->state);
    }
    if (s.goals > 0)
        s.fraction /= (double)s.goals;
    return s;
}

/* A line of at most `columns` columns: what is too much at its end is cut. */
static void add_line(struct mf_buf *out, const char *line, int columns)
{
    size_t bytes = 0;
    int n = 0;

    for (; line[bytes]; bytes++) {
        bool starts = ((unsigned char)line[bytes] & 0xc0) != 0x80;

        if (starts && n++ == columns)
            break;
    }
    (void)mf_buf_add(out, line, bytes);
    (void)mf_buf_adds(out, "\n");
}

static void draw_line(struct mf_buf *out, const char *title, int title_width, const struct sums *s,
                      int columns, bool utf8)
{
    _cleanup_(mf_buf_release) struct mf_buf line;
    int bar = MF_MIN(MF_MAX(columns - title_width - 45, 8), 40);

    mf_buf_init(&line, 4096);
    (void)mf_buf_addf(&line, "%s%*s ", title, (int)(title_width - (int)mf_text_width(title)), "");
    mf_bar(&line, s->fraction, bar, utf8);
    (void)mf_buf_addf(&line, " %3.0f%%  %zu/%zu", s->fraction * 100, s->ended, s->goals);
    if (s->steps > 0)
        (void)mf_buf_addf(&line, "  %" PRId64 "/%" PRId64 " steps", s->measured, s->steps);
    if (s->ended < s->goals)
        (void)mf_buf_addf(&line, "  %s", mf_goal_name(s->busiest));
    if (s->failed > 0)
        (void)mf_buf_addf(&line, "  %zu failed", s->failed);
    add_line(out, line.data, columns);
}

size_t mf_progress_draw(const struct mf_progress *p, int columns, bool utf8, struct mf_buf *out)
{
    struct sums all = sum_up(p, SIZE_MAX);
    char title[MF_SHAPE_BRIEF_MAX + MF_DEVICE_CLASS_TEXT_MAX], eta[MF_DURATION_MAX];
    bool many_classes = false;
    size_t width = 12;

    for (size_t i = 1; i < p->n_groups; i++)
        many_classes |= strcmp(p->groups[i].class, p->groups[0].class) != 0;
    for (size_t pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < p->n_groups; i++) {
            const struct mf_progress_group *g = &p->groups[i];
            struct sums s = sum_up(p, i);

            mf_say(title, sizeof(title), "%s%s%s", many_classes ? g->class : "", many_classes ? " " : "",
                   g->title);
            if (pass == 0)
                width = MF_MAX(width, mf_text_width(title));
            else
                draw_line(out, title, (int)width, &s, columns, utf8);
        }
    }
    mf_duration(p->eta_s, eta);
    if (p->eta_s >= 0 && !mf_progress_ended(p))
        mf_say(title, sizeof(title), "batch %" PRId64 " (%s to go)", p->batch, eta);
    else
        mf_say(title, sizeof(title), "batch %" PRId64, p->batch);
    draw_line(out, title, (int)width, &all, columns, utf8);
    return p->n_groups + 1;
}

void mf_progress_tell_ended(struct mf_progress *p, struct mf_buf *out)
{
    for (size_t i = 0; i < p->n_goals; i++) {
        struct mf_goal_progress *g = &p->goals[i];
        const struct mf_progress_group *group = &p->groups[g->group];
        char us[MF_US_MAX];

        if (g->told || !goal_ended(g) || (g->state == MF_GOAL_DONE && !(g->us > 0)))
            continue;
        g->told = true;
        (void)mf_buf_addf(out, "goal %" PRId64 "  %s  T%" PRId64 " %s: %s", g->id, group->class, g->token,
                          group->title, mf_goal_name(g->state));
        mf_us(g->us, us);
        if (g->state == MF_GOAL_DONE)
            (void)mf_buf_addf(out, ", %s", us);
        else if (g->reason[0])
            (void)mf_buf_addf(out, ": %s", g->reason);
        (void)mf_buf_adds(out, "\n");
    }
}

void mf_progress_summary(const struct mf_progress *p, struct mf_buf *out)
{
    struct sums s = sum_up(p, SIZE_MAX);
    char eta[MF_DURATION_MAX];

    (void)mf_buf_addf(out, "batch %" PRId64 "%s%s: %zu of %zu goals", p->batch,
                      mf_progress_ended(p) ? " " : "", mf_progress_ended(p) ? p->state : "", s.ended,
                      s.goals);
    if (s.failed > 0)
        (void)mf_buf_addf(out, ", %zu failed", s.failed);
    (void)mf_buf_addf(out, ", %" PRId64 " of %" PRId64 " steps", s.measured, s.steps);
    mf_duration(p->eta_s, eta);
    if (p->eta_s >= 0 && !mf_progress_ended(p))
        (void)mf_buf_addf(out, ", %s to go", eta);
    (void)mf_buf_adds(out, "\n");
}
