"""Kernel families that ship with moefarm. Each drives kernels of a framework that the user has installed."""
