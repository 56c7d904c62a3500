"""Tests the families deepgemm and lmdeploy with stub packages of the same signatures (folder stubs): a
layer's output against a plain loop over the routes, rejections, unknown versions, and launches that compile.
With DEEPGEMM_DIR and LMDEPLOY_DIR, checkouts of their sources, compares the stubs' and the real signatures.
Needs torch; skips without it."""
from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import os
import pathlib
import re
import sys
import tempfile
import types
import unittest
from typing import Any, List
from unittest import mock

try:
    import torch
except ImportError as error:
    raise unittest.SkipTest(f"no PyTorch: {error}") from error

STUBS = pathlib.Path(__file__).parent / "stubs"
sys.path.insert(0, str(STUBS))

import deep_gemm
from family_layer import BF16, FP8, candidate, layer_inputs, reference
from test_torch_grouped import AMPERE, BLACKWELL, CPU, HOPPER, LAYER, relative_error

from moefarm import torch_family
from moefarm.families import deepgemm, lmdeploy
from moefarm.family import Candidate, Device, Rejection, Shape

AMD = Device("hip:amd:0", "gfx942", 304)


class Layers(unittest.TestCase):
    def check(self, family: Any, name: str, text: str, t: Any = None) -> None:
        with self.subTest(family=family.name, name=name, text=text):
            shape = Shape.parse(text)
            t = t or layer_inputs(shape)
            y = family.open(candidate(name), shape).forward(t)
            self.assertLess(relative_error(y, reference(shape, t)), 0.05 if shape.is_quantised else 0.008)

    def test_deepgemm(self) -> None:
        """Also with an expert that has more than one block of rows, and with one that has none."""
        for text in (BF16, FP8, BF16.replace("7,", "1,", 1), BF16.replace(",1,0", ",0,0"),
                     BF16.replace(",1,0", ",1,1"), FP8.replace("Silu", "Gelu"),
                     BF16.replace("7,256,128,5,2", "128,256,128,3,2")):
            for layout in (deepgemm.CONTIGUOUS, deepgemm.MASKED):
                self.check(deepgemm.family, layout, text)
        for text in (BF16, FP8):
            one = text.replace("7,256,128,5,2", "300,128,128,3,1")
            t = layer_inputs(Shape.parse(one))
            t["topk_ids"] = torch.tensor([[2]] * 257 + [[0]] * 43, dtype=torch.int32)
            self.check(deepgemm.family, deepgemm.CONTIGUOUS, one, t)

    def test_lmdeploy(self) -> None:
        for text in (BF16, FP8, BF16.replace("7,", "1,", 1)):
            self.check(lmdeploy.family, lmdeploy.NAMES[Shape.parse(text).is_quantised], text)

    def test_precompile_launches_every_candidate(self) -> None:
        """One of them fails, and the next one runs."""
        cases: List[Any] = [(deepgemm.family, ["contiguous", "unknown", "masked"]),
                            (lmdeploy.family, ["fused_moe"])]
        empty = torch_family.empty_tensors
        for family, names in cases:
            with self.subTest(family.name), \
                    mock.patch.object(torch_family, "empty_tensors", lambda s, _, n: empty(s, "cpu", n)), \
                    mock.patch.object(torch.cuda, "empty_cache"), \
                    mock.patch.object(torch.cuda, "synchronize") as after_launch:
                done = list(family.precompile([candidate(name) for name in names], Shape.parse(BF16)))
                self.assertEqual(done, names)
                self.assertEqual(after_launch.call_count, len(names) - names.count("unknown"))


