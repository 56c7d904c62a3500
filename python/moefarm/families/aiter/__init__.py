"""AITER's fused-MoE kernels (https://github.com/ROCm/aiter) as a family of the farm.

tasks.py, table.py and steps.py need the standard library only; source.py imports the user's AITER; launch.py
and production.py run its kernels."""
