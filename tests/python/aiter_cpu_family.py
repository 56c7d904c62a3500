"""Family `aiter` on a CPU worker, for test_aiter_farm.py: AITER's real sources on a fake host
(aiter_host.py), with stand-ins for the operators (aiter_ops.py). AITER_FLAWS plants flaws by a part of the
kernel's name, such as "crash:32x128_3tg_pf2,hang:256x32x64x64":

    wrong     the result has the wrong sign
    crash     the process kills itself
    hang      the operator does not return
    raise     the operator raises an exception"""
import os
import pathlib
import signal
import sys
import time
from typing import Any, Iterable, Mapping

# A runner's interpreter ignores PYTHONPATH.
sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent),
                *filter(None, os.environ.get("PYTHONPATH", "").split(":"))]
import aiter_host  # noqa: E402

HOST = aiter_host.install("gfx942", 304)

import dataclasses  # noqa: E402

from moefarm.families.aiter import adapter, source  # noqa: E402
from moefarm.family import Device, Shape  # noqa: E402

import aiter_ops  # noqa: E402


FLAWS = [flaw.split(":") for flaw in os.environ.get("AITER_FLAWS", "").split(",") if flaw]


class Flawed(aiter_ops.Ops):
    def _begin(self, name: str) -> None:
        flaw = next((flaw for flaw, kernel in FLAWS if kernel in name), "")
        self.break_result, self.fail = flaw == "wrong", flaw == "raise"
        if flaw == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if flaw == "hang":
            time.sleep(3600)
        super()._begin(name)


class OnCpu(adapter.AiterFamily):
    """The worker's device is a CPU; AITER sees a gfx942."""

    def enumerate(self, shape: Shape, device: Device) -> Iterable[adapter.Offer]:
        gpu = dataclasses.replace(device, name="hip:amd:0", gfx="gfx942", cu_num=304)
        return super().enumerate(shape, gpu)

    def open_row(self, row: Mapping[str, Any], shape: Shape) -> adapter.FusedMoe:
        return super().open_row({**row, "gfx": "gfx942", "cu_num": 304}, shape)


OPS = Flawed(source.load())
family = OnCpu()
