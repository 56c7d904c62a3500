"""moefarm.prepare: lets a model of transformers (5.7 or newer) compute its experts with libfmoe.

    model = AutoModelForCausalLM.from_pretrained(name, dtype="bfloat16", device_map="cuda")
    moefarm.prepare(model, "tuned_fmoe.csv")
    model.generate(...)

Every model whose experts class has transformers' decorator `use_experts_implementation` is accepted, if its
weights are bfloat16 and its activation is one of libfmoe's."""
from __future__ import annotations

import os
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch
import transformers
from transformers.integrations import moe as _moe

from moefarm._library import Error
from moefarm.integrations.routing import BUCKETS, RoutingRecorder
from moefarm.layer import Layer

NAME = "moefarm"  # of the experts implementation
OLDEST = (5, 7)  # since then, set_experts_implementation accepts a registered name
ATTRIBUTE = "moefarm_layer"  # of a prepared experts module
_TOPK = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "top_k")
_functional = torch.nn.functional


class Prepared(NamedTuple):
    """The result of `prepare`."""

    layers: List[Layer]  # one per experts module, in the order of the model
    workspace_bytes: int  # of the buffer that all layers share


# ---- experts modules ----


class _Activation(NamedTuple):
    name: str  # as in moefarm.Layer
    form: str
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # of gate and up


def _clamped(limit: float) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    return lambda g, u: _functional.silu(g.clamp(max=limit)) * u.clamp(-limit, limit)


