"""Decodes the tasks of AITER's fused-MoE tuner. Standard library only.

FmoeTuner.tune() hands a list of tuples to mp_tuner. The slots of a tuple, as in ROCm/aiter,
csrc/ck_gemm_moe_2stages_codegen/gemm_moe_tune.py and aiter/utility/mp_tuner.py at e4048607:

    0  tag       (key of 14 values, stage, kernel name, block_m[, flat[, v2]])
    1  generator of the data, 2 its arguments
    3  launcher, 4 ([names of data], *further arguments), 5 keyword arguments
    6  reference, 7 its arguments in the form of slot 4, 8 keyword arguments, 9 a ready reference or None
    10 rtol, 11 atol, 12 function that compares[, 13 max_abs_delta[, 14 names of outputs]]

A tuple of another form is refused, because a wrong guess would launch a kernel with wrong arguments."""
from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

# Commits of ROCm/aiter whose task tuples these functions were tested with.
KNOWN_COMMITS = ("e4048607a535",)

KEY_COLUMNS = ("gfx", "cu_num", "token", "model_dim", "inter_dim", "expert", "topk", "act_type", "dtype",
               "q_dtype_a", "q_dtype_w", "q_type", "use_g1u1", "doweight_stage1")
_SLOTS = (13, 14, 15)
_STAGES = {"stage1": "stage1", "stage2": "stage2", "asm_1stage": "one", "asm_1stage_xbf16": "one"}
# The generator of each launcher's kernels, under the names that kernels/aiter/aiter.h has for them.
GENERATORS: Mapping[str, str] = {
    "run_asm_stage1": "asm",
    "run_1stage_fmoe_g1u1": "asm",
    "run_1stage_fmoe_g1u1_tkw1": "asm",
    "run_1stage_fmoe_fp8_blockscale_g1u1": "asm",
    "ck_moe_stage1_fwd_out": "ck",
    "ck_moe_stage2_fwd_out": "ck",
    "cktile_moe_stage1_out": "cktile",
    "cktile_moe_stage2_out": "cktile2",
    "run_flydsl_stage1_out": "flydsl",
    "run_flydsl_stage2_out": "flydsl",
    "run_flydsl_v2_stage1_out": "flydslv2",
    "run_flydsl_v2_stage2_out": "flydslv2",
    "run_opus_stage1_out": "opus",
    "run_opus_stage2_out": "opus",
}


class UnknownTask(ValueError):
    """A tuple whose form is not known. The text names AITER's version and the difference (`problem`)."""

    def __init__(self, number: int, version: str, problem: str, kernel: str = "*") -> None:
        super().__init__(f"AITER {version}: task {number}: {problem}; this moefarm knows the tasks of AITER "
                         f"{' and '.join(KNOWN_COMMITS)}: install one of them or a newer moefarm")
        self.problem, self.kernel = problem, kernel


@dataclasses.dataclass(frozen=True)
class Task:
    """One candidate of AITER's tuner."""

    name: str  # kernel name in AITER's tables
    stage: str  # "stage1", "stage2" or "one", as in moefarm's steps
    block_m: int
    flat: int  # 1: reads the router's top-k directly
    v2: bool  # the intermediate has the layout of AITER's "layout" kernels
    xbf16: bool  # reads bf16 hidden states and quantises them itself
    key: Tuple[Any, ...]  # the values of KEY_COLUMNS
    launcher: Callable[..., Any]
    data: Tuple[str, ...]  # names of the tensors that the launcher takes first
    arguments: Tuple[Any, ...]  # the launcher's further arguments
    options: Mapping[str, Any]  # its keyword arguments
    reference: Callable[..., Any]
    reference_data: Tuple[str, ...]
    reference_arguments: Tuple[Any, ...]
    reference_options: Mapping[str, Any]

    @property
    def q_type(self) -> Any:
        """The member of AITER's QuantType."""
        return self.key[KEY_COLUMNS.index("q_type")]

    @property
    def launcher_name(self) -> str:
        return _name_of(self.launcher)

    @property
    def generator(self) -> str:
        """The generator of the kernel, as `moefarm why` shows it in front of the name."""
        generator = GENERATORS[self.launcher_name]
        if generator == "flydsl" and "_wint4_" in self.name:
            return "flydsli4"
        return "opusv2" if generator == "opus" and self.v2 else generator


