"""moefarm.family and moefarm.tensor, with the standard library only."""
import array
import contextlib
import ctypes
import dataclasses
import gc
import io
import os
import tempfile
import types
import unittest
import unittest.mock
from typing import Any, Iterable, Tuple, Union

from moefarm import boot, tensor
from moefarm.family import (Candidate, Device, Family, Kernel, Rejection, Shape, Tensor, parameters,
                            tensor_device)

ROW = ("2,64,32,4,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0")
LAYER = {"covers": "sort+gemm1+act+gemm2", "needs": ["x/bf16/none/token"], "gives": ["y/bf16/none/token"],
         "flops": 8.0, "bytes": 4.0}


def tensor_of(values: "array.array[Any]", dtype: str, shape: Tuple[int, ...],
              writable: bool = False) -> Tensor:
    return Tensor("x", shape, dtype, values.buffer_info()[0], writable=writable)


class Shapes(unittest.TestCase):
    def test_round_trip(self) -> None:
        for text in (ROW, ROW + ",limit:7+b1"):
            self.assertEqual(str(Shape.parse(text)), text)

    def test_columns(self) -> None:
        shape = Shape.parse(ROW + ",b2")
        self.assertEqual((shape.token, shape.expert, shape.use_g1u1, shape.doweight_stage1, shape.form),
                         (2, 4, True, False, "b2"))
        self.assertFalse(shape.is_quantised)

    def test_refuses_other_texts(self) -> None:
        for text in ("", "1,2,3", ROW + ",a,b"):
            with self.assertRaisesRegex(ValueError, "twelve values"):
                Shape.parse(text)

    def test_candidate_of_a_layer(self) -> None:
        candidate = Shape.parse(ROW, LAYER).candidate("mine", block_m=16)
        self.assertEqual(candidate.covers, ["sort", "gemm1", "act", "gemm2"])
        self.assertEqual((candidate.block_m, candidate.flops), (16, 8.0))
        with self.assertRaisesRegex(ValueError, "only a runner"):
            Shape.parse(ROW).candidate("mine")


class Candidates(unittest.TestCase):
    def test_stages(self) -> None:
        for covers, stage in (((), "move"), (("sort",), "move"), (("gemm1", "act"), "stage1"),
                              (("gemm2",), "stage2"), (("gemm1", "gemm2"), "one")):
            step = Candidate("a", covers, [], []).to_json("f")
            self.assertEqual(step["stage"], stage)
            self.assertEqual(Candidate.from_json(step).covers, covers)

    def test_who_dispatches(self) -> None:
        for aiter in (False, True):
            candidate = Candidate("a", ("gemm1",), [], [], aiter=aiter)
            step = candidate.to_json("f")
            self.assertEqual((step["aiter"], step["foreign"]), (aiter, True))
            self.assertEqual(Candidate.from_json(step), dataclasses.replace(candidate, needs=(), gives=()))

    def test_parameters(self) -> None:
        self.assertEqual(parameters("triton_m64_n128_w4"), {"m": 64, "n": 128, "w": 4})
        self.assertEqual(parameters("default"), {})

    def test_devices(self) -> None:
        self.assertEqual(tensor_device("cpu:0"), (tensor.CPU, 0))
        self.assertEqual(tensor_device("hip:nvidia:3"), (tensor.CUDA, 3))
        self.assertEqual(tensor_device("hip:amd:1"), (tensor.ROCM, 1))
        device = Device("hip:amd:1", "gfx942", 304)
        self.assertEqual((device.vendor, device.ordinal), ("amd", 1))
        self.assertEqual(Device("cpu:0", "cpu-x", 2).vendor, "cpu")

    def test_compute_capabilities(self) -> None:
        for gfx, expected in (("sm_90", 90), ("sm_100", 100), ("gfx942", 0), ("cpu-x", 0)):
            self.assertEqual(Device("hip:nvidia:0", gfx, 1).compute_capability, expected)


class Tensors(unittest.TestCase):
    def test_memory(self) -> None:
        values = array.array("f", range(6))
        self.assertEqual(tensor_of(values, "float32", (2, 3)).memory().tolist(), [0, 1, 2, 3, 4, 5])
        with self.assertRaisesRegex(TypeError, "read-only"):
            tensor_of(values, "float32", (2, 3)).memory()[0] = 1
        tensor_of(values, "float32", (2, 3), writable=True).memory()[5] = 9
        self.assertEqual(values[5], 9)

    def test_sizes(self) -> None:
        for name, kind in tensor.DTYPES.items():
            self.assertEqual(Tensor("x", (2, 8), name, 64).nbytes, 2 * kind.bits)
        with self.assertRaisesRegex(ValueError, "expected one of float32"):
            Tensor("x", (1,), "float64", 64)

    def test_device_memory_is_not_read(self) -> None:
        with self.assertRaisesRegex(TypeError, "in device memory"):
            Tensor("x", (1,), "float32", 64, (tensor.CUDA, 0)).memory()

    def test_capsules_are_freed(self) -> None:
        values = array.array("f", [1, 2])
        for version in (None, (1, 0)):
            before = len(tensor._alive)
            capsule = tensor_of(values, "float32", (2,)).__dlpack__(max_version=version)
            self.assertEqual(len(tensor._alive), before + 1)
            del capsule
            gc.collect()
            self.assertEqual(len(tensor._alive), before)

    def test_capsule_contents(self) -> None:
        values = array.array("H", range(6))
        capsule = tensor_of(values, "bfloat16", (2, 3)).__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        managed = tensor._Managed.from_address(pointer(capsule, b"dltensor"))
        self.assertEqual(managed.tensor.data, values.buffer_info()[0])
        self.assertEqual((managed.tensor.dtype.code, managed.tensor.dtype.bits), (4, 16))
        self.assertEqual(list(managed.tensor.shape[:managed.tensor.ndim]), [2, 3])

    def test_refuses_copies_and_other_devices(self) -> None:
        x = tensor_of(array.array("f", [1]), "float32", (1,))
        with self.assertRaises(BufferError):
            x.__dlpack__(copy=True)
        with self.assertRaises(BufferError):
            x.__dlpack__(dl_device=(tensor.CUDA, 0))


