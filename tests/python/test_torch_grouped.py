"""Tests torch_family.py and the family torch_grouped on a CPU: a layer's output against a plain loop over the
routes, rejections, and results in memory of torch. Needs torch; skips without it."""
from __future__ import annotations

import unittest
from typing import Mapping

try:
    import torch
except ImportError as error:
    raise unittest.SkipTest(f"no PyTorch: {error}") from error

from moefarm.families import torch_grouped
from moefarm.family import Candidate, Device, Rejection, Shape
from moefarm.tensor import Tensor
from moefarm.torch_family import TorchKernel, activate, quantise_rows

CPU = Device("cpu:0", "x86", 1)
HOPPER = Device("hip:nvidia:0", "sm_90", 132)
AMPERE = Device("hip:nvidia:0", "sm_80", 108)
BLACKWELL = Device("hip:nvidia:0", "sm_100", 148)
BF16 = "7,64,48,5,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0"
FP8 = BF16.replace("torch.bfloat16,torch.bfloat16,QuantType.No",
                   "torch.float8_e4m3fn,torch.float8_e4m3fn,QuantType.per_Token")
LAYER = {"covers": "sort+gemm1", "needs": ["x/bf16/none/token"], "gives": ["y/bf16/none/token"], "flops": 1.0,
         "bytes": 1.0}


def inputs(shape: Shape) -> dict[str, torch.Tensor]:
    torch.manual_seed(7)
    rows = shape.inter_dim * (2 if shape.use_g1u1 else 1)
    return {"x": torch.randn(shape.token, shape.model_dim).bfloat16(),
            "topk_ids": torch.rand(shape.token, shape.expert).argsort(1)[:, :shape.topk].int(),
            "topk_weights": torch.rand(shape.token, shape.topk),
            "w1": (torch.randn(shape.expert, rows, shape.model_dim) / 8).bfloat16(),
            "w2": (torch.randn(shape.expert, shape.model_dim, shape.inter_dim) / 8).bfloat16(),
            "y": torch.zeros(shape.token, shape.model_dim).bfloat16()}


def reference(shape: Shape, t: dict[str, torch.Tensor]) -> torch.Tensor:
    y = torch.zeros(shape.token, shape.model_dim)
    for token in range(shape.token):
        for slot in range(shape.topk):
            expert, weight = int(t["topk_ids"][token, slot]), float(t["topk_weights"][token, slot])
            g = t["w1"][expert].float() @ t["x"][token].float()
            if shape.doweight_stage1:
                g = g * weight
            h = activate(g, shape.act_type, shape.use_g1u1)
            y[token] += t["w2"][expert].float() @ h * (1 if shape.doweight_stage1 else weight)
    return y


def relative_error(y: torch.Tensor, expected: torch.Tensor) -> float:
    return float((y.float() - expected).norm() / expected.norm())


def farm_tensor(name: str, array: torch.Tensor, dtype: str, writable: bool = False) -> Tensor:
    return Tensor(name, list(array.shape), dtype, array.data_ptr(), writable=writable)


