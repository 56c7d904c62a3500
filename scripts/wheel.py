#!/usr/bin/env python3
"""Makes a Python wheel of moefarm from a build: the package, libfmoe, the GPU modules, moefarm-compile, and
the shared libraries that they need, with the licences. Two runs make the same bytes.

    scripts/wheel.py BUILD FOLDER

The wheel contains neither glibc nor a vendor's library. oneDNN and libcurl are not included: libfmoe loads
those of the system if they are installed. The platform tag states the oldest glibc that has all symbols."""
import argparse
import base64
import hashlib
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from typing import Dict, List, Set, Tuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
BINARIES = ("fmoe/libfmoe.so", "kernels/moefarm-compile", "kernels/moefarm-hip-nvidia.so")
OPTIONAL = ("kernels/moefarm-hip-amd.so",)  # needs the headers of HIP
GLIBC = re.compile(r"lib(c|m|dl|rt|pthread|util|resolv)\.so\.\d+|ld-linux.*\.so\.\d+")
ORIGIN = "$ORIGIN"
EPOCH = (1980, 1, 1, 0, 0, 0)
PYTHON = "3.10"
# Servers call these functions at their start. They change nothing unless the user asks for moefarm.
ENTRY_POINTS = """[sglang.srt.plugins]
moefarm = moefarm.integrations.sglang:activate

[vllm.general_plugins]
moefarm = moefarm.integrations.vllm:activate
"""
METADATA = """Metadata-Version: 2.4
Name: moefarm
Version: {version}
Summary: Fused mixture-of-experts layers with tuned kernels, and a client of the tuning farm
License-Expression: MIT
{licences}
Requires-Python: >={python}
Provides-Extra: torch
Requires-Dist: torch; extra == "torch"
Provides-Extra: nvidia
Requires-Dist: nvidia-cuda-nvrtc>=13; extra == "nvidia"
Description-Content-Type: text/markdown

{description}
"""
DESCRIPTION = """moefarm runs fused mixture-of-experts layers with kernels that were tuned on your devices.

    import moefarm
    farm = moefarm.Client()      # the REST API of a farm; standard library only
    moefarm.Layer(...)           # a layer on torch tensors; needs torch

Extra `nvidia` installs NVRTC, which compiles the kernels for NVIDIA GPUs. Extra `torch` installs PyTorch.
"""


