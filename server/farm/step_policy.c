#include "server/farm/step_policy.h"

#include "common/base/json.h"
#include "common/base/text.h"

#include <inttypes.h>
#include <string.h>

/* Returns true, and the reason, if the step needs a weight in another layout than the batch's. step: JSON of
 * mf_step_print. */
static bool needs_other_layout(const struct mf_batch *b, const cJSON *step, char reason[MF_REASON_MAX])
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

int mf_step_policy_excludes(struct mf_farm *f, const struct mf_batch *b, const struct mf_step_row *row,
                            char reason[MF_REASON_MAX])
{
    struct mf_step_row unused;
    double saved = 0;
    char ops[MF_OPS_TEXT_MAX];
    bool fuses = b->options.fuse_saves > 0 && __builtin_popcount(row->covers) >= 2;
    int64_t ksplit = 0;
    if (!fuses && b->options.split_k && !*b->options.layout)
        return 0;
    _cleanup_(mf_freep) char *body = NULL;
    int r = mf_store_step_get(f->store, row->id, &unused, &body);
    if (r < 0)
        return r;
    _cleanup_(cJSON_Deletep) cJSON *json = mf_json_parse(body, strlen(body), 1u << 16);
    if (needs_other_layout(b, json, reason))
        return 1;
    (void)mf_json_i64(json, "ksplit", 0, INT32_MAX, &ksplit);
    if (!b->options.split_k && ksplit > 0) {
        mf_format(reason, MF_REASON_MAX,
                  "split-K (ksplit %" PRId64 ") is disabled for batch %" PRId64 " (split_k)", ksplit, b->id);
        return 1;
    }
    (void)mf_json_double(json, "saved", &saved);
    mf_ops_print(row->covers, ops);
    mf_format(reason, MF_REASON_MAX,
              "fusing %s saves %.0f bytes of memory traffic per call; batch %" PRId64
              " requires %.0f (fuse_saves)",
              ops, saved, b->id, b->options.fuse_saves);
    return fuses && saved < b->options.fuse_saves;
}
