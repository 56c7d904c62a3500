"""Family `aiter` without AITER: tasks, steps and the one-row table. Needs only the standard library.

The tuples are recorded from ROCm/aiter at e4048607, with texts in place of torch's and AITER's objects."""
import csv
import dataclasses
import io
import pathlib
import sys
import unittest
from typing import Any, Callable, Dict, List, Tuple

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
from moefarm.families.aiter import steps, table, tasks  # noqa: E402
from moefarm.family import Shape  # noqa: E402

FP8 = "torch.float8_e4m3fnuz"
KEY = ("gfx942", 304, 64, 6144, 4096, 8, 2, "ActivationType.Silu", "torch.bfloat16", FP8, FP8,
       "QuantType.per_1x128", 1, 0)
ROW = dict(zip(tasks.KEY_COLUMNS, KEY))
STAGE1 = "_ZN5aiter59fmoe_stage1_bf16_pertokenFp8_blockscale_g1u1_16x128_4tg_pf2E"
ONE = "_ZN5aiter47fmoe_bf16_blockscaleFp8_g1u1_vs_silu_1tg_32x256E"
CK1 = ("moe_ck2stages_gemm1_256x16x128x256_1x4_MulABScaleExpertWeightA8W8blkscale_v1_Nswizzle0_Quant4_"
       "MulRoutedWeight0_silu_F8_F8_B16")
CK2 = ("moe_ck2stages_gemm2_256x16x128x256_1x4_MulABScaleExpertWeightA8W8blkscale_v1_Nswizzle0_Quant4_"
       "MulRoutedWeight1_F8_F8_B16")
OPUS = "opus_moe1_afp8_wfp4_bf16_t16x384_pair_kw4_m2_fp8"
INT4 = "flydsl_moe1_abf16_wint4_bf16_t16x16x128_kw4"
CKTILE = "cktile_a8w4_bm32"


def function(name: str) -> Callable[..., None]:
    def launcher(*_: Any) -> None:
        raise AssertionError("decoding must not launch")
    launcher.__name__ = name
    return launcher


def recorded(tag: Tuple[Any, ...], launcher: str, data: List[str], *arguments: Any) -> Tuple[Any, ...]:
    reference = (["a1_qt", "w1_qt"], "torch.bfloat16")
    return ((KEY, *tag), function("generate"), KEY[2:], function(launcher), (data, *arguments), {},
            function("reference"), reference, {}, None, 0.01, 0.01, True)


# tuple, what it decodes to
TASKS: List[Tuple[Tuple[Any, ...], Dict[str, Any]]] = [
    (recorded(("stage1", STAGE1, 16), "run_asm_stage1", ["a1_qt", "out1", "a1_scale_t"], 2, 16, STAGE1, 0),
     {"generator": "asm", "stage": "stage1", "block_m": 16, "flat": 0, "v2": False, "xbf16": False}),
    (recorded(("stage1", CK1, 16), "ck_moe_stage1_fwd_out", ["a1_qt"], "torch.bfloat16", 2, CK1, 16),
     {"generator": "ck", "stage": "stage1", "data": ("a1_qt",), "arguments": ("torch.bfloat16", 2, CK1, 16)}),
    (recorded(("stage2", CK2, 16), "ck_moe_stage2_fwd_out", ["a2_qt"]),
     {"generator": "ck", "stage": "stage2"}),
    (recorded(("asm_1stage", ONE, 32, 0), "run_1stage_fmoe_fp8_blockscale_g1u1", ["input"]),
     {"generator": "asm", "stage": "one", "flat": 0, "xbf16": False}),
    (recorded(("asm_1stage_xbf16", ONE, 1, 1), "run_1stage_fmoe_fp8_blockscale_g1u1", ["input"]),
     {"stage": "one", "flat": 1, "xbf16": True}),
    (recorded(("stage1", OPUS, 16, 0, 1), "run_opus_stage1_out", ["a1_qt"]),
     {"generator": "opusv2", "v2": True}),
    (recorded(("stage1", OPUS, 16), "run_opus_stage1_out", ["a1_qt"]), {"generator": "opus", "v2": False}),
    (recorded(("stage1", INT4, 16), "run_flydsl_stage1_out", ["a1_qt"]), {"generator": "flydsli4"}),
    (recorded(("stage2", CKTILE, 32), "cktile_moe_stage2_out", ["a2_qt"]), {"generator": "cktile2"}),
]

GOOD = TASKS[0][0]


def changed(slot: int, value: Any) -> Tuple[Any, ...]:
    return GOOD[:slot] + (value,) + GOOD[slot + 1:]


