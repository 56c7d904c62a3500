"""NVFP4 end to end: accuracy against bfloat16 weights, uneven routing, expert parallelism, both clamps, and
the memory of 60 layers. On the CPU, or on the device that MOEFARM_TEST_TORCH_DEVICE names."""
import functools
import unittest
from typing import Any

try:
    import torch
except ImportError as error:
    raise unittest.SkipTest(f"no PyTorch: {error}") from error

import moe_reference as reference
import moefarm
from nvfp4 import COSINE, DEVICE, E, K, cosine, inputs, open_layer, weights_of


def clamped_silu(h: torch.Tensor, limit: float) -> torch.Tensor:
    """Silu with limit: clamps the gate before silu."""
    gate, up = h.chunk(2, -1)
    return torch.nn.functional.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)


def silu_step(h: torch.Tensor, limit: float) -> torch.Tensor:
    """SiluStep: clamps the result of silu."""
    gate, up = h.chunk(2, -1)
    return torch.nn.functional.silu(gate).clamp(max=limit) * up.clamp(-limit, limit)


class Accuracy(unittest.TestCase):
    def check(self, routing: Any, function: Any = reference.silu_gate, **options: Any) -> None:
        weights = weights_of(function)
        layer = open_layer(**options)
        layer.pack(**weights.packed)
        x, ids, p = routing
        expected = reference.moe(x, weights.w1, weights.w2, ids, p, function)
        found = cosine(layer(x, ids, p), expected)
        print(f"cosine {found:.4f}")
        self.assertGreaterEqual(found, COSINE)

    def test_cosine(self) -> None:
        for tokens in (1, 17, 256):
            with self.subTest(tokens):
                self.check(inputs(tokens, seed=tokens))

    def test_uneven_routing(self) -> None:
        """One expert gets 500 rows, and half of the others get none."""
        x, ids, p = inputs(600, seed=3)
        ids = ids % (E // 2)
        ids[:] = torch.stack([(ids[:, 0] + n) % (E // 2) for n in range(K)], 1)  # distinct experts
        ids[:500] = torch.tensor([5, 1, 2, 3], device=ids.device)
        self.assertGreaterEqual(int((ids == 5).sum()), 500)
        self.check((x, ids, p))

    def test_clamps(self) -> None:
        limit = 1.0  # clamps about a third of the values of up
        for name, function in (("silu", clamped_silu), ("silu_step", silu_step)):
            with self.subTest(name):
                self.check(inputs(64, seed=4), functools.partial(function, limit=limit), activation=name,
                           form=f"limit:{limit}")


class Calibration(unittest.TestCase):
    def test_factors_of_warm_up_batches(self) -> None:
        weights, layer = weights_of(), open_layer()
        layer.pack(**{**weights.packed, "calibration": None})
        layer.calibrate(*inputs(64, seed=20))
        factors = layer.calibrate(*inputs(256, seed=21))
        x = torch.cat([inputs(64, seed=20)[0], inputs(256, seed=21)[0]])
        self.assertAlmostEqual(float(factors[0]), 448 * 6 / float(x.abs().max()), places=3)
        given = weights.packed["calibration"]
        self.assertLess(abs(float(factors[1] / given[1]) - 1), 0.5)  # of routed tokens only
        x, ids, p = inputs(40, seed=22)
        y = layer(x, ids, p)
        self.assertGreaterEqual(cosine(y, reference.moe(x, weights.w1, weights.w2, ids, p)), COSINE)
        wider = layer.calibrate(x, ids, p, margin=2.0)
        self.assertLess(float((wider / factors - 0.5).abs().max()), 0.01)

    def test_refused(self) -> None:
        layer = open_layer()
        with self.assertRaisesRegex(moefarm.Error, "call pack first"):
            layer.calibrate(*inputs(4, seed=1))
        layer.pack(**{**weights_of().packed, "calibration": None})
        x, ids, p = inputs(4, seed=1)
        with self.assertRaisesRegex(moefarm.Error, "finite"):
            layer.calibrate(x * float("nan"), ids, p)


class ExpertParallel(unittest.TestCase):
    def test_ranks_add_up_to_the_layer(self) -> None:
        weights, (x, ids, p) = weights_of(), inputs(40, seed=5)
        whole = open_layer()
        whole.pack(**weights.packed)
        total = torch.zeros(x.shape, device=DEVICE)
        for first in (0, E // 2):
            rank = open_layer(E // 2, form=f"ep:{first}/{E}")
            rank.pack(**weights.of_experts(slice(first, first + E // 2)))
            total += rank(x, ids, p).float()
        self.assertLess(reference.relative_error(total, whole(x, ids, p).float()), 0.01)

    def test_remapped_ids(self) -> None:
        """Experts in any order, global ids."""
        weights, (x, ids, p) = weights_of(), inputs(40, seed=6)
        local = torch.tensor([14, 3, 8, 1, 10], device=DEVICE)
        expert_map = torch.full((E,), -1, dtype=torch.int32, device=DEVICE)
        expert_map[local] = torch.arange(5, dtype=torch.int32, device=DEVICE)
        rank = open_layer(5, form=f"ep:0/{E}")
        rank.pack(**weights.of_experts(local))
        here = expert_map[ids.long()] >= 0
        expected = reference.moe(x, weights.w1, weights.w2, ids, p * here)
        for ids_type in (torch.int32, torch.int64):
            y = rank(x, rank.remap_ids(ids.to(ids_type), expert_map), p)
            self.assertGreaterEqual(cosine(y, expected), COSINE)

    def test_refused_maps(self) -> None:
        rank, ids = open_layer(5, form=f"ep:0/{E}"), inputs(3, seed=6)[1]
        for expert_map in (torch.zeros(E - 1, dtype=torch.int32), torch.zeros(E)):
            with self.assertRaisesRegex(moefarm.Error, "expert_map is .*: a layer with form 'ep:0/16' "
                                                       r"expects \[16\] of torch.int32"):
                rank.remap_ids(ids, expert_map.to(DEVICE))
        with self.assertRaisesRegex(moefarm.Error, r"topk_ids is \[3, 2\] of torch.int64"):
            rank.remap_ids(ids[:, :2], torch.zeros(E, dtype=torch.int32, device=DEVICE))


class Memory(unittest.TestCase):
    def test_60_layers_share_one_workspace(self) -> None:
        layers = [open_layer() for _ in range(60)]
        workspace = layers[0]._workspace
        self.assertTrue(all(layer._workspace is workspace for layer in layers))
        self.assertEqual(workspace.bytes, max(layer.workspace_bytes for layer in layers))
        held = sum(buffer.numel() for buffer in workspace._buffers)
        print(f"60 layers: {held} bytes of workspace")
        address = workspace.address
        weights, (x, ids, p) = weights_of(), inputs(8, seed=7)
        for layer in (layers[0], layers[59]):
            layer.pack(**weights.packed)
            layer(x, ids, p)
        self.assertEqual(workspace.address, address)

    def test_a_call_allocates_nothing(self) -> None:
        layer, (x, ids, p) = open_layer(), inputs(8, seed=8)
        layer.pack(**weights_of().packed)
        out = torch.empty_like(x)
        layer(x, ids, p, out)
        activity = torch.profiler.ProfilerActivity
        with torch.profiler.profile(activities=[activity.CPU], profile_memory=True) as profile:
            layer(x, ids, p, out)
        allocations = [event.name for event in profile.events()
                       if event.cpu_memory_usage > 0 or "empty" in event.name]
        self.assertEqual(allocations, [])


if __name__ == "__main__":
    unittest.main()
