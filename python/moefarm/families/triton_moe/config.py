"""Configurations of a Triton fused-MoE kernel, and their names.

    triton_m64_n128_k64_g8_w4_s3                 one configuration for both GEMMs
    triton_m64_…_s3-down_m64_n64_k128_g1_w4_s4_tma   the second GEMM has its own (SGLang)
    default                                      the framework's own choice

common/table/triton/triton_config.c of the farm reads and prints the same names."""
from __future__ import annotations

import re
from typing import Dict, Mapping, Optional, Tuple

Config = Dict[str, int]  # by the framework's field names; flags are 0 or 1

DEFAULT = "default"
# Letters in a name and the framework's field, in the order of names and files.
FIELDS = {"m": "BLOCK_SIZE_M", "n": "BLOCK_SIZE_N", "k": "BLOCK_SIZE_K", "g": "GROUP_SIZE_M",
          "w": "num_warps", "s": "num_stages", "tma": "USE_TMA", "sk": "SPLIT_K", "eu": "waves_per_eu",
          "mi": "matrix_instr_nonkdim", "kp": "kpack", "cta": "num_ctas", "grf": "grf_mode"}
REQUIRED = tuple(FIELDS)[:6]
_LETTERS = {field: letters for letters, field in FIELDS.items()}
_FLAG = "USE_TMA"


def _print(config: Mapping[str, int]) -> str:
    unknown = set(config) - set(_LETTERS)
    if unknown:
        raise ValueError(f"field {sorted(unknown)[0]}: not one of {', '.join(_LETTERS)}")
    parts = [letters if field == _FLAG else f"{letters}{config[field]}"
             for letters, field in FIELDS.items() if field in config and (field != _FLAG or config[field])]
    return "_".join(parts)


def print_name(up: Mapping[str, int], down: Optional[Mapping[str, int]] = None) -> str:
    return f"triton_{_print(up)}" + (f"-down_{_print(down)}" if down else "")


def _parse(text: str, name: str) -> Config:
    config: Config = {}
    for part in text.split("_"):
        match = re.fullmatch(r"([a-z]+)(\d*)", part)
        field = FIELDS.get(match[1]) if match else None
        if not match or not field or field in config or (field == _FLAG) != (match[2] == ""):
            raise ValueError(f"candidate {name}: part {part!r} is not a parameter and its value")
        config[field] = int(match[2] or 1)
    for letters in REQUIRED:
        if FIELDS[letters] not in config:
            raise ValueError(f"candidate {name}: {FIELDS[letters]} is missing")
    return config


def parse_name(name: str) -> Tuple[Optional[Config], Optional[Config]]:
    """Returns the configuration of both GEMMs, and that of the second GEMM if it has its own. Both are None
    for `default`. Raises ValueError for other names."""
    if name == DEFAULT:
        return None, None
    if not name.startswith("triton_"):
        raise ValueError(f"candidate {name}: expected {DEFAULT} or triton_m…")
    up, _, down = name[len("triton_"):].partition("-down_")
    return _parse(up, name), _parse(down, name) if down else None


def read_config(values: Mapping[str, object]) -> Optional[Config]:
    """Reads an object of a framework's file. Returns None if a field is missing or unknown."""
    config: Config = {}
    for field, value in values.items():
        number = str(int(value)) if isinstance(value, (bool, int)) else str(value)
        if field not in _LETTERS or not number.isdecimal():
            return None
        config[field] = int(number)
    if config.get("SPLIT_K", 1) == 1:
        config.pop("SPLIT_K", None)  # the kernels ignore it
    if not config.get(_FLAG, 1):
        del config[_FLAG]  # its default
    complete = all(FIELDS[letters] in config for letters in REQUIRED)
    return {field: config[field] for field in _LETTERS if field in config} if complete else None
