"""torch.ops.moefarm.fused_moe: the layer as an operator that torch.compile and CUDA graphs accept. It has no
gradient."""
from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING, Optional

import torch

from moefarm._library import Error
from moefarm.ops import _native

if TYPE_CHECKING:
    from moefarm.layer import Layer

_numbers = itertools.count(1)
_layers: "weakref.WeakValueDictionary[int, Layer]" = weakref.WeakValueDictionary()
_ARGUMENTS = "Tensor x, Tensor topk_ids, Tensor topk_weights, int layer"


def register(layer: Layer) -> int:
    """Returns the number by which the operator finds the layer, as long as the layer lives."""
    number = next(_numbers)
    _layers[number] = layer
    return number


def _layer_of(number: int) -> Layer:
    layer = _layers.get(number)
    if layer is None:
        raise Error(f"layer {number} was deleted: keep a reference to it while its operator is in use")
    return layer


def _fused_moe(x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor,
               layer: int) -> torch.Tensor:
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    _layer_of(layer).run(x, topk_ids, topk_weights, y)
    return y


def _fused_moe_out(x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor, layer: int,
                   out: torch.Tensor) -> None:
    _layer_of(layer).run(x, topk_ids, topk_weights, out)


def _fake(x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor, layer: int) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _fake_out(x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor, layer: int,
              out: torch.Tensor) -> None:
    return None


_native.register(f"fused_moe({_ARGUMENTS}) -> Tensor", _fused_moe, _fake)
_native.register(f"fused_moe_out({_ARGUMENTS}, Tensor(a!) out) -> ()", _fused_moe_out, _fake_out)


def fused_moe(x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor,
              layer: Layer, out: Optional[torch.Tensor] = None) -> torch.Tensor:
    """Runs `layer` on the current stream and returns y, bfloat16 [T, H]: the same as layer(x, …).

    x: bfloat16 [T, H]; topk_ids: int32 or int64 [T, K]; topk_weights: float32 or bfloat16 [T, K];
    out: receives y."""
    return layer(x, topk_ids, topk_weights, out)
