"""Decides which layers the frameworks' fused-MoE Triton kernels can compute, and describes a layer and its
device for the choice of configurations."""
from __future__ import annotations

import dataclasses
from typing import Optional, Sequence, Tuple

from moefarm.family import Device, Shape

BLOCK = 128  # side of the blocks of weights that share a scale
_FP8 = ("torch.float8_e4m3fn", "torch.float8_e4m3fnuz")
_FP8_TYPES = {"QuantType.per_1x128": "blocks", "QuantType.per_Token": "rows",
              "QuantType.per_Tensor": "tensor"}


@dataclasses.dataclass(frozen=True)
class Layer:
    """A layer on a device. `scales`: "" (not quantised), "blocks", "rows" or "tensor". `shared_bytes`: shared
    memory (LDS) of a block; 0 if unknown. `compute_capability`: as Device.compute_capability."""

    token: int
    model_dim: int
    inter_dim: int
    expert: int
    topk: int
    scales: str
    compute_capability: int
    vendor: str
    shared_bytes: int = 0

    @property
    def routes(self) -> int:
        return self.token * self.topk

    @property
    def rows_per_expert(self) -> int:
        """Rows of an expert that has any, with uniform routing, rounded up."""
        active = min(self.expert, self.routes)
        return -(-self.routes // active)

    @property
    def element_bytes(self) -> int:
        return 1 if self.scales else 2

    @property
    def dtype(self) -> str:
        """The value of `dtype=` in the name of a framework's file; "": no such part."""
        return "fp8_w8a8" if self.scales else ""

    @property
    def block_shape(self) -> Sequence[int]:
        return [BLOCK, BLOCK] if self.scales == "blocks" else []


def layer_of(shape: Shape, device: Device) -> Layer:
    shared = device.info.get("lds") or 0
    return Layer(shape.token, shape.model_dim, shape.inter_dim, shape.expert, shape.topk, scales_of(shape),
                 device.compute_capability, device.vendor, int(shared))


def scales_of(shape: Shape) -> str:
    return _FP8_TYPES.get(shape.q_type, "")


def refusal(shape: Shape, device: Device) -> Optional[Tuple[str, str]]:
    """Returns the rule and the reason if the kernels cannot compute the layer."""
    if device.vendor not in ("nvidia", "amd"):
        return "device", f"Triton needs a GPU of NVIDIA or AMD, not {device.name}"
    refused = plain_refusal(shape)
    return refused or (_quantised_refusal(shape, device) if shape.is_quantised else None)


def plain_refusal(shape: Shape) -> Optional[Tuple[str, str]]:
    """As refusal, on any device and with any quantisation."""
    if shape.form:
        return "form", f"fused_experts has no epilogue for the form {shape.form}: only plain layers"
    if shape.act_type != "ActivationType.Silu" or not shape.use_g1u1:
        return "activation", (f"{shape.act_type} with use_g1u1 {int(shape.use_g1u1)}: only "
                              "ActivationType.Silu with a gate (use_g1u1 1)")
    if shape.dtype not in ("torch.bfloat16", "torch.float16"):
        return "dtype", f"{shape.dtype} activations: only torch.bfloat16 and torch.float16"
    return None


def _quantised_refusal(shape: Shape, device: Device) -> Optional[Tuple[str, str]]:
    formats = (shape.q_dtype_a, shape.q_dtype_w)
    if shape.q_type not in _FP8_TYPES or formats[0] != formats[1] or formats[0] not in _FP8:
        return "dtype", (f"{shape.q_dtype_a} and {shape.q_dtype_w} with {shape.q_type}: only FP8 activations "
                         f"and weights with {', '.join(_FP8_TYPES)}")
    expected = _FP8[1] if device.gfx == "gfx942" else _FP8[0]
    if formats[0] != expected:
        return "dtype", f"{formats[0]}: on {device.gfx} the frameworks quantise to {expected}"
    if device.vendor == "nvidia" and device.compute_capability < 89:
        return "device", f"FP8 needs an NVIDIA GPU from sm_89 on, not {device.gfx}"
    if shape.q_type == "QuantType.per_1x128" and (shape.model_dim % BLOCK or shape.inter_dim % BLOCK):
        return "divisibility", (f"model_dim {shape.model_dim} and inter_dim {shape.inter_dim} must be "
                                f"multiples of the scale block of {BLOCK}")
    return None
