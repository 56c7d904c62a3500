"""The cases of test_ops_sort, test_ops_permute and test_ops_format on a GPU, and operators in CUDA graphs."""
import unittest

import select_gpu  # noqa: F401; first: the tests read its variable

import torch

import ops_reference as reference
from moefarm import ops
from test_ops_format import Orders as Orders, Quantise as Quantise, Routers as Routers
from test_ops_permute import Megatron as Megatron, Vllm as Vllm, WithEp as WithEp
from test_ops_sort import AiterSorting as AiterSorting, Align as Align


class Graphs(unittest.TestCase):
    def test_replay_with_other_routing(self) -> None:
        """One launch for few routes; a count, a sort and a copy for many."""
        for tokens in (64, 1024):
            x, ids = reference.random_tokens(tokens, 256), reference.random_ids(tokens, 8, 64)
            n = ids.numel()
            ops.permute_with_ep(x, ids, None, (0, n), num_experts=64)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                rows, inverse, _ = ops.permute_with_ep(x, ids, None, (0, n), num_experts=64)
                sums = ops.unpermute_with_ep(rows, inverse, None, 8)
            for seed in range(3):
                ids.copy_(reference.random_ids(tokens, 8, 64, seed))
                graph.replay()
                expected = reference.permute_with_ep(x, ids, None, 0, n)
                self.assertTrue(torch.equal(rows, expected[0]))
                self.assertTrue(torch.equal(sums, x * 8))


if __name__ == "__main__":
    unittest.main()
