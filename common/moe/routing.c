#include "common/moe/routing.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"

MF_NAMES_DEFINE(mf_routing_kind, MF_ROUTING_, MF_ROUTING_KIND_MAP)
MF_NAMES_DEFINE(mf_router, MF_ROUTER_, MF_ROUTER_MAP)

static bool has_parameter(enum mf_routing_kind kind)
{
    return kind == MF_ROUTING_ZIPF || kind == MF_ROUTING_HOT;
}

static bool parameter_fits(enum mf_routing_kind kind, double parameter)
{
    switch (kind) {
    case MF_ROUTING_ZIPF:
        return parameter > 0 && parameter <= 4;
    case MF_ROUTING_HOT:
        return parameter >= 0 && parameter <= 1;
    case MF_ROUTING_UNIFORM:
    case MF_ROUTING_BALANCED:
    case MF_ROUTING_RECORDED:
    case MF_ROUTING_ROUTER:
    case MF_ROUTING_N_:
        break;
    }
    return false;
}

static int parse_number(const char *text, struct mf_routing *r)
{
    if (mf_parse_double(text, &r->parameter) < 0 || !parameter_fits(r->kind, r->parameter))
        return -EINVAL;
    r->parameter += 0.0; /* -0 becomes +0, so that equal profiles have equal text */
    return 0;
}

int mf_routing_recorded(const uint64_t *counts, size_t n, struct mf_routing *ret)
{
    uint64_t top = 0;
    for (size_t i = 0; i < n; i++)
        top = MF_MAX(top, counts[i]);
    if (n == 0 || n > MF_ROUTING_COUNTS_MAX || top == 0)
        return -EINVAL;
    struct mf_routing r = {.kind = MF_ROUTING_RECORDED, .n_counts = (int32_t)n};
    for (size_t i = 0; i < n; i++) {
        uint64_t c =
            top <= UINT16_MAX ? counts[i] : (uint64_t)((unsigned __int128)counts[i] * UINT16_MAX / top);
        r.counts[i] = counts[i] > 0 && c == 0 ? 1 : (uint16_t)c;
    }
    *ret = r;
    return 0;
}

static int parse_counts(const char *text, struct mf_routing *r)
{
    uint64_t counts[MF_ROUTING_COUNTS_MAX];
    size_t n = 0;
    for (;;) {
        char *end;
        if (n == MF_ROUTING_COUNTS_MAX || *text < '0' || *text > '9')
            return -EINVAL;
        errno = 0;
        counts[n++] = strtoull(text, &end, 10);
        if (errno != 0)
            return -EINVAL;
        if (*end == '\0')
            return mf_routing_recorded(counts, n, r);
        if (*end != '.')
            return -EINVAL;
        text = end + 1;
    }
}

static int parse_router(const char *text, struct mf_routing *r)
{
    char name[32];
    const char *plus = strchr(text, '+');
    size_t len = plus ? (size_t)(plus - text) : strlen(text);
    if (len >= sizeof(name) || (plus && strcmp(plus, "+shared") != 0))
        return -EINVAL;
    memcpy(name, text, len);
    name[len] = '\0';
    r->shared = plus != NULL;
    return mf_router_parse(name, &r->router);
}

int mf_routing_parse(const char *text, struct mf_routing *ret)
{
    char name[16];
    size_t len = text ? strcspn(text, ":") : 0;
    if (len == 0 || len >= sizeof(name))
        return -EINVAL;
    memcpy(name, text, len);
    name[len] = '\0';

    struct mf_routing routing = {0};
    bool colon = text[len] == ':';
    int r = mf_routing_kind_parse(name, &routing.kind);
    if (r < 0 || colon == (routing.kind == MF_ROUTING_UNIFORM || routing.kind == MF_ROUTING_BALANCED))
        return -EINVAL;
    if (routing.kind == MF_ROUTING_RECORDED)
        r = parse_counts(text + len + 1, &routing);
    else if (routing.kind == MF_ROUTING_ROUTER)
        r = parse_router(text + len + 1, &routing);
    else if (colon)
        r = parse_number(text + len + 1, &routing);
    if (r == 0)
        *ret = routing;
    return r;
}

