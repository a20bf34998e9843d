"""The code of docs/INTEGRATION.md runs as it stands there."""

import re
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("prometheus_client")

PAGE = Path(__file__).parent.parent / "docs" / "INTEGRATION.md"


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_every_block_of_the_integration_guide_runs():
    """The Python blocks run in order, in one namespace, and each of their assertions holds."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"INTEGRATION.md, block {number}", "exec"), names)
    assert len(blocks) >= 10 and names["arena"].report().live_bytes == 0


def test_the_guide_names_what_exists():
    """Every metric and adapter call that the guide names is there."""
    from shell_gpu.adapters import SglangAllocator

    text = PAGE.read_text(encoding="utf-8")
    for call in ("alloc", "alloc_extend", "alloc_decode", "free", "free_group_begin", "free_group_end", "pin", "unpin",
                 "available_size", "evict_to_free_tokens", "check_decode_capacity", "verify_byte_accounting",
                 "translate_kv_loc"):  # fmt: skip
        assert f"`{call}" in text and callable(getattr(SglangAllocator, call))
    source = (PAGE.parent.parent / "shell_gpu" / "metrics.py").read_text(encoding="utf-8")
    for name in set(re.findall(r"`kvarena_(\w+?)(?:_total)?[`{]", text)):
        assert f'"{name}"' in source, name
