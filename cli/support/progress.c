#include "cli/support/progress.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/support/api.h"
#include "cli/support/text_out.h"
#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "common/base/text.h"

MF_NAMES_DEFINE(mf_task, MF_TASK_, MF_TASK_MAP)

/* Progress of a task, as a fraction, when probing starts and when the race starts. Enumeration is short. The
 * race takes about a fifth of the total time. */
#define FRACTION_PROBING 0.02
#define FRACTION_RACING  0.80

#define TITLE_MAX (MF_SHAPE_BRIEF_MAX + MF_DEVICE_CLASS_TEXT_MAX)

void mf_progress_release(struct mf_progress *p)
{
    free(p->tasks);
    free(p->groups);
    *p = (struct mf_progress)MF_PROGRESS_INIT;
}

void mf_progress_set_batch(struct mf_progress *p, const cJSON *batch)
{
    p->batch = mf_api_i64(batch, "id", p->batch);
    mf_format(p->state, sizeof(p->state), "%s", mf_api_text(batch, "state", p->state));
    p->eta_s = mf_api_double(batch, "eta_s", -1);
}

static int by_id(const void *a, const void *b)
{
    int64_t x = ((const struct mf_task_progress *)a)->id, y = ((const struct mf_task_progress *)b)->id;

    return (x > y) - (x < y);
}

static struct mf_task_progress *find_task(const struct mf_progress *p, int64_t id)
{
    const struct mf_task_progress key = {.id = id};

    return p->n_tasks > 0 ? bsearch(&key, p->tasks, p->n_tasks, sizeof(key), by_id) : NULL;
}

static size_t group_of(struct mf_progress *p, const char *class, const char *title)
{
    struct mf_progress_group *g;

    /* Search backwards: tasks are ordered by shape, so the last group usually matches */
    for (size_t i = p->n_groups; i-- > 0;) {
        if (!strcmp(p->groups[i].class, class) && !strcmp(p->groups[i].title, title))
            return i;
    }
    g = &p->groups[p->n_groups];
    mf_format(g->class, sizeof(g->class), "%s", class);
    mf_format(g->title, sizeof(g->title), "%s", title);
    return p->n_groups++;
}

/* Reads the members that task items and task events have in common. */
static void read_state(struct mf_task_progress *g, const cJSON *json)
{
    (void)mf_task_parse(mf_api_text(json, "state", ""), &g->state);
    g->steps = mf_api_i64(json, "steps", g->steps);
    g->measured = mf_api_i64(json, "measured", g->measured);
    g->us = mf_api_double(json, "us", g->us);
    g->is_unstable = *mf_api_text(json, "unstable", g->is_unstable ? "?" : "");
    mf_format(g->reason, sizeof(g->reason), "%s", mf_api_text(json, "reason", g->reason));
    mf_format(g->decision, sizeof(g->decision), "%s", mf_api_text(json, "decision", g->decision));
}

int mf_progress_set_tasks(struct mf_progress *p, const cJSON *tasks)
{
    struct mf_progress next = *p;
    const cJSON *item;
    size_t n = (size_t)cJSON_GetArraySize(tasks);

    next.n_tasks = next.n_groups = 0;
    next.tasks = calloc(n + 1, sizeof(*next.tasks));
    next.groups = calloc(n + 1, sizeof(*next.groups));
    if (!next.tasks || !next.groups)
        goto fail;
    cJSON_ArrayForEach (item, tasks) {
        struct mf_task_progress *g = &next.tasks[next.n_tasks];
        const struct mf_task_progress *before;
        char title[MF_SHAPE_BRIEF_MAX];
        struct mf_shape shape;

        if (mf_api_shape(mf_json_object(item, "shape"), &shape) < 0 ||
            mf_json_i64(item, "id", 1, INT64_MAX, &g->id) < 0)
            goto fail;
        mf_shape_brief_layer_model(&shape, title);
        g->group = group_of(&next, mf_api_text(item, "class", ""), title);
        g->token = shape.token;
        read_state(g, item);
        before = find_task(p, g->id);
        g->is_printed = before && before->is_printed;
        next.n_tasks++;
    }
    qsort(next.tasks, next.n_tasks, sizeof(*next.tasks), by_id);
    free(p->tasks);
    free(p->groups);
    *p = next;
    return 0;
fail:
    free(next.tasks);
    free(next.groups);
    return next.tasks && next.groups ? -EINVAL : -ENOMEM;
}

