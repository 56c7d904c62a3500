"""The interface of kernel families in Python. A worker loads the module that a family is in:

    moefarm-worker --device cpu:0 --python /opt/venv/bin/python3 --family-py my_family.py

The module has a variable `family`, an object of a subclass of Family, or a list `families` of such objects.
docs/architecture.md has a tutorial; examples/family_plain.py is a complete family.

    class Mine(Family):
        name = "mine"
        def enumerate(self, shape, device):
            if shape.is_quantised:
                yield Rejection("mine_layer", "dtype", f"only unquantised layers, not {shape.q_type}")
            else:
                yield shape.candidate("mine_layer")
        def open(self, candidate, shape):
            return MyKernel(shape)

    class MyKernel(Kernel):
        def launch(self, tensors, stream):
            tensors["y"] ...

    family = Mine()

`enumerate` runs in a process of its own. Everything else runs in the runner, which owns the device and may
die at any time: a crash, an endless loop or an exit is the result of the candidate that was running. An
exception is a result too, with its text as the reason. The farm creates the data, checks the outputs and
measures the time.

Importing the module must not initialise a GPU; `open` may. Needs Python 3.10 and nothing else."""
from __future__ import annotations

import abc
import dataclasses
import re
from typing import Any, Dict, Iterable, Mapping, Optional, Sequence, Tuple, Union

from moefarm.tensor import CPU, CUDA, DTYPES, ROCM, Tensor

__all__ = ["Candidate", "Device", "Family", "Kernel", "Rejection", "Shape", "Tensor", "DTYPES", "parameters"]

_COLUMNS = ("token", "model_dim", "inter_dim", "expert", "topk", "act_type", "dtype", "q_dtype_a",
            "q_dtype_w", "q_type", "use_g1u1", "doweight_stage1", "form")


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One kernel with its parameters. The name must contain the parameters, because production rebuilds the
    kernel from its name alone. It has at most 159 letters, digits, '_', '.' and '-'.

    moefarm's own library cannot run a Python family's candidates. They compete with candidates of their own
    family, and have no place in a table for consumer moefarm."""

    name: str
    covers: Sequence[str]  # ops: sort quant1 gather gemm1 act quant2 gemm2 weight combine
    needs: Sequence[str]  # tensor specs of inputs (common/moe/tensor_spec.h), such as "x/bf16/none/token"
    gives: Sequence[str]  # tensor specs of outputs
    block_m: int = 0
    ksplit: int = 0
    workspace_bytes: int = 0  # tensors["workspace"], undefined contents
    flops: float = 0.0  # 0: no plausibility check of the time against the device's peak
    bytes: float = 0.0
    # maximum relative difference of a row between two runs; 0: the runs are bitwise equal
    reorder_tolerance: float = 0.0
    aiter: bool = False  # AITER's production runs the step, by its name or as a helper of a named kernel

    def to_json(self, family: str) -> Dict[str, Any]:
        gemms = [op for op in ("gemm1", "gemm2") if op in self.covers]
        stage = {(): "move", ("gemm1",): "stage1", ("gemm2",): "stage2"}.get(tuple(gemms), "one")
        return {"name": self.name, "family": family, "covers": "+".join(self.covers) or "-", "stage": stage,
                "block_m": self.block_m, "ksplit": self.ksplit, "needs": list(self.needs),
                "gives": list(self.gives), "workspace": self.workspace_bytes, "flops": self.flops,
                "bytes": self.bytes, "reorder_tolerance": self.reorder_tolerance, "aiter": self.aiter,
                "foreign": True}

    @staticmethod
    def from_json(step: Mapping[str, Any]) -> Candidate:
        covers = [] if step["covers"] == "-" else step["covers"].split("+")
        return Candidate(step["name"], tuple(covers), tuple(step["needs"]), tuple(step["gives"]),
                         step["block_m"], step["ksplit"], step["workspace"], step["flops"], step["bytes"],
                         step["reorder_tolerance"], step.get("aiter", False))


def parameters(name: str) -> Dict[str, int]:
    """Reads the numbers of a candidate's name: "triton_m64_n128" gives {"m": 64, "n": 128}."""
    return {word: int(number) for word, number in re.findall(r"_([a-z]+)(\d+)(?=_|-|$)", name)}


@dataclasses.dataclass(frozen=True)
class Rejection:
    """A kernel that cannot run the shape. `rule` is one short word ("dtype", "divisibility"), `reason` a
    sentence with the numbers."""

    kernel: str
    rule: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Device:
    """The device of the runner. `gfx` and `cu_num` are its class: gfx942 and 304, sm_90 and 132."""

    name: str  # "cpu:0", "hip:nvidia:0", "hip:amd:0"
    gfx: str
    cu_num: int
    info: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # docs/protocol.md, "device field"

    @property
    def vendor(self) -> str:
        """"cpu", "nvidia" or "amd"."""
        words = self.name.split(":")
        return words[1] if words[0] == "hip" else words[0]

    @property
    def ordinal(self) -> int:
        return int(self.name.rsplit(":", 1)[1])

    @property
    def compute_capability(self) -> int:
        """90 for sm_90, 100 for sm_100; 0 for devices that are not from NVIDIA."""
        match = re.match(r"sm_(\d+)", self.gfx)
        return int(match[1]) if match else 0