# tuple, part of the refusal
UNKNOWN: List[Tuple[Any, str]] = [
    (GOOD[:12], "12 slots where 13 to 15 are known"),
    (GOOD + (None, None, None), "16 slots"),
    ("task", "str slots"),
    (changed(0, (KEY, "stage1", STAGE1)), "the tag is not (key, stage, kernel name, block_m"),
    (changed(0, (KEY, "stage1", STAGE1, 16, 0, 0, 0)), "the tag is not"),
    (changed(0, (KEY[:13], "stage1", STAGE1, 16)), "the key does not have the 14 values gfx, cu_num"),
    (changed(0, (KEY, "stage3", STAGE1, 16)), "stage 'stage3' is not one of stage1"),
    (changed(0, (KEY, "stage1", 7, 16)), "kernel name 7"),
    (changed(0, (KEY, "stage1", STAGE1, None)), "block_m None"),
    (changed(3, function("run_grouped_stage1")), "launcher run_grouped_stage1 is not known"),
    (changed(3, None), "the launcher is not a function"),
    (changed(4, ("a1_qt", 2)), "the arguments of the launcher are not ([names of data], …)"),
    (changed(4, ([0, 1], 2)), "the arguments of the launcher"),
    (changed(5, None), "the keyword arguments of the launcher are not a dict"),
    (changed(7, ()), "the arguments of the reference"),
]


class Decode(unittest.TestCase):
    def test_known(self) -> None:
        for raw, expected in TASKS:
            task = tasks.decode(raw, 0, "0.1.0")
            with self.subTest(task.name, stage=raw[0][1]):
                self.assertEqual({name: getattr(task, name) for name in expected}, expected)
                self.assertEqual(task.key, KEY)
                self.assertIs(task.launcher, raw[3])

    def test_longer_tuples(self) -> None:
        for more in ((), (None,), (None, ["out1"])):
            self.assertEqual(tasks.decode(GOOD + more, 0, "0.1.0").name, STAGE1)

    def test_unknown(self) -> None:
        for raw, what in UNKNOWN:
            with self.subTest(what):
                with self.assertRaises(tasks.UnknownTask) as caught:
                    tasks.decode(raw, 3, "0.1.99")
                text = str(caught.exception)
                self.assertIn(what, text)
                self.assertIn("AITER 0.1.99: task 3:", text)
                self.assertIn(tasks.KNOWN_COMMITS[0], text)

    def test_an_unknown_task_does_not_hide_the_known_ones(self) -> None:
        odd = changed(3, function("run_new"))
        known, unknown = tasks.decode_all([GOOD, odd, TASKS[1][0], odd], "0.1.99")
        self.assertEqual([task.name for task in known], [STAGE1, CK1])
        self.assertEqual([(error.kernel, error.problem) for error in unknown],
                         [(STAGE1, "launcher run_new is not known")])


def shape(**fields: Any) -> Shape:
    return dataclasses.replace(Shape.parse(",".join(str(value) for value in KEY[2:])), **fields)


X, Y, H8 = "x/bf16/none/token", "y/bf16/none/token", "h/fp8fnuz/per_1x128/slot"
W128 = ["w1/fp8fnuz/per_128x128/row", "w2/fp8fnuz/per_128x128/row"]
TOKEN = {"q_type": "QuantType.per_Token"}
# index into TASKS, fields of the shape, ops, inputs, outputs
STEPS: List[Tuple[int, Dict[str, Any], str, List[str], List[str]]] = [
    (0, {}, "quant1+gather+gemm1+act+quant2", [X, "sorted/index/none/sorted.16", *W128], [H8]),
    (2, {}, "gemm2+combine+weight", [H8, "sorted/index/none/sorted.16", *W128], [Y]),
    (0, TOKEN, "quant1+gather+gemm1+act", [X, "sorted/index/none/sorted.16", "w1/fp8fnuz/per_token/row",
                                           "w2/fp8fnuz/per_token/row"], ["h/bf16/none/slot"]),
    (2, TOKEN, "quant2+gemm2+combine+weight", ["h/bf16/none/slot", "sorted/index/none/sorted.16",
                                               "w1/fp8fnuz/per_token/row", "w2/fp8fnuz/per_token/row"], [Y]),
    (0, {**TOKEN, "doweight_stage1": True}, "quant1+gather+gemm1+act+weight", [], ["h/bf16/none/slot"]),
    (2, {**TOKEN, "doweight_stage1": True}, "quant2+gemm2+combine", [], [Y]),
    (2, {"q_type": "QuantType.No", "q_dtype_a": "torch.bfloat16", "q_dtype_w": "torch.bfloat16"},
     "gemm2+combine+weight",
     ["h/bf16/none/slot", "sorted/index/none/sorted.16", "w1/bf16/none/row", "w2/bf16/none/row"], [Y]),
    (3, {}, "quant1+quant2+gather+gemm1+act+gemm2+weight+combine",
     [X, "sorted/index/none/sorted.32", *W128], [Y]),
    (4, {}, "quant1+quant2+gather+gemm1+act+gemm2+weight+combine+sort",
     [X, "topk/index/none/token", *W128], [Y]),
]


