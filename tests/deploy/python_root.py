#!/usr/bin/python3
"""Makes a root file system that holds only Debian's Python: copies the files of this machine's packages, so
that no network is needed.

    python_root.py FOLDER [PACKAGE…]

PACKAGE: more packages than python3 and python3-venv. Exits with 77 if one is not installed."""
import pathlib
import re
import subprocess
import sys
from typing import Dict, List, Set

PACKAGES = ("base-files", "base-passwd", "dash", "libc-bin", "coreutils", "python3", "python3-venv")
SKIPPED = 77


def installed() -> Dict[str, List[List[str]]]:
    """Each installed package and each name that it provides, with its dependencies: lists of alternatives."""
    fields = "${db:Status-Status}\t${Package}\t${Provides}\t${Pre-Depends}, ${Depends}\n"
    found: Dict[str, List[List[str]]] = {}
    for line in subprocess.run(["dpkg-query", "-W", "-f", fields], text=True, capture_output=True,
                               check=True).stdout.splitlines():
        status, package, provides, depends = line.split("\t")
        if status != "installed":
            continue
        groups = [[re.split(r"[\s:(]", word.strip())[0] for word in group.split("|")]
                  for group in depends.split(",") if group.strip()]
        found[package] = groups
        for name in provides.split(","):
            if name.strip():
                found.setdefault(name.split()[0], [[package]])
    return found


def closure(wanted: List[str], known: Dict[str, List[List[str]]]) -> Set[str]:
    chosen: Set[str] = set()
    while wanted:
        package = wanted.pop()
        if package in chosen:
            continue
        chosen.add(package)
        for alternatives in known[package]:
            wanted += [name for name in alternatives if name in known][:1]
    return chosen


def main() -> int:
    root, wanted, known = pathlib.Path(sys.argv[1]), [*PACKAGES, *sys.argv[2:]], installed()
    missing = [package for package in wanted if package not in known]
    if missing:
        print(f"skipped: {missing[0]} is missing (package {missing[0]})")
        return SKIPPED
    lists = subprocess.run(["dpkg-query", "-L", *sorted(closure(wanted, known) & real_packages())], text=True,
                           capture_output=True, check=True).stdout.split("\n")
    names = {str(pathlib.PurePosixPath(name).relative_to("/")) for name in lists if name.startswith("/")}
    files = sorted(name for name in names if name != "." and not is_folder(pathlib.Path("/") / name))
    root.mkdir(parents=True, exist_ok=True)
    for name in ("usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "dev", "proc", "tmp", "etc"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    # paths such as /lib/x are copied through the links above, so that they land below /usr
    pack = subprocess.Popen(["tar", "-C", "/", "-cf", "-", "--no-recursion", "--ignore-failed-read", "-T",
                             "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                            text=True)
    unpack = subprocess.Popen(["tar", "-C", str(root), "-xf", "-", "--keep-directory-symlink"],
                              stdin=pack.stdout)
    assert pack.stdin
    pack.stdin.write("\n".join(files))
    pack.stdin.close()
    return unpack.wait()


def real_packages() -> Set[str]:
    return set(subprocess.run(["dpkg-query", "-W", "-f", "${Package}\n"], text=True, capture_output=True,
                              check=True).stdout.split())


def is_folder(path: pathlib.Path) -> bool:
    return path.is_dir() and not path.is_symlink()


if __name__ == "__main__":
    sys.exit(main())
