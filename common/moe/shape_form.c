#include "common/moe/shape_internal.h"

#include <stdlib.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"

#define NUMBER_MAX  65536.0 /* maximum of limit and alpha */
#define EXPERTS_MAX 65535
#define PART_MAX    32 /* text of one part with the terminator */

enum kind { NUMBER, FLAG, GATE_UP, EXPERT_PARALLEL };

/* A part is absent if its field is zero or false. */
static const struct part {
    const char *name;
    enum kind kind;
    size_t offset;
} parts[] = {
    {"limit", NUMBER, offsetof(struct mf_shape, act_limit)},
    {"alpha", NUMBER, offsetof(struct mf_shape, act_alpha)},
    {"b1", FLAG, offsetof(struct mf_shape, has_b1)},
    {"b2", FLAG, offsetof(struct mf_shape, has_b2)},
    {"gate_up", GATE_UP, offsetof(struct mf_shape, gate_up)},
    {"ep", EXPERT_PARALLEL, 0}, /* this part sets two fields */
};

static const void *field_of(const struct mf_shape *shape, const struct part *p)
{
    return (const char *)shape + p->offset;
}

/* Finds the part that a text such as "limit:7" names, and sets *ret_value to "7", or to "" for a flag.
 * Returns NULL if the part is unknown, lacks its value, or has a value although it is a flag. */
static const struct part *find_part(const char *text, const char **ret_value)
{
    size_t len = strcspn(text, ":");
    for (size_t i = 0; i < MF_ARRAY_LEN(parts); i++) {
        if (strlen(parts[i].name) != len || strncmp(parts[i].name, text, len) != 0)
            continue;
        *ret_value = text + len + (text[len] == ':');
        return (text[len] == ':') == (parts[i].kind != FLAG) ? &parts[i] : NULL;
    }
    return NULL;
}

static int set_number(float *field, const char *value)
{
    double number;
    if (*field > 0 || mf_parse_double(value, &number) < 0 || !(number > 0) || number > NUMBER_MAX ||
        !((float)number > 0))
        return -EINVAL;
    *field = (float)number;
    return 0;
}

static int set_flag(bool *field)
{
    if (*field)
        return -EINVAL;
    *field = true;
    return 0;
}

static int set_gate_up(enum mf_gate_up *field, const char *value)
{
    if (*field != MF_GATE_UP_ANY || mf_gate_up_parse(value, field) < 0 || *field == MF_GATE_UP_ANY)
        return -EINVAL;
    return 0;
}

/* Parses "48/384": the first local expert and the number of experts of all ranks. */
static int set_expert_parallel(struct mf_shape *s, const char *value)
{
    char first[PART_MAX];
    const char *slash = strchr(value, '/');
    int64_t from, all;
    if (s->ep_experts > 0 || !slash)
        return -EINVAL;
    mf_format(first, sizeof(first), "%.*s", (int)(slash - value), value);
    if (mf_parse_i64(first, 0, EXPERTS_MAX, &from) < 0 || mf_parse_i64(slash + 1, 2, EXPERTS_MAX, &all) < 0)
        return -EINVAL;
    s->ep_first = (int32_t)from;
    s->ep_experts = (int32_t)all;
    return 0;
}

static int set_part(const char *text, struct mf_shape *shape)
{
    const char *value;
    const struct part *p = find_part(text, &value);
    if (!p)
        return -EINVAL;
    void *field = (char *)shape + p->offset;
    switch (p->kind) {
    case NUMBER:
        return set_number(field, value);
    case FLAG:
        return set_flag(field);
    case GATE_UP:
        return set_gate_up(field, value);
    case EXPERT_PARALLEL:
        return set_expert_parallel(shape, value);
    }
    return -EINVAL;
}

static void clear_form(struct mf_shape *s)
{
    s->act_limit = s->act_alpha = 0;
    s->has_b1 = s->has_b2 = false;
    s->gate_up = MF_GATE_UP_ANY;
    s->ep_first = s->ep_experts = 0;
}

int mf_shape_form_parse(const char *text, struct mf_shape *shape)
{
    struct mf_shape s = *shape;
    clear_form(&s);
    for (bool more = *text != '\0'; more;) {
        char part[PART_MAX];
        size_t len = strcspn(text, "+");
        if (len >= sizeof(part))
            return -EINVAL;
        memcpy(part, text, len);
        part[len] = '\0';
        if (set_part(part, &s) < 0)
            return -EINVAL;
        more = text[len] == '+';
        text += len + more;
    }
    *shape = s;
    return 0;
}

