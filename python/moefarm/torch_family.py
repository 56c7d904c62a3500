"""Base classes of families that call PyTorch. A family is then about 40 lines (examples/family_torch.py):

    class MyKernel(TorchKernel):
        def forward(self, tensors):            # torch tensors by name; runs on the current stream
            return layer(tensors["x"], ...)    # y, in memory of its own

On a GPU, `prepare` runs `forward` once, captures it in a CUDA graph, and passes the graph to the farm, which
replays and times it. Results are copied into the farm's buffer after the timed interval, because production
uses them where they are. A forward that cannot be captured is timed launch by launch (mode `eager`), with the
exception as the reason; the farm does not rank it with graphs.

Never write to an input, and never return one. `forward` must do all its work on the current stream, or on
streams that it joins with the current stream."""
from __future__ import annotations

import abc
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch
from torch.utils.dlpack import from_dlpack

from moefarm.family import Candidate, Family, Kernel, Shape
from moefarm.tensor import CUDA, ROCM, Tensor

_cuda: Any = torch.cuda  # torch declares no types for parts of it
# dtypes that DLPack passes as bytes
_VIEWS = {name: getattr(torch, name) for name in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e8m0fnu")
          if hasattr(torch, name)}


def as_torch(tensor: Tensor) -> torch.Tensor:
    """The farm's tensor as a torch tensor on the same memory."""
    array = from_dlpack(tensor)
    return array.view(_VIEWS[tensor.dtype]) if tensor.dtype in _VIEWS else array


class TorchKernel(Kernel):
    """A candidate that is computed by `forward`. All its graphs share one memory pool."""

    def __init__(self, output: str = "y") -> None:
        self.output = output
        self._results: Dict[int, Optional[torch.Tensor]] = {}  # by address of the output
        self._graphs: List[Any] = []  # a graph must live as long as the farm replays it
        self._side: Any = None
        self._pool: Any = None

    @abc.abstractmethod
    def forward(self, tensors: Mapping[str, torch.Tensor]) -> Optional[torch.Tensor]:
        """Computes the output. Returns it, or writes tensors[self.output] and returns None."""

    # ---- called by the farm ----

    def prepare(self, tensors: Mapping[str, Tensor], stream: int) -> int:
        if not stream:
            with torch.inference_mode():
                self._run(tensors)  # torch starts its threads at the first call
            return 0
        with torch.inference_mode(), torch.cuda.device(tensors[self.output].device[1]):
            return self._prepare(tensors)

    def launch(self, tensors: Mapping[str, Tensor], stream: int) -> None:
        with torch.inference_mode():
            if stream:
                with torch.cuda.stream(_cuda.ExternalStream(stream)):
                    self._run(tensors)
            else:
                self._run(tensors)
                self.finish(tensors, 0)

    def finish(self, tensors: Mapping[str, Tensor], stream: int) -> None:
        result = self._results.get(tensors[self.output].pointer)
        if result is None:
            return
        with torch.inference_mode():
            as_torch(tensors[self.output]).copy_(result)
            if stream:
                torch.cuda.synchronize()

    def close(self) -> None:
        if self._side is not None:
            torch.cuda.synchronize()
        self._results.clear()
        self._graphs.clear()
        if self._side is not None:
            torch.cuda.empty_cache()

    # ---- capture ----

    def _run(self, tensors: Mapping[str, Tensor]) -> None:
        arrays = {name: as_torch(tensor) for name, tensor in tensors.items()}
        result = self.forward(arrays)
        if result is not None and result.shape != arrays[self.output].shape:
            raise ValueError(f"forward returned {tuple(result.shape)}, but {self.output} is "
                             f"{tuple(arrays[self.output].shape)}")
        self._results[tensors[self.output].pointer] = result

    def _prepare(self, tensors: Mapping[str, Tensor]) -> int:
        if self._side is None:
            self._side, self._pool = _cuda.Stream(), torch.cuda.graph_pool_handle()
        torch.cuda.synchronize()
        with torch.cuda.stream(self._side):
            self._run(tensors)  # libraries initialise and compile at the first call
        torch.cuda.synchronize()
        if self.not_captured:
            return 0
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        try:
            # capture_end may raise, and torch.cuda.graph then does not restore the current stream
            with torch.cuda.stream(torch.cuda.current_stream()):
                with torch.cuda.graph(graph, pool=self._pool, stream=self._side,
                                      capture_error_mode="thread_local"):
                    self._run(tensors)
        except Exception as error:
            self._end_capture()
            self.not_captured = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            return 0
        self._graphs.append(graph)
        torch.cuda.synchronize()
        self._poison_pool()
        return int(graph.raw_cuda_graph())

    def _end_capture(self) -> None:
        """Makes the allocator forget a capture that failed, which torch omits."""
        try:
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), self._pool)
        except RuntimeError:
            pass  # torch has done so
        self._side, self._pool = _cuda.Stream(), torch.cuda.graph_pool_handle()

    def _poison_pool(self) -> None:
        """Fills the memory of the graphs with NaN. Every replay writes it before it reads it. What ran on
        another stream during the capture is not in the graph, and its values must not look like results."""
        for segment in _cuda.memory_snapshot():
            if tuple(segment["segment_pool_id"]) == tuple(self._pool):
                _fill(segment["address"], segment["total_size"])
        torch.cuda.synchronize()


