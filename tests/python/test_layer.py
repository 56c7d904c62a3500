"""moefarm.Layer and moefarm.ops.fused_moe against a reference of torch, on the CPU or on the device that
MOEFARM_TEST_TORCH_DEVICE names."""
import copy
import doctest
import errno
import http.server
import json
import os
import pathlib
import queue
import tempfile
import threading
import unittest
from typing import Any, Dict, Optional, Tuple

try:
    import torch
except ImportError as error:
    raise unittest.SkipTest(f"no PyTorch: {error}") from error

import moe_reference as reference
import moefarm
import moefarm.layer
import tuned_table
from moefarm import _library

DEVICE = os.environ.get("MOEFARM_TEST_TORCH_DEVICE", "cpu")
H, I, E, K = 256, 128, 8, 3
# Error of bfloat16 with float32 sums, and of float8_e4m3fn (x is quantised too).
BF16, FP8 = 0.01, 0.06


def weights_of(seed: int = 1) -> Tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    w1 = torch.randn(E, 2 * I, H, generator=g) / H ** .5
    w2 = torch.randn(E, H, I, generator=g) / I ** .5
    return w1.bfloat16().to(DEVICE), w2.bfloat16().to(DEVICE)


def inputs(tokens: int, seed: int = 2) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, H, generator=g).bfloat16()
    p, ids = torch.topk(torch.softmax(torch.randn(tokens, E, generator=g), -1), K)
    return x.to(DEVICE), ids.to(DEVICE), p.to(DEVICE)


def biases(seed: int = 3) -> Tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(E, 2 * I, generator=g).to(DEVICE), torch.randn(E, H, generator=g).to(DEVICE)


def bf16_layer(table: Optional[pathlib.Path] = None, **options: Any) -> moefarm.Layer:
    layer = moefarm.Layer(table, model_dim=H, inter_dim=I, experts=E, topk=K, device=DEVICE,
                          **{"max_tokens": 64, **options})
    layer.pack(*weights_of())
    return layer


class OldKernels:
    """libfmoe, except that calls with other types than int32 and float32 are refused."""

    def __init__(self, library: Any) -> None:
        self.library, self.refused = library, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.library, name)

    def fmoe_run(self, layer: Any, address: int) -> int:
        call = _library.Call.from_address(address)
        if (call.ids_type, call.weights_type) == (_library.INT32, _library.FLOAT32):
            return int(self.library.fmoe_run(layer, address))
        self.refused += 1
        return -errno.ENOTSUP