/* Prints the shortest decimal that parses to the same number, preferably without an exponent. */
static void print_number(float value, char *buf, size_t cap)
{
    for (int digits = 1; digits <= 9; digits++) {
        mf_format(buf, cap, "%.*g", digits, (double)value);
        float back = strtof(buf, NULL);
        if (!strchr(buf, 'e') && back >= value && back <= value)
            return;
    }
}

/* Prints one part of the form; "" if the shape does not have this part. */
static void print_part(const struct mf_shape *shape, const struct part *p, char buf[PART_MAX])
{
    const void *field = field_of(shape, p);
    char number[PART_MAX / 2];
    buf[0] = '\0';
    switch (p->kind) {
    case NUMBER:
        if (!(*(const float *)field > 0))
            return;
        print_number(*(const float *)field, number, sizeof(number));
        mf_format(buf, PART_MAX, "%s:%s", p->name, number);
        return;
    case FLAG:
        mf_format(buf, PART_MAX, "%s", *(const bool *)field ? p->name : "");
        return;
    case GATE_UP:
        if (*(const enum mf_gate_up *)field != MF_GATE_UP_ANY)
            mf_format(buf, PART_MAX, "%s:%s", p->name, mf_gate_up_name(*(const enum mf_gate_up *)field));
        return;
    case EXPERT_PARALLEL:
        if (shape->ep_experts > 0)
            mf_format(buf, PART_MAX, "%s:%d/%d", p->name, (int)shape->ep_first, (int)shape->ep_experts);
        return;
    }
}

void mf_shape_form_print(const struct mf_shape *shape, char *buf, size_t cap)
{
    char text[MF_SHAPE_FORM_MAX] = "", part[PART_MAX];
    for (size_t i = 0; i < MF_ARRAY_LEN(parts); i++) {
        size_t len = strlen(text);
        print_part(shape, &parts[i], part);
        if (part[0])
            mf_format(text + len, sizeof(text) - len, "%s%s", len > 0 ? "+" : "", part);
    }
    mf_format(buf, cap, "%s", text);
}

static int compare_part(const void *a, const void *b, enum kind kind)
{
    switch (kind) {
    case NUMBER:
        return (*(const float *)a > *(const float *)b) - (*(const float *)a < *(const float *)b);
    case FLAG:
        return *(const bool *)a - *(const bool *)b;
    case GATE_UP:
        return (int)*(const enum mf_gate_up *)a - (int)*(const enum mf_gate_up *)b;
    case EXPERT_PARALLEL: {
        const struct mf_shape *x = a, *y = b;
        return x->ep_experts != y->ep_experts ? x->ep_experts - y->ep_experts : x->ep_first - y->ep_first;
    }
    }
    return 0;
}

int mf_shape_form_compare(const struct mf_shape *a, const struct mf_shape *b)
{
    int r = 0;
    for (size_t i = 0; i < MF_ARRAY_LEN(parts) && r == 0; i++)
        r = compare_part(field_of(a, &parts[i]), field_of(b, &parts[i]), parts[i].kind);
    return r;
}

const char *mf_shape_form_check(const struct mf_shape *s)
{
    bool clamps =
        s->act_type == MF_ACT_SILU || s->act_type == MF_ACT_SWIGLU || s->act_type == MF_ACT_SILU_STEP;
    if ((s->act_limit > 0 && !clamps) || (s->act_alpha > 0 && s->act_type != MF_ACT_SWIGLU))
        return "limit only with ActivationType.Silu, Swiglu or SiluStep, alpha only with Swiglu";
    if (s->act_type == MF_ACT_SILU_STEP && !(s->act_limit > 0))
        return "limit:X, which ActivationType.SiluStep requires";
    if (s->gate_up != MF_GATE_UP_ANY && !s->use_g1u1)
        return "gate_up:X only with use_g1u1, because otherwise w1 has no up rows";
    if (s->ep_experts > 0 &&
        (s->ep_experts <= s->expert || s->ep_first < 0 || s->ep_first > s->ep_experts - s->expert))
        return "ep:FIRST/ALL with ALL greater than expert, and FIRST + expert at most ALL";
    return NULL;
}
