"""Lists the candidates of a layer."""
from __future__ import annotations

import os
from typing import Iterator, List, Optional, Sequence, Tuple, Union

from moefarm.families.triton_moe.config import DEFAULT, Config, print_name
from moefarm.families.triton_moe.layer import Layer, layer_of, refusal
from moefarm.families.triton_moe.packaged import Pair, packaged
from moefarm.families.triton_moe.prune import prune, why_not
from moefarm.families.triton_moe.space import configurations
from moefarm.families.triton_moe.spread import spread
from moefarm.family import Candidate, Device, Rejection, Shape

LIMIT_ENV = "MOEFARM_TRITON_CONFIGS"
LIMIT_MAX = 4096


def limit() -> int:
    """The number of configurations of a shape. Raises ValueError if the variable is not a number."""
    text = os.environ.get(LIMIT_ENV, "")
    if not text:
        return LIMIT_MAX
    if not text.isdecimal() or not 1 <= int(text) <= LIMIT_MAX:
        raise ValueError(f"{LIMIT_ENV}={text}: expected a number from 1 to {LIMIT_MAX}")
    return int(text)


def device_name(device: Device) -> str:
    """The device as in the names of the frameworks' files."""
    name = "_".join(str(device.info.get("model", "")).replace("/", " ").split())
    return "NVIDIA_H200" if "H200" in name.split("_") else name


def _down_fits(down: Optional[Config], up: Config, layer: Layer, framework: str) -> bool:
    """The second GEMM uses the rows as the first one has sorted them."""
    if down is None:
        return True
    if framework != "sglang" or down["BLOCK_SIZE_M"] != up["BLOCK_SIZE_M"]:
        return False
    return not why_not(down, layer, framework) and (not down.get("USE_TMA") or has_tma(layer))


def has_tma(layer: Layer) -> bool:
    return layer.compute_capability >= 90


def _with_tma(configs: Sequence[Config], known: Sequence[Pair]) -> List[Pair]:
    """Adds TMA in the second GEMM. Leaves out pairs in `known`."""
    pairs: List[Pair] = [(config, {**config, "USE_TMA": 1}) for config in configs]
    return [pair for pair in pairs if pair not in known]


def choose(layer: Layer, framework: str, folders: Sequence[str], device: str,
           n: int) -> Tuple[List[Pair], List[Rejection]]:
    """Returns at most n configurations: those of the framework's files, and others that are spread over the
    search space. For SGLang, the latter appear without and with TMA in the second GEMM."""
    kept, rejections = prune(configurations(framework, layer.vendor, bool(layer.scales)), layer, framework)
    known: List[Pair] = [
        (up, down) for up, down in packaged(folders, layer, framework, device)
        if not why_not(up, layer, framework) and _down_fits(down, up, layer, framework)]
    rest = [config for config in kept if (config, None) not in known]
    tma = framework == "sglang" and has_tma(layer)
    total = len(known) + len(rest) + (len(_with_tma(rest, known)) if tma else 0)
    if total > n:
        known = known[:n // 2]
    picked = spread(rest, (n - len(known)) // (2 if tma else 1), [up for up, _ in known])
    pairs = known + [(config, None) for config in picked] + (_with_tma(picked, known) if tma else [])
    if len(pairs) < total:
        rejections.append(Rejection("triton", "limit", f"{total - len(pairs)} of {total} configurations are "
                                    f"not offered, because {LIMIT_ENV} is {n}"))
    return pairs, rejections


def offers(framework: str, shape: Shape, device: Device,
           folders: Sequence[str]) -> Iterator[Union[Candidate, Rejection]]:
    refused = refusal(shape, device)
    if refused:
        yield Rejection("triton", *refused)
        return
    yield shape.candidate(DEFAULT)
    pairs, rejections = choose(layer_of(shape, device), framework, folders, device_name(device), limit())
    for up, down in pairs:
        yield shape.candidate(print_name(up, down))
    yield from rejections
