"""The cases of test_layer on a GPU, and the layer in CUDA graphs and on several streams."""
import unittest
from typing import Any

import select_gpu  # noqa: F401; first: the tests read its variable

import torch

import moe_reference as reference
from test_layer import BF16, Errors as Errors, Operator as Operator, Results as Results
from test_layer import bf16_layer, inputs, weights_of
from test_layer_formats import Formats as Formats


class Streams(unittest.TestCase):
    def test_graph_replay_with_other_routing(self) -> None:
        layer = bf16_layer()
        x, ids, p = inputs(16)
        layer(x, ids, p)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = layer(x, ids, p)
        for tensor, fresh in zip((x, ids, p), inputs(16, seed=9)):
            tensor.copy_(fresh)
        graph.replay()
        self.assertLess(reference.relative_error(y, reference.moe(x, *weights_of(), ids, p)), BF16)

    def test_two_streams(self) -> None:
        stream: Any = torch.cuda.Stream  # torch declares no types for it
        layer, side = bf16_layer(), stream()
        ours, theirs = inputs(64, seed=4), inputs(64, seed=5)
        expected = [layer(*ours), layer(*theirs)]
        side.wait_stream(torch.cuda.current_stream())
        for _ in range(50):
            a = layer(*ours)
            with torch.cuda.stream(side):
                b = layer(*theirs)
        torch.cuda.synchronize()
        self.assertTrue(reference.same(a, expected[0]) and reference.same(b, expected[1]))


if __name__ == "__main__":
    unittest.main()
