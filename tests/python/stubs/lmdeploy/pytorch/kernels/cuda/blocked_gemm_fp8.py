"""Quantises rows in groups."""
from typing import Optional, Tuple

import torch


def quant_fp8(A: torch.Tensor, group_size: int, dtype: torch.dtype = torch.float8_e4m3fn,
              trans_scale: bool = False,
              scale_fmt: Optional[str] = None) -> Tuple[torch.Tensor, torch.Tensor]:
    groups = A.float().view(A.shape[0], -1, group_size)
    scale = groups.abs().amax(-1).clamp(min=1e-6) / torch.finfo(dtype).max
    return (groups / scale.unsqueeze(-1)).to(dtype).view(A.shape), scale
