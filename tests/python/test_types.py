"""mypy accepts every Python file of the families, scripts, and their tests in strict mode."""
import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("python", "scripts", "tests/gpu", "tests/python")
IGNORED_IMPORTS = "--ignore-missing-imports"  # vLLM, SGLang and others are not installed here


class Types(unittest.TestCase):
    def test_strict(self) -> None:
        files = [str(file) for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
        try:
            import mypy  # noqa: F401
        except ImportError:
            self.skipTest("no mypy, which scripts/python_env.sh installs with PyTorch")
        command = [sys.executable, "-m", "mypy", "--strict", IGNORED_IMPORTS, "--no-incremental",
                   "--explicit-package-bases", "--config-file", "tests/python/mypy.ini", *files]
        path = f"{ROOT / 'python'}:{ROOT / 'tests/python'}"
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True,
                             env={"MYPYPATH": path, "PATH": "/usr/bin:/bin"}, check=False)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)


if __name__ == "__main__":
    unittest.main()
