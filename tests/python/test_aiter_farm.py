"""Tunes a layer on a farm with family `aiter` on a CPU worker (aiter_cpu_family.py): AITER's tuner
enumerates, the farm's own runner makes the data, verifies each kernel against the farm's reference, and races
the pipelines. Four kernels have flaws; each has its status, and the others continue.

    AITER_DIR=CHECKOUT MOEFARM_BUILD=build/dev python3 test_aiter_farm.py

Skipped if the interpreter cannot import AITER's sources."""
import csv
import io
import json
import os
import pathlib
import subprocess
import sys
import unittest
import urllib.request
from typing import Any, Dict

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import aiter_host  # noqa: E402
import farm as farms  # noqa: E402

MISSING = aiter_host.missing() or farms.MISSING
LIMIT_S = 240
FNUZ = "torch.float8_e4m3fnuz"
ASM = "_ZN5aiter49fmoe_stage1_bf16_pertokenInt8_g1u1_32x128_3tg_pf{}E"
CK1 = "moe_ck2stages_gemm1_256x32x64x{}_1x4_MulABScale_v1_Nswizzle0_Quant1_MulRoutedWeight0_silu_I8_I8_B16"
CK2 = ("moe_ck2stages_gemm2_256x32x64x{}_1x4_MulABScaleExpertWeight_v1_Nswizzle0_Quant1_MulRoutedWeight1_"
       "I8_I8_B16")
# kernel: flaw, status, part of the reason
FLAWS = {
    ASM.format(3): ("hang", "quarantined", "by hang"),
    CK1.format(256): ("crash", "quarantined", "by crash: signal 11"),
    CK1.format(128): ("raise", "unsupported", "invalid argument"),
    CK2.format(64): ("wrong", "wrong", "mismatch"),
}

# activation, dtype, q_type, doweight_stage1: number of AITER's references
REFERENCES = {"Silu bfloat16 No 0": 2, "Gelu bfloat16 No 0": 2, "Silu int8 per_Tensor 0": 2,
              "Silu float8_e4m3fn per_Token 0": 3, "Gelu float8_e4m3fn per_Token 1": 3,
              "Silu float8_e4m3fn per_1x128 0": 2}


class Farm(farms.Farm):
    """moefarmd and one worker with a family in Python."""

    def __init__(self, family: str, device: str, **environment: str) -> None:
        super().__init__(devices=(device,), environment=environment, worker_options=(
            "--families", "move,aiter", "--python", sys.executable, "--family-py",
            str(pathlib.Path(__file__).with_name(family))))

    def run(self, *arguments: str) -> str:
        command = [str(farms.BUILD / "cli/moefarm"), *arguments]
        done = subprocess.run(command, env={**self.environment, "MOEFARM_URL": self.url}, text=True,
                              capture_output=True, timeout=LIMIT_S, check=False)
        if done.returncode != 0:
            raise AssertionError(f"{' '.join(command)}: {done.stdout}{done.stderr}{self.logs()}")
        return done.stdout

    def tune(self, shape: str, batch: int = 1, consumer: str = "aiter") -> Dict[str, Dict[str, Any]]:
        """Tunes a shape; returns the steps of family aiter by name. `batch` counts the calls."""
        file = self.folder / "shapes.csv"
        file.write_text(f"{farms.HEAD}\n{shape}\n")
        self.run("submit", str(file), "--consumer", consumer, "--topk", "2", "--regret", "none")
        self.run("watch", str(batch))
        url = f"{self.url}/api/v1/tasks/{batch}/steps?family=aiter"
        with urllib.request.urlopen(url, timeout=10) as reply:
            return {step["name"]: step for step in json.load(reply)["items"]}


