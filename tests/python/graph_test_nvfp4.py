"""NVFP4 in a CUDA graph on a GPU: capture once, replay with other routing, in the same memory. Without a GPU,
the same calls run one after the other in the same buffers."""
import unittest
from typing import Any, Callable

try:
    import torch
except ImportError as error:
    raise unittest.SkipTest(f"no PyTorch: {error}") from error

import moe_reference as reference
from nvfp4 import COSINE, DEVICE, cosine, inputs, open_layer, weights_of


def recorded(step: Callable[[], Any]) -> Callable[[], Any]:
    """The step as a graph that replays it, on a GPU."""
    if DEVICE == "cpu":
        return step
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


class Graph(unittest.TestCase):
    def test_replay_with_other_routing(self) -> None:
        weights, layers = weights_of(), [open_layer() for _ in range(3)]
        for layer in layers:
            layer.pack(**weights.packed)
        buffers = inputs(64, seed=1)
        x, ids, p = buffers
        outputs = [torch.empty_like(x) for _ in layers]

        def step() -> None:
            for layer, out in zip(layers, outputs):
                layer(x, ids, p, out)

        replay = recorded(step)
        for seed in (2, 3, 4):
            for buffer, fresh in zip(buffers, inputs(64, seed=seed)):
                buffer.copy_(fresh)
            replay()
            expected = reference.moe(x, weights.w1, weights.w2, ids, p)
            for out in outputs:
                self.assertGreaterEqual(cosine(out, expected), COSINE)
            self.assertTrue(all(reference.same(out, outputs[0]) for out in outputs))


if __name__ == "__main__":
    unittest.main()