void mf_progress_event(struct mf_progress *p, const char *kind, const cJSON *data)
{
    struct mf_task_progress *g;

    if (!strcmp(kind, "batch")) {
        if (mf_api_i64(data, "batch", p->batch) == p->batch)
            mf_format(p->state, sizeof(p->state), "%s", mf_api_text(data, "state", p->state));
        return;
    }
    g = find_task(p, mf_api_i64(data, "task", 0));
    if (!g)
        return;
    if (!strcmp(kind, "task")) {
        read_state(g, data);
    } else if (!strcmp(kind, "config")) {
        g->us = mf_api_double(data, "us", g->us);
        g->is_unstable = *mf_api_text(data, "unstable", "");
    } else if (!strcmp(kind, "promotion")) {
        mf_format(g->decision, sizeof(g->decision), "%s", mf_api_text(data, "decision", g->decision));
    }
}

bool mf_progress_ended(const struct mf_progress *p)
{
    return !strcmp(p->state, "done") || !strcmp(p->state, "cancelled");
}

size_t mf_progress_count(const struct mf_progress *p, enum mf_task state)
{
    size_t n = 0;

    for (size_t i = 0; i < p->n_tasks; i++)
        n += p->tasks[i].state == state;
    return n;
}

int64_t mf_progress_measured(const struct mf_progress *p)
{
    int64_t n = 0;

    for (size_t i = 0; i < p->n_tasks; i++)
        n += p->tasks[i].measured;
    return n;
}

static bool task_ended(const struct mf_task_progress *g)
{
    return g->state == MF_TASK_DONE || g->state == MF_TASK_FAILED || g->state == MF_TASK_CANCELLED;
}

double mf_task_fraction(const struct mf_task_progress *g)
{
    switch (g->state) {
    case MF_TASK_WAITING:
    case MF_TASK_ENUMERATING:
        return 0;
    case MF_TASK_PROBING:
        if (g->steps < 1)
            return FRACTION_PROBING;
        return FRACTION_PROBING +
               (FRACTION_RACING - FRACTION_PROBING) * MF_MIN((double)g->measured / (double)g->steps, 1.0);
    case MF_TASK_RANKING:
    case MF_TASK_RACING:
    case MF_TASK_COMPARING:
        return FRACTION_RACING;
    case MF_TASK_DONE:
    case MF_TASK_FAILED:
    case MF_TASK_CANCELLED:
    case MF_TASK_N_:
        break;
    }
    return 1;
}

struct sums {
    size_t tasks, ended, failed;
    int64_t steps, measured;
    double fraction;           /* sum of the tasks' fractions */
    enum mf_task latest_state; /* latest state of the tasks that have not ended */
};

static void add_task(struct sums *s, const struct mf_task_progress *g)
{
    s->tasks++;
    s->ended += task_ended(g);
    s->failed += g->state == MF_TASK_FAILED;
    s->steps += g->steps;
    s->measured += g->measured;
    s->fraction += mf_task_fraction(g);
    if (!task_ended(g))
        s->latest_state = MF_MAX(s->latest_state, g->state);
}

/* Appends the line, cut to at most `columns` terminal columns. */
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

struct page {
    int columns, title_width;
    bool utf8, with_class;
};

static void draw_line(struct mf_buf *out, const char *title, const struct page *page, const struct sums *s)
{
    _cleanup_(mf_buf_release) struct mf_buf line;
    int bar = MF_MIN(MF_MAX(page->columns - page->title_width - 45, 8), 40);
    double fraction = s->tasks > 0 ? s->fraction / (double)s->tasks : 0;

    mf_buf_init(&line, 4096);
    (void)mf_buf_addf(&line, "%s%*s ", title, page->title_width - (int)mf_text_width(title), "");
    mf_bar(&line, fraction, bar, page->utf8);
    (void)mf_buf_addf(&line, " %3.0f%%  %zu/%zu", fraction * 100, s->ended, s->tasks);
    if (s->steps > 0)
        (void)mf_buf_addf(&line, "  %" PRId64 "/%" PRId64 " steps", s->measured, s->steps);
    if (s->ended < s->tasks)
        (void)mf_buf_addf(&line, "  %s", mf_task_name(s->latest_state));
    if (s->failed > 0)
        (void)mf_buf_addf(&line, "  %zu failed", s->failed);
    add_line(out, line.data, page->columns);
}

static void group_title(const struct mf_progress *p, size_t i, bool with_class, char *title, size_t cap)
{
    const struct mf_progress_group *g = &p->groups[i];

    mf_format(title, cap, "%s%s%s", with_class ? g->class : "", with_class ? " " : "", g->title);
}

