"""Operators of fused MoE layers, registered with torch in the namespace `moefarm`.

    fused_moe   runs a moefarm.Layer
"""
from moefarm.ops._fused_moe import fused_moe as fused_moe
