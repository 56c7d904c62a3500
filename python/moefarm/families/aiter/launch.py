"""Launches AITER's kernels on the farm's tensors, by the functions of AITER's tuner. Needs AITER and torch.

The names of data ("a1_qt", "w1_qt_shffle_ck", …) are those of the tuner's tasks."""
from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from moefarm.family import Shape

from .source import Aiter
from .steps import is_mxfp4, quantises_h
from .tasks import Task

Tensors = Mapping[str, Any]  # torch tensors under the names of moefarm.family.Kernel.launch
Copy = Tuple[str, Any]  # name of an output, and the tensor in AITER's memory that `finish` copies to it


class Weights(NamedTuple):
    """A weight in AITER's layout, and its scales (None without quantisation)."""

    values: Any
    scale: Any


def dtype_of(aiter: Aiter, name: str) -> Any:
    """"torch.float8_e4m3fn" gives torch.float8_e4m3fn."""
    return getattr(aiter.torch, name.split(".")[-1])


def convert_weights(aiter: Aiter, shape: Shape, tensors: Tensors) -> Dict[str, Weights]:
    """Shuffles weights as AITER's kernels read them. Scales keep their order and get AITER's dimensions."""
    if is_mxfp4(shape):
        return {name: mxfp4_weight(aiter, tensors, name) for name in ("w1", "w2")}
    converted = {}
    for name in ("w1", "w2"):
        values = aiter.tuner.shuffle_weight(tensors[name], (16, 16))
        converted[name] = Weights(values, weight_scale(shape, tensors, name))
    return converted


def mxfp4_weight(aiter: Aiter, tensors: Tensors, name: str) -> Weights:
    """Values and scales as fused_moe() takes them for fp4 activations (ROCm/aiter,
    op_tests/test_moe_2stage.py)."""
    values, scale = tensors[name], tensors[f"{name}_scale"]
    shuffled = aiter.tuner.shuffle_weight(values.view(aiter.torch.float4_e2m1fn_x2), (16, 16))
    return Weights(shuffled, aiter.tuner.fp4_utils.e8m0_shuffle(scale.reshape(-1, scale.shape[-1])))


def weight_scale(shape: Shape, tensors: Tensors, name: str) -> Any:
    """Scales with the dimensions that AITER's tuner gives them: [E, 1], [E, N, 1] or [E, blocks, 1]."""
    if not shape.is_quantised:
        return None
    scale = tensors[f"{name}_scale"]
    experts = tensors[name].shape[0]
    return scale.view(experts, 1) if shape.q_type == "QuantType.per_Tensor" else scale.view(experts, -1, 1)


