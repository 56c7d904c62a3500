"""Lets test files that are imported after this one run on the current GPU. Skips without a GPU."""
import os
import unittest

try:
    import torch
except ImportError as error:
    raise unittest.SkipTest(f"no PyTorch: {error}") from error
if not torch.cuda.is_available():
    raise unittest.SkipTest("no GPU")
os.environ["MOEFARM_TEST_TORCH_DEVICE"] = f"cuda:{torch.cuda.current_device()}"
