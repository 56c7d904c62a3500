"""NumPy and PyTorch take the farm's tensors without a copy."""
import array
import importlib
import unittest
from typing import Any, Tuple

from moefarm.tensor import Tensor

try:
    import numpy
    torch: Any = importlib.import_module("torch")
except ImportError as error:
    raise unittest.SkipTest(f"no NumPy or PyTorch: {error}") from error


def tensor_of(values: "array.array[Any]", dtype: str, shape: Tuple[int, ...]) -> Tensor:
    return Tensor("x", shape, dtype, values.buffer_info()[0], writable=True)


class Arrays(unittest.TestCase):
    def test_numpy_shares_memory(self) -> None:
        values = array.array("f", range(6))
        taken = numpy.from_dlpack(tensor_of(values, "float32", (2, 3)))
        self.assertEqual(taken.shape, (2, 3))
        taken[1, 2] = 7
        self.assertEqual(values[5], 7)

    def test_torch_shares_memory(self) -> None:
        values = array.array("H", [0x3f80, 0x4000])  # 1 and 2
        taken = torch.from_dlpack(tensor_of(values, "bfloat16", (2,)))
        self.assertEqual(taken.dtype, torch.bfloat16)
        self.assertEqual(taken.tolist(), [1.0, 2.0])
        taken[0] = 2
        self.assertEqual(values[0], 0x4000)

    def test_torch_views_bytes_as_fp8(self) -> None:
        values = array.array("B", [0x38, 0x40])  # 1 and 2 in e4m3fn
        taken = torch.from_dlpack(tensor_of(values, "float8_e4m3fn", (2,))).view(torch.float8_e4m3fn)
        self.assertEqual(taken.float().tolist(), [1.0, 2.0])


if __name__ == "__main__":
    unittest.main()
