"""Layers by the grouped GEMMs of the installed DeepGEMM (https://github.com/deepseek-ai/DeepGEMM) on Hopper:
bf16, and FP8 with one scale per 128 activations and per 128x128 weights. torch sorts, quantises, activates
and combines the rows around the GEMMs. The candidates are for comparison only: no serving engine runs them.

    contiguous   the rows of an expert follow each other, padded to a multiple of 128
    masked       128 rows for each expert, for at most 128 tokens

DeepGEMM compiles its kernels at their first launch, with nvcc, or with NVRTC if DG_JIT_USE_NVRTC is 1."""
from __future__ import annotations

import importlib
import importlib.metadata
import os
import re
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

import torch

from moefarm.family import Candidate, Device, Rejection, Shape
from moefarm.torch_family import (BLOCK, CompilesAtLaunch, Routing, TorchKernel, activate, quantise_rows,
                                  refusal_of_activate)

ROWS = 128  # alignment of an expert's rows, and maximum number of tokens of `masked`
CONTIGUOUS, MASKED = "contiguous", "masked"
_FP8_TYPE = "torch.float8_e4m3fn"
# by (is_quantised, layout): the names in DeepGEMM 2, the current one first
FUNCTIONS: Mapping[Tuple[bool, str], Sequence[str]] = {
    (False, CONTIGUOUS): ("m_grouped_bf16_gemm_nt_contiguous",),
    (True, CONTIGUOUS): ("m_grouped_fp8_gemm_nt_contiguous",),
    (False, MASKED): ("m_grouped_bf16_gemm_nt_masked", "bf16_m_grouped_gemm_nt_masked"),
    (True, MASKED): ("m_grouped_fp8_gemm_nt_masked", "fp8_m_grouped_gemm_nt_masked"),
}
# by layout: the accepted names of each parameter
PARAMETERS: Mapping[str, Sequence[Sequence[str]]] = {
    CONTIGUOUS: (("a",), ("b",), ("d",), ("grouped_layout", "m_indices")),
    MASKED: (("a",), ("b",), ("d",), ("masked_m",), ("expected_m",))}
Tensors = Mapping[str, torch.Tensor]


def parameters_of(function: Callable[..., Any]) -> List[str]:
    """Reads the parameters of a function of DeepGEMM's C++ extension from the first line of its docstring;
    inspect.signature does not know them."""
    signature = (function.__doc__ or "").strip().split("\n")[0]
    return re.findall(r"[(,] ?(\w+): ", signature)


def find_functions(module: Any) -> Dict[Tuple[bool, str], Callable[..., Any]]:
    """Returns the functions that the module has. Raises ImportError if a function has unknown parameters, or
    if the module has none of the functions."""
    found = {}
    for key, names in FUNCTIONS.items():
        function = next((getattr(module, name) for name in names if hasattr(module, name)), None)
        if function is None:
            continue
        expected, actual = PARAMETERS[key[1]], parameters_of(function)
        if any(i >= len(actual) or actual[i] not in known for i, known in enumerate(expected)):
            raise ImportError(f"DeepGEMM {version_of(module)}: {function.__name__} has the parameters "
                              f"{', '.join(actual) or 'unknown'}; this family knows DeepGEMM 2")
        found[key] = function
    if not found:
        raise ImportError(f"DeepGEMM {version_of(module)} has no grouped GEMM that this family knows; "
                          "install DeepGEMM 2")
    return found


def version_of(module: Any) -> str:
    try:
        return importlib.metadata.version("deep_gemm")
    except importlib.metadata.PackageNotFoundError:
        return str(getattr(module, "__version__", "of unknown version"))


def refusal(shape: Shape, device: Device) -> Optional[Tuple[str, str]]:
    """Returns the rule and the reason if DeepGEMM cannot compute the layer."""
    if device.compute_capability != 90:
        return "device", f"only Hopper GPUs (sm_90), not {device.gfx} of {device.name}"
    refused = refusal_of_activate(shape, "DeepGEMM")
    if refused:
        return refused
    formats = (shape.q_type, shape.q_dtype_a, shape.q_dtype_w)
    if shape.is_quantised and formats != ("QuantType.per_1x128", _FP8_TYPE, _FP8_TYPE):
        return "dtype", f"{shape.q_dtype_w} with {shape.q_type}: only {_FP8_TYPE} with QuantType.per_1x128"
    multiple = BLOCK if shape.is_quantised else 64
    if shape.model_dim % multiple or shape.inter_dim % multiple:
        return "divisibility", (f"model_dim {shape.model_dim} and inter_dim {shape.inter_dim} must be "
                                f"multiples of {multiple}")
    return None


