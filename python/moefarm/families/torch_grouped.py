"""Layers by torch's grouped GEMMs: torch._grouped_mm for bf16, and torch._scaled_grouped_mm for FP8 with one
scale per token (Hopper and later). No serving engine dispatches these candidates; they are a yardstick.

    grouped_mm, scaled_grouped_mm    the whole layer; torch sorts, quantises, activates and combines the rows
    gemm1_m16, gemm2_m16             one bf16 GEMM over rows that the farm's family move has sorted, in blocks
                                     of 16 rows; gemm1 also gathers and activates"""
from __future__ import annotations

from typing import Callable, Iterable, Mapping, Optional, Tuple, Union

import torch

from moefarm.family import Candidate, Device, Rejection, Shape
from moefarm.torch_family import (Routing, TorchFamily, TorchKernel, activate, quantise_rows,
                                  refusal_of_activate)

BF16, FP8 = "grouped_mm", "scaled_grouped_mm"
BLOCK = 16  # rows of a block of an expert in sorted order
GEMM1, GEMM2 = f"gemm1_m{BLOCK}", f"gemm2_m{BLOCK}"
_FP8_TYPE = "torch.float8_e4m3fn"
Tensors = Mapping[str, torch.Tensor]


def refusal(shape: Shape, device: Device) -> Optional[Tuple[str, str]]:
    """Returns the rule and the reason if torch's grouped GEMMs cannot compute the layer."""
    refused = refusal_of_activate(shape, "torch")
    if refused:
        return refused
    if shape.model_dim % 16 or shape.inter_dim % 16:
        return "divisibility", (f"model_dim {shape.model_dim} and inter_dim {shape.inter_dim} must be "
                                "multiples of 16, because rows are read in units of 16 bytes")
    formats = (shape.q_type, shape.q_dtype_a, shape.q_dtype_w)
    if shape.is_quantised and formats != ("QuantType.per_Token", _FP8_TYPE, _FP8_TYPE):
        return "dtype", (f"{shape.q_dtype_w} with {shape.q_type}: torch._scaled_grouped_mm takes {_FP8_TYPE} "
                         "with QuantType.per_Token")
    if shape.is_quantised and device.compute_capability < 90:
        return "device", f"torch._scaled_grouped_mm needs an NVIDIA GPU from sm_90 on, not {device.gfx}"
    return None