def _fill(address: int, n: int) -> None:
    device = (CUDA if torch.version.hip is None else ROCM, torch.cuda.current_device())
    from_dlpack(Tensor("pool", [n], "uint8", address, device, True)).fill_(0xff)


class TorchFamily(Family):
    """A family whose revision contains torch's version."""

    def revision(self) -> str:
        return f"torch {torch.__version__}"


class CompilesAtLaunch(TorchFamily):
    """A family whose library compiles a kernel at its first launch. `precompile` runs every candidate once,
    on tensors without defined contents."""

    def precompile(self, candidates: Sequence[Candidate], shape: Shape) -> Iterator[object]:
        tensors = empty_tensors(shape, "cuda", shape.token)
        tensors["topk_ids"].copy_(torch.arange(shape.token * shape.topk).view(shape.token, -1) % shape.expert)
        for candidate in candidates:
            try:
                with torch.inference_mode():
                    self.open(candidate, shape).forward(tensors)
                    torch.cuda.synchronize()
            except Exception:  # the measurement meets the same exception, and reports it
                pass
            yield candidate.name
        tensors.clear()
        torch.cuda.empty_cache()

    @abc.abstractmethod
    def open(self, candidate: Candidate, shape: Shape) -> TorchKernel:
        pass


# ---- tensors of a layer ----

BLOCK = 128  # side of the blocks of weights that share a scale, with QuantType.per_1x128


