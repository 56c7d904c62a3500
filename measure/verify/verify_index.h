/* Checks index tensor specs (sorted, aligned, topk) against their contract, for mf_verify.
 *
 * The used region of sorted must match AITER's moe_sorting: padded rows and token count, experts ascending,
 * the ids of each expert as a set (any order), the weight of each id, and the padding. The rest is not
 * checked. */
#pragma once

#include "measure/verify/verdict.h"

int mf_verify_sorted(const struct mf_verify_input *v, struct mf_verdict *ret);
/* Converts the output from vLLM's form (moe_align_block_size) and checks it as sorted; its tails must be
 * written too. */
int mf_verify_aligned(const struct mf_verify_input *v, struct mf_verdict *ret);
int mf_verify_topk(const struct mf_verify_input *v, struct mf_verdict *ret);