class Launcher:
    """One task, ready to launch."""

    def __init__(self, aiter: Aiter, task: Task, shape: Shape) -> None:
        self.aiter, self.task, self.shape = aiter, task, shape
        self.q_type = task.q_type
        self.q_dtype = dtype_of(aiter, shape.q_dtype_a)

    def launch(self, tensors: Tensors, weights: Mapping[str, Weights]) -> List[Copy]:
        """Computes the step on torch's current stream. Returns the results that AITER wrote to memory of its
        own; the others are in the farm's buffers."""
        data = self.data(tensors, weights)
        outputs = [data["out"]] if self._has_output() else []
        with self.aiter.outputs(outputs):
            result = self.task.launcher(*(data[name] for name in self.task.data), *self.task.arguments,
                                        **self.task.options)
        return [copy for copy in self._results(result) if copy[1].data_ptr() != tensors[copy[0]].data_ptr()]

    def data(self, tensors: Tensors, weights: Mapping[str, Weights]) -> Dict[str, Any]:
        """The task's data, under the tuner's names."""
        data: Dict[str, Any] = {"bias": None, "fc1_smooth_scale": None, "fc2_smooth_scale": None}
        self._add_routes(data, tensors)
        for name in ("w1", "w2"):
            self._add_weight(data, name, tensors[name], weights[name])
        if self.task.stage == "stage2":
            self._add_h(data, tensors)
        else:
            self._add_x(data, tensors["x"])
        self._add_output(data, tensors)
        return data

    def _add_routes(self, data: Dict[str, Any], tensors: Tensors) -> None:
        data["topk_ids"], data["topk_weights"] = tensors.get("topk_ids"), tensors.get("topk_weights")
        data["sorted_ids"], data["sorted_weights"] = tensors.get("sorted_ids"), tensors.get("sorted_weights")
        data["sorted_expert_ids"] = tensors.get("sorted_experts")
        data["num_valid_ids"] = tensors.get("sorted_num_valid")
        # As in the tuner's generate_data_2stages: only the stage that multiplies by the weights gets them.
        if self.task.stage != "one" and (self.task.stage == "stage1") != self.shape.doweight_stage1:
            data["sorted_weights"] = None

    def _add_weight(self, data: Dict[str, Any], name: str, plain: Any, converted: Weights) -> None:
        data[f"{name}_qt"] = plain
        for key in (f"{name}_qt_shffle", f"{name}_qt_shffle_ck"):
            data[key] = converted.values
        for key in (f"{name}_scale", f"{name}_scale_aiter"):
            data[key] = converted.scale

    def _add_x(self, data: Dict[str, Any], x: Any) -> None:
        data["input"] = data["a1_qt"] = x
        data["a1_scale"] = data["a1_scale_t"] = data["a1_scale_fp4_sort"] = None
        if not self.shape.is_quantised:
            return
        if self.task.xbf16:
            data["a1_scale_t"] = x.new_empty(0)
            return
        options: Dict[str, Any] = {"quant_dtype": self.q_dtype}
        if self.shape.q_type == "QuantType.per_1x128" and "a1_scale_t" in self.task.data:
            options["transpose_scale"] = True
        quantise = self.aiter.aiter.get_hip_quant(self.q_type)
        data["a1_qt"], scale = quantise(x, **options)
        data["a1_scale"] = data["a1_scale_t"] = data["a1_scale_fp4_sort"] = scale

    def _add_h(self, data: Dict[str, Any], tensors: Tensors) -> None:
        h = tensors["h"].view(self.shape.token, self.shape.topk, self.shape.inter_dim)
        scale = tensors.get("h_scale")
        if self.shape.is_quantised and scale is None:
            h, scale = self.aiter.aiter.get_hip_quant(self.q_type)(h, quant_dtype=self.q_dtype)
            h = h.view(self.shape.token, self.shape.topk, self.shape.inter_dim)
        elif scale is not None:
            scale = scale.view(self.shape.token, -1)
        data["a2_qt"], data["a2_scale"], data["a2_scale_mxfp4_sort"] = h, scale, scale

    def _has_output(self) -> bool:
        """True if the launcher's first allocation is the step's output."""
        return "out1" not in self.task.data and not quantises_h(self.task, self.shape)

    def _add_output(self, data: Dict[str, Any], tensors: Tensors) -> None:
        shape = self.shape
        if self.task.stage != "stage1":
            data["out"] = self._flat_output(tensors["y"]) if self.task.flat else tensors["y"]
            return
        data["out"] = tensors["h"].view(shape.token, shape.topk, shape.inter_dim)
        data["out1"] = data["out"]
        if quantises_h(self.task, shape):
            # AITER's assembly kernels append the scales, four bytes for each 128 values, to the values.
            rows = shape.token + (shape.token * 4 + 127) // 128
            data["out1"] = tensors["h"].new_empty((rows, shape.topk, shape.inter_dim))

    def _flat_output(self, y: Any) -> Any:
        """FLAT kernels write up to 8 bytes per token behind their output (AITER's fused_moe.py,
        _moe_prepare_unsorted_input), so they get a buffer of their own, from which y is copied."""
        n_bytes = y.numel() * y.element_size()
        buffer = y.new_empty(n_bytes + 8 * self.shape.token, dtype=self.aiter.torch.uint8)
        return buffer[:n_bytes].view(y.dtype).view(y.shape)

    def _results(self, result: Any) -> List[Copy]:
        if self.task.stage != "stage1":
            return [("y", result)]
        if not quantises_h(self.task, self.shape):
            return [("h", result)]
        values, scale = self._split_h(result)
        return [("h", values), ("h_scale", scale)]

    def _split_h(self, result: Any) -> Tuple[Any, Any]:
        """Returns the values and scales of an h that stage 1 has quantised."""
        if "out1" not in self.task.data:
            return result, self.aiter.keep_scale.scale
        token, shape = self.shape.token, self.shape
        n_scales = token * shape.topk * shape.inter_dim // 128
        scale = result[token:].reshape(-1)[:4 * n_scales].view(self.aiter.torch.float32)
        return result[:token], scale


class Sorter:
    """aiter.moe_sorting for one block size. It does not zero the output, because the tuner's launchers do."""

    def __init__(self, aiter: Aiter, block_m: int, shape: Shape) -> None:
        self.aiter, self.block_m, self.shape = aiter, block_m, shape

    def launch(self, tensors: Tensors, _weights: Any = None) -> List[Copy]:
        """Like Launcher.launch. All results are in memory of AITER."""
        results = self.aiter.fused_moe.moe_sorting(
            tensors["topk_ids"], tensors["topk_weights"], self.shape.expert, self.shape.model_dim,
            self.aiter.torch.bfloat16, self.block_m, accumulate=False)
        return list(zip(("sorted_ids", "sorted_weights", "sorted_experts", "sorted_num_valid"), results))


def finish(tensors: Tensors, copies: Sequence[Copy]) -> None:
    """Copies results to the farm's buffers. AITER may allocate fewer or more sorted rows than the farm; no
    routing fills the rows that only one of them has."""
    for name, result in copies:
        to = tensors[name].view(-1)
        rows = min(to.numel(), result.numel())
        to[:rows].copy_(result.reshape(-1)[:rows])
