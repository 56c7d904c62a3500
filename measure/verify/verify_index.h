/* Index tensor specs against their contract: mf_verify()'s part for sorted and topk. Of sorted, the region in use is held
 * against AITER's moe_sorting: padded rows and tokens, experts ascending, an expert's ids as a set (their order is
 * free), the weight of each, the padding. What lies beyond is nobody's. */
#pragma once

#include "measure/verify/verify.h"

int mf_verify_sorted(const struct mf_verify_input *v, struct mf_verdict *ret);
/* What vLLM's contract calls it is brought into that form; besides, its tails have to be written. */
int mf_verify_aligned(const struct mf_verify_input *v, struct mf_verdict *ret);
int mf_verify_topk(const struct mf_verify_input *v, struct mf_verdict *ret);
