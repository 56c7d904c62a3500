"""Calls the operators of libfmoe (fmoe/fmoe_ops.h) on torch tensors, and registers operators with torch."""
from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
import weakref
from typing import Any, Callable, Dict, List, NoReturn, Optional, Tuple

import torch
from ctypes import c_char_p, c_float, c_int32, c_int64, c_size_t, c_void_p

from moefarm import _library
from moefarm._handle import cpu_lock, guard, library_device
from moefarm._library import Error

EXPERTS_MAX = 1024  # largest number of experts that a GPU sorts
_IDS = {torch.int32: _library.INT32, torch.int64: _library.INT64}
_FLOATS = {torch.float32: _library.FLOAT32, torch.bfloat16: _library.BFLOAT16}

# ---- types ----


class Routes(ctypes.Structure):
    """struct fmoe_op_routes"""

    _fields_ = [("ids", c_void_p), ("ids_type", c_int32), ("topk", c_int32), ("tokens", c_int64),
                ("experts", c_int32), ("unused", c_int32)]


class Align(ctypes.Structure):
    """struct fmoe_op_align"""

    _fields_ = [("routes", Routes), ("block", c_int32), ("ignore_remote", c_int32), ("expert_map", c_void_p),
                ("sorted_ids", c_void_p), ("rows", c_int64), ("expert_ids", c_void_p),
                ("num_post_pad", c_void_p), ("scatter_idx", c_void_p), ("workspace", c_void_p),
                ("stream", c_void_p)]


class MoeSort(ctypes.Structure):
    """struct fmoe_op_moe_sort"""

    _fields_ = [("routes", Routes), ("weights", c_void_p), ("block", c_int32), ("unused", c_int32),
                ("expert_mask", c_void_p), ("local_tokens", c_void_p), ("sorted_ids", c_void_p),
                ("sorted_weights", c_void_p), ("expert_ids", c_void_p), ("num_valid", c_void_p),
                ("moe_buf", c_void_p), ("moe_buf_bytes", c_size_t), ("workspace", c_void_p),
                ("stream", c_void_p)]


class Rows(ctypes.Structure):
    """struct fmoe_op_rows"""

    _fields_ = [("from_", c_void_p), ("to", c_void_p), ("bytes", c_size_t)]


class Permute(ctypes.Structure):
    """struct fmoe_op_permute"""

    _fields_ = [("routes", Routes), ("expert_map", c_void_p), ("n_local", c_int32), ("n_rows", c_int32),
                ("rows", Rows * 2), ("first_token_offset", c_void_p), ("inv_permuted_idx", c_void_p),
                ("permuted_idx", c_void_p), ("workspace", c_void_p), ("stream", c_void_p)]


class PermuteEp(ctypes.Structure):
    """struct fmoe_op_permute_ep"""

    _fields_ = [("routes", Routes), ("first", c_int64), ("last", c_int64), ("padded_mode", c_int32),
                ("unused", c_int32), ("rows", Rows), ("probs", c_void_p), ("out_probs", c_void_p),
                ("sorted_indices", c_void_p), ("workspace", c_void_p), ("stream", c_void_p)]


class PermuteMap(ctypes.Structure):
    """struct fmoe_op_permute_map"""

    _fields_ = [("routing_map", c_void_p), ("probs", c_void_p), ("tokens", c_int64), ("experts", c_int32),
                ("align", c_int32), ("drop_and_pad", c_int32), ("unused", c_int32),
                ("num_out_tokens", c_int64), ("rows", Rows), ("max_rows", c_int64), ("row_of", c_void_p),
                ("token_of", c_void_p), ("out_probs", c_void_p), ("per_expert", c_void_p),
                ("pad_offsets", c_void_p), ("workspace", c_void_p), ("stream", c_void_p)]


class Unpermute(ctypes.Structure):
    """struct fmoe_op_unpermute"""

    _fields_ = [("row_of", c_void_p), ("probs", c_void_p), ("tokens", c_int64), ("first", c_int64),
                ("last", c_int64), ("topk", c_int32), ("width", c_int32), ("from_", c_void_p),
                ("to", c_void_p), ("stream", c_void_p)]


