"""Top-k routers: the experts of each token and their weights."""
from __future__ import annotations

from typing import Any, Optional, Tuple

import torch

from moefarm.ops import _native

Chosen = Tuple[torch.Tensor, torch.Tensor]
_SCORES = {"topk_softmax": 0, "topk_sigmoid": 1, "topk_sqrt_softplus": 2}  # enum fmoe_score


def _fake(logits: torch.Tensor, bias: Optional[torch.Tensor], topk: int, renormalize: bool, groups: int,
          topk_group: int, masked_to_zero: bool, scale: float, sum_floor: float,
          indices_dtype: torch.dtype) -> Chosen:
    shape = (logits.shape[0], topk)
    return logits.new_empty(shape, dtype=torch.float32), logits.new_empty(shape, dtype=indices_dtype)


def _register(name: str, score: int) -> Any:
    def route(logits: torch.Tensor, bias: Optional[torch.Tensor], topk: int, renormalize: bool, groups: int,
              topk_group: int, masked_to_zero: bool, scale: float, sum_floor: float,
              indices_dtype: torch.dtype) -> Chosen:
        ops = _native.operators(logits)
        if logits.dim() != 2:
            _native.refuse("shape of logits", list(logits.shape), "[tokens, experts]")
        weights, ids = _fake(logits, bias, topk, renormalize, groups, topk_group, masked_to_zero, scale,
                             sum_floor, indices_dtype)
        tokens, experts = logits.shape
        ops.run("route", _native.Route(
            _native.pointer("logits", logits, logits), _native.float_type("logits", logits),
            _native.int_type(indices_dtype), tokens, experts, topk, score, renormalize, groups, topk_group,
            masked_to_zero, scale, sum_floor,
            _native.pointer("bias", bias, logits, torch.float32, (experts,)), None, ids.data_ptr(),
            weights.data_ptr()))
        return weights, ids

    return _native.register(
        f"{name}(Tensor logits, Tensor? bias, int topk, bool renormalize, int groups, int topk_group, "
        "bool masked_to_zero, float scale, float sum_floor, ScalarType indices_dtype) -> (Tensor, Tensor)",
        route, _fake)


_ops = {name: _register(name, score) for name, score in _SCORES.items()}


def topk_softmax(logits: torch.Tensor, topk: int, renormalize: bool = False, scale: float = 1.0,
                 indices_dtype: torch.dtype = torch.int32) -> Chosen:
    """Selects the topk largest softmax scores (Mixtral, Qwen3, gpt-oss).

    logits: float32 or bfloat16 [T, E]. Returns topk_weights float32 [T, K] and topk_ids [T, K], in order of
    falling score; among equal scores the lower expert comes first. renormalize: weights sum to `scale`."""
    out = _ops["topk_softmax"](logits, None, topk, renormalize, 0, 0, False, scale, 0.0, indices_dtype)
    return out[0], out[1]


def topk_sigmoid(logits: torch.Tensor, topk: int, bias: Optional[torch.Tensor] = None,
                 renormalize: bool = True, num_expert_group: int = 0, topk_group: int = 0,
                 masked_to_zero: bool = False, scale: float = 1.0,
                 indices_dtype: torch.dtype = torch.int32) -> Chosen:
    """Selects the topk largest sigmoid scores plus bias (DeepSeek-V3, Kimi-K2, GLM).

    bias: float32 [E], used for the selection only. num_expert_group, topk_group: number of equal groups, and
    of the groups that are kept; a group's score is the sum of its two largest values. masked_to_zero: experts
    of other groups compete with value 0, as in Hugging Face's models. Otherwise as topk_softmax."""
    out = _ops["topk_sigmoid"](logits, bias, topk, renormalize, num_expert_group, topk_group, masked_to_zero,
                               scale, 1e-20, indices_dtype)
    return out[0], out[1]


def topk_sqrt_softplus(logits: torch.Tensor, topk: int, bias: Optional[torch.Tensor] = None,
                       renormalize: bool = True, scale: float = 1.0,
                       indices_dtype: torch.dtype = torch.int32) -> Chosen:
    """Selects the topk largest scores sqrt(softplus(logit)) plus bias (DeepSeek-V4). Arguments and results as
    for topk_sigmoid."""
    out = _ops["topk_sqrt_softplus"](logits, bias, topk, renormalize, 0, 0, False, scale, 1e-20,
                                     indices_dtype)
    return out[0], out[1]
