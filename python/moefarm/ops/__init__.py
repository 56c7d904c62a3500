"""Operators of fused MoE layers, registered with torch in the namespace `moefarm`.

    fused_moe                             runs a moefarm.Layer
    moe_align_block_size                  sorts routes into blocks of one expert (vLLM)
    moe_sorting                           the same with the weights of the routes (AITER)
    moe_permute, moe_unpermute            tokens in expert order and back (vLLM)
    permute, unpermute                    the same by a routing map (Megatron-Core)
    permute_with_ep, unpermute_with_ep    the same for a range of experts (CANN)
    topk_softmax, topk_sigmoid, topk_sqrt_softplus
                                          routers
    quantise, nvfp4_factor                quantises activations and weights
    shuffle, unshuffle, swizzle_scales, unswizzle_scales
                                          orders of weights and scales

Operators work on CPU and GPU tensors, under torch.compile and in CUDA graphs. They have no gradient."""
from moefarm.ops._format import nvfp4_factor as nvfp4_factor
from moefarm.ops._format import quantise as quantise
from moefarm.ops._format import shuffle as shuffle
from moefarm.ops._format import swizzle_scales as swizzle_scales
from moefarm.ops._format import unshuffle as unshuffle
from moefarm.ops._format import unswizzle_scales as unswizzle_scales
from moefarm.ops._fused_moe import fused_moe as fused_moe
from moefarm.ops._permute import Permuted as Permuted
from moefarm.ops._permute import moe_permute as moe_permute
from moefarm.ops._permute import moe_unpermute as moe_unpermute
from moefarm.ops._permute import permute as permute
from moefarm.ops._permute import permute_with_ep as permute_with_ep
from moefarm.ops._permute import unpermute as unpermute
from moefarm.ops._permute import unpermute_with_ep as unpermute_with_ep
from moefarm.ops._route import topk_sigmoid as topk_sigmoid
from moefarm.ops._route import topk_softmax as topk_softmax
from moefarm.ops._route import topk_sqrt_softplus as topk_sqrt_softplus
from moefarm.ops._sort import moe_align_block_size as moe_align_block_size
from moefarm.ops._sort import moe_sorting as moe_sorting
