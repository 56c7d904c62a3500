"""The layer as a loop over routes."""
from typing import Any, Callable, Optional

import torch
from triton_stubs import layer


def fused_moe(hidden_states: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, topk_weights: torch.Tensor,
              topk_ids: torch.Tensor, topk: int, w1_bias: Optional[torch.Tensor] = None,
              w2_bias: Optional[torch.Tensor] = None, expert_offset: int = 0,
              num_experts: Optional[int] = None, renormalize: bool = False,
              act_func: Optional[Callable[..., Any]] = None) -> torch.Tensor:
    assert topk_ids.shape[1] == topk and not renormalize
    return layer(hidden_states, w1, w2, topk_weights, topk_ids, False)
