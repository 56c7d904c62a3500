"""Stub modules `vllm`, `sglang` and `triton` with the signatures that the families of triton_moe call. Their
fused_experts computes the layer with torch, and records the configuration that a kernel would get. Also the
module that compile_helper.py imports in tests. Needs torch.

Signatures: vLLM 0.33, vllm/model_executor/layers/fused_moe; SGLang 0.5.9, sglang/srt/layers/moe."""
from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import tempfile
import types
from typing import Any, Dict, Iterator, List, NamedTuple, Optional

import torch

CALLS: List[Dict[str, Any]] = []  # {config, down, and further values for tests}
_PACKAGE = "vllm.model_executor.layers.fused_moe"
_MOE = "sglang.srt.layers.moe"


def module(name: str, **members: Any) -> Any:
    """Makes a module and the packages that it is in."""
    parts = name.split(".")
    for i in range(1, len(parts) + 1):
        full = ".".join(parts[:i])
        if full not in sys.modules:
            made = types.ModuleType(full)
            made.__path__ = []
            made.__file__ = f"/stub/{full.replace('.', '/')}/__init__.py"
            sys.modules[full] = made
            if i > 1:
                setattr(sys.modules[".".join(parts[:i - 1])], parts[i - 1], made)
    vars(sys.modules[name]).update(members)
    return sys.modules[name]


class JITFunction:
    """Stands for a Triton kernel. A compilation leaves a file in the cache."""

    def run(self, *arguments: Any, grid: Any, warmup: bool, **config: Any) -> None:
        if not warmup:
            if arguments[0].device.type == "meta":
                raise RuntimeError("launched with tensors that have no memory")
            return
        if config["BLOCK_SIZE_M"] == 256:
            raise RuntimeError("out of registers")
        if config["BLOCK_SIZE_M"] == 128:
            os._exit(3)  # a compiler that crashes
        with tempfile.NamedTemporaryFile(dir=os.environ["TRITON_CACHE_DIR"], delete=False):
            pass


def install_triton() -> None:
    module("triton", __version__="3.6.0")
    module("triton.runtime.jit", JITFunction=JITFunction)


def layer(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor,
          weight_first: bool) -> torch.Tensor:
    """The layer as a loop over routes."""
    if x.device.type == "meta":
        return torch.empty_like(x)
    y = torch.zeros(x.shape, dtype=torch.float32)
    for token, slot in ((t, s) for t in range(ids.shape[0]) for s in range(ids.shape[1])):
        expert, weight = int(ids[token, slot]), float(weights[token, slot])
        g = w1[expert].float() @ x[token].float() * (weight if weight_first else 1)
        gate, up = g.chunk(2)
        h = torch.nn.functional.silu(gate) * up
        y[token] += w2[expert].float() @ h * (1 if weight_first else weight)
    return y.to(x.dtype)


def dequantise(w: torch.Tensor, scale: Optional[torch.Tensor]) -> torch.Tensor:
    if scale is None or w.device.type == "meta":
        return w
    if scale.dim() == 1:
        return w.float() * scale.view(-1, 1, 1)
    if scale.shape[2] == 1 and scale.shape[1] == w.shape[1]:
        return w.float() * scale
    full = scale.repeat_interleave(128, 1).repeat_interleave(128, 2)
    return w.float() * full[:, :w.shape[1], :w.shape[2]]


class Override:
    config: Optional[Dict[str, Any]] = None

    @contextlib.contextmanager
    def override_config(self, config: Optional[Dict[str, Any]]) -> Iterator[None]:
        before, self.config = self.config, config
        yield
        self.config = before


# ---- vLLM ----


@dataclasses.dataclass
class QuantConfig:
    w1_scale: Any = None
    w2_scale: Any = None
    per_act_token_quant: bool = False
    per_out_ch_quant: bool = False
    block_shape: Any = None


def fp8_w8a8_moe_quant_config(w1_scale: Any, w2_scale: Any, a1_scale: Any = None, a2_scale: Any = None,
                              per_act_token_quant: bool = False, per_out_ch_quant: bool = False,
                              block_shape: Any = None) -> QuantConfig:
    return QuantConfig(w1_scale, w2_scale, per_act_token_quant, per_out_ch_quant, block_shape)


