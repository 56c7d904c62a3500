"""Reads the configuration files that a framework packages, to start from configurations that are good for
similar layers."""
from __future__ import annotations

import json
import math
import os
import re
from typing import Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from moefarm.families.triton_moe.config import Config, read_config
from moefarm.families.triton_moe.layer import Layer

# (configuration, configuration of the second GEMM or None)
Pair = Tuple[Config, Optional[Config]]
_NAME = re.compile(r"E=(\d+),N=(\d+),device_name=([^,]+)(?:,dtype=(\w+))?(?:,block_shape=\[(\d+), ?(\d+)\])?"
                   r"(,per_channel_quant=True)?(_down)?\.json")
_FILES_MAX, _BYTES_MAX = 4096, 1 << 20


def _read(path: str) -> Dict[int, Config]:
    """Configurations by token count. A file that cannot be read counts as empty."""
    try:
        if os.path.getsize(path) > _BYTES_MAX:
            return {}
        with open(path, encoding="utf-8") as file:
            rows = json.load(file)
    except (OSError, ValueError):
        return {}
    found: Dict[int, Config] = {}
    for key, values in rows.items() if isinstance(rows, dict) else ():
        config = read_config(values) if str(key).isdecimal() and isinstance(values, dict) else None
        if config:
            found[int(key)] = config
    return found


def _nearest(rows: Dict[int, Config], token: int) -> Config:
    return rows[min(rows, key=lambda key: abs(key - token))]


def _distance(match: re.Match[str], layer: Layer, device_name: str) -> Tuple[bool, float]:
    other_device = match[3] != device_name
    return other_device, (abs(math.log2(int(match[1]) / layer.expert)) +
                          abs(math.log2(int(match[2]) / layer.inter_dim)))


def _matches(match: re.Match[str], layer: Layer, framework: str) -> bool:
    block = [int(match[5]), int(match[6])] if match[5] else []
    per_channel = framework == "sglang" and layer.scales == "rows"
    return ((match[4] or "") == layer.dtype and block == list(layer.block_shape) and not match[8] and
            bool(match[7]) == per_channel and min(int(match[1]), int(match[2])) > 0)


def _files(folders: Iterable[str], layer: Layer, framework: str, device_name: str) -> List[str]:
    """Files for layers with the same data types, the most similar layer first."""
    found: List[Tuple[Tuple[bool, float], str]] = []
    for folder in folders:
        try:
            names = sorted(os.listdir(folder))[:_FILES_MAX]
        except OSError:
            continue
        for name in names:
            match = _NAME.fullmatch(name)
            if match and _matches(match, layer, framework):
                found.append((_distance(match, layer, device_name), os.path.join(folder, name)))
    return [path for _, path in sorted(found)]


def packaged(folders: Sequence[str], layer: Layer, framework: str, device_name: str) -> Iterator[Pair]:
    """Yields the configurations for this token count from the files of similar layers, the most similar layer
    first, each once. `device_name`: as in the names of files, such as NVIDIA_H200."""
    seen: List[Pair] = []
    for path in _files(folders, layer, framework, device_name):
        up, down = _read(path), _read(path.replace(".json", "_down.json"))
        if not up:
            continue
        pair: Pair = (_nearest(up, layer.token), _nearest(down, layer.token) if down else None)
        if pair not in seen:
            seen.append(pair)
            yield pair
