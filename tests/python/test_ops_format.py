"""Routers, quantisation and orders of moefarm.ops against references of torch, on the CPU or on the device
that MOEFARM_TEST_TORCH_DEVICE names."""
import ctypes
import unittest
from typing import Callable, List, Tuple

try:
    import torch
except ImportError as error:
    raise unittest.SkipTest(f"no PyTorch: {error}") from error

import moefarm
import ops_reference as reference
from moefarm import ops
from moefarm.ops import _format, _native
from ops_reference import DEVICE

# Largest error of an element, as a fraction of the largest magnitude of its group.
FORMATS = {"fp8fn_tensor": 1 / 27, "fp8fn_token": 1 / 27, "fp8fn_128": 1 / 27, "fp8fn_128x128": 1 / 27,
           "fp8fnuz_tensor": 1 / 27, "fp8fnuz_token": 1 / 27, "fp8fnuz_128": 1 / 27,
           "fp8fnuz_128x128": 1 / 27,
           "int8_tensor": 1 / 250, "int8_token": 1 / 250, "int8_128": 1 / 250, "int8_128x128": 1 / 250,
           "mxfp8": 1 / 14, "mxfp4": 1 / 3, "nvfp4": 1 / 5, "int4_32": 1 / 13, "int4_channel": 1 / 13}


def logits_of(tokens: int, experts: int, seed: int = 4) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(tokens, experts, generator=g).to(DEVICE)


Cases = List[Tuple[str, Callable[[], object]]]  # a part of the message, and a call that is refused


class Routers(unittest.TestCase):
    def check(self, out: "tuple[torch.Tensor, torch.Tensor]",
              expected: "tuple[torch.Tensor, torch.Tensor]") -> None:
        self.assertEqual(out[1].tolist(), expected[1].tolist())
        torch.testing.assert_close(out[0], expected[0], rtol=1e-5, atol=1e-6)

    def test_softmax(self) -> None:
        for tokens, experts, topk in ((1, 8, 2), (65, 128, 8), (7, 512, 10)):
            logits = logits_of(tokens, experts)
            scores = logits.softmax(-1)
            for renormalise in (False, True):
                self.check(ops.topk_softmax(logits, topk, renormalise),
                           reference.route(scores, topk, None, renormalise))

    def test_sigmoid(self) -> None:
        logits, bias = logits_of(33, 256), logits_of(1, 256, 5).flatten()
        scores = logits.sigmoid()
        self.check(ops.topk_sigmoid(logits, 8, bias, scale=2.5),
                   reference.route(scores, 8, bias, True, scale=2.5))
        self.check(ops.topk_sigmoid(logits, 8, bias, True, 8, 4, scale=2.5),
                   reference.route(scores, 8, bias, True, 8, 4, 2.5))
        self.check(ops.topk_sigmoid(logits, 1, renormalize=False), reference.route(scores, 1))

    def test_sqrt_softplus(self) -> None:
        logits, bias = logits_of(33, 384) * 8, logits_of(1, 384, 5).flatten()
        scores = torch.nn.functional.softplus(logits).sqrt()
        self.check(ops.topk_sqrt_softplus(logits, 6, bias, scale=1.5),
                   reference.route(scores, 6, bias, True, scale=1.5))

    def test_types(self) -> None:
        logits = logits_of(9, 16).bfloat16()
        weights, ids = ops.topk_softmax(logits, 3, indices_dtype=torch.int64)
        self.assertEqual((weights.dtype, ids.dtype), (torch.float32, torch.int64))
        self.check((weights, ids), reference.route(logits.float().softmax(-1), 3))

    def test_ties_and_nan(self) -> None:
        logits = torch.tensor([[1.0, 2.0, 2.0, float("nan")], [float("inf")] * 3 + [0.0]], device=DEVICE)
        weights, ids = ops.topk_softmax(logits, 3)
        self.assertEqual(ids.tolist(), [[1, 2, 0], [0, 1, 2]])
        self.assertTrue(weights.isfinite().all())

    def test_refusals(self) -> None:
        with self.assertRaisesRegex(moefarm.Error, "topk 17"):
            ops.topk_softmax(logits_of(2, 16), 17)
        with self.assertRaisesRegex(moefarm.Error, "5 groups"):
            ops.topk_sigmoid(logits_of(2, 16), 2, num_expert_group=5, topk_group=2)
        with self.assertRaisesRegex(moefarm.Error, "dtype of logits"):
            ops.topk_softmax(logits_of(2, 16).half(), 2)


