"""Compares the stub modules of vLLM and SGLang with the frameworks' sources: every parameter of a stub is a
parameter of the framework, in the same order and with or without a default. VLLM_DIR and SGLANG_DIR name
folders with the packages `vllm` and `sglang`; skips without them. Needs torch, for the stubs."""
from __future__ import annotations

import ast
import inspect
import os
import pathlib
import sys
import unittest
from typing import Any, Dict, List, Tuple

try:
    import triton_stubs
except ImportError as error:
    raise unittest.SkipTest(f"no PyTorch: {error}") from error

VLLM = "vllm/model_executor/layers/fused_moe"
SGLANG = "sglang/srt/layers/moe"
# function of a stub module, file of the framework
FUNCTIONS: Dict[str, List[Tuple[str, str]]] = {
    "VLLM_DIR": [("fused_experts", f"{VLLM}/fused_moe.py"),
                 ("fp8_w8a8_moe_quant_config", f"{VLLM}/config.py"),
                 ("override_config", f"{VLLM}/__init__.py")],
    "SGLANG_DIR": [("fused_experts", f"{SGLANG}/fused_moe_triton/fused_moe.py"),
                   ("get_moe_configs", f"{SGLANG}/fused_moe_triton/fused_moe_triton_config.py"),
                   ("override_config", f"{SGLANG}/fused_moe_triton/__init__.py")]}
# names that the families replace in these modules while they compile
REPLACED: Dict[str, List[Tuple[str, str]]] = {
    "VLLM_DIR": [(name, f"{VLLM}/fused_moe.py") for name in
                 ("moe_align_block_size", "moe_kernel_quantize_input", "apply_moe_activation", "ops",
                  "fused_experts_impl")],
    "SGLANG_DIR": [(name, f"{SGLANG}/fused_moe_triton/fused_moe.py") for name in
                   ("moe_align_block_size", "silu_and_mul", "moe_sum_reduce", "moe_sum_reduce_torch_compile",
                    "outplace_fused_experts", "fused_experts_impl")] +
                  [(name, f"{SGLANG}/fused_moe_triton/fused_moe_triton_kernels.py") for name in
                   ("sglang_per_token_group_quant_fp8", "per_token_group_quant_fp8", "scaled_fp8_quant")]}


def parse(variable: str, file: str) -> ast.Module:
    return ast.parse(pathlib.Path(os.environ[variable], file).read_text(encoding="utf-8"))


def parameters_of(tree: ast.Module, name: str) -> Dict[str, bool]:
    """The parameters of a function, and whether each has a default."""
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    first_default = len(names) - len(function.args.defaults)
    return {parameter: i >= first_default for i, parameter in enumerate(names)}


def names_in(tree: ast.Module) -> List[str]:
    """Functions and imported names of a module, also those of conditional imports."""
    names: List[str] = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names += [alias.asname or alias.name for alias in node.names]
        elif isinstance(node, ast.FunctionDef):
            names.append(node.name)
    return names


def stubs(variable: str) -> Dict[str, Any]:
    if variable == "VLLM_DIR":
        module = triton_stubs.install_vllm()
        found = {"fp8_w8a8_moe_quant_config": triton_stubs.fp8_w8a8_moe_quant_config}
    else:
        module = triton_stubs.install_sglang()
        config = sys.modules["sglang.srt.layers.moe.fused_moe_triton.fused_moe_triton_config"]
        found = {"get_moe_configs": getattr(config, "get_moe_configs")}
    return {**found, "fused_experts": module.fused_experts,
            "override_config": triton_stubs.Override().override_config}


class Sources(unittest.TestCase):
    def needs(self, variable: str) -> None:
        if not os.environ.get(variable):
            self.skipTest(f"{variable} is not set")

    def check(self, variable: str) -> None:
        self.needs(variable)
        known = stubs(variable)
        for name, file in FUNCTIONS[variable]:
            with self.subTest(name):
                theirs = parameters_of(parse(variable, file), name)
                ours = {parameter: value.default is not inspect.Parameter.empty
                        for parameter, value in inspect.signature(known[name]).parameters.items()}
                self.assertEqual({parameter: theirs.get(parameter) for parameter in ours}, ours)
                order = [parameter for parameter in theirs if parameter in ours]
                self.assertEqual(order, list(ours))
                needed = {parameter for parameter, has_default in theirs.items() if not has_default}
                self.assertEqual(needed - set(ours), set())
        for name, file in REPLACED[variable]:
            self.assertIn(name, names_in(parse(variable, file)))

    def test_vllm(self) -> None:
        self.check("VLLM_DIR")

    def test_sglang(self) -> None:
        self.check("SGLANG_DIR")


if __name__ == "__main__":
    unittest.main()
