"""A Python family with one kernel: a whole bf16 MoE layer in plain Python, with the standard library only.

    moefarm-worker --device cpu:0 --python /usr/bin/python3 --family-py examples/family_plain.py …

The farm creates the data, verifies the output and measures the time, as for every candidate. Replace `launch`
by a call into your framework to compare the framework's kernels with all others (docs/architecture.md)."""
import array, math
from operator import mul

from moefarm.family import Family, Kernel, Rejection

MAX_MACS = 4_000_000


def floats(bf16):
    """Converts bfloat16, the upper half of a float32, to float32."""
    return array.array("f", array.array("I", (v << 16 for v in bf16)).tobytes())


def bfloat16(values):
    """Rounds float32 to the nearest bfloat16, ties to even."""
    bits = array.array("I", array.array("f", values).tobytes())
    return array.array("H", ((b + 0x7FFF + (b >> 16 & 1)) >> 16 for b in bits))


def silu(v):
    return v / (1 + math.exp(-v)) if v > -700 else 0.0


class PlainLayer(Kernel):
    def __init__(self, shape):
        self.shape = shape

    def launch(self, tensors, stream):
        H, I, k = self.shape.model_dim, self.shape.inter_dim, self.shape.topk
        x, ids, weights, w1, w2, y = (tensors[name].memory() for name in
                                      ("x", "topk_ids", "topk_weights", "w1", "w2", "y"))
        for t in range(self.shape.token):
            row, out = floats(x[t * H:(t + 1) * H]), [0.0] * H
            for e, weight in zip(ids[t * k:(t + 1) * k], weights[t * k:(t + 1) * k]):
                gate_up = floats(w1[e * 2 * I * H:(e + 1) * 2 * I * H])     # [2I, H], gate rows first
                g = [sum(map(mul, row, gate_up[n * H:(n + 1) * H])) for n in range(2 * I)]
                h = [silu(gate) * up for gate, up in zip(g, g[I:])]
                down = floats(w2[e * H * I:(e + 1) * H * I])                # [H, I]
                for n in range(H):
                    out[n] += weight * sum(map(mul, h, down[n * I:(n + 1) * I]))
            y[t * H:(t + 1) * H] = bfloat16(out)


class Plain(Family):
    name = "plain_py"

    def enumerate(self, shape, device):
        macs = 3 * shape.token * shape.topk * shape.model_dim * shape.inter_dim
        if device.vendor != "cpu":
            yield Rejection("py_layer", "device", f"runs on CPUs only, not on {device.name}")
        elif shape.is_quantised or shape.dtype != "torch.bfloat16":
            yield Rejection("py_layer", "dtype",
                            f"only unquantised torch.bfloat16, not {shape.q_dtype_a} with {shape.q_type}")
        elif shape.act_type != "ActivationType.Silu" or not shape.use_g1u1 or shape.doweight_stage1:
            yield Rejection("py_layer", "layer", "only Silu with use_g1u1=1 and doweight_stage1=0")
        elif shape.form:
            yield Rejection("py_layer", "form", f"only layers without a form, not '{shape.form}'")
        elif macs > MAX_MACS:
            yield Rejection("py_layer", "size",
                            f"{macs} multiply-adds take minutes in plain Python; the limit is {MAX_MACS}")
        else:
            yield shape.candidate("py_layer")

    def open(self, candidate, shape):
        return PlainLayer(shape)


family = Plain()