class UnpermutePadded(ctypes.Structure):
    """struct fmoe_op_unpermute_padded"""

    _fields_ = [("indices", c_void_p), ("rows", c_int64), ("tokens", c_int64), ("width", c_int32),
                ("unused", c_int32), ("from_", c_void_p), ("to", c_void_p), ("workspace", c_void_p),
                ("stream", c_void_p)]


class Route(ctypes.Structure):
    """struct fmoe_op_route"""

    _fields_ = [("logits", c_void_p), ("logits_type", c_int32), ("ids_type", c_int32), ("tokens", c_int64),
                ("experts", c_int32), ("topk", c_int32), ("score", c_int32), ("renormalised", c_int32),
                ("groups", c_int32), ("groups_kept", c_int32), ("masked_to_zero", c_int32),
                ("scale", c_float), ("sum_floor", c_float), ("bias", c_void_p), ("hash", c_void_p),
                ("ids", c_void_p), ("weights", c_void_p), ("stream", c_void_p)]


class Quantised(ctypes.Structure):
    """struct fmoe_op_quantised"""

    _fields_ = [("row_bytes", c_int64), ("scale_rows", c_int64), ("scale_cols", c_int64),
                ("scale_bytes", c_int32), ("has_factor", c_int32), ("factor_max", c_float),
                ("unused", c_int32)]


class Quantise(ctypes.Structure):
    """struct fmoe_op_quantise"""

    _fields_ = [("format", c_char_p), ("x", c_void_p), ("matrices", c_int64), ("rows", c_int64),
                ("cols", c_int32), ("unused", c_int32), ("factor", c_void_p), ("q", c_void_p),
                ("scale", c_void_p), ("workspace", c_void_p), ("stream", c_void_p)]


class Shuffle(ctypes.Structure):
    """struct fmoe_op_shuffle"""

    _fields_ = [("order", c_char_p), ("from_", c_void_p), ("to", c_void_p), ("matrices", c_int64),
                ("rows", c_int64), ("cols", c_int64), ("element_bytes", c_int32), ("undo", c_int32),
                ("stream", c_void_p)]


_OPERATORS = ("align", "moe_sort", "permute", "permute_ep", "permute_map", "unpermute", "unpermute_padded",
              "route", "quantise", "shuffle")
_FUNCTIONS: Dict[str, Tuple[Any, List[Any]]] = {
    "fmoe_ops_open": (ctypes.c_int, [c_char_p, c_void_p, c_void_p]),
    "fmoe_ops_close": (None, [c_void_p]),
    "fmoe_op_sort_workspace": (c_size_t, [c_void_p, c_void_p]),
    "fmoe_op_map_workspace": (c_size_t, [c_void_p, c_int64, c_int32]),
    "fmoe_op_padded_workspace": (c_size_t, [c_void_p, c_int64, c_int64, c_int32]),
    "fmoe_op_align_rows": (c_int64, [c_int64, c_int32, c_int32, ctypes.c_int]),
    "fmoe_op_quantised_sizes": (ctypes.c_int, [c_char_p, c_int64, c_int64, c_void_p, c_void_p]),
    "fmoe_op_shuffled_elements": (ctypes.c_int, [c_char_p, c_int64, c_int64, c_int32, c_void_p, c_void_p]),
    **{f"fmoe_op_{name}": (ctypes.c_int, [c_void_p, c_void_p, c_void_p]) for name in _OPERATORS},
}


@functools.lru_cache(maxsize=None)
def library() -> Any:
    """libfmoe, with the functions of fmoe_ops.h declared."""
    loaded = _library.load()
    _library.declare(loaded, _FUNCTIONS)
    return loaded


# ---- calls ----


