"""Layers for the tests of families in Python: shapes, FP8 weights, and a plain loop over the routes."""
from __future__ import annotations

from typing import Dict

import torch

from test_torch_grouped import inputs
from test_torch_grouped import reference as plain_reference
from triton_stubs import dequantise

from moefarm.family import Candidate, Shape
from moefarm.torch_family import scale_size

BF16 = "7,256,128,5,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0"
FP8 = BF16.replace("torch.bfloat16,torch.bfloat16,QuantType.No",
                   "torch.float8_e4m3fn,torch.float8_e4m3fn,QuantType.per_1x128")


def candidate(name: str) -> Candidate:
    return Candidate(name, (), (), ())


def layer_inputs(shape: Shape) -> Dict[str, torch.Tensor]:
    """Inputs of a layer. FP8 weights have scales of the sizes that the farm makes."""
    t: Dict[str, torch.Tensor] = inputs(shape)
    for name in ("w1", "w2") if shape.is_quantised else ():
        size = scale_size(shape.q_type, tuple(t[name].shape))
        t[f"{name}_scale"] = torch.rand(*size) / 32 + 1 / 32
        t[name] = (t[name].float() * 16).to(torch.float8_e4m3fn)
    return t


def reference(shape: Shape, t: Dict[str, torch.Tensor]) -> torch.Tensor:
    """The layer as a loop over the routes, with dequantised weights, float32 [token, model_dim]."""
    weights = {name: dequantise(t[name], t.get(f"{name}_scale")) for name in ("w1", "w2")}
    y: torch.Tensor = plain_reference(shape, {**t, **weights})
    return y