@dataclasses.dataclass(frozen=True)
class Shape:
    """One row of untuned_fmoe.csv (docs/guide.md), in canonical spelling."""

    token: int
    model_dim: int
    inter_dim: int
    expert: int
    topk: int
    act_type: str
    dtype: str
    q_dtype_a: str
    q_dtype_w: str
    q_type: str
    use_g1u1: bool
    doweight_stage1: bool
    form: str = ""
    # the whole layer as the farm describes it: ops, tensor specs, flops, bytes
    layer: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    @staticmethod
    def parse(text: str, layer: Optional[Mapping[str, Any]] = None) -> Shape:
        words = text.split(",")
        if len(words) not in (len(_COLUMNS) - 1, len(_COLUMNS)):
            raise ValueError(f"shape {text!r}: expected the twelve values of a row and, if any, its form")
        values: Dict[str, Any] = dict(zip(_COLUMNS, words))
        values.update({column: int(values[column]) for column in _COLUMNS[:5]})
        values.update({column: values[column] == "1" for column in _COLUMNS[10:12]})
        return Shape(**values, layer=layer or {})

    def __str__(self) -> str:
        values = [getattr(self, column) for column in _COLUMNS]
        text = ",".join(str(int(value)) if isinstance(value, bool) else str(value) for value in values)
        return text if self.form else text[:-1]

    @property
    def is_quantised(self) -> bool:
        return self.q_type != "QuantType.No"

    def candidate(self, name: str, **fields: Any) -> Candidate:
        """A candidate that computes the whole layer from plain weights (layout `row`). `fields` replaces
        fields of Candidate. Raises ValueError if the farm did not describe the layer."""
        if not self.layer:
            raise ValueError("this shape has no description of its layer; only a runner adds it")
        whole: Dict[str, Any] = {key: self.layer[key] for key in ("needs", "gives", "flops", "bytes")}
        whole["covers"] = self.layer["covers"].split("+")
        return Candidate(name, **{**whole, **fields})


class Kernel(abc.ABC):
    """A candidate that is ready to launch."""

    weights: Any = None  # result of Family.convert_weights
    # GPU: why launches cannot be captured. They are then timed one by one (mode `eager`) and not ranked.
    not_captured: str = ""

    @abc.abstractmethod
    def launch(self, tensors: Mapping[str, Tensor], stream: int) -> None:
        """Computes the outputs from the inputs. A tensor's name is that of its tensor spec; further parts
        have a suffix: x, topk_ids, topk_weights, w1, w1_scale, w2, w2_scale, b1, y, workspace. On a GPU,
        launches work on `stream` (a handle) and does not wait for it. On a CPU, `stream` is 0, and the
        function returns when the outputs are written."""

    def prepare(self, tensors: Mapping[str, Tensor], stream: int) -> int:
        """Does the one-time work for these tensors, untimed. On a GPU, captures the launch and returns the
        handle of the graph, which the farm then replays and times; the graph must live until `close`. A
        kernel that cannot be captured sets `not_captured` and returns 0. TorchKernel does all this."""
        return 0

    def finish(self, tensors: Mapping[str, Tensor], stream: int) -> None:
        """Copies results from memory of a framework to the outputs, after a timed run, untimed."""

    def close(self) -> None:
        """Frees the kernel's memory and graphs."""


class Family(abc.ABC):
    """A provider of candidates. `name` is unique in a worker: letters, digits, '_', '.' and '-', at most
    31."""

    name: str
    supports_ep: bool = False  # expert parallelism: expert ids then number the experts of all ranks

    @abc.abstractmethod
    def enumerate(self, shape: Shape, device: Device) -> Iterable[Union[Candidate, Rejection]]:
        """Offers every legal candidate, and a rejection for each other kernel. Runs in a process of its own
        that does not own the device."""

    @abc.abstractmethod
    def open(self, candidate: Candidate, shape: Shape) -> Kernel:
        """Makes a candidate ready to launch. Counts against the candidate's time limit."""

    def open_row(self, row: Mapping[str, Any], shape: Shape) -> Kernel:
        """Opens the framework's production operator with a row of the framework's own table, for `moefarm
        run-config` and `moefarm compare`. The kernel computes the whole layer. An exception is the reason why
        the row cannot run.

        row: the columns of AITER's table by name; for vLLM and SGLang only `config`, the name of the
            candidate that has the configuration (families/triton_moe/config.py)."""
        raise NotImplementedError(f"family {self.name} cannot run rows of a table: it has no open_row")

    def convert_weights(self, candidate: Candidate, shape: Shape, weights: Mapping[str, Tensor]) -> Any:
        """Converts the plain weights (w1, w1_scale, w2, …) into a layout of the family's own, untimed. The
        result is stored as Kernel.weights; None: the family reads the plain weights."""
        return None

    def weight_layout(self, candidate: Candidate) -> str:
        """Names the layout that convert_weights makes. Open kernels of one layout share the converted
        weights."""
        return candidate.name

    def precompile(self, candidates: Sequence[Candidate], shape: Shape) -> Iterable[object]:
        """Compiles the candidates before they are measured, for example in parallel processes. Yields after
        each candidate, because a runner that is silent for two minutes is killed."""
        return ()

    def revision(self) -> str:
        """The version of the called library, for example torch.__version__. The farm adds a hash of the
        family's source. Results of different revisions are never mixed."""
        return ""


def tensor_device(device: str) -> Tuple[int, int]:
    """Returns the DLPack device type and the ordinal of a runner's device name."""
    named = Device(device, "", 0)
    return {"cpu": CPU, "nvidia": CUDA, "amd": ROCM}[named.vendor], named.ordinal