def _swiglu(limit: float, alpha: float) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def function(g: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        g = g.clamp(max=limit)
        return g * torch.sigmoid(alpha * g) * (u.clamp(-limit, limit) + 1)
    return function


def _number(value: float) -> str:
    return f"{value:.9g}"


def _known_activations(module: Any) -> Iterator[_Activation]:
    """libfmoe's gated activations, with the limit and the alpha that the module has."""
    yield _Activation("silu", "", lambda g, u: _functional.silu(g) * u)
    yield _Activation("gelu", "", lambda g, u: _functional.gelu(g) * u)
    yield _Activation("gelu_tanh", "", lambda g, u: _functional.gelu(g, approximate="tanh") * u)
    config = getattr(module, "config", None)
    for limit in (getattr(module, "limit", None), getattr(config, "swiglu_limit", None)):
        if not isinstance(limit, (int, float)):
            continue
        yield _Activation("silu", f"limit:{_number(limit)}", _clamped(limit))
        alpha = getattr(module, "alpha", 1.702)
        form = [] if limit == 7 else [f"limit:{_number(limit)}"]
        form += [] if alpha == 1.702 else [f"alpha:{_number(alpha)}"]
        yield _Activation("swiglu", "+".join(form), _swiglu(limit, alpha))


def _activation_of(module: Any, where: str) -> _Activation:
    """Finds the activation by its values: evaluates the module's own function and compares."""
    gate = torch.linspace(-12, 12, 96)
    up = gate.roll(37)
    together = torch.cat((gate, up)) if module.is_concatenated else torch.stack((gate, up), 1).flatten()
    with torch.no_grad():
        values = module._apply_gate(together[None])[0]
    for known in _known_activations(module):
        if torch.allclose(values, known.function(gate, up), rtol=1e-4, atol=1e-5):
            return known
    raise Error(f"{where}: {type(module).__name__}._apply_gate is no activation that libfmoe has")


def _topk_of(module: Any, where: str, given: Optional[int]) -> int:
    for value in (given, *(getattr(module.config, name, None) for name in _TOPK)):
        if isinstance(value, int):
            return value
    raise Error(f"{where}: the model's configuration has none of {', '.join(_TOPK)}: pass topk")


class _Experts:
    """An experts module of the model, and its weights as libfmoe takes them."""

    def __init__(self, name: str, module: Any, topk: Optional[int]) -> None:
        self.name, self.module = name, module
        if ATTRIBUTE in vars(module):
            raise Error(f"{name} is prepared already")
        if not module.has_gate:
            raise Error(f"{name}: experts without a gate are not supported")
        for weight in (module.gate_up_proj, module.down_proj):
            if weight.dtype != torch.bfloat16 or weight.dim() != 3:
                raise Error(f"{name} has weights {list(weight.shape)} of {weight.dtype}: expected three "
                            "dimensions and torch.bfloat16; load the model with dtype=\"bfloat16\"")
            if weight.device.type == "meta":
                raise Error(f"{name} has no weights on a device: load the model without offloading")
        self.device = module.gate_up_proj.device
        self.activation = _activation_of(module, name)
        self.topk = _topk_of(module, name, topk)
        rows, columns = module.gate_up_proj.shape[1:]
        self.experts = module.gate_up_proj.shape[0]
        two_i, self.model_dim = (columns, rows) if module.is_transposed else (rows, columns)
        self.inter_dim = two_i // 2

    def open(self, table: Any, max_tokens: int) -> Layer:
        return Layer(table, model_dim=self.model_dim, inter_dim=self.inter_dim, experts=self.experts,
                     topk=self.topk, activation=self.activation.name, form=self.activation.form,
                     bias=self.module.has_bias, max_tokens=max_tokens, device=self.device)

    def pack(self, layer: Layer) -> None:
        """Packs the weights into the layer and lets the module's parameters share its memory."""
        m = self.module
        biases: Dict[str, Any] = {}
        if m.has_bias:
            biases = {"b1": self._gate_first(m.gate_up_proj_bias.detach()), "b2": m.down_proj_bias.detach()}
        w1 = m.gate_up_proj.detach()
        w2 = m.down_proj.detach()
        if m.is_transposed:
            w1, w2 = w1.transpose(1, 2), w2.transpose(1, 2)
        layer.pack(self._gate_first(w1), w2, **biases)
        for parameter, packed in ((m.gate_up_proj, layer.w1[0]), (m.down_proj, layer.w2[0])):
            assert packed is not None
            self._replace(parameter, packed)
        setattr(m, ATTRIBUTE, layer)

    def _gate_first(self, rows: torch.Tensor) -> torch.Tensor:
        if self.module.is_concatenated:
            return rows
        return torch.cat((rows[:, ::2], rows[:, 1::2]), 1)

    @staticmethod
    def _replace(parameter: torch.nn.Parameter, packed: torch.Tensor) -> None:
        """Lets the parameter share the memory of the packed weights. Reordered weights get one dimension, so
        that other experts implementations fail instead of computing with them."""
        parameter.requires_grad_(False)
        if packed.data_ptr() != parameter.data_ptr():
            parameter.data = packed.view(-1)


# ---- the experts implementation ----


def _forward(module: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor,
             top_k_weights: torch.Tensor) -> torch.Tensor:
    layer = getattr(module, ATTRIBUTE, None)
    if layer is None:
        raise Error(f"a {type(module).__name__} is not prepared: call moefarm.prepare(model)")
    y: torch.Tensor = layer(hidden_states, top_k_index, top_k_weights)
    return y


def _check_version() -> None:
    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    if version < OLDEST:
        raise Error(f"transformers is {transformers.__version__}: expected "
                    f"{'.'.join(map(str, OLDEST))} or newer")


def _experts_modules(model: torch.nn.Module) -> List[Tuple[str, Any]]:
    """The modules whose class has the decorator use_experts_implementation."""
    return [(name, module) for name, module in model.named_modules()
            if hasattr(module, "is_concatenated") and hasattr(module, "has_gate")]


def prepare(model: Any, table: Union[None, str, "os.PathLike[str]", Sequence[str]] = None, *,
            max_tokens: int = 4096, topk: Optional[int] = None, verbose: bool = True) -> Prepared:
    """Lets the model compute its experts with libfmoe, for inference.

    Opens a layer per experts module, packs its weights, replaces the data of the module's parameters by the
    packed weights, allocates the workspace that all layers share, selects the experts implementation
    "moefarm", and prints what it did. Call it after the model is on its device and before torch.compile or
    the capture of a graph. Do not train or save the model afterwards: its weights are in the kernels' layout.
    A parameter whose elements are reordered becomes one-dimensional, so other experts implementations fail.

    table: path of a table that moefarm exported for consumer moefarm, a list of paths, or None (every call is
        served by a fallback).
    max_tokens: largest number of tokens of one call; a longer prompt runs in several calls.
    topk: experts per token, if the model's configuration does not have it.

    Raises moefarm.Error and leaves the model unchanged if a module or the table is refused. After an error
    while weights are packed, for example for lack of memory, load the model again."""
    _check_version()
    experts = [_Experts(name, module, topk) for name, module in _experts_modules(model)]
    if not experts:
        raise Error(f"{type(model).__name__} has no experts modules with transformers' decorator "
                    "use_experts_implementation")
    start = time.perf_counter()
    layers = [part.open(table, max_tokens) for part in experts]
    opened = time.perf_counter()
    for part, layer in zip(experts, layers):
        part.pack(layer)
    packed = time.perf_counter()
    _moe.ALL_EXPERTS_FUNCTIONS.register(NAME, _forward)
    model.set_experts_implementation(NAME)
    prepared = Prepared(layers, max(layer.workspace_bytes for layer in layers))
    if verbose:
        for line in _report(experts, prepared, opened - start, packed - opened):
            print(f"moefarm: {line}")
    return prepared


def _report(experts: Sequence[_Experts], prepared: Prepared, open_s: float, pack_s: float) -> Iterator[str]:
    kinds: Dict[str, List[int]] = {}
    for i, layer in enumerate(prepared.layers):
        kinds.setdefault(layer.shape(1), []).append(i)
    for numbers in kinds.values():
        first, part = prepared.layers[numbers[0]], experts[numbers[0]]
        biases = " with biases" if part.module.has_bias else ""
        yield (f"{len(numbers)} x {type(part.module).__name__} on {first.device}: {first.experts} experts, "
               f"top-{first.topk}, {first.model_dim} x {first.inter_dim}, {part.activation.name}{biases}; "
               f"w1 is packed in layout {first.layouts[0]}, w2 in {first.layouts[1]}")
        yield from _report_rows(first)
    yield (f"workspace {prepared.workspace_bytes / 1e6:.1f} MB, shared; opened in {open_s:.2f} s, packed in "
           f"{pack_s:.2f} s")


def _report_rows(layer: Layer) -> Iterator[str]:
    tuned = [n for n in BUCKETS if n <= layer.max_tokens and layer.served(n).tuned]
    if tuned:
        yield f"tuned rows for {', '.join(map(str, tuned))} tokens; a fallback serves the others"
    else:
        yield "no tuned row: a fallback serves every call; tune the layer's shapes, for 1 token:"
        yield f"  {layer.shape(1)}"


def record_routing(model: Any, every: int = 16) -> RoutingRecorder:
    """Counts how often each expert is chosen, per experts module and per bucket of token counts, in every
    `every`-th call of a module. Works with any experts implementation. The counters are on the model's
    device, and nothing waits for them.

        with moefarm.record_routing(model) as recorder:
            ...                                      # serve real traffic
        recorder.save("counts.txt", tokens=64)       # moefarm submit --routing @counts.txt

    A CUDA graph that is captured meanwhile counts at every replay, until it is captured again."""
    modules = _experts_modules(model)
    if not modules:
        raise Error(f"{type(model).__name__} has no experts modules with transformers' decorator "
                    "use_experts_implementation")
    return RoutingRecorder(modules, every)
