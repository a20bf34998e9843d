"""The arena on a device: buffer and views, kernels, plan executor, and ``Arena``, the serving layer's door.

Decides nothing about memory: every choice was made by ``core_pure``, and this package applies the plans.
"""
