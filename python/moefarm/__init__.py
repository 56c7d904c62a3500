"""moefarm's Python package. The import of this module imports nothing outside the standard library.

    moefarm.Layer           a fused MoE layer as a callable on torch tensors (needs torch)
    moefarm.ops             operators registered with torch, such as moefarm.ops.fused_moe (needs torch)
    moefarm.prepare         lets a transformers model use tuned kernels (needs torch and transformers)
    moefarm.record_routing  records the routing of a transformers model for `moefarm submit --routing`
    moefarm.Client          moefarm's REST API
    moefarm.Error           raised where libfmoe refuses a request

moefarm.family is the interface for kernel families written in Python."""
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, List

if TYPE_CHECKING:
    from moefarm._library import Error as Error

# Names that are imported at their first use, and the module that has them; "" stands for the module itself.
_LAZY = {
    "Client": ("moefarm.client", "Client"),
    "Error": ("moefarm._library", "Error"),
    "Layer": ("moefarm.layer", "Layer"),
    "ops": ("moefarm.ops", ""),
    "prepare": ("moefarm.integrations.transformers", "prepare"),
    "record_routing": ("moefarm.integrations.transformers", "record_routing"),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'moefarm' has no attribute '{name}'")
    module, attribute = _LAZY[name]
    loaded = importlib.import_module(module)
    value = getattr(loaded, attribute) if attribute else loaded
    globals()[name] = value
    return value


def __dir__() -> List[str]:
    return sorted([*globals(), *_LAZY])
