"""Tests SGLang's runner: with stubs of SGLang's modules, and with SGLANG_DIR with its own base classes."""
import importlib
import os
import pathlib
import sys
import types
import unittest
from typing import Any, Dict, List, NamedTuple, Optional
from unittest import mock

try:
    import torch
except ImportError:
    raise unittest.SkipTest("torch is missing: run scripts/python_env.sh")

import moe_reference
from stub_packages import StubFinder
from moefarm._library import Error
from moefarm.integrations import sglang

PACKAGE = "sglang.srt.layers.moe"
E, H, I, K, T = 8, 256, 128, 2, 5
REAL = ("moe_runner.base", "moe_runner.runner", "utils", "token_dispatcher.base", "token_dispatcher.standard")


class Combined(NamedTuple):
    hidden_states: Any


class Dispatched(NamedTuple):
    hidden_states: Any
    topk_output: Any


class Core:
    def __init__(self, config: Any) -> None:
        self.config = config


def stubs() -> Dict[str, Any]:
    """The modules that the runner imports, with SGLang's signatures."""
    registered: Dict[str, Any] = {}
    modules = {name: types.ModuleType(name) for name in
               ["sglang", "sglang.srt", "sglang.srt.layers", PACKAGE, PACKAGE + ".moe_runner",
                PACKAGE + ".token_dispatcher"] + [f"{PACKAGE}.{part}" for part in REAL]}
    runner: Any = modules[PACKAGE + ".moe_runner.runner"]
    runner.registered = registered
    runner.register_moe_runner_core = registered.__setitem__
    vars(modules[PACKAGE + ".moe_runner.base"])["DispatchMoeRunnerCore"] = Core
    vars(modules[PACKAGE + ".utils"])["resolve_moe_runner_backend"] = lambda name: name
    vars(modules[PACKAGE + ".token_dispatcher.standard"])["StandardCombineInput"] = Combined
    return modules


def config(**other: Any) -> Any:
    values = dict(activation="silu", is_gated=True, params_dtype=torch.bfloat16, no_combine=False,
                  apply_router_weight_on_input=False, inplace=True, routed_scaling_factor=None,
                  gemm1_alpha=None, gemm1_beta=None, gemm1_clamp_limit=None, swiglu_limit=None, layer_id=3)
    return types.SimpleNamespace(**{**values, **other})


def quant_info(w1: Any, w2: Any, **other: Any) -> Any:
    values: Dict[str, Any] = dict(
        w13_weight=torch.nn.Parameter(w1, requires_grad=False),
        w2_weight=torch.nn.Parameter(w2, requires_grad=False), b13=None, b2=None, use_mxfp8=False,
        use_fp8_w8a8=False, use_int8_w8a8=False, use_int8_w8a16=False, use_int4_w4a16=False,
        per_channel_quant=False, w13_scale=None, w2_scale=None, a13_scale=None, a2_scale=None,
        block_shape=None, fuse_swiglu_interleaved=False)
    return types.SimpleNamespace(**{**values, **other})