class Places:
    """The place of each sorted row in the GEMMs' buffers."""

    def __init__(self, shape: Shape, layout: str, ids: torch.Tensor, routing: Routing) -> None:
        self.size: Tuple[int, ...]
        self.index: Tuple[torch.Tensor, ...]  # of each sorted row in a buffer of this size
        self.experts: Tuple[Any, ...]  # last arguments of DeepGEMM's function
        self.routes, ends = routing.sort(ids)
        n, expert = self.routes.numel(), ids.reshape(-1)[self.routes].long()
        counts = torch.diff(ends, prepend=ends.new_zeros(1))
        rank = torch.arange(n, device=ids.device) - (ends - counts)[expert]
        if layout == MASKED:
            self.size, self.index = (shape.expert, ROWS), (expert, rank)
            self.experts = (counts, -(-n // shape.expert))
        else:
            active = min(n, shape.expert)
            self.size = (ROWS * (active + (n - active) // ROWS),)  # enough for every routing
            padded = (counts + ROWS - 1) // ROWS * ROWS
            self.index = ((torch.cumsum(padded, 0) - padded)[expert] + rank,)
            self.experts = (torch.full(self.size, -1, dtype=torch.int32, device=ids.device)
                            .index_copy_(0, self.index[0], expert.int()),)

    def put(self, rows: torch.Tensor) -> torch.Tensor:
        """Copies rows to their places. Padding rows are undefined; DeepGEMM keeps rows apart."""
        to = rows.new_empty((*self.size, rows.shape[1]))
        _bytes(to)[self.index] = _bytes(rows)
        return to

    def put_scales(self, scales: torch.Tensor) -> torch.Tensor:
        """Like `put`, with the row as the fastest dimension, as DeepGEMM reads scales."""
        *outer, inner = self.size
        to = scales.new_empty((*outer, scales.shape[1], inner)).transpose(-1, -2)
        to[self.index] = scales
        return to


def _bytes(x: torch.Tensor) -> torch.Tensor:
    """Views FP8 as uint8, because torch cannot index FP8. Returns other tensors unchanged."""
    return x.view(torch.uint8) if x.element_size() == 1 else x


class Layer(TorchKernel):
    def __init__(self, shape: Shape, layout: str, function: Callable[..., Any]) -> None:
        super().__init__()
        self.shape, self.layout, self.function = shape, layout, function
        self.routing = Routing(shape.token, shape.topk, shape.expert)

    def forward(self, tensors: Tensors) -> torch.Tensor:
        shape, weights = self.shape, tensors["topk_weights"]
        places = Places(shape, self.layout, tensors["topk_ids"], self.routing)
        tokens = torch.div(places.routes, shape.topk, rounding_mode="floor")
        g = self.gemm(tensors["x"], tokens, tensors, "w1", places)
        if shape.doweight_stage1:
            g = g * weights.reshape(-1)[places.routes].to(g.dtype).unsqueeze(-1)
        h = activate(g, shape.act_type, shape.use_g1u1)
        z = self.gemm(h, None, tensors, "w2", places)
        return self.routing.combine(z, places.routes, None if shape.doweight_stage1 else weights)

    def gemm(self, x: torch.Tensor, select: Optional[torch.Tensor], tensors: Tensors, name: str,
             places: Places) -> torch.Tensor:
        """Multiplies the rows of x, or the selected ones, with their experts' weights."""
        def rows_of(y: torch.Tensor) -> torch.Tensor:
            return y if select is None else _bytes(y).index_select(0, select).view(y.dtype)

        w = tensors[name]
        d = x.new_empty((*places.size, w.shape[1]))
        if self.shape.is_quantised:
            q, scales = quantise_rows(x.reshape(-1, BLOCK))
            a = (places.put(rows_of(q.view(x.shape))),
                 places.put_scales(rows_of(scales.view(x.shape[0], -1))))
            self.function(a, (w, tensors[f"{name}_scale"]), d, *places.experts)
        else:
            self.function(places.put(rows_of(x)), w, d, *places.experts)
        return d[places.index]


class DeepGemm(CompilesAtLaunch):
    name = "deepgemm"

    def __init__(self) -> None:
        module = importlib.import_module("deep_gemm")
        self.functions, self.version = find_functions(module), version_of(module)

    def enumerate(self, shape: Shape, device: Device) -> Iterable[Union[Candidate, Rejection]]:
        for layout in (CONTIGUOUS, MASKED):
            refused = refusal(shape, device) or self.refusal_of_layout(shape, layout)
            yield Rejection(layout, *refused) if refused else shape.candidate(layout)

    def refusal_of_layout(self, shape: Shape, layout: str) -> Optional[Tuple[str, str]]:
        if (shape.is_quantised, layout) not in self.functions:
            return "version", f"DeepGEMM {self.version} has no {FUNCTIONS[shape.is_quantised, layout][0]}"
        if layout == MASKED and shape.token > ROWS:
            return "tokens", f"{shape.token} tokens: at most {ROWS}"
        return None

    def open(self, candidate: Candidate, shape: Shape) -> Layer:
        return Layer(shape, candidate.name, self.functions[shape.is_quantised, candidate.name])

    def revision(self) -> str:
        compiler = " nvrtc" if os.environ.get("DG_JIT_USE_NVRTC", "0") not in ("", "0") else ""
        return f"deep_gemm {self.version}{compiler} {super().revision()}"


family = DeepGemm()
