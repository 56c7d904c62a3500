"""A kernel family in PyTorch: bf16 layers by torch._grouped_mm.

    moefarm-worker --device hip:nvidia:0 --python /opt/venv/bin/python3 --family-py examples/family_torch.py

The farm creates the data, captures forward in a CUDA graph, verifies the output and times the graph.
moefarm/families/torch_grouped.py is the complete version of this family."""
import torch

from moefarm.family import Rejection
from moefarm.torch_family import Routing, TorchFamily, TorchKernel, activate


class Layer(TorchKernel):
    def __init__(self, shape):
        super().__init__()
        self.shape, self.routing = shape, Routing(shape.token, shape.topk, shape.expert)

    def forward(self, tensors):
        routes, ends = self.routing.sort(tensors["topk_ids"])
        x = tensors["x"][routes // self.shape.topk]
        g = torch._grouped_mm(x, tensors["w1"].transpose(-2, -1), offs=ends)
        h = activate(g, self.shape.act_type, self.shape.use_g1u1)
        z = torch._grouped_mm(h, tensors["w2"].transpose(-2, -1), offs=ends)
        return self.routing.combine(z, routes, tensors["topk_weights"])


class GroupedMm(TorchFamily):
    name = "torch_example"

    def enumerate(self, shape, device):
        plain = not (shape.is_quantised or shape.form or shape.doweight_stage1)
        if not plain or shape.act_type != "ActivationType.Silu":
            yield Rejection("layer", "dtype", f"only plain bf16 layers with SiLU, not {shape}")
        else:
            yield shape.candidate("layer")

    def open(self, candidate, shape):
        return Layer(shape)


family = GroupedMm()
