"""Family `sglang`: the fused-MoE Triton kernels of the installed SGLang, through its fused_experts.
override_config sets one configuration for both GEMMs. For a candidate whose second GEMM has its own, the
family replaces get_moe_configs."""
from __future__ import annotations

import contextlib
import importlib
import os
from typing import Any, Dict, Iterator, List, Optional, Sequence

import torch

from moefarm.families.triton_moe.config import Config
from moefarm.families.triton_moe.framework import (Framework, Tensors, TritonMoe, UnknownVersion,
                                                   check_parameters, nothing, quantised, replaced,
                                                   sorted_routes)
from moefarm.families.triton_moe.layer import BLOCK, scales_of
from moefarm.family import Shape

_MOE = "sglang.srt.layers.moe"
_PLACES = (f"{_MOE}.moe_runner.triton_utils", f"{_MOE}.fused_moe_triton")  # the kernels moved after 0.5.9
_VERSIONS = "SGLang 0.5"
_PASSED = ("hidden_states", "w1", "w2", "topk_output", "moe_runner_config", "use_fp8_w8a8",
           "per_channel_quant", "w1_scale", "w2_scale", "block_shape")


def _import(name: str) -> Any:
    for place in _PLACES:
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(f"{place}.{name}")
    places = " nor ".join(f"{place}.{name}" for place in _PLACES)
    raise UnknownVersion(f"SGLang has neither {places}; this family knows {_VERSIONS}")


class Sglang(Framework):
    name = "sglang"

    def __init__(self) -> None:
        self.version = str(importlib.import_module("sglang").__version__)
        self.module, self.config = _import("fused_moe"), _import("fused_moe_triton_config")
        self.kernels = _import("fused_moe_triton_kernels")
        self.package: Any = importlib.import_module(f"{_MOE}.fused_moe_triton")
        self.runner: Any = importlib.import_module(f"{_MOE}.moe_runner")
        self.topk: Any = importlib.import_module(f"{_MOE}.topk")
        self.folders = self._find_folders()
        check_parameters(self.module.fused_experts, _PASSED, f"SGLang {self.version}", _VERSIONS)
        check_parameters(self.config.get_moe_configs, ("E", "N", "dtype", "down_moe"),
                         f"SGLang {self.version}", _VERSIONS)
        self._set_server_args()

    def _find_folders(self) -> Sequence[str]:
        """Folders of all Triton versions; the newest first."""
        root = os.path.join(os.path.dirname(self.config.__file__), "configs")
        try:
            names = [name for name in os.listdir(root) if name.startswith("triton_")]
        except OSError:
            return []
        ordered: List[str] = sorted(names, key=lambda name: [int(part) for part in name.split("_")[1:]
                                                             if part.isdecimal()], reverse=True)
        return [os.path.join(root, name) for name in ordered]

    def _set_server_args(self) -> None:
        """The default's look-up asks the server's options whether inference is deterministic."""
        arguments: Any = importlib.import_module("sglang.srt.server_args")
        try:
            arguments.get_global_server_args()
        except ValueError:
            arguments.set_global_server_args_for_scheduler(arguments.ServerArgs(model_path="dummy"))

    def fused_experts(self, shape: Shape, t: Tensors, up: Optional[Config],
                      down: Optional[Config]) -> torch.Tensor:
        scales = scales_of(shape)
        quant: Dict[str, Any] = {"use_fp8_w8a8": True, "w1_scale": t["w1_scale"], "w2_scale": t["w2_scale"],
                                 "per_channel_quant": scales == "rows"} if scales else {}
        if scales == "blocks":
            quant["block_shape"] = [BLOCK, BLOCK]
        routing = self.topk.StandardTopKOutput(t["topk_weights"], t["topk_ids"], None)
        runner = self.runner.MoeRunnerConfig(num_experts=shape.expert, num_local_experts=shape.expert,
                                             top_k=shape.topk, inplace=False,
                                             apply_router_weight_on_input=shape.doweight_stage1)
        with self._configured(shape.token, up, down):
            result: torch.Tensor = self.module.fused_experts(
                hidden_states=t["x"], w1=t["w1"], w2=t["w2"], topk_output=routing, moe_runner_config=runner,
                **quant)
        return result

    def _configured(self, token: int, up: Optional[Config],
                    down: Optional[Config]) -> contextlib.AbstractContextManager[object]:
        if up is None:
            return contextlib.nullcontext()
        if down is None:
            manager: contextlib.AbstractContextManager[object] = self.package.override_config(_typed(up))
            return manager

        def get_moe_configs(*_: Any, down_moe: bool = False, **__: Any) -> Dict[int, Dict[str, Any]]:
            return {token: _typed(down if down_moe else up)}
        return replaced(self.config, get_moe_configs=get_moe_configs)

    @contextlib.contextmanager
    def without_launches(self) -> Iterator[None]:
        operators = {"outplace_fused_experts": _out_of_place(self.module)}
        with replaced(self.module, moe_align_block_size=sorted_routes, silu_and_mul=nothing,
                      moe_sum_reduce=nothing, moe_sum_reduce_torch_compile=nothing, moe_sum=nothing,
                      **operators), \
                replaced(self.kernels, sglang_per_token_group_quant_fp8=_quantise_groups,
                         per_token_group_quant_fp8=_quantise_groups, scaled_fp8_quant=_quantise):
            yield


def _typed(config: Config) -> Dict[str, Any]:
    return {field: bool(value) if field == "USE_TMA" else value for field, value in config.items()}


def _out_of_place(module: Any) -> Any:
    """What the custom operator outplace_fused_experts calls on a device."""
    def call(x: Any, w1: Any, w2: Any, weights: Any, ids: Any, b1: Any, b2: Any, *rest: Any,
             **options: Any) -> Any:
        return module.fused_experts_impl(x, w1, w2, weights, ids, b1, b2, False, *rest, **options)
    return call


def _fp8() -> torch.dtype:
    return torch.float8_e4m3fn if torch.version.hip is None else torch.float8_e4m3fnuz


def _quantise_groups(x: torch.Tensor, group: int, *_: Any, **__: Any) -> Any:
    return quantised(x, _fp8(), -(-x.shape[1] // group))


def _quantise(x: torch.Tensor, *_: Any, use_per_token_if_dynamic: bool = False, **__: Any) -> Any:
    return quantised(x, _fp8(), int(use_per_token_if_dynamic))


family = TritonMoe(Sglang(), __name__)
