"""libfmoe's handles, and the workspace that the layers of a device share."""
from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import weakref
from typing import Any, ContextManager, Dict, List, Optional, Sequence, Tuple, Union

import torch

from moefarm import _library

Tables = Union[None, str, Sequence[str]]
cpu_lock = threading.Lock()  # all CPU handles of a process share one thread pool
_open_lock = threading.Lock()


def library_device(device: torch.device) -> str:
    """The device as libfmoe names it, for example "hip:nvidia:0"."""
    if device.type == "cpu":
        return "cpu:0"
    if device.type == "cuda":
        return f"hip:{'amd' if torch.version.hip else 'nvidia'}:{device.index}"
    raise _library.Error(f"device '{device}': expected a device of type cpu or cuda")


def torch_device(device: Union[None, str, torch.device]) -> torch.device:
    """The device with its index; None stands for the current GPU, or the CPU on a machine without a GPU."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return device


def guard(device: torch.device) -> ContextManager[Any]:
    """Restores the current device. libfmoe makes its own device the current one."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


class Workspace:
    """The buffer that calls on one device share. It grows when a layer is opened, and never during a call. If
    the stream changes between two calls, the later call waits for the stream of the earlier one. Captured
    graphs contain a buffer's address, so a buffer that calls have used is kept after a larger one replaces
    it."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.bytes, self.address = device, 0, 0
        self.used = False  # a call used the largest buffer
        self._buffers: List[torch.Tensor] = []
        self._stream: Any = None

    def reserve(self, n: int) -> None:
        """Allocates a larger buffer if the current one has fewer than n bytes."""
        if n <= self.bytes:
            return
        if self._buffers and not self.used:
            self._buffers.pop()
        buffer = torch.empty(n, dtype=torch.uint8, device=self.device)
        self._buffers.append(buffer)
        self.bytes, self.address, self.used = n, buffer.data_ptr(), False

    def order(self, stream: int) -> None:
        """Makes the current stream, `stream`, wait for earlier calls on another stream. Does nothing during a
        capture, because a captured stream cannot wait for a stream outside the graph."""
        last = self._stream
        if (last is not None and last.cuda_stream == stream) or torch.cuda.is_current_stream_capturing():
            return
        self._stream = torch.cuda.current_stream(self.device)
        if last is not None:
            self._stream.wait_stream(last)


_workspaces: Dict[torch.device, Workspace] = {}


def workspace_of(device: torch.device) -> Workspace:
    """Returns the workspace that all layers on the device share."""
    if device not in _workspaces:
        _workspaces[device] = Workspace(device)
    return _workspaces[device]


class Handle:
    """One device with one set of tables (struct fmoe). It is closed after its last layer."""

    def __init__(self, device: torch.device, tables: Sequence[str]) -> None:
        self.device, self.tables, self.library = device, tables, _library.load()
        self.lock = cpu_lock if device.type == "cpu" else threading.Lock()
        error, pointer = _library.ErrorText(), ctypes.c_void_p()
        name = library_device(device).encode()
        with guard(device):
            _library.check(self.library.fmoe_open(name, _library.text_array(tables), len(tables),
                                                  ctypes.byref(error), ctypes.byref(pointer)), error)
        self.pointer = pointer
        weakref.finalize(self, self.library.fmoe_close, pointer).atexit = False

    def reload(self) -> None:
        error, tables = _library.ErrorText(), _library.text_array(self.tables)
        with guard(self.device):
            _library.check(self.library.fmoe_reload(self.pointer, tables, len(self.tables),
                                                    ctypes.byref(error)), error)

    def report(self, url: str, token_file: Optional[str], seconds: int) -> None:
        error, token = _library.ErrorText(), None if token_file is None else os.fsencode(token_file)
        _library.check(self.library.fmoe_report_start(self.pointer, url.encode(), token, seconds,
                                                      ctypes.byref(error)), error)
        weakref.finalize(self, self.library.fmoe_report_stop, self.pointer)  # also at the end of the process


_handles: "weakref.WeakValueDictionary[Tuple[torch.device, Tuple[str, ...]], Handle]" = (
    weakref.WeakValueDictionary())


def open_handle(device: torch.device, tables: Tables) -> Handle:
    """Returns the handle of the device and the tables. Layers with equal tables share one."""
    paths = () if tables is None else (tables,) if isinstance(tables, str) else tuple(tables)
    with _open_lock:
        handle: Optional[Handle] = _handles.get((device, paths))
        if handle is None:
            handle = _handles[(device, paths)] = Handle(device, paths)
        return handle
