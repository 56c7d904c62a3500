#!/usr/bin/env python3
"""A foreign runner with one step: a whole bf16 MoE layer in plain Python, with the standard library only.

    moefarm-worker --device cpu:0 --runner "python3 examples/python_runner.py" …

The farm creates the data, verifies the output by the same gates as for any other candidate, and times the
step (docs/protocol.md). Replace `layer` by a call into your framework to compare the framework's kernels
with all other candidates."""
import array, json, math, mmap, os, socket
from operator import mul

NAME, STEP, MAX_MACS = "python", "py_layer", 4_000_000
# The last column, form, is optional.
COLUMNS = ("token model_dim inter_dim expert topk act_type dtype q_dtype_a q_dtype_w q_type "
           "use_g1u1 doweight_stage1 form").split()


def floats(bf16):
    """Converts bfloat16, the upper half of a float32, to float32."""
    return array.array("f", array.array("I", (v << 16 for v in bf16)).tobytes())


def bfloat16(values):
    """Rounds float32 to the nearest bfloat16, ties to even."""
    bits = array.array("I", array.array("f", values).tobytes())
    return array.array("H", ((b + 0x7FFF + (b >> 16 & 1)) >> 16 for b in bits))


def silu(v):
    return v / (1 + math.exp(-v)) if v > -700 else 0.0


def layer(s, x, ids, weights, w1, w2, y):
    H, I, k = s["model_dim"], s["inter_dim"], s["topk"]
    for t in range(s["token"]):
        row, out = floats(x[t * H:(t + 1) * H]), [0.0] * H
        for e, weight in zip(ids[t * k:(t + 1) * k], weights[t * k:(t + 1) * k]):
            gate_up = floats(w1[e * 2 * I * H:(e + 1) * 2 * I * H])         # [2I, H], gate rows first
            g = [sum(map(mul, row, gate_up[n * H:(n + 1) * H])) for n in range(2 * I)]
            h = [silu(gate) * up for gate, up in zip(g, g[I:])]
            down = floats(w2[e * H * I:(e + 1) * H * I])                    # [H, I]
            for n in range(H):
                out[n] += weight * sum(map(mul, h, down[n * I:(n + 1) * I]))
        y[t * H:(t + 1) * H] = bfloat16(out)


def parse(shape):
    s = dict(zip(COLUMNS, shape.split(",")))
    return {key: int(v) if v.isdigit() else v for key, v in s.items()}


def refuse(s):
    """Returns (rule, reason) if the step cannot compute this shape, else None."""
    work = 3 * s["token"] * s["topk"] * s["model_dim"] * s["inter_dim"]
    if s["q_type"] != "QuantType.No" or s["dtype"] != "torch.bfloat16":
        return "dtype", f"only unquantised torch.bfloat16, not {s['q_dtype_a']} with {s['q_type']}"
    if s["act_type"] != "ActivationType.Silu" or not s["use_g1u1"] or s["doweight_stage1"]:
        return "layer", "only Silu with use_g1u1=1 and doweight_stage1=0"
    if s.get("form"):
        return "form", f"only layers without a form, not '{s['form']}'"
    if work > MAX_MACS:
        return "size", f"{work} multiply-adds would take minutes in plain Python; the limit is {MAX_MACS}"


def enumerate_steps(m, send):
    s = parse(m["shape"])
    rejection = refuse(s)
    if rejection:
        send(op="reject", family=NAME, kernel=STEP, rule=rejection[0], reason=rejection[1])
    else:
        macs = 3 * s["token"] * s["topk"] * s["model_dim"] * s["inter_dim"]
        send(op="step", step={
            "name": STEP, "family": NAME, "stage": "one", "block_m": 0, "ksplit": 0, "workspace": 0,
            "covers": "sort+gather+gemm1+act+gemm2+weight+combine",
            "needs": ["x/bf16/none/token", "topk/index/none/token", "w1/bf16/none/row", "w2/bf16/none/row"],
            "gives": ["y/bf16/none/token"], "flops": 2 * macs, "bytes": 0, "reorder_tolerance": 0})
    send(op="enumerated")


def view(part, writable, kind):
    """Maps a buffer part, which is a range of a file, as an array of its elements."""
    fd = os.open(part["path"], os.O_RDWR if writable else os.O_RDONLY)
    start = part["offset"] % mmap.PAGESIZE
    window = mmap.mmap(fd, part["bytes"] + start, mmap.MAP_SHARED,
                       mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0), offset=part["offset"] - start)
    os.close(fd)
    return memoryview(window)[start:start + part["bytes"]].cast(kind)


def load(m):
    """Returns the shape, then the step's inputs and outputs in order: x, ids, weights, w1, w2, y."""
    kinds = {"ids": "i", "weights": "f"}
    return [parse(m["shape"])] + [view(p, b["side"] == "gives", kinds.get(p["name"], "H"))
                                  for b in m["buffers"] for p in b["parts"]]


def main():
    peer = socket.socket(fileno=int(os.environ["MOEFARM_RUNNER_FD"]))
    lines, loaded = peer.makefile("r", encoding="utf-8"), {}

    def send(**message):
        peer.sendall((json.dumps(message) + "\n").encode())

    send(op="hello", protocol=1, name=NAME, revision="1", families=[NAME], can=["step"])
    for line in lines:
        m = json.loads(line)
        if m["op"] == "enumerate":
            enumerate_steps(m, send)
        elif m["op"] == "load":
            loaded[m["handle"]] = load(m)
            send(op="loaded", handle=m["handle"])
        elif m["op"] == "run":
            layer(*loaded[m["handle"]])
            send(op="ran", handle=m["handle"])
        elif m["op"] == "unload":
            loaded.pop(m["handle"], None)
            send(op="unloaded", handle=m["handle"])
        elif m["op"] == "stop":
            break


if __name__ == "__main__":
    main()