class Layers(unittest.TestCase):
    def test_layer_equals_the_loop(self) -> None:
        for text in (BF16, BF16.replace(",1,0", ",0,0"), BF16.replace(",1,0", ",1,1"),
                     BF16.replace("Silu", "Gelu"), BF16.replace("7,64", "1,64")):
            with self.subTest(text):
                shape = Shape.parse(text, LAYER)
                t = inputs(shape)
                kernel = torch_grouped.family.open(Candidate("grouped_mm", (), (), ()), shape)
                y = kernel.forward(t)
                assert y is not None
                self.assertLess(relative_error(y, reference(shape, t)), 0.008)

    def test_gemms_of_sorted_rows(self) -> None:
        """Blocks of 16 rows, padding rows, an expert without rows, and garbage beyond num_valid."""
        shape = Shape.parse(BF16.replace("7,64,48,5,2", "20,64,48,3,1"), LAYER)
        t = inputs(shape)
        t["topk_ids"] = torch.tensor([[0]] * 18 + [[2]] * 2, dtype=torch.int32)
        padding = (1 << 24) | 20
        rows = [list(range(16)), [16, 17] + [padding] * 14, [18, 19] + [padding] * 14, [7] * 16]
        t.update(sorted_ids=torch.tensor(sum(rows, []), dtype=torch.int32),
                 sorted_experts=torch.tensor([0, 0, 2, 99], dtype=torch.int32),
                 sorted_num_valid=torch.tensor([48, 20], dtype=torch.int32),
                 h=torch.zeros(64, 48).bfloat16(), z=torch.zeros(20, 64).bfloat16())
        for name in ("gemm1_m16", "gemm2_m16"):
            kernel = torch_grouped.family.open(Candidate(name, (), (), ()), shape)
            self.assertIsNone(kernel.forward(t))
        y = t["z"].float() * t["topk_weights"]
        self.assertLess(relative_error(y, reference(shape, t)), 0.008)

    def test_launch_copies_the_result(self) -> None:
        shape = Shape.parse(BF16, LAYER)
        t = inputs(shape)
        dtypes = {"topk_ids": "int32", "topk_weights": "float32"}
        tensors = {name: farm_tensor(name, array, dtypes.get(name, "bfloat16"), name == "y")
                   for name, array in t.items()}
        kernel = torch_grouped.family.open(Candidate("grouped_mm", (), (), ()), shape)
        self.assertEqual(kernel.prepare(tensors, 0), 0)
        kernel.launch(tensors, 0)
        self.assertLess(relative_error(t["y"], reference(shape, t)), 0.008)
        kernel.close()

    def test_output_of_another_shape_is_refused(self) -> None:
        class Wrong(TorchKernel):
            def forward(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
                return tensors["x"][1:]

        shape = Shape.parse(BF16, LAYER)
        t = inputs(shape)
        tensors = {name: farm_tensor(name, t[name], "bfloat16", name == "y") for name in ("x", "y")}
        with self.assertRaisesRegex(ValueError, r"forward returned \(6, 64\), but y is \(7, 64\)"):
            Wrong().launch(tensors, 0)

    def test_quantise(self) -> None:
        x = torch.randn(5, 32).bfloat16() * torch.tensor([[1.0], [1e-3], [300.0], [0.0], [1.0]]).bfloat16()
        q, scale = quantise_rows(x)
        back = q.float() * scale[:, None]
        self.assertTrue(torch.isfinite(back).all())
        self.assertLess(float((back - x.float()).abs().max() / 300), 0.3)
        self.assertEqual(float(back[3].abs().max()), 0)


class Enumeration(unittest.TestCase):
    def test_offers_and_rejections(self) -> None:
        cases = [(BF16, CPU, "grouped_mm", ""), (BF16, HOPPER, "grouped_mm", ""),
                 (FP8, HOPPER, "scaled_grouped_mm", ""), (FP8, BLACKWELL, "scaled_grouped_mm", ""),
                 (FP8, AMPERE, "scaled_grouped_mm", "device"),
                 (FP8, CPU, "scaled_grouped_mm", "device"),
                 (FP8.replace("per_Token", "per_1x128"), HOPPER, "scaled_grouped_mm", "dtype"),
                 (BF16.replace(",48,", ",40,"), HOPPER, "grouped_mm", "divisibility"),
                 (BF16 + ",b1", HOPPER, "grouped_mm", "form"),
                 (BF16.replace("Silu", "Swiglu"), HOPPER, "grouped_mm", "activation")]
        for text, device, name, rule in cases:
            with self.subTest(text=text, device=device.name):
                offer, *more = torch_grouped.family.enumerate(Shape.parse(text, LAYER), device)
                whole_layer_only = bool(rule) or text.startswith(FP8)
                names = [step.name for step in more if isinstance(step, Candidate)]
                self.assertEqual(names, [] if whole_layer_only else ["gemm1_m16", "gemm2_m16"])
                if isinstance(offer, Rejection):
                    self.assertEqual((offer.kernel, offer.rule), (name, rule))
                else:
                    self.assertEqual((offer.name, ""), (name, rule))

    def test_revision_names_torch(self) -> None:
        self.assertEqual(torch_grouped.family.revision(), f"torch {torch.__version__}")


if __name__ == "__main__":
    unittest.main()
