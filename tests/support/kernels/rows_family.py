"""Families `aiter`, `vllm`, `sglang` and `steps` for check_run_operators.c. Their production operators
compute the layer in plain Python. The name of a kernel, or a number of stages, makes a row misbehave:

    wrong    half of the tokens get the results of the others
    refuse   raises an exception, as num_stages 9 does
    crash    the process kills itself"""
import os
import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "examples"))
from family_plain import Plain, PlainLayer  # noqa: E402


class Wrong(PlainLayer):
    def launch(self, tensors, stream):
        super().launch(tensors, stream)
        y = tensors["y"].memory()
        y[:len(y) // 2] = y[len(y) // 2:]


class Operator(Plain):
    def __init__(self, name):
        self.name = name

    def enumerate(self, shape, device):
        return []

    def open_row(self, row, shape):
        kernel = row.get("config", row.get("kernelName1", ""))
        print(f"{self.name}: {sorted(row)}")
        if kernel == "refuse" or "_s9" in kernel:
            raise ValueError(f"no kernel {kernel}")
        if kernel == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        return (Wrong if kernel == "wrong" else PlainLayer)(shape)


class Steps(Plain):
    name = "steps"


families = [Operator("aiter"), Operator("vllm"), Operator("sglang"), Steps()]
