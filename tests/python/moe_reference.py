"""A fused MoE layer in a few lines of torch, in float32, and a quantiser of weights."""
from typing import Callable, Optional, Tuple

import torch

Activation = Callable[[torch.Tensor], torch.Tensor]


def silu_gate(h: torch.Tensor) -> torch.Tensor:
    gate, up = h.chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


def swiglu(h: torch.Tensor, limit: float = 7.0, alpha: float = 1.702) -> torch.Tensor:
    """The activation of openai/gpt-oss; gate rows first."""
    gate, up = h.chunk(2, -1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + 1)


def moe(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor,
        activation: Activation = silu_gate, b1: Optional[torch.Tensor] = None,
        b2: Optional[torch.Tensor] = None) -> torch.Tensor:
    """x [T, H], w1 [E, N, H], w2 [E, H, I]; returns float32 [T, H]. Other ids contribute nothing."""
    y = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for e in range(w1.shape[0]):
        token, k = (ids == e).nonzero(as_tuple=True)
        h = x[token].float() @ w1[e].float().T
        h = activation(h if b1 is None else h + b1[e].float())
        z = h @ w2[e].float().T
        z = z if b2 is None else z + b2[e].float()
        y.index_add_(0, token, z * weights[token, k, None].float())
    return y


def quantise_blocks(w: torch.Tensor, n: int = 128) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns w [E, N, K] in float8_e4m3fn, its scales float32 [E, N / n, K / n], and the product."""
    e, rows, columns = w.shape
    blocks = w.float().view(e, rows // n, n, columns // n, n)
    scale = blocks.abs().amax((2, 4), keepdim=True).clamp(min=1e-9) / 448
    q = (blocks / scale).to(torch.float8_e4m3fn)
    return q.view(e, rows, columns), scale[:, :, 0, :, 0].contiguous(), (q.float() * scale).view_as(w)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True if both are results of the same kernels. GPU kernels with atomic sums differ in the last bits."""
    return torch.equal(a, b) if a.device.type == "cpu" else relative_error(a, b.float()) < 0.004


def relative_error(y: torch.Tensor, reference: torch.Tensor) -> float:
    return float((y.float() - reference).norm() / reference.norm())
