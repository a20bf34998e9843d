"""Stories that a campaign once kept, replayed with every claim checked: copy a failure's ``.kvr`` here and it stays fixed."""

from __future__ import annotations

from pathlib import Path

import pytest

from core_pure import recording
from invariants.checked import Checked

STORIES = sorted((Path(__file__).parent / "recordings").glob("*.kvr"))


@pytest.mark.parametrize("story", STORIES, ids=lambda path: path.stem)
def test_no_claim_breaks_in_a_kept_story(story: Path) -> None:
    """Every transition of a kept story satisfies every claim."""
    layout, events = recording.read(story.read_bytes())
    checked = Checked.of(layout)
    for event in events:
        assert list(checked.step(event)) == []
    assert checked.steps > 0
