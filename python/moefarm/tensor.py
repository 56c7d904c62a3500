"""Tensors of the farm as objects that other libraries take without a copy (DLPack), with the standard library
only.

    torch.from_dlpack(tensors["x"])     CuPy, JAX and NumPy have the same function
    tensors["x"].memory()               memoryview of a tensor in host memory

The memory belongs to the farm. A family must not keep a tensor, or an array made from it, longer than the
kernel that received it is open. A family never writes to an input."""
from __future__ import annotations

import ctypes
import math
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple

CPU, CUDA, ROCM = 1, 2, 10  # DLDeviceType
_INT, _UINT, _FLOAT, _BFLOAT = 0, 1, 2, 4  # DLDataTypeCode


class _Dtype(NamedTuple):
    code: int
    bits: int
    letter: str  # format of memoryview.cast; "H" for 16-bit floats, which the standard library lacks


# Not every version of DLPack and not every library knows 8-bit and smaller floats. They are exported as
# uint8; for torch write torch.from_dlpack(t).view(torch.float8_e4m3fn).
_BYTE = _Dtype(_UINT, 8, "B")
DTYPES: Dict[str, _Dtype] = {
    "float32": _Dtype(_FLOAT, 32, "f"),
    "float16": _Dtype(_FLOAT, 16, "H"),
    "bfloat16": _Dtype(_BFLOAT, 16, "H"),
    "int32": _Dtype(_INT, 32, "i"),
    "int8": _Dtype(_INT, 8, "b"),
    "uint8": _BYTE,
    "float8_e4m3fn": _BYTE,
    "float8_e4m3fnuz": _BYTE,
    "float8_e8m0fnu": _BYTE,
    "float4_e2m1fn_x2": _BYTE,  # two elements per byte, the even one in the low nibble
    "int4_x2": _BYTE,
}


class _DLDevice(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class _DLDataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", _DLDevice), ("ndim", ctypes.c_int32),
                ("dtype", _DLDataType), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _ManagedVersioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _DLTensor)]


# Structs that a consumer may still read, by address. The consumer calls the deleter when it is done.
_alive: Dict[int, Tuple[Any, ...]] = {}


def _delete(managed: Optional[int]) -> None:
    _alive.pop(managed or 0, None)


def _drop_capsule(capsule: Optional[int]) -> None:
    """Destructor of a capsule. A capsule without a consumer still has its first name."""
    for name in (b"dltensor", b"dltensor_versioned"):
        if _capsule_is_valid(capsule, name):
            _alive.pop(_capsule_pointer(capsule, name) or 0, None)


_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_deleter, _destructor = _CALLBACK(_delete), _CALLBACK(_drop_capsule)
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
# With c_void_p in place of py_object, because an object in its destructor must get no new references.
_capsule_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi))
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi))


class Tensor:
    """A contiguous row-major tensor. `dtype` is a key of DTYPES; `device` is the DLPack device type and the
    ordinal."""

    def __init__(self, name: str, shape: Sequence[int], dtype: str, pointer: int,
                 device: Tuple[int, int] = (CPU, 0), writable: bool = False) -> None:
        if dtype not in DTYPES:
            raise ValueError(f"tensor {name}: dtype {dtype!r}: expected one of {', '.join(DTYPES)}")
        self.name, self.shape, self.dtype = name, tuple(shape), dtype
        self.pointer, self.device, self.writable = pointer, device, writable

    def __repr__(self) -> str:
        return f"Tensor({self.name!r}, {list(self.shape)}, {self.dtype}, 0x{self.pointer:x})"

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype].bits // 8

    def memory(self) -> Any:
        """A memoryview of the elements in host memory, flat. 16-bit floats appear as unsigned integers."""
        if self.device[0] != CPU:
            raise TypeError(f"tensor {self.name} is in device memory; use a library's from_dlpack")
        data = (ctypes.c_uint8 * self.nbytes).from_address(self.pointer)
        flat: Any = memoryview(data).cast("B")
        flat = flat.cast(DTYPES[self.dtype].letter)
        return flat if self.writable else flat.toreadonly()

    def __dlpack_device__(self) -> Tuple[int, int]:
        return self.device

    def __dlpack__(self, *, stream: Any = None, max_version: Optional[Tuple[int, int]] = None,
                   dl_device: Optional[Tuple[int, int]] = None, copy: Optional[bool] = None) -> Any:
        """Returns a capsule. The farm has finished writing before it passes a tensor, so `stream` needs no
        synchronisation."""
        if copy:
            raise BufferError(f"tensor {self.name}: cannot copy; copy the array that you get")
        if dl_device is not None and tuple(dl_device) != self.device:
            raise BufferError(f"tensor {self.name} is on device {self.device}, not on {dl_device}")
        dims = (ctypes.c_int64 * len(self.shape))(*self.shape)
        kind = DTYPES[self.dtype]
        tensor = _DLTensor(data=self.pointer, device=_DLDevice(*self.device), ndim=len(self.shape),
                           dtype=_DLDataType(kind.code, kind.bits, 1), shape=dims, strides=None)
        deleter = ctypes.cast(_deleter, ctypes.c_void_p)
        managed: Any
        if max_version is not None and max_version[0] >= 1:
            # NumPy makes arrays without a version read-only, so outputs need the versioned struct.
            strides = (ctypes.c_int64 * len(self.shape))(*_row_major(self.shape))
            tensor.strides = strides
            managed = _ManagedVersioned(major=1, minor=0, deleter=deleter, flags=0, tensor=tensor)
            name = b"dltensor_versioned"
            _alive[ctypes.addressof(managed)] = (managed, dims, strides)
        else:
            managed = _Managed(tensor=tensor, deleter=deleter)
            name = b"dltensor"
            _alive[ctypes.addressof(managed)] = (managed, dims)
        return _new_capsule(ctypes.addressof(managed), name, ctypes.cast(_destructor, ctypes.c_void_p))


def _row_major(shape: Sequence[int]) -> Tuple[int, ...]:
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= length
    return tuple(reversed(strides))
