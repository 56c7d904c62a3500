"""Whole layers by torch's grouped GEMMs: torch._grouped_mm for bf16, and torch._scaled_grouped_mm for FP8
with one scale per token (Hopper and later). Rows are sorted by expert, quantised, activated and combined by
torch. No serving engine dispatches these candidates; they are a yardstick."""
from __future__ import annotations

from typing import Iterable, Mapping, Optional, Tuple, Union

import torch

from moefarm.family import Candidate, Device, Rejection, Shape
from moefarm.torch_family import ACTIVATIONS, Routing, TorchFamily, TorchKernel, activate, quantise_rows

BF16, FP8 = "grouped_mm", "scaled_grouped_mm"
_FP8_TYPE = "torch.float8_e4m3fn"
Tensors = Mapping[str, torch.Tensor]


def refusal(shape: Shape, device: Device) -> Optional[Tuple[str, str]]:
    """Returns the rule and the reason if torch's grouped GEMMs cannot compute the layer."""
    if shape.form:
        return "form", f"torch has no epilogue for the form {shape.form}: only plain layers"
    if shape.act_type not in ACTIVATIONS:
        return "activation", f"{shape.act_type}: only {' and '.join(ACTIVATIONS)}"
    if shape.dtype != "torch.bfloat16":
        return "dtype", f"{shape.dtype} activations: only torch.bfloat16"
    if shape.model_dim % 16 or shape.inter_dim % 16:
        return "divisibility", (f"model_dim {shape.model_dim} and inter_dim {shape.inter_dim} must be "
                                "multiples of 16, because rows are read in units of 16 bytes")
    formats = (shape.q_type, shape.q_dtype_a, shape.q_dtype_w)
    if shape.is_quantised and formats != ("QuantType.per_Token", _FP8_TYPE, _FP8_TYPE):
        return "dtype", (f"{shape.q_dtype_w} with {shape.q_type}: torch._scaled_grouped_mm takes {_FP8_TYPE} "
                         "with QuantType.per_Token")
    if shape.is_quantised and (device.vendor != "nvidia" or device.gfx < "sm_90"):
        return "device", f"torch._scaled_grouped_mm needs an NVIDIA GPU from sm_90 on, not {device.name}"
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


class TorchGrouped(TorchFamily):
    name = "torch_grouped"

    def enumerate(self, shape: Shape, device: Device) -> Iterable[Union[Candidate, Rejection]]:
        kernel = FP8 if shape.is_quantised else BF16
        refused = refusal(shape, device)
        if refused:
            return [Rejection(kernel, *refused)]
        return [shape.candidate(kernel)]

    def open(self, candidate: Candidate, shape: Shape) -> Layer:
        return Fp8Layer(shape) if candidate.name == FP8 else Layer(shape)


family = TorchGrouped()
