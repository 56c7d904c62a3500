"""Family `aiter` whose kernels are the torch references of AITER's tuner, on any device that torch has. The
farm thus compares AITER's references with its own. One kernel of each stage is enough."""
import os
import pathlib
import sys
from typing import Any, Dict, Iterable, List, Mapping, Sequence

# A runner's interpreter ignores PYTHONPATH.
sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent),
                *filter(None, os.environ.get("PYTHONPATH", "").split(":"))]
import aiter_host  # noqa: E402

GFX, CU_NUM = "gfx950", 256
HOST = aiter_host.install(GFX, CU_NUM)

import dataclasses  # noqa: E402

from moefarm.families.aiter import adapter, launch, source, tasks  # noqa: E402
from moefarm.family import Candidate, Device, Shape  # noqa: E402

import aiter_ops  # noqa: E402

AITER = source.load()


def get_quant(q_type: Any) -> Any:
    """Stands for AITER's operators, which round. AITER's quantisation in torch truncates int8 values. Scales
    are not transposed, because the references read them in the order of the rows."""
    quantise = aiter_ops.get_hip_quant(q_type)
    return lambda x, transpose_scale=False, **options: quantise(x, **options)


AITER.aiter.get_hip_quant = get_quant


class Reference(launch.Launcher):
    """Computes a task by its reference."""

    def launch(self, tensors: launch.Tensors, weights: Mapping[str, launch.Weights]) -> List[launch.Copy]:
        data: Dict[str, Any] = self.data(tensors, weights)
        for name in ("w1", "w2"):
            data[f"{name}_scale"] = launch.weight_scale(self.shape, tensors, name)
        torch, task = self.aiter.torch, self.task
        with torch.device(tensors["topk_ids"].device):
            result = task.reference(*(data[name] for name in task.reference_data), *task.reference_arguments,
                                    **task.reference_options)
        return self._results(result)


def is_measured(task: tasks.Task) -> bool:
    """AITER's references of stage 1 with per_1x128 quantise h without its scales: that for CK drops them, and
    that for assembly kernels quantises values that are already quantised."""
    return task.block_m == 32 and not task.flat and (
        task.stage != "stage1" or task.q_type.name != "per_1x128")


class References(adapter.AiterFamily):
    def enumerate(self, shape: Shape, device: Device) -> Iterable[adapter.Offer]:
        return super().enumerate(shape, dataclasses.replace(device, name="hip:amd:0", gfx=GFX, cu_num=CU_NUM))

    def _offer(self, tasks: Sequence[tasks.Task], shape: Shape) -> Iterable[adapter.Offer]:
        first = {task.stage: task for task in reversed(tasks) if is_measured(task)}
        for offer in super()._offer(tuple(first.values()), shape):
            if isinstance(offer, Candidate) and offer.block_m and "sort" not in offer.covers:
                offer = dataclasses.replace(offer, needs=[*offer.needs, "topk/index/none/token"])
                yield offer

    def open(self, candidate: Candidate, shape: Shape) -> adapter.AiterKernel:
        kernel = super().open(candidate, shape)
        assert isinstance(kernel.launcher, launch.Launcher)
        kernel.launcher = Reference(AITER, kernel.launcher.task, shape)
        kernel.not_captured = "AITER's references read the routing on the host"
        return kernel


family = References()
