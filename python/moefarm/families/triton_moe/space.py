"""Search spaces: the values that the tuners of vLLM (benchmarks/kernels/benchmark_moe.py) and SGLang
(benchmark/kernels/fused_moe_triton/common_utils.py) combine."""
from __future__ import annotations

import itertools
from typing import Dict, List, Sequence

from moefarm.families.triton_moe.config import FIELDS, Config

Ranges = Dict[str, Sequence[int]]  # by the letters of a name

_NVIDIA: Ranges = {"m": (16, 32, 64, 128, 256), "n": (32, 64, 128, 256), "k": (64, 128, 256),
                   "g": (1, 16, 32, 64), "w": (4, 8), "s": (2, 3, 4, 5)}
_VLLM_AMD: Ranges = {"m": (16, 32, 64, 128, 256), "n": (16, 32, 64, 128, 256), "k": (32, 64, 128, 256),
                     "g": (1, 4, 8, 16, 32), "w": (1, 2, 4, 8), "s": (2,), "eu": (0, 1, 2, 4)}
_SGLANG_AMD: Ranges = {"m": (32, 64, 128, 256), "n": (16, 32, 64, 128, 256), "k": (32, 64, 128, 256),
                       "g": (1, 4, 8, 16, 32), "w": (1, 2, 4, 8), "s": (2,), "eu": (0,)}
# vLLM adds these for unquantised layers on AMD's CDNA.
_MFMA: Ranges = {"k": (16, 32, 64, 128, 256), "mi": (16, 32), "kp": (1, 2)}


def ranges(framework: str, vendor: str, quantised: bool) -> Ranges:
    if vendor == "nvidia":
        return _NVIDIA
    if framework == "sglang":
        return _SGLANG_AMD
    return _VLLM_AMD if quantised else {**_VLLM_AMD, **_MFMA}


def configurations(framework: str, vendor: str, quantised: bool) -> List[Config]:
    """All combinations, in a fixed order."""
    chosen = ranges(framework, vendor, quantised)
    names = [FIELDS[letters] for letters in chosen]
    return [dict(zip(names, values)) for values in itertools.product(*chosen.values())]
