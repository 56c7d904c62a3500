"""Tests the families of vLLM and SGLang with stub modules of the same signatures: results, configurations
that reach the kernels, data types, unknown versions, and compilation in helper processes. Needs torch; skips
without it."""
from __future__ import annotations

import os
import pathlib
import tempfile
import unittest
from typing import Any, List
from unittest import mock

try:
    import torch
except ImportError as error:
    raise unittest.SkipTest(f"no PyTorch: {error}") from error

import triton_stubs
from family_layer import BF16, FP8, candidate, layer_inputs, reference
from test_torch_grouped import farm_tensor, inputs, relative_error
from triton_stubs import CALLS

triton_stubs.install_vllm()
triton_stubs.install_sglang()

from moefarm.families.triton_moe import compile_pool, framework, sglang_family, vllm_family
from moefarm.families.triton_moe.offers import LIMIT_ENV
from moefarm.family import Shape

NAME = "triton_m16_n64_k64_g1_w4_s3"
CONFIG = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1, "num_warps": 4,
          "num_stages": 3}
DOWN = {**CONFIG, "num_warps": 8}
FAMILIES = {"vllm": vllm_family.family, "sglang": sglang_family.family}


class Results(unittest.TestCase):
    def setUp(self) -> None:
        CALLS.clear()

    def test_layer_equals_the_loop(self) -> None:
        cases = [BF16, BF16.replace(",1,0", ",1,1"), FP8, FP8.replace("1x128", "Token"),
                 FP8.replace("1x128", "Tensor")]
        for name, family in FAMILIES.items():
            for text in cases:
                with self.subTest(family=name, text=text):
                    shape = Shape.parse(text)
                    t = layer_inputs(shape)
                    y = family.open(candidate(NAME), shape).forward(t)
                    self.assertLess(relative_error(y, reference(shape, t)), 0.01)

    def test_rows_reach_the_kernel(self) -> None:
        """Rows of a user's file run with their configuration, also with one that is not offered."""
        shape, odd = Shape.parse(BF16), "triton_m16_n64_k64_g7_w4_s3"
        t = inputs(shape)
        for name, family in FAMILIES.items():
            with self.subTest(family=name):
                y = family.open_row({"config": odd}, shape).forward(t)
                self.assertLess(relative_error(y, reference(shape, t)), 0.01)
                self.assertEqual(CALLS[-1]["config"], {**CONFIG, "GROUP_SIZE_M": 7})
                with self.assertRaisesRegex(ValueError, "no epilogue for the form b1"):
                    family.open_row({"config": odd}, Shape.parse(BF16 + ",b1"))

    def test_launch_copies_the_result(self) -> None:
        dtypes = {"topk_ids": "int32", "topk_weights": "float32"}
        for name, family in FAMILIES.items():
            with self.subTest(name):
                shape = Shape.parse(BF16)
                t = inputs(shape)
                tensors = {key: farm_tensor(key, array, dtypes.get(key, "bfloat16"), key == "y")
                           for key, array in t.items()}
                kernel = family.open(candidate(NAME), shape)
                kernel.prepare(tensors, 0)
                kernel.launch(tensors, 0)
                self.assertLess(relative_error(t["y"], reference(shape, t)), 0.01)

    def test_configuration_reaches_the_kernels(self) -> None:
        down = NAME.replace("triton", "down").replace("w4", "w8")
        cases: List[Any] = [("vllm", "default", None, None), ("vllm", NAME, CONFIG, None),
                            ("sglang", "default", None, None), ("sglang", NAME, CONFIG, None),
                            ("sglang", f"{NAME}-{down}", CONFIG, DOWN),
                            ("sglang", f"{NAME}-{down}_tma", CONFIG, {**DOWN, "USE_TMA": True})]
        shape = Shape.parse(BF16)
        t = inputs(shape)
        for name, step, up, second in cases:
            with self.subTest(family=name, step=step):
                FAMILIES[name].open(candidate(step), shape).forward(t)
                self.assertEqual((CALLS[-1]["config"], CALLS[-1].get("down")), (up, second))

    def test_second_configuration_is_not_for_vllm(self) -> None:
        kernel = vllm_family.family.open(candidate(f"{NAME}-down_m16_n64_k64_g1_w8_s3"), Shape.parse(BF16))
        with self.assertRaisesRegex(ValueError, "vLLM has one configuration for both GEMMs"):
            kernel.forward(inputs(Shape.parse(BF16)))

    def test_quantisation_reaches_the_framework(self) -> None:
        for text, block, rows in ((FP8, [128, 128], False), (FP8.replace("1x128", "Token"), None, True),
                                  (FP8.replace("1x128", "Tensor"), None, False)):
            with self.subTest(text):
                shape = Shape.parse(text)
                for family in FAMILIES.values():
                    family.open(candidate(NAME), shape).forward(layer_inputs(shape))
                quant = CALLS[-2]["quant"]
                self.assertEqual((quant.block_shape, quant.per_act_token_quant, quant.per_out_ch_quant),
                                 (block, rows, rows))
                self.assertEqual((CALLS[-1]["block"], CALLS[-1]["per_channel"]), (block, rows))


