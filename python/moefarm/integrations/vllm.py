"""Lets vLLM compute its fused MoE layers with libfmoe. Tested against vLLM's sources, not in a server.

vLLM calls `activate` at its start, because moefarm's wheel has the entry point `moefarm` in the group
"vllm.general_plugins". Without the environment variable MOEFARM_TABLE, nothing changes. With it, layers that
would run vLLM's Triton kernels run libfmoe's instead, if libfmoe supports them:

    MOEFARM_TABLE=/srv/tuned_fmoe.csv vllm serve MODEL --moe-backend triton

vLLM has no registry for other experts classes, so `activate` wraps the function backend_to_kernel_cls of its
two modules that choose the class (vLLM 0.33). If that function or the base class differs, `activate` logs a
warning and changes nothing."""
from __future__ import annotations

import functools
import importlib
import logging
import os
from typing import Any, Optional

import torch

from moefarm._library import Error
from moefarm.layer import Layer

logger = logging.getLogger(__name__)
_PACKAGE = "vllm.model_executor.layers.fused_moe"
_ORACLES = ("oracle.unquantized", "oracle.fp8")  # modules that choose a class of experts
_ACTIVATIONS = {"SILU": "silu", "GELU": "gelu", "GELU_TANH": "gelu_tanh"}


def activate() -> None:
    """Wraps vLLM's choice of experts classes if MOEFARM_TABLE is set."""
    if not os.environ.get("MOEFARM_TABLE"):
        return
    try:
        experts = make_experts_class()
        for name in _ORACLES:
            _prefer(importlib.import_module(f"{_PACKAGE}.{name}"), experts)
    except (ImportError, AttributeError, TypeError) as different:
        logger.warning("moefarm: this vLLM is not supported (%s); it runs without moefarm", different)


def _prefer(oracle: Any, experts: Any) -> None:
    """Puts moefarm's class before vLLM's Triton class. vLLM takes the first that supports a layer."""
    own = oracle.backend_to_kernel_cls

    @functools.wraps(own)
    def with_moefarm(backend: Any) -> Any:
        classes = own(backend)
        return [experts, *classes] if backend.name == "TRITON" else classes

    oracle.backend_to_kernel_cls = with_moefarm


def make_experts_class() -> Any:
    """Returns the class of experts. It is made here, because its base class is vLLM's."""
    kernel = importlib.import_module(_PACKAGE + ".modular_kernel")
    reduce = importlib.import_module(_PACKAGE + ".topk_weight_and_reduce")
    quant = importlib.import_module("vllm.model_executor.layers.quantization.utils.quant_utils")
    schemes = {(None, None): "none",
               (quant.kFp8Static128BlockSym, quant.kFp8Dynamic128Sym): "per_1x128"}

    class MoefarmExperts(kernel.FusedMoEExpertsModular):  # type: ignore[misc, name-defined]
        """Runs one layer of the model. Weights are in checkpoint order, gate first, and end in the kernels'
        layout: the parameters then share the memory of the packed weights."""

        def __init__(self, moe_config: Any, quant_config: Any) -> None:
            if getattr(moe_config, "is_lora_enabled", False):
                raise Error("LoRA is not supported by moefarm: unset MOEFARM_TABLE")
            super().__init__(moe_config, quant_config)
            config = self.activation_config
            if config.alpha != 1.0 or config.beta != 0.0:
                raise Error(f"the activation has alpha {config.alpha} and beta {config.beta}: expected 1 "
                            "and 0; unset MOEFARM_TABLE")
            self.layer: Optional[Layer] = None

        @staticmethod
        def activation_format() -> Any:
            return kernel.FusedMoEActivationFormat.Standard

        @property
        def expects_unquantized_inputs(self) -> bool:
            return True  # libfmoe quantises activations itself

        @staticmethod
        def _supports_current_device() -> bool:
            return True

        @staticmethod
        def _supports_no_act_and_mul() -> bool:
            return False

        @staticmethod
        def _supports_quant_scheme(weight_key: Any, activation_key: Any) -> bool:
            return (weight_key, activation_key) in schemes

        @staticmethod
        def _supports_activation(activation: Any) -> bool:
            return activation.name in _ACTIVATIONS

        @staticmethod
        def _supports_parallel_config(moe_parallel_config: Any) -> bool:
            return not moe_parallel_config.use_all2all_kernels

        @staticmethod
        def supports_lora() -> bool:
            return False

        def workspace_shapes(self, M: int, N: int, K: int, topk: int, global_num_experts: int,
                             local_num_experts: int, expert_tokens_meta: Any, activation: Any) -> Any:
            """libfmoe has a workspace of its own, so vLLM allocates only y [M, K]."""
            return (0,), (0,), (M, K)

        def finalize_weight_and_reduce_impl(self) -> Any:
            return reduce.TopKWeightAndReduceNoOP()

        def open(self, w1: Any, w2: Any, topk: int, activation: Any) -> Layer:
            experts, two_i, model_dim = w1.shape
            blocks, limit = self.w1_scale is not None, self.activation_config.clamp_limit
            layer = Layer(os.environ.get("MOEFARM_TABLE") or None, model_dim=model_dim, inter_dim=two_i // 2,
                          experts=experts, topk=topk, activation=_ACTIVATIONS[activation.name],
                          quant="per_1x128" if blocks else "none", bias=self.w1_bias is not None,
                          form="" if limit is None else f"limit:{limit:.9g}", device=w1.device)
            layer.pack(w1, w2, self.w1_scale, self.w2_scale, b1=self.w1_bias, b2=self.w2_bias)
            for weight, packed in ((w1, layer.w1[0]), (w2, layer.w2[0])):
                if packed is not None and packed.data_ptr() != weight.data_ptr():
                    weight.data = packed.view(weight.dtype).view(weight.shape)
            return layer

        def apply(self, output: Any, hidden_states: Any, w1: Any, w2: Any, topk_weights: Any,
                  topk_ids: Any, activation: Any, global_num_experts: int, expert_map: Any, a1q_scale: Any,
                  a2_scale: Any, workspace13: Any, workspace2: Any, expert_tokens_meta: Any,
                  apply_router_weight_on_input: bool) -> None:
            """Writes y [T, H], weighted and added. expert_map has the position of each expert in w1, or -1
            for an expert of another rank; topk_ids are then global ids."""
            if self.layer is None:
                if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
                    raise Error("the first call of a layer packs its weights: run it before the capture")
                self.layer = self.open(w1, w2, topk_ids.shape[1], activation)
            ids = topk_ids
            if expert_map is not None:
                ids = torch.where(ids < 0, -1, expert_map[ids.clamp(min=0).long()])
            if apply_router_weight_on_input:  # vLLM has multiplied x by the weights
                topk_weights = torch.ones_like(topk_weights)
            self.layer(hidden_states, ids, topk_weights, out=output)

    return MoefarmExperts
