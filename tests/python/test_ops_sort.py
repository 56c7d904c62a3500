"""moefarm.ops.moe_align_block_size and moe_sorting against their references, on the CPU or on the device that
MOEFARM_TEST_TORCH_DEVICE names."""
import unittest
from typing import Callable, List, Tuple

try:
    import torch
except ImportError as error:
    raise unittest.SkipTest(f"no PyTorch: {error}") from error

import moefarm
import ops_reference as reference
from moefarm import ops
from moefarm.ops import _native, _sort
from ops_reference import DEVICE
from test_library import check_layouts

SIZES = [(1, 1, 1), (1, 8, 256), (3, 2, 7), (64, 8, 256), (300, 8, 512), (2222, 4, 33)]


Cases = List[Tuple[str, Callable[[], object]]]  # a part of the message, and a call that is refused


class Align(unittest.TestCase):
    def test_against_the_reference(self) -> None:
        for tokens, topk, experts in SIZES:
            for block in (1, 16, 64):
                for dtype in (torch.int32, torch.int64):
                    with self.subTest(f"{tokens} {topk} {experts} {block} {dtype}"):
                        ids = reference.random_ids(tokens, topk, experts).to(dtype)
                        rows, names = reference.align(ids, block, experts)
                        out = ops.moe_align_block_size(ids, block, experts)
                        n = int(out[2])
                        self.assertEqual(n, len(rows))
                        self.assertEqual(out[0][:n].tolist(), rows)
                        self.assertEqual(out[1][:n // block].tolist(), names)
                        self.assertTrue((out[0][n:] == ids.numel()).all())
                        self.assertTrue((out[1][n // block:] == -1).all())

    def test_length_is_vllms(self) -> None:
        """The formula of vLLM: fewer routes than experts need at most one block each."""
        few = ops.moe_align_block_size(reference.random_ids(2, 2, 64), 16, 64)
        self.assertEqual((few[0].numel(), few[1].numel()), (64, 4))
        whole = ops.moe_align_block_size(reference.random_ids(9, 2, 4), 16, 4, pad_sorted_ids=True)
        self.assertEqual((whole[0].numel(), whole[1].numel()), (80, 5))
        for n, experts, block in ((18, 4, 16), (4, 64, 16), (2048, 256, 64), (0, 8, 16)):
            for whole_blocks in (False, True):
                self.assertEqual(_sort._align_sizes(n, experts, block, whole_blocks)[0],
                                 _native.library().fmoe_op_align_rows(n, experts, block, whole_blocks))

    def test_expert_map(self) -> None:
        """Rank 1 of 2: remote routes get rows in blocks of expert -1, or none."""
        ids = reference.random_ids(50, 4, 16)
        map = torch.full((16,), -1, dtype=torch.int32)
        map[8:] = torch.arange(8, dtype=torch.int32)
        map = map.to(DEVICE)
        rows, names = reference.align(ids, 16, 16)
        kept = ops.moe_align_block_size(ids, 16, 16, map)
        self.assertEqual(kept[0][:len(rows)].tolist(), rows)
        self.assertEqual(kept[1][:len(names)].tolist(), [int(map[e]) for e in names])
        local = torch.where(ids >= 8, ids - 8, 99)
        rows, names = reference.align(local, 16, 16)
        out = ops.moe_align_block_size(ids, 16, 16, map, ignore_invalid_experts=True, return_scatter_idx=True)
        self.assertEqual(int(out[2]), len(rows))
        self.assertEqual(out[0][:len(rows)].tolist(), rows)
        self.assertEqual(out[1][:len(names)].tolist(), names)
        flat = torch.arange(200, device=DEVICE)
        self.assertEqual(out[3].flatten().tolist(), torch.where(ids.flatten() >= 8, flat, -1).tolist())

    def test_no_tokens(self) -> None:
        out = ops.moe_align_block_size(torch.empty(0, 4, dtype=torch.int32, device=DEVICE), 16, 8)
        self.assertEqual((out[0].numel(), int(out[2])), (0, 0))

    def test_refusals(self) -> None:
        ids = reference.random_ids(4, 2, 8)
        cases: Cases = [
            ("dtype of topk_ids", lambda: ops.moe_align_block_size(ids.float(), 16, 8)),
            ("block_size is 0", lambda: ops.moe_align_block_size(ids, 0, 8)),
            ("shape of expert_map", lambda: ops.moe_align_block_size(
                ids, 16, 8, torch.zeros(7, dtype=torch.int32, device=DEVICE))),
            ("stride of topk_ids", lambda: ops.moe_align_block_size(ids[:, :1], 16, 8))]
        for what, call in cases:
            with self.subTest(what), self.assertRaisesRegex(moefarm.Error, what):
                call()


class AiterSorting(unittest.TestCase):
    def check(self, ids: torch.Tensor, weights: torch.Tensor, experts: int, local: torch.Tensor,
              used: int) -> None:
        """local: number of each expert, or -1."""
        topk, block = ids.shape[1], 32
        mask = (local >= 0).int()
        count = None if used == ids.shape[0] else torch.tensor([used], dtype=torch.int32, device=DEVICE)
        out = ops.moe_sorting(ids, weights, experts, 64, torch.bfloat16, block, mask, count)
        numbers = torch.where(torch.arange(ids.shape[0], device=DEVICE).unsqueeze(1) < used,
                              local[ids.long()].long(), 99999)
        numbers = torch.where(numbers < 0, 99999, numbers)
        rows, names = reference.align(numbers, block, experts)
        n, pad = len(rows), topk << 24 | ids.shape[0]
        self.assertEqual(out[3].tolist(), [n, used])
        self.assertEqual(out[0][:n].tolist(),
                         [pad if r == ids.numel() else r % topk << 24 | r // topk for r in rows])
        flat = weights.flatten().tolist()
        self.assertEqual(out[1][:n].tolist(), [0 if r == ids.numel() else flat[r] for r in rows])
        self.assertEqual(out[2][:n // block].tolist(), names)
        self.assertEqual(out[4].shape, (ids.shape[0], 64))
        self.assertTrue((out[4] == 0).all())

    def test_against_the_reference(self) -> None:
        for tokens, topk, experts in SIZES:
            with self.subTest(f"{tokens} {topk} {experts}"):
                ids = reference.random_ids(tokens, topk, experts)
                weights = reference.random_probs(tokens, topk)
                every = torch.arange(experts, device=DEVICE)
                self.check(ids, weights, experts, every, tokens)
                third = every % 3 == 0
                numbers = torch.where(third, third.long().cumsum(0) - 1, -1)
                self.check(ids, weights, experts, numbers, tokens // 2)

    def test_a_map_is_no_mask(self) -> None:
        if DEVICE != "cpu":
            self.skipTest("values in device memory are not checked")
        with self.assertRaisesRegex(moefarm.Error, "a map with -1 is not a mask"):
            ops.moe_sorting(reference.random_ids(4, 2, 8), reference.random_probs(4, 2), 8, 64,
                            expert_mask=torch.full((8,), -1, dtype=torch.int32))


class Declarations(unittest.TestCase):
    def test_structures_equal_the_header(self) -> None:
        native = (_native.Routes, _native.Align, _native.MoeSort, _native.Rows, _native.Permute,
                  _native.PermuteEp, _native.PermuteMap, _native.Unpermute, _native.UnpermutePadded,
                  _native.Route, _native.Quantised, _native.Quantise, _native.Shuffle)
        check_layouts(self, {str(type.__doc__).split()[1]: type for type in native})


class Torch(unittest.TestCase):
    def test_opcheck(self) -> None:
        ids = reference.random_ids(9, 2, 8)
        torch.library.opcheck(torch.ops.moefarm.moe_align_block_size.default,
                              (ids, 16, 8, None, False, False, True))
        tests = ("test_schema", "test_faketensor", "test_autograd_registration")  # rows beyond the end differ
        torch.library.opcheck(torch.ops.moefarm.moe_sorting.default,
                              (ids, reference.random_probs(9, 2), 8, 64, torch.bfloat16, 32, None, None),
                              test_utils=tests)

    def test_compile(self) -> None:
        def layer(ids: torch.Tensor) -> torch.Tensor:
            return ops.moe_align_block_size(ids, 16, 8)[1] + 1

        ids = reference.random_ids(9, 2, 8)
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        self.assertEqual(compiled(ids).tolist(), layer(ids).tolist())


if __name__ == "__main__":
    unittest.main()
