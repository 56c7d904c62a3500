"""The package's lazy names, its search for libfmoe, and its declarations of libfmoe's types."""
import ctypes
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
from typing import Any, Dict, List, Type
from unittest import mock

import moefarm
from moefarm import _library

ROOT = pathlib.Path(__file__).resolve().parents[2]
Structures = Dict[str, Type[ctypes.Structure]]
STRUCTURES: Structures = {
    "fmoe_error": _library.ErrorText, "fmoe_layer_model": _library.LayerModel,
    "fmoe_weight": _library.Weight, "fmoe_served": _library.Served, "fmoe_call": _library.Call,
    "fmoe_calibration": _library.Calibration}


def fields(structure: Type[ctypes.Structure]) -> List[Any]:
    return [field[0] for field in structure._fields_]


def layout_of(structure: Type[ctypes.Structure]) -> List[int]:
    offsets = [getattr(structure, name) for name in fields(structure)]
    return [ctypes.sizeof(structure)] + [n for field in offsets for n in (field.offset, field.size)]


def c_program(structures: Structures) -> str:
    """Prints size, offsets and sizes of the members of each structure, one line per structure."""
    lines = ["#include <fmoe_ops.h>", "#include <stdio.h>", "int main(void) {"]
    for name, structure in structures.items():
        lines.append(f'printf("{name} %zu", sizeof(struct {name}));')
        lines += [f'printf(" %zu %zu", offsetof(struct {name}, {field.rstrip("_")}), '
                  f"sizeof(((struct {name} *)0)->{field.rstrip('_')}));" for field in fields(structure)]
        lines.append('printf("\\n");')
    return "\n".join([*lines, "return 0; }"])


def check_layouts(test: unittest.TestCase, structures: Structures) -> None:
    """The structures have the sizes and offsets that C gives them."""
    cc = shutil.which("cc")
    if not cc:
        test.skipTest("no C compiler")
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "layout.c")
        source.write_text(c_program(structures), encoding="utf-8")
        subprocess.run([cc, f"-I{ROOT / 'fmoe'}", str(source), "-o", folder + "/layout"], check=True)
        printed = subprocess.run([folder + "/layout"], check=True, capture_output=True, text=True).stdout
    for line in printed.splitlines():
        name, *numbers = line.split()
        test.assertEqual(layout_of(structures[name]), [int(n) for n in numbers], name)


class Declarations(unittest.TestCase):
    def test_structures_equal_the_header(self) -> None:
        check_layouts(self, STRUCTURES)

    def test_functions_are_exported(self) -> None:
        self.assertTrue(_library.load().fmoe_version().decode().startswith(_library.ABI))


class Search(unittest.TestCase):
    def test_named_file_is_missing(self) -> None:
        with mock.patch.dict(os.environ, {_library.VARIABLE: "/no/such/libfmoe.so"}):
            with self.assertRaisesRegex(moefarm.Error, "MOEFARM_LIBRARY is '/no/such/libfmoe.so'"):
                _library.find()

    def test_no_library(self) -> None:
        with mock.patch.dict(os.environ), mock.patch("ctypes.util.find_library", return_value=None), \
                mock.patch.object(_library, "__file__", "/no/such/package/_library.py"):
            os.environ.pop(_library.VARIABLE, None)
            with self.assertRaisesRegex(moefarm.Error, "libfmoe is missing.*set MOEFARM_LIBRARY"):
                _library.find()

    def test_beside_the_package(self) -> None:
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ), \
                mock.patch.object(_library, "__file__", folder + "/_library.py"):
            os.environ.pop(_library.VARIABLE, None)
            library = pathlib.Path(folder, "lib", "libfmoe.so")
            library.parent.mkdir()
            library.touch()
            self.assertEqual(_library.find(), str(library))


class Names(unittest.TestCase):
    def test_import_needs_only_the_standard_library(self) -> None:
        code = ("import sys; sys.modules.update(dict.fromkeys(('torch', 'numpy', 'transformers'))); "
                "import moefarm; print(sorted(set(dir(moefarm)) & {'Client', 'Layer', 'ops', 'prepare'}))")
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False,
                             env={**os.environ, "PYTHONPATH": str(ROOT / "python")})
        self.assertEqual((run.returncode, run.stdout), (0, "['Client', 'Layer', 'ops', 'prepare']\n"),
                         run.stderr)

    def test_unknown_name(self) -> None:
        with self.assertRaisesRegex(AttributeError, "no attribute 'Leyer'"):
            getattr(moefarm, "Leyer")


if __name__ == "__main__":
    unittest.main()
