"""Permutations of moefarm.ops against the chains of torch operators that they replace, on the CPU or on the
device that MOEFARM_TEST_TORCH_DEVICE names."""
import doctest
import unittest
from typing import Callable, List, Optional, Tuple

try:
    import torch
except ImportError as error:
    raise unittest.SkipTest(f"no PyTorch: {error}") from error

import moefarm
import moefarm.ops._format
import moefarm.ops._permute
import moefarm.ops._sort
import ops_reference as reference
from moefarm import ops
from ops_reference import DEVICE

SIZES = [(1, 1, 1, 8), (5, 2, 7, 24), (64, 8, 256, 256), (300, 8, 64, 72), (33, 3, 9, 13)]


def close(test: unittest.TestCase, y: torch.Tensor, expected: torch.Tensor) -> None:
    """y is bfloat16, rounded once from a sum in float32."""
    test.assertEqual(y.shape, expected.shape)
    torch.testing.assert_close(y.float(), expected.float(), rtol=1 / 128, atol=1e-2)


Cases = List[Tuple[str, Callable[[], object]]]  # a part of the message, and a call that is refused


class WithEp(unittest.TestCase):
    def test_range_there_and_back(self) -> None:
        for tokens, topk, experts, width in SIZES:
            for first_expert, last_expert in ((0, experts), (experts // 2, experts), (0, experts // 3)):
                with self.subTest(f"{tokens} {topk} {experts} {width} {first_expert} {last_expert}"):
                    self.check(tokens, topk, experts, width, first_expert, last_expert)

    def check(self, tokens: int, topk: int, experts: int, width: int, low: int, high: int) -> None:
        x, ids = reference.random_tokens(tokens, width), reference.random_ids(tokens, topk, experts)
        starts = reference.first_rows(ids, experts)
        first, last = int(starts[low]), int(starts[high])
        for probs in (reference.random_probs(tokens, topk), None):
            rows, inverse, own = ops.permute_with_ep(x, ids, probs, (first, last), num_experts=experts)
            expected = reference.permute_with_ep(x, ids, probs, first, last)
            self.assertTrue(torch.equal(rows, expected[0]))
            self.assertEqual(inverse.tolist(), expected[1].tolist())
            self.assertEqual(None if own is None else own.tolist(),
                             None if expected[2] is None else expected[2].tolist())
            back = ops.unpermute_with_ep(rows, inverse, probs, topk, (first, last))
            close(self, back, reference.unpermute_with_ep(rows, ids, probs, first, last))

    def test_num_out_tokens(self) -> None:
        """Without a range, probs are not permuted: CANN runs MoeTokenPermute."""
        x, ids = reference.random_tokens(6, 16), reference.random_ids(6, 2, 5)
        for keep, n in ((0, 12), (7, 7), (99, 12), (-5, 7), (-99, 0)):
            rows, inverse, probs = ops.permute_with_ep(x, ids, reference.random_probs(6, 2),
                                                       num_out_tokens=keep)
            self.assertEqual(rows.shape, (n, 16))
            self.assertTrue(torch.equal(rows, reference.permute_with_ep(x, ids, None, 0, n)[0]))
            self.assertEqual((inverse.numel(), probs), (12, None))

    def test_one_index_per_token(self) -> None:
        x, ids = reference.random_tokens(5, 16), torch.tensor([3, 1, 4, 1, 0], device=DEVICE)
        rows, inverse, _ = ops.permute_with_ep(x, ids)
        self.assertTrue(torch.equal(rows, x[[4, 1, 3, 0, 2]]))
        self.assertTrue(torch.equal(ops.unpermute_with_ep(rows, inverse), x))

    def test_padded_mode(self) -> None:
        """Every expert has two rows; token 1 has three of them."""
        x = reference.random_tokens(4, 16)
        indices = torch.tensor([1, 0, 3, 1, 1, 2], dtype=torch.int32, device=DEVICE)
        rows, copy, _ = ops.permute_with_ep(x, indices, padded_mode=True)
        self.assertTrue(torch.equal(rows, x[indices.long()]))
        self.assertEqual(copy.tolist(), indices.tolist())
        kept = ops.permute_with_ep(x, indices, padded_mode=True, num_out_tokens=4)[0]
        self.assertTrue(torch.equal(kept, x[indices.long()[:4]]))
        back = ops.unpermute_with_ep(rows, copy, padded_mode=True, restore_shape=(4, 16))
        expected = torch.zeros(4, 16, device=DEVICE).index_add(0, indices.long(), rows.float())
        close(self, back, expected)

    def test_refusals(self) -> None:
        x, ids = reference.random_tokens(4, 16), reference.random_ids(4, 2, 4)
        cases: Cases = [
            ("rows 3 to 9", lambda: ops.permute_with_ep(x, ids, range=(3, 9))),
            ("rows of indices", lambda: ops.permute_with_ep(x, ids[:3])),
            ("dtype of probs", lambda: ops.permute_with_ep(x, ids, ids, (0, 8))),
            ("num_topk", lambda: ops.unpermute_with_ep(x, torch.zeros(7, dtype=torch.int32), num_topk=2)),
            ("restore_shape", lambda: ops.unpermute_with_ep(x, ids, padded_mode=True))]
        for what, call in cases:
            with self.subTest(what), self.assertRaisesRegex(moefarm.Error, what):
                call()


class Vllm(unittest.TestCase):
    def test_there_and_back(self) -> None:
        for tokens, topk, experts, width in SIZES:
            for ranks in (1, 4):
                if experts % ranks == 0:
                    with self.subTest(f"{tokens} {topk} {experts} {width} {ranks}"):
                        self.check(tokens, topk, experts, width, ranks)

    def check(self, tokens: int, topk: int, experts: int, width: int, ranks: int) -> None:
        x, ids = reference.random_tokens(tokens, width), reference.random_ids(tokens, topk, experts)
        scales, weights = reference.random_probs(tokens, 3), reference.random_probs(tokens, topk)
        n_local = experts // ranks
        map = torch.full((experts,), -1, dtype=torch.int32)
        map[:n_local] = torch.arange(n_local, dtype=torch.int32)
        rows, own, first, inverse, index = ops.moe_permute(
            x, scales, ids.int(), experts, n_local, None if ranks == 1 else map.to(DEVICE))
        flat = ids.flatten()
        order = torch.argsort(flat, dim=0, stable=True)
        order = order[flat[order] < n_local]
        used = order.numel()
        self.assertEqual(index[:used].tolist(), order.tolist())
        self.assertTrue((index[used:] == flat.numel()).all())
        self.assertEqual(first.tolist(), reference.first_rows(ids, experts)[:n_local + 1].tolist())
        self.assertTrue(torch.equal(rows[:used], x[order // topk]))
        assert own is not None
        self.assertTrue(torch.equal(own[:used], scales[order // topk]))
        expected = torch.full_like(flat, flat.numel())
        expected[order] = torch.arange(used, device=DEVICE)
        self.assertEqual(inverse.tolist(), expected.tolist())
        out = torch.empty_like(x)
        rows[used:] = float("nan")  # rows beyond the end are never read
        ops.moe_unpermute(out, rows, weights, inverse, first)
        sums = torch.zeros(tokens, width, device=DEVICE).index_add(
            0, order // topk, rows[:used].float() * weights.flatten()[order].unsqueeze(1))
        close(self, out, sums)

    def test_one_scale_for_all(self) -> None:
        x, scale = reference.random_tokens(4, 16), torch.ones(1, device=DEVICE)
        self.assertIs(ops.moe_permute(x, scale, reference.random_ids(4, 2, 4), 4)[1], scale)


class Megatron(unittest.TestCase):
    def chain(self, x: torch.Tensor, map: torch.Tensor,
              probs: Optional[torch.Tensor]) -> List[torch.Tensor]:
        """Megatron-Core's unfused permute (megatron/core/transformer/moe/moe_utils.py)."""
        by_expert = map.bool().T.contiguous()
        token = torch.arange(map.shape[0], device=map.device).unsqueeze(0).expand(map.shape[1], -1)
        index = token.masked_select(by_expert)
        own = (torch.ones_like(index, dtype=torch.float32) if probs is None
               else probs.T.contiguous().masked_select(by_expert))
        return [x.index_select(0, index), index, own]

    def test_there_and_back(self) -> None:
        for tokens, experts, width in ((1, 1, 8), (20, 7, 24), (130, 300, 40), (257, 16, 9)):
            for known in (True, False):
                with self.subTest(f"{tokens} {experts} {width} {known}"):
                    x, probs = reference.random_tokens(tokens, width), reference.random_probs(tokens, experts)
                    map = reference.random_probs(tokens, experts, 9) < 0.3
                    rows, index, own = self.chain(x, map, probs)
                    out = ops.permute(x, map, probs, int(map.sum()) if known else None)
                    self.assertTrue(torch.equal(out.rows, rows))
                    assert out.probs is not None
                    self.assertTrue(torch.equal(out.probs, own))
                    self.assertEqual(out.sorted_indices.tolist(), index.tolist())
                    self.assertEqual(out.tokens_per_expert.tolist(), map.sum(0).tolist())
                    back = ops.unpermute(out.rows, out.row_id_map, x.shape, probs)
                    sums = torch.zeros(tokens, width, device=DEVICE).index_add(
                        0, index, rows.float() * own.unsqueeze(1))
                    close(self, back, sums)

    def test_align(self) -> None:
        x, map = reference.random_tokens(20, 24), reference.random_probs(20, 5, 9) < 0.3
        counts = map.sum(0)
        out = ops.permute(x, map, align=16)
        self.assertTrue((out.tokens_per_expert % 16 == 0).all())
        rows, at = self.chain(x, map, None)[0], 0
        for e in range(5):
            n, padded = int(counts[e]), int(out.tokens_per_expert[e])
            begin = int(out.tokens_per_expert[:e].sum())
            self.assertTrue(torch.equal(out.rows[begin:begin + n], rows[at:at + n]))
            self.assertTrue((out.rows[begin + n:begin + padded] == 0).all())
            self.assertEqual(int(out.pad_offsets[e]), begin - at)
            at += n
        self.assertTrue(torch.equal(ops.unpermute(out.rows, out.row_id_map),
                                    (x.float() * map.sum(1, keepdim=True)).bfloat16()))

    def test_drop_and_pad(self) -> None:
        """Capacity 6: the first routed tokens, then the first tokens that are not routed to the expert
        (Megatron-Core: argsort of the map, descending and stable)."""
        x, map = reference.random_tokens(20, 24), reference.random_probs(20, 5, 9) < 0.3
        probs = reference.random_probs(20, 5) * map
        out = ops.permute(x, map, probs, 30, drop_and_pad=True)
        order = map.T.int().sort(dim=-1, descending=True, stable=True).indices[:, :6].flatten()
        self.assertEqual(out.sorted_indices.tolist(), order.tolist())
        self.assertTrue(torch.equal(out.rows, x[order]))
        expert = torch.arange(5, device=DEVICE).repeat_interleave(6)
        assert out.probs is not None
        self.assertTrue(torch.equal(out.probs, probs[order, expert]))


class Torch(unittest.TestCase):
    def test_opcheck(self) -> None:
        x, ids = reference.random_tokens(9, 16), reference.random_ids(9, 2, 8)
        probs = reference.random_probs(9, 2)
        check, ops_ = torch.library.opcheck, torch.ops.moefarm
        check(ops_.permute_with_ep.default, (x, ids, probs, 3, 11, False, 8))
        rows, inverse, _ = ops.permute_with_ep(x, ids, probs, (3, 11), num_experts=8)
        check(ops_.unpermute_rows.default, (rows, inverse.view(9, 2), probs, 3, 11))
        check(ops_.moe_permute.default, (x, None, ids, 8, 8, None))
        check(ops_.moe_unpermute.default, (torch.empty_like(x), ops.moe_permute(x, None, ids, 8)[0], probs,
                                           ops.moe_permute(x, None, ids, 8)[3]))
        map = reference.random_probs(9, 8, 9) < 0.3
        check(ops_.permute.default, (x, map, None, int(map.sum()), False, 1, int(map.sum())))

    def test_compile(self) -> None:
        def layer(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            rows, inverse, _ = ops.permute_with_ep(x, ids, num_experts=8)
            return ops.unpermute_with_ep(rows * 2, inverse, None, 2)

        x, ids = reference.random_tokens(9, 16), reference.random_ids(9, 2, 8)
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        self.assertTrue(torch.equal(compiled(x, ids), x * 4))

    def test_examples(self) -> None:
        for module in (moefarm.ops._permute, moefarm.ops._sort, moefarm.ops._format):
            result = doctest.testmod(module)
            self.assertEqual(result.failed, 0)
            self.assertGreater(result.attempted, 0)


if __name__ == "__main__":
    unittest.main()
