"""The user's AITER: imports its fused-MoE tuner and captures the tuner's tasks. Needs AITER and torch.

AITER's tuner enumerates its own kernels: `mp_tuner` in the tuner's module is replaced by a function that
keeps the tasks, and FmoeTuner.tune() is called with one shape at a time. One at a time, because tune()
returns nothing for the whole table if one of its rows has QuantType.per_1x32 on a device without it.

The environment variable AITER_DIR names a checkout of ROCm/aiter; without it, the installed package is
used."""
from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import io
import math
import os
import subprocess
import sys
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from .tasks import KEY_COLUMNS, Task, UnknownTask, decode_all

FOLDER_ENV = "AITER_DIR"
TUNER = "ck_gemm_moe_2stages_codegen/gemm_moe_tune.py"
# Files of AITER on which the names, arguments and layouts of its kernels depend.
_SOURCES = ("fused_moe.py", "ops/moe_op.py", "ops/shuffle.py", "ops/quant.py", "utility/mp_tuner.py",
            "utility/base_tuner.py")
# Variables with which AITER's tuner leaves kernels out.
FILTERS = ("TUNE_ONLY", "OPUS_ONLY", "OPUS_SKIP_CKTILE", "TUNE_MOE_KERNEL_REGEX")


class _Allocator:
    """Stands for the module torch inside the tuner's module. The first allocations of a launcher get the
    farm's output buffers in place of new memory, so that outputs need no copy."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.outputs: List[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.torch, name)

    def _output(self, size: Sequence[Any], options: Mapping[str, Any]) -> Any:
        shape = tuple(size[0]) if len(size) == 1 and isinstance(size[0], (tuple, list)) else tuple(size)
        output: Any = self.outputs.pop(0) if self.outputs else None
        if output is None or output.dtype != options.get("dtype") or output.numel() != math.prod(shape):
            return None
        return output.view(shape)

    def empty(self, *size: Any, **options: Any) -> Any:
        output = self._output(size, options)
        return self.torch.empty(*size, **options) if output is None else output

    def zeros(self, *size: Any, **options: Any) -> Any:
        output = self._output(size, options)
        return self.torch.zeros(*size, **options) if output is None else output.zero_()


class _KeepScale:
    """Stands for the module aiter inside the tuner's module. A launcher that quantises its result returns the
    values only; this object keeps the scales."""

    def __init__(self, aiter: Any) -> None:
        self.aiter = aiter
        self.scale: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.aiter, name)

    def get_hip_quant(self, q_type: Any) -> Any:
        quantise = self.aiter.get_hip_quant(q_type)

        def quantise_and_keep(*arguments: Any, **options: Any) -> Any:
            values, self.scale = quantise(*arguments, **options)
            return values, self.scale

        return quantise_and_keep


class Aiter:
    """An imported AITER."""

    def __init__(self) -> None:
        folder = os.environ.get(FOLDER_ENV, "")
        if folder and folder not in sys.path:
            sys.path.insert(0, folder)
        self.torch: Any = importlib.import_module("torch")
        with _default_device(self.torch):  # the tuner makes "cuda" the default device of the whole process
            self.aiter: Any = _import_aiter()
            self.fused_moe: Any = importlib.import_module("aiter.fused_moe")
            self.tuner: Any = self._import_tuner()
        self.allocator = _Allocator(self.torch)
        self.keep_scale = _KeepScale(self.aiter)
        self.tuner.torch, self.tuner.aiter = self.allocator, self.keep_scale
        self._files = self._find_files()
        self._captures: Dict[str, Tuple[Tuple[Task, ...], Tuple[UnknownTask, ...]]] = {}

    def _import_tuner(self) -> Any:
        core = importlib.import_module("aiter.jit.core")
        path = os.path.join(core.AITER_CSRC_DIR, TUNER)
        if not os.path.isfile(path):
            raise ImportError(f"AITER's tuner is not at {path}; set {FOLDER_ENV} to a checkout of ROCm/aiter")
        spec = importlib.util.spec_from_file_location("gemm_moe_tune", path)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules["gemm_moe_tune"] = module
        spec.loader.exec_module(module)
        return module

    def _find_files(self) -> List[str]:
        package = os.path.dirname(self.aiter.__file__)
        paths = [str(self.tuner.__file__)] + [os.path.join(package, source) for source in _SOURCES]
        return [path for path in paths if os.path.isfile(path)]

    def version(self) -> str:
        """The commit of a checkout, or the version of the installed package."""
        root = os.path.dirname(os.path.dirname(self.aiter.__file__))
        commit = _commit_of(root)
        if commit:
            return commit
        for package in ("amd-aiter", "aiter"):
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                return importlib.metadata.version(package)
        return f"of unknown version in {root}"

    def revision(self) -> str:
        """Changes whenever AITER's kernels may change: its version and a hash of the sources that matter."""
        digest = hashlib.sha256()
        for path in self._files:
            with open(path, "rb") as source:
                digest.update(source.read())
        filters = [f"{name}={os.environ[name]}" for name in FILTERS if os.environ.get(name)]
        return " ".join([f"aiter {self.version()} {digest.hexdigest()[:16]} torch {self.torch.__version__}",
                         *(["flydsl"] if self.has_flydsl() else []), *filters])

    def device_class(self) -> Tuple[str, int]:
        """The class of the device that AITER sees, as in a table's columns gfx and cu_num."""
        return str(self.fused_moe.get_gfx_runtime()), int(self.fused_moe.get_cu_num())

    def has_flydsl(self) -> bool:
        """AITER enumerates FlyDSL's kernels only if the package flydsl is installed."""
        return bool(self.tuner.is_flydsl_available())

    def capture(self, row: Mapping[str, Any]) -> Tuple[Tuple[Task, ...], Tuple[UnknownTask, ...]]:
        """Returns the tasks that AITER's tuner makes of a row, and errors for those that are not known.
        KEY_COLUMNS has the names of the row's values."""
        text = ",".join(str(row[column]) for column in KEY_COLUMNS)
        if text not in self._captures:
            self._captures.clear()  # a runner opens many kernels of one shape, one after the other
            self._captures[text] = self._capture(row)
        return self._captures[text]

    def _capture(self, row: Mapping[str, Any]) -> Tuple[Tuple[Task, ...], Tuple[UnknownTask, ...]]:
        pandas = importlib.import_module("pandas")
        captured: List[Any] = []

        def keep(tasks: Sequence[Any], *_: Any, **__: Any) -> List[Any]:
            captured.extend(tasks)
            return []

        tuner = self.tuner.FmoeTuner("fmoe", list(KEY_COLUMNS), [], "captured by moefarm")
        table = pandas.DataFrame([[row[column] for column in KEY_COLUMNS]], columns=list(KEY_COLUMNS))
        original, self.tuner.mp_tuner = self.tuner.mp_tuner, keep
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                tuner.tune(table, None, argparse.Namespace(mp=1, timeout=1, verbose=False))
        finally:
            self.tuner.mp_tuner = original
        return decode_all(captured, self.version())

    @contextlib.contextmanager
    def outputs(self, outputs: Sequence[Any]) -> Iterator[None]:
        """Gives the tuner's launchers these buffers for their first allocations, in order."""
        self.allocator.outputs = list(outputs)
        try:
            yield
        finally:
            self.allocator.outputs = []


def _import_aiter() -> Any:
    try:
        return importlib.import_module("aiter")
    except (RuntimeError, AssertionError) as error:
        raise ImportError(f"AITER cannot be imported: {error}. It runs rocminfo and hipconfig, which the "
                          "sandbox of a runner refuses: start moefarm-worker with --no-sandbox") from error


@contextlib.contextmanager
def _default_device(torch: Any) -> Iterator[None]:
    before = torch.get_default_device()
    try:
        yield
    finally:
        torch.set_default_device(before)


def _commit_of(root: str) -> Optional[str]:
    """The first 12 digits of the commit of a checkout; None if the folder is not one."""
    if not os.path.exists(os.path.join(root, ".git")):
        return None
    try:
        command = ["git", "-C", root, "rev-parse", "HEAD"]
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()[:12] or None
    except (OSError, subprocess.CalledProcessError):
        return None


@functools.cache
def load() -> Aiter:
    """Imports AITER once per process."""
    return Aiter()
