"""A farm for tests: moefarmd on free ports with workers, in a temporary folder.

    MOEFARM_BUILD=build/dev    the build whose programs run
"""
from __future__ import annotations

import os
import pathlib
import subprocess
import tempfile
import time
from typing import Any, List, Mapping, Optional, Sequence

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("MOEFARM_BUILD", ROOT / "build/dev"))
MISSING = "" if (BUILD / "server/moefarmd").exists() else f"{BUILD} is not built"
HEAD = ("token,model_dim,inter_dim,expert,topk,act_type,dtype,q_dtype_a,q_dtype_w,q_type,use_g1u1,"
        "doweight_stage1")
START_S = 60


class Farm:
    """moefarmd and its workers. `url` is the API's address."""

    def __init__(self, *options: str, scheme: str = "http", devices: Sequence[str] = ("cpu:0",),
                 worker_options: Sequence[str] = (), environment: Optional[Mapping[str, str]] = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="moefarm-farm-")
        self.folder = pathlib.Path(self._folder.name)
        # runners end without deleting their temporary folders
        self.environment = {**os.environ, "TMPDIR": self._folder.name, **(environment or {})}
        self._processes: List[Any] = []
        ports = self.folder / "ports"
        self.start("server/moefarmd", "--state", str(self.folder / "state"), "--http", "127.0.0.1:0", "--hub",
                   "127.0.0.1:0", "--port-file", str(ports), *options)
        text = self._wait_for(ports, "hub")
        self.ports = dict(line.replace("=", " ").split() for line in text.splitlines())
        self.url = f"{scheme}://127.0.0.1:{self.ports['http']}"
        for i, device in enumerate(devices):
            self.start("worker/moefarm-worker", "--coordinator", f"tcp://127.0.0.1:{self.ports['hub']}",
                       "--device", device, "--name", f"w{i}", "--spool", str(self.folder / f"spool{i}"),
                       "--lock-dir", str(self.folder), "--no-sandbox", *worker_options)

    def start(self, program: str, *arguments: str) -> None:
        log = self.folder / f"{pathlib.Path(program).name}-{len(self._processes)}.log"
        with open(log, "wb") as file:
            self._processes.append(subprocess.Popen([str(BUILD / program), *arguments], stdout=file,
                                                    stderr=file, env=self.environment))

    def _wait_for(self, path: pathlib.Path, text: str) -> str:
        end = time.monotonic() + START_S
        while not path.exists() or text not in path.read_text():
            if time.monotonic() > end or self._processes[0].poll() is not None:
                raise AssertionError(f"moefarmd did not start: {self.logs()}")
            time.sleep(0.02)
        return path.read_text()

    def logs(self) -> str:
        return "".join(path.read_text()[-2000:] for path in sorted(self.folder.glob("*.log")))

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
            process.wait(30)
        self._folder.cleanup()
