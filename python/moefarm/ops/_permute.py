"""Permutations of token rows into expert order and back: vLLM's, Megatron-Core's and CANN's."""
from __future__ import annotations

from typing import List, NamedTuple, Optional, Sequence, Tuple

import torch

from moefarm.ops import _native


def _rows(name: str, x: torch.Tensor, like: torch.Tensor) -> int:
    """Bytes of a row of a 2-dimensional tensor."""
    _native.pointer(name, x, like)
    if x.dim() != 2 or x.shape[1] < 1:
        _native.refuse(f"shape of {name}", list(x.shape), "[rows, columns]")
    return int(x.shape[1]) * x.element_size()


# ---- vLLM ----

VllmPermuted = Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _moe_permute_fake(hidden_states: torch.Tensor, a1q_scale: Optional[torch.Tensor],
                      topk_ids: torch.Tensor, n_expert: int, n_local_expert: int,
                      expert_map: Optional[torch.Tensor]) -> VllmPermuted:
    n = topk_ids.numel()
    scale = (hidden_states.new_empty(0) if a1q_scale is None
             else a1q_scale.new_empty((n, a1q_scale.shape[1])))
    return (hidden_states.new_empty((n, hidden_states.shape[1])), scale,
            topk_ids.new_empty(n_local_expert + 1, dtype=torch.int64),
            topk_ids.new_empty(n, dtype=torch.int32), topk_ids.new_empty(n, dtype=torch.int32))


def _moe_permute(hidden_states: torch.Tensor, a1q_scale: Optional[torch.Tensor], topk_ids: torch.Tensor,
                 n_expert: int, n_local_expert: int, expert_map: Optional[torch.Tensor]) -> VllmPermuted:
    ops = _native.operators(hidden_states)
    routes = _native.routes_of("topk_ids", topk_ids, n_expert)
    if topk_ids.shape[0] != hidden_states.shape[0]:
        _native.refuse("rows of topk_ids", topk_ids.shape[0], str(hidden_states.shape[0]))
    out = _moe_permute_fake(hidden_states, a1q_scale, topk_ids, n_expert, n_local_expert, expert_map)
    call = _native.Permute(
        routes, _native.pointer("expert_map", expert_map, hidden_states, torch.int32, (n_expert,)),
        n_local_expert, 1 if a1q_scale is None else 2)
    call.rows[0] = _native.Rows(hidden_states.data_ptr(), out[0].data_ptr(),
                                _rows("hidden_states", hidden_states, hidden_states))
    if a1q_scale is not None:
        call.rows[1] = _native.Rows(a1q_scale.data_ptr(), out[1].data_ptr(),
                                    _rows("a1q_scale", a1q_scale, hidden_states))
    call.first_token_offset, call.inv_permuted_idx, call.permuted_idx = (x.data_ptr() for x in out[2:])
    workspace = ops.sort_workspace(routes)
    call.workspace = workspace.data_ptr()
    ops.run("permute", call)
    return out


_moe_permute_op = _native.register(
    "moe_permute(Tensor hidden_states, Tensor? a1q_scale, Tensor topk_ids, int n_expert, int n_local_expert, "
    "Tensor? expert_map) -> (Tensor, Tensor, Tensor, Tensor, Tensor)", _moe_permute, _moe_permute_fake)


def moe_permute(hidden_states: torch.Tensor, a1q_scale: Optional[torch.Tensor], topk_ids: torch.Tensor,
                n_expert: int, n_local_expert: int = -1, expert_map: Optional[torch.Tensor] = None
                ) -> Tuple[torch.Tensor, Optional[torch.Tensor], torch.Tensor, torch.Tensor, torch.Tensor]:
    """Copies tokens into the order of their local experts, with the contract of vLLM's function of the same
    name.

    hidden_states: [T, H] of any dtype; a1q_scale: scales [T, S] of its rows, or one scale for all, which is
    returned unchanged; topk_ids: int32 or int64 [T, K]; expert_map: int32 [n_expert], the position of each
    local expert, -1 for remote ones.

    Returns permuted_hidden_states [T * K, H], the permuted scales, expert_first_token_offset int64
    [n_local_expert + 1], inv_permuted_idx int32 [T * K] (row of each route, or T * K for a route without a
    row; vLLM stores other numbers there), and permuted_idx int32 [T * K] (flat index of each row's route, or
    T * K for an unused row). Unused rows of permuted_hidden_states are not written."""
    by_row = a1q_scale is not None and a1q_scale.dim() > 1
    n_local_expert = n_expert if n_local_expert == -1 else n_local_expert
    out = _moe_permute_op(hidden_states, a1q_scale if by_row else None, topk_ids, n_expert, n_local_expert,
                          expert_map)
    return out[0], out[1] if by_row else a1q_scale, out[2], out[3], out[4]


