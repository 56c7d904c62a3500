"""Launches every task that AITER's tuner makes of small layers, on the CPU, with stand-ins for AITER's
operators, and runs rows of a table through AITER's own fused_moe.

    AITER_DIR=CHECKOUT python3 test_aiter_launch.py [gfx942|gfx950]

AITER's functions, weight layouts and dispatcher are the real ones. The operators are replaced (aiter_ops.py),
so that the test shows that each operator gets the arguments from which the right result follows. Skipped if
the interpreter cannot import AITER's sources. One process has one device class."""
import dataclasses
import os
import pathlib
import subprocess
import sys
import unittest
from typing import Any, Dict, List, NamedTuple, Tuple
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import aiter_host  # noqa: E402

IS_CHILD = len(sys.argv) > 1 and sys.argv[1].startswith("gfx")
GFX = sys.argv.pop(1) if IS_CHILD else "gfx942"
CU_NUM = {"gfx942": 304, "gfx950": 256}[GFX]
FP8 = {"gfx942": "torch.float8_e4m3fnuz", "gfx950": "torch.float8_e4m3fn"}[GFX]
MISSING = aiter_host.missing()
if not MISSING:
    HOST = aiter_host.install(GFX, CU_NUM)
    import torch
    from moefarm.families.aiter import adapter, launch, production, source, steps, table, tasks
    from moefarm.family import Shape

    import aiter_ops

    AITER = source.load()
    OPS = aiter_ops.Ops(AITER)
T, H, I, E, K = 4, 256, 256, 4, 2


class Layer(NamedTuple):
    """A layer whose tensors are as the farm describes them (kernels/core/tensors.h)."""

    shape: "Shape"
    tensors: Dict[str, Any]
    y: Any  # double precision, from the quantised values


# (activation, dtype, q_type, doweight_stage1)
KINDS: List[Tuple[str, str, str, bool]] = [
    ("Silu", "torch.bfloat16", "No", False),
    ("Gelu", "torch.bfloat16", "No", False),
    ("Silu", "torch.int8", "per_Tensor", False),
    ("Silu", FP8, "per_Tensor", False),
    ("Silu", FP8, "per_Token", False),
    ("Gelu", FP8, "per_Token", True),
    ("Silu", "torch.int8", "per_Token", False),
    ("Silu", FP8, "per_1x128", False),
]


def shape_of(kind: Tuple[str, str, str, bool]) -> "Shape":
    act, dtype, q_type, doweight = kind
    return Shape(T, H, I, E, K, f"ActivationType.{act}", "torch.bfloat16", dtype, dtype,
                 f"QuantType.{q_type}", True, doweight)