@unittest.skipIf(MISSING, MISSING)
class OnFarm(unittest.TestCase):
    def farm(self, family: str = "aiter_cpu_family.py", device: str = "cpu:0", **environment: str) -> Farm:
        farm = Farm(family, device, **environment)
        self.addCleanup(farm.stop)
        return farm

    def row(self, farm: Farm) -> Dict[str, str]:
        """The only row of the table for AITER."""
        text = farm.run("export", "--batch", "1", "--consumer", "aiter")
        rows = list(csv.DictReader(io.StringIO(text)))
        self.assertEqual(len(rows), 1, text)
        return rows[0]

    def run_config(self, farm: Farm) -> str:
        """Runs the table for AITER through fused_moe, without the farm."""
        table = farm.folder / "tuned_fmoe.csv"
        table.write_text(farm.run("export", "--batch", "1", "--consumer", "aiter"))
        family = pathlib.Path(__file__).with_name("aiter_cpu_family.py")
        return farm.run("run-config", str(table), "--slack", "1e6", "--rounds", "3", "--python",
                        sys.executable, "--family-py", str(family))

    def test_flawed_kernels(self) -> None:
        flaws = ",".join(f"{flaw}:{kernel}" for kernel, (flaw, _, _) in FLAWS.items())
        farm = self.farm(AITER_FLAWS=flaws, TUNE_MOE_KERNEL_REGEX="32x128|256x32x64x")
        steps = farm.tune("2,256,256,2,2,ActivationType.Silu,torch.bfloat16,torch.int8,torch.int8,"
                          "QuantType.per_Tensor,1,0")
        for kernel, (_, status, reason) in FLAWS.items():
            self.assertEqual(steps[kernel]["status"], status, steps[kernel])
            self.assertIn(reason, steps[kernel]["reason"])
        for kernel in (ASM.format(2), CK2.format(256), CK2.format(128), "aiter_moe_sorting_m32"):
            self.assertIn(steps[kernel]["status"], ("ok", "slow"), steps[kernel])
            self.assertLess(steps[kernel]["err"], 0.01)
        row = self.row(farm)
        self.assertEqual(row["kernelName1"], ASM.format(2))
        self.assertIn(row["kernelName2"], (CK2.format(256), CK2.format(128)))
        self.assertEqual([row[column] for column in ("block_m", "run_1stage", "flat")], ["32", "0", "0"])

    def test_blocks_of_128(self) -> None:
        """Stage 1 quantises h, in AITER's two ways; one stage; the farm's reference decides."""
        farm = self.farm(TUNE_MOE_KERNEL_REGEX="32x128_3tg_pf2E|256x32x128x128|vs_silu_1tg_32x128E")
        steps = farm.tune(f"2,256,256,2,2,ActivationType.Silu,torch.bfloat16,{FNUZ},{FNUZ},"
                          "QuantType.per_1x128,1,0")
        self.assertEqual(len(steps), 6, steps.keys())
        for name, step in steps.items():
            self.assertIn(step["status"], ("ok", "slow"), step)
            self.assertLess(step["row_err"] or 0, 0.01, name)

    def test_rows_of_one_stage(self) -> None:
        """The row has the columns that AITER's dispatcher reads: block_m, run_1stage, xbf16, flat."""
        kinds = {"_a16_.*_flat_": (["1", "1", "1", "1"], 1),
                 "_vs_silu_1tg_32x128E": (["32", "1", "0", "0"], 2)}
        for pattern, (columns, n_steps) in kinds.items():
            with self.subTest(pattern):
                farm = self.farm(TUNE_MOE_KERNEL_REGEX=pattern)
                steps = farm.tune(f"2,256,256,2,2,ActivationType.Silu,torch.bfloat16,{FNUZ},{FNUZ},"
                                  "QuantType.per_1x128,1,0")
                self.assertEqual([step["status"] for step in steps.values()], ["ok"] * n_steps, steps)
                row = self.row(farm)
                names = ("block_m", "run_1stage", "xbf16", "flat")
                self.assertEqual([row[name] for name in names], columns, row)
                self.assertIn("1 rows: 1 OK", self.run_config(farm))

    def test_references(self) -> None:
        """AITER's torch references agree with the farm's. MOEFARM_TEST_DEVICE names another device."""
        farm = self.farm("aiter_reference_family.py", os.environ.get("MOEFARM_TEST_DEVICE", "cpu:0"))
        for batch, (kind, n_steps) in enumerate(REFERENCES.items(), 1):
            with self.subTest(kind):
                act, dtype, q_type, doweight = kind.split()
                steps = farm.tune(f"4,256,256,4,2,ActivationType.{act},torch.bfloat16,torch.{dtype},"
                                  f"torch.{dtype},QuantType.{q_type},1,{doweight}", batch, "any")
                self.assertEqual(len(steps), n_steps, steps.keys())
                for name, step in steps.items():
                    self.assertIn(step["status"], ("ok", "slow"), step)
                    # The reference of one stage with per_1x128 does not quantise h.
                    self.assertLess(step["row_err"], 0.03 if q_type == "per_1x128" else 0.003, name)


if __name__ == "__main__":
    unittest.main()
