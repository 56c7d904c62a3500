"""Lets SGLang compute its fused MoE layers with libfmoe. Tested against SGLang's sources, not in a server.

SGLang calls `activate` at its start, because moefarm's wheel has the entry point `moefarm` in the group
"sglang.srt.plugins". It registers the MoE runner "moefarm":

    MOEFARM_TABLE=/srv/tuned_fmoe.csv python3 -m sglang.launch_server --moe-runner-backend moefarm …

The interface (register_moe_runner_core, DispatchMoeRunnerCore.run_from_dispatch) is that of
https://github.com/sgl-project/sglang/pull/32665. The runner takes the weights of a TritonMoeQuantInfo, in
checkpoint order: bfloat16, or FP8 with scales per 128x128 block, per channel or per tensor."""
from __future__ import annotations

import importlib
import logging
import os
from typing import Any, Optional

import torch

from moefarm._library import Error
from moefarm.layer import Layer

logger = logging.getLogger(__name__)
BACKEND = "moefarm"
_PACKAGE = "sglang.srt.layers.moe"
_FIX = "choose another --moe-runner-backend"


def activate() -> None:
    """Registers the runner, or logs a warning if this version of SGLang lacks the interface."""
    try:
        runner = importlib.import_module(_PACKAGE + ".moe_runner.runner")
        register = runner.register_moe_runner_core
        core = make_core_class()
    except (ImportError, AttributeError) as missing:
        logger.warning("moefarm: this SGLang has no interface for other MoE runners (%s)", missing)
        return
    register(BACKEND, core)


def check_config(config: Any) -> None:
    """Raises moefarm.Error if libfmoe cannot run a layer with this MoeRunnerConfig."""
    if config.activation not in ("silu", "gelu"):
        raise Error(f"activation is {config.activation}: expected silu or gelu; {_FIX}")
    if config.params_dtype not in (None, torch.bfloat16):
        raise Error(f"params_dtype is {config.params_dtype}: expected torch.bfloat16; {_FIX}")
    if not config.is_gated:
        raise Error(f"is_gated is False: expected True; {_FIX}")
    for name in ("no_combine", "gemm1_alpha", "gemm1_beta", "gemm1_clamp_limit", "swiglu_limit"):
        if getattr(config, name, None):
            raise Error(f"{name} is {getattr(config, name)}: expected none; {_FIX}")


def quant_of(info: Any) -> str:
    """moefarm's name of the quantisation of a TritonMoeQuantInfo. Raises moefarm.Error for others."""
    for name in ("use_mxfp8", "use_int8_w8a8", "use_int8_w8a16", "use_int4_w4a16", "fuse_swiglu_interleaved"):
        if getattr(info, name, False):
            raise Error(f"{name} is set: moefarm's runner takes bfloat16 and FP8 weights; {_FIX}")
    if getattr(info, "a13_scale", None) is not None or getattr(info, "a2_scale", None) is not None:
        raise Error(f"activations have static scales: moefarm's runner computes its own; {_FIX}")
    if not info.use_fp8_w8a8:
        return "none"
    if info.block_shape:
        if list(info.block_shape) != [128, 128]:
            raise Error(f"block_shape is {list(info.block_shape)}: expected [128, 128]; {_FIX}")
        return "per_1x128"
    return "per_token" if info.per_channel_quant else "per_tensor"


def open_layer(config: Any, info: Any, topk: int) -> Layer:
    """Opens a layer with the table of MOEFARM_TABLE and packs the weights of the quant_info. The parameters
    then share the memory of the packed weights."""
    experts, two_i, model_dim = info.w13_weight.shape
    layer = Layer(os.environ.get("MOEFARM_TABLE") or None, model_dim=model_dim, inter_dim=two_i // 2,
                  experts=experts, topk=topk, activation=config.activation, quant=quant_of(info),
                  bias=info.b13 is not None, weight_before_activation=config.apply_router_weight_on_input,
                  device=info.w13_weight.device)
    layer.pack(info.w13_weight, info.w2_weight, info.w13_scale, info.w2_scale, b1=info.b13, b2=info.b2)
    for weight, packed in ((info.w13_weight, layer.w1[0]), (info.w2_weight, layer.w2[0])):
        if packed is not None and packed.data_ptr() != weight.data_ptr():
            weight.data = packed.view(-1)  # frees the weights in checkpoint order
    return layer


def make_core_class() -> Any:
    """Returns the class of runner cores. It is made here, because its base class is SGLang's."""
    base = importlib.import_module(_PACKAGE + ".moe_runner.base")
    utils = importlib.import_module(_PACKAGE + ".utils")
    standard = importlib.import_module(_PACKAGE + ".token_dispatcher.standard")

    class MoefarmRunnerCore(base.DispatchMoeRunnerCore):  # type: ignore[misc, name-defined]
        """Runs one layer of the model."""

        def __init__(self, config: Any) -> None:
            check_config(config)
            super().__init__(config)
            self.layer: Optional[Layer] = None

        @property
        def runner_backend(self) -> Any:
            return utils.resolve_moe_runner_backend(BACKEND)

        def run_from_dispatch(self, dispatch_output: Any, quant_info: Any, runner_config: Any,
                              hooks: Any = None) -> Any:
            """dispatch_output: x [T, H] in bfloat16 and topk_output with topk_ids and topk_weights [T, K].
            Ids of -1 and of remote experts contribute nothing. Returns y [T, H], weighted and added."""
            if hooks is not None:
                raise Error(f"LoRA is not supported by moefarm's runner: {_FIX}")
            x, topk = dispatch_output.hidden_states, dispatch_output.topk_output
            if self.layer is None:
                self.layer = open_layer(runner_config, quant_info, topk.topk_ids.shape[1])
            y = self.layer(x, topk.topk_ids, topk.topk_weights)
            factor = runner_config.routed_scaling_factor
            if factor is not None and factor != 1.0:
                y *= factor
            if runner_config.inplace:
                x.copy_(y)
                y = x
            return standard.StandardCombineInput(hidden_states=y)

    return MoefarmRunnerCore