# ---- adding rows back ----


def _add_rows(permuted: torch.Tensor, row_of: torch.Tensor, probs: Optional[torch.Tensor], first: int,
              last: int, out: torch.Tensor) -> None:
    """out[t] = sum over j of probs[t, j] * permuted[row_of[t, j] - first], for the rows in [first, last)."""
    ops, (tokens, topk) = _native.operators(permuted), row_of.shape
    if permuted.dim() != 2 or permuted.shape[0] < last - first:
        _native.refuse("shape of permuted rows", list(permuted.shape), f"at least {last - first} rows")
    ops.run("unpermute", _native.Unpermute(
        _native.pointer("row map", row_of, permuted, torch.int32),
        _native.pointer("probs", probs, permuted, torch.float32, (tokens, topk)), tokens, first, last, topk,
        permuted.shape[1], _native.pointer("permuted rows", permuted, permuted, torch.bfloat16),
        _native.pointer("out", out, permuted, torch.bfloat16, (tokens, permuted.shape[1]))))


def _unpermute_rows(permuted: torch.Tensor, row_of: torch.Tensor, probs: Optional[torch.Tensor], first: int,
                    last: int) -> torch.Tensor:
    out = _unpermute_rows_fake(permuted, row_of, probs, first, last)
    _add_rows(permuted, row_of, probs, first, last, out)
    return out


def _unpermute_rows_fake(permuted: torch.Tensor, row_of: torch.Tensor, probs: Optional[torch.Tensor],
                         first: int, last: int) -> torch.Tensor:
    return permuted.new_empty((row_of.shape[0], permuted.shape[1]))


_unpermute_rows_op = _native.register(
    "unpermute_rows(Tensor permuted, Tensor row_of, Tensor? probs, int first, int last) -> Tensor",
    _unpermute_rows, _unpermute_rows_fake)


def _moe_unpermute(out: torch.Tensor, permuted: torch.Tensor, topk_weights: torch.Tensor,
                   inv_permuted_idx: torch.Tensor) -> None:
    rows = min(permuted.shape[0], topk_weights.numel())
    _add_rows(permuted, inv_permuted_idx.view(topk_weights.shape), topk_weights, 0, rows, out)


def _moe_unpermute_fake(out: torch.Tensor, permuted: torch.Tensor, topk_weights: torch.Tensor,
                        inv_permuted_idx: torch.Tensor) -> None:
    return None


_moe_unpermute_op = _native.register(
    "moe_unpermute(Tensor(a!) out, Tensor permuted, Tensor topk_weights, Tensor inv_permuted_idx) -> ()",
    _moe_unpermute, _moe_unpermute_fake)


def moe_unpermute(out: torch.Tensor, permuted_hidden_states: torch.Tensor, topk_weights: torch.Tensor,
                  inv_permuted_idx: torch.Tensor,
                  expert_first_token_offset: Optional[torch.Tensor] = None) -> None:
    """Writes to out, bfloat16 [T, H], the sum over each token's rows times their weights, with the contract
    of vLLM's function of the same name.

    permuted_hidden_states: bfloat16 [P, H]; topk_weights: float32 [T, K]; inv_permuted_idx: int32 [T * K];
    expert_first_token_offset is not needed. Sums in float32, in slot order. Routes without a row are
    skipped."""
    _moe_unpermute_op(out, permuted_hidden_states, topk_weights, inv_permuted_idx)


# ---- Megatron-Core ----


