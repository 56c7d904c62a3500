#include "common/routing.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/cleanup.h"
#include "common/text.h"

MF_NAMES_DEFINE(mf_routing_kind, MF_ROUTING_, MF_ROUTING_KIND_MAP)

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
    case MF_ROUTING_N_:
        break;
    }
    return false;
}

int mf_routing_parse(const char *text, struct mf_routing *ret)
{
    char name[MF_ROUTING_TEXT_MAX];
    if (!text || mf_copy(name, sizeof(name), text) < 0)
        return -EINVAL;
    char *colon = strchr(name, ':');
    if (colon)
        *colon = '\0';

    struct mf_routing routing = {0};
    if (mf_routing_kind_parse(name, &routing.kind) < 0 || has_parameter(routing.kind) != (colon != NULL))
        return -EINVAL;
    if (colon && (mf_parse_double(colon + 1, &routing.parameter) < 0 ||
                  !parameter_fits(routing.kind, routing.parameter)))
        return -EINVAL;
    routing.parameter += 0.0; /* no negative zero: one profile, one text */
    *ret = routing;
    return 0;
}

void mf_routing_print(const struct mf_routing *r, char buf[MF_ROUTING_TEXT_MAX])
{
    if (!has_parameter(r->kind)) {
        mf_say(buf, MF_ROUTING_TEXT_MAX, "%s", mf_routing_kind_name(r->kind));
        return;
    }
    /* The shortest decimal that reads back as the same number: 17 digits always do. */
    for (int digits = 1; digits <= 17; digits++) {
        mf_say(buf, MF_ROUTING_TEXT_MAX, "%s:%.*g", mf_routing_kind_name(r->kind), digits, r->parameter);
        double back = strtod(strchr(buf, ':') + 1, NULL);
        if (!(back < r->parameter || back > r->parameter))
            break;
    }
}
