"""A layer with NVFP4 weights and activations, for layertest_nvfp4 and graph_test_nvfp4."""
import os
from typing import Any, Dict, NamedTuple, Tuple

import torch

import moe_reference as reference
import moefarm
from ops_reference import dequantise

DEVICE = os.environ.get("MOEFARM_TEST_TORCH_DEVICE", "cpu")
H, I, E, K = 512, 256, 16, 4
FP4 = "torch.float4_e2m1fn_x2"
# Smallest cosine similarity between the output and that of a layer with the same weights in bfloat16 and
# without quantised activations.
COSINE = 0.98


class Weights(NamedTuple):
    w1: torch.Tensor  # the values of the quantised weights, bfloat16
    w2: torch.Tensor
    packed: Dict[str, Any]  # arguments of Layer.pack

    def of_experts(self, experts: Any) -> Dict[str, Any]:
        return {name: part if name == "calibration" else part[experts] for name, part in self.packed.items()}


def weights_of(activation: Any = reference.silu_gate) -> Weights:
    """Weights, quantised, with the activations' factors from a warm-up batch."""
    g = torch.Generator().manual_seed(11)
    w1 = (torch.randn(E, 2 * I, H, generator=g) / H ** .5).bfloat16().to(DEVICE)
    w2 = (torch.randn(E, H, I, generator=g) / I ** .5).bfloat16().to(DEVICE)
    (q1, s1, f1), (q2, s2, f2) = (moefarm.ops.quantise(w, "nvfp4") for w in (w1, w2))
    x = inputs(256, seed=12)[0]
    h = activation(x.float() @ w1.float().transpose(1, 2)).flatten(0, 1)
    calibration = torch.stack([moefarm.ops.nvfp4_factor(x), moefarm.ops.nvfp4_factor(h)])
    w1, w2 = (dequantise(*parts, "nvfp4").bfloat16() for parts in ((q1, s1, f1), (q2, s2, f2)))
    return Weights(w1, w2, {"w1": q1, "w2": q2, "w1_scale": s1, "w2_scale": s2, "w1_factor": f1,
                            "w2_factor": f2, "calibration": calibration})


def open_layer(experts: int = E, **options: Any) -> moefarm.Layer:
    return moefarm.Layer(None, model_dim=H, inter_dim=I, experts=experts, topk=K, quant="per_1x16",
                         activation_dtype=FP4, weight_dtype=FP4, device=DEVICE,
                         **{"max_tokens": 1024, **options})


def inputs(tokens: int, seed: int) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, H, generator=g).bfloat16()
    p, ids = torch.topk(torch.softmax(torch.randn(tokens, E, generator=g), -1), K)
    return x.to(DEVICE), ids.to(DEVICE), p.to(DEVICE)


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(a.float().flatten(), b.float().flatten(), dim=0))
