"""moefarm.Layer: a fused MoE layer on torch tensors, run by libfmoe with the kernels of a tuned table."""
from __future__ import annotations

import ctypes
import errno
import os
import weakref
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch

from moefarm import _library
from moefarm._handle import guard, open_handle, torch_device, workspace_of
from moefarm._library import Error
from moefarm.ops._format import unswizzle_scales
from moefarm.ops._fused_moe import register

ACTIVATIONS = {name.lower(): f"ActivationType.{spelling}" for name, spelling in (
    ("silu", "Silu"), ("gelu", "Gelu"), ("swiglu", "Swiglu"), ("gelu_tanh", "GeluTanh"),
    ("silu_step", "SiluStep"), ("relu2", "Relu2"), ("situv2", "Situv2"), ("none", "No"))}
QUANTS = {name.lower(): f"QuantType.{name}" for name in (
    "per_Tensor", "per_Token", "per_1x32", "per_1x128", "per_1x16")}
QUANTS["none"] = "QuantType.No"
_FP8 = ("torch.float8_e4m3fn", "torch.float8_e4m3fn")
# Data types of the quantised activations and of the weights, where the quantisation implies them.
_DTYPES = {"QuantType.No": ("torch.bfloat16", "torch.bfloat16"), "QuantType.per_1x128": _FP8,
           "QuantType.per_Token": _FP8, "QuantType.per_Tensor": _FP8}
_TYPES = {torch.int32: _library.INT32, torch.int64: _library.INT64, torch.float32: _library.FLOAT32,
          torch.bfloat16: _library.BFLOAT16}
Dtype = Union[None, str, torch.dtype]


class Served(NamedTuple):
    """The kernels that serve a token count."""

    tuned: bool  # False: the table has no row; a fallback serves the call
    bucket: int  # the token count rounded up to that of a row
    us: float  # time of the row in microseconds; 0.0 without a row
    table: str  # file of the row; "" if no row is used
    line: int  # line of the row in that file
    pipeline: str  # "family:step|family:step"
    modelled_us: float  # modelled time of a fallback; 0.0 for a row
    reason: str  # why the fallback was chosen; "" for a row


def _spelling(value: str, known: "dict[str, str]", prefix: str) -> str:
    return value if value.startswith(prefix) else known.get(value.lower(), prefix + value)


def _form(form: str, bias: bool) -> str:
    parts = [part for part in form.split("+") if part]
    return "+".join(parts + [name for name in ("b1", "b2") if bias and name not in parts])