def run(*command: str) -> str:
    done = subprocess.run(command, text=True, capture_output=True, check=False,
                          env={"LC_ALL": "C", "PATH": "/usr/local/bin:/usr/bin:/bin:/sbin:/usr/sbin"})
    if done.returncode != 0:
        sys.exit(f"wheel: {' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def needed(path: pathlib.Path) -> List[str]:
    """Names of the shared libraries that a file needs, without glibc's."""
    names = re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-d", str(path)))
    return [name for name in names if not GLIBC.fullmatch(name)]


def shared_libraries(binaries: List[pathlib.Path]) -> List[pathlib.Path]:
    """Files of the shared libraries that the binaries and these libraries need."""
    found: Dict[str, pathlib.Path] = {}
    waiting = list(binaries)
    while waiting:
        path = waiting.pop()
        resolved = dict(re.findall(r"^\s*(\S+) => (\S+)", run("ldd", str(path)), re.MULTILINE))
        for name in needed(path):
            if name in found:
                continue
            if not resolved.get(name, "").startswith("/"):
                sys.exit(f"wheel: {path} needs {name}, which is not installed")
            found[name] = pathlib.Path(resolved[name])
            waiting.append(found[name])
    return [found[name] for name in sorted(found)]


def licence(library: pathlib.Path) -> Tuple[str, pathlib.Path]:
    """Name of the Debian package that a library is from, and the package's copyright file."""
    for path in (library, library.resolve()):
        for name in (path, pathlib.Path("/usr") / path.relative_to("/")):
            done = subprocess.run(["dpkg", "-S", str(name)], text=True, capture_output=True, check=False)
            package = done.stdout.split(":")[0]
            file = pathlib.Path("/usr/share/doc") / package / "copyright"
            if done.returncode == 0 and file.exists():
                return package, file
    sys.exit(f"wheel: the licence of {library} is missing: expected /usr/share/doc/PACKAGE/copyright")


def check_origin(path: pathlib.Path) -> None:
    """A binary that needs a library of the wheel must search its own folder for it."""
    dynamic = run("readelf", "-d", str(path))
    if needed(path) and not re.search(rf"R(UN)?PATH\).*\[{re.escape(ORIGIN)}\]", dynamic):
        sys.exit(f"wheel: {path} has no RUNPATH {ORIGIN}")


def glibc_version(paths: List[pathlib.Path]) -> Tuple[int, int]:
    versions: Set[Tuple[int, int]] = {(2, 17)}  # the oldest that a tag can name
    for path in paths:
        for major, minor in re.findall(r"Name: GLIBC_(\d+)\.(\d+)", run("readelf", "-V", str(path))):
            versions.add((int(major), int(minor)))
    return max(versions)


def stripped(path: pathlib.Path, folder: str) -> bytes:
    to = pathlib.Path(folder) / path.name
    shutil.copyfile(path, to)
    run("strip", "--strip-unneeded", str(to))
    return to.read_bytes()


class Wheel:
    """Files of a wheel, with their hashes for RECORD."""

    def __init__(self, info: str) -> None:
        self.info = info
        self._files: Dict[str, Tuple[bytes, int]] = {}

    def add(self, name: str, data: bytes, mode: int = 0o644) -> None:
        self._files[name] = (data, mode)

    def _record(self) -> str:
        lines = []
        for name, (data, _) in sorted(self._files.items()):
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={digest},{len(data)}\n")
        return "".join(lines) + f"{self.info}/RECORD,,\n"

    def write(self, path: pathlib.Path) -> None:
        files = {**dict(sorted(self._files.items())), f"{self.info}/RECORD": (self._record().encode(), 0o644)}
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as out:
            for name, (data, mode) in files.items():
                entry = zipfile.ZipInfo(name, EPOCH)
                entry.external_attr = (0o100000 | mode) << 16
                entry.compress_type = zipfile.ZIP_DEFLATED
                out.writestr(entry, data)


def version_of(build: pathlib.Path) -> str:
    cache = build / "CMakeCache.txt"
    text = cache.read_text() if cache.exists() else ""
    found = re.search(r"^CMAKE_PROJECT_VERSION:\w+=(.*)$", text, re.MULTILINE)
    if not found:
        sys.exit(f"wheel: {build} is not configured")
    return found[1]


def add_binaries(wheel: Wheel, build: pathlib.Path) -> Tuple[str, List[str]]:
    """Adds the binaries and the licences of the shared libraries. Returns the platform tag and the names of
    the licence files."""
    binaries = [build / name for name in BINARIES] + [build / n for n in OPTIONAL if (build / n).exists()]
    for path in binaries:
        if not path.exists():
            sys.exit(f"wheel: {path} is missing: run `make wheel`")
        check_origin(path)
    libraries = shared_libraries(binaries)
    with tempfile.TemporaryDirectory() as folder:
        for path in [*binaries, *libraries]:
            mode = 0o755 if path.name == "moefarm-compile" else 0o644
            wheel.add(f"moefarm/lib/{path.name}", stripped(path, folder), mode)
    licences = ["LICENSE"]
    wheel.add(f"{wheel.info}/licenses/LICENSE", (ROOT / "LICENSE").read_bytes())
    for library in libraries:
        package, file = licence(library)
        licences.append(f"{package}.copyright")
        wheel.add(f"{wheel.info}/licenses/{package}.copyright", file.read_bytes())
    major, minor = glibc_version([*binaries, *libraries])
    return f"manylinux_{major}_{minor}_{platform.machine()}", licences


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a Python wheel from a build")
    parser.add_argument("build", type=pathlib.Path, help="build folder")
    parser.add_argument("folder", type=pathlib.Path, help="folder for the wheel")
    arguments = parser.parse_args()
    version = version_of(arguments.build)
    wheel = Wheel(f"moefarm-{version}.dist-info")
    package = ROOT / "python"
    for file in sorted((package / "moefarm").rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            wheel.add(str(file.relative_to(package)), file.read_bytes())
    tag, licences = add_binaries(wheel, arguments.build)
    wheel.add(f"{wheel.info}/WHEEL", ("Wheel-Version: 1.0\nGenerator: moefarm\nRoot-Is-Purelib: false\n"
                                      f"Tag: py3-none-{tag}\n").encode())
    lines = "\n".join(f"License-File: {name}" for name in licences)
    wheel.add(f"{wheel.info}/METADATA", METADATA.format(version=version, licences=lines, python=PYTHON,
                                                        description=DESCRIPTION).encode())
    wheel.add(f"{wheel.info}/entry_points.txt", ENTRY_POINTS.encode())
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for old in arguments.folder.glob("moefarm-*.whl"):
        old.unlink()
    path = arguments.folder / f"moefarm-{version}-py3-none-{tag}.whl"
    wheel.write(path)
    print(f"{path} {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
