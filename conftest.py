"""Runs the Triton kernels in the interpreter where there is no GPU; must decide before triton is imported."""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
