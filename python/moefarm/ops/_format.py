"""Quantisation in every format of moefarm, and the orders of weights and scales that kernels expect."""
from __future__ import annotations

from typing import Dict, NamedTuple, Optional, Tuple

import torch

from moefarm.ops import _native

_AMAX_BYTES = 512  # FMOE_OP_AMAX_BYTES
Quantised = Tuple[torch.Tensor, torch.Tensor]


class Format(NamedTuple):
    """How a matrix is stored: kernels/core/codec.h."""

    element: torch.dtype  # uint8: two elements of four bits
    scale: torch.dtype
    group_rows: int  # rows and columns that share a scale; 0: all
    group_cols: int


def _with_f32_scales(name: str, element: torch.dtype) -> Dict[str, Format]:
    return {f"{name}_tensor": Format(element, torch.float32, 0, 0),
            f"{name}_token": Format(element, torch.float32, 1, 0),
            f"{name}_128": Format(element, torch.float32, 1, 128),
            f"{name}_128x128": Format(element, torch.float32, 128, 128)}


FORMATS = {**_with_f32_scales("fp8fn", torch.float8_e4m3fn),
           **_with_f32_scales("fp8fnuz", torch.float8_e4m3fnuz),
           **_with_f32_scales("int8", torch.int8),
           "mxfp8": Format(torch.float8_e4m3fn, torch.float8_e8m0fnu, 1, 32),
           "mxfp4": Format(torch.uint8, torch.float8_e8m0fnu, 1, 32),
           "nvfp4": Format(torch.uint8, torch.float8_e4m3fn, 1, 16),
           "int4_32": Format(torch.uint8, torch.bfloat16, 1, 32),
           "int4_channel": Format(torch.uint8, torch.float32, 1, 0)}

# ---- quantise ----


