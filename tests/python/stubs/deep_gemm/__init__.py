"""Stands for DeepGEMM: grouped GEMMs with the signatures of DeepGEMM 2.6, computed with torch. Rows that the
real kernels do not write stay NaN. As in the extension, only docstrings have the parameters."""
from typing import Any, Callable, Tuple, Union

import torch

__version__ = "2.6.1"
Operand = Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]
ROWS = 128


def _documented(doc: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def add(function: Callable[..., None]) -> Callable[..., None]:
        function.__doc__ = f"{function.__name__}({doc}) -> None"
        return function
    return add


def _rows(a: Operand) -> torch.Tensor:
    if isinstance(a, torch.Tensor):
        return a.float()
    q, scale = a
    if scale.stride(-2) != 1:
        raise ValueError("scales must have the row as the fastest dimension")
    return q.float() * scale.repeat_interleave(128, -1)


def _weights(b: Operand) -> torch.Tensor:
    if isinstance(b, torch.Tensor):
        return b.float()
    w, scale = b
    full = scale.repeat_interleave(128, 1).repeat_interleave(128, 2)
    return w.float() * full[:, :w.shape[1], :w.shape[2]]


def _contiguous(a: Operand, b: Operand, d: torch.Tensor, layout: torch.Tensor) -> None:
    d.fill_(float("nan"))
    x, w = _rows(a), _weights(b)
    if x.shape[0] % ROWS or layout.dtype != torch.int32 or layout.shape != x.shape[:1]:
        raise ValueError("one group per row, in blocks of 128 rows")
    for first in range(0, x.shape[0], ROWS):
        block = layout[first:first + ROWS]
        experts = {int(e) for e in block if e >= 0}
        if len(experts) > 1 or (experts and block[0] < 0):
            raise ValueError("the rows of a block must have one group, from the first row on")
        for expert in experts:
            d[first:first + ROWS] = (x[first:first + ROWS] @ w[expert].T).to(d.dtype)


def _masked(a: Operand, b: Operand, d: torch.Tensor, masked_m: torch.Tensor, expected_m: int) -> None:
    d.fill_(float("nan"))
    x, w = _rows(a), _weights(b)
    if masked_m.dtype != torch.int32 or expected_m < 1 or x.shape[1] % ROWS:
        raise ValueError("int32 counts, at least one expected row, and groups of a multiple of 128 rows")
    for expert in range(x.shape[0]):
        n = int(masked_m[expert])
        d[expert, :n] = (x[expert, :n] @ w[expert].T).to(d.dtype)


@_documented("a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, grouped_layout: torch.Tensor, "
             "compiled_dims: str = 'nk', use_psum_layout: bool = False")
def m_grouped_bf16_gemm_nt_contiguous(*arguments: Any) -> None:
    _contiguous(*arguments)


@_documented("a: tuple[torch.Tensor, torch.Tensor], b: tuple[torch.Tensor, torch.Tensor], d: torch.Tensor, "
             "grouped_layout: torch.Tensor, recipe: Optional[tuple[int, int, int]] = None")
def m_grouped_fp8_gemm_nt_contiguous(*arguments: Any) -> None:
    _contiguous(*arguments)


@_documented("a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, masked_m: torch.Tensor, expected_m: int, "
             "compiled_dims: str = 'nk'")
def m_grouped_bf16_gemm_nt_masked(*arguments: Any) -> None:
    _masked(*arguments)


@_documented("a: tuple[torch.Tensor, torch.Tensor], b: tuple[torch.Tensor, torch.Tensor], d: torch.Tensor, "
             "masked_m: torch.Tensor, expected_m: int, recipe: Optional[tuple[int, int, int]] = None")
def m_grouped_fp8_gemm_nt_masked(*arguments: Any) -> None:
    _masked(*arguments)
