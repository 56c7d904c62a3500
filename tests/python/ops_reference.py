"""References of moefarm.ops, a few lines of torch each. Where a reference is a copy of a public definition,
its comment names the source."""
from __future__ import annotations

import os
from typing import List, Optional, Tuple

import torch

DEVICE = os.environ.get("MOEFARM_TEST_TORCH_DEVICE", "cpu")


def random_ids(tokens: int, topk: int, experts: int, seed: int = 1) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.rand(tokens, experts, generator=g).argsort(1)[:, :topk].contiguous().to(DEVICE)


def random_tokens(rows: int, width: int, seed: int = 2) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(rows, width, generator=g).bfloat16().to(DEVICE)


def random_probs(rows: int, width: int, seed: int = 3) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.rand(rows, width, generator=g).to(DEVICE)


# ---- sorts ----


def align(ids: torch.Tensor, block: int, experts: int) -> Tuple[List[int], List[int]]:
    """Rows in use of moe_align_block_size, and the expert of each of their blocks."""
    flat, rows, names = ids.flatten().cpu(), [], []
    for expert in range(experts):
        own = (flat == expert).nonzero().flatten().tolist()
        blocks = -(-len(own) // block)
        rows += own + [flat.numel()] * (blocks * block - len(own))
        names += [expert] * blocks
    return rows, names


def first_rows(ids: torch.Tensor, experts: int) -> torch.Tensor:
    """First row of each expert in the sort without padding, then the number of routes."""
    counts = torch.bincount(ids.flatten().cpu(), minlength=experts)
    return torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])


# ---- permutations: the chain of operators that MoeTokenPermuteWithEP fuses ----


def permute_with_ep(tokens: torch.Tensor, ids: torch.Tensor, probs: Optional[torch.Tensor], first: int,
                    last: int) -> Tuple[torch.Tensor, torch.Tensor, Optional[torch.Tensor]]:
    order = torch.argsort(ids.flatten(), dim=0, stable=True)
    kept = order[first:last]
    rows = tokens.index_select(0, kept // ids.shape[1])
    return rows, torch.argsort(order), None if probs is None else probs.flatten().index_select(0, kept)


def unpermute_with_ep(rows: torch.Tensor, ids: torch.Tensor, probs: Optional[torch.Tensor], first: int,
                      last: int) -> torch.Tensor:
    kept = torch.argsort(ids.flatten(), dim=0, stable=True)[first:last]
    values = rows.float()
    if probs is not None:
        values = values * probs.flatten().index_select(0, kept).unsqueeze(1)
    out = torch.zeros(ids.shape[0], rows.shape[1], device=rows.device)
    return out.index_add(0, kept // ids.shape[1], values)


# ---- routers ----


def route(scores: torch.Tensor, topk: int, bias: Optional[torch.Tensor] = None, renormalise: bool = False,
          groups: int = 0, kept: int = 0, scale: float = 1.0) -> Tuple[torch.Tensor, torch.Tensor]:
    """Top-k of the scores of DeepSeek-V3's gate (deepseek-ai/DeepSeek-V3, inference/model.py)."""
    choice = scores if bias is None else scores + bias
    if groups:
        grouped = choice.view(choice.shape[0], groups, -1)
        best = grouped.topk(2, -1).values.sum(-1).topk(kept, -1).indices
        lost = torch.ones(choice.shape[0], groups, dtype=torch.bool, device=choice.device)
        lost.scatter_(1, best, False)
        choice = grouped.masked_fill(lost.unsqueeze(-1), float("-inf")).flatten(1)
    ids = choice.topk(topk, -1).indices
    weights = scores.gather(1, ids)
    return (weights / weights.sum(-1, keepdim=True) if renormalise else weights) * scale, ids


# ---- formats ----

E2M1 = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, -0.0, -.5, -1, -1.5, -2, -3, -4, -6])


def nibbles(q: torch.Tensor) -> torch.Tensor:
    return torch.stack([q & 15, q >> 4], -1).flatten(-2)


def dequantise(q: torch.Tensor, scale: torch.Tensor, factor: Optional[torch.Tensor],
               format: str) -> torch.Tensor:
    """The values of quantised matrices, in float32. moefarm.ops.quantise returns q, scale and factor."""
    if format in ("mxfp4", "nvfp4"):
        values = E2M1.to(q.device)[nibbles(q).long()]
    elif format.startswith("int4"):
        values = ((nibbles(q).int() ^ 8) - 8).float()
    else:
        values = q.float()
    rows, cols = values.shape[-2:]
    tall, wide = -(-rows // scale.shape[-2]), -(-cols // scale.shape[-1])
    tall = 128 if format.endswith("128x128") else tall
    wide = {"128": 128, "128x128": 128, "32": 32}.get(format.split("_")[-1], wide)
    wide = {"mxfp8": 32, "mxfp4": 32, "nvfp4": 16}.get(format, wide)
    full = scale.float().repeat_interleave(tall, -2)[..., :rows, :].repeat_interleave(wide, -1)[..., :cols]
    values = values * full
    return values if factor is None else values / factor.view(*factor.shape, 1, 1)


def swizzle_32_4_4(scales: torch.Tensor) -> torch.Tensor:
    """The layout of cuBLAS's block scaling, for a matrix with multiples of 128 rows and 4 columns
    (pytorch/ao, torchao/prototype/mx_formats/utils.py, to_blocked)."""
    down, across = scales.shape[0] // 128, scales.shape[1] // 4
    blocks = scales.view(down, 128, across, 4).permute(0, 2, 1, 3)
    return blocks.reshape(-1, 4, 32, 4).transpose(1, 2).reshape(scales.shape)


def shuffle_16x16(x: torch.Tensor) -> torch.Tensor:
    """shuffle_weight with layout (16, 16) (ROCm/aiter, aiter/ops/shuffle.py)."""
    k = 16 // x.element_size()
    tiles = x.view(-1, x.shape[-2] // 16, 16, x.shape[-1] // (2 * k), 2, k)
    return tiles.permute(0, 1, 3, 4, 2, 5).contiguous().view(x.shape)
