"""Tests the parts of the families of vLLM and SGLang that need neither torch nor a framework: names of
configurations, legal layers, search spaces, pruning, packaged files, and the list of candidates."""
from __future__ import annotations

import json
import os
import pathlib
import tempfile
import unittest
from typing import Dict, List, Sequence, Tuple
from unittest import mock

from moefarm.families.triton_moe.config import Config, parse_name, print_name, read_config
from moefarm.families.triton_moe.layer import Layer, layer_of, refusal
from moefarm.families.triton_moe.offers import LIMIT_ENV, choose, device_name, limit, offers
from moefarm.families.triton_moe.packaged import packaged
from moefarm.families.triton_moe.prune import RULES, prune, shared_bytes, why_not
from moefarm.families.triton_moe.space import configurations
from moefarm.families.triton_moe.spread import spread
from moefarm.family import Candidate, Device, Rejection, Shape

HOPPER = Device("hip:nvidia:0", "sm_90", 132, {"lds": 232448, "model": "NVIDIA H200"})
AMPERE = Device("hip:nvidia:0", "sm_80", 108, {"lds": 166912})
ADA = Device("hip:nvidia:0", "sm_89", 128, {"lds": 101376})
BLACKWELL = Device("hip:nvidia:0", "sm_100", 148, {"lds": 232448})
MI300 = Device("hip:amd:0", "gfx942", 304, {"lds": 65536})
BF16 = "64,2048,768,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0"
FP8 = BF16.replace("torch.bfloat16,torch.bfloat16,QuantType.No",
                   "torch.float8_e4m3fn,torch.float8_e4m3fn,QuantType.per_1x128")
LAYER = {"covers": "sort+gemm1", "needs": ["x/bf16/none/token"], "gives": ["y/bf16/none/token"], "flops": 1.0,
         "bytes": 1.0}


def config(m: int, n: int, k: int, g: int, w: int, s: int) -> Config:
    return {"BLOCK_SIZE_M": m, "BLOCK_SIZE_N": n, "BLOCK_SIZE_K": k, "GROUP_SIZE_M": g, "num_warps": w,
            "num_stages": s}


def layer(text: str, device: Device = HOPPER) -> Layer:
    return layer_of(Shape.parse(text), device)


def tokens(text: str, n: int) -> str:
    return f"{n},{text.split(',', 1)[1]}"


class Names(unittest.TestCase):
    # tests/unit/common/table/check_triton_config.c has the same names.
    NAMES = ("triton_m64_n128_k64_g8_w4_s3", "triton_m8_n64_k128_g1_w4_s4",
             "triton_m64_n128_k64_g8_w4_s3_tma",
             "triton_m16_n64_k64_g1_w4_s5-down_m16_n128_k64_g64_w8_s2_tma",
             "triton_m16_n64_k64_g1_w4_s2_eu1_mi16_kp2", "triton_m128_n256_k64_g16_w8_s4_sk1_cta1")

    def test_printing_repeats_what_was_parsed(self) -> None:
        for name in self.NAMES:
            with self.subTest(name):
                up, down = parse_name(name)
                assert up
                self.assertEqual(print_name(up, down), name)

    def test_default_has_no_configuration(self) -> None:
        self.assertEqual(parse_name("default"), (None, None))

    def test_other_names_are_refused(self) -> None:
        cases = [("triton_m64_n128_k64_g8_w4", "num_stages is missing"), ("grouped_mm", "expected default"),
                 ("triton_m64_m64_n128_k64_g8_w4_s3", "part 'm64'"),
                 ("triton_m_n128_k64_g8_w4_s3", "part 'm'"),
                 ("triton_m64_n128_k64_g8_w4_s3_tma1", "part 'tma1'"),
                 ("triton_m64_n128_k64_g8_w4_s3_x1", "part 'x1'"),
                 ("triton_m64_n128_k64_g8_w4_s3-down_m64", "BLOCK_SIZE_N is missing")]
        for name, message in cases:
            with self.subTest(name), self.assertRaisesRegex(ValueError, message):
                parse_name(name)

    def test_objects_of_files(self) -> None:
        good = config(64, 128, 64, 8, 4, 3)
        self.assertEqual(read_config({**good, "SPLIT_K": 1, "USE_TMA": True}), {**good, "USE_TMA": 1})
        self.assertEqual(read_config({**good, "USE_TMA": False}), good)
        self.assertIsNone(read_config({**good, "BLOCK_SIZE_Q": 1}))
        self.assertIsNone(read_config({"BLOCK_SIZE_M": 64}))
        self.assertIsNone(read_config({**good, "num_warps": "many"}))