def scale_size(q_type: str, size: Sequence[int]) -> Sequence[int]:
    """The size of the scales of weights of this size: (experts, rows, columns)."""
    experts, rows, columns = size
    return {"QuantType.per_1x128": (experts, -(-rows // BLOCK), -(-columns // BLOCK)),
            "QuantType.per_Token": (experts, rows, 1), "QuantType.per_Tensor": (experts,)}[q_type]


def empty_tensors(shape: Shape, device: str, tokens: int) -> Dict[str, torch.Tensor]:
    """The inputs of a layer without defined contents."""
    def empty(size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(tuple(size), dtype=dtype, device=device)

    activations = getattr(torch, shape.dtype.split(".")[1])
    weights = getattr(torch, shape.q_dtype_w.split(".")[1]) if shape.is_quantised else activations
    rows = shape.inter_dim * (2 if shape.use_g1u1 else 1)
    sizes = {"w1": (shape.expert, rows, shape.model_dim),
             "w2": (shape.expert, shape.model_dim, shape.inter_dim)}
    routes = (tokens, shape.topk)
    tensors = {"x": empty((tokens, shape.model_dim), activations), "topk_ids": empty(routes, torch.int32),
               "topk_weights": empty(routes, torch.float32)}
    for name, size in sizes.items():
        tensors[name] = empty(size, weights)
        if shape.is_quantised:
            tensors[f"{name}_scale"] = empty(scale_size(shape.q_type, size), torch.float32)
    return tensors


# ---- building blocks of layers ----


class Routing:
    """Sorts routes by expert, for grouped GEMMs. A route is numbered token * topk + slot."""

    def __init__(self, token: int, topk: int, expert: int) -> None:
        self.token, self.topk, self.expert = token, topk, expert
        self._constants: Optional[Tuple[torch.Tensor, torch.Tensor]] = None

    def sort(self, ids: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        """`ids`: [token, topk]. Returns the route of each sorted row (int64 [token * topk]), and the end of
        each expert's rows (int32 [expert]). Does not wait for the device."""
        if self._constants is None:
            self._constants = (torch.arange(self.expert, dtype=ids.dtype, device=ids.device),
                               torch.arange(self.token * self.topk, device=ids.device))
        sorted_ids, routes = torch.sort(ids.reshape(-1), stable=True)
        ends = torch.searchsorted(sorted_ids, self._constants[0], right=True, out_int32=True)
        return routes, ends

    def combine(self, z: torch.Tensor, routes: torch.Tensor, weights: Optional[torch.Tensor]) -> torch.Tensor:
        """Sums the rows of each token, times their routing weights. `z`: [token * topk, model_dim] in sorted
        order; `routes`: from `sort`; `weights`: [token, topk], None: 1. Returns [token, model_dim]."""
        assert self._constants is not None
        row_of_route = torch.empty_like(routes).scatter_(0, routes, self._constants[1])
        rows = z.index_select(0, row_of_route).view(self.token, self.topk, -1)
        if weights is None:
            return rows.sum(1, dtype=torch.float32).to(z.dtype)
        # weights in bf16 would cost more than the rounding of the output
        return (rows * weights.view(self.token, self.topk, 1)).sum(1).to(z.dtype)


ACTIVATIONS: Dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "ActivationType.Silu": torch.nn.functional.silu,
    "ActivationType.Gelu": torch.nn.functional.gelu,
}


def refusal_of_activate(shape: Shape, library: str) -> Optional[Tuple[str, str]]:
    """Returns the rule and the reason if a family cannot compute the layer by bf16 GEMMs of `library` and
    `activate`."""
    if shape.form:
        return "form", f"{library} has no epilogue for the form {shape.form}: only plain layers"
    if shape.act_type not in ACTIVATIONS:
        return "activation", f"{shape.act_type}: only {' and '.join(ACTIVATIONS)}"
    if shape.dtype != "torch.bfloat16":
        return "dtype", f"{shape.dtype} activations: only torch.bfloat16"
    return None


def activate(g: torch.Tensor, act_type: str, gated: bool) -> torch.Tensor:
    """Applies the activation to rows of gemm1's output. With `gated`, the first half of a row is the gate,
    and the result has half the columns. `act_type` is a key of ACTIVATIONS."""
    if not gated:
        return ACTIVATIONS[act_type](g)
    gate, up = g.chunk(2, -1)
    return ACTIVATIONS[act_type](gate) * up


def quantise_rows(x: torch.Tensor,
                  dtype: torch.dtype = torch.float8_e4m3fn) -> Tuple[torch.Tensor, torch.Tensor]:
    """Returns x [rows, columns] in FP8 and one scale per row (float32 [rows]); x is about their product."""
    most = torch.finfo(dtype).max
    scale = (x.abs().amax(-1, keepdim=True).float() / most).clamp(min=1e-12)
    return (x.float() / scale).clamp(-most, most).to(dtype), scale.squeeze(-1)
