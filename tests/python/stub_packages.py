"""Imports some files of a package that is not installed, with stubs of everything else that they import."""
import importlib.abc
import importlib.machinery
import importlib.util
import pathlib
import sys
import unittest
from typing import Any, Sequence
from unittest import mock


class StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules `real` below the folder `root`, and a stub for every other module of the packages."""

    def __init__(self, root: pathlib.Path, packages: Sequence[str], real: Sequence[str]) -> None:
        self.root, self.packages, self.real = root, packages, real

    def install(self, case: unittest.TestCase) -> None:
        """Installs the finder until the case ends. Modules of the packages are loaded anew."""
        for name in [name for name in sys.modules if name.split(".")[0] in self.packages]:
            del sys.modules[name]
        sys.meta_path.insert(0, self)
        case.addCleanup(sys.meta_path.remove, self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".")[0] not in self.packages:
            return None
        file = self.root / (name.replace(".", "/") + ".py")
        if name in self.real and file.is_file():
            return importlib.util.spec_from_file_location(name, file)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> Any:
        module: Any = mock.MagicMock(name=spec.name)
        module.__path__, module.__spec__, module.__all__ = [], spec, []
        return module

    def exec_module(self, module: Any) -> None:
        pass