class Operators:
    """The operators of one device (struct fmoe_ops)."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.library = device, library()
        self.lock: Any = cpu_lock if device.type == "cpu" else contextlib.nullcontext()
        error, pointer = _library.ErrorText(), c_void_p()
        with guard(device):
            result = self.library.fmoe_ops_open(library_device(device).encode(), ctypes.byref(error),
                                                ctypes.byref(pointer))
        _library.check(result, error)
        self.pointer = pointer
        weakref.finalize(self, self.library.fmoe_ops_close, pointer).atexit = False

    def run(self, name: str, arguments: Any) -> None:
        """Runs the operator fmoe_op_<name> on the current stream. Raises Error with libfmoe's message."""
        error = _library.ErrorText()
        if self.device.type == "cuda":
            arguments.stream = torch._C._cuda_getCurrentRawStream(self.device.index)
        function = getattr(self.library, f"fmoe_op_{name}")
        with self.lock, guard(self.device):
            result = function(self.pointer, ctypes.byref(arguments), ctypes.byref(error))
        _library.check(result, error)

    def workspace(self, n: int) -> torch.Tensor:
        """Allocates n bytes on the device."""
        return torch.empty(max(n, 1), dtype=torch.uint8, device=self.device)

    def sort_workspace(self, routes: Routes) -> torch.Tensor:
        return self.workspace(self.library.fmoe_op_sort_workspace(self.pointer, ctypes.byref(routes)))


_open: Dict[torch.device, Operators] = {}
_open_lock = threading.Lock()


def operators(x: torch.Tensor) -> Operators:
    """The operators of the tensor's device. The first call on a GPU compiles them, or reads the code
    cache."""
    found = _open.get(x.device)
    if found is None:
        with _open_lock:
            found = _open.get(x.device)
            if found is None:
                found = _open[x.device] = Operators(x.device)
    return found


def refuse(name: str, value: object, expected: str) -> NoReturn:
    """Raises Error with the argument's name, its value and what is expected instead."""
    raise Error(f"{name} is {value}: expected {expected}")


def pointer(name: str, x: Optional[torch.Tensor], like: torch.Tensor, dtype: Any = None,
            shape: Any = None) -> Optional[int]:
    """Address of a contiguous tensor on the device of `like`, or None for None."""
    if x is None:
        return None
    if x.device != like.device:
        refuse(f"device of {name}", x.device, str(like.device))
    if dtype is not None and x.dtype != dtype:
        refuse(f"dtype of {name}", x.dtype, str(dtype))
    if shape is not None and tuple(x.shape) != tuple(shape):
        refuse(f"shape of {name}", list(x.shape), str(list(shape)))
    if not x.is_contiguous():
        refuse(f"stride of {name}", list(x.stride()), "a contiguous tensor")
    return x.data_ptr()


def routes_of(name: str, ids: torch.Tensor, experts: int) -> Routes:
    """The routes of ids, int32 or int64 [T, K]. Error: another dtype or number of dimensions."""
    if ids.dtype not in _IDS:
        refuse(f"dtype of {name}", ids.dtype, "torch.int32 or torch.int64")
    if ids.dim() != 2:
        refuse(f"shape of {name}", list(ids.shape), "[tokens, topk]")
    return Routes(pointer(name, ids, ids), _IDS[ids.dtype], ids.shape[1], ids.shape[0], experts)


def float_type(name: str, x: torch.Tensor) -> int:
    """The dtype of x as enum fmoe_type. Error: neither float32 nor bfloat16."""
    if x.dtype not in _FLOATS:
        refuse(f"dtype of {name}", x.dtype, "torch.float32 or torch.bfloat16")
    return _FLOATS[x.dtype]


def int_type(dtype: torch.dtype) -> int:
    """The dtype of expert ids as enum fmoe_type. Error: neither int32 nor int64."""
    if dtype not in _IDS:
        refuse("dtype of ids", dtype, "torch.int32 or torch.int64")
    return _IDS[dtype]


# ---- registration ----

_make_library: Any = torch.library.Library  # torch declares no types for it
_torch_library = _make_library("moefarm", "FRAGMENT")


def register(schema: str, function: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Registers an operator of namespace moefarm for CPU and GPU, and returns it."""
    name = schema.split("(")[0]
    _torch_library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    for key in ("CPU", "CUDA"):
        _torch_library.impl(name, function, key)
    torch.library.register_fake(f"moefarm::{name}", fake, lib=_torch_library)
    return getattr(torch.ops.moefarm, name).default