class Steps(unittest.TestCase):
    def test_steps(self) -> None:
        for index, fields, covers, needs, gives in STEPS:
            task = tasks.decode(TASKS[index][0], 0, "0.1.0")
            with self.subTest(task.name, **fields):
                step = steps.describe(task, shape(**fields))
                self.assertEqual("+".join(step.covers), covers)
                self.assertEqual(step.gives, gives)
                if needs:
                    self.assertEqual(step.needs, needs)
                self.assertEqual(step.block_m, task.block_m)

    def test_a_pipeline_covers_each_op_once(self) -> None:
        for fields in ({}, TOKEN, {**TOKEN, "doweight_stage1": True}):
            parts = [steps.describe_sort(16)]
            parts += [steps.describe(tasks.decode(TASKS[i][0], 0, ""), shape(**fields)) for i in (0, 2)]
            ops = sorted(op for part in parts for op in part.covers)
            self.assertEqual(ops, sorted("sort quant1 gather gemm1 act quant2 gemm2 weight combine".split()))

    def test_layouts_without_a_name(self) -> None:
        task = tasks.decode(TASKS[5][0], 0, "0.1.0")
        with self.assertRaises(steps.NotLaunched) as caught:
            steps.describe(task, shape(q_type="QuantType.per_1x32", q_dtype_w="torch.float4_e2m1fn_x2"))
        self.assertEqual(caught.exception.rule, "layout")
        self.assertIn(f"opusv2:{OPUS} is enumerated but not launched", str(caught.exception))

    def test_sorts(self) -> None:
        found = [tasks.decode(raw, 0, "") for raw, _ in TASKS]
        self.assertEqual(steps.sorts_of(found), [16, 32])


PAIR = {**ROW, "block_m": 16, "kernelName1": CK1, "kernelName2": CK2}
# row, part of the message
BAD_ROWS: List[Tuple[Dict[str, Any], str]] = [
    ({**PAIR, "kernelName1": ""}, "column kernelName1 is empty"),
    ({**PAIR, "token": ""}, "column token is empty"),
    ({k: v for k, v in PAIR.items() if k != "block_m"}, "column block_m is empty"),
    ({**PAIR, "kernelName2": ""}, "kernelName2 is empty; only a row with run_1stage=1"),
    ({**PAIR, "use_g1u1": "yes"}, "column use_g1u1: 'yes': expected 0 or 1"),
    ({**PAIR, "flat": 1}, "xbf16 and flat are read only with run_1stage=1"),
]


class OneRow(unittest.TestCase):
    def test_two_stages(self) -> None:
        lines = list(csv.DictReader(io.StringIO(table.one_row({**PAIR, "use_g1u1": True}))))
        self.assertEqual(len(lines), 1)
        self.assertEqual(list(lines[0]), list(tasks.KEY_COLUMNS + table.RESULT_COLUMNS))
        flags = [lines[0][column] for column in ("use_g1u1", "doweight_stage1", "ksplit")]
        self.assertEqual(flags, ["1", "0", "0"])
        self.assertEqual((lines[0]["kernelName1"], lines[0]["kernelName2"]), (CK1, CK2))

    def test_one_stage(self) -> None:
        text = table.one_row({**ROW, "block_m": 32, "kernelName1": ONE, "run_1stage": 1, "xbf16": True})
        line = next(csv.DictReader(io.StringIO(text)))
        values = [line[column] for column in ("run_1stage", "xbf16", "flat", "kernelName2")]
        self.assertEqual(values, ["1", "1", "0", ""])
        self.assertTrue(text.endswith("\n"))

    def test_bad_rows(self) -> None:
        for row, what in BAD_ROWS:
            with self.subTest(what), self.assertRaises(table.BadRow) as caught:
                table.one_row(row)
            self.assertIn(what, str(caught.exception))


if __name__ == "__main__":
    unittest.main()
