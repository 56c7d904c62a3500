"""moefarm's Python package. moefarm.family is the interface for kernel families written in Python."""
