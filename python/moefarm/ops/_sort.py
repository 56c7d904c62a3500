"""Sorts of routes by expert: moe_align_block_size (vLLM) and moe_sorting (AITER)."""
from __future__ import annotations

from typing import Optional, Tuple

import torch

from moefarm.ops import _native

Sorted = Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _align_sizes(n: int, experts: int, block: int, whole_blocks: bool) -> Tuple[int, int]:
    """Rows of sorted_token_ids and length of expert_ids, by vLLM's formula."""
    rows = n + experts * (block - 1)
    if whole_blocks:
        rows = (rows + block - 1) // block * block
    if n < experts:
        rows = min(n * block, rows)
    return rows, (rows + block - 1) // block


def _align(topk_ids: torch.Tensor, block_size: int, num_experts: int, expert_map: Optional[torch.Tensor],
           pad_sorted_ids: bool, ignore_invalid_experts: bool, return_scatter_idx: bool) -> Sorted:
    ops = _native.operators(topk_ids)
    routes = _native.routes_of("topk_ids", topk_ids, num_experts)
    if block_size < 1:
        _native.refuse("block_size", block_size, "1 or more rows per block")
    out = _align_fake(topk_ids, block_size, num_experts, expert_map, pad_sorted_ids, ignore_invalid_experts,
                      return_scatter_idx)
    sorted_ids, expert_ids, num_post_pad, scatter_idx = out
    workspace = ops.sort_workspace(routes)
    ops.run("align", _native.Align(
        routes, block_size, ignore_invalid_experts,
        _native.pointer("expert_map", expert_map, topk_ids, torch.int32, (num_experts,)),
        sorted_ids.data_ptr(), len(sorted_ids), expert_ids.data_ptr(), num_post_pad.data_ptr(),
        scatter_idx.data_ptr() if return_scatter_idx else None, workspace.data_ptr()))
    return out


def _align_fake(topk_ids: torch.Tensor, block_size: int, num_experts: int,
                expert_map: Optional[torch.Tensor], pad_sorted_ids: bool, ignore_invalid_experts: bool,
                return_scatter_idx: bool) -> Sorted:
    n = topk_ids.numel()
    rows, blocks = _align_sizes(n, num_experts, block_size, pad_sorted_ids)
    return (topk_ids.new_empty(rows, dtype=torch.int32), topk_ids.new_empty(blocks, dtype=torch.int32),
            topk_ids.new_empty(1, dtype=torch.int32),
            topk_ids.new_empty((n if return_scatter_idx else 0, 1), dtype=torch.int32))


_align_op = _native.register(
    "moe_align_block_size(Tensor topk_ids, int block_size, int num_experts, Tensor? expert_map, "
    "bool pad_sorted_ids, bool ignore_invalid_experts, bool return_scatter_idx) "
    "-> (Tensor, Tensor, Tensor, Tensor)", _align, _align_fake)


def moe_align_block_size(topk_ids: torch.Tensor, block_size: int, num_experts: int,
                         expert_map: Optional[torch.Tensor] = None, pad_sorted_ids: bool = False,
                         ignore_invalid_experts: bool = False,
                         return_scatter_idx: bool = False) -> Tuple[torch.Tensor, ...]:
    """Sorts routes into blocks of `block_size` rows of one expert, with the contract of vLLM's function of
    the same name.

    topk_ids: int32 or int64 [T, K]; routes with an id outside [0, num_experts) are dropped.
    expert_map: int32 [num_experts], the local number of each expert or -1. With ignore_invalid_experts,
        routes of remote experts are dropped; without it they get rows in blocks of expert -1.

    Returns sorted_token_ids [P] (the flat index of each row's route; T * K in padding), expert_ids
    [ceil(P / block_size)] (-1 in the tail), num_tokens_post_pad [1], all int32, and with return_scatter_idx
    an int32 [T * K, 1] with the flat index of each route that has a row, else -1.

    >>> import torch, moefarm
    >>> ids = torch.tensor([[2, 3, 4], [1, 2, 4], [1, 3, 4], [1, 2, 3]])
    >>> rows, experts, used = moefarm.ops.moe_align_block_size(ids, 4, 5)
    >>> rows[:16].tolist(), experts.tolist(), used.tolist()
    ([3, 6, 9, 12, 0, 4, 10, 12, 1, 7, 11, 12, 2, 5, 8, 12], [1, 2, 3, 4, -1, -1, -1], [16])
    """
    if return_scatter_idx and expert_map is not None and not ignore_invalid_experts:
        _native.refuse("ignore_invalid_experts", False, "True with return_scatter_idx and an expert_map")
    out = _align_op(topk_ids, block_size, num_experts, expert_map, pad_sorted_ids, ignore_invalid_experts,
                    return_scatter_idx)
    return tuple(out) if return_scatter_idx else tuple(out[:3])


