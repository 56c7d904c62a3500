"""moefarm.prepare and moefarm.record_routing on small models of transformers with random weights, on the CPU
or on the device that MOEFARM_TEST_TORCH_DEVICE names."""
import contextlib
import copy
import io
import os
import pathlib
import tempfile
import unittest
import unittest.mock
from typing import Any, Dict, List, NamedTuple, Tuple

try:
    import torch
    import transformers
except ImportError as error:
    raise unittest.SkipTest(f"no PyTorch or transformers: {error}") from error

import moefarm
import moefarm.integrations.transformers as integration
import tuned_table
from moefarm.integrations.routing import bucket_index

DEVICE = os.environ.get("MOEFARM_TEST_TORCH_DEVICE", "cpu")
COMMON = {"vocab_size": 512, "hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4,
          "num_key_value_heads": 2, "head_dim": 32, "initializer_range": 0.1, "pad_token_id": 0}
MODELS: Dict[str, Tuple[str, Dict[str, Any]]] = {
    "qwen3": ("Qwen3Moe", {"moe_intermediate_size": 64, "intermediate_size": 256, "num_experts": 16,
                           "num_experts_per_tok": 4, "norm_topk_prob": True}),
    "mixtral": ("Mixtral", {"intermediate_size": 256, "num_local_experts": 8, "num_experts_per_tok": 2}),
    "gpt-oss": ("GptOss", {"intermediate_size": 128, "num_local_experts": 8, "num_experts_per_tok": 4}),
}
OTHERS: Dict[str, Tuple[str, Dict[str, Any]]] = {
    "deepseek-v3": ("DeepseekV3", {"moe_intermediate_size": 64, "intermediate_size": 256,
                                   "n_routed_experts": 16, "num_local_experts": 16,
                                   "num_experts_per_tok": 4, "n_group": 4,
                                   "topk_group": 2, "first_k_dense_replace": 1, "q_lora_rank": 32,
                                   "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16,
                                   "v_head_dim": 32, "num_key_value_heads": 4, "head_dim": 16}),
    "olmoe": ("Olmoe", {"intermediate_size": 64, "num_experts": 16, "num_experts_per_tok": 4}),
}
# Relative error of a token's logits. `grouped_mm` differs from `eager` by about as much. A router with a near
# tie chooses another expert, so a few tokens may differ by more.
LIMIT = 0.03
TIES = 0.15  # fraction of tokens
NEW_TOKENS = 64
torch.set_num_threads(1)  # the models are small


def model_of(kind: str) -> Any:
    name, options = {**MODELS, **OTHERS}[kind]
    torch.manual_seed(3)
    config = getattr(transformers, name + "Config")(**{**COMMON, **options})
    model = getattr(transformers, name + "ForCausalLM")(config).to(torch.bfloat16).to(DEVICE).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "bias" in parameter_name or "sinks" in parameter_name:
                parameter.normal_(std=1.0)
            elif "gate_up_proj" in parameter_name and kind == "gpt-oss":
                parameter.mul_(4)  # so that some values exceed the limit of 7
    return model


def prompt(tokens: int = 20) -> torch.Tensor:
    torch.manual_seed(4)
    return torch.randint(1, 512, (2, tokens)).to(DEVICE)


def logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = model(input_ids=ids, use_cache=False).logits.float()
    return result


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


def exceptions(a: torch.Tensor, b: torch.Tensor) -> float:
    """The fraction of tokens whose logits differ by more than LIMIT."""
    errors = (a - b).norm(dim=-1) / b.norm(dim=-1)
    return float((errors > LIMIT).float().mean())


def prepared(kind: str, **options: Any) -> Any:
    model = model_of(kind)
    moefarm.prepare(model, verbose=False, **options)
    return model


class Routed(NamedTuple):
    """A router's choice for the last token of a step."""

    logits: torch.Tensor  # [1, experts]
    ids: torch.Tensor  # [1, topk], ascending


class Decoded:
    """Greedy tokens of a model, and each step's logits and routing."""

    def __init__(self, model: Any, ids: torch.Tensor) -> None:
        calls: List[Routed] = []
        routers = [m for name, m in model.named_modules() if name.endswith(("mlp.gate", "mlp.router"))]
        for router in routers:
            router.register_forward_hook(lambda module, arguments, result: calls.append(
                Routed(result[0][-1:].float(), result[2][-1:].sort(-1).values)))
        result = model.generate(ids, do_sample=False, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS,
                                attention_mask=torch.ones_like(ids), output_logits=True,
                                return_dict_in_generate=True)
        self.logits = [logits[0].float() for logits in result.logits]
        self.routers = [calls[i:i + len(routers)] for i in range(0, len(calls), len(routers))]


