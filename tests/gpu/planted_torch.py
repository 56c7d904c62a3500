"""A torch family whose candidates misbehave on a GPU, each in one way. check_python_gpu.sh runs it. All are
based on a correct bf16 layer, which is the candidate `ok`."""
from __future__ import annotations

import ctypes
import gc
import time
from typing import Any, Callable, Dict, Iterable, Mapping, Union

import torch
from torch.utils.dlpack import from_dlpack

from moefarm.families.torch_grouped import Layer
from moefarm.family import Candidate, Device, Rejection, Shape
from moefarm.tensor import CUDA, Tensor
from moefarm.torch_family import TorchFamily

_cuda: Any = torch.cuda
Tensors = Mapping[str, torch.Tensor]


class Wrong(Layer):
    def forward(self, tensors: Tensors) -> torch.Tensor:
        return super().forward(tensors) * 1.5


class NanRow(Layer):
    def forward(self, tensors: Tensors) -> torch.Tensor:
        y = super().forward(tensors)
        y[-1].fill_(float("nan"))
        return y


class PastEnd(Layer):
    """Writes 64 bytes behind y through a raw pointer."""

    def forward(self, tensors: Tensors) -> torch.Tensor:
        y = tensors["y"]
        device = (CUDA, torch.cuda.current_device())
        after = Tensor("after", [64], "uint8", y.data_ptr() + y.numel() * 2, device, True)
        from_dlpack(after).fill_(7)
        return super().forward(tensors)


class Crash(Layer):
    def forward(self, tensors: Tensors) -> torch.Tensor:
        ctypes.string_at(0)
        return super().forward(tensors)


class Hang(Layer):
    def forward(self, tensors: Tensors) -> torch.Tensor:
        while True:
            time.sleep(1)


class Sleep(Layer):
    """Sleeps on the host; the time must be the device's."""

    def forward(self, tensors: Tensors) -> torch.Tensor:
        time.sleep(0.02)
        return super().forward(tensors)


class OtherStream(Layer):
    """Runs on a stream that is not joined with the current one."""

    def forward(self, tensors: Tensors) -> torch.Tensor:
        with torch.cuda.stream(_cuda.Stream()):
            return super().forward(tensors)


class PartOnOtherStream(Layer):
    def gemm1(self, tensors: Tensors, rows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        with torch.cuda.stream(_cuda.Stream()):
            other_routes, other_ends = self.routing.sort(tensors["topk_ids"])
            other_rows = torch.div(other_routes, self.shape.topk, rounding_mode="floor")
            return super().gemm1(tensors, other_rows, other_ends)


class DefaultStream(Layer):
    def forward(self, tensors: Tensors) -> torch.Tensor:
        with torch.cuda.stream(_cuda.default_stream()):
            return super().forward(tensors)


class Empty(Layer):
    def forward(self, tensors: Tensors) -> None:  # type: ignore[override]
        return None


class FreedGraph(Layer):
    def prepare(self, tensors: Mapping[str, Tensor], stream: int) -> int:
        graph = super().prepare(tensors, stream)
        self._graphs.clear()
        self._results.clear()
        gc.collect()
        torch.cuda.empty_cache()
        return graph


class Item(Layer):
    """Waits for the device during the launch, which cannot be captured."""

    def forward(self, tensors: Tensors) -> torch.Tensor:
        y = super().forward(tensors)
        y[0, 0].item()
        return y


class OwnTime(Layer):
    """Claims a time of its own, which the farm ignores."""

    us = time_us = 0.001

    def forward(self, tensors: Tensors) -> torch.Tensor:
        y = super().forward(tensors)
        y.us = 0.001  # type: ignore[attr-defined]
        return y


CANDIDATES: Dict[str, Callable[[Shape], Layer]] = {
    "ok": Layer, "wrong": Wrong, "nan_row": NanRow, "past_end": PastEnd, "sleep": Sleep, "own_time": OwnTime,
    "item": Item, "after_item": Layer, "other_stream": OtherStream,
    "part_on_other_stream": PartOnOtherStream, "default_stream": DefaultStream, "after_default": Layer,
    "empty": Empty, "crash": Crash, "hang": Hang, "freed_graph": FreedGraph, "z_last": Layer,
}


class Planted(TorchFamily):
    name = "planted"

    def enumerate(self, shape: Shape, device: Device) -> Iterable[Union[Candidate, Rejection]]:
        if shape.is_quantised:
            return [Rejection("all", "dtype", "only bf16")]
        return [shape.candidate(name) for name in CANDIDATES]

    def open(self, candidate: Candidate, shape: Shape) -> Layer:
        return CANDIDATES[candidate.name](shape)


family = Planted()