class Layers(unittest.TestCase):
    def test_legal_layers_and_reasons(self) -> None:
        fnuz = FP8.replace("e4m3fn", "e4m3fnuz")
        cases: List[Tuple[str, Device, str]] = [
            (BF16, HOPPER, ""), (BF16, AMPERE, ""), (BF16, MI300, ""), (FP8, HOPPER, ""), (FP8, ADA, ""),
            (FP8, BLACKWELL, ""), (fnuz, MI300, ""), (BF16.replace("bfloat16", "float16"), HOPPER, ""),
            (FP8.replace("1x128", "Token"), HOPPER, ""), (FP8.replace("1x128", "Tensor"), HOPPER, ""),
            (FP8.replace("1x128", "1x32"), HOPPER, "dtype"), (FP8, MI300, "dtype"), (fnuz, HOPPER, "dtype"),
            (FP8.replace("torch.float8_e4m3fn,torch", "torch.bfloat16,torch"), HOPPER, "dtype"),
            (FP8, AMPERE, "device"), (BF16, Device("cpu:0", "x86", 8), "device"),
            (FP8.replace(",768,", ",704,"), HOPPER, "divisibility"), (BF16 + ",b1", HOPPER, "form"),
            (BF16.replace("Silu", "Gelu"), HOPPER, "activation"),
            (BF16.replace(",1,0", ",0,0"), HOPPER, "activation")]
        for text, device, rule in cases:
            with self.subTest(text=text, device=device.gfx):
                refused = refusal(Shape.parse(text), device)
                self.assertEqual(refused[0] if refused else "", rule)


class Pruning(unittest.TestCase):
    def test_size_of_the_spaces(self) -> None:
        cases = {("vllm", "nvidia", False): 1920, ("vllm", "nvidia", True): 1920,
                 ("sglang", "nvidia", False): 1920, ("vllm", "amd", True): 8000,
                 ("sglang", "amd", True): 1600}
        for key, n in cases.items():
            self.assertEqual(len(configurations(*key)), n, key)

    def test_each_rule(self) -> None:
        large, small = tokens(BF16, 16384), tokens(BF16, 16)
        mfma = {**config(16, 16, 64, 1, 4, 2), "matrix_instr_nonkdim": 32}
        cases: List[Tuple[str, Config, Layer, str]] = [
            ("scale_block", config(64, 128, 256, 1, 4, 3), layer(FP8), "vllm"),
            ("scale_block", config(64, 128, 256, 1, 4, 3), layer(FP8), "sglang"),
            ("", config(64, 128, 256, 1, 8, 3), layer(tokens(FP8.replace("1x128", "Token"), 1024)), "vllm"),
            ("", config(16, 64, 64, 1, 4, 3), layer(FP8), "vllm"),
            ("shared_memory", config(128, 256, 64, 1, 8, 5), layer(large), "vllm"),
            ("", config(128, 256, 64, 1, 8, 4), layer(large), "vllm"),
            ("shared_memory", config(128, 256, 128, 1, 8, 3), layer(large, AMPERE), "vllm"),
            ("registers", config(256, 256, 64, 1, 8, 2), layer(large), "vllm"),
            ("registers", config(128, 256, 64, 1, 4, 2), layer(large), "vllm"),
            ("warps", config(16, 32, 64, 1, 8, 2), layer(small), "vllm"),
            ("block_m", config(64, 128, 64, 1, 4, 2), layer(small), "vllm"),
            ("", config(16, 128, 64, 1, 4, 2), layer(small), "vllm"),
            ("block_m_small", config(16, 128, 64, 1, 4, 2), layer(large), "vllm"),
            ("group", config(16, 128, 64, 16, 4, 2), layer(small), "vllm"),
            ("matrix_instruction", mfma, layer(BF16, MI300), "vllm")]
        for rule, values, about, framework in cases:
            with self.subTest(rule=rule, values=values):
                why = why_not(values, about, framework)
                self.assertEqual(why[0] if why else "", rule)
        self.assertEqual({rule for rule, *_ in cases} - {""}, set(RULES))

    def test_shared_memory_is_what_the_compiler_reports(self) -> None:
        """Measured with Triton 3.6 for vLLM 0.33's kernel; scales of FP8 blocks add 512 bytes."""
        cases = [((128, 128, 64, 1, 8, 4), BF16, HOPPER, 131072),
                 ((64, 128, 64, 1, 4, 3), BF16, HOPPER, 73728),
                 ((16, 64, 128, 1, 4, 5), BF16, HOPPER, 81920),
                 ((128, 256, 64, 1, 8, 4), BF16, HOPPER, 196608),
                 ((128, 128, 64, 1, 8, 4), BF16, AMPERE, 98304),
                 ((128, 128, 128, 1, 8, 4), FP8, HOPPER, 131072),
                 ((16, 128, 128, 1, 4, 4), FP8, HOPPER, 74240 - 512)]
        for values, text, device, expected in cases:
            with self.subTest(values=values, text=text):
                self.assertEqual(shared_bytes(config(*values), layer(text, device)), expected)

    def test_every_configuration_is_kept_or_counted(self) -> None:
        for text in (tokens(BF16, 1), BF16, tokens(BF16, 16384), FP8, tokens(FP8, 4096)):
            for framework in ("vllm", "sglang"):
                with self.subTest(text=text, framework=framework):
                    space = configurations(framework, "nvidia", True)
                    kept, rejections = prune(space, layer(text), framework)
                    others = sum(1 + int(r.reason.rpartition(", and ")[2].split()[0]) if ", and " in r.reason
                                 else 1 for r in rejections)
                    self.assertEqual(len(kept) + others, len(space))
                    self.assertGreater(len(kept), 20)


