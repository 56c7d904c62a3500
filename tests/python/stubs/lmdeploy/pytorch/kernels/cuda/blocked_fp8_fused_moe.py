"""The layer with scales of 128 activations and 128x128 weights."""
from typing import Any, Callable, Optional

import torch
from triton_stubs import dequantise, layer


def fused_moe_blocked_fp8(input: torch.Tensor, input_scale: torch.Tensor, w1: torch.Tensor,
                          w1_scale: torch.Tensor, w2: torch.Tensor, w2_scale: torch.Tensor,
                          topk_weights: torch.Tensor, topk_ids: torch.Tensor, topk: int,
                          w1_bias: Optional[torch.Tensor] = None, w2_bias: Optional[torch.Tensor] = None,
                          out_dtype: torch.dtype = torch.float16, expert_offset: int = 0,
                          num_experts: Optional[int] = None, renormalize: bool = False,
                          act_func: Optional[Callable[..., Any]] = None) -> torch.Tensor:
    assert topk_ids.shape[1] == topk and not renormalize
    x = input.float() * input_scale.repeat_interleave(128, 1)
    return layer(x, dequantise(w1, w1_scale), dequantise(w2, w2_scale), topk_weights, topk_ids,
                 False).to(out_dtype)