class Layer:
    """A fused MoE layer: y = sum over the chosen experts e of weight(e) * w2[e] @ act(w1[e] @ x).

    table: path of a table that moefarm exported for consumer moefarm, a list of paths, or None. A token count
        without a row is served by a fallback.
    model_dim, inter_dim, experts, topk: H, I, E and K below. E counts the experts in w1 and w2.
    activation: "silu", "gelu", "swiglu", "gelu_tanh", "silu_step", "relu2", "situv2", "none", or the table's
        spelling, such as "ActivationType.Silu".
    quant: "none" (bfloat16), "per_1x128", "per_token", "per_tensor", "per_1x32", "per_1x16", or the table's
        spelling, such as "QuantType.per_1x128".
    activation_dtype, weight_dtype: data types that the GEMMs read. The default is bfloat16 for quant "none"
        and float8_e4m3fn for "per_1x128", "per_token" and "per_tensor"; other quants have no default.
    bias: the layer has b1 and b2, the same as form="b1+b2".
    gated: w1 has gate and up rows, [E, 2I, H]; otherwise w1 is [E, I, H].
    weight_before_activation: the routing weight is applied before the activation.
    form: further properties in the table's spelling, for example "limit:7" or "ep:0/384".
    max_tokens: a call with more tokens runs in several steps of at most this number.
    device: a CPU or GPU; the default is the current GPU, or the CPU on a machine without a GPU.
    workspace_bytes: workspace for the rows of later tables (see `reload`); the default is what the current
        rows need.
    w1_layout, w2_layout: layouts to pack w1 and w2 in, such as "row"; the default is what the table's rows
        need.

    Raises moefarm.Error with libfmoe's message if a parameter or the table is refused.

    All layers on a device share one workspace, so calls on several streams wait for each other. Concurrent
    calls and concurrently replayed graphs each need a `workspace` of their own.

    >>> import torch, moefarm
    >>> layer = moefarm.Layer(None, model_dim=64, inter_dim=32, experts=4, topk=2, device="cpu")
    >>> w1 = torch.ones(4, 64, 64, dtype=torch.bfloat16) / 64   # [E, 2I, H], all gate rows first
    >>> w2 = torch.ones(4, 64, 32, dtype=torch.bfloat16) / 32   # [E, H, I]
    >>> layer.pack(w1, w2)
    >>> x = torch.ones(3, 64, dtype=torch.bfloat16)             # [T, H]
    >>> ids = torch.tensor([[0, 1], [1, 2], [2, 3]])            # [T, K], int32 or int64
    >>> weights = torch.full((3, 2), 0.5)                       # [T, K], float32 or bfloat16
    >>> y = layer(x, ids, weights)                              # [T, H], bfloat16
    >>> y.shape, f"{y[0, 0].item():.2f}"                        # silu(1) * 1
    (torch.Size([3, 64]), '0.73')
    """

    def __init__(self, table: Union[None, str, "os.PathLike[str]", Sequence[str]], *, model_dim: int,
                 inter_dim: int, experts: int, topk: int, activation: str = "silu", quant: str = "none",
                 activation_dtype: Dtype = None, weight_dtype: Dtype = None, bias: bool = False,
                 gated: bool = True, weight_before_activation: bool = False, form: str = "",
                 max_tokens: int = 4096, device: Union[None, str, torch.device] = None,
                 workspace_bytes: int = 0, w1_layout: Optional[str] = None,
                 w2_layout: Optional[str] = None) -> None:
        self.model_dim, self.inter_dim, self.experts, self.topk = model_dim, inter_dim, experts, topk
        self.gated, self.max_tokens, self.form = gated, max_tokens, _form(form, bias)
        self.activation = _spelling(activation, ACTIVATIONS, "ActivationType.")
        self.quant = _spelling(quant, QUANTS, "QuantType.")
        self.activation_dtype, self.weight_dtype = self._dtypes(activation_dtype, weight_dtype)
        self.device = torch_device(device)
        if isinstance(table, os.PathLike):
            table = os.fspath(table)
        self._handle = open_handle(self.device, table)
        self._library = self._handle.library
        self.weight_before_activation = weight_before_activation
        self._pointer = self._open(workspace_bytes, w1_layout, w2_layout)
        weakref.finalize(self, _close, self._handle, self._pointer).atexit = False
        self.workspace_bytes = int(self._library.fmoe_workspace_bytes(self._pointer))
        self._workspace = workspace_of(self.device)
        self._workspace.reserve(self.workspace_bytes)
        self._weights = [self._weight(1), self._weight(2)]
        self.w1: List[Optional[torch.Tensor]] = []
        self.w2: List[Optional[torch.Tensor]] = []
        self.b1: Optional[torch.Tensor] = None
        self.b2: Optional[torch.Tensor] = None
        self.calibration: Optional[torch.Tensor] = None
        self._call = _library.Call()
        self._needs_calibration = (self.quant, self.activation_dtype) == (
            "QuantType.per_1x16", "torch.float4_e2m1fn_x2")
        self._observed = _library.Calibration()
        self._converts = False  # convert for prebuilt kernels: int32 ids and float32 weights
        self.id = register(self)  # a compiled graph holds this number

    def __reduce__(self) -> Any:
        raise Error("a layer cannot be copied or pickled: its kernels belong to this object")

    # ---- opening ----

    def _dtypes(self, activation: Dtype, weight: Dtype) -> Tuple[str, str]:
        known = _DTYPES.get(self.quant)
        if known is None and (activation is None or weight is None):
            raise Error(f"quant is '{self.quant}': give activation_dtype and weight_dtype, because several "
                        "data types have this quantisation")
        default = known or ("", "")
        return str(activation or default[0]), str(weight or default[1])

    def _open(self, workspace_bytes: int, *layouts: Optional[str]) -> ctypes.c_void_p:
        model = _library.LayerModel(
            self.model_dim, self.inter_dim, self.experts, self.topk, self.activation.encode(),
            b"torch.bfloat16", self.activation_dtype.encode(), self.weight_dtype.encode(),
            self.quant.encode(), self.gated, self.weight_before_activation, self.form.encode(),
            self.max_tokens, workspace_bytes, *(name.encode() if name else None for name in layouts))
        error, pointer = _library.ErrorText(), ctypes.c_void_p()
        with guard(self.device):
            _library.check(self._library.fmoe_layer_open(self._handle.pointer, ctypes.byref(model),
                                                         ctypes.byref(error), ctypes.byref(pointer)), error)
        return pointer

    def _weight(self, which: int) -> _library.Weight:
        weight = _library.Weight()
        _library.check(self._library.fmoe_layer_weight(self._pointer, which, ctypes.byref(weight)))
        return weight

    @property
    def layouts(self) -> Tuple[str, str]:
        """The layouts in which the kernels read w1 and w2, for example ("row", "panel16")."""
        first, second = (weight.layout.decode() for weight in self._weights)
        return first, second

    def shape(self, tokens: int) -> str:
        """Returns the row of untuned_fmoe.csv that describes this layer, with the columns `token` to
        `doweight_stage1` and `form`."""
        values = [tokens, self.model_dim, self.inter_dim, self.experts, self.topk, self.activation,
                  "torch.bfloat16", self.activation_dtype, self.weight_dtype, self.quant, int(self.gated),
                  int(self.weight_before_activation)] + [self.form] * bool(self.form)
        return ",".join(map(str, values))

    # ---- weights ----

    def pack(self, w1: torch.Tensor, w2: torch.Tensor, w1_scale: Optional[torch.Tensor] = None,
             w2_scale: Optional[torch.Tensor] = None, *, b1: Optional[torch.Tensor] = None,
             b2: Optional[torch.Tensor] = None, w1_factor: Optional[torch.Tensor] = None,
             w2_factor: Optional[torch.Tensor] = None,
             calibration: Optional[torch.Tensor] = None, scale_order: str = "row") -> None:
        """Converts the weights to the kernels' layout and keeps them on the layer's device.

        w1: [E, 2I, H] (gate rows first), or [E, I, H] if not gated; w2: [E, H, I]; in the layer's
            weight_dtype. Two four-bit values per byte: [E, 2I, H / 2] and [E, H, I / 2].
        w1_scale, w2_scale: for per_1x128 float32 [E, 2I / 128, H / 128] and [E, H / 128, I / 128]; for
            per_token float32 [E, 2I] and [E, H]; for per_tensor float32 [E]; for per_1x32 and per_1x16
            [E, 2I, H / 32 or 16] and [E, H, I / 32 or 16] of float8_e8m0fnu, of float8_e4m3fn (NVFP4) or of
            bfloat16 (int4). moefarm.ops.quantise makes weights and scales of every format.
        b1, b2: [E, 2I] (gate first) or [E, I], and [E, H]; converted to float32.
        w1_factor, w2_factor: only for NVFP4 weights: float32 [E], the factor by which an expert's weights
            were multiplied before they were quantised.
        calibration: only for NVFP4 activations: float32 [2], the factors by which the inputs of w1 and w2 are
            multiplied before they are quantised. Without it, call `calibrate`.
        scale_order: "32_4_4" if the scales of per_1x32 or per_1x16 are in the order of Blackwell's GEMMs,
            with each expert's padded to multiples of 128 rows and 4 columns.

        In layout "row", the layer keeps a contiguous tensor on its device without a copy: later changes of
        the tensor then change the layer.

        Raises moefarm.Error if a part is missing, unexpected, or of another size or dtype."""
        if scale_order != "row":
            w1_scale = self._row_scales("w1_scale", w1_scale, w1.shape[1], self.model_dim, scale_order)
            w2_scale = self._row_scales("w2_scale", w2_scale, w2.shape[1], self.inter_dim, scale_order)
        self.w1 = self._pack(1, (w1, w1_scale, w1_factor))
        self.w2 = self._pack(2, (w2, w2_scale, w2_factor))
        self.b1, self.b2 = self._bias(1, b1), self._bias(2, b2)
        self._check_calibration(calibration)
        self.calibration = None if calibration is None else self._float(calibration)
        call = self._call
        call.w1, call.w2 = _addresses(self.w1), _addresses(self.w2)
        call.b1, call.b2, call.calib = _address(self.b1), _address(self.b2), _address(self.calibration)

    def _row_scales(self, name: str, scale: Optional[torch.Tensor], rows: int, columns: int,
                    order: str) -> torch.Tensor:
        """The block scales of a weight row by row; its matrices have `rows` rows and `columns` elements."""
        group = {"QuantType.per_1x32": 32, "QuantType.per_1x16": 16}.get(self.quant)
        if order != "32_4_4" or group is None or scale is None:
            raise Error(f"scale_order is '{order}' for {name} and {self.quant}: expected 'row', or '32_4_4' "
                        "with scales of per_1x32 or per_1x16")
        blocks = -(-columns // group)
        padded = scale.reshape(self.experts, -(-rows // 128) * 128, -(-blocks // 4) * 4)
        return unswizzle_scales(padded.contiguous(), rows, blocks)

    def _pack(self, which: int, parts: Sequence[Optional[torch.Tensor]]) -> List[Optional[torch.Tensor]]:
        weight = self._weights[which - 1]
        for part, tensor, n in zip(("", "_scale", "_factor"), parts, weight.bytes):
            self._check_part(f"w{which}{part}", tensor, n)
        # in every layout the parts have the sizes of layout "row"
        source = [None if part is None else part.detach().to(self.device).contiguous() for part in parts]
        if weight.layout == b"row":
            return source
        packed = [None if part is None else torch.empty_like(part) for part in source]
        with guard(self.device):
            result = self._library.fmoe_layer_pack_device(self._pointer, which, _addresses(source),
                                                          _addresses(packed), self._current_stream())
        if result == -errno.ENOTSUP:
            packed = self._pack_on_host(which, source)
        else:
            _library.check(result, what=f"packing w{which} to layout {weight.layout.decode()}")
        return packed

    def _pack_on_host(self, which: int,
                      parts: Sequence[Optional[torch.Tensor]]) -> List[Optional[torch.Tensor]]:
        source = [None if part is None else part.cpu() for part in parts]
        packed = [None if part is None else torch.empty_like(part) for part in source]
        _library.check(self._library.fmoe_layer_pack(self._pointer, which, _addresses(source),
                                                     _addresses(packed)), what=f"packing w{which}")
        return [None if part is None else part.to(self.device) for part in packed]

    def _current_stream(self) -> int:
        index = self.device.index
        return 0 if index is None else torch._C._cuda_getCurrentRawStream(index)

    def _check_part(self, name: str, tensor: Optional[torch.Tensor], n: int) -> None:
        found = 0 if tensor is None else tensor.numel() * tensor.element_size()
        if found != n:
            given = ("is missing" if tensor is None
                     else f"is {list(tensor.shape)} of {tensor.dtype}, {found} bytes")
            raise Error(f"{name} {given}: this layer needs {n} bytes" if n else
                        f"{name} {given}: this layer has no such part")
        elements = "_" not in name
        if elements and tensor is not None and str(tensor.dtype) not in (
                self.weight_dtype, "torch.uint8", "torch.int8"):
            raise Error(f"{name} is of {tensor.dtype}: this layer needs {self.weight_dtype}")

    def _check_calibration(self, calibration: Optional[torch.Tensor]) -> None:
        if calibration is not None and not self._needs_calibration:
            raise Error("calibration is given: only NVFP4 activations have global factors")
        if calibration is not None and calibration.numel() != 2:
            raise Error(f"calibration is {list(calibration.shape)}: expected the factors of the inputs of w1 "
                        "and w2")

    def calibrate(self, x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor,
                  margin: float = 1.0) -> torch.Tensor:
        """Computes the global factors of NVFP4 activations from warm-up batches, one batch per call, each of
        at most max_tokens tokens. The layer uses the factors of all batches so far. Call it after `pack` and
        before the capture of a graph, because it compiles kernels and waits for the device.

        margin: the factors fit values of `margin` times the largest ones observed; larger values saturate.

        Returns the factors, float32 [2], for `pack(calibration=…)` in later processes."""
        self._check(x, topk_ids, topk_weights, x.contiguous(), None, calibrated=True)
        x, topk_ids, topk_weights = x.contiguous(), topk_ids.contiguous(), topk_weights.contiguous()
        call, error, factors = _library.Call(), _library.ErrorText(), (ctypes.c_float * 2)()
        ctypes.memmove(ctypes.addressof(call), ctypes.addressof(self._call), ctypes.sizeof(call))
        call.tokens, call.stream = len(x), self._current_stream()
        call.x, call.ids, call.weights = x.data_ptr(), topk_ids.data_ptr(), topk_weights.data_ptr()
        call.ids_type, call.weights_type = _TYPES[topk_ids.dtype], _TYPES[topk_weights.dtype]
        with self._handle.lock, guard(self.device):
            _library.check(
                self._library.fmoe_calibrate(self._pointer, ctypes.byref(call), ctypes.byref(self._observed),
                                             ctypes.byref(error)), error)
        _library.check(self._library.fmoe_calibration_factors(self._pointer, ctypes.byref(self._observed),
                                                              margin, factors, ctypes.byref(error)), error)
        if self.calibration is None:
            self.calibration = torch.empty(2, dtype=torch.float32, device=self.device)
            self._call.calib = self.calibration.data_ptr()
        self.calibration.copy_(torch.tensor(list(factors)))  # in place, for graphs that are captured
        return self.calibration.clone()

    def _bias(self, which: int, bias: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
        expected = f"b{which}" in self.form.split("+")
        if expected != (bias is not None):
            raise Error(f"b{which} is {'missing' if expected else 'given'}: the layer's form is "
                        f"'{self.form}'")
        if bias is None:
            return None
        n = self.model_dim if which == 2 else self.inter_dim * (2 if self.gated else 1)
        if tuple(bias.shape) != (self.experts, n):
            raise Error(f"b{which} is {list(bias.shape)}: expected {[self.experts, n]}")
        return self._float(bias)

    def _float(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().to(self.device, torch.float32).contiguous()

    # ---- calls ----

    def __call__(self, x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor,
                 out: Optional[torch.Tensor] = None,
                 workspace: Optional[torch.Tensor] = None) -> torch.Tensor:
        """Runs the layer on the current stream and returns y, bfloat16 [T, H].

        x: bfloat16 [T, H]; topk_ids: int32 or int64 [T, K], global expert ids; topk_weights: float32 or
        bfloat16 [T, K]. Without `workspace`, the call is the operator moefarm.ops.fused_moe, which
        torch.compile and CUDA graphs accept.

        out: receives y; contiguous bfloat16 [T, H].
        workspace: uint8, at least `workspace_bytes`, aligned to 64 bytes, used by no concurrent call."""
        if workspace is not None:
            out = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
            self.run(x, topk_ids, topk_weights, out, workspace)
            return out
        if out is None:
            y: torch.Tensor = torch.ops.moefarm.fused_moe.default(x, topk_ids, topk_weights, self.id)
            return y
        torch.ops.moefarm.fused_moe_out.default(x, topk_ids, topk_weights, self.id, out)
        return out

    def run(self, x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor, y: torch.Tensor,
            workspace: Optional[torch.Tensor] = None) -> None:
        """Runs the layer once, without torch's dispatcher: writes y. The parameters are those of a call."""
        self._check(x, topk_ids, topk_weights, y, workspace)
        x, topk_ids, topk_weights = x.contiguous(), topk_ids.contiguous(), topk_weights.contiguous()
        n = x.shape[0]
        if n <= self.max_tokens:
            if n > 0:
                self._run(x, topk_ids, topk_weights, y, workspace)
            return
        for at in range(0, n, self.max_tokens):
            part = slice(at, at + self.max_tokens)
            self._run(x[part], topk_ids[part], topk_weights[part], y[part], workspace)

    def _run(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, y: torch.Tensor,
             workspace: Optional[torch.Tensor]) -> None:
        index, call = self.device.index, self._call
        if index is not None and torch.cuda.current_device() != index:
            with guard(self.device):
                return self._run(x, ids, weights, y, workspace)
        stream = self._current_stream()
        if self._converts:
            ids, weights = ids.to(torch.int32), weights.to(torch.float32)
        with self._handle.lock:
            call.tokens, call.stream = x.shape[0], stream
            call.x, call.ids, call.weights = x.data_ptr(), ids.data_ptr(), weights.data_ptr()
            call.ids_type, call.weights_type = _TYPES[ids.dtype], _TYPES[weights.dtype]
            call.y = y.data_ptr()
            if workspace is not None:
                call.workspace, call.workspace_bytes = workspace.data_ptr(), workspace.numel()
            else:
                shared = self._workspace
                shared.used = True
                call.workspace, call.workspace_bytes = shared.address, shared.bytes
                if index is not None:
                    shared.order(stream)
            result = self._library.fmoe_run(self._pointer, ctypes.addressof(call))
        if result == -errno.ENOTSUP and not self._converts:
            self._converts = True
            return self._run(x, ids, weights, y, workspace)
        if result < 0:
            _library.check(result, what=f"a call with {x.shape[0]} tokens and a workspace of "
                                        f"{call.workspace_bytes} bytes")

    def _check(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, y: torch.Tensor,
               workspace: Optional[torch.Tensor], calibrated: bool = False) -> None:
        shape, routes, device = (x.shape[0], self.model_dim), (x.shape[0], self.topk), self.device
        if not (x.shape == shape and y.shape == shape and ids.shape == routes and weights.shape == routes
                and x.dtype == y.dtype == torch.bfloat16 and ids.dtype in (torch.int32, torch.int64)
                and weights.dtype in (torch.float32, torch.bfloat16) and y.is_contiguous()
                and x.device == ids.device == weights.device == y.device == device):
            self._refuse(x, ids, weights, y)
        if not self.w1:
            raise Error("the layer has no weights: call pack first")
        if self._needs_calibration and self.calibration is None and not calibrated:
            raise Error("the layer has no calibration: pass it to pack, or call calibrate")
        if workspace is not None and (workspace.device != device or workspace.dtype != torch.uint8):
            raise Error(f"workspace is {_described(workspace)}: expected torch.uint8 on {device}")

    def _refuse(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, y: torch.Tensor) -> None:
        def message(name: str, tensor: torch.Tensor, columns: int, dtypes: str) -> str:
            return (f"{name} is {_described(tensor)}: expected "
                    f"[{x.shape[0] if x.dim() else 'T'}, {columns}] of {dtypes} on {self.device}")

        for name, tensor, columns, dtypes in (
                ("x", x, self.model_dim, (torch.bfloat16,)),
                ("topk_ids", ids, self.topk, (torch.int32, torch.int64)),
                ("topk_weights", weights, self.topk, (torch.float32, torch.bfloat16)),
                ("out", y, self.model_dim, (torch.bfloat16,))):
            if (tensor.shape != (x.shape[0], columns) or tensor.dtype not in dtypes
                    or tensor.device != self.device):
                raise Error(message(name, tensor, columns, " or ".join(str(d) for d in dtypes)))
        raise Error("out is not contiguous: pass a contiguous tensor")

    def remap_ids(self, topk_ids: torch.Tensor, expert_map: torch.Tensor) -> torch.Tensor:
        """Returns ids for a rank whose experts are not a contiguous range, for a layer with form "ep:0/ALL".

        topk_ids: int32 or int64 [T, K], global expert ids; expert_map: int32 [ALL], the position of each
        expert in w1 and w2, or -1 if the expert is not on this rank (vLLM's expert_map)."""
        everywhere = next((int(part.partition("/")[2]) for part in self.form.split("+")
                           if part.startswith("ep:")), 0)
        for name, tensor, shape, dtypes in (
                ("expert_map", expert_map, (everywhere,), (torch.int32,)),
                ("topk_ids", topk_ids, (len(topk_ids), self.topk), (torch.int32, torch.int64))):
            if tensor.shape != shape or tensor.dtype not in dtypes or tensor.device != self.device:
                raise Error(f"{name} is {_described(tensor)}: a layer with form '{self.form}' expects "
                            f"{list(shape)} of {' or '.join(map(str, dtypes))} on {self.device}")
        ids, expert_map = topk_ids.contiguous(), expert_map.contiguous()
        result = torch.empty_like(ids)
        if len(ids) > 0:
            with guard(self.device):
                _library.check(
                    self._library.fmoe_remap_ids_device(
                        self._pointer, expert_map.data_ptr(), len(ids), ids.data_ptr(), _TYPES[ids.dtype],
                        result.data_ptr(), self._current_stream()),
                    what=f"remapping the ids of a layer with form '{self.form}'")
        return result

    # ---- tables ----

    def served(self, tokens: int) -> Served:
        """Returns the kernels that serve a call of this many tokens, 1 to max_tokens."""
        served = _library.Served()
        _library.check(self._library.fmoe_served(self._pointer, tokens, ctypes.byref(served)),
                       what=f"tokens is {tokens}: expected 1 to {self.max_tokens}")
        return Served(bool(served.tuned), served.bucket, served.us, served.table.decode(), served.line,
                      served.pipeline.decode(), served.modelled_us, served.reason.decode())

    def reload(self) -> None:
        """Reads the tables again, for all layers that have them. Raises moefarm.Error and keeps the old rows
        if a table has an error, or needs another layout of the weights or a larger workspace."""
        self._handle.reload()

    def report_misses(self, url: str, token_file: Optional[str] = None, seconds: int = 60) -> None:
        """Reports the misses of all layers with these tables to a coordinator, every `seconds` seconds and at
        the end of the process, so that the farm can tune the missing rows. Calls never wait for a report.

        url: "http://farm:8080"; token_file: file with the access token, None for a coordinator on loopback.
        Error: libfmoe refuses the url or the file, or a report is already active."""
        self._handle.report(url, token_file, seconds)

    @property
    def misses(self) -> int:
        """The number of calls without a row, of all layers with these tables."""
        return int(self._library.fmoe_n_misses(self._handle.pointer))


def _close(handle: Any, pointer: ctypes.c_void_p) -> None:
    handle.library.fmoe_layer_close(pointer)


def _described(tensor: torch.Tensor) -> str:
    return f"{list(tensor.shape)} of {tensor.dtype} on {tensor.device}"


def _address(tensor: Optional[torch.Tensor]) -> Optional[int]:
    return None if tensor is None else tensor.data_ptr()


def _addresses(parts: Sequence[Optional[torch.Tensor]]) -> Any:
    return _library.Parts(*[_address(part) for part in parts])
