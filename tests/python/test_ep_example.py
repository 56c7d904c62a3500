"""examples/ep_two_gpus.py with two processes on the CPU: the layer on two ranks equals one layer."""
import os
import pathlib
import subprocess
import sys
import unittest

try:
    import torch.distributed
except ImportError as error:
    raise unittest.SkipTest(f"no PyTorch: {error}") from error

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Example(unittest.TestCase):
    def run_example(self, *options: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, str(ROOT / "examples/ep_two_gpus.py"), "--device", "cpu", "--tokens", "33",
                   "--hidden", "256", "--inter", "128", "--topk", "4", "--repeats", "2", *options]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100,
                              env={**os.environ, "PYTHONPATH": str(ROOT / "python")})

    def test_two_ranks_equal_one_layer(self) -> None:
        if not torch.distributed.is_available():
            self.skipTest("torch was built without torch.distributed")
        run = self.run_example("--experts", "16")
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        for rank in (0, 1):
            self.assertRegex(run.stdout, rf"rank {rank}: sends \[\d+, \d+\] rows, .*relative error against "
                                         r"one layer 0\.00\d\d")

    def test_refusal(self) -> None:
        run = self.run_example("--experts", "15")
        self.assertEqual(run.returncode, 1)
        self.assertIn("--experts 15: expected a multiple of 2", run.stderr)


if __name__ == "__main__":
    unittest.main()