class Spread(unittest.TestCase):
    def test_few_see_every_value(self) -> None:
        space = configurations("vllm", "nvidia", False)
        picked = spread(space, 24)
        self.assertEqual(len({print_name(c) for c in picked}), 24)
        for field in space[0]:
            self.assertLessEqual({min(c[field] for c in space), max(c[field] for c in space)},
                                 {c[field] for c in picked}, field)

    def test_edges(self) -> None:
        space = configurations("vllm", "nvidia", False)[:5]
        self.assertEqual(spread(space, 9), space)
        self.assertEqual(spread([], 3), [])
        self.assertEqual(spread(space, 0), [])
        self.assertNotIn(space[0], spread(space, 1, space[:1]))

    def test_many_of_a_large_space(self) -> None:
        space = configurations("vllm", "amd", False)
        picked = spread(space, 4096)
        self.assertEqual(len({print_name(c) for c in picked}), 4096)
        self.assertEqual({c["matrix_instr_nonkdim"] for c in picked}, {16, 32})


class Packaged(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def write(self, name: str, rows: Dict[str, object]) -> None:
        pathlib.Path(self.folder, name).write_text(json.dumps(rows), encoding="utf-8")

    def read(self, text: str, framework: str = "vllm") -> List[Tuple[Config, object]]:
        return list(packaged([self.folder, "/nonexistent"], layer(text), framework, "NVIDIA_H200"))

    def test_the_most_similar_layer_first(self) -> None:
        a, b, c = (config(m, 64, 64, 1, 4, 3) for m in (16, 32, 64))
        self.write("E=128,N=768,device_name=NVIDIA_H200.json", {"1": b, "64": a, "triton_version": "3.6.0"})
        self.write("E=128,N=768,device_name=NVIDIA_H100.json", {"64": c})
        self.write("E=256,N=384,device_name=NVIDIA_H200.json", {"48": b, "1024": c})
        self.write("E=8,N=96,device_name=NVIDIA_H200.json", {"64": a})
        self.write("E=128,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8.json",
                   {"64": config(8, 8, 8, 1, 1, 1)})
        self.write("E=128,N=640,device_name=NVIDIA_H200.json", {"x": 1})
        broken = pathlib.Path(self.folder, "E=128,N=512,device_name=NVIDIA_H200.json")
        broken.write_text("[", encoding="utf-8")
        self.assertEqual(self.read(BF16), [(a, None), (b, None), (c, None)])

    def test_down_files_belong_to_their_layer(self) -> None:
        up, down = config(64, 64, 64, 1, 4, 3), {**config(64, 128, 128, 1, 8, 3), "USE_TMA": 1}
        stem = "E=128,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128]"
        self.write(f"{stem}.json", {"64": up})
        self.write(f"{stem}_down.json", {"64": {**down, "USE_TMA": True}})
        self.assertEqual(self.read(FP8, "sglang"), [(up, down)])


class Offers(unittest.TestCase):
    def names(self, framework: str, text: str, n: int, folders: Sequence[str] = ()) -> List[str]:
        with mock.patch.dict(os.environ, {LIMIT_ENV: str(n)}):
            found = list(offers(framework, Shape.parse(text, LAYER), HOPPER, folders))
        return [offer.name for offer in found if isinstance(offer, Candidate)]

    def test_default_comes_first_and_names_differ(self) -> None:
        for framework in ("vllm", "sglang"):
            for text in (tokens(BF16, 1), BF16, FP8, tokens(FP8, 16384)):
                with self.subTest(framework=framework, text=text):
                    names = self.names(framework, text, 4096)
                    self.assertEqual(names[0], "default")
                    self.assertEqual(len(set(names)), len(names))
                    self.assertLessEqual(max(len(name) for name in names), 159)
                    for name in names[1:]:
                        up, down = parse_name(name)
                        self.assertEqual(print_name(up or {}, down), name)

    def test_packaged_configurations_are_offered_once(self) -> None:
        """A file's configuration of the second GEMM may be one that `choose` adds: the same with TMA."""
        up = config(16, 64, 64, 1, 4, 3)
        with tempfile.TemporaryDirectory() as folder:
            stem = pathlib.Path(folder, "E=128,N=768,device_name=NVIDIA_H200")
            for end, values in ((".json", up), ("_down.json", {**up, "USE_TMA": True})):
                pathlib.Path(f"{stem}{end}").write_text(json.dumps({"64": values}), encoding="utf-8")
            for n in (4096, 24):
                names = self.names("sglang", BF16, n, [folder])
                self.assertIn("triton_m16_n64_k64_g1_w4_s3-down_m16_n64_k64_g1_w4_s3_tma", names)
                self.assertEqual(len(set(names)), len(names))

    def test_limit(self) -> None:
        for framework in ("vllm", "sglang"):
            names = self.names(framework, BF16, 24)
            self.assertEqual(len(names), 25)
            self.assertEqual(any("-down" in name for name in names), framework == "sglang")

    def test_half_of_a_limit_is_packaged(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for i, m in enumerate((16, 16, 16, 16)):
                rows = {"64": config(m, 64 if i % 2 else 128, 64 if i > 1 else 128, 1, 4, 3)}
                path = pathlib.Path(folder, f"E=128,N={768 + i},device_name=NVIDIA_H200.json")
                path.write_text(json.dumps(rows), encoding="utf-8")
            names = self.names("vllm", BF16, 4, [folder])
        self.assertEqual(names[:3], ["default", "triton_m16_n128_k128_g1_w4_s3",
                                     "triton_m16_n64_k128_g1_w4_s3"])
        self.assertEqual(len(names), 5)

    def test_what_is_not_offered_is_told(self) -> None:
        _, rejections = choose(layer(BF16), "vllm", [], "NVIDIA_H200", 24)
        self.assertIn("limit", [r.rule for r in rejections])
        _, rejections = choose(layer(BF16), "vllm", [], "NVIDIA_H200", 4096)
        self.assertNotIn("limit", [r.rule for r in rejections])

    def test_illegal_layers_have_one_rejection(self) -> None:
        offer, = offers("vllm", Shape.parse(BF16.replace("Silu", "Gelu"), LAYER), HOPPER, [])
        assert isinstance(offer, Rejection)
        self.assertEqual((offer.kernel, offer.rule), ("triton", "activation"))

    def test_limit_must_be_a_number(self) -> None:
        for text in ("0", "many", "-1", "4097"):
            with self.subTest(text), mock.patch.dict(os.environ, {LIMIT_ENV: text}), \
                    self.assertRaisesRegex(ValueError, f"{LIMIT_ENV}={text}: expected a number from 1 to"):
                limit()

    def test_device_names_are_those_of_files(self) -> None:
        cases = {"NVIDIA H200": "NVIDIA_H200", "NVIDIA H200 NVL": "NVIDIA_H200",
                 "NVIDIA H100 80GB HBM3": "NVIDIA_H100_80GB_HBM3",
                 "AMD Instinct MI300X": "AMD_Instinct_MI300X"}
        for model, name in cases.items():
            self.assertEqual(device_name(Device("hip:nvidia:0", "sm_90", 1, {"model": model})), name)


if __name__ == "__main__":
    unittest.main()
