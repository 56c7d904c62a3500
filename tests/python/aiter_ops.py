"""Stand-ins on the CPU for the operators of AITER that run on a GPU. They compute in double precision from
exactly the arguments that AITER's Python code passes: shuffled weights, scales, sorted routes.

`break_result` and `fail` of Ops plant faults: a wrong result, and an exception like that of AITER's
launcher."""
import ast
import inspect
import os
import pathlib
import types
from typing import Any, List, Tuple

import torch


def unshuffle(w: Any) -> Any:
    """The inverse of AITER's shuffle_weight(w, (16, 16))."""
    experts, rows, cols = w.shape
    per_lane = 16 // w.element_size()
    tiles = w.reshape(experts, rows // 16, cols // 32, 32 // per_lane, 16, per_lane)
    return tiles.permute(0, 1, 4, 2, 3, 5).reshape(experts, rows, cols)


def decode_weight(w: Any, scale: Any) -> Any:
    """Values of a weight [E, N, K] with scales [E, 1], [E, N, 1], [E, N/128 * K/128, 1], or None."""
    values = w.double()
    experts, rows, cols = w.shape
    if scale is None:
        return values
    if scale.numel() in (experts, experts * rows):
        return values * scale.double().view(experts, -1, 1)
    blocks = scale.double().view(experts, rows // 128, cols // 128)
    return values * blocks.repeat_interleave(128, 1).repeat_interleave(128, 2)


# ---- fp4 (e2m1) with a scale (e8m0) per 32 values; two values per byte, the first in the low nibble ----

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def to_mxfp4(x: Any) -> Tuple[Any, Any]:
    """Bytes [rows, cols / 2] and scales [rows, cols / 32]."""
    groups = x.double().reshape(x.shape[0], -1, 32)
    exponent = torch.ceil(torch.log2(groups.abs().amax(2).clamp(min=2.0 ** -100) / 6.0))
    scaled = groups / 2.0 ** exponent[..., None]
    levels = torch.tensor(E2M1, dtype=torch.float64)
    codes = (scaled.abs()[..., None] - levels).abs().argmin(-1) + 8 * (scaled < 0)
    codes = codes.view(x.shape[0], -1).to(torch.uint8)
    return codes[:, ::2] | codes[:, 1::2] << 4, (exponent + 127).to(torch.uint8)


def of_mxfp4(values: Any, scale: Any) -> Any:
    """The values of bytes [..., cols / 2] with scales [..., cols / 32], both of any one-byte type."""
    data = values.view(torch.uint8).long()
    codes = torch.stack((data & 15, data >> 4), -1).flatten(-2)
    decoded = torch.tensor(E2M1, dtype=torch.float64)[codes & 7] * (1 - 2 * (codes >> 3)).double()
    return decoded * (2.0 ** (scale.view(torch.uint8).double() - 127)).repeat_interleave(32, -1)


def is_mxfp4(values: Any) -> bool:
    return bool(values.dtype == torch.float4_e2m1fn_x2)


def unshuffle_scale(scale: Any, rows: int, cols: int) -> Any:
    """The inverse of AITER's e8m0_shuffle for [rows, cols]."""
    padded_rows, padded_cols = scale.shape
    tiles = scale.view(torch.uint8).view(padded_rows // 32, padded_cols // 8, 4, 16, 2, 2)
    return tiles.permute(0, 5, 3, 1, 4, 2).reshape(padded_rows, padded_cols)[:rows, :cols]


def decode_shuffled_mxfp4(w: Any, scale: Any) -> Any:
    experts, rows, cols = w.shape
    plain = unshuffle(w.view(torch.uint8))
    return of_mxfp4(plain, unshuffle_scale(scale, experts * rows, cols // 16).view(experts, rows, -1))


def quantise_mxfp4(x: Any, **_: Any) -> Tuple[Any, Any]:
    """Stands for AITER's operator, which also sorts the scales; here they stay in the order of the rows."""
    values, scale = to_mxfp4(x)
    return values.view(torch.float4_e2m1fn_x2), scale.view(torch.float8_e8m0fnu)


def decode_rows(values: Any, scale: Any, transposed: bool) -> Any:
    """Values of activations [rows, cols] with one scale, a scale per row, or a scale per 1x128."""
    rows, cols = values.shape
    if is_mxfp4(values):
        return of_mxfp4(values, scale)
    if scale is None or scale.numel() == 0:
        return values.double()
    if scale.numel() in (1, rows):
        return values.double() * scale.double().view(-1, 1)
    groups = scale.double().reshape(-1)
    groups = groups.view(cols // 128, rows).t() if transposed else groups.view(rows, cols // 128)
    return values.double() * groups.repeat_interleave(128, 1)


def decode_shuffled(w: Any, scale: Any) -> Any:
    return decode_shuffled_mxfp4(w, scale) if is_mxfp4(w) else decode_weight(unshuffle(w), scale)


def quantise(x: Any, dtype: Any, kind: str) -> Tuple[Any, Any]:
    """Values and scales [rows, groups]; kind is the name of a QuantType."""
    limit = 127.0 if dtype == torch.int8 else float(torch.finfo(dtype).max)
    rows = x.double().reshape(-1, x.shape[-1])
    width = {"per_Tensor": None, "per_Token": x.shape[-1], "per_1x128": 128}[kind]
    groups = rows.reshape(1, -1) if width is None else rows.reshape(-1, width)
    scale = groups.abs().amax(1, keepdim=True) / limit
    scale = torch.where(scale == 0, torch.ones_like(scale), scale).float()
    values = groups / scale.double()
    values = values.round().to(dtype) if dtype == torch.int8 else values.float().to(dtype)
    return values.reshape(x.shape), scale.reshape(1 if width is None else rows.shape[0], -1)


def get_hip_quant(q_type: Any) -> Any:
    """The operator that quantises activations with the scales of a member of AITER's QuantType."""
    if q_type.name == "No":
        return lambda x, **_: (x, None)

    def quant(x: Any, quant_dtype: Any = None, transpose_scale: bool = False, **_: Any) -> Tuple[Any, Any]:
        values, scale = quantise(x, quant_dtype, q_type.name)
        if q_type.name == "per_Tensor":
            return values, scale.view(1)
        shape = scale.shape if x.dim() == 2 else (*x.shape[:-1], scale.shape[1])
        return values, (scale.t().contiguous() if transpose_scale else scale).reshape(shape)

    return quant


def sort_routes(ids: Any, weights: Any, experts: int, block: int) -> Tuple[List[int], List[float], List[int]]:
    """AITER's moe_sorting: packed ids, weights, and the expert of each block."""
    tokens, topk = ids.shape
    rows: List[int] = []
    factors: List[float] = []
    owners: List[int] = []
    for expert in range(experts):
        routes = [(t, k) for t in range(tokens) for k in range(topk) if int(ids[t, k]) == expert]
        padding = -len(routes) % block
        rows += [k << 24 | t for t, k in routes] + [topk << 24 | tokens] * padding
        factors += [float(weights[t, k]) for t, k in routes] + [0.0] * padding
        owners += [expert] * ((len(routes) + padding) // block)
    return rows, factors, owners


class Ops:
    """Installs the operators in an imported AITER (moefarm.families.aiter.source.Aiter). Each gets its
    arguments by the names of AITER's own function, so that wrong numbers or names of arguments are found."""

    def __init__(self, aiter: Any) -> None:
        self.aiter, self.calls = aiter.aiter, []  # type: Any, List[str]
        self.break_result, self.fail = False, False
        self.aiter.get_hip_quant = aiter.fused_moe.get_quant = get_hip_quant
        self.aiter.dynamic_per_token_scaled_quant = self.quantise_rows
        self.aiter.moe_sorting_opus_get_workspace_size = lambda *_: 0
        aiter.fused_moe.torch = CpuTorch()
        aiter.fused_moe.fused_dynamic_mxfp4_quant_moe_sort = quantise_mxfp4
        for name, stand_in in (
                ("moe_sorting_opus_fwd", self.sort), ("ck_moe_stage1_fwd", self.ck_stage1),
                ("ck_moe_stage2_fwd", self.ck_stage2), ("moe_stage1_g1u1", self.asm_stage1),
                ("fmoe_g1u1", self.one_stage), ("fmoe_g1u1_tkw1", self.one_stage_weighted),
                ("fmoe_fp8_blockscale_g1u1", self.one_stage_blocks)):
            bound = by_name(name, stand_in)
            setattr(self.aiter, name, bound)
            if hasattr(aiter.tuner, name):
                setattr(aiter.tuner, name, bound)

    def quantise_rows(self, out: Any, x: Any, scale: Any) -> None:
        values, scales = quantise(x, out.dtype, "per_Token")
        out.copy_(values)
        scale.copy_(scales.view(-1))

    def sort(self, a: Any) -> None:
        rows, factors, owners = sort_routes(a.topk_ids, a.topk_weights, a.num_experts, a.unit_size)
        a.sorted_token_ids[:len(rows)] = torch.tensor(rows, dtype=torch.int32)
        a.sorted_weights[:len(rows)] = torch.tensor(factors)
        a.sorted_expert_ids[:len(owners)] = torch.tensor(owners, dtype=torch.int32)
        a.num_valid_ids.copy_(torch.tensor([len(rows), a.topk_ids.shape[0]], dtype=torch.int32))
        a.moe_buf.zero_()

    def ck_stage1(self, a: Any) -> Any:
        assert a.w1.is_shuffled, "AITER would choose the kernels for plain weights"
        a.out.copy_(self._stage1(a, decode_rows(a.hidden_states, a.a1_scale, False), a.topk))
        return a.out

    def asm_stage1(self, a: Any) -> None:
        blocks = _name(a.quant_type) == "per_1x128"
        h = self._stage1(a, decode_rows(a.input, a.a1_scale, blocks), a.out.shape[1])
        if not blocks:
            a.out.copy_(h)
            return
        token = a.input.shape[0]
        values, scale = quantise(h.bfloat16(), a.out.dtype, "per_1x128")
        a.out[:token] = values
        a.out[token:].view(-1)[:4 * scale.numel()] = scale.view(torch.uint8).view(-1).view(a.out.dtype)

    def ck_stage2(self, a: Any) -> Any:
        self._begin(a.kernelName)
        assert a.w2.is_shuffled, "AITER would choose the kernels for plain weights"
        h = a.inter_states
        rows = decode_rows(h.reshape(-1, h.shape[-1]), a.a2_scale, False).view(*h.shape[:2], -1)
        weight, y = decode_shuffled(a.w2, a.w2_scale), a.out.double()
        for row, token, slot, expert in self._routes(a):
            factor = 1.0 if a.sorted_weights is None else float(a.sorted_weights[row])
            y[token] += rows[token, slot] @ weight[expert].t() * factor
        a.out.copy_(self._spoil(y))
        return a.out

    def one_stage(self, a: Any) -> None:
        self._one(a, blocks=False, doweight=False)

    def one_stage_weighted(self, a: Any) -> None:
        self._one(a, blocks=False, doweight=True)

    def one_stage_blocks(self, a: Any) -> None:
        self._one(a, blocks=True, doweight=False)

    def _begin(self, name: str) -> None:
        self.calls.append(name)
        if self.fail:
            raise RuntimeError(f"{name}: invalid argument")

    def _spoil(self, values: Any) -> Any:
        return -values if self.break_result else values

    def _act(self, activation: Any, gate_up: Any) -> Any:
        gate, up = gate_up.chunk(2, -1)
        act = torch.nn.functional.gelu if int(activation) == 1 else torch.nn.functional.silu
        return act(gate) * up

    def _routes(self, a: Any) -> List[Tuple[int, int, int, int]]:
        """(row, token, slot, expert) of each route; the block size follows from the number of blocks."""
        ids, experts = a.sorted_token_ids, a.sorted_expert_ids
        packed = [int(v) for v in ids[:int(a.num_valid_ids[0])]]
        block = -(-ids.numel() // experts.numel())
        found = [(p, v & 0xFFFFFF, v >> 24, int(experts[p // block])) for p, v in enumerate(packed)]
        return [route for route in found if route[1] < int(a.num_valid_ids[1])]

    def _stage1(self, a: Any, x: Any, topk: int) -> Any:
        self._begin(a.kernelName)
        weight = decode_shuffled(a.w1, a.w1_scale)
        h = torch.full((x.shape[0], topk, a.w1.shape[1] // 2), float("nan"), dtype=torch.float64)
        for row, token, slot, expert in self._routes(a):
            factor = 1.0 if a.sorted_weights is None else float(a.sorted_weights[row])
            h[token, slot] = self._act(a.activation, x[token] @ weight[expert].t() * factor)
        return self._spoil(h)

    def _one(self, a: Any, blocks: bool, doweight: bool) -> None:
        self._begin(a.kernelName)
        is_flat = a.sorted_token_ids.dim() == 2  # the router's top-k in the place of sorted routes
        if is_flat:
            check_room(a.out)
            a.out.zero_()
            routes = [(float(a.sorted_weights[t, k]), t, int(a.sorted_token_ids[t, k]))
                      for t in range(a.out.shape[0]) for k in range(a.topk)]
        else:
            routes = [(float(a.sorted_weights[row]), t, expert) for row, t, _, expert in self._routes(a)]
        w1, w2 = decode_weight(unshuffle(a.gate), a.fc1_scale), decode_weight(unshuffle(a.down), a.fc2_scale)
        x, y = decode_rows(a.input, a.input_scale, blocks), a.out.double()
        if blocks and a.input.dtype == torch.bfloat16:  # kernels for bf16 quantise x themselves
            x = decode_rows(*quantise(a.input, a.gate.dtype, "per_1x128"), False)
        for factor, token, expert in routes:
            h = self._act(a.activation, x[token] @ w1[expert].t() * (factor if doweight else 1.0))
            values, scale = quantise(h.bfloat16()[None], a.gate.dtype, "per_1x128" if blocks else "per_Token")
            z = decode_rows(values, scale, False)[0] @ w2[expert].t()
            y[token] += z * (1.0 if doweight else factor)
        a.out.copy_(self._spoil(y))


def by_name(name: str, stand_in: Any) -> Any:
    """Calls the stand-in with the arguments by the names that AITER's operator gives them."""
    signature = signature_of(name)

    def call(*arguments: Any, **options: Any) -> Any:
        bound = signature.bind(*arguments, **options)
        bound.apply_defaults()
        return stand_in(types.SimpleNamespace(**bound.arguments))

    return call


def signature_of(name: str) -> inspect.Signature:
    """The parameters of a function of aiter/ops, read from its source, because AITER's decorator hides them.
    Default values appear as None."""
    for path in sorted(pathlib.Path(os.environ["AITER_DIR"], "aiter", "ops").glob("moe_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                required = len(node.args.args) - len(node.args.defaults)
                kind, defaults = inspect.Parameter.POSITIONAL_OR_KEYWORD, (inspect.Parameter.empty, None)
                return inspect.Signature([inspect.Parameter(arg.arg, kind, default=defaults[i >= required])
                                          for i, arg in enumerate(node.args.args)])
    raise LookupError(f"AITER has no operator {name} in aiter/ops/moe_*.py")


def check_room(out: Any) -> None:
    """FLAT kernels zero their output and write 8 bytes behind it."""
    end = (out.storage_offset() + out.numel()) * out.element_size()
    assert out.untyped_storage().nbytes() >= end + 8, "a FLAT kernel writes behind the output"


class CpuTorch:
    """Stands for the module torch where AITER's code names the device "cuda"."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def empty(self, *size: Any, **options: Any) -> Any:
        return torch.empty(*size, **{**options, "device": "cpu"})


def _name(q_type: Any) -> str:
    """AITER passes a QuantType or its number."""
    return {4: "per_1x128"}.get(int(q_type), "")