class Results(unittest.TestCase):
    def check(self, y: torch.Tensor, expected: torch.Tensor, limit: float) -> None:
        self.assertEqual(y.shape, expected.shape)
        self.assertLess(reference.relative_error(y, expected), limit)

    def test_bf16(self) -> None:
        layer = bf16_layer()
        for tokens in (1, 5, 64):
            x, ids, p = inputs(tokens)
            self.check(layer(x, ids, p), reference.moe(x, *weights_of(), ids, p), BF16)

    def test_blackwells_order_of_scales(self) -> None:
        """Block scales in the 32_4_4 order give the same results as row by row."""
        w1, w2 = weights_of()
        options: Dict[str, Any] = {"model_dim": H, "inter_dim": I, "experts": E, "topk": K, "device": DEVICE,
                                   "quant": "per_1x32", "activation_dtype": torch.bfloat16, "max_tokens": 64,
                                   "weight_dtype": "torch.float4_e2m1fn_x2"}
        (q1, s1, _), (q2, s2, _) = (moefarm.ops.quantise(w, "mxfp4") for w in (w1, w2))
        layer, swizzled = moefarm.Layer(None, **options), moefarm.Layer(None, **options)
        layer.pack(q1, q2, s1, s2)
        swizzled.pack(q1, q2, moefarm.ops.swizzle_scales(s1), moefarm.ops.swizzle_scales(s2),
                      scale_order="32_4_4")
        x, ids, p = inputs(5)
        self.assertTrue(reference.same(layer(x, ids, p), swizzled(x, ids, p)))
        with self.assertRaisesRegex(moefarm.Error, "scale_order is '8_4'"):
            layer.pack(q1, q2, s1, s2, scale_order="8_4")

    def test_types_of_ids_and_weights(self) -> None:
        layer = bf16_layer()
        x, ids, p = inputs(7)
        for ids_type in (torch.int32, torch.int64):
            for type_ in (torch.float32, torch.bfloat16):
                expected = reference.moe(x, *weights_of(), ids, p.to(type_))
                self.check(layer(x, ids.to(ids_type), p.to(type_)), expected, BF16)

    def test_kernels_that_read_only_int32_and_float32(self) -> None:
        layer = bf16_layer()
        old = OldKernels(layer._library)
        layer._library = old
        x, ids, p = inputs(7)
        for _ in range(2):
            self.check(layer(x, ids, p.bfloat16()), reference.moe(x, *weights_of(), ids, p.bfloat16()), BF16)
        self.assertEqual(old.refused, 1)

    def test_strided_inputs(self) -> None:
        layer = bf16_layer()
        x, ids, p = inputs(6)
        expected = layer(x[::2].clone(), ids[::2].clone(), p[::2].clone())
        self.assertTrue(reference.same(layer(x[::2], ids[::2], p[::2]), expected))

    def test_biases_and_clamped_swiglu(self) -> None:
        b1, b2 = biases()
        w1, w2 = weights_of()
        layer = moefarm.Layer(None, model_dim=H, inter_dim=I, experts=E, topk=K, activation="swiglu",
                              bias=True, max_tokens=32, device=DEVICE)
        layer.pack(w1, w2, b1=b1 * 8, b2=b2)  # some values exceed the limit of 7
        x, ids, p = inputs(9)
        self.check(layer(x, ids, p), reference.moe(x, w1, w2, ids, p, reference.swiglu, b1 * 8, b2), BF16)

    def test_fp8_blocks(self) -> None:
        w1, w2 = weights_of()
        (q1, s1, d1), (q2, s2, d2) = reference.quantise_blocks(w1), reference.quantise_blocks(w2)
        b1, b2 = biases()
        for bias in (False, True):
            layer = moefarm.Layer(None, model_dim=H, inter_dim=I, experts=E, topk=K, quant="per_1x128",
                                  bias=bias, max_tokens=32, device=DEVICE)
            given: Dict[str, Any] = {"b1": b1, "b2": b2} if bias else {}
            layer.pack(q1, q2, s1, s2, **given)
            x, ids, p = inputs(20)
            self.check(layer(x, ids, p), reference.moe(x, d1, d2, ids, p, **given), FP8)

    def test_packed_layouts(self) -> None:
        name = "panel16" if DEVICE == "cpu" else "panel128"
        layer = bf16_layer(w1_layout=name, w2_layout=name)
        self.assertEqual(layer.layouts, (name, name))
        x, ids, p = inputs(7)
        self.check(layer(x, ids, p), reference.moe(x, *weights_of(), ids, p), BF16)

    def test_tuned_rows(self) -> None:
        fallback = bf16_layer()
        with tempfile.TemporaryDirectory() as folder:
            table = pathlib.Path(folder, "tuned.csv")
            tuned_table.write(table, fallback, (4, 32))
            layer = bf16_layer(table=table, workspace_bytes=64 << 20)
            self.assertEqual(layer.workspace_bytes, 64 << 20)
            found = [layer.served(n).tuned for n in (3, 4, 5, 32)]
            self.assertEqual(found, [True, True, False, True])
            self.assertEqual((layer.served(17).us, layer.served(17).line), (42.0, 3))
            x, ids, p = inputs(20)
            self.check(layer(x, ids, p), reference.moe(x, *weights_of(), ids, p), BF16)
            self.assertEqual(layer.misses, 0)
            tuned_table.write(table, fallback, (8,))
            layer.reload()
            self.assertEqual([layer.served(n).tuned for n in (4, 5, 32)], [False, True, False])

    def test_more_tokens_than_max_tokens(self) -> None:
        layer = bf16_layer(max_tokens=16)
        x, ids, p = inputs(41)
        self.check(layer(x, ids, p), reference.moe(x, *weights_of(), ids, p), BF16)

    def test_no_tokens(self) -> None:
        x, ids, p = inputs(1)
        self.assertEqual(bf16_layer()(x[:0], ids[:0], p[:0]).shape, (0, H))

    def test_out_and_own_workspace(self) -> None:
        layer = bf16_layer()
        x, ids, p = inputs(5)
        expected = layer(x, ids, p)
        out = torch.full_like(expected, float("nan"))
        self.assertIs(layer(x, ids, p, out), out)
        self.assertTrue(reference.same(out, expected))
        own = torch.empty(layer.workspace_bytes, dtype=torch.uint8, device=DEVICE)
        self.assertTrue(reference.same(layer(x, ids, p, workspace=own), expected))

    def test_a_larger_layer_keeps_the_smaller_one_correct(self) -> None:
        small = bf16_layer(max_tokens=2)
        x, ids, p = inputs(2)
        expected = small(x, ids, p)
        bf16_layer(max_tokens=2048)
        self.assertTrue(reference.same(small(x, ids, p), expected))


