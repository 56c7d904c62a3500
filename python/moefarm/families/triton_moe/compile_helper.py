"""Helper process of compile_pool.py: compiles candidates without a launch.

Input lines: {path, module, shape} first, then {name} for each candidate. Output: one line {error} after the
import of the module, and one for each candidate; error is "" on success."""
from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Callable


def _attempt(action: Callable[[], object]) -> str:
    """Returns the reason of a failure, or ""."""
    try:
        action()
        return ""
    except Exception as error:
        return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def main() -> None:
    # frameworks print to standard output, which then goes to standard error
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(error: str) -> None:
        answers.write(json.dumps({"error": error}) + "\n")
        answers.flush()

    job = json.loads(sys.stdin.readline())
    sys.path[:] = job["path"]
    answer(_attempt(lambda: importlib.import_module(job["module"]).family))
    from moefarm.families.triton_moe.framework import compile_only
    from moefarm.family import Shape
    framework = importlib.import_module(job["module"]).family.framework
    shape = Shape.parse(job["shape"])
    for line in sys.stdin:
        name = json.loads(line)["name"]
        answer(_attempt(lambda: compile_only(framework, shape, name)))


if __name__ == "__main__":
    main()
