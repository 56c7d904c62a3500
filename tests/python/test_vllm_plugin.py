"""Tests vLLM's experts class: with stubs of vLLM's modules, and with VLLM_DIR with its own base classes."""
import enum
import importlib
import os
import pathlib
import sys
import types
import unittest
from typing import Any, Dict, Optional
from unittest import mock

try:
    import torch
except ImportError:
    raise unittest.SkipTest("torch is missing: run scripts/python_env.sh")

import moe_reference
from moefarm._library import Error
from moefarm.integrations import vllm
from stub_packages import StubFinder

PACKAGE = "vllm.model_executor.layers.fused_moe"
QUANT = "vllm.model_executor.layers.quantization.utils.quant_utils"
REAL = ("modular_kernel", "topk_weight_and_reduce", "activation", "oracle.unquantized", "oracle.fp8")
E, H, I, K, T = 8, 256, 128, 2, 5


class Activation(enum.Enum):
    SILU, GELU, RELU2 = "silu", "gelu", "relu2"


class Backend(enum.Enum):
    TRITON, CPU = "triton", "cpu"


class Experts:
    def __init__(self, moe_config: Any, quant_config: Any) -> None:
        self.moe_config, self.quant_config = moe_config, quant_config
        self.w1_scale, self.w2_scale = quant_config.w1_scale, quant_config.w2_scale
        self.w1_bias, self.w2_bias = quant_config.w1_bias, quant_config.w2_bias
        self.activation_config = types.SimpleNamespace(
            clamp_limit=quant_config.gemm1_clamp_limit, alpha=quant_config.gemm1_alpha or 1.0,
            beta=quant_config.gemm1_beta or 0.0)


def stubs() -> Dict[str, Any]:
    """The modules that the plugin imports, with vLLM's names."""
    layers = "vllm.model_executor.layers"
    names = ["vllm", "vllm.model_executor", layers, PACKAGE, PACKAGE + ".oracle", layers + ".quantization",
             layers + ".quantization.utils", QUANT]
    modules: Dict[str, Any] = {name: types.ModuleType(name)
                               for name in names + [f"{PACKAGE}.{part}" for part in REAL]}
    kernel, reduce = modules[PACKAGE + ".modular_kernel"], modules[PACKAGE + ".topk_weight_and_reduce"]
    kernel.FusedMoEExpertsModular = Experts
    kernel.FusedMoEActivationFormat = types.SimpleNamespace(Standard="standard")
    reduce.TopKWeightAndReduceNoOP = lambda: "nothing"
    modules[QUANT].kFp8Static128BlockSym, modules[QUANT].kFp8Dynamic128Sym = "block", "group"
    for oracle in ("oracle.unquantized", "oracle.fp8"):
        modules[f"{PACKAGE}.{oracle}"].backend_to_kernel_cls = lambda backend: [backend.value]
    return modules


def quant_config(**other: Any) -> Any:
    values = dict(w1_scale=None, w2_scale=None, w1_bias=None, w2_bias=None, gemm1_clamp_limit=None,
                  gemm1_alpha=None, gemm1_beta=None)
    return types.SimpleNamespace(**{**values, **other})


def moe_config(**other: Any) -> Any:
    values = dict(is_lora_enabled=False, swiglu_limit=None, swiglu_alpha=None, swiglu_beta=None,
                  activation_situ_beta=None, activation_situ_linear_beta=None)
    return types.SimpleNamespace(**{**values, **other})


