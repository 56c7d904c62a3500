"""Checks the installed package moefarm against its RECORD and METADATA."""
import base64
import hashlib
import importlib.metadata
import sys


def main() -> int:
    package = importlib.metadata.distribution("moefarm")
    files = package.files or []
    problems = []
    for file in files:
        path = file.locate()
        if file.hash is None:
            continue
        digest = hashlib.sha256(path.read_bytes()).digest()
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
            problems.append(f"{file}: RECORD has another hash")
        if file.size is not None and file.size != path.stat().st_size:
            problems.append(f"{file}: RECORD has another size")
        if (file.name == "moefarm-compile") != bool(path.stat().st_mode & 0o111):
            problems.append(f"{file}: the mode is {path.stat().st_mode:o}")
    names = {str(file) for file in files}
    for licence in package.metadata.get_all("License-File") or [""]:
        if not any(name.endswith(f".dist-info/licenses/{licence}") for name in names):
            problems.append(f"the licence {licence!r} is missing")
    for name in ("libfmoe.so", "moefarm-compile", "moefarm-hip-nvidia.so", "libcjson.so.1",
                 "libsodium.so.23"):
        if f"moefarm/lib/{name}" not in names:
            problems.append(f"{name} is missing")
    points = {point.group: point for point in package.entry_points}
    for group in ("sglang.srt.plugins", "vllm.general_plugins"):
        if group not in points or f"{points[group].module.replace('.', '/')}.py" not in names:
            problems.append(f"the entry point of {group} names no module of the wheel")
    print("\n".join(problems) or f"{len(files)} files")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
