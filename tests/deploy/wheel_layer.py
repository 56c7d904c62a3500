"""Runs one layer on the CPU through the installed package moefarm, without torch, and compares it with a
reference in plain Python. Prints what it did."""
import array
import ctypes
import math
import random
import struct
import sys

import moefarm
from moefarm import _library

TOKENS, HIDDEN, INTER, EXPERTS, TOPK = 3, 64, 32, 4, 2
FLOAT32 = 2  # enum fmoe_type


def to_bf16(value: float) -> int:
    return (struct.unpack("<I", struct.pack("<f", value))[0] + 0x8000) >> 16


def from_bf16(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits << 16))[0])


def random_bf16(source: random.Random, n: int, scale: float) -> "array.array[int]":
    return array.array("H", [to_bf16(source.gauss(0, scale)) for _ in range(n)])


def reference(x, w1, w2, ids, weights):  # type: ignore[no-untyped-def]
    y = [[0.0] * HIDDEN for _ in range(TOKENS)]
    rows = [[from_bf16(v) for v in x[t * HIDDEN:(t + 1) * HIDDEN]] for t in range(TOKENS)]
    for t in range(TOKENS):
        for k in range(TOPK):
            expert, weight = ids[t * TOPK + k], weights[t * TOPK + k]
            up = [sum(a * from_bf16(w1[(expert * 2 * INTER + i) * HIDDEN + j]) for j, a in enumerate(rows[t]))
                  for i in range(2 * INTER)]
            h = [up[i] / (1 + math.exp(-up[i])) * up[INTER + i] for i in range(INTER)]
            for j in range(HIDDEN):
                y[t][j] += weight * sum(h[i] * from_bf16(w2[(expert * HIDDEN + j) * INTER + i])
                                        for i in range(INTER))
    return y


def address(data: "array.array[int]") -> int:
    return data.buffer_info()[0]


def packed(library, layer, which: int, data):  # type: ignore[no-untyped-def]
    """The weight in the layer's layout."""
    to = array.array("H", bytes(2 * len(data)))
    result = library.fmoe_layer_pack(layer, which, _library.Parts(address(data)), _library.Parts(address(to)))
    _library.check(result, what=f"packing w{which}")
    return to


def main() -> None:
    library, error = _library.load(), _library.ErrorText()
    handle, layer = ctypes.c_void_p(), ctypes.c_void_p()
    _library.check(library.fmoe_open(b"cpu:0", None, 0, ctypes.byref(error), ctypes.byref(handle)), error)
    bf16 = b"torch.bfloat16"
    model = _library.LayerModel(HIDDEN, INTER, EXPERTS, TOPK, b"ActivationType.Silu", bf16, bf16, bf16,
                                b"QuantType.No", 1, 0, b"", TOKENS)
    _library.check(library.fmoe_layer_open(handle, ctypes.byref(model), ctypes.byref(error),
                                           ctypes.byref(layer)), error)
    source = random.Random(1)
    x = random_bf16(source, TOKENS * HIDDEN, 1)
    w1 = random_bf16(source, EXPERTS * 2 * INTER * HIDDEN, 0.1)
    w2 = random_bf16(source, EXPERTS * HIDDEN * INTER, 0.1)
    ids = array.array("i", [id for _ in range(TOKENS) for id in source.sample(range(EXPERTS), TOPK)])
    weights = array.array("f", [0.25, 0.75] * TOKENS)
    y = array.array("H", bytes(2 * TOKENS * HIDDEN))
    own = [packed(library, layer, 1, w1), packed(library, layer, 2, w2)]
    n = library.fmoe_workspace_bytes(layer)
    workspace = ctypes.create_string_buffer(n + 64)
    call = _library.Call(tokens=TOKENS, x=address(x), ids=address(ids), weights=address(weights),
                         weights_type=FLOAT32, w1=_library.Parts(address(own[0])),
                         w2=_library.Parts(address(own[1])), y=address(y), workspace_bytes=n,
                         workspace=(ctypes.addressof(workspace) + 63) // 64 * 64)
    _library.check(library.fmoe_run(layer, ctypes.byref(call)), what="the call")
    expected = [value for row in reference(x, w1, w2, ids, weights) for value in row]
    found = [from_bf16(bits) for bits in y]
    worst = math.dist(found, expected) / math.hypot(*expected)
    served = _library.Served()
    library.fmoe_served(layer, TOKENS, ctypes.byref(served))
    library.fmoe_layer_close(layer)
    library.fmoe_close(handle)
    if not worst < 0.01:
        sys.exit(f"wheel_layer: relative error {worst}")
    if "torch" in sys.modules or not moefarm.Client().__class__:
        sys.exit("wheel_layer: the package imported torch")
    print(f"{_library.find()}: {served.pipeline.decode()}, relative error {worst:.4f}")


if __name__ == "__main__":
    main()