class Models(unittest.TestCase):
    def test_logits(self) -> None:
        for kind in (*MODELS, *OTHERS):
            with self.subTest(kind):
                eager, grouped, ours = model_of(kind), model_of(kind), prepared(kind)
                eager.set_experts_implementation("eager")
                grouped.set_experts_implementation("grouped_mm")
                self.assertEqual(ours.config._experts_implementation, "moefarm")
                expected, other, got = (logits(model, prompt()) for model in (eager, grouped, ours))
                print(f"{kind}: error {relative(got, expected):.4f}, of grouped_mm "
                      f"{relative(other, expected):.4f}")
                self.assertLessEqual(exceptions(got, expected), TIES)
                self.assertLessEqual(exceptions(got, other), TIES)

    def test_the_experts_matter(self) -> None:
        """Guards the limit of test_logits: other experts change the logits by far more."""
        for kind in MODELS:
            other = model_of(kind)
            with torch.no_grad():
                for name, parameter in other.named_parameters():
                    if name.endswith("down_proj"):
                        parameter.copy_(parameter.roll(1, 0))
            self.assertGreater(exceptions(logits(other, prompt()), logits(model_of(kind), prompt())), 0.9)

    def test_greedy_tokens(self) -> None:
        """64 greedy tokens equal those of `eager`, up to the first step whose routing or whose token differs.
        Up to and including the router or the token that differs, the logits agree. A different choice from
        logits that agree within e is a near tie: the margin is below 2 e."""
        for kind in MODELS:
            with self.subTest(kind):
                eager, ours = model_of(kind), prepared(kind)
                eager.set_experts_implementation("eager")
                expected, got = Decoded(eager, prompt()[:1]), Decoded(ours, prompt()[:1])
                steps = next((n for n in range(NEW_TOKENS) if not self.agree(expected, got, n)), NEW_TOKENS)
                print(f"{kind}: {steps} steps with the same experts and the same token")
                self.assertGreater(steps, 2)

    def agree(self, expected: "Decoded", got: "Decoded", step: int) -> bool:
        for a, b in zip(expected.routers[step], got.routers[step]):
            self.assertLess(relative(b.logits, a.logits), LIMIT)
            if not torch.equal(b.ids, a.ids):
                return False
        a, b = expected.logits[step], got.logits[step]
        self.assertLess(relative(b, a), LIMIT)
        return bool(a.argmax() == b.argmax())

    def test_compile_fullgraph(self) -> None:
        model = prepared("qwen3")
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        self.assertLess(exceptions(logits(compiled, prompt()), logits(model, prompt())), TIES)

    def test_long_prompt(self) -> None:
        self.assertLess(exceptions(logits(prepared("qwen3", max_tokens=16), prompt()),
                                   logits(model_of("qwen3"), prompt())), TIES)