def install_vllm(version: str = "0.33.0", **members: Any) -> Any:
    override = Override()

    def fused_experts(hidden_states: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor,
                      topk_weights: torch.Tensor, topk_ids: torch.Tensor, activation: str = "silu",
                      apply_router_weight_on_input: bool = False, global_num_experts: int = -1,
                      expert_map: Any = None, quant_config: Optional[QuantConfig] = None) -> torch.Tensor:
        quant = quant_config or QuantConfig()
        CALLS.append({"config": override.config, "quant": quant_config})
        if override.config:
            JITFunction().run(hidden_states, grid=(1,), warmup=False, **override.config)
        return layer(hidden_states, dequantise(w1, quant.w1_scale), dequantise(w2, quant.w2_scale),
                     topk_weights, topk_ids, apply_router_weight_on_input)

    install_triton()
    module("vllm", __version__=version)
    module(_PACKAGE, override_config=override.override_config)
    module(f"{_PACKAGE}.config", fp8_w8a8_moe_quant_config=fp8_w8a8_moe_quant_config)
    return module(f"{_PACKAGE}.fused_moe", **{"fused_experts": fused_experts, "torch": torch,
                                              "fused_experts_impl": fused_experts,
                                              "ops": types.SimpleNamespace(moe_sum=None), **members})


# ---- SGLang ----


class TopKOutput(NamedTuple):
    topk_weights: torch.Tensor
    topk_ids: torch.Tensor
    router_logits: Any


@dataclasses.dataclass
class MoeRunnerConfig:
    num_experts: Optional[int] = None
    num_local_experts: Optional[int] = None
    top_k: Optional[int] = None
    activation: str = "silu"
    is_gated: bool = True
    apply_router_weight_on_input: bool = False
    inplace: bool = True
    no_combine: bool = False


@dataclasses.dataclass
class ServerArgs:
    model_path: str
    enable_deterministic_inference: bool = False


def install_sglang(version: str = "0.5.9", **members: Any) -> Any:
    override, arguments = Override(), module("sglang.srt.server_args", ServerArgs=ServerArgs, current=None)

    def get_global_server_args() -> ServerArgs:
        if arguments.current is None:
            raise ValueError("Global server args is not set yet!")
        current: ServerArgs = arguments.current
        return current

    def get_moe_configs(E: int, N: int, dtype: Optional[str], block_n: Optional[int] = 0,
                        block_k: Optional[int] = 0, per_channel_quant: bool = False,
                        down_moe: bool = False) -> Optional[Dict[int, Any]]:
        get_global_server_args()
        return None

    def fused_experts(hidden_states: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor,
                      topk_output: TopKOutput, moe_runner_config: MoeRunnerConfig, b1: Any = None,
                      b2: Any = None,
                      use_fp8_w8a8: bool = False, use_int8_w8a8: bool = False, use_int8_w8a16: bool = False,
                      use_int4_w4a16: bool = False, per_channel_quant: bool = False, w1_scale: Any = None,
                      w2_scale: Any = None, w1_zp: Any = None, w2_zp: Any = None, a1_scale: Any = None,
                      a2_scale: Any = None, block_shape: Any = None) -> torch.Tensor:
        weights, ids, _ = topk_output
        config, down = override.config, None
        if not config:
            files = [config_module.get_moe_configs(w2.shape[0], w2.shape[2], None, down_moe=which)
                     for which in (False, True)]
            config, down = [file[min(file)] if file else None for file in files]
        CALLS.append({"config": config, "down": down, "per_channel": per_channel_quant, "block": block_shape})
        if moe_runner_config.inplace:
            raise RuntimeError("would write the result over x")
        return layer(hidden_states, dequantise(w1, w1_scale), dequantise(w2, w2_scale), weights, ids,
                     moe_runner_config.apply_router_weight_on_input)

    install_triton()
    vars(arguments).update(get_global_server_args=get_global_server_args,
                           set_global_server_args_for_scheduler=lambda a: setattr(arguments, "current", a))
    module("sglang", __version__=version)
    module(f"{_MOE}.topk", StandardTopKOutput=TopKOutput)
    module(f"{_MOE}.moe_runner", MoeRunnerConfig=MoeRunnerConfig)
    module(f"{_MOE}.fused_moe_triton", override_config=override.override_config)
    module(f"{_MOE}.fused_moe_triton.fused_moe_triton_kernels")
    config_module = module(f"{_MOE}.fused_moe_triton.fused_moe_triton_config",
                           get_moe_configs=get_moe_configs)
    return module(f"{_MOE}.fused_moe_triton.fused_moe", **{"fused_experts": fused_experts, **members})


# ---- for compile_helper.py ----

if __name__ != "__main__":
    def __getattr__(name: str) -> Any:
        """`family` is that of the stub vLLM."""
        if name != "family":
            raise AttributeError(name)
        install_vllm()
        from moefarm.families.triton_moe import vllm_family
        return vllm_family.family