class Permuted(NamedTuple):
    """Rows of a routing map in expert order."""

    rows: torch.Tensor  # [P, H]
    probs: Optional[torch.Tensor]  # float32 [P]; 0 in padding
    row_id_map: torch.Tensor  # int32 [T, E]: row of each route, -1 without a row
    sorted_indices: torch.Tensor  # int32 [P]: token of each row, -1 for rows of zeros
    tokens_per_expert: torch.Tensor  # int64 [E]: number of rows, with padding
    pad_offsets: torch.Tensor  # int64 [E]: by how many rows padding shifts an expert's rows


MapPermuted = Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _permute_fake(tokens: torch.Tensor, routing_map: torch.Tensor, probs: Optional[torch.Tensor],
                  num_out_tokens: int, drop_and_pad: bool, align: int, rows: int) -> MapPermuted:
    experts = routing_map.shape[1]
    return (tokens.new_empty((rows, tokens.shape[1])),
            tokens.new_empty(0 if probs is None else rows, dtype=torch.float32),
            tokens.new_empty(tuple(routing_map.shape), dtype=torch.int32),
            tokens.new_empty(rows, dtype=torch.int32), tokens.new_empty(experts, dtype=torch.int64),
            tokens.new_empty(experts, dtype=torch.int64))


def _permute(tokens: torch.Tensor, routing_map: torch.Tensor, probs: Optional[torch.Tensor],
             num_out_tokens: int, drop_and_pad: bool, align: int, rows: int) -> MapPermuted:
    ops, (n, experts) = _native.operators(tokens), routing_map.shape
    if routing_map.dtype not in (torch.bool, torch.uint8, torch.int8):
        _native.refuse("dtype of routing_map", routing_map.dtype, "torch.bool")
    out = _permute_fake(tokens, routing_map, probs, num_out_tokens, drop_and_pad, align, rows)
    permuted, out_probs, row_of, token_of, per_expert, pad_offsets = out
    token_of.fill_(-1)  # rows beyond those of the map
    if probs is not None:
        out_probs.zero_()
    workspace = ops.workspace(ops.library.fmoe_op_map_workspace(ops.pointer, n, experts))
    ops.run("permute_map", _native.PermuteMap(
        _native.pointer("routing_map", routing_map, tokens, None, (tokens.shape[0], experts)),
        _native.pointer("probs", probs, tokens, torch.float32, (n, experts)), n, experts, align,
        drop_and_pad, 0, num_out_tokens,
        _native.Rows(tokens.data_ptr(), permuted.data_ptr(), _rows("tokens", tokens, tokens)), rows,
        row_of.data_ptr(), token_of.data_ptr(), None if probs is None else out_probs.data_ptr(),
        per_expert.data_ptr(), pad_offsets.data_ptr(), workspace.data_ptr()))
    return out


_permute_op = _native.register(
    "permute(Tensor tokens, Tensor routing_map, Tensor? probs, int num_out_tokens, bool drop_and_pad, "
    "int align, int rows) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)", _permute, _permute_fake)