class Prepare(unittest.TestCase):
    def test_report(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            result = moefarm.prepare(model_of("gpt-oss"))
        self.assertRegex(out.getvalue(), r"3 x GptOssExperts on .*: 8 experts, top-4, 128 x 128, swiglu with "
                                         "biases; w1 is packed in layout row")
        self.assertIn(",ActivationType.Swiglu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0,"
                      "b1+b2\n", out.getvalue())
        self.assertEqual(len(result.layers), 3)
        self.assertEqual(result.workspace_bytes, result.layers[0].workspace_bytes)

    def test_tuned_rows(self) -> None:
        model, plain = model_of("qwen3"), prepared("qwen3")
        with tempfile.TemporaryDirectory() as folder:
            table = pathlib.Path(folder, "tuned.csv")
            tuned_table.write(table, plain.model.layers[0].mlp.experts.moefarm_layer, (1, 64))
            with contextlib.redirect_stdout(io.StringIO()) as out:
                moefarm.prepare(model, table)
            self.assertIn("tuned rows for 1, 64 tokens", out.getvalue())
            self.assertLessEqual(exceptions(logits(model, prompt()), logits(plain, prompt())), TIES)

    def test_other_implementations_fail_on_packed_weights(self) -> None:
        model = prepared("gpt-oss")
        for name in ("eager", "grouped_mm", "batched_mm"):
            model.set_experts_implementation(name)
            with self.assertRaises((RuntimeError, IndexError)):
                logits(model, prompt())

    def test_prepared_twice(self) -> None:
        model = prepared("qwen3")
        with self.assertRaisesRegex(moefarm.Error, "is prepared already"):
            moefarm.prepare(model)

    def test_not_prepared(self) -> None:
        prepared("qwen3")  # registers the implementation
        model = model_of("qwen3")
        model.set_experts_implementation("moefarm")
        with self.assertRaisesRegex(moefarm.Error, r"Qwen3MoeExperts is not prepared: call moefarm.prepare"):
            logits(model, prompt())

    def test_refused_models(self) -> None:
        with self.assertRaisesRegex(moefarm.Error, "Linear has no experts modules"):
            moefarm.prepare(torch.nn.Linear(2, 2))
        with self.assertRaisesRegex(moefarm.Error, "of torch.float32: expected three dimensions and "
                                                   "torch.bfloat16"):
            moefarm.prepare(model_of("mixtral").float())
        model = model_of("mixtral")
        model.model.layers[1].mlp.experts.act_fn = torch.nn.Tanh()
        before = copy.deepcopy(model.state_dict())
        with self.assertRaisesRegex(moefarm.Error, "layers.1.mlp.experts: MixtralExperts._apply_gate is no"):
            moefarm.prepare(model)
        self.assertTrue(all(torch.equal(before[name], value) for name, value in model.state_dict().items()))

    def test_old_version(self) -> None:
        with unittest.mock.patch.object(transformers, "__version__", "5.6.2"):
            with self.assertRaisesRegex(moefarm.Error, "transformers is 5.6.2: expected 5.7 or newer"):
                moefarm.prepare(model_of("qwen3"))

    def test_limit_and_alpha(self) -> None:
        experts = model_of("gpt-oss").model.layers[0].mlp.experts
        experts.limit, experts.alpha = 3.5, 1.5
        found = integration._activation_of(experts, "experts")
        self.assertEqual((found.name, found.form), ("swiglu", "limit:3.5+alpha:1.5"))


class Routing(unittest.TestCase):
    def test_counts(self) -> None:
        model, ids = prepared("qwen3"), prompt()
        with moefarm.record_routing(model, every=1) as recorder:
            logits(model, ids)
            logits(model, ids[:1, :1])
        logits(model, ids)  # is not recorded
        for layer in range(3):
            self.assertEqual(int(recorder.counts(layer).sum()), 41 * 4)
            self.assertEqual(int(recorder.counts(layer, tokens=1).sum()), 4)
            self.assertEqual(int(recorder.counts(layer, tokens=33).sum()), 40 * 4)
        self.assertEqual(len(recorder.names), 3)

    def test_counts_equal_the_router(self) -> None:
        model, ids = prepared("mixtral"), prompt()
        seen = []
        hook = model.model.layers[1].mlp.experts.register_forward_pre_hook(
            lambda module, arguments: seen.append(arguments[1]))
        with moefarm.record_routing(model, every=1) as recorder:
            logits(model, ids)
        hook.remove()
        expected = torch.bincount(seen[0].flatten(), minlength=8).cpu()
        self.assertTrue(torch.equal(recorder.counts(1), expected))

    def test_every(self) -> None:
        model = model_of("qwen3")
        with moefarm.record_routing(model, every=3) as recorder:
            for _ in range(7):
                logits(model, prompt())
        self.assertEqual(int(recorder.counts(0).sum()), 2 * 40 * 4)

    def test_ids_of_no_expert(self) -> None:
        experts = model_of("mixtral").model.layers[0].mlp.experts
        with moefarm.record_routing(experts, every=1) as recorder, torch.no_grad():
            experts.moefarm_layer = lambda x, ids, weights: x
            experts.config._experts_implementation_internal = "moefarm"
            experts(torch.zeros(2, 128), torch.tensor([[-1, 3], [8, 3]]).to(DEVICE), torch.zeros(2, 2))
        self.assertEqual(recorder.counts(0).tolist(), [0, 0, 0, 2, 0, 0, 0, 0])

    def test_file(self) -> None:
        model = model_of("qwen3")
        with moefarm.record_routing(model, every=1) as recorder, tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "counts.txt")
            with self.assertRaisesRegex(moefarm.Error, "no call was recorded"):
                recorder.save(file)
            logits(model, prompt())
            recorder.save(file, layer=2, tokens=64)
            self.assertEqual([int(n) for n in file.read_text().split()], recorder.counts(2).tolist())
            recorder.save(file)
            numbers = [int(n) for n in file.read_text().split()]
        self.assertEqual((len(numbers), sum(numbers)), (16, 3 * 40 * 4))
        self.assertEqual(numbers, sorted(numbers, reverse=True))

    def test_buckets(self) -> None:
        for tokens, index in ((1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (32768, 15), (32769, 15), (131071, 15),
                              (131072, 16)):
            self.assertEqual(bucket_index(tokens), index, tokens)

    def test_refused(self) -> None:
        with self.assertRaisesRegex(moefarm.Error, "every is 0: expected at least 1"):
            moefarm.record_routing(model_of("qwen3"), every=0)


if __name__ == "__main__":
    unittest.main()