class Versions(unittest.TestCase):
    def test_revision_names_all_versions(self) -> None:
        self.assertEqual(vllm_family.family.revision(), f"vllm 0.33.0 triton 3.6.0 torch {torch.__version__}")
        with mock.patch.dict(os.environ, {LIMIT_ENV: "24", "VLLM_TUNED_CONFIG_FOLDER": "/tuned"}):
            self.assertEqual(vllm_family.family.revision(),
                             f"vllm 0.33.0 triton 3.6.0 torch {torch.__version__} configs 24 "
                             "VLLM_TUNED_CONFIG_FOLDER=/tuned")

    def test_revision_refuses_a_wrong_limit(self) -> None:
        with mock.patch.dict(os.environ, {LIMIT_ENV: "x"}), self.assertRaisesRegex(ValueError, LIMIT_ENV):
            vllm_family.family.revision()

    def test_unknown_signatures_are_refused(self) -> None:
        def without_quant_config(hidden_states: Any, w1: Any, w2: Any, topk_weights: Any, topk_ids: Any,
                                 apply_router_weight_on_input: bool = False) -> None:
            pass

        def needs_more(hidden_states: Any, w1: Any, w2: Any, topk_weights: Any, topk_ids: Any, plan: Any,
                       apply_router_weight_on_input: bool = False, quant_config: Any = None) -> None:
            pass

        for function, problem in ((without_quant_config, "has no parameter quant_config"),
                                  (needs_more, "needs the unknown parameter plan")):
            with self.subTest(problem):
                triton_stubs.install_vllm("0.99.0", fused_experts=function)
                self.addCleanup(triton_stubs.install_vllm)
                with self.assertRaisesRegex(ImportError, f"vLLM 0.99.0: {function.__name__} {problem}; this "
                                            "family knows vLLM 0.33"):
                    vllm_family.Vllm()

    def test_in_place_is_switched_off(self) -> None:
        seen: List[bool] = []

        def old(hidden_states: Any, w1: Any, w2: Any, topk_weights: Any, topk_ids: Any, inplace: bool = False,
                apply_router_weight_on_input: bool = False, quant_config: Any = None) -> Any:
            seen.append(inplace)
            return hidden_states.clone()

        self.addCleanup(triton_stubs.install_vllm)
        triton_stubs.install_vllm(fused_experts=old)
        shape = Shape.parse(BF16)
        vllm_family.Vllm().fused_experts(shape, inputs(shape), None, None)
        self.assertEqual(seen, [False])


class Compilation(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.cache = pathlib.Path(folder.name)
        patch = mock.patch.dict(os.environ, {"TRITON_CACHE_DIR": folder.name})
        patch.start()
        self.addCleanup(patch.stop)

    def test_without_memory_or_launch(self) -> None:
        for text in (BF16, FP8, FP8.replace("1x128", "Token"), FP8.replace("1x128", "Tensor")):
            framework.compile_only(vllm_family.family.framework, Shape.parse(text), NAME)
        self.assertEqual(len(list(self.cache.iterdir())), 4)

    def test_sizes_of_tensors_without_memory(self) -> None:
        for text in (BF16, FP8, FP8.replace("1x128", "Token"), FP8.replace("1x128", "Tensor")):
            shape = Shape.parse(text)
            t = layer_inputs(shape)
            t.pop("y")
            meta = framework.meta_tensors(shape)
            self.assertEqual({k: (v.shape, v.dtype) for k, v in meta.items()},
                             {k: (v.shape, v.dtype) for k, v in t.items()})
        large = Shape.parse(BF16.replace("7,", "4099,", 1))
        self.assertEqual(framework.meta_tensors(large)["x"].shape[0], 1027)

    def run_pool(self, names: List[str]) -> List[str]:
        return sorted(name for name in compile_pool.compile_all("triton_stubs", BF16, names) if name)

    def test_helpers_compile_each_once(self) -> None:
        names = sorted(f"triton_m16_n64_k64_g{g}_w4_s3" for g in range(1, 6))
        self.assertEqual(self.run_pool(names), names)
        self.assertEqual(len(list(self.cache.iterdir())), len(names))

    def test_failures_and_crashes_are_passed(self) -> None:
        names = [NAME.replace("m16", m) for m in ("m128", "m16", "m256", "m32")]  # m128 crashes, m256 fails
        with mock.patch.object(compile_pool, "HELPERS_MAX", 1):
            self.assertEqual(self.run_pool(names), sorted(names))
        self.assertEqual(len(list(self.cache.iterdir())), 2)

    def test_a_module_that_cannot_be_imported_ends_the_pool(self) -> None:
        self.assertEqual(list(compile_pool.compile_all("no_such_module", BF16, [NAME])), [""])

    def test_a_silent_helper_is_ended(self) -> None:
        with mock.patch.object(compile_pool, "SILENCE_S", 0):
            self.assertEqual(list(compile_pool.compile_all("triton_stubs", BF16, [NAME])), [""])

    def test_default_is_not_compiled(self) -> None:
        self.assertEqual(list(vllm_family.family.precompile([candidate("default")], Shape.parse(BF16))), [])


if __name__ == "__main__":
    unittest.main()
