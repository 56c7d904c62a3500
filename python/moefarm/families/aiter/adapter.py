"""Family `aiter`: AITER's own kernels, enumerated by AITER's own tuner and launched by its functions."""
from __future__ import annotations

import os
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

import torch

from moefarm.family import Candidate, Device, Family, Rejection, Shape
from moefarm.tensor import Tensor
from moefarm.torch_family import TorchKernel, as_torch

from . import source
from .launch import Copy, Launcher, Sorter, Weights, convert_weights, finish
from .production import Row
from .steps import SORT, NotLaunched, describe, describe_sort, sorts_of, unknown_row_layouts
from .tasks import KEY_COLUMNS, Task, UnknownTask

Offer = Union[Candidate, Rejection]


def row_of(shape: Shape, gfx: str, cu_num: int) -> Dict[str, Any]:
    """The row that AITER's tuner gets for a shape."""
    columns = {column: getattr(shape, column) for column in KEY_COLUMNS[2:]}
    flags = {column: int(columns[column]) for column in ("use_g1u1", "doweight_stage1")}
    return {"gfx": gfx, "cu_num": cu_num, **columns, **flags}


class AiterKernel(TorchKernel):
    """An opened task, or the sort. `finish` copies the results that AITER wrote to memory of its own."""

    def __init__(self, launcher: Union[Launcher, Sorter], output: str) -> None:
        super().__init__(output)
        self.launcher = launcher
        self.copies: Dict[int, List[Copy]] = {}  # by address of the first output

    def forward(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.copies[tensors[self.output].data_ptr()] = self.launcher.launch(tensors, self.weights)

    def finish(self, tensors: Mapping[str, Tensor], stream: int) -> None:
        copies = self.copies.get(tensors[self.output].pointer, [])
        with torch.inference_mode():
            finish({name: as_torch(tensors[name]) for name, _ in copies}, copies)
            if stream:
                torch.cuda.synchronize()

    def close(self) -> None:
        self.copies.clear()
        super().close()


class FusedMoe(TorchKernel):
    """aiter.fused_moe with a row of a tuned table."""

    def __init__(self, row: Row) -> None:
        super().__init__()
        self.row = row

    def forward(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        y: torch.Tensor = self.row.run(tensors, self.weights)
        return y


class AiterFamily(Family):
    name = "aiter"

    def enumerate(self, shape: Shape, device: Device) -> Iterable[Offer]:
        refusal = self._refuse(shape, device)
        if refusal:
            yield refusal
            return
        tasks, unknown = self._capture(shape, device)
        for error in unknown:
            yield Rejection(error.kernel, "aiter_version", str(error))
        yield from self._offer(tasks, shape)
        if not source.load().has_flydsl():
            yield Rejection("flydsl_*", "package", "AITER enumerates FlyDSL's kernels only with the package "
                            "flydsl, which this interpreter does not have")

    def _refuse(self, shape: Shape, device: Device) -> Optional[Rejection]:
        if device.vendor != "amd":
            return Rejection("*", "device", f"AITER's kernels run on AMD devices, not on {device.name}")
        if shape.form:
            return Rejection("*", "form", f"AITER's keys cannot express form '{shape.form}'")
        if not shape.use_g1u1:
            return Rejection("*", "use_g1u1",
                             "use_g1u1 is 0; AITER's tuner has kernels for fused gate and up only")
        return None

    def _capture(self, shape: Shape, device: Device) -> Tuple[Tuple[Task, ...], Tuple[UnknownTask, ...]]:
        os.environ.setdefault("GPU_ARCHS", device.gfx)
        os.environ.setdefault("CU_NUM", str(device.cu_num))
        return source.load().capture(row_of(shape, device.gfx, device.cu_num))

    def _offer(self, tasks: Sequence[Task], shape: Shape) -> Iterable[Offer]:
        offered = []
        for task in tasks:
            try:
                candidate = describe(task, shape)
            except NotLaunched as error:
                yield Rejection(task.name, error.rule, str(error))
                continue
            offered.append(task)
            yield candidate
        for block_m in sorts_of(offered):
            yield describe_sort(block_m)

    def open(self, candidate: Candidate, shape: Shape) -> AiterKernel:
        aiter = source.load()
        if candidate.name == SORT.format(candidate.block_m):
            return AiterKernel(Sorter(aiter, candidate.block_m, shape), "sorted_ids")
        for task in aiter.capture(row_of(shape, *aiter.device_class()))[0]:
            if (task.name, task.block_m) == (candidate.name, candidate.block_m):
                return AiterKernel(Launcher(aiter, task, shape), "h" if task.stage == "stage1" else "y")
        raise ValueError(f"AITER {aiter.version()} does not enumerate {candidate.name} for {shape}")

    def open_row(self, row: Mapping[str, Any], shape: Shape) -> FusedMoe:
        refusal = unknown_row_layouts(shape) or (f"AITER's keys cannot express form '{shape.form}'"
                                             if shape.form else "")
        if refusal:
            raise ValueError(refusal)
        return FusedMoe(Row(source.load(), row))

    def convert_weights(self, candidate: Candidate, shape: Shape,
                        weights: Mapping[str, Tensor]) -> Dict[str, Weights]:
        return convert_weights(source.load(), shape, {name: as_torch(w) for name, w in weights.items()})

    def weight_layout(self, candidate: Candidate) -> str:
        return "shuffled"

    def revision(self) -> str:
        return source.load().revision()


family = AiterFamily()