class Plugin(unittest.TestCase):
    def setUp(self) -> None:
        torch.manual_seed(7)
        self.w1, self.w2 = (torch.randn(E, 2 * I, H) / 16).bfloat16(), (torch.randn(E, H, I) / 12).bfloat16()
        self.x = torch.randn(T, H).bfloat16()
        weights, self.ids = torch.softmax(torch.randn(T, E), -1).topk(K)
        self.topk = types.SimpleNamespace(topk_ids=self.ids.int(), topk_weights=weights)
        patch = mock.patch.dict(sys.modules, stubs())
        patch.start()
        self.addCleanup(patch.stop)
        sglang.activate()
        runner: Any = sys.modules[PACKAGE + ".moe_runner.runner"]
        self.factory = runner.registered["moefarm"]

    def run_layer(self, settings: Any, info: Any, ids: Optional[Any] = None) -> Any:
        topk = self.topk if ids is None else types.SimpleNamespace(topk_ids=ids,
                                                                   topk_weights=self.topk.topk_weights)
        return self.factory(settings).run_from_dispatch(Dispatched(self.x.clone(), topk), info, settings)

    def expected(self, ids: Optional[Any] = None, w1: Any = None, w2: Any = None) -> Any:
        return moe_reference.moe(self.x, self.w1 if w1 is None else w1, self.w2 if w2 is None else w2,
                                 self.ids if ids is None else ids, self.topk.topk_weights)

    def test_bfloat16(self) -> None:
        y = self.run_layer(config(), quant_info(self.w1, self.w2)).hidden_states
        self.assertLess(moe_reference.relative_error(y, self.expected()), 0.01)

    def test_scaling_factor(self) -> None:
        settings = config(routed_scaling_factor=2.5, inplace=False)
        y = self.run_layer(settings, quant_info(self.w1, self.w2)).hidden_states
        self.assertLess(moe_reference.relative_error(y, 2.5 * self.expected()), 0.01)

    def test_inplace_writes_x(self) -> None:
        settings = config()
        x = self.x.clone()
        out = self.factory(settings).run_from_dispatch(Dispatched(x, self.topk),
                                                       quant_info(self.w1, self.w2), settings)
        self.assertEqual(out.hidden_states.data_ptr(), x.data_ptr())

    def test_ids_of_remote_experts_contribute_nothing(self) -> None:
        ids = self.ids.clone().int()
        ids[:, 0] = -1
        y = self.run_layer(config(), quant_info(self.w1, self.w2), ids).hidden_states
        weights = self.topk.topk_weights.clone()
        weights[:, 0] = 0
        expected = moe_reference.moe(self.x, self.w1, self.w2, self.ids, weights)
        self.assertLess(moe_reference.relative_error(y, expected), 0.01)

    def test_fp8_blocks(self) -> None:
        q1, s1, d1 = moe_reference.quantise_blocks(self.w1)
        q2, s2, d2 = moe_reference.quantise_blocks(self.w2)
        info = quant_info(q1, q2, use_fp8_w8a8=True, block_shape=[128, 128], w13_scale=s1, w2_scale=s2)
        y = self.run_layer(config(), info).hidden_states
        self.assertLess(moe_reference.relative_error(y, self.expected(w1=d1, w2=d2)), 0.06)

    def test_refused(self) -> None:
        for name, value in (("activation", "relu2"), ("is_gated", False), ("params_dtype", torch.float16),
                            ("no_combine", True), ("swiglu_limit", 7.0)):
            with self.subTest(name), self.assertRaisesRegex(Error, name + ".*--moe-runner-backend"):
                self.factory(config(**{name: value}))
        for name, value in (("use_mxfp8", True), ("use_int4_w4a16", True), ("a2_scale", 1.0)):
            with self.subTest(name), self.assertRaisesRegex(Error, "--moe-runner-backend"):
                self.run_layer(config(), quant_info(self.w1, self.w2, **{name: value}))
        with self.assertRaisesRegex(Error, "block_shape is .64, 64."):
            self.run_layer(config(), quant_info(self.w1, self.w2, use_fp8_w8a8=True, block_shape=[64, 64]))
        with self.assertRaisesRegex(Error, "LoRA"):
            self.factory(config()).run_from_dispatch(None, None, config(), hooks=object())


class OldVersion(unittest.TestCase):
    def test_without_the_interface(self) -> None:
        modules = stubs()
        del modules[PACKAGE + ".moe_runner.runner"].register_moe_runner_core
        with mock.patch.dict(sys.modules, modules), self.assertLogs("moefarm.integrations.sglang") as logs:
            sglang.activate()
        self.assertIn("register_moe_runner_core", logs.output[0])


class OwnClasses(Plugin):
    """The same cases with SGLang's own base classes, registry and runner."""

    def setUp(self) -> None:
        root = os.environ.get("SGLANG_DIR")
        if not root:
            self.skipTest("SGLANG_DIR is not set")
        super().setUp()
        base = [path for path in (pathlib.Path(root), pathlib.Path(root) / "python")
                if (path / "sglang/srt/layers/moe/moe_runner/runner.py").is_file()]
        if not base:
            self.fail(f"SGLANG_DIR {root} has no sglang/srt/layers/moe/moe_runner/runner.py")
        StubFinder(base[0], ("sglang", "sgl_kernel"), [f"{PACKAGE}.{part}" for part in REAL]).install(self)
        sglang.activate()
        runner: Any = importlib.import_module(PACKAGE + ".moe_runner.runner")
        self.factory = runner._CUSTOM_RUNNER_CORE_FACTORIES["moefarm"]

    def test_whole_runner(self) -> None:
        runner: Any = importlib.import_module(PACKAGE + ".moe_runner.runner")
        utils: Any = importlib.import_module(PACKAGE + ".utils")
        settings = config(silu_mul_keep_fp32=False)
        backend = utils.resolve_moe_runner_backend("moefarm")
        with mock.patch.object(runner, "get_moe_runner_backend"), \
                mock.patch.object(runner, "get_moe_a2a_backend") as a2a, \
                mock.patch.object(runner.FusedOpPool, "get_fused_func", return_value=None):
            a2a.return_value.is_deepep_v2.return_value = False
            runner.get_moe_runner_backend.return_value.is_hpc_ops.return_value = False
            whole = runner.MoeRunner(backend, settings)
            standard: Any = importlib.import_module(PACKAGE + ".token_dispatcher.standard")
            out = whole.run(standard.StandardDispatchOutput(self.x.clone(), None, self.topk),
                            quant_info(self.w1, self.w2))
        self.assertIsInstance(out, standard.StandardCombineInput)
        self.assertLess(moe_reference.relative_error(out.hidden_states, self.expected()), 0.01)


if __name__ == "__main__":
    unittest.main()
