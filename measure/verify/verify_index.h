/* Checks index tensor specs (sorted, aligned, topk) against their contract, for mf_verify.
 *
 * The used region of a sorted output must match AITER's moe_sorting: padded rows and token count, ascending
 * experts, the ids of each expert as a set (in any order), the weight of each id, and the padding. Rows after
 * the used region are not checked. */
#pragma once

#include "measure/verify/verdict.h"

int mf_verify_sorted(const struct mf_verify_input *v, struct mf_verdict *ret);
/* Converts the output from vLLM's form (moe_align_block_size) and checks it like a sorted output. Also checks
 * that the rows and blocks after the used region are written. */
int mf_verify_aligned(const struct mf_verify_input *v, struct mf_verdict *ret);
int mf_verify_topk(const struct mf_verify_input *v, struct mf_verdict *ret);
