"""moefarm.Layer with each format of quantised weights, quantised by moefarm.ops.quantise, against a reference
of torch on the dequantised weights. On the CPU, or on the device that MOEFARM_TEST_TORCH_DEVICE names."""
import unittest
from typing import Any, NamedTuple, Optional

try:
    import torch
except ImportError as error:
    raise unittest.SkipTest(f"no PyTorch: {error}") from error

import moe_reference as reference
import moefarm
from ops_reference import dequantise
from test_layer import DEVICE, E, H, I, K, inputs, weights_of

BF16, FP8, FP4, INT8, INT4 = ("torch.bfloat16", "torch.float8_e4m3fn", "torch.float4_e2m1fn_x2", "torch.int8",
                              "torch.int4")


class Format(NamedTuple):
    quant: str
    activations: str  # data type
    weights: str
    codec: str  # of the weights, in moefarm.ops.quantise
    limit: float  # relative error; the activations are quantised too
    calibrated: bool = False


FORMATS = [
    Format("per_1x128", FP8, FP8, "fp8fn_128x128", 0.06),
    Format("per_token", FP8, FP8, "fp8fn_token", 0.06),
    Format("per_tensor", FP8, FP8, "fp8fn_tensor", 0.06),
    Format("per_token", INT8, INT8, "int8_token", 0.03),
    Format("per_1x32", BF16, INT4, "int4_32", 0.02),
    Format("per_1x32", BF16, FP4, "mxfp4", 0.02),
    Format("per_1x32", FP8, FP4, "mxfp4", 0.08),
    Format("per_1x32", FP8, FP8, "mxfp8", 0.08),
    Format("per_1x32", FP4, FP4, "mxfp4", 0.4),
    Format("per_1x16", BF16, FP4, "nvfp4", 0.02),
    Format("per_1x16", FP4, FP4, "nvfp4", 0.3, calibrated=True),
]


def calibration_of(x: torch.Tensor, w1: torch.Tensor) -> torch.Tensor:
    """The two global factors of NVFP4's activations: of x, and of any expert's intermediate result."""
    h = reference.silu_gate(x.float() @ w1.float().transpose(1, 2))
    return torch.stack([moefarm.ops.nvfp4_factor(x), moefarm.ops.nvfp4_factor(h.flatten(0, 1))])


class Formats(unittest.TestCase):
    def test_each_format(self) -> None:
        for f in FORMATS:
            with self.subTest(f"{f.quant} {f.activations} {f.weights}"):
                self.run_format(f)

    def run_format(self, f: Format) -> None:
        w1, w2 = weights_of()
        (q1, s1, f1), (q2, s2, f2) = (moefarm.ops.quantise(w, f.codec) for w in (w1, w2))
        d1, d2 = (dequantise(*parts, f.codec) for parts in ((q1, s1, f1), (q2, s2, f2)))
        x, ids, p = inputs(24)
        calibration: Optional[torch.Tensor] = calibration_of(x, d1) if f.calibrated else None
        layer = moefarm.Layer(None, model_dim=H, inter_dim=I, experts=E, topk=K, quant=f.quant, max_tokens=32,
                              activation_dtype=f.activations, weight_dtype=f.weights, device=DEVICE)
        layer.pack(q1, q2, s1, s2, w1_factor=f1, w2_factor=f2, calibration=calibration)
        error = reference.relative_error(layer(x, ids, p), reference.moe(x, d1, d2, ids, p))
        print(f"{f.quant} {f.activations} x {f.weights}: error {error:.4f}")
        self.assertLess(error, f.limit)

    def test_dequantised_weights(self) -> None:
        """Guards the reference: dequantised weights are close to the weights."""
        for f in FORMATS:
            w = weights_of()[0]
            q, scale, factor = moefarm.ops.quantise(w, f.codec)
            error = reference.relative_error(dequantise(q, scale, factor, f.codec), w.float())
            self.assertLess(error, 0.2 if "4" in f.weights else 0.04, f.codec)


class Errors(unittest.TestCase):
    def refused(self, text: str, layer: moefarm.Layer, *parts: Any, **named: Any) -> None:
        with self.assertRaisesRegex(moefarm.Error, text):
            layer.pack(*parts, **named)

    def test_missing_parts(self) -> None:
        layer = moefarm.Layer(None, model_dim=H, inter_dim=I, experts=E, topk=K, quant="per_1x16",
                              activation_dtype=FP4, weight_dtype=FP4, device=DEVICE)
        (q1, s1, f1), (q2, s2, f2) = (moefarm.ops.quantise(w, "nvfp4") for w in weights_of())
        self.refused("w1_scale is missing: this layer needs", layer, q1, q2)
        self.refused("w2_factor is missing: this layer needs 32 bytes", layer, q1, q2, s1, s2, w1_factor=f1)
        layer.pack(q1, q2, s1, s2, w1_factor=f1, w2_factor=f2)
        with self.assertRaisesRegex(moefarm.Error, "no calibration: pass it to pack, or call calibrate"):
            layer(*inputs(1))
        self.refused(r"calibration is \[1\]: expected the factors", layer, q1, q2, s1, s2, w1_factor=f1,
                     w2_factor=f2, calibration=torch.ones(1))


if __name__ == "__main__":
    unittest.main()
