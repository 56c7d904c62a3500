"""Describes AITER's tasks as steps of the farm: the ops that a kernel covers and the tensors between kernels.

Each step does the quantisation that AITER's fused_moe() runs in front of the kernel, because AITER's kernels
need activation scales in layouts of their own (transposed, sorted). So x is always bf16, and the steps of a
pipeline are those of fused_moe():

    aiter_moe_sorting_m32    stage 1 (quantises x)    stage 2 (quantises h, if stage 1 has not)

The intermediate h has AITER's order [token, topk, inter_dim], which the farm calls "slot"."""
from __future__ import annotations

from typing import List, Sequence, Tuple

from moefarm.family import Candidate, Shape

from .tasks import Task

SORT = "aiter_moe_sorting_m{}"  # as kernels/aiter/aiter.c names it
FORMATS = {"torch.bfloat16": "bf16", "torch.float8_e4m3fn": "fp8fn", "torch.float8_e4m3fnuz": "fp8fnuz",
           "torch.int8": "int8"}
# q_type: scales of activations, scales of weights
SCALES = {"QuantType.No": ("none", "none"), "QuantType.per_Tensor": ("per_tensor", "per_tensor"),
          "QuantType.per_Token": ("per_token", "per_token"),
          "QuantType.per_1x128": ("per_1x128", "per_128x128")}
# AITER's atomic additions sum in any order.
REORDER_TOLERANCE = 0.01


class NotLaunched(ValueError):
    """A kernel that AITER's tuner tries and this family does not launch. `rule` is a short word."""

    def __init__(self, rule: str, reason: str) -> None:
        super().__init__(reason)
        self.rule = rule


def quantises_h(task: Task, shape: Shape) -> bool:
    """True if the kernel of stage 1 writes h quantised, which AITER's do only with scales per 1x128."""
    return task.stage == "stage1" and shape.q_type == "QuantType.per_1x128"


def unknown_layouts(shape: Shape) -> str:
    """Why AITER's kernels cannot read the tensors of the shape; "" if they can."""
    if shape.q_type in SCALES and shape.q_dtype_w in FORMATS and shape.q_dtype_a in FORMATS:
        return ""
    return (f"with {shape.q_type}, activations {shape.q_dtype_a} and weights {shape.q_dtype_w}, its tensors "
            "have layouts that the farm has no name for")


def is_mxfp4(shape: Shape) -> bool:
    """True if activations and weights are fp4 with a scale (e8m0) per 32 values."""
    formats = {shape.q_dtype_a, shape.q_dtype_w}
    return shape.q_type == "QuantType.per_1x32" and formats == {"torch.float4_e2m1fn_x2"}


def unknown_row_layouts(shape: Shape) -> str:
    """Like unknown_layouts, for fused_moe(), which needs no layouts of tensors between kernels."""
    return "" if is_mxfp4(shape) else unknown_layouts(shape)


def refuse(shape: Shape, task: Task) -> None:
    """Raises NotLaunched if the family cannot launch the task."""
    if unknown_layouts(shape):
        raise NotLaunched("layout", f"{task.generator}:{task.name} is enumerated but not launched: "
                          f"{unknown_layouts(shape)}")


def h_spec(shape: Shape) -> str:
    """The tensor spec of h between the stages."""
    if shape.q_type == "QuantType.per_1x128":
        return f"h/{FORMATS[shape.q_dtype_a]}/per_1x128/slot"
    return "h/bf16/none/slot"


def weight_specs(shape: Shape) -> List[str]:
    """Both weights, because AITER's kernels of each stage take both. They read only the sizes of the other
    stage's weight."""
    return [f"{weight}/{FORMATS[shape.q_dtype_w]}/{SCALES[shape.q_type][1]}/row" for weight in ("w1", "w2")]


def sorted_spec(block_m: int) -> str:
    return f"sorted/index/none/sorted.{block_m}"


def describe(task: Task, shape: Shape) -> Candidate:
    """Returns the step of a task. Raises NotLaunched."""
    refuse(shape, task)
    covers, needs, gives = {"stage1": _stage1, "stage2": _stage2, "one": _one}[task.stage](task, shape)
    adds = task.stage != "stage1"
    return Candidate(task.name, covers, needs, gives, task.block_m, flops=_flops(task.stage, shape),
                     reorder_tolerance=REORDER_TOLERANCE if adds else 0.0, aiter=True)


def describe_sort(block_m: int) -> Candidate:
    """The step aiter.moe_sorting."""
    return Candidate(SORT.format(block_m), ["sort"], ["topk/index/none/token"], [sorted_spec(block_m)],
                     block_m, aiter=True)


_Step = Tuple[List[str], List[str], List[str]]


def _stage1(task: Task, shape: Shape) -> _Step:
    covers = ["quant1"] if shape.is_quantised else []
    covers += ["gather", "gemm1", "act"]
    covers += ["quant2"] if quantises_h(task, shape) else []
    covers += ["weight"] if shape.doweight_stage1 else []
    needs = ["x/bf16/none/token", sorted_spec(task.block_m), *weight_specs(shape)]
    return covers, needs, [h_spec(shape)]


def _stage2(task: Task, shape: Shape) -> _Step:
    covers = ["quant2"] if shape.is_quantised and h_spec(shape).startswith("h/bf16") else []
    covers += ["gemm2", "combine"] + ([] if shape.doweight_stage1 else ["weight"])
    needs = [h_spec(shape), sorted_spec(task.block_m), *weight_specs(shape)]
    return covers, needs, ["y/bf16/none/token"]


def _one(task: Task, shape: Shape) -> _Step:
    quants = ["quant1", "quant2"] if shape.is_quantised else []
    covers = quants + ["gather", "gemm1", "act", "gemm2", "weight", "combine"]
    routes = "topk/index/none/token" if task.flat else sorted_spec(task.block_m)
    covers += ["sort"] if task.flat else []
    needs = ["x/bf16/none/token", routes, *weight_specs(shape)]
    return covers, needs, ["y/bf16/none/token"]


def _flops(stage: str, shape: Shape) -> float:
    rows = float(shape.token * shape.topk)
    gemm1 = 2 * rows * shape.model_dim * shape.inter_dim * (2 if shape.use_g1u1 else 1)
    gemm2 = 2 * rows * shape.model_dim * shape.inter_dim
    return {"stage1": gemm1, "stage2": gemm2, "one": gemm1 + gemm2}[stage]


def sorts_of(tasks: Sequence[Task]) -> List[int]:
    """The block sizes for which the tasks need sorted routes."""
    return sorted({task.block_m for task in tasks if not task.flat})
