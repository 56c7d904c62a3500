"""AITER's fused-MoE kernels (https://github.com/ROCm/aiter) as a family of the farm.

    moefarm-worker --device hip:amd:0 --python /opt/venv/bin/python3 --family-py moefarm.families.aiter

tasks.py, table.py and steps.py need the standard library only; source.py imports the user's AITER; launch.py
runs its kernels; production.py runs a row of a table through its fused_moe; adapter.py is the interface to
the farm."""
from typing import Any


def __getattr__(name: str) -> Any:
    """The variable `family`. Created on first use, because tests use the other modules without torch."""
    if name != "family":
        raise AttributeError(name)
    from .adapter import family
    return family