class Enumeration(unittest.TestCase):
    def test_offers_and_rejections(self) -> None:
        layouts = ["contiguous", "masked"]
        moe, fp8 = ["fused_moe"], ["fused_moe_blocked_fp8"]
        cases = [
            (deepgemm, BF16, HOPPER, layouts, ""), (deepgemm, FP8, HOPPER, layouts, ""),
            (deepgemm, FP8.replace("7,", "129,", 1), HOPPER, ["contiguous"], "tokens"),
            (deepgemm, BF16, CPU, [], "device"), (deepgemm, BF16, BLACKWELL, [], "device"),
            (deepgemm, FP8.replace("1x128", "Token"), HOPPER, [], "dtype"),
            (deepgemm, BF16.replace(",128,", ",96,"), HOPPER, [], "divisibility"),
            (deepgemm, FP8.replace(",128,", ",192,"), HOPPER, [], "divisibility"),
            (deepgemm, BF16 + ",b1", HOPPER, [], "form"),
            (deepgemm, BF16.replace("Silu", "Swiglu"), HOPPER, [], "activation"),
            (deepgemm, BF16.replace("bfloat16", "float16"), HOPPER, [], "dtype"),
            (lmdeploy, BF16, HOPPER, moe, ""), (lmdeploy, BF16, AMPERE, moe, ""),
            (lmdeploy, FP8, HOPPER, fp8, ""), (lmdeploy, FP8, AMPERE, [], "device"),
            (lmdeploy, BF16, CPU, [], "device"), (lmdeploy, BF16, AMD, [], "device"),
            (lmdeploy, BF16.replace("bfloat16", "float16"), HOPPER, moe, ""),
            (lmdeploy, BF16.replace(",1,0", ",1,1"), HOPPER, [], "weights"),
            (lmdeploy, BF16.replace("Silu", "Gelu"), HOPPER, [], "activation"),
            (lmdeploy, BF16.replace(",1,0", ",0,0"), HOPPER, [], "activation"),
            (lmdeploy, FP8.replace("1x128", "Token"), HOPPER, [], "dtype"),
            (lmdeploy, FP8.replace(",128,", ",192,"), HOPPER, [], "divisibility"),
            (lmdeploy, BF16 + ",b1", HOPPER, [], "form")]
        for module, text, device, names, rule in cases:
            with self.subTest(family=module.__name__, text=text, device=device.gfx):
                offers = list(module.family.enumerate(Shape.parse(text, LAYER), device))
                self.assertEqual([offer.name for offer in offers if isinstance(offer, Candidate)], names)
                rules = {offer.rule for offer in offers if isinstance(offer, Rejection)}
                self.assertEqual(rules, {rule} if rule else set())

    def test_revisions(self) -> None:
        torch_version = f"torch {torch.__version__}"
        with mock.patch.dict(os.environ, {"DG_JIT_USE_NVRTC": "1"}):
            self.assertEqual(deepgemm.family.revision(), f"deep_gemm 2.6.1 nvrtc {torch_version}")
        with mock.patch.object(importlib.metadata, "version", lambda name: f"{name}-3.6.0"):
            self.assertEqual(lmdeploy.family.revision(),
                             f"lmdeploy 0.16.0 triton triton-3.6.0 {torch_version}")