/* Draws at most `room` groups with their sums. Omits ended groups first. */
static size_t draw_groups(const struct mf_progress *p, const struct sums *sums, const struct page *page,
                          size_t room, struct mf_buf *out)
{
    size_t open = 0, drawn = 0, ended_room;
    char title[TITLE_MAX];

    for (size_t i = 0; i < p->n_groups; i++)
        open += sums[i].ended < sums[i].tasks;
    ended_room = room > open ? room - open : 0;
    for (size_t i = 0; i < p->n_groups && drawn < room; i++) {
        if (sums[i].ended == sums[i].tasks) {
            if (ended_room == 0)
                continue;
            ended_room--;
        }
        group_title(p, i, page->with_class, title, sizeof(title));
        draw_line(out, title, page, &sums[i]);
        drawn++;
    }
    return drawn;
}

size_t mf_progress_draw(const struct mf_progress *p, int columns, size_t lines, bool utf8, struct mf_buf *out)
{
    _cleanup_(mf_freep) struct sums *sums = calloc(p->n_groups + 1, sizeof(*sums));
    struct page page = {.columns = columns, .title_width = 12, .utf8 = utf8};
    char title[TITLE_MAX], eta[MF_DURATION_MAX];
    size_t drawn;

    if (!sums)
        return 0;
    for (size_t i = 0; i < p->n_tasks; i++) {
        add_task(&sums[p->tasks[i].group], &p->tasks[i]);
        add_task(&sums[p->n_groups], &p->tasks[i]);
    }
    for (size_t i = 1; i < p->n_groups; i++)
        page.with_class |= strcmp(p->groups[i].class, p->groups[0].class) != 0;
    for (size_t i = 0; i < p->n_groups; i++) {
        group_title(p, i, page.with_class, title, sizeof(title));
        page.title_width = MF_MAX(page.title_width, (int)mf_text_width(title));
    }
    drawn = draw_groups(p, sums, &page, lines > 1 ? lines - 1 : 0, out);
    mf_duration(p->eta_s, eta);
    mf_format(title, sizeof(title), "batch %" PRId64, p->batch);
    if (p->eta_s >= 0 && !mf_progress_ended(p))
        mf_format(title, sizeof(title), "batch %" PRId64 " (%s to go)", p->batch, eta);
    draw_line(out, title, &page, &sums[p->n_groups]);
    return drawn + 1;
}

void mf_progress_print_ended(struct mf_progress *p, struct mf_buf *out)
{
    for (size_t i = 0; i < p->n_tasks; i++) {
        struct mf_task_progress *g = &p->tasks[i];
        const struct mf_progress_group *group = &p->groups[g->group];
        char us[MF_US_MAX];

        if (g->is_printed || !task_ended(g) || (g->state == MF_TASK_DONE && !(g->us > 0)))
            continue;
        g->is_printed = true;
        (void)mf_buf_addf(out, "task %" PRId64 "  %s  T%" PRId64 " %s: %s", g->id, group->class, g->token,
                          group->title, mf_task_name(g->state));
        mf_us(g->us, us);
        if (g->state == MF_TASK_DONE)
            (void)mf_buf_addf(out, ", %s%s%s%s", us, g->is_unstable ? ", UNSTABLE" : "",
                              g->decision[0] ? ", " : "", g->decision);
        else if (g->reason[0])
            (void)mf_buf_addf(out, ": %s", g->reason);
        (void)mf_buf_adds(out, "\n");
    }
}

/* Appends ", 3 promoted, 5 kept". */
static void add_decisions(const struct mf_progress *p, struct mf_buf *out)
{
    static const char *const decisions[] = {"promoted", "kept", "undecided"};

    for (size_t i = 0; i < MF_ARRAY_LEN(decisions); i++) {
        size_t n = 0;
        for (size_t k = 0; k < p->n_tasks; k++)
            n += !strcmp(p->tasks[k].decision, decisions[i]);
        if (n > 0)
            (void)mf_buf_addf(out, ", %zu %s", n, decisions[i]);
    }
}

void mf_progress_summary(const struct mf_progress *p, struct mf_buf *out)
{
    struct sums s = {0};
    char eta[MF_DURATION_MAX];

    for (size_t i = 0; i < p->n_tasks; i++)
        add_task(&s, &p->tasks[i]);

    (void)mf_buf_addf(out, "batch %" PRId64 "%s%s: %zu of %zu tasks", p->batch,
                      mf_progress_ended(p) ? " " : "", mf_progress_ended(p) ? p->state : "", s.ended,
                      s.tasks);
    if (s.failed > 0)
        (void)mf_buf_addf(out, ", %zu failed", s.failed);
    (void)mf_buf_addf(out, ", %" PRId64 " of %" PRId64 " steps", s.measured, s.steps);
    add_decisions(p, out);
    mf_duration(p->eta_s, eta);
    if (p->eta_s >= 0 && !mf_progress_ended(p))
        (void)mf_buf_addf(out, ", %s to go", eta);
    (void)mf_buf_adds(out, "\n");
}