class Errors(unittest.TestCase):
    def refused(self, text: str, **options: Any) -> None:
        with self.assertRaisesRegex(moefarm.Error, text):
            moefarm.Layer(None, **{"model_dim": H, "inter_dim": I, "experts": E, "topk": K, "device": DEVICE,
                                   **options})

    def test_open(self) -> None:
        self.refused("inter_dim: a multiple of 128 with QuantType.per_1x128", inter_dim=96,
                     quant="per_1x128")
        self.refused("act_type is 'ActivationType.Tanh': expected", activation="ActivationType.Tanh")
        self.refused("max_tokens is 0: expected 1 to 1048576", max_tokens=0)
        self.refused("form.* is 'limit:x'", form="limit:x")
        self.refused("quant is 'QuantType.per_1x32': give activation_dtype and weight_dtype",
                     quant="per_1x32")
        self.refused("device 'meta': expected a device of type cpu or cuda", device="meta")

    def test_table(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            table = pathlib.Path(folder, "tuned.csv")
            with self.assertRaisesRegex(moefarm.Error, "tuned.csv"):
                moefarm.Layer(table, model_dim=H, inter_dim=I, experts=E, topk=K, device=DEVICE)

    def test_weights(self) -> None:
        layer, (w1, w2) = bf16_layer(), weights_of()
        for arguments, text in (
                ((w1[:, :I], w2), r"w1 is \[8, 128, 256\] of torch.bfloat16, 524288 bytes: this layer needs"),
                ((w1.half(), w2), "w1 is of torch.float16: this layer needs torch.bfloat16"),
                ((w1, w2, w1), "w1_scale is .*: this layer has no such part")):
            with self.assertRaisesRegex(moefarm.Error, text):
                layer.pack(*arguments)
        with self.assertRaisesRegex(moefarm.Error, "b1 is given: the layer's form is ''"):
            layer.pack(w1, w2, b1=biases()[0])

    def test_call(self) -> None:
        layer = bf16_layer()
        x, ids, p = inputs(4)
        for arguments, text in (
                ((x.float(), ids, p), r"x is \[4, 256\] of torch.float32 on .*: expected \[4, 256\] of "
                                      "torch.bfloat16"),
                ((x, ids[:, :2], p), r"topk_ids is \[4, 2\] of torch.int64"),
                ((x, ids, p.half()), r"topk_weights is \[4, 3\] of torch.float16"),
                ((x, ids, p, x[:2]), r"out is \[2, 256\]")):
            with self.assertRaisesRegex(moefarm.Error, text):
                layer(*arguments)
        with self.assertRaisesRegex(moefarm.Error, "workspace is .*: expected torch.uint8"):
            layer(x, ids, p, workspace=torch.empty(64, device=DEVICE))
        with self.assertRaisesRegex(moefarm.Error, "a workspace of 64 bytes: Invalid argument"):
            layer(x, ids, p, workspace=torch.empty(64, dtype=torch.uint8, device=DEVICE))

    def test_no_weights(self) -> None:
        layer = moefarm.Layer(None, model_dim=H, inter_dim=I, experts=E, topk=K, device=DEVICE)
        with self.assertRaisesRegex(moefarm.Error, "call pack first"):
            layer(*inputs(1))

    def test_copy(self) -> None:
        with self.assertRaisesRegex(moefarm.Error, "a layer cannot be copied or pickled"):
            copy.deepcopy(bf16_layer())

    def test_deleted_layer(self) -> None:
        layer: Optional[moefarm.Layer] = bf16_layer()
        assert layer is not None
        number, arguments = layer.id, inputs(1)
        layer = None
        with self.assertRaisesRegex(moefarm.Error, f"layer {number} was deleted"):
            torch.ops.moefarm.fused_moe(*arguments, number)

    def test_served(self) -> None:
        layer = bf16_layer()
        self.assertEqual(layer.served(5).bucket, 8)
        self.assertFalse(layer.served(5).tuned)
        self.assertIn(":", layer.served(5).pipeline)
        with self.assertRaisesRegex(moefarm.Error, "tokens is 65: expected 1 to 64"):
            layer.served(65)


class Coordinator(http.server.BaseHTTPRequestHandler):
    """Accepts reports of misses."""

    reports: "queue.Queue[Any]" = queue.Queue()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.reports.put((self.path, body))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: Any) -> None:
        pass


