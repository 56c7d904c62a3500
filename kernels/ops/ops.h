/* Stand-alone operators of mixture-of-experts layers, as other projects define them. Each header states the
 * contract, shapes, layouts and source of its operators.
 *
 *   align.h             moe_align_block_size (vLLM, SGLang): sorts routed tokens into blocks of one expert
 *   moe_sort.h          moe_sorting (AITER): the same with the weights of the routes
 *   permute.h           copies rows; used by all permute operators
 *   permute_vllm.h      moe_permute (vLLM)
 *   permute_megatron.h  permute, unpermute (Megatron-Core, Transformer Engine)
 *   permute_ascend.h    MoeTokenPermuteWithEP, MoeTokenUnpermuteWithEP (CANN)
 *   quant_move.h        permute and unpermute that dequantise quantised rows
 *   shuffle.h           orders of weights and scales that external kernels expect (AITER, cuBLAS)
 *   calibrate.h         the two global activation factors of NVFP4, computed from sample batches
 *
 * family_hip_permute.c offers permute and unpermute on GPUs as a kernel family. */
#pragma once

#include "kernels/ops/align.h"
#include "kernels/ops/calibrate.h"
#include "kernels/ops/moe_sort.h"
#include "kernels/ops/permute.h"
#include "kernels/ops/permute_ascend.h"
#include "kernels/ops/permute_megatron.h"
#include "kernels/ops/permute_vllm.h"
#include "kernels/ops/quant_move.h"
#include "kernels/ops/shuffle.h"