class Layer(TorchKernel):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.routing = Routing(shape.token, shape.topk, shape.expert)

    def forward(self, tensors: Tensors) -> torch.Tensor:
        shape, weights = self.shape, tensors["topk_weights"]
        routes, ends = self.routing.sort(tensors["topk_ids"])
        g = self.gemm1(tensors, torch.div(routes, shape.topk, rounding_mode="floor"), ends)
        if shape.doweight_stage1:
            g = g * weights.reshape(-1)[routes].to(g.dtype).unsqueeze(-1)
        h = activate(g, shape.act_type, shape.use_g1u1)
        z = self.gemm2(tensors, h, ends)
        return self.routing.combine(z, routes, None if shape.doweight_stage1 else weights)

    def gemm1(self, tensors: Tensors, rows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        x = tensors["x"].index_select(0, rows)
        return torch._grouped_mm(x, tensors["w1"].transpose(-2, -1), offs=ends)

    def gemm2(self, tensors: Tensors, h: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return torch._grouped_mm(h, tensors["w2"].transpose(-2, -1), offs=ends)


class Fp8Layer(Layer):
    def gemm1(self, tensors: Tensors, rows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        x, scale = quantise_rows(tensors["x"])
        gathered = x.view(torch.uint8).index_select(0, rows).view(x.dtype)
        return self.multiply(gathered, scale.index_select(0, rows), tensors["w1"], tensors["w1_scale"], ends)

    def gemm2(self, tensors: Tensors, h: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return self.multiply(*quantise_rows(h), tensors["w2"], tensors["w2_scale"], ends)

    def multiply(self, x: torch.Tensor, x_scale: torch.Tensor, w: torch.Tensor, w_scale: torch.Tensor,
                 ends: torch.Tensor) -> torch.Tensor:
        return torch._scaled_grouped_mm(x, w.transpose(-2, -1), x_scale, w_scale.reshape(w.shape[:2]),
                                        offs=ends, out_dtype=torch.bfloat16, use_fast_accum=True)


class SortedGemm(TorchKernel):
    """A GEMM over rows in sorted order (kernels/core/tensors.h)."""

    def __init__(self, shape: Shape, output: str) -> None:
        super().__init__(output)
        self.shape = shape
        self.experts: Optional[torch.Tensor] = None

    def ends(self, tensors: Tensors) -> torch.Tensor:
        """The end of each expert's rows. Blocks beyond num_valid have no expert."""
        blocks = tensors["sorted_experts"]
        if self.experts is None:
            self.experts = torch.arange(max(blocks.numel(), self.shape.expert), dtype=torch.int32,
                                        device=blocks.device)
        n_blocks = torch.div(tensors["sorted_num_valid"][0], BLOCK, rounding_mode="floor")
        valid = self.experts[:blocks.numel()] < n_blocks
        blocks = torch.where(valid, blocks, self.shape.expert)
        experts = self.experts[:self.shape.expert]
        return torch.searchsorted(blocks, experts, right=True, out_int32=True) * BLOCK


class SortedGemm1(SortedGemm):
    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, "h")

    def forward(self, tensors: Tensors) -> None:
        tokens = (tensors["sorted_ids"] & 0xffffff).clamp(max=self.shape.token - 1)
        x = tensors["x"].index_select(0, tokens)
        g = torch._grouped_mm(x, tensors["w1"].transpose(-2, -1), offs=self.ends(tensors))
        tensors["h"].copy_(activate(g, self.shape.act_type, self.shape.use_g1u1))


class SortedGemm2(SortedGemm):
    """Writes z in the order of the routes."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, "z")
        self.rows: Optional[torch.Tensor] = None

    def forward(self, tensors: Tensors) -> None:
        ids, routes = tensors["sorted_ids"], self.shape.token * self.shape.topk
        if self.rows is None:
            self.rows = torch.arange(ids.numel(), device=ids.device)
        z = torch._grouped_mm(tensors["h"], tensors["w2"].transpose(-2, -1), offs=self.ends(tensors))
        token, slot = ids & 0xffffff, ids >> 24
        used = (token < self.shape.token) & (self.rows < tensors["sorted_num_valid"][0])
        route = torch.where(used, token * self.shape.topk + slot, routes).long()
        row_of_route = torch.zeros(routes + 1, dtype=torch.int64, device=ids.device)
        row_of_route.scatter_(0, route, self.rows)
        torch.index_select(z, 0, row_of_route[:routes], out=tensors["z"])


def sorted_candidates(shape: Shape) -> Iterable[Candidate]:
    """The GEMMs over rows that the farm has sorted."""
    rows, order = shape.token * shape.topk, f"sorted/index/none/sorted.{BLOCK}"
    width = shape.inter_dim * (2 if shape.use_g1u1 else 1)
    yield Candidate(GEMM1, ("gather", "gemm1", "act"), ("x/bf16/none/token", order, "w1/bf16/none/row"),
                    (f"h/bf16/none/sorted.{BLOCK}",), BLOCK,
                    flops=2.0 * rows * shape.model_dim * width)
    yield Candidate(GEMM2, ("gemm2",), (f"h/bf16/none/sorted.{BLOCK}", order, "w2/bf16/none/row"),
                    ("z/bf16/none/slot",), BLOCK, flops=2.0 * rows * shape.model_dim * shape.inter_dim)


KERNELS: Mapping[str, Callable[[Shape], TorchKernel]] = {
    BF16: Layer, FP8: Fp8Layer, GEMM1: SortedGemm1, GEMM2: SortedGemm2}


class TorchGrouped(TorchFamily):
    name = "torch_grouped"

    def enumerate(self, shape: Shape, device: Device) -> Iterable[Union[Candidate, Rejection]]:
        kernel = FP8 if shape.is_quantised else BF16
        refused = refusal(shape, device)
        if refused:
            return [Rejection(kernel, *refused)]
        if shape.is_quantised or shape.doweight_stage1:
            return [shape.candidate(kernel)]
        return [shape.candidate(kernel), *sorted_candidates(shape)]

    def open(self, candidate: Candidate, shape: Shape) -> TorchKernel:
        return KERNELS[candidate.name](shape)


family = TorchGrouped()