def decode(task: Sequence[Any], number: int, version: str) -> Task:
    """Decodes task `number` of a capture. `version` names the AITER that made it, for the error message."""
    if not isinstance(task, (tuple, list)) or len(task) not in _SLOTS:
        slots = len(task) if isinstance(task, (tuple, list)) else type(task).__name__
        raise UnknownTask(number, version, f"{slots} slots where {_SLOTS[0]} to {_SLOTS[-1]} are known")
    tag: Any = task[0]
    wrong = _wrong_tag(tag)
    if wrong:
        raise UnknownTask(number, version, wrong)
    key, stage, name, block_m, flat, v2 = list(tag) + [0, 0][len(tag) - 4:]
    launcher = _name_of(task[3])
    wrong = _wrong_call(task[3:6], "launcher") or _wrong_call(task[6:9], "reference")
    if not wrong and launcher not in GENERATORS:
        wrong = f"launcher {launcher} is not known"
    if wrong:
        raise UnknownTask(number, version, wrong, name)
    # On gfx942 AITER's tuner lists kernels for bf16 hidden states ("a16") among those for fp8.
    xbf16 = stage == "asm_1stage_xbf16" or "_a16_" in name
    return Task(name, _STAGES[stage], block_m, int(flat), bool(v2), xbf16, tuple(key),
                task[3], tuple(task[4][0]), tuple(task[4][1:]), dict(task[5]),
                task[6], tuple(task[7][0]), tuple(task[7][1:]), dict(task[8]))


def decode_all(tasks: Sequence[Sequence[Any]], version: str
               ) -> Tuple[Tuple[Task, ...], Tuple[UnknownTask, ...]]:
    """Decodes a whole capture. Returns the known tasks, and one error for each way in which tasks differ."""
    known: List[Task] = []
    unknown: Dict[str, UnknownTask] = {}
    for number, task in enumerate(tasks):
        try:
            known.append(decode(task, number, version))
        except UnknownTask as error:
            unknown.setdefault(error.problem, error)
    return tuple(known), tuple(unknown.values())


def _wrong_tag(tag: Any) -> str:
    """Returns the problem of slot 0, or ""."""
    if not isinstance(tag, (tuple, list)) or len(tag) not in (4, 5, 6):
        return "the tag is not (key, stage, kernel name, block_m[, flat[, v2]])"
    key, stage, name, block_m = tag[:4]
    if not isinstance(key, (tuple, list)) or len(key) != len(KEY_COLUMNS):
        return f"the key does not have the {len(KEY_COLUMNS)} values {', '.join(KEY_COLUMNS)}"
    if stage not in _STAGES:
        return f"stage {stage!r} is not one of {', '.join(_STAGES)}"
    if not isinstance(name, str) or not name or not isinstance(block_m, int) or block_m < 0:
        return f"kernel name {name!r} and block_m {block_m!r} are not a text and a number"
    return ""


def _wrong_call(call: Sequence[Any], role: str) -> str:
    """Returns the problem of a function, its ([names of data], *arguments) and keyword arguments, or ""."""
    function, arguments, options = call
    if not callable(function):
        return f"the {role} is not a function"
    names = arguments[0] if isinstance(arguments, (tuple, list)) and arguments else None
    if not isinstance(names, (tuple, list)) or not all(isinstance(name, str) for name in names):
        return f"the arguments of the {role} are not ([names of data], …)"
    return "" if isinstance(options, dict) else f"the keyword arguments of the {role} are not a dict"


def _name_of(function: Any) -> str:
    return str(getattr(function, "__name__", repr(function)))
