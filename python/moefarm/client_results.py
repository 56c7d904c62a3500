"""Results of moefarm.Client. Fields have the names and units of docs/api.md, and `device_class` is `class`.

Objects are read from JSON by their type hints. Members that this version does not know are ignored, so that a
newer farm can add some."""
from __future__ import annotations

import csv
import dataclasses
import io
import typing
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Type, TypeVar

from moefarm.client_http import ClientError, FieldError

T = TypeVar("T")
_MEMBERS = {"device_class": "class"}  # members whose name is a keyword of Python


@dataclasses.dataclass(frozen=True)
class Worker:
    """A worker and its device; `model` is the device's product name."""

    id: int
    name: str
    host: str
    device_class: str
    model: str
    simulated: bool
    state: str  # idle, busy, draining, lost, gone
    quarantined: str  # reason, or ""


@dataclasses.dataclass(frozen=True)
class Receipt:
    """A submitted batch. `errors` lists the rejected rows; the other rows are tuned."""

    batch: int
    shapes: int
    tasks: int = 0
    undecided: int = 0
    warnings: Tuple[str, ...] = ()
    errors: Tuple[FieldError, ...] = ()
    unknown_columns: Tuple[FieldError, ...] = ()


@dataclasses.dataclass(frozen=True)
class ModelLayer:
    """A model's MoE layer as one rank runs it: `shape` with token count 1, and the token counts to tune.
    `quant_error` says why the quantisation is unknown, `not_modelled` what a shape cannot express."""

    name: str
    shape: Mapping[str, Any]
    tokens: Tuple[int, ...]
    shared: int
    context: int
    quant_source: str
    quant_error: str
    not_modelled: str

    def rows(self, tokens: Optional[Sequence[int]] = None, **columns: Any) -> List[Dict[str, Any]]:
        """Rows to submit: one for each token count (default: all). `columns` replaces values.

        >>> layer = ModelLayer("m", {"token": 1, "topk": 8}, (1, 2, 4), 0, 0, "", "", "")
        >>> layer.rows([2, 4], topk=9)
        [{'token': 2, 'topk': 9}, {'token': 4, 'topk': 9}]
        """
        missing = [name for name in ("q_type", "q_dtype_a", "q_dtype_w") if name not in columns]
        if self.quant_error and missing:
            raise ValueError(f"{self.name}: {self.quant_error}; give {', '.join(missing)}")
        return [{**self.shape, "token": token, **columns} for token in tokens or self.tokens]


@dataclasses.dataclass(frozen=True)
class Waiting:
    """Tasks that no connected worker can run, with the reason."""

    device_class: Optional[str]
    tasks: int
    reason: str


@dataclasses.dataclass(frozen=True)
class Batch:
    id: int
    name: str
    state: str  # submitting, open, done, cancelled
    tasks: int
    done: int
    failed: int
    steps: int
    measured: int
    priority: int
    created_ms: int
    ended_ms: Optional[int]
    eta_s: Optional[float] = None
    waiting: Tuple[Waiting, ...] = ()
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def has_ended(self) -> bool:
        return self.state in ("done", "cancelled")


@dataclasses.dataclass(frozen=True)
class Task:
    """One shape on one device class. `us` is the median of the winner's rerun, `winner` its steps."""

    id: int
    batch: int
    device_class: Optional[str]
    model: Optional[str]
    state: str
    reason: str
    shape: Mapping[str, Any]
    layer_model: str
    us: Optional[float]
    mad: Optional[float]
    n: Optional[int]
    unstable: Optional[str]
    pipeline: Optional[int]
    winner: Optional[Tuple[str, ...]]
    decision: Optional[str]


@dataclasses.dataclass(frozen=True)
class Op:
    """A step of a pipeline: what it covers, such as gather+gemm1+act, and its own time."""

    covers: str
    step: int
    name: str
    us: Optional[float]
    mad: Optional[float]


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """Candidates that together compute the layer. The times of the pipelines of a task are paired by round,
    so they can be compared with each other."""

    id: int
    task: int
    place: int
    names: Tuple[str, ...]
    finalist: bool
    winner: bool
    tie: bool
    forecast_us: float
    us: Optional[float]
    mad: Optional[float]
    ops: Tuple[Op, ...]


@dataclasses.dataclass(frozen=True)
class Rejection:
    """A kernel that is not in the result, with the reason."""

    family: str
    kernel: str
    rule: str
    reason: str
    step: Optional[int]


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """A row that an export leaves out, with the reason."""

    device_class: str
    model: Optional[str]
    shape: str
    us: Optional[float]
    reason: str


