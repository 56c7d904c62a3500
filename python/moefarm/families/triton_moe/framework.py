"""Base of the families of vLLM and SGLang: candidates, kernels and compilation. Needs torch and triton."""
from __future__ import annotations

import abc
import contextlib
import importlib
import inspect
import os
from typing import Any, Callable, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import torch

from moefarm.families.triton_moe.compile_pool import compile_all
from moefarm.families.triton_moe.config import DEFAULT, Config, parse_name
from moefarm.families.triton_moe.layer import plain_refusal
from moefarm.families.triton_moe.offers import LIMIT_ENV, limit, offers
from moefarm.family import Candidate, Device, Rejection, Shape
from moefarm.torch_family import TorchFamily, TorchKernel, empty_tensors

Tensors = Mapping[str, torch.Tensor]
# Compilation of one kernel does not depend on larger token counts, because Triton specialises integers only
# by the value 1 and by multiples of 16.
_TOKENS_MAX = 1024


class UnknownVersion(ImportError):
    """The installed framework has another interface than this family knows."""


def check_parameters(function: Callable[..., Any], passed: Sequence[str], framework: str,
                     versions: str) -> List[str]:
    """Returns the names of a function's parameters. Raises UnknownVersion if one that the family passes is
    missing, or if the function needs another one."""
    parameters = inspect.signature(function).parameters
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    missing = [name for name in passed if name not in parameters]
    unknown = [name for name, parameter in parameters.items() if name not in passed and
               parameter.default is inspect.Parameter.empty and parameter.kind not in several]
    if missing or unknown:
        problem = f"has no parameter {missing[0]}" if missing else f"needs the unknown parameter {unknown[0]}"
        raise UnknownVersion(f"{framework}: {function.__name__} {problem}; this family knows {versions}. "
                             "Install one of these versions or a newer moefarm")
    return list(parameters)


@contextlib.contextmanager
def replaced(module: Any, **values: Any) -> Iterator[None]:
    """Replaces attributes of a module that has them."""
    before = {name: getattr(module, name) for name in values if hasattr(module, name)}
    try:
        for name in before:
            setattr(module, name, values[name])
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


class Framework(abc.ABC):
    """The fused-MoE interface of an imported framework."""

    name: str  # "vllm" or "sglang", which is also the family's name and the consumer's
    version: str
    folders: Sequence[str] = ()  # of packaged configuration files

    @abc.abstractmethod
    def fused_experts(self, shape: Shape, t: Tensors, up: Optional[Config],
                      down: Optional[Config]) -> torch.Tensor:
        """Computes the layer with a configuration; None: the framework's own choice. Returns a new tensor."""

    @abc.abstractmethod
    def without_launches(self) -> contextlib.AbstractContextManager[object]:
        """Within this context, fused_experts takes tensors without memory (device "meta"), if launches of
        Triton kernels are replaced too."""


class Layer(TorchKernel):
    def __init__(self, framework: Framework, shape: Shape, name: str) -> None:
        super().__init__()
        self.framework, self.shape = framework, shape
        self.up, self.down = parse_name(name)

    def forward(self, tensors: Tensors) -> torch.Tensor:
        return self.framework.fused_experts(self.shape, tensors, self.up, self.down)


class TritonMoe(TorchFamily):
    def __init__(self, framework: Framework, module: str) -> None:
        self.framework, self.module, self.name = framework, module, framework.name

    def enumerate(self, shape: Shape, device: Device) -> Iterable[Union[Candidate, Rejection]]:
        return offers(self.framework.name, shape, device, self.framework.folders)

    def open(self, candidate: Candidate, shape: Shape) -> Layer:
        return Layer(self.framework, shape, candidate.name)

    def open_row(self, row: Mapping[str, Any], shape: Shape) -> Layer:
        """Also opens configurations that `enumerate` does not offer."""
        refused = plain_refusal(shape)
        if refused:
            raise ValueError(refused[1])
        return Layer(self.framework, shape, str(row["config"]))

    def precompile(self, candidates: Sequence[Candidate], shape: Shape) -> Iterable[object]:
        names = [candidate.name for candidate in candidates if candidate.name != DEFAULT]
        return compile_all(self.module, str(shape), names)

    def revision(self) -> str:
        """Also contains the variables that change the default's configuration or the list of candidates."""
        triton = importlib.import_module("triton").__version__
        words = [f"{self.name} {self.framework.version} triton {triton} {super().revision()}"]
        if os.environ.get(LIMIT_ENV):
            words.append(f"configs {limit()}")
        folders = ("VLLM_TUNED_CONFIG_FOLDER", "SGLANG_MOE_CONFIG_DIR")
        return " ".join(words + [f"{name}={os.environ[name]}" for name in folders if os.environ.get(name)])


# ---- compilation without a launch ----


def meta_tensors(shape: Shape) -> Tensors:
    """The tensors of a layer, without memory."""
    tokens = shape.token if shape.token <= _TOKENS_MAX else _TOKENS_MAX + shape.token % 16
    return empty_tensors(shape, "meta", tokens)


def compile_only(framework: Framework, shape: Shape, name: str) -> None:
    """Compiles the kernels of a candidate into Triton's cache, without a launch and without memory of the
    device."""
    from triton.runtime.jit import JITFunction
    original = JITFunction.run

    def run(self: Any, *arguments: Any, **options: Any) -> Any:
        return original(self, *arguments, **{**options, "warmup": True})

    up, down = parse_name(name)
    with replaced(JITFunction, run=run), framework.without_launches(), torch.inference_mode():
        framework.fused_experts(shape, meta_tensors(shape), up, down)


def sorted_routes(topk_ids: torch.Tensor, block_size: int, num_experts: int, *_: Any,
                  **__: Any) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tensors of the sizes that both frameworks' moe_align_block_size returns."""
    routes = topk_ids.numel()
    rows = routes + num_experts * (block_size - 1)
    if routes < num_experts:
        rows = min(rows, routes * block_size)
    sizes = (rows, -(-rows // block_size), 1)
    ids, experts, padded = (torch.empty(size, dtype=torch.int32, device=topk_ids.device) for size in sizes)
    return ids, experts, padded


def quantised(x: torch.Tensor, dtype: torch.dtype, scale_columns: int) -> Tuple[torch.Tensor, torch.Tensor]:
    """Tensors of the sizes of quantised activations; scale_columns 0: one scale for all rows."""
    size = (x.shape[0], scale_columns) if scale_columns else (1,)
    return (torch.empty(x.shape, dtype=dtype, device=x.device),
            torch.empty(size, dtype=torch.float32, device=x.device))


def nothing(*_: Any, **__: Any) -> None:
    """Stands for a launch of a kernel that is not compiled by Triton."""