def quantise_weight(w: Any, shape: "Shape") -> Tuple[Any, Any]:
    """Values [E, N, K] and scales in the farm's shapes: [E], [E, N, 1], [E, N/128, K/128]."""
    kind = shape.q_type.split(".")[1]
    dtype = launch.dtype_of(AITER, shape.q_dtype_w)
    if kind == "No":
        return w, None
    experts, rows, cols = w.shape
    if kind == "per_1x128":
        tiles = w.view(experts, rows // 128, 128, cols // 128, 128).permute(0, 1, 3, 2, 4)
        values, scale = aiter_ops.quantise(tiles.reshape(-1, 128 * 128), dtype, "per_Token")
        values = values.view(experts, rows // 128, cols // 128, 128, 128).permute(0, 1, 3, 2, 4)
        return values.reshape(w.shape), scale.view(experts, rows // 128, cols // 128)
    flat = w.reshape(experts, -1) if kind == "per_Tensor" else w.reshape(-1, cols)
    values, scale = aiter_ops.quantise(flat, dtype, "per_Token")
    return values.view(w.shape), scale.view(experts) if kind == "per_Tensor" else scale.view(experts, rows, 1)


def make_layer(kind: Tuple[str, str, str, bool]) -> Layer:
    shape = shape_of(kind)
    torch.manual_seed(7)
    tensors = {"x": torch.randn(T, H).bfloat16()}
    tensors["topk_weights"], ids = torch.randn(T, E).softmax(-1).topk(K)
    tensors["topk_ids"] = ids.int()
    for name, size in (("w1", (E, 2 * I, H)), ("w2", (E, H, I))):
        values, scale = quantise_weight(torch.randn(*size).bfloat16() / 10, shape)
        tensors[name] = values
        if scale is not None:
            tensors[f"{name}_scale"] = scale
    return Layer(shape, tensors, expected(shape, tensors))


def mxfp4_layer(shape: "Shape") -> Layer:
    """A layer with fp4 weights, as bytes [E, N, K / 2] and scales [E, N, K / 32]."""
    torch.manual_seed(7)
    tensors, weights = {"x": torch.randn(T, H).bfloat16()}, {}
    tensors["topk_weights"], ids = torch.randn(T, E).softmax(-1).topk(K)
    tensors["topk_ids"] = ids.int()
    for name, size in (("w1", (E, 2 * I, H)), ("w2", (E, H, I))):
        values, scale = aiter_ops.to_mxfp4(torch.randn(size[0] * size[1], size[2]) / 10)
        tensors[name] = values.view(*size[:2], -1)
        tensors[f"{name}_scale"] = scale.view(*size[:2], -1).view(torch.float8_e8m0fnu)
        weights[name] = aiter_ops.of_mxfp4(tensors[name], tensors[f"{name}_scale"])
    x = aiter_ops.of_mxfp4(*aiter_ops.to_mxfp4(tensors["x"]))
    gate, up = torch.einsum("th,tknh->tkn", x, weights["w1"][ids]).chunk(2, -1)
    h = (torch.nn.functional.silu(gate) * up).bfloat16().view(T * K, I)
    h = aiter_ops.of_mxfp4(*aiter_ops.to_mxfp4(h)).view(T, K, I)
    z = torch.einsum("tki,tkhi->tkh", h, weights["w2"][ids])
    return Layer(shape, tensors, (z * tensors["topk_weights"][..., None].double()).sum(1))


def through_quant(x: Any, shape: "Shape") -> Any:
    """x rounded as the layer quantises activations."""
    kind = shape.q_type.split(".")[1]
    if kind == "No":
        return x.double()
    values, scale = aiter_ops.quantise(x, launch.dtype_of(AITER, shape.q_dtype_a), kind)
    return aiter_ops.decode_rows(values, scale, False)


def expected(shape: "Shape", tensors: Dict[str, Any]) -> Any:
    w1, w2 = (aiter_ops.decode_weight(tensors[name], tensors.get(f"{name}_scale")) for name in ("w1", "w2"))
    x, ids, factors = through_quant(tensors["x"], shape), tensors["topk_ids"].long(), tensors["topk_weights"]
    act = torch.nn.functional.gelu if shape.act_type.endswith("Gelu") else torch.nn.functional.silu
    gate_up = torch.einsum("th,tknh->tkn", x, w1[ids])
    if shape.doweight_stage1:
        gate_up = gate_up * factors[..., None].double()
    gate, up = gate_up.chunk(2, -1)
    h = (act(gate) * up).bfloat16()
    z = torch.einsum("tki,tkhi->tkh", through_quant(h.view(T * K, I), shape).view(T, K, I), w2[ids])
    return (z if shape.doweight_stage1 else z * factors[..., None].double()).sum(1)


def outputs_for(shape: "Shape", block_m: int) -> Dict[str, Any]:
    """Output buffers, filled with a pattern that no result has."""
    rows = -(-(T * K + min(E, T * K) * (block_m - 1)) // block_m) * block_m
    spec = steps.h_spec(shape)
    tensors = {"y": torch.full((T, H), float("nan")).bfloat16(),
               "sorted_ids": torch.full((rows,), -7, dtype=torch.int32),
               "sorted_weights": torch.full((rows,), 9e9),
               "sorted_experts": torch.full((rows // block_m,), -7, dtype=torch.int32),
               "sorted_num_valid": torch.full((2,), -7, dtype=torch.int32)}
    if spec.startswith("h/bf16"):
        return {**tensors, "h": torch.full((T * K, I), float("nan")).bfloat16()}
    h = torch.full((T * K, I), 0x7F, dtype=torch.uint8).view(launch.dtype_of(AITER, shape.q_dtype_a))
    return {**tensors, "h": h, "h_scale": torch.full((T * K, I // 128), float("nan"))}


def error_of(y: Any, reference: Any) -> float:
    """The largest relative error of a row; infinite if a value is not finite."""
    if not bool(torch.isfinite(y).all()):
        return float("inf")
    return float(((y.double() - reference).norm(dim=1) / reference.norm(dim=1)).max())


def capture(shape: "Shape") -> "Tuple[tasks.Task, ...]":
    known, unknown = AITER.capture(adapter.row_of(shape, GFX, CU_NUM))
    assert not unknown, unknown
    return known


def inputs_of(task: "tasks.Task", layer: Layer, buffers: Dict[str, Any]) -> Dict[str, Any]:
    """What the runner passes: the tensors that the step names, and no others."""
    described = steps.describe(task, layer.shape)
    everything = {**layer.tensors, **buffers}
    names = [spec.split("/")[0] for spec in (*described.needs, *described.gives)]
    return {name: tensor for name, tensor in everything.items() if name.split("_")[0] in names}


@unittest.skipIf(MISSING, MISSING)
class Launch(unittest.TestCase):
    def setUp(self) -> None:
        OPS.break_result = OPS.fail = False
        OPS.calls.clear()

    def run_task(self, task: "tasks.Task", layer: Layer, buffers: Dict[str, Any]) -> None:
        weights = launch.convert_weights(AITER, layer.shape, layer.tensors)
        tensors = inputs_of(task, layer, buffers)
        launch.finish(tensors, launch.Launcher(AITER, task, layer.shape).launch(tensors, weights))
        self.assertEqual(OPS.calls[-1], task.name)

    def sort(self, layer: Layer, block_m: int) -> Dict[str, Any]:
        buffers = outputs_for(layer.shape, block_m)
        copies = launch.Sorter(AITER, block_m, layer.shape).launch(layer.tensors)
        launch.finish(buffers, copies)
        return buffers

    def pairs(self, known: "Tuple[tasks.Task, ...]") -> "List[Tuple[tasks.Task, tasks.Task]]":
        """Each kernel of stage 1 with a kernel of stage 2, and the other way round."""
        found = []
        for block_m in sorted({task.block_m for task in known}):
            ones, twos = ([t for t in known if t.stage == stage and t.block_m == block_m]
                          for stage in ("stage1", "stage2"))
            found += [(one, twos[0]) for one in ones if twos] + [(ones[0], two) for two in twos[1:] if ones]
        return found

    def test_two_stages(self) -> None:
        for kind in KINDS:
            layer, n = make_layer(kind), 0
            for one, two in self.pairs(capture(layer.shape)):
                with self.subTest(kind, one=one.name, two=two.name):
                    buffers = self.sort(layer, one.block_m)
                    self.run_task(one, layer, buffers)
                    self.run_task(two, layer, buffers)
                    self.assertLess(error_of(buffers["y"], layer.y), 0.02)
                n += 1
            print(f"{GFX} {kind[1]} {kind[2]} {kind[0]}: {n} pairs of kernels")
            self.assertGreater(n, 0)

    def test_one_stage(self) -> None:
        found = {"flat": 0, "xbf16": 0, "sorted": 0}
        for kind in KINDS:
            layer = make_layer(kind)
            for task in (t for t in capture(layer.shape) if t.stage == "one"):
                with self.subTest(kind, kernel=task.name):
                    buffers = self.sort(layer, task.block_m)
                    self.run_task(task, layer, buffers)
                    self.assertLess(error_of(buffers["y"], layer.y), 0.03)
                found["xbf16" if task.xbf16 else "flat" if task.flat else "sorted"] += 1
        print(f"{GFX}: kernels of one stage: {found}")
        self.assertGreater(found["sorted"], 0)
        self.assertGreater(found["xbf16"], 0)

    def test_outputs_are_not_copied(self) -> None:
        """The operators write the farm's buffers, except where AITER returns values and scales in one."""
        layer = make_layer(KINDS[0])
        one, two = self.pairs(capture(layer.shape))[0]
        buffers = self.sort(layer, one.block_m)
        weights = launch.convert_weights(AITER, layer.shape, layer.tensors)
        for task in (one, two):
            launcher = launch.Launcher(AITER, task, layer.shape)
            self.assertEqual(launcher.launch(inputs_of(task, layer, buffers), weights), [])

    def test_a_wrong_result_reaches_the_output(self) -> None:
        """The farm judges what the kernel wrote."""
        layer = make_layer(KINDS[4])
        one, two = self.pairs(capture(layer.shape))[0]
        buffers = self.sort(layer, one.block_m)
        OPS.break_result = True
        self.run_task(one, layer, buffers)
        OPS.break_result = False
        self.run_task(two, layer, buffers)
        self.assertGreater(error_of(buffers["y"], layer.y), 0.5)

    def test_an_error_of_an_operator_is_raised(self) -> None:
        layer = make_layer(KINDS[4])
        one, _ = self.pairs(capture(layer.shape))[0]
        buffers = self.sort(layer, one.block_m)
        OPS.fail = True
        with self.assertRaisesRegex(RuntimeError, "invalid argument"):
            self.run_task(one, layer, buffers)
        OPS.fail = False
        self.run_task(one, layer, buffers)  # the next launch has its own outputs
        self.assertTrue(bool(torch.isfinite(buffers["h"]).all()))

    def test_inputs_are_not_written(self) -> None:
        for kind in KINDS:
            layer = make_layer(kind)
            before = {name: tensor.clone() for name, tensor in layer.tensors.items()}
            one, two = self.pairs(capture(layer.shape))[-1]
            buffers = self.sort(layer, one.block_m)
            self.run_task(one, layer, buffers)
            self.run_task(two, layer, buffers)
            for name, tensor in layer.tensors.items():
                self.assertTrue(torch.equal(tensor.view(torch.uint8), before[name].view(torch.uint8)), name)


@unittest.skipIf(MISSING, MISSING)
class OneRow(unittest.TestCase):
    """Rows through AITER's own dispatcher."""

    def setUp(self) -> None:
        OPS.break_result = OPS.fail = False
        OPS.calls.clear()

    def row(self, shape: "Shape", **results: Any) -> Dict[str, Any]:
        return {**adapter.row_of(shape, GFX, CU_NUM), **results}

    def run_row(self, layer: Layer, row: Dict[str, Any]) -> Any:
        weights = launch.convert_weights(AITER, layer.shape, layer.tensors)
        return production.Row(AITER, row).run(layer.tensors, weights)

    def rows(self, shape: "Shape") -> List[Dict[str, Any]]:
        known, rows = capture(shape), []
        for block_m in (16, 32, 64, 128):
            ones, twos = ([t.name for t in known if t.stage == stage and t.block_m == block_m]
                          for stage in ("stage1", "stage2"))
            rows += [self.row(shape, block_m=block_m, kernelName1=one, kernelName2=twos[-1])
                     for one in dict.fromkeys(ones[:1] + ones[-1:]) if twos]
        whole = [t for t in known if t.stage == "one"]
        return rows + [self.row(shape, block_m=t.block_m, kernelName1=t.name, run_1stage=1, flat=t.flat,
                                xbf16=int(t.xbf16)) for t in whole[:1] + whole[-1:]]

    def test_rows(self) -> None:
        for kind in KINDS:
            layer = make_layer(kind)
            for row in self.rows(layer.shape):
                with self.subTest(kind, one=row["kernelName1"], two=row.get("kernelName2")):
                    OPS.calls.clear()
                    y = self.run_row(layer, row)
                    names = [row[c] for c in ("kernelName1", "kernelName2") if row.get(c)]
                    self.assertEqual(OPS.calls, names)
                    self.assertLess(error_of(y, layer.y), 0.03)

    def test_further_runs_keep_the_choice(self) -> None:
        """The table is read once, and another row's run in between changes nothing."""
        layer, OPS.calls[:] = make_layer(KINDS[4]), []
        weights = launch.convert_weights(AITER, layer.shape, layer.tensors)
        one, two = (production.Row(AITER, row) for row in self.rows(layer.shape)[:2])
        for row in (one, two, one, one, two):
            row.run(layer.tensors, weights)
        names = [[row.row["kernelName1"], row.row["kernelName2"]] for row in (one, two, one, one, two)]
        self.assertEqual(OPS.calls, sum(names, []))
        self.assertEqual([len(row.choices) for row in (one, two)], [1, 1])

    def test_the_family_opens_rows(self) -> None:
        layer = make_layer(KINDS[4])
        kernel = adapter.family.open_row(self.rows(layer.shape)[0], layer.shape)
        kernel.weights = launch.convert_weights(AITER, layer.shape, layer.tensors)
        self.assertLess(error_of(kernel.forward(layer.tensors), layer.y), 0.03)
        kernel.close()

    @unittest.skipIf(GFX != "gfx950", "AITER has kernels for fp4 on gfx950 only")
    def test_rows_of_fp4(self) -> None:
        """Runs a row of CK's kernels. The farm has no steps for them, but fused_moe computes the layer. With
        FlyDSL, AITER runs other kernels than those of the row, unless AITER_FLYDSL_FORCE is 0."""
        fp4 = "torch.float4_e2m1fn_x2"
        shape = Shape(T, H, I, E, K, "ActivationType.Silu", "torch.bfloat16", fp4, fp4, "QuantType.per_1x32",
                      True, False)
        layer = mxfp4_layer(shape)
        known = [t for t in capture(shape) if t.generator == "ck" and t.block_m == 32]
        one, two = (next(t.name for t in known if t.stage == stage) for stage in ("stage1", "stage2"))
        kernel = adapter.family.open_row(self.row(shape, block_m=32, kernelName1=one, kernelName2=two), shape)
        kernel.weights = launch.convert_weights(AITER, shape, layer.tensors)
        with self.assertRaisesRegex(production.RowNotUsed, "fused_moe chose flydsl_moe1_afp4_wfp4_bf16_"):
            kernel.forward(layer.tensors)
        with mock.patch.dict(os.environ, AITER_FLYDSL_FORCE="0"):
            self.assertLess(error_of(kernel.forward(layer.tensors), layer.y), 0.02)
        self.assertEqual(OPS.calls, [one, two])
        with self.assertRaisesRegex(ValueError, "layouts that the farm has no name for"):
            adapter.family.open_row({}, dataclasses.replace(shape, q_dtype_a="torch.float8_e4m3fn"))

    def test_a_row_with_another_key_is_not_used(self) -> None:
        layer = make_layer(KINDS[4])
        row = {**self.rows(layer.shape)[0], "model_dim": 512}
        expected_text = f"kernelName1 {row['kernelName1']}: fused_moe chose"
        with self.assertRaisesRegex(production.RowNotUsed, expected_text):
            self.run_row(layer, row)

    def test_the_environment_is_restored(self) -> None:
        os.environ[table.CONFIG_ENV] = "/nowhere.csv"
        layer = make_layer(KINDS[4])
        self.run_row(layer, self.rows(layer.shape)[0])
        self.assertEqual(os.environ.pop(table.CONFIG_ENV), "/nowhere.csv")
        self.assertIsNone(AITER.fused_moe.cfg_2stages)

    def test_a_bad_row_is_refused(self) -> None:
        layer = make_layer(KINDS[4])
        with self.assertRaisesRegex(table.BadRow, "kernelName2 is empty"):
            self.run_row(layer, {**self.rows(layer.shape)[0], "kernelName2": ""})


@unittest.skipIf(MISSING or IS_CHILD, MISSING or "runs in the parent process")
class OtherClass(unittest.TestCase):
    def test_gfx950(self) -> None:
        command = [sys.executable, __file__, "gfx950"]
        run = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
        print(run.stdout)
        self.assertEqual(run.returncode, 0, run.stderr[-4000:])


if __name__ == "__main__":
    unittest.main()