def _map_rows(routing_map: torch.Tensor, num_out_tokens: Optional[int], drop_and_pad: bool,
              align: int) -> Tuple[int, int]:
    """The limit of rows before padding (-1: none) and the size of the output."""
    experts = routing_map.shape[1]
    if num_out_tokens is None:
        counts = routing_map.sum(0, dtype=torch.int64)
        return -1, int(((counts + align - 1) // align * align).sum())
    if drop_and_pad or align == 1:
        return num_out_tokens, num_out_tokens
    return num_out_tokens, num_out_tokens + experts * (align - 1)


def permute(tokens: torch.Tensor, routing_map: torch.Tensor, probs: Optional[torch.Tensor] = None,
            num_out_tokens: Optional[int] = None, drop_and_pad: bool = False, align: int = 1) -> Permuted:
    """Copies tokens into expert order by a routing map, as Megatron-Core's permute does.

    tokens: [T, H] of any dtype; routing_map: bool [T, E]; probs: float32 [T, E].
    num_out_tokens: maximum number of rows before padding; routes beyond it are dropped. If None, the call
        counts the routes and waits for the device. Rows after the last route and its padding are not written.
    drop_and_pad: each expert has num_out_tokens / E rows: its first routed tokens, then tokens that are not
        routed to it, with probability 0.
    align: each expert's rows are padded with zeros to a multiple of this number."""
    limit, rows = _map_rows(routing_map, num_out_tokens, drop_and_pad, align)
    out = _permute_op(tokens, routing_map, probs, limit, drop_and_pad, align, rows)
    return Permuted(out[0], None if probs is None else out[1], *out[2:])


def unpermute(permuted_tokens: torch.Tensor, row_id_map: torch.Tensor,
              restore_shape: Optional[Sequence[int]] = None,
              probs: Optional[torch.Tensor] = None) -> torch.Tensor:
    """Adds the rows of each token, the inverse of `permute`: bfloat16 [T, H].

    permuted_tokens: bfloat16 [P, H]; row_id_map: int32 [T, E] from `permute`; probs: float32 [T, E], by which
    rows are multiplied, or None; restore_shape: [T, H], or None."""
    out: torch.Tensor = _unpermute_rows_op(permuted_tokens, row_id_map, probs, 0, permuted_tokens.shape[0])
    if restore_shape is not None and tuple(restore_shape) != tuple(out.shape):
        _native.refuse("restore_shape", list(restore_shape), str(list(out.shape)))
    return out


# ---- CANN ----

EpPermuted = Tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _permute_with_ep_fake(tokens: torch.Tensor, indices: torch.Tensor, probs: Optional[torch.Tensor],
                          first: int, last: int, padded_mode: bool, num_experts: int) -> EpPermuted:
    return (tokens.new_empty((last - first, tokens.shape[1])),
            tokens.new_empty(indices.numel(), dtype=torch.int32),
            tokens.new_empty(0 if probs is None else last - first, dtype=torch.float32))


def _permute_with_ep(tokens: torch.Tensor, indices: torch.Tensor, probs: Optional[torch.Tensor], first: int,
                     last: int, padded_mode: bool, num_experts: int) -> EpPermuted:
    ops = _native.operators(tokens)
    ids = indices.view(-1, 1) if indices.dim() == 1 else indices
    routes = _native.routes_of("indices", ids, tokens.shape[0] if padded_mode else num_experts)
    if not padded_mode and ids.shape[0] != tokens.shape[0]:
        _native.refuse("rows of indices", ids.shape[0], str(tokens.shape[0]))
    out = _permute_with_ep_fake(tokens, indices, probs, first, last, padded_mode, num_experts)
    workspace = ops.sort_workspace(routes)
    ops.run("permute_ep", _native.PermuteEp(
        routes, first, last, padded_mode, 0,
        _native.Rows(tokens.data_ptr(), out[0].data_ptr(), _rows("tokens", tokens, tokens)),
        _native.pointer("probs", probs, tokens, torch.float32, ids.shape),
        None if probs is None else out[2].data_ptr(), out[1].data_ptr(), workspace.data_ptr()))
    return out


_permute_with_ep_op = _native.register(
    "permute_with_ep(Tensor tokens, Tensor indices, Tensor? probs, int first, int last, bool padded_mode, "
    "int num_experts) -> (Tensor, Tensor, Tensor)", _permute_with_ep, _permute_with_ep_fake)


def permute_with_ep(tokens: torch.Tensor, indices: torch.Tensor, probs: Optional[torch.Tensor] = None,
                    range: Optional[Sequence[int]] = None, num_out_tokens: int = 0, padded_mode: bool = False,
                    num_experts: Optional[int] = None
                    ) -> Tuple[torch.Tensor, torch.Tensor, Optional[torch.Tensor]]:
    """Copies the tokens of a range of the expert order, with the contract of CANN's MoeTokenPermuteWithEP.

    tokens: [T, H] of any dtype; indices: int32 or int64 [T, K] expert ids, or [T]; probs: float32 [T, K].
    range: rows [range[0], range[1]) of the stable sort by expert id, for example the rows of the experts of
        one rank. Without a range, num_out_tokens selects the rows: the first n for n > 0, all for 0, all but
        the last -n for n < 0, and probs are not permuted.
    padded_mode: indices [P] are the token of each row; the first num_out_tokens rows are copied.
    num_experts: upper bound of the expert ids (default: 1,024, the maximum on a GPU).

    Returns permuted_tokens [rows, H]; sorted_indices int32 [T * K], the row of each route in the sort of all
    routes; and permuted_probs float32 [rows] or None.

    >>> import torch, moefarm
    >>> tokens = torch.tensor([[10.0], [20.0], [30.0]])
    >>> rows, inverse, _ = moefarm.ops.permute_with_ep(tokens, torch.tensor([[3, 1], [4, 2], [5, 3]]))
    >>> rows.flatten().tolist(), inverse.tolist()
    ([10.0, 20.0, 10.0, 30.0, 20.0, 30.0], [2, 0, 4, 1, 5, 3])
    """
    n = indices.numel()
    if range is not None:
        first, last = int(range[0]), int(range[1])
    else:
        first = 0
        last = min(num_out_tokens, n) if num_out_tokens > 0 else max(n + num_out_tokens, 0)
        probs = None
    out = _permute_with_ep_op(tokens, indices, probs, first, last, padded_mode,
                              num_experts or _native.EXPERTS_MAX)
    return out[0], out[1], None if probs is None else out[2]


def _unpermute_padded(permuted: torch.Tensor, indices: torch.Tensor, tokens: int) -> torch.Tensor:
    ops, (rows, width) = _native.operators(permuted), permuted.shape
    out = permuted.new_empty((tokens, width))
    workspace = ops.workspace(ops.library.fmoe_op_padded_workspace(ops.pointer, rows, tokens, width))
    if indices.numel() < rows:
        _native.refuse("number of sorted_indices", indices.numel(), f"{rows} or more")
    ops.run("unpermute_padded", _native.UnpermutePadded(
        _native.pointer("sorted_indices", indices, permuted, torch.int32), rows, tokens, width, 0,
        _native.pointer("permuted_tokens", permuted, permuted, torch.bfloat16), out.data_ptr(),
        workspace.data_ptr()))
    return out


def _unpermute_padded_fake(permuted: torch.Tensor, indices: torch.Tensor, tokens: int) -> torch.Tensor:
    return permuted.new_empty((tokens, permuted.shape[1]))


_unpermute_padded_op = _native.register(
    "unpermute_padded(Tensor permuted, Tensor indices, int tokens) -> Tensor", _unpermute_padded,
    _unpermute_padded_fake)


def unpermute_with_ep(permuted_tokens: torch.Tensor, sorted_indices: torch.Tensor,
                      probs: Optional[torch.Tensor] = None, num_topk: int = 1,
                      range: Optional[Sequence[int]] = None, padded_mode: bool = False,
                      restore_shape: Optional[Sequence[int]] = None) -> torch.Tensor:
    """Adds the rows of each token that are in the range, with the contract of CANN's MoeTokenUnpermuteWithEP:
    bfloat16 [T, H]. Sums in float32, in slot order.

    permuted_tokens: bfloat16 [rows, H]; sorted_indices: int32 [T * K] from permute_with_ep; probs: float32
    [T, K], by which rows are multiplied, or None; num_topk: K, if there are no probs; restore_shape: [T, H],
    needed in padded_mode, where sorted_indices are the token of each row."""
    if padded_mode:
        if restore_shape is None or probs is not None or range is not None:
            _native.refuse("padded_mode", True, "a restore_shape, and neither probs nor a range")
        result: torch.Tensor = _unpermute_padded_op(permuted_tokens, sorted_indices, restore_shape[0])
        return result
    topk = num_topk if probs is None else probs.shape[-1]
    if topk < 1 or sorted_indices.numel() % topk != 0:
        _native.refuse("num_topk", topk, f"a divisor of the {sorted_indices.numel()} sorted_indices")
    first, last = (0, permuted_tokens.shape[0]) if range is None else (int(range[0]), int(range[1]))
    weights = None if probs is None else probs.view(-1, topk)
    row_of = sorted_indices.view(-1, topk)
    out: torch.Tensor = _unpermute_rows_op(permuted_tokens, row_of, weights, first, last)
    return out
