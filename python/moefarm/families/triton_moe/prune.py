"""Leaves out configurations that cannot run, that repeat another one, or that waste most of their work."""
from __future__ import annotations

from typing import Callable, Dict, Iterable, List, Optional, Tuple

from moefarm.families.triton_moe.config import Config, print_name
from moefarm.families.triton_moe.layer import BLOCK, Layer
from moefarm.family import Rejection

# A rule returns the reason to leave a configuration out, or "".
Rule = Callable[[Config, Layer, str], str]

REGISTERS = 255  # per thread of an NVIDIA GPU
MIN_M = 16  # rows of the smallest MMA tile


def _scale_block(c: Config, layer: Layer, framework: str) -> str:
    k = c["BLOCK_SIZE_K"]
    if layer.scales != "blocks" or k <= BLOCK:
        return ""
    if framework == "vllm":
        return f"BLOCK_SIZE_K {k} is run as {BLOCK}, the scale block, and repeats that configuration"
    return f"BLOCK_SIZE_K {k} does not divide the scale block of {BLOCK}"


def stage_buffers(c: Config, layer: Layer) -> int:
    """Tiles in shared memory. Triton's pipeliner keeps one per stage if the products read shared memory
    asynchronously (WGMMA), else one less."""
    stages = c["num_stages"]
    # the kernels swap A and B of small FP8 tiles, so that N fills WGMMA's 64 rows
    swapped = bool(layer.scales) and c["BLOCK_SIZE_N"] >= 64
    wgmma = layer.compute_capability == 90 and (c["BLOCK_SIZE_M"] >= 64 or swapped)
    return max(1, stages if wgmma else stages - 1)


def shared_bytes(c: Config, layer: Layer) -> int:
    tile = (c["BLOCK_SIZE_M"] + c["BLOCK_SIZE_N"]) * c["BLOCK_SIZE_K"] * layer.element_bytes
    return stage_buffers(c, layer) * tile


def _shared_memory(c: Config, layer: Layer, framework: str) -> str:
    needed = shared_bytes(c, layer)
    if not layer.shared_bytes or needed <= layer.shared_bytes:
        return ""
    return (f"{stage_buffers(c, layer)} tiles of A and B need {needed} bytes of shared memory, a block has "
            f"{layer.shared_bytes}")


def _registers(c: Config, layer: Layer, framework: str) -> str:
    if layer.vendor != "nvidia":
        return ""
    accumulators = c["BLOCK_SIZE_M"] * c["BLOCK_SIZE_N"] // (32 * c["num_warps"])
    if accumulators <= REGISTERS:
        return ""
    return f"a thread needs {accumulators} registers for its accumulators alone and has {REGISTERS}"


def _idle_warps(c: Config, layer: Layer, framework: str) -> str:
    tiles = c["BLOCK_SIZE_M"] * c["BLOCK_SIZE_N"] // (16 * 8)
    if layer.vendor != "nvidia" or c["num_warps"] <= tiles:
        return ""
    return f"{c['num_warps']} warps share {tiles} MMA tiles of 16x8"


def _block_m_large(c: Config, layer: Layer, framework: str) -> str:
    """vLLM's tuner has such a rule for Intel's GPUs. Twice the mean leaves room for uneven routing."""
    limit = MIN_M
    while limit < 2 * layer.rows_per_expert:
        limit *= 2
    if c["BLOCK_SIZE_M"] <= max(limit, 2 * MIN_M if layer.vendor == "amd" else MIN_M):
        return ""
    return (f"BLOCK_SIZE_M {c['BLOCK_SIZE_M']}: the {layer.routes} routes leave an expert "
            f"{layer.rows_per_expert} rows, the rest of a tile is padding")


def _block_m_small(c: Config, layer: Layer, framework: str) -> str:
    """After the rule for large GEMMs in vLLM's tuner."""
    if c["BLOCK_SIZE_M"] >= 64 or layer.rows_per_expert < 512:
        return ""
    return (f"BLOCK_SIZE_M {c['BLOCK_SIZE_M']}: an expert has {layer.rows_per_expert} rows, and each tile "
            "reads the expert's weights again")


def _group(c: Config, layer: Layer, framework: str) -> str:
    """After a rule in vLLM's tuner."""
    group, m = c["GROUP_SIZE_M"], c["BLOCK_SIZE_M"]
    if group == 1 or group * m <= layer.routes:
        return ""
    return f"GROUP_SIZE_M {group} groups of BLOCK_SIZE_M {m} rows are more than the {layer.routes} routes"


def _matrix_instruction(c: Config, layer: Layer, framework: str) -> str:
    side = c.get("matrix_instr_nonkdim", 0)
    smallest = min(c["BLOCK_SIZE_M"], c["BLOCK_SIZE_N"])
    return f"matrix_instr_nonkdim {side} is more than the {smallest} of a tile" if side > smallest else ""


RULES: Dict[str, Rule] = {
    "scale_block": _scale_block,
    "shared_memory": _shared_memory,
    "registers": _registers,
    "warps": _idle_warps,
    "block_m": _block_m_large,
    "block_m_small": _block_m_small,
    "group": _group,
    "matrix_instruction": _matrix_instruction,
}


def why_not(config: Config, layer: Layer, framework: str) -> Optional[Tuple[str, str]]:
    """Returns the first rule that leaves the configuration out, and the reason."""
    for name, rule in RULES.items():
        reason = rule(config, layer, framework)
        if reason:
            return name, reason
    return None


def prune(configs: Iterable[Config], layer: Layer, framework: str) -> Tuple[List[Config], List[Rejection]]:
    """Returns the configurations that remain, and one rejection per rule, with an example."""
    kept: List[Config] = []
    left_out: Dict[str, List[Tuple[Config, str]]] = {}
    for config in configs:
        why = why_not(config, layer, framework)
        if why:
            left_out.setdefault(why[0], []).append((config, why[1]))
        else:
            kept.append(config)
    return kept, [_rejection(rule, cases) for rule, cases in left_out.items()]


def _rejection(rule: str, cases: List[Tuple[Config, str]]) -> Rejection:
    config, reason = cases[0]
    others = f", and {len(cases) - 1} other configurations" if len(cases) > 1 else ""
    return Rejection(print_name(config), rule, reason + others)