@dataclasses.dataclass(frozen=True)
class Lookup:
    """The row (`csv`, for moefarm and aiter) or configuration (for vllm and sglang) that serves a call."""

    consumer: str
    device_class: str
    model: str
    token: int
    exact: bool
    shape: Mapping[str, Any]
    us: float
    task: int
    csv: Optional[str]
    config: Optional[Mapping[str, Any]]
    config_down: Optional[Mapping[str, Any]]
    file: Optional[str]
    provenance: Optional[Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class NewRelease:
    release: int
    name: str
    sha256: str
    rows: int
    left_out: int


@dataclasses.dataclass(frozen=True)
class Release:
    id: int
    name: str
    created_by: str
    created_ms: int
    sha256: str
    rows: int
    left_out: int
    filters: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class ReleaseRow:
    key: str
    us: float
    names: str


@dataclasses.dataclass(frozen=True)
class ChangedRow:
    key: str
    old_us: float
    new_us: float
    old_names: str
    new_names: str

    @property
    def change(self) -> float:
        """Change of the time as a fraction: -0.1 is 10 % less time.

        >>> ChangedRow("16,2048", 100.0, 90.0, "a", "b").change
        -0.1
        """
        return round(self.new_us / self.old_us - 1, 9)


@dataclasses.dataclass(frozen=True)
class ReleaseDiff:
    """Differences of two releases by key. `same` is the number of equal rows."""

    release: int
    against: Optional[int]
    same: int
    added: Tuple[ReleaseRow, ...]
    removed: Tuple[ReleaseRow, ...]
    changed: Tuple[ChangedRow, ...]


@dataclasses.dataclass(frozen=True)
class ReleaseName:
    id: int
    name: str


@dataclasses.dataclass(frozen=True)
class Channel:
    """A channel: the release that hosts pull (current), and the one that waits for approval (staged)."""

    name: str
    staged: Optional[ReleaseName]
    current: Optional[ReleaseName]


@dataclasses.dataclass(frozen=True)
class Moved:
    """State of a channel after a move: numbers of the staged and the current release."""

    channel: str
    staged: Optional[int]
    current: Optional[int]


@dataclasses.dataclass(frozen=True)
class Miss:
    """A shape that production looked up and did not find, `count` times."""

    id: int
    device_class: str
    shape: Mapping[str, Any]
    count: int
    sources: int
    state: str  # open, tuning, tuned, failed
    task: Optional[int]
    last_ms: int


@dataclasses.dataclass(frozen=True)
class MissBatch:
    batch: int
    device_class: str
    shapes: int


@dataclasses.dataclass(frozen=True)
class Table:
    """An exported table. `left_out` is the number of rows that it lacks; Client.left_out lists them."""

    text: str
    sha256: str
    left_out: int = 0

    def rows(self) -> List[Dict[str, str]]:
        """
        >>> Table("token,us\\n16,8.5\\n", "").rows()
        [{'token': '16', 'us': '8.5'}]
        """
        return list(csv.DictReader(io.StringIO(self.text)))


@dataclasses.dataclass(frozen=True)
class Configs:
    """Configuration files of vLLM or SGLang by path below the folder that the environment variable `variable`
    names."""

    consumer: str
    variable: str
    files: Mapping[str, str]
    left_out: Tuple[LeftOut, ...] = ()


@dataclasses.dataclass(frozen=True)
class Pulled:
    """The state of a pulled table. `release` is "3 NAME"; `changed`: the file was written."""

    release: str
    changed: bool


def read(kind: Type[T], value: Any, at: str = "reply") -> T:
    """Makes an object of a type of this module from JSON. Raises ClientError with the member's path.

    >>> read(Moved, {"channel": "stable", "staged": None, "current": 3, "later": 1})
    Moved(channel='stable', staged=None, current=3)
    >>> read(Moved, {"channel": "stable", "staged": None, "current": "3"})
    Traceback (most recent call last):
    moefarm.client_http.ClientError: reply.current: expected int, got '3'; update the package moefarm
    """
    return typing.cast(T, _value(kind, value, at))


def _wrong(at: str, expected: str, value: Any) -> ClientError:
    return ClientError(f"{at}: expected {expected}, got {value!r:.40}; update the package moefarm")


def _value(kind: Any, value: Any, at: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if origin is typing.Union:  # Optional
        return None if value is None else _value(arguments[0], value, at)
    if origin is tuple:
        if not isinstance(value, list):
            raise _wrong(at, "an array", value)
        return tuple(_value(arguments[0], item, f"{at}[{i}]") for i, item in enumerate(value))
    if dataclasses.is_dataclass(kind):
        return _object(kind, value, at)
    if origin is not None:  # Mapping
        if not isinstance(value, dict):
            raise _wrong(at, "an object", value)
        return {key: _value(arguments[1], item, f"{at}.{key}") for key, item in value.items()}
    accepted: Tuple[type, ...] = (int, float) if kind is float else (kind,)
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise _wrong(at, kind.__name__, value)
    return kind(value)


def _object(kind: Any, value: Any, at: str) -> Any:
    if not isinstance(value, dict):
        raise _wrong(at, "an object", value)
    hints, members = typing.get_type_hints(kind), {}
    for field in dataclasses.fields(kind):
        name = _MEMBERS.get(field.name, field.name)
        if name in value:
            members[field.name] = _value(hints[field.name], value[name], f"{at}.{name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ClientError(f"{at}.{name}: missing; check that the URL is moefarmd's")
    return kind(**members)
