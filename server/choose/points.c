#include "server/choose/points.h"

#include "common/base/cleanup.h"
#include "common/base/text.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define VALUE_MAX  1000000000
#define LEVELS_MAX INT16_MAX

/* A parameter that some names have. */
struct dimension {
    const char *word; /* in the first name that has it */
    size_t len;
};

struct reading {
    struct dimension all[MF_POINTS_DIMENSIONS_MAX];
    int n;
    int64_t *values; /* by point and dimension; MF_POINTS_ABSENT: the name lacks the parameter */
};

struct parameter {
    const char *word;
    size_t len;
    int64_t value; /* 0: no number */
};

static size_t count(const char *text, int (*is)(int))
{
    size_t n = 0;
    while (is((unsigned char)text[n]))
        n++;
    return n;
}

/* Reads the next parameter of a name. Returns the position behind it, or NULL at the end. */
static const char *next_parameter(const char *at, struct parameter *ret)
{
    while (*at && !isalnum((unsigned char)*at))
        at++;
    if (!*at)
        return NULL;
    *ret = (struct parameter){.word = at, .len = count(at, isalpha)};
    for (at += ret->len; isdigit((unsigned char)*at); at++)
        ret->value = MF_MIN(ret->value * 10 + (*at - '0'), VALUE_MAX);
    return at;
}

static bool has_word(const struct dimension *d, const struct parameter *p)
{
    return d->len == p->len && memcmp(d->word, p->word, p->len) == 0;
}

/* Finds or adds the dimension of a parameter of point i. Returns -1 if there are too many dimensions. */
static int dimension_of(struct reading *o, size_t i, const struct parameter *p)
{
    const int64_t *values = o->values + i * MF_POINTS_DIMENSIONS_MAX;
    for (int d = 0; d < o->n; d++) {
        /* a word that has a value occurs once more in this name: the next dimension of the word */
        if (has_word(&o->all[d], p) && values[d] == MF_POINTS_ABSENT)
            return d;
    }
    if (o->n == MF_POINTS_DIMENSIONS_MAX)
        return -1;
    o->all[o->n] = (struct dimension){p->word, p->len};
    return o->n++;
}

static void read_name(struct reading *o, size_t i, const char *name)
{
    struct parameter p;
    while ((name = next_parameter(name, &p))) {
        int d = dimension_of(o, i, &p);
        if (d >= 0)
            o->values[i * MF_POINTS_DIMENSIONS_MAX + (size_t)d] = p.value;
    }
}

/* Finds the position of a value among sorted values, or the position to insert it. */
static int find_value(const int64_t *values, int n, int64_t value)
{
    int low = 0;
    while (low < n) {
        int middle = low + (n - low) / 2;
        if (values[middle] < value)
            low = middle + 1;
        else
            n = middle;
    }
    return low;
}

/* Lists the values of a dimension in ascending order, each once. Returns their number. */
static int list_values(const struct reading *o, size_t n, int d, int64_t *ret)
{
    int n_values = 0;
    for (size_t i = 0; i < n && n_values < LEVELS_MAX; i++) {
        int64_t value = o->values[i * MF_POINTS_DIMENSIONS_MAX + (size_t)d];
        int at = find_value(ret, n_values, value);
        if (value == MF_POINTS_ABSENT || (at < n_values && ret[at] == value))
            continue;
        memmove(ret + at + 1, ret + at, (size_t)(n_values++ - at) * sizeof(*ret));
        ret[at] = value;
    }
    return n_values;
}

static int level_of(const int64_t *values, int n_values, int64_t value)
{
    int at = find_value(values, n_values, value);
    return at < n_values && values[at] == value ? at : MF_POINTS_ABSENT;
}

/* True if all names have the parameter with the same value. */
static bool is_constant(const struct reading *o, size_t n, int d)
{
    size_t i = 1;
    while (i < n && o->values[i * MF_POINTS_DIMENSIONS_MAX + (size_t)d] == o->values[d])
        i++;
    return i >= n;
}

/* Turns values into levels, without the dimensions in which no points differ. values: room for n numbers. */
static void set_levels(const struct reading *o, int64_t *values, struct mf_points *p)
{
    int kept[MF_POINTS_DIMENSIONS_MAX];
    for (int d = 0; d < o->n; d++) {
        if (!is_constant(o, p->n, d))
            kept[p->n_dimensions++] = d;
    }
    for (int k = 0; k < p->n_dimensions; k++) {
        int n_values = list_values(o, p->n, kept[k], values);
        p->scale[k] = 1.0 / MF_MAX(n_values - 1, 1);
        for (size_t i = 0; i < p->n; i++)
            p->levels[i * (size_t)p->n_dimensions + (size_t)k] = (int16_t)level_of(
                values, n_values, o->values[i * MF_POINTS_DIMENSIONS_MAX + (size_t)kept[k]]);
    }
}

int mf_points_new(const char *const *names, size_t n, struct mf_points **ret)
{
    const size_t n_values = n * MF_POINTS_DIMENSIONS_MAX;
    _cleanup_(mf_freep) int64_t *values = calloc(n_values + 1, sizeof(*values));
    _cleanup_(mf_freep) int64_t *sorted = calloc(n + 1, sizeof(*sorted));
    struct mf_points *p = calloc(1, sizeof(*p) + n_values * sizeof(p->levels[0]));
    if (!values || !sorted || !p) {
        free(p);
        return -ENOMEM;
    }
    struct reading o = {.values = values};
    for (size_t i = 0; i < n_values; i++)
        values[i] = MF_POINTS_ABSENT;
    for (size_t i = 0; i < n; i++)
        read_name(&o, i, names[i]);
    p->n = n;
    set_levels(&o, sorted, p);
    *ret = p;
    return 0;
}

static int level_steps(const int16_t *a, const int16_t *b)
{
    if (*a == MF_POINTS_ABSENT || *b == MF_POINTS_ABSENT)
        return *a != *b;
    return abs(*a - *b);
}

int mf_points_steps(const struct mf_points *p, size_t a, size_t b)
{
    const int16_t *x = p->levels + a * (size_t)p->n_dimensions, *y = p->levels + b * (size_t)p->n_dimensions;
    int steps = 0;
    for (int d = 0; d < p->n_dimensions; d++)
        steps += level_steps(x + d, y + d);
    return steps;
}

double mf_points_distance(const struct mf_points *p, size_t a, size_t b)
{
    const int16_t *x = p->levels + a * (size_t)p->n_dimensions, *y = p->levels + b * (size_t)p->n_dimensions;
    double distance = 0;
    for (int d = 0; d < p->n_dimensions; d++)
        distance += level_steps(x + d, y + d) * p->scale[d];
    return distance;
}
