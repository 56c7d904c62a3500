#include "server/farm/step_policy.h"

#include "common/base/text.h"

#include <inttypes.h>
#include <string.h>

bool mf_step_policy_other_layout(const struct mf_batch *b, const cJSON *step, char reason[MF_REASON_MAX])
{
    const char *layout = b->options.layout, *field;
    struct mf_step s;
    if (!*layout || mf_step_from_json(step, &s, &field) < 0)
        return false;
    for (int i = 0; i < s.n_needs; i++) {
        const struct mf_tensor_spec *a = &s.needs[i];
        char want[MF_ORDER_MAX + 4];
        if (!mf_tensor_spec_is_weight(a))
            continue;
        mf_format(want, sizeof(want), "%s=%s", mf_tensor_name(a->tensor), a->order);
        const char *at = strstr(layout, want);
        char next_char = at ? at[strlen(want)] : 'x';
        if (next_char == ' ' || next_char == '\0')
            continue;
        mf_format(reason, MF_REASON_MAX, "needs %s, but the weights of batch %" PRId64 " are in %s (layout)",
                  want, b->id, layout);
        return true;
    }
    return false;
}

bool mf_step_policy_no_fuse(const struct mf_batch *b, mf_ops covers, char reason[MF_REASON_MAX])
{
    for (int i = 0; i < b->options.n_no_fuse; i++) {
        char ops[MF_OPS_TEXT_MAX];
        if ((covers & b->options.no_fuse[i]) != b->options.no_fuse[i])
            continue;
        mf_ops_print(b->options.no_fuse[i], ops);
        mf_format(reason, MF_REASON_MAX,
                  "batch %" PRId64 " does not allow fusing %s (no_fuse, entry %d of %d)", b->id, ops, i + 1,
                  b->options.n_no_fuse);
        return true;
    }
    return false;
}