class Converting(Kernel):
    closed = False

    def launch(self, tensors: Any, stream: int) -> None:
        pass

    def close(self) -> None:
        self.closed = True


class Converts(Family):
    name = "converts"
    conversions = 0

    def enumerate(self, shape: Shape, device: Device) -> Iterable[Union[Candidate, Rejection]]:
        return ()

    def open(self, candidate: Candidate, shape: Shape) -> Kernel:
        return Converting()

    def weight_layout(self, candidate: Candidate) -> str:
        return "shuffled"

    def convert_weights(self, candidate: Candidate, shape: Shape, weights: Any) -> Any:
        self.conversions += 1
        return sorted(weights)


class Weights(unittest.TestCase):
    """Open kernels of one layout share converted weights, which are freed with the last kernel."""

    def test_shared(self) -> None:
        family, shared = Converts(), boot.Conversions()
        shape = Shape.parse(ROW, LAYER)
        tensors = {name: Tensor(name, (1,), "bfloat16", at)
                   for name, at in (("x", 64), ("w1", 128), ("w2", 256), ("w2_scale", 512))}
        opened = [boot.Opened(family, shape.candidate(name), shape, shared) for name in ("a", "b")]
        for kernel in opened:
            for arguments in (1, 2):
                self.assertEqual(kernel.prepare(arguments, tensors, 0), 0)
            self.assertEqual(kernel.kernel.weights, ["w1", "w2", "w2_scale"])
        self.assertEqual(family.conversions, 1)
        for kernel in opened:
            kernel.close()
        self.assertEqual(shared.shared, {})


class Reasons(unittest.TestCase):
    def test_places_and_types(self) -> None:
        try:
            raise ValueError("two\nlines")
        except ValueError as error:
            self.assertRegex(boot.reason_of(error), r"^ValueError: two lines \(test_family\.py:\d+\)$")

    def test_out_of_memory(self) -> None:
        class OutOfMemoryError(RuntimeError):
            pass
        self.assertTrue(boot.is_out_of_memory(OutOfMemoryError()))
        self.assertTrue(boot.is_out_of_memory(MemoryError()))
        self.assertFalse(boot.is_out_of_memory(RuntimeError()))


class Modules(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def write(self, text: str, name: str = "mine.py") -> str:
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def test_names_of_modules(self) -> None:
        for module, name in (("mine.py", "mine"), ("/families/mine", "mine"), ("./mine/", "mine"),
                             ("my.mine.py", "my.mine"), ("mine", "mine"), ("moefarm.families.aiter", "aiter"),
                             ("moefarm.families.triton_moe.vllm_family", "vllm_family")):
            self.assertEqual(boot.name_of(module), name, module)

    def test_a_refused_module_is_named(self) -> None:
        library = unittest.mock.Mock()
        with unittest.mock.patch("ctypes.CDLL", return_value=library), \
                contextlib.redirect_stderr(io.StringIO()):
            boot.Runner("", ["--family-py", "no.such.family"]).add_families()
        name, why = library.moefarm_runner_refuse_family.call_args.args
        self.assertEqual(name, b"family")
        self.assertIn(b"No module named 'no'", why)

    def test_imports_that_end_the_process(self) -> None:
        for text, why in (("x = 1", ""), ("raise ValueError", ""), ("import sys; sys.exit(3)", ""),
                          ("import os; os.kill(os.getpid(), 11)", "crashed with signal 11"),
                          ("import os; os._exit(3)", "exit code 3")):
            self.assertIn(why, boot.import_in_child(self.write(text)), text)

    def test_asks_once(self) -> None:
        path, scratch = self.write("import os; os._exit(3)"), os.path.join(self.folder, "scratch")
        os.mkdir(scratch)
        self.assertIn("exit code 3", boot.why_not_importable(path, scratch))
        with unittest.mock.patch.object(boot, "import_in_child", return_value="asked again"):
            self.assertIn("exit code 3", boot.why_not_importable(path, scratch))
            self.write("import os; os._exit(4)")
            self.assertEqual(boot.why_not_importable(path, scratch), "asked again")

    def test_hash_of_sources(self) -> None:
        first = boot.hash_of(boot.load_module(self.write("x = 1")))
        self.assertNotEqual(first, boot.hash_of(boot.load_module(self.write("x = 2"))))
        self.assertEqual(first, boot.hash_of(boot.load_module(self.write("x = 1", "other.py"))))

    def test_variables_of_a_module(self) -> None:
        module = types.ModuleType("mine")
        with self.assertRaisesRegex(TypeError, "variable `family`"):
            boot.families_of(module)
        one, two = Converts(), Converts()
        setattr(module, "family", one)
        self.assertEqual(boot.families_of(module), [one])
        setattr(module, "families", [one, two])
        self.assertEqual(boot.families_of(module), [one, two])
        setattr(module, "families", [one, 1])
        with self.assertRaisesRegex(TypeError, "list `families`"):
            boot.families_of(module)


if __name__ == "__main__":
    unittest.main()
