"""The fused-MoE layers of the installed LMDeploy (https://github.com/InternLM/lmdeploy) on NVIDIA GPUs:
fused_moe for bf16 and float16, and fused_moe_blocked_fp8 with quant_fp8 for FP8 with scales of 1x128. Their
configurations are LMDeploy's own choice.

The module does not import LMDeploy, because that initialises the GPU; `open` does."""
from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import os
from typing import Any, Dict, Iterable, Mapping, Optional, Sequence, Tuple, Union

import torch

from moefarm.family import Candidate, Device, Rejection, Shape
from moefarm.torch_family import BLOCK, CompilesAtLaunch, TorchKernel

_KERNELS = "lmdeploy.pytorch.kernels.cuda"
_FP8_TYPE = "torch.float8_e4m3fn"
_LAYER = ("w1", "w2", "topk_weights", "topk_ids", "topk")
# by module: function, and the parameters that the family passes
FUNCTIONS: Mapping[str, Tuple[str, Sequence[str]]] = {
    "fused_moe": ("fused_moe", ("hidden_states", *_LAYER)),
    "blocked_fp8_fused_moe": ("fused_moe_blocked_fp8",
                              ("input", "input_scale", *_LAYER, "w1_scale", "w2_scale", "out_dtype")),
    "blocked_gemm_fp8": ("quant_fp8", ("A", "group_size", "dtype")),
}
NAMES = {False: "fused_moe", True: "fused_moe_blocked_fp8"}  # by is_quantised


def parse(folder: str, file: str) -> ast.Module:
    with open(os.path.join(folder, file), encoding="utf-8") as source:
        return ast.parse(source.read())


def version_of(folder: str) -> str:
    """The value of __version__ in the package's version.py."""
    for node in parse(folder, "version.py").body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and \
                [target.id for target in node.targets if isinstance(target, ast.Name)] == ["__version__"]:
            return str(node.value.value)
    raise ImportError(f"{folder}/version.py has no __version__")


def why_unknown(function: Optional[ast.FunctionDef], passed: Sequence[str]) -> str:
    """Returns why the family cannot call the function with these parameters, or ""."""
    if function is None:
        return "is missing"
    names = [argument.arg for argument in function.args.args]
    needed = names[:len(names) - len(function.args.defaults)]
    missing = [name for name in passed if name not in names]
    unknown = [name for name in needed if name not in passed]
    if missing:
        return f"has no parameter {missing[0]}"
    return f"needs the unknown parameter {unknown[0]}" if unknown else ""


def check_sources(folder: str) -> None:
    """Raises ImportError if the package in this folder lacks a function that this family calls, or if the
    function has other parameters."""
    for module, (name, passed) in FUNCTIONS.items():
        tree = parse(folder, f"pytorch/kernels/cuda/{module}.py")
        function = next((n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name), None)
        why = why_unknown(function, passed)
        if why:
            raise ImportError(f"LMDeploy {version_of(folder)}: {name} {why}; this family knows LMDeploy "
                              "0.16. Install this version or a newer moefarm")


def find_package() -> str:
    """Returns LMDeploy's folder. Raises ModuleNotFoundError if LMDeploy is not installed."""
    spec = importlib.util.find_spec("lmdeploy")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'lmdeploy'")
    return list(spec.submodule_search_locations)[0]


def refusal(shape: Shape, device: Device) -> Optional[Tuple[str, str]]:
    """Returns the rule and the reason if LMDeploy cannot compute the layer."""
    if device.vendor != "nvidia":
        return "device", f"LMDeploy's kernels need an NVIDIA GPU, not {device.name}"
    if shape.form:
        return "form", f"LMDeploy has no epilogue for the form {shape.form}: only plain layers"
    if shape.act_type != "ActivationType.Silu" or not shape.use_g1u1:
        return "activation", (f"{shape.act_type} with use_g1u1 {int(shape.use_g1u1)}: only "
                              "ActivationType.Silu with a gate (use_g1u1 1)")
    if shape.doweight_stage1:
        return "weights", "LMDeploy applies the routing weights to the output (doweight_stage1 0)"
    if shape.dtype not in ("torch.bfloat16", "torch.float16"):
        return "dtype", f"{shape.dtype} activations: only torch.bfloat16 and torch.float16"
    return _quantised_refusal(shape, device) if shape.is_quantised else None


def _quantised_refusal(shape: Shape, device: Device) -> Optional[Tuple[str, str]]:
    if (shape.q_type, shape.q_dtype_a, shape.q_dtype_w) != ("QuantType.per_1x128", _FP8_TYPE, _FP8_TYPE):
        return "dtype", f"{shape.q_dtype_w} with {shape.q_type}: only {_FP8_TYPE} with QuantType.per_1x128"
    if device.compute_capability < 89:
        return "device", f"FP8 needs an NVIDIA GPU from sm_89 on, not {device.gfx}"
    if shape.model_dim % BLOCK or shape.inter_dim % BLOCK:
        return "divisibility", (f"model_dim {shape.model_dim} and inter_dim {shape.inter_dim} must be "
                                f"multiples of the scale block of {BLOCK}")
    return None


class Layer(TorchKernel):
    def __init__(self, shape: Shape, functions: Mapping[str, Any]) -> None:
        super().__init__()
        self.shape, self.functions = shape, functions

    def forward(self, t: Mapping[str, torch.Tensor]) -> torch.Tensor:
        shape, x, call = self.shape, t["x"], self.functions
        layer: Dict[str, Any] = {name: t[name] for name in _LAYER if name != "topk"}
        layer["topk"] = shape.topk
        if not shape.is_quantised:
            y: torch.Tensor = call["fused_moe"](hidden_states=x, **layer)
            return y
        q, scale = call["quant_fp8"](x, BLOCK, dtype=torch.float8_e4m3fn)
        y = call["fused_moe_blocked_fp8"](input=q, input_scale=scale, w1_scale=t["w1_scale"],
                                          w2_scale=t["w2_scale"], out_dtype=x.dtype, **layer)
        return y


class LmDeploy(CompilesAtLaunch):
    name = "lmdeploy"

    def __init__(self, folder: str) -> None:
        check_sources(folder)
        self.version = version_of(folder)

    def enumerate(self, shape: Shape, device: Device) -> Iterable[Union[Candidate, Rejection]]:
        name, refused = NAMES[shape.is_quantised], refusal(shape, device)
        return [Rejection(name, *refused) if refused else shape.candidate(name)]

    def open(self, candidate: Candidate, shape: Shape) -> Layer:
        return Layer(shape, {name: getattr(importlib.import_module(f"{_KERNELS}.{module}"), name)
                             for module, (name, _) in FUNCTIONS.items()})

    def revision(self) -> str:
        triton = importlib.metadata.version("triton")
        return f"lmdeploy {self.version} triton {triton} {super().revision()}"


family = LmDeploy(find_package())
