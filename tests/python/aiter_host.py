"""A host on which AITER's Python sources import without an AMD GPU: a fake rocminfo, a stub of AITER's
extension module with its enums, a Triton driver that names the GPU, and a package flydsl whose every name is
an inert object. FlyDSL's registry of kernels is AITER's own Python code, so its names are real. AITER reads
the GPU once per process: one process is one device class.

    AITER_DIR=… python3 aiter_host.py gfx950 256 [--without-flydsl] < SHAPES

prints one JSON object per line: {"shape": text, "tasks": [[generator, stage, name], …], "unknown":
[text, …]}."""
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import sys
import tempfile
import types
from typing import Any, Optional, Sequence

ROOT = pathlib.Path(__file__).resolve().parents[2]
REQUIRED = ("torch", "pandas", "einops", "psutil", "triton", "packaging")

_CORE = '''from enum import IntEnum


class ActivationType(IntEnum):
    """Members: of csrc/include/aiter_enum.h"""
    No, Silu, Gelu, Swiglu, Situv2 = -1, 0, 1, 2, 3

    def __str__(self):
        return "ActivationType." + self.name


class QuantType(IntEnum):
    """Members: of csrc/include/aiter_enum.h"""
    No, per_Tensor, per_Token, per_1x32, per_1x128, per_128x128, per_256x128, per_1024x128 = range(8)

    def __str__(self):
        return "QuantType." + self.name


class MlaVersion(IntEnum):
    """Members: of csrc/include/aiter_enum.h"""
    V32, V40 = 0, 1
'''


def missing() -> str:
    """What this interpreter lacks to import AITER's sources; "" if nothing."""
    folder = os.environ.get("AITER_DIR", "")
    if not folder:
        return "AITER_DIR is not set; it names a checkout of ROCm/aiter"
    if not os.path.isdir(os.path.join(folder, "aiter")):
        return f"AITER_DIR {folder} has no folder aiter; name a checkout of ROCm/aiter"
    packages = [package for package in REQUIRED if importlib.util.find_spec(package) is None]
    return f"{sys.executable} lacks {', '.join(packages)}" if packages else ""


class _Inert:
    """An object that can be called, indexed, subclassed and used as a decorator, and does nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) and not options else _Inert()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Inert()

    def __getitem__(self, _: Any) -> Any:
        return _Inert()

    def __mro_entries__(self, _: Any) -> Any:
        return (object,)

    def __or__(self, _: Any) -> Any:
        return _Inert()

    __ror__ = __or__


class _Flydsl(types.ModuleType):
    __version__ = "99"
    SMEM_CAPACITY_MAP = {"gfx942": 65536, "gfx950": 163840}
    get_rocm_arch = staticmethod(lambda: os.environ["GPU_ARCHS"])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Inert()


class _FlydslFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Optional[Sequence[str]], target: Optional[types.ModuleType] = None
                  ) -> Optional[importlib.machinery.ModuleSpec]:
        is_ours = name.split(".")[0] == "flydsl"
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_ours else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Flydsl(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class _Driver:
    """A Triton driver for a GPU that is not there."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget
        return GPUTarget("hip", os.environ["GPU_ARCHS"], 64)

    def get_current_device(self) -> int:
        return 0


def _write_program(path: pathlib.Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def install(gfx: str, cu_num: int, flydsl: bool = True) -> tempfile.TemporaryDirectory[str]:
    """Makes this process such a host. The folder that it returns must live as long as AITER is used."""
    folder = tempfile.TemporaryDirectory(prefix="moefarm-aiter-host-")
    programs, modules = pathlib.Path(folder.name, "bin"), pathlib.Path(folder.name, "jit")
    programs.mkdir()
    modules.mkdir()
    _write_program(programs / "rocminfo", f"echo '  Name:                    {gfx}'")
    _write_program(programs / "hipconfig", "echo 7.0.0")
    (modules / "module_aiter_core.py").write_text(_CORE)
    os.environ.update(GPU_ARCHS=gfx, CU_NUM=str(cu_num), AITER_JIT_DIR=str(modules), AITER_LOG_LEVEL="ERROR",
                      PATH=f"{programs}:{os.environ['PATH']}")
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(ROOT / "python"))
    import triton
    triton.runtime.driver.set_active(_Driver())
    if flydsl:
        sys.meta_path.insert(0, _FlydslFinder())
    return folder


def main(argv: Sequence[str]) -> int:
    gfx, cu_num = argv[1], int(argv[2])
    with install(gfx, cu_num, "--without-flydsl" not in argv):
        from moefarm.families.aiter import adapter, source
        from moefarm.family import Shape
        aiter = source.load()
        for line in sys.stdin:
            shape = line.strip()
            tasks, unknown = aiter.capture(adapter.row_of(Shape.parse(shape), gfx, cu_num))
            print(json.dumps({"shape": shape, "tasks": [[t.generator, t.stage, t.name] for t in tasks],
                              "unknown": [str(error) for error in unknown]}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
