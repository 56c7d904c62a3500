"""Family `vllm`: the fused-MoE Triton kernels of the installed vLLM, through its override_config and
fused_experts."""
from __future__ import annotations

import contextlib
import importlib
import os
from typing import Any, Dict, Iterator, Optional

import torch

from moefarm.families.triton_moe.config import Config
from moefarm.families.triton_moe.framework import (Framework, Tensors, TritonMoe, check_parameters, nothing,
                                                   quantised, replaced, sorted_routes)
from moefarm.families.triton_moe.layer import BLOCK, scales_of
from moefarm.family import Shape

_PACKAGE = "vllm.model_executor.layers.fused_moe"
_VERSIONS = "vLLM 0.33"
_PASSED = ("hidden_states", "w1", "w2", "topk_weights", "topk_ids", "apply_router_weight_on_input",
           "quant_config")


class Vllm(Framework):
    name = "vllm"

    def __init__(self) -> None:
        self.version = str(importlib.import_module("vllm").__version__)
        self.package: Any = importlib.import_module(_PACKAGE)
        self.module: Any = importlib.import_module(f"{_PACKAGE}.fused_moe")
        self.quant: Any = importlib.import_module(f"{_PACKAGE}.config")
        self.folders = [os.path.join(os.path.dirname(str(self.module.__file__)), "configs")]
        self.parameters = check_parameters(self.module.fused_experts, _PASSED, f"vLLM {self.version}",
                                           _VERSIONS)
        check_parameters(self.quant.fp8_w8a8_moe_quant_config,
                         ("w1_scale", "w2_scale", "per_act_token_quant", "per_out_ch_quant", "block_shape"),
                         f"vLLM {self.version}", _VERSIONS)

    def _quant_config(self, shape: Shape, t: Tensors) -> Any:
        scales = scales_of(shape)
        if not scales:
            return None
        rows = scales == "rows"
        return self.quant.fp8_w8a8_moe_quant_config(
            w1_scale=t["w1_scale"], w2_scale=t["w2_scale"], per_act_token_quant=rows, per_out_ch_quant=rows,
            block_shape=[BLOCK, BLOCK] if scales == "blocks" else None)

    def fused_experts(self, shape: Shape, t: Tensors, up: Optional[Config],
                      down: Optional[Config]) -> torch.Tensor:
        if down:
            raise ValueError("vLLM has one configuration for both GEMMs")
        options: Dict[str, Any] = {"inplace": False} if "inplace" in self.parameters else {}
        with self.package.override_config(dict(up) if up else None):
            result: torch.Tensor = self.module.fused_experts(
                hidden_states=t["x"], w1=t["w1"], w2=t["w2"], topk_weights=t["topk_weights"],
                topk_ids=t["topk_ids"], apply_router_weight_on_input=shape.doweight_stage1,
                quant_config=self._quant_config(shape, t), **options)
        return result

    @contextlib.contextmanager
    def without_launches(self) -> Iterator[None]:
        """vLLM's custom operator computes nothing for meta tensors. It is replaced by the function that it
        calls on a device."""
        namespace = self.module.torch.ops.vllm
        with replaced(self.module, moe_align_block_size=sorted_routes, moe_kernel_quantize_input=_quantise,
                      apply_moe_activation=nothing), \
                replaced(self.module.ops, moe_sum=nothing), \
                replaced(namespace, fused_experts=self.module.fused_experts_impl):
            yield


def _quantise(A: torch.Tensor, A_scale: Any, quant_dtype: Any, per_act_token_quant: bool,
              block_shape: Any = None, **_: Any) -> Any:
    if quant_dtype is None:
        return A, None
    columns = -(-A.shape[1] // block_shape[1]) if block_shape else int(per_act_token_quant)
    return quantised(A, quant_dtype, columns)


family = TritonMoe(Vllm(), __name__)