AiterSorted = Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _sorting_fake(topk_ids: torch.Tensor, topk_weights: torch.Tensor, num_experts: int, model_dim: int,
                  moebuf_dtype: torch.dtype, block_size: int, expert_mask: Optional[torch.Tensor],
                  num_local_tokens: Optional[torch.Tensor]) -> AiterSorted:
    rows = topk_ids.numel() + num_experts * block_size - topk_ids.shape[1]
    return (topk_ids.new_empty(rows, dtype=torch.int32), topk_ids.new_empty(rows, dtype=torch.float32),
            topk_ids.new_empty((rows + block_size - 1) // block_size, dtype=torch.int32),
            topk_ids.new_empty(2, dtype=torch.int32),
            topk_ids.new_empty((topk_ids.shape[0], model_dim), dtype=moebuf_dtype))


def _sorting(topk_ids: torch.Tensor, topk_weights: torch.Tensor, num_experts: int, model_dim: int,
             moebuf_dtype: torch.dtype, block_size: int, expert_mask: Optional[torch.Tensor],
             num_local_tokens: Optional[torch.Tensor]) -> AiterSorted:
    ops = _native.operators(topk_ids)
    routes = _native.routes_of("topk_ids", topk_ids, num_experts)
    if block_size < 1:
        _native.refuse("block_size", block_size, "1 or more rows per block")
    out = _sorting_fake(topk_ids, topk_weights, num_experts, model_dim, moebuf_dtype, block_size,
                        expert_mask, num_local_tokens)
    sorted_ids, sorted_weights, expert_ids, num_valid, moe_buf = out
    workspace = ops.sort_workspace(routes)
    ops.run("moe_sort", _native.MoeSort(
        routes, _native.pointer("topk_weights", topk_weights, topk_ids, torch.float32, topk_ids.shape),
        block_size, 0, _native.pointer("expert_mask", expert_mask, topk_ids, torch.int32, (num_experts,)),
        _native.pointer("num_local_tokens", num_local_tokens, topk_ids, torch.int32, (1,)),
        sorted_ids.data_ptr(), sorted_weights.data_ptr(), expert_ids.data_ptr(), num_valid.data_ptr(),
        moe_buf.data_ptr(), moe_buf.numel() * moe_buf.element_size(), workspace.data_ptr()))
    return out


_sorting_op = _native.register(
    "moe_sorting(Tensor topk_ids, Tensor topk_weights, int num_experts, int model_dim, "
    "ScalarType moebuf_dtype, int block_size, Tensor? expert_mask, Tensor? num_local_tokens) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)", _sorting, _sorting_fake)


def moe_sorting(topk_ids: torch.Tensor, topk_weights: torch.Tensor, num_experts: int, model_dim: int,
                moebuf_dtype: torch.dtype = torch.bfloat16, block_size: int = 32,
                expert_mask: Optional[torch.Tensor] = None,
                num_local_tokens: Optional[torch.Tensor] = None) -> AiterSorted:
    """Sorts routes into blocks of one expert, with the contract of AITER's function of the same name.

    topk_ids: int32 or int64 [T, K]; topk_weights: float32 [T, K]; expert_mask: int32 [num_experts], 1 for a
    local expert, 0 for a remote one; num_local_tokens: int32 [1], the rows of topk_ids in use.

    Returns sorted_ids int32 [P] (slot << 24 | token; K << 24 | T in padding), sorted_weights float32 [P],
    sorted_expert_ids int32 [ceil(P / block_size)] (local numbers), num_valid_ids int32 [2] (rows in use,
    tokens in use), and moe_buf [T, model_dim], zeroed. Only rows in use are written."""
    out: AiterSorted = _sorting_op(topk_ids, topk_weights, num_experts, model_dim, moebuf_dtype, block_size,
                                   expert_mask, num_local_tokens)
    return out
