"""Triton kernels, and beside them ``twins``: the same effects in slow plain torch, used on the CPU and in tests."""