class Versions(unittest.TestCase):
    """Unknown interfaces are refused at import, with a sentence."""

    def test_deepgemm(self) -> None:
        def old(**functions: str) -> Any:
            module = types.SimpleNamespace(__version__="1.0.0")
            for name, parameters in functions.items():
                setattr(module, name, types.SimpleNamespace(__name__=name, __doc__=f"{name}({parameters})"))
            return module

        none = r"DeepGEMM 1\.0\.0 has no grouped GEMM .* install DeepGEMM 2"
        with self.assertRaisesRegex(ImportError, none):
            deepgemm.find_functions(old(m_grouped_gemm_fp8_fp8_bf16_nt_contiguous="lhs: x"))
        with self.assertRaisesRegex(ImportError, "m_grouped_bf16_gemm_nt_masked has the parameters a, b, x"):
            deepgemm.find_functions(old(m_grouped_bf16_gemm_nt_masked="a: T, b: T, x: T"))
        names = {"fp8_m_grouped_gemm_nt_masked": "a: T, b: T, d: T, masked_m: T, expected_m: int",
                 "m_grouped_fp8_gemm_nt_contiguous": "a: T, b: T, d: T, m_indices: T, recipe: T = None"}
        self.assertEqual(list(deepgemm.find_functions(old(**names))),
                         [(True, "contiguous"), (True, "masked")])

    def test_layout_that_the_version_lacks_is_rejected(self) -> None:
        found = {key: f for key, f in deepgemm.family.functions.items() if key != (False, "masked")}
        with mock.patch.object(deepgemm.family, "functions", found):
            offers = list(deepgemm.family.enumerate(Shape.parse(BF16, LAYER), HOPPER))
        self.assertIsInstance(offers[0], Candidate)
        self.assertEqual(offers[1], Rejection("masked", "version",
                                              "DeepGEMM 2.6.1 has no m_grouped_bf16_gemm_nt_masked"))

    def test_lmdeploy(self) -> None:
        cases = [("fused_moe", "topk: int", "count: int", "has no parameter topk"),
                 ("blocked_gemm_fp8", "group_size: int", "group_size: int, axis: int",
                  "quant_fp8 needs the unknown parameter axis"),
                 ("blocked_fp8_fused_moe", "def fused_moe_blocked_fp8", "def other", "is missing")]
        for module, before, after, why in cases:
            with self.subTest(module), tempfile.TemporaryDirectory() as folder:
                for file in (STUBS / "lmdeploy").rglob("*.py"):
                    copy = pathlib.Path(folder, file.relative_to(STUBS / "lmdeploy"))
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    text = file.read_text(encoding="utf-8")
                    copy.write_text(text.replace(before, after) if file.stem == module else text, "utf-8")
                with self.assertRaisesRegex(ImportError, f"LMDeploy 0.16.0: .*{why}.*knows LMDeploy 0.16"):
                    lmdeploy.check_sources(folder)

    def test_missing_package(self) -> None:
        with mock.patch.object(importlib.util, "find_spec", lambda name: None), \
                self.assertRaisesRegex(ModuleNotFoundError, "lmdeploy"):
            lmdeploy.find_package()


class Sources(unittest.TestCase):
    def folder(self, variable: str) -> pathlib.Path:
        if not os.environ.get(variable):
            self.skipTest(f"{variable} is not set")
        return pathlib.Path(os.environ[variable])

    def test_deepgemm(self) -> None:
        """pybind11 takes the names of parameters from py::arg."""
        text = (self.folder("DEEPGEMM_DIR") / "csrc/apis/gemm.hpp").read_text(encoding="utf-8")
        for key, names in deepgemm.FUNCTIONS.items():
            with self.subTest(names[0]):
                alias = re.search(rf'm\.attr\("{names[0]}"\) = m\.attr\("(\w+)"\)', text)
                bound = alias[1] if alias else names[0]
                binding = re.search(rf'm\.def\("{bound}",(.*?);\n', text, re.DOTALL)
                assert binding
                actual = re.findall(r'py::arg\("(\w+)"\)( = )?', binding[1])
                stub = deepgemm.parameters_of(getattr(deep_gemm, names[0]))
                self.assertEqual([name for name, _ in actual][:len(stub)], stub)
                expected = deepgemm.PARAMETERS[key[1]]
                for (name, default), accepted in zip(actual, expected):
                    self.assertIn(name, accepted)
                    self.assertFalse(default)
                self.assertTrue(all(default for _, default in actual[len(expected):]))

    def test_lmdeploy(self) -> None:
        package = self.folder("LMDEPLOY_DIR") / "lmdeploy"
        lmdeploy.check_sources(str(package))
        for module, (name, _) in lmdeploy.FUNCTIONS.items():
            file = f"pytorch/kernels/cuda/{module}.py"
            real, stub = [next(n for n in lmdeploy.parse(str(folder), file).body
                               if isinstance(n, ast.FunctionDef) and n.name == name)
                          for folder in (package, STUBS / "lmdeploy")]
            self.assertEqual([a.arg for a in real.args.args], [a.arg for a in stub.args.args], name)
            self.assertEqual(len(real.args.defaults), len(stub.args.defaults), name)


if __name__ == "__main__":
    unittest.main()
