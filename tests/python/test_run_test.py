"""run_test.py ends with the status that ctest expects, and prints the reasons of skips."""
import pathlib
import subprocess
import sys
import tempfile
import unittest
from typing import List, Tuple

CASE = "import unittest\nclass C(unittest.TestCase):\n    def test_a(self):\n        {}\n"
# contents of a test file, exit status, last line of the output
FILES: List[Tuple[str, int, str]] = [
    (CASE.format("pass"), 0, "OK"),
    (CASE.format("self.fail()"), 1, "FAILED (failures=1)"),
    (CASE.format("self.skipTest('no GPU')"), 77, "skipped: no GPU"),
    ("import unittest\nraise unittest.SkipTest('no PyTorch')\n", 77, "skipped: no PyTorch"),
    ("import no_such_module\n", 1, "FAILED (errors=1)"),
    ("", 1, ""),  # a file without cases
]


RUN_TEST = pathlib.Path(__file__).with_name("run_test.py")


class Statuses(unittest.TestCase):
    def test_statuses(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "sample.py")
            for contents, status, line in FILES:
                with self.subTest(contents):
                    file.write_text(contents)
                    run = subprocess.run([sys.executable, "-B", str(RUN_TEST), str(file)], text=True,
                                         capture_output=True, check=False, timeout=60)
                    self.assertEqual(run.returncode, status, run.stdout + run.stderr)
                    self.assertIn(line, run.stdout.splitlines()[-1])


if __name__ == "__main__":
    unittest.main()