class Quantise(unittest.TestCase):
    def test_values(self) -> None:
        for format, limit in FORMATS.items():
            for shape in ((1, 128), (5, 256), (2, 130, 400)):
                with self.subTest(f"{format} {shape}"):
                    if DEVICE != "cpu" and torch.version.hip is None and format.startswith("fp8fnuz"):
                        continue
                    self.check(format, limit, torch.randn(shape).bfloat16().to(DEVICE))

    def check(self, format: str, limit: float, x: torch.Tensor) -> None:
        q, scale, factor = ops.quantise(x, format)
        y = reference.dequantise(q, scale, factor, format)
        self.assertEqual((factor is None), format != "nvfp4")
        self.assertEqual(q.shape[-1], x.shape[-1] // (2 if q.dtype == torch.uint8 else 1))
        self.assertLess(float((y - x.float()).abs().max() / x.float().abs().max()), limit)
        self.assertLess(float((y - x.float()).norm() / x.float().norm()), 3 * limit)

    def test_sizes_equal_libfmoes(self) -> None:
        self.assertEqual(set(FORMATS), set(_format.FORMATS))
        for format in FORMATS:
            for rows, cols in ((1, 8), (130, 400)):
                sizes, library = _native.Quantised(), _native.library()
                self.assertEqual(library.fmoe_op_quantised_sizes(format.encode(), rows, cols,
                                                                 ctypes.byref(sizes), None), 0)
                q, scale = _format._outputs(torch.empty(rows, cols), format)
                self.assertEqual((q.shape[1] * q.element_size(), scale.element_size(), *scale.shape),
                                 (sizes.row_bytes, sizes.scale_bytes, sizes.scale_rows, sizes.scale_cols))

    def test_elements_equal_torch(self) -> None:
        """Formats that torch has a rounding of its own for. The expected values are computed on the CPU,
        because CUDA's division by a number multiplies by its inverse."""
        x = torch.randn(7, 256).bfloat16()
        q, scale = (y.cpu() for y in ops.quantise(x.to(DEVICE), "fp8fn_token")[:2] if y is not None)
        amax = x.float().abs().amax(-1, keepdim=True)
        self.assertTrue(torch.equal(scale, amax / 448))
        self.assertTrue(torch.equal(q.float(), (x.float() / scale).to(torch.float8_e4m3fn).float()))
        q, scale = (y.cpu() for y in ops.quantise(x.to(DEVICE), "int8_128")[:2] if y is not None)
        groups = x.float().view(7, 2, 128)
        self.assertTrue(torch.equal(scale, groups.abs().amax(-1) / 127))
        self.assertTrue(torch.equal(q, (groups / scale.unsqueeze(-1)).round().view(7, 256).to(torch.int8)))
        scale = ops.quantise(x.to(DEVICE), "mxfp8")[1].cpu()
        expected = torch.exp2(torch.ceil(torch.log2(x.float().view(7, 8, 32).abs().amax(-1) / 448)))
        self.assertTrue(torch.equal(scale.float(), expected))

    def test_refusals(self) -> None:
        x = torch.zeros(2, 16).bfloat16().to(DEVICE)
        cases: Cases = [
            ("format is 'fp9'", lambda: ops.quantise(x, "fp9")),
            ("multiple of 8 columns", lambda: ops.quantise(x[:, :12].contiguous(), "int8_token")),
            ("dtype of x", lambda: ops.quantise(x.float(), "int8_token")),
            ("shape of x", lambda: ops.quantise(x[0], "int8_token"))]
        for what, call in cases:
            with self.subTest(what), self.assertRaisesRegex(moefarm.Error, what):
                call()


class Orders(unittest.TestCase):
    def test_weights(self) -> None:
        for dtype, cols in ((torch.uint8, 128), (torch.bfloat16, 96)):
            x = torch.randint(0, 255, (3, 64, cols), dtype=torch.uint8).to(DEVICE).to(dtype)
            self.assertTrue(torch.equal(ops.shuffle(x, "16x16"), reference.shuffle_16x16(x)))
            self.assertTrue(torch.equal(ops.unshuffle(ops.shuffle(x, "16x16"), "16x16", 64, cols), x))

    def test_a16w4(self) -> None:
        """Tiles of 16 rows by four parts of 16 bytes; gate tiles alternate with up tiles (ROCm/aiter,
        shuffle_weight_a16w4)."""
        x = torch.randint(0, 255, (2, 64, 128), dtype=torch.uint8).to(DEVICE)
        plain = x.view(2, 4, 16, 2, 4, 16).permute(0, 1, 3, 4, 2, 5).reshape(x.shape)
        self.assertTrue(torch.equal(ops.shuffle(x, "a16w4"), plain))
        gated = x.view(2, 2, 2, 16, 2, 4, 16).permute(0, 2, 1, 4, 5, 3, 6).reshape(x.shape)
        self.assertTrue(torch.equal(ops.shuffle(x, "a16w4_gu"), gated))
        self.assertTrue(torch.equal(ops.unshuffle(gated, "a16w4_gu", 64, 128), x))

    def test_swizzle(self) -> None:
        scales = torch.randint(0, 255, (3, 130, 7), dtype=torch.uint8).to(DEVICE)
        padded = torch.zeros(3, 256, 8, dtype=torch.uint8, device=DEVICE)
        padded[:, :130, :7] = scales
        swizzled = ops.swizzle_scales(scales)
        self.assertTrue(torch.equal(swizzled, torch.stack([reference.swizzle_32_4_4(m) for m in padded])))
        self.assertTrue(torch.equal(ops.unswizzle_scales(swizzled, 130, 7), scales))

    def test_quantised_scales(self) -> None:
        x = torch.randn(2, 128, 256).bfloat16().to(DEVICE)
        for format in ("mxfp4", "nvfp4"):
            scale = ops.quantise(x, format)[1]
            back = ops.unswizzle_scales(ops.swizzle_scales(scale), *scale.shape[-2:])
            self.assertTrue(torch.equal(back.view(torch.uint8), scale.view(torch.uint8)))

    def test_every_order_returns(self) -> None:
        for order in ("a16w4_scale", "e8m0", "e8m0_1250", "8_4"):
            x = torch.randint(0, 255, (2, 128, 16), dtype=torch.uint8).to(DEVICE)
            self.assertTrue(torch.equal(ops.unshuffle(ops.shuffle(x, order), order, 128, 16), x), order)

    def test_sizes_equal_libfmoes(self) -> None:
        for order in ("16x16", "a16w4", "e8m0", "e8m0_1250", "32_4_4", "8_4"):
            for rows, cols in ((128, 128), (416, 256)):
                n = ctypes.c_int64()
                self.assertEqual(_native.library().fmoe_op_shuffled_elements(
                    order.encode(), rows, cols, 1, ctypes.byref(n), None), 0)
                down, across = _format._padded(rows, cols, order)
                self.assertEqual(down * across, n.value, order)

    def test_refusals(self) -> None:
        x = torch.zeros(17, 32, dtype=torch.uint8).to(DEVICE)
        cases: Cases = [
            ("multiples of 16 rows", lambda: ops.shuffle(x, "16x16")),
            ("order '4x4'", lambda: ops.shuffle(x, "4x4")),
            ("shape of x", lambda: ops.unswizzle_scales(x, 130, 7))]
        for what, call in cases:
            with self.subTest(what), self.assertRaisesRegex(moefarm.Error, what):
                call()


class Torch(unittest.TestCase):
    def test_opcheck(self) -> None:
        x, logits = torch.randn(4, 64).bfloat16().to(DEVICE), logits_of(4, 16)
        check, ops_ = torch.library.opcheck, torch.ops.moefarm
        for name in ("topk_softmax", "topk_sigmoid", "topk_sqrt_softplus"):
            check(getattr(ops_, name).default, (logits, None, 2, True, 0, 0, False, 1.0, 0.0, torch.int32))
        check(ops_.quantise.default, (x, "int8_token", None))
        scales = torch.randint(0, 255, (130, 7), dtype=torch.uint8).to(DEVICE)
        check(ops_.shuffle.default, (scales, "32_4_4"))
        check(ops_.unshuffle.default, (ops.swizzle_scales(scales), "32_4_4", 130, 7))


if __name__ == "__main__":
    unittest.main()