def _outputs(x: torch.Tensor, format: str) -> Quantised:
    f = FORMATS[format]
    rows, cols = x.shape[-2], x.shape[-1]
    scale_rows = (rows + f.group_rows - 1) // f.group_rows if f.group_rows else 1
    scale_cols = (cols + f.group_cols - 1) // f.group_cols if f.group_cols else 1
    return (x.new_empty((*x.shape[:-1], cols // 2 if f.element == torch.uint8 else cols), dtype=f.element),
            x.new_empty((*x.shape[:-2], scale_rows, scale_cols), dtype=f.scale))


def _quantise(x: torch.Tensor, format: str, factor: Optional[torch.Tensor]) -> Quantised:
    ops = _native.operators(x)
    q, scale = _outputs(x, format)
    rows, cols = x.shape[-2:]
    matrices = x.numel() // (rows * cols)
    workspace = ops.workspace(matrices * _AMAX_BYTES)
    ops.run("quantise", _native.Quantise(
        format.encode(), _native.pointer("x", x, x, torch.bfloat16), matrices, rows, cols, 0,
        _native.pointer("factor", factor, x, torch.float32, x.shape[:-2]), q.data_ptr(), scale.data_ptr(),
        workspace.data_ptr()))
    return q, scale


def _quantise_fake(x: torch.Tensor, format: str, factor: Optional[torch.Tensor]) -> Quantised:
    return _outputs(x, format)


_quantise_op = _native.register("quantise(Tensor x, str format, Tensor? factor) -> (Tensor, Tensor)",
                                _quantise, _quantise_fake)


def nvfp4_factor(x: torch.Tensor) -> torch.Tensor:
    """The global factor of NVFP4 of each matrix of x [..., rows, columns]: 448 * 6 / amax, float32 [...]."""
    amax = x.abs().amax((-2, -1)).float()
    return torch.where(amax > 0, 448.0 * 6.0 / amax, 1.0).clamp(max=torch.finfo(torch.float32).max)


def quantise(x: torch.Tensor, format: str, factor: Optional[torch.Tensor] = None
             ) -> Tuple[torch.Tensor, torch.Tensor, Optional[torch.Tensor]]:
    """Quantises each matrix of x, bfloat16 [..., rows, columns]. `columns` is a multiple of 8.

    format: "fp8fn_tensor", "fp8fn_token", "fp8fn_128" (1 x 128), "fp8fn_128x128", the same with "fp8fnuz"
        (AMD) and with "int8"; "mxfp8", "mxfp4", "nvfp4", "int4_32" (1 x 32), "int4_channel".
    factor: float32 [...], NVFP4's global factor; the default is nvfp4_factor(x).

    Returns q, scale [..., scale rows, scale columns] and the factor (None for other formats). An element's
    value is q * scale, divided by the factor. Four-bit elements are pairs in a byte, the even column in the
    low nibble. Scales are float32, bfloat16 (int4_32), float8_e8m0fnu or float8_e4m3fn (nvfp4).

    >>> import torch, moefarm
    >>> x = torch.arange(16.0).bfloat16().view(1, 16)
    >>> q, scale, _ = moefarm.ops.quantise(x, "int8_token")
    >>> q.tolist()[0][-3:], round(scale.item() * 127)
    ([110, 119, 127], 15)
    """
    if x.dim() < 2 or x.shape[-1] % 8 != 0:
        _native.refuse("shape of x", list(x.shape), "[..., rows, columns], with a multiple of 8 columns")
    if format not in FORMATS:
        _native.refuse("format", f"'{format}'", ", ".join(FORMATS))
    if format != "nvfp4":
        q, scale = _quantise_op(x, format, None)
        return q, scale, None
    factor = nvfp4_factor(x) if factor is None else factor
    q, scale = _quantise_op(x, format, factor)
    return q, scale, factor


# ---- orders ----

# Rows and columns to which an order pads a matrix. Other orders need multiples of their tile.
_PADS = {"e8m0": (256, 8), "e8m0_1250": (32, 4), "32_4_4": (128, 4), "8_4": (8, 4)}


def _padded(rows: int, cols: int, order: str) -> Tuple[int, int]:
    down, across = _PADS.get(order, (1, 1))
    return (rows + down - 1) // down * down, (cols + across - 1) // across * across


def _reorder(x: torch.Tensor, out: torch.Tensor, order: str, rows: int, cols: int, undo: bool) -> None:
    matrices = 1
    for n in x.shape[:-2]:
        matrices *= n
    _native.operators(x).run("shuffle", _native.Shuffle(
        order.encode(), _native.pointer("x", x, x), out.data_ptr(), matrices, rows, cols, x.element_size(),
        undo))


def _shuffle_fake(x: torch.Tensor, order: str) -> torch.Tensor:
    return x.new_empty((*x.shape[:-2], *_padded(x.shape[-2], x.shape[-1], order)))


def _shuffle(x: torch.Tensor, order: str) -> torch.Tensor:
    out = _shuffle_fake(x, order)
    _reorder(x, out, order, x.shape[-2], x.shape[-1], False)
    return out


def _unshuffle_fake(x: torch.Tensor, order: str, rows: int, cols: int) -> torch.Tensor:
    return x.new_empty((*x.shape[:-2], rows, cols))


def _unshuffle(x: torch.Tensor, order: str, rows: int, cols: int) -> torch.Tensor:
    if tuple(x.shape[-2:]) != _padded(rows, cols, order):
        _native.refuse("shape of x", list(x.shape), f"[..., {_padded(rows, cols, order)}]")
    out = _unshuffle_fake(x, order, rows, cols)
    _reorder(x, out, order, rows, cols, True)
    return out


_shuffle_op = _native.register("shuffle(Tensor x, str order) -> Tensor", _shuffle, _shuffle_fake)
_unshuffle_op = _native.register("unshuffle(Tensor x, str order, int rows, int cols) -> Tensor", _unshuffle,
                                 _unshuffle_fake)


def shuffle(x: torch.Tensor, order: str) -> torch.Tensor:
    """Reorders each matrix of x [..., rows, columns] (elements of one or two bytes) for external kernels.

    order: "16x16" (AITER's shuffle_weight), "a16w4" and "a16w4_gu" (shuffle_weight_a16w4, without and with
    gate and up rows), "a16w4_scale", "e8m0" (e8m0_shuffle), "e8m0_1250", "32_4_4" (cuBLAS, FlashInfer),
    "8_4". Four-bit weights are passed as bytes. Scale orders pad the matrix; the result has the padded
    shape."""
    out: torch.Tensor = _shuffle_op(x, order)
    return out


def unshuffle(x: torch.Tensor, order: str, rows: int, cols: int) -> torch.Tensor:
    """The inverse of `shuffle`: [..., rows, cols] from the padded matrices x."""
    out: torch.Tensor = _unshuffle_op(x, order, rows, cols)
    return out


def swizzle_scales(scales: torch.Tensor) -> torch.Tensor:
    """Scales [..., rows, columns] of one byte in the 32_4_4 order of Blackwell's block-scaled GEMMs, padded
    to multiples of 128 rows and 4 columns."""
    return shuffle(scales, "32_4_4")


def unswizzle_scales(scales: torch.Tensor, rows: int, cols: int) -> torch.Tensor:
    """Row-major scales [..., rows, cols] from the 32_4_4 order."""
    return unshuffle(scales, "32_4_4", rows, cols)