class Misses(unittest.TestCase):
    def test_report(self) -> None:
        server = http.server.HTTPServer(("127.0.0.1", 0), Coordinator)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        with tempfile.TemporaryDirectory() as folder:  # a table of its own has a handle of its own
            table = pathlib.Path(folder, "tuned.csv")
            tuned_table.write(table, bf16_layer(), (1,))
            layer = bf16_layer(table)
            layer(*inputs(5))
            self.assertEqual(layer.misses, 1)
            layer.report_misses(f"http://127.0.0.1:{server.server_port}", seconds=1)
            path, body = Coordinator.reports.get(timeout=60)
            with self.assertRaises(moefarm.Error) as refused:
                layer.report_misses(f"http://127.0.0.1:{server.server_port}")
            self.assertEqual(refused.exception.errno, errno.EALREADY)
            del layer
        server.shutdown()
        thread.join()
        server.server_close()
        self.assertEqual(path, "/api/v1/misses")
        self.assertEqual([(m["shape"]["token"], m["count"]) for m in body["misses"]], [(8, 1)])

    def test_refused_url(self) -> None:
        with self.assertRaisesRegex(moefarm.Error, "ftp"):
            bf16_layer().report_misses("ftp://farm")


class Operator(unittest.TestCase):
    def test_opcheck(self) -> None:
        layer = bf16_layer()
        x, ids, p = inputs(5)
        torch.library.opcheck(torch.ops.moefarm.fused_moe.default, (x, ids, p, layer.id))
        torch.library.opcheck(torch.ops.moefarm.fused_moe_out.default,
                              (x, ids, p, layer.id, torch.empty_like(x)))

    def test_ops_fused_moe(self) -> None:
        layer, arguments = bf16_layer(), inputs(5)
        self.assertTrue(reference.same(moefarm.ops.fused_moe(*arguments, layer), layer(*arguments)))

    def test_compile_fullgraph(self) -> None:
        layer, arguments = bf16_layer(), inputs(5)

        def forward(x: torch.Tensor, ids: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = layer(x * 2, ids, p)
            return y + 1

        compiled = torch.compile(forward, fullgraph=True, backend="aot_eager")
        for tokens in (5, 6, 11):  # the second size makes the token count dynamic
            arguments = inputs(tokens)
            self.assertTrue(reference.same(compiled(*arguments), forward(*arguments)))


class Documentation(unittest.TestCase):
    def test_examples(self) -> None:
        result = doctest.testmod(moefarm.layer)
        self.assertGreater(result.attempted, 0)
        self.assertEqual(result.failed, 0)


if __name__ == "__main__":
    unittest.main()