class Plugin(unittest.TestCase):
    activation: Any = Activation.SILU

    def setUp(self) -> None:
        torch.manual_seed(7)
        self.w1, self.w2 = (torch.randn(E, 2 * I, H) / 16).bfloat16(), (torch.randn(E, H, I) / 12).bfloat16()
        self.x = torch.randn(T, H).bfloat16()
        self.weights, self.ids = torch.softmax(torch.randn(T, E), -1).topk(K)
        self.start()

    def start(self) -> None:
        for patch in (mock.patch.dict(sys.modules, stubs()),
                      mock.patch.dict(os.environ, {"MOEFARM_TABLE": ""})):
            patch.start()
            self.addCleanup(patch.stop)
        self.experts = vllm.make_experts_class()

    def run_layer(self, config: Any, w1: Any, w2: Any, ids: Any = None, expert_map: Any = None,
                  on_input: bool = False, x: Any = None) -> Any:
        layer = self.experts(moe_config(), config)
        y = torch.full((T, H), float("nan"), dtype=torch.bfloat16)
        w1, w2 = (torch.nn.Parameter(w, requires_grad=False) for w in (w1, w2))
        result = layer.apply(y, self.x if x is None else x, w1, w2, self.weights,
                             self.ids.int() if ids is None else ids, self.activation, E, expert_map, None,
                             None, None, None, None, on_input)
        self.assertIsNone(result)
        self.assertEqual((w1.shape, w2.shape), ((w1.shape[0], 2 * I, H), (w1.shape[0], H, I)))
        return y

    def assert_close(self, y: Any, expected: Any, limit: float = 0.01) -> None:
        self.assertLess(moe_reference.relative_error(y, expected), limit)

    def test_bfloat16(self) -> None:
        y = self.run_layer(quant_config(), self.w1, self.w2)
        self.assert_close(y, moe_reference.moe(self.x, self.w1, self.w2, self.ids, self.weights))

    def test_fp8_blocks(self) -> None:
        q1, s1, d1 = moe_reference.quantise_blocks(self.w1)
        q2, s2, d2 = moe_reference.quantise_blocks(self.w2)
        y = self.run_layer(quant_config(w1_scale=s1, w2_scale=s2), q1, q2)
        self.assert_close(y, moe_reference.moe(self.x, d1, d2, self.ids, self.weights), 0.06)

    def test_experts_of_a_rank(self) -> None:
        """The rank has every other expert; ids are global."""
        expert_map = torch.full((E,), -1, dtype=torch.int32)
        expert_map[::2] = torch.arange(E // 2, dtype=torch.int32)
        y = self.run_layer(quant_config(), self.w1[::2].contiguous(), self.w2[::2].contiguous(),
                           expert_map=expert_map)
        weights = torch.where(self.ids % 2 == 0, self.weights, 0.0)
        self.assert_close(y, moe_reference.moe(self.x, self.w1, self.w2, self.ids, weights))

    def test_weights_on_the_input(self) -> None:
        y = self.run_layer(quant_config(), self.w1, self.w2, on_input=True)
        ones = torch.ones_like(self.weights)
        self.assert_close(y, moe_reference.moe(self.x, self.w1, self.w2, self.ids, ones))

    def test_limit_of_the_activation(self) -> None:
        def act(gate: Any, up: Any) -> Any:
            return torch.nn.functional.silu(gate.clamp(max=0.5)) * up.clamp(-0.5, 0.5)
        y = self.run_layer(quant_config(gemm1_clamp_limit=0.5), self.w1, self.w2)
        gate_up = torch.einsum("th,tknh->tkn", self.x.float(), self.w1.float()[self.ids])
        inner = act(gate_up[..., :I], gate_up[..., I:])
        expected = torch.einsum("tki,tkhi,tk->th", inner, self.w2.float()[self.ids], self.weights)
        self.assert_close(y, expected)

    def test_other_activations_are_refused(self) -> None:
        with self.assertRaisesRegex(Error, "alpha 1.702 and beta 0.0.*unset MOEFARM_TABLE"):
            self.experts(moe_config(), quant_config(gemm1_alpha=1.702))

    def test_lora_is_refused(self) -> None:
        with self.assertRaisesRegex(Error, "unset MOEFARM_TABLE"):
            self.experts(moe_config(is_lora_enabled=True), quant_config())

    def test_what_it_supports(self) -> None:
        quant: Any = importlib.import_module(QUANT)
        self.assertTrue(self.experts._supports_quant_scheme(None, None))
        self.assertTrue(self.experts._supports_quant_scheme(quant.kFp8Static128BlockSym,
                                                            quant.kFp8Dynamic128Sym))
        self.assertFalse(self.experts._supports_quant_scheme("int8", None))
        self.assertTrue(self.experts._supports_activation(self.activation))
        self.assertFalse(self.experts._supports_activation(Activation.RELU2))
        for all2all in (False, True):
            config = types.SimpleNamespace(use_all2all_kernels=all2all)
            self.assertEqual(self.experts._supports_parallel_config(config), not all2all)
        self.assertEqual(self.experts.workspace_shapes(None, 7, 2 * I, H, K, E, E, None, None)[2], (7, H))


class Activate(unittest.TestCase):
    def classes(self, table: Optional[str]) -> Any:
        modules = stubs()
        environment = {"MOEFARM_TABLE": table or ""}
        with mock.patch.dict(sys.modules, modules), mock.patch.dict(os.environ, environment):
            vllm.activate()
        oracle = modules[PACKAGE + ".oracle.fp8"]
        return [oracle.backend_to_kernel_cls(backend) for backend in (Backend.TRITON, Backend.CPU)]

    def test_without_a_table_nothing_changes(self) -> None:
        self.assertEqual(self.classes(None), [["triton"], ["cpu"]])

    def test_with_a_table_it_precedes_triton(self) -> None:
        triton, cpu = self.classes("t.csv")
        self.assertEqual([getattr(c, "__name__", c) for c in triton], ["MoefarmExperts", "triton"])
        self.assertEqual(cpu, ["cpu"])

    def test_another_version_stays_as_it_is(self) -> None:
        modules = stubs()
        del modules[PACKAGE + ".oracle.unquantized"].backend_to_kernel_cls
        environment = {"MOEFARM_TABLE": "t.csv"}
        with mock.patch.dict(sys.modules, modules), mock.patch.dict(os.environ, environment), \
                self.assertLogs("moefarm.integrations.vllm") as logs:
            vllm.activate()
        self.assertIn("runs without moefarm", logs.output[0])


class OwnClasses(Plugin):
    """The same cases with vLLM's own base classes."""

    def start(self) -> None:
        root = os.environ.get("VLLM_DIR")
        if not root:
            self.skipTest("VLLM_DIR is not set")
        if not (pathlib.Path(root) / (PACKAGE.replace(".", "/") + "/modular_kernel.py")).is_file():
            self.fail(f"VLLM_DIR {root} has no {PACKAGE.replace('.', '/')}/modular_kernel.py")
        StubFinder(pathlib.Path(root), ("vllm",), [f"{PACKAGE}.{part}" for part in REAL]).install(self)
        self.kernel: Any = importlib.import_module(PACKAGE + ".modular_kernel")
        self.activation = importlib.import_module(PACKAGE + ".activation").MoEActivation.SILU
        self.experts = vllm.make_experts_class()

    def test_it_is_supported(self) -> None:
        config = mock.MagicMock(is_act_and_mul=True, activation=self.activation, is_lora_enabled=False,
                                has_hash_routing=False, require_decomposed_backend=False)
        config.moe_parallel_config.use_all2all_kernels = False
        self.kernel.envs.VLLM_BATCH_INVARIANT = False
        standard = self.kernel.FusedMoEActivationFormat.Standard
        self.assertEqual(self.experts.is_supported_config(self.experts, config, None, None, standard),
                         (True, None))

    def test_vllm_chooses_it(self) -> None:
        with mock.patch.dict(os.environ, {"MOEFARM_TABLE": "t.csv"}):
            vllm.activate()
        oracle: Any = importlib.import_module(PACKAGE + ".oracle.unquantized")
        classes = oracle.backend_to_kernel_cls(oracle.UnquantizedMoeBackend.TRITON)
        self.assertEqual(classes[0].__name__, "MoefarmExperts")
        self.assertEqual(len(classes), 2)


if __name__ == "__main__":
    unittest.main()