static void print_counts(const struct mf_routing *r, char *buf)
{
    size_t len = strlen(buf);
    for (int32_t i = 0; i < r->n_counts; i++) {
        mf_format(buf + len, MF_ROUTING_TEXT_MAX - len, "%c%u", i > 0 ? '.' : ':', r->counts[i]);
        len += strlen(buf + len);
    }
}

void mf_routing_print(const struct mf_routing *r, char buf[MF_ROUTING_TEXT_MAX])
{
    const char *kind = mf_routing_kind_name(r->kind);
    if (r->kind == MF_ROUTING_ROUTER) {
        mf_format(buf, MF_ROUTING_TEXT_MAX, "%s:%s%s", kind, mf_router_name(r->router),
                  r->shared ? "+shared" : "");
        return;
    }
    mf_format(buf, MF_ROUTING_TEXT_MAX, "%s", kind);
    if (r->kind == MF_ROUTING_RECORDED)
        print_counts(r, buf);
    if (!has_parameter(r->kind))
        return;
    /* Uses the shortest decimal that parses to the same number; 17 digits always suffice */
    for (int digits = 1; digits <= 17; digits++) {
        mf_format(buf, MF_ROUTING_TEXT_MAX, "%s:%.*g", kind, digits, r->parameter);
        double back = strtod(strchr(buf, ':') + 1, NULL);
        if (!(back < r->parameter || back > r->parameter))
            break;
    }
}

bool mf_routing_equal(const struct mf_routing *a, const struct mf_routing *b)
{
    return a->kind == b->kind && memcmp(&a->parameter, &b->parameter, sizeof(a->parameter)) == 0 &&
           a->router == b->router && a->shared == b->shared && a->n_counts == b->n_counts &&
           memcmp(a->counts, b->counts, (size_t)a->n_counts * sizeof(a->counts[0])) == 0;
}

/* Checks whether the router accepts the number of experts and topk, both without the shared expert. */
static int router_fits(const struct mf_routing *r, const struct mf_shape *s, char *why, size_t why_cap)
{
    int32_t experts = mf_shape_global_experts(s) - r->shared, topk = s->topk - r->shared;
    if (topk < 1 || topk > experts) {
        mf_format(
            why, why_cap,
            "topk %d of %d experts leaves topk %d of %d experts for the router without the shared expert",
            s->topk, mf_shape_global_experts(s), topk, experts);
        return -EINVAL;
    }
    int32_t in_group = experts / MF_ROUTER_GROUPS;
    if (r->router == MF_ROUTER_SIGMOID_GROUPS &&
        (experts % MF_ROUTER_GROUPS != 0 || in_group < 2 || topk > in_group * MF_ROUTER_GROUPS_KEPT)) {
        mf_format(why, why_cap,
                  "%d experts in %d groups, of which %d are selected: groups must have one size of at least "
                  "2 experts, and the selected groups must have at least topk %d experts",
                  experts, MF_ROUTER_GROUPS, MF_ROUTER_GROUPS_KEPT, topk);
        return -EINVAL;
    }
    return 0;
}

int mf_routing_fits(const struct mf_routing *r, const struct mf_shape *s, char *why, size_t why_cap)
{
    if (r->kind == MF_ROUTING_RECORDED && r->n_counts != mf_shape_global_experts(s)) {
        mf_format(why, why_cap, "the recorded profile has %d experts, the shape has %d", r->n_counts,
                  mf_shape_global_experts(s));
        return -EINVAL;
    }
    return r->kind == MF_ROUTING_ROUTER ? router_fits(r, s, why, why_cap) : 0;
}
