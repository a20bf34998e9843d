"""Kernels run in the Triton interpreter where there is no GPU (decided before triton is imported); no test fails by the clock."""

import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# A slow machine is no failure. In CI examples are also the same in every run (see .ci/run).
settings.register_profile("kvarena", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("kvarena-ci", settings.get_profile("kvarena"), derandomize=True, database=None)
settings.load_profile("kvarena-ci" if os.environ.get("CI") else "kvarena")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Toy tensors are faster on one thread, and far faster when tests share two cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
