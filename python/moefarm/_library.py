"""Finds and loads libfmoe, and declares its types and functions (fmoe/fmoe.h) for ctypes.

The library is the file that the environment variable MOEFARM_LIBRARY names, else lib/libfmoe.so beside this
package, else the system's libfmoe."""
from __future__ import annotations

import ctypes
import ctypes.util
import errno
import functools
import os
import pathlib
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ctypes import c_char, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p

ABI = "0.1"  # before 1.0, each minor version has its own ABI
VARIABLE = "MOEFARM_LIBRARY"


class Error(RuntimeError):
    """A request that libfmoe refused. The text is libfmoe's message; `errno` is the error number."""

    def __init__(self, text: str, number: int = errno.EINVAL) -> None:
        super().__init__(text)
        self.errno = number


# ---- types ----

Parts = c_void_p * 3  # elements, scales, factor of a weight


class ErrorText(ctypes.Structure):
    """struct fmoe_error"""

    _fields_ = [("text", c_char * 512)]


class LayerModel(ctypes.Structure):
    """struct fmoe_layer_model"""

    _fields_ = [("model_dim", c_int32), ("inter_dim", c_int32), ("experts", c_int32), ("topk", c_int32),
                ("act_type", c_char_p), ("dtype", c_char_p), ("q_dtype_a", c_char_p),
                ("q_dtype_w", c_char_p), ("q_type", c_char_p), ("use_g1u1", c_int32),
                ("doweight_stage1", c_int32), ("form", c_char_p), ("max_tokens", c_int64),
                ("workspace_bytes", c_size_t), ("w1_layout", c_char_p), ("w2_layout", c_char_p)]


class Weight(ctypes.Structure):
    """struct fmoe_weight"""

    _fields_ = [("layout", c_char_p), ("bytes", c_size_t * 3)]


class Served(ctypes.Structure):
    """struct fmoe_served"""

    _fields_ = [("tuned", c_int), ("bucket", c_int64), ("us", c_double), ("table", c_char * 256),
                ("line", c_int64), ("pipeline", c_char * 1024), ("modelled_us", c_double),
                ("reason", c_char * 320)]


# enum fmoe_type
INT32, INT64, FLOAT32, BFLOAT16 = range(4)


class Call(ctypes.Structure):
    """struct fmoe_call"""

    _fields_ = [("tokens", c_int64), ("x", c_void_p), ("ids", c_void_p), ("ids_type", c_int32),
                ("weights", c_void_p), ("weights_type", c_int32), ("w1", Parts), ("w2", Parts),
                ("b1", c_void_p), ("b2", c_void_p), ("calib", c_void_p), ("y", c_void_p),
                ("workspace", c_void_p), ("workspace_bytes", c_size_t), ("stream", c_void_p)]


class Calibration(ctypes.Structure):
    """struct fmoe_calibration"""

    _fields_ = [("x_amax", c_float), ("h_amax", c_float), ("batches", c_int64), ("tokens", c_int64)]


# ---- functions ----

# name: (result, parameters)
_FUNCTIONS: Dict[str, Tuple[Any, List[Any]]] = {
    "fmoe_version": (c_char_p, []),
    "fmoe_open": (c_int, [c_char_p, c_void_p, c_size_t, c_void_p, c_void_p]),
    "fmoe_close": (None, [c_void_p]),
    "fmoe_reload": (c_int, [c_void_p, c_void_p, c_size_t, c_void_p]),
    "fmoe_layer_open": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "fmoe_layer_close": (None, [c_void_p]),
    "fmoe_workspace_bytes": (c_size_t, [c_void_p]),
    "fmoe_layer_weight": (c_int, [c_void_p, c_int, c_void_p]),
    "fmoe_layer_pack": (c_int, [c_void_p, c_int, c_void_p, c_void_p]),
    "fmoe_layer_pack_device": (c_int, [c_void_p, c_int, c_void_p, c_void_p, c_void_p]),
    "fmoe_remap_ids_device": (c_int, [c_void_p, c_void_p, c_int64, c_void_p, c_int32, c_void_p, c_void_p]),
    "fmoe_served": (c_int, [c_void_p, c_int64, c_void_p]),
    "fmoe_run": (c_int, [c_void_p, c_void_p]),
    "fmoe_calibrate": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "fmoe_calibration_factors": (c_int, [c_void_p, c_void_p, c_float, c_void_p, c_void_p]),
    "fmoe_n_misses": (c_uint64, [c_void_p]),
    "fmoe_report_start": (c_int, [c_void_p, c_char_p, c_char_p, c_int64, c_void_p]),
    "fmoe_report_stop": (None, [c_void_p]),
}


def find() -> str:
    """Returns the path or the soname of libfmoe.

    Error: MOEFARM_LIBRARY names no file, or no library is found."""
    named = os.environ.get(VARIABLE)
    if named:
        if not os.path.exists(named):
            raise Error(f"{VARIABLE} is '{named}': no such file", errno.ENOENT)
        return named
    beside = pathlib.Path(__file__).parent / "lib" / "libfmoe.so"
    if beside.exists():
        return str(beside)
    system = ctypes.util.find_library("fmoe")
    if not system:
        raise Error(f"libfmoe is missing: {beside} does not exist, and the system has none; install "
                    f"moefarm's wheel or package, or set {VARIABLE} to the path of libfmoe.so", errno.ENOENT)
    return system


def declare(library: Any, functions: Dict[str, Tuple[Any, List[Any]]]) -> None:
    """Declares the results and parameters of the library's functions."""
    for name, (result, parameters) in functions.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, parameters


@functools.lru_cache(maxsize=None)
def load() -> Any:
    """Loads libfmoe once per process. Error: it is missing, cannot be loaded, or has another ABI."""
    path = find()
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise Error(f"{path}: {error}", errno.ENOENT) from None
    declare(library, _FUNCTIONS)
    version = library.fmoe_version().decode()
    if version.split(".")[:2] != ABI.split("."):
        raise Error(f"{path} is libfmoe {version}: this package needs version {ABI}; install both from the "
                    "same build", errno.EINVAL)
    return library


def check(result: int, error: Optional[ErrorText] = None, what: str = "") -> None:
    """Raises libfmoe's message if `result` is a negative error number."""
    if result >= 0:
        return
    text = error.text.decode(errors="replace") if error else ""
    raise Error(text or f"{what}: {os.strerror(-result)}", -result)


def text_array(texts: Sequence[str]) -> Any:
    """The texts as const char *const *."""
    return (c_char_p * max(len(texts), 1))(*[os.fsencode(text) for text in texts])
