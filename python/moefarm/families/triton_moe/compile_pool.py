"""Compiles candidates in helper processes, one candidate at a time in each. Needs the standard library only.

A helper (compile_helper.py) reads one request per line from its standard input and answers each with one
line. A helper that is silent for too long is ended; its candidate is then compiled when it is opened."""
from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from typing import Dict, Iterator, List, Optional, Sequence

HELPERS_MAX = 8
SILENCE_S = 100  # the runner itself may be silent for two minutes
HELPER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "compile_helper.py")


class _Helper:
    def __init__(self, module: str, shape: str) -> None:
        self.process = subprocess.Popen([sys.executable, "-I", HELPER], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.is_ready = False  # true once it has imported the module
        self.name = ""  # name of the candidate that it compiles
        self.deadline = 0.0  # time.monotonic() until which it may be silent
        self._send({"path": sys.path, "module": module, "shape": shape})

    def _send(self, message: Dict[str, object]) -> None:
        self.deadline = time.monotonic() + SILENCE_S
        assert self.process.stdin
        try:
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the helper has ended, which `answer` reports

    def compile(self, name: str) -> None:
        self.name = name
        self._send({"name": name})

    def answer(self) -> Optional[str]:
        """Reads the answer: "" or the reason of a failure. Returns None if the helper has ended."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        return str(json.loads(line)["error"]) if line else None

    def end(self) -> None:
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                with contextlib.suppress(BrokenPipeError):  # a request that it did not read
                    pipe.close()
        self.process.wait()


def helper_count(n: int) -> int:
    """Half of the CPUs, because the measuring thread and the worker need some."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(HELPERS_MAX, cpus // 2, n))


def _report(name: str, error: str) -> None:
    print(f"precompile {name or 'helper'}: {error}", file=sys.stderr, flush=True)


class _Pool:
    def __init__(self, module: str, shape: str, names: Sequence[str]) -> None:
        self.module, self.shape = module, shape
        self.waiting: List[str] = list(reversed(names))
        self.selector = selectors.DefaultSelector()
        self.helpers: List[_Helper] = []
        for _ in range(helper_count(len(names))):
            self._start()

    def _start(self) -> None:
        helper = _Helper(self.module, self.shape)
        self.helpers.append(helper)
        self.selector.register(helper.process.stdout or -1, selectors.EVENT_READ, helper)

    def _drop(self, helper: _Helper) -> None:
        """Ends a helper. A ready one is replaced, because another candidate need not crash."""
        self.selector.unregister(helper.process.stdout or -1)
        self.helpers.remove(helper)
        helper.end()
        if helper.is_ready and self.waiting:
            self._start()

    def _take(self, helper: _Helper) -> None:
        """Takes the answer of a helper and gives it the next candidate."""
        error = helper.answer()
        failed_import = error and not helper.is_ready
        if error or error is None:
            _report(helper.name, error or "the helper process ended")
        if error is None or failed_import or not self.waiting:
            self._drop(helper)
        else:
            helper.is_ready = True
            helper.compile(self.waiting.pop())

    def run(self) -> Iterator[str]:
        while self.helpers:
            timeout = min(helper.deadline for helper in self.helpers) - time.monotonic()
            for key, _ in self.selector.select(max(0.0, timeout)):
                name = key.data.name
                self._take(key.data)
                yield name
            for helper in [h for h in self.helpers if h.deadline <= time.monotonic()]:
                _report(helper.name, f"no answer for {SILENCE_S} s")
                self._drop(helper)
                yield helper.name

    def close(self) -> None:
        self.waiting.clear()
        for helper in list(self.helpers):
            self._drop(helper)
        self.selector.close()


def compile_all(module: str, shape: str, names: Sequence[str]) -> Iterator[str]:
    """Yields the name of each candidate that was compiled or failed, and "" when a helper has started.
    Failures are printed on stderr only; they show again, as results, when the candidates are opened."""
    if not names:
        return
    pool = _Pool(module, shape, names)
    try:
        yield from pool.run()
    finally:
        pool.close()
