"""The serving step in arrays against a dictionary per sequence: pages, slots, tables, sharing, drafts, windows, extents."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from core_pure import step as steps
from core_pure.errors import DemandError, FenceError, LeaseError, LeaseStale, PagePinned, PinError
from core_pure.event import content_digest
from core_pure.fits import Refusal
from core_pure.layout import BandSpec, build_layout
from core_pure.leases import empty_leases, open_leases, pages_of, share, split
from core_pure.pins import pin
from core_pure.state import initial
from core_pure.step import StepOutcome, block_table, extents, fork, trim, write_slots
from core_pure.verify import verify
from tests.core_states import bound_pages
from tests.lease_model import ATTENTION, CHUNK, CONTEXT, DRAFT, HYBRID, Served, shrink_limit


@pytest.mark.parametrize("bands", [ATTENTION, HYBRID])
def test_random_serving_equals_dictionaries(bands: Sequence[BandSpec]) -> None:
    """Prefill in chunks, decode, drafts, rejections, finishes, forks and shares: pages, slots, tables and bytes as they must be."""
    rng, seen = random.Random(len(bands)), Counter[str]()
    for _ in range(20):
        served, alive = Served(bands, 4096 * rng.choice((2, 3, 4))), list[int]()
        for _ in range(40):
            if rng.random() < 0.4 and len(alive) < 8:
                alive += served.open(rng.randint(1, 2))
            ended = [handle for handle in alive if rng.random() < 0.1]
            alive = [handle for handle in alive if handle not in ended]
            room = {handle: CONTEXT - served.tokens[handle] for handle in alive}
            new = {h: min(room[h], rng.choice((0, 1, 1, 3, CHUNK))) for h in rng.sample(alive, rng.randint(0, len(alive)))}
            result = served.step(new, ended)
            seen["refused" if isinstance(result, Refusal) else "stepped"] += 1
            if isinstance(result, Refusal):
                served.step({}, [*ended, *alive[len(alive) // 2 :]])
                alive = alive[: len(alive) // 2]
                continue
            seen["moved"] += bool(result.plan.waves)
            grown = [handle for handle in alive if served.tokens[handle]]
            if grown and rng.random() < 0.4:
                handle = rng.choice(grown)
                left = rng.choice((0, shrink_limit(served, handle), served.tokens[handle]))
                served.trim(handle, left)
                seen["trimmed"] += 1
            if grown and rng.random() < 0.3 and served.leases.open_count < 12:
                seen["forked"] += forked(served, rng.choice(grown), alive)
            grown = [handle for handle in alive if served.tokens[handle]]
            if bands is ATTENTION and grown and rng.random() < 0.3 and served.leases.open_count < 12:
                seen["shared"] += shared(rng, served, rng.choice(grown), alive)
        served.step({}, alive)
        assert all(band.is_empty for band in served.state.bands)
        assert served.state == initial(served.layout)
        assert served.leases.open_count == served.leases.shared == 0
    assert min(seen.values()) > 2, seen


def forked(served: Served, parent: int, alive: list[int]) -> bool:
    """Fork and check: whole pages shared, the partial page and the states copied, byte for byte (by the model)."""
    answer = fork(served.state, served.leases, parent)
    if isinstance(answer, Refusal):
        return False
    outcome, child = answer
    served.absorb(outcome)
    tokens = served.tokens[parent]
    served.tokens[child], served.pages[child] = tokens, served.held(child)
    for band, spec in enumerate(served.layout.bands):
        mine, theirs = served.pages[parent][band], served.pages[child][band]
        whole = tokens // spec.slots_per_page if spec.grows else 0
        held = {at for at in mine if not spec.grows or at * spec.slots_per_page < tokens}
        assert theirs.keys() == held
        assert all((theirs[at] == mine[at]) == (at < whole) for at in held)
    served.compare()
    alive.append(child)
    return True


def shared(rng: random.Random, served: Served, source: int, alive: list[int]) -> bool:
    """Share a prefix of whole pages, or be told what is missing."""
    tokens = rng.randint(1, served.tokens[source])
    (target,) = served.open(1)
    before = served.leases
    try:
        served.leases, _ = share(served.leases, source, target, tokens)
    except LeaseError:
        assert served.leases == before
        whole = tokens % 4 == 0
        missing = any(
            not served.visible_pages(band, tokens) <= served.pages[source][band].keys() for band in range(2)
        )
        assert missing or not whole
        served.step({}, [target])
        return False
    served.tokens[target], served.pages[target] = tokens, served.held(target)
    for band in range(2):
        assert served.pages[target][band].items() <= served.pages[source][band].items()
        assert served.visible_pages(band, tokens) <= served.pages[target][band].keys()
    served.compare()
    alive.append(target)
    return True


# --- cases -------------------------------------------------------------------------------------------------------------------


def test_rejected_drafts_leave_nothing() -> None:
    """Draft tokens taken and rejected, fifty times: the same pages on the same frames as if they had never been asked for."""
    plain, drafting = Served(HYBRID, 4096 * 12), Served(HYBRID, 4096 * 12)
    rng = random.Random(4)
    handles = [plain.open(3), drafting.open(3)]
    assert handles[0] == handles[1]
    for number in range(50):
        new = {handle: (rng.choice((3, 9)) if number == 0 else 1) for handle in handles[0]}
        plain.step(new)
        committed = dict(drafting.tokens)
        drafted = {handle: count + rng.randrange(4) for handle, count in new.items()}
        drafting.step(drafted, slid=committed)
        for handle, count in new.items():
            drafting.trim(handle, committed[handle] + count)
        assert drafting.tokens == plain.tokens
        counts = [[len(band) for band in served.pages[handle]] for served in (plain, drafting) for handle in handles[0]]
        assert counts[:3] == counts[3:]
        assert [band.live for band in plain.state.bands] == [band.live for band in drafting.state.bands]
    for served in (plain, drafting):
        served.step({}, handles[0])
        assert served.state == initial(served.layout)


def test_a_failed_step_leaves_nothing() -> None:
    """A refused step and a step that raises leave state and leases as they were, content and handles."""
    served = Served(ATTENTION, 4096 * 3)
    a, b = served.open(2)
    served.step({a: 12, b: 12})
    served.step({a: 3})
    served.step({a: 1})  # slides a page out of the window of a
    before = (content_digest(served.state), served.leases)
    handles = np.array([a, b])
    assert isinstance(steps.step(served.state, served.leases, handles, np.array([60, 60])), Refusal)
    for call, error in (
        (lambda: steps.step(served.state, served.leases, handles, np.array([1])), LeaseError),
        (lambda: steps.step(served.state, served.leases, handles, np.array([1, -1])), LeaseError),
        (lambda: steps.step(served.state, served.leases, handles, [1.5, 1]), LeaseError),
        (lambda: steps.step(served.state, served.leases, handles, ["1", "1"]), LeaseError),
        (lambda: steps.step(served.state, served.leases, handles, np.array([200, 0])), LeaseError),
        (lambda: steps.step(served.state, served.leases, np.array([a, a]), np.array([1, 1])), LeaseError),
        (lambda: steps.step(served.state, served.leases, handles, np.array([1, 1]), np.array([b])), LeaseError),
        (lambda: steps.step(served.state, served.leases, handles[None], np.array([[1, 1]])), LeaseError),
        (lambda: steps.step(served.state, served.leases, np.array([a, 77]), np.array([1, 1])), LeaseStale),
        (lambda: steps.step(served.state, served.leases, np.array([0]), np.array([1])), LeaseStale),
        (lambda: steps.step(served.state, served.leases, handles, np.array([1, 2**63 - 1])), LeaseError),
        (lambda: steps.step(served.state, served.leases, [float(a)], [1]), LeaseError),
        (lambda: steps.step(served.state, served.leases, handles, np.array([1, 1]), slid=np.array([17, 0])), LeaseError),
        (lambda: steps.step(served.state, served.leases, handles, np.array([1, 1]), slid=np.array([-1, 0])), LeaseError),
        (lambda: steps.step(served.state, served.leases, handles, np.array([1, 1]), reader=1), FenceError),
        (lambda: trim(served.state, served.leases, [a], [17]), LeaseError),
        (lambda: trim(served.state, served.leases, [a], [-1]), LeaseError),
        (lambda: trim(served.state, served.leases, [a], [1.0]), LeaseError),
        (lambda: trim(served.state, served.leases, [a], [1]), LeaseError),  # the window before token 1 has slid out
        (lambda: share(served.leases, a, b, 4), LeaseError),
        (lambda: split(served.leases, a, b, 4), LeaseError),
        (lambda: open_leases(served.leases, 11), LeaseError),
        (lambda: open_leases(served.leases, -1), LeaseError),
        (lambda: extents(served.state, served.leases, a), PinError),
    ):
        with pytest.raises(error):
            call()
        assert (content_digest(served.state), served.leases) == before


def test_handles_go_stale() -> None:
    """A lease that ended, a handle of another serial, 0, negative and absurd ones: LeaseStale naming it, also in its old slot."""
    served = Served(ATTENTION, 4096 * 4)
    (old,) = served.open(1)
    served.step({old: 5})
    served.step({}, [old])
    (new,) = served.open(1)
    assert new & 0xFFFFF == old & 0xFFFFF, "the same slot"
    served.step({new: 3})
    for handle in (old, 0, -1, 1, new + 1, (1 << 20) + 999, 2**62):
        with pytest.raises(LeaseStale, match=str(handle)):
            steps.step(served.state, served.leases, np.array([handle]), np.array([1]))
        with pytest.raises(LeaseStale):
            steps.step(served.state, served.leases, np.array([], np.int64), np.array([], np.int64), np.array([handle]))
    served.step({new: 1})


def test_F26_steady_window_churn() -> None:
    """A constant batch whose windows slide for 10,000 steps: zero bytes copied, spans constant, refusals none."""
    layout = build_layout([BandSpec("window-64", 4096, slots_per_page=8, retention="window", window=64)], 4096 * 400)
    state, leases = initial(layout), empty_leases(layout, sequences=16, context=10_300)
    leases, handles = open_leases(leases, 16)
    rng = np.random.default_rng(1)
    outcome = steps.step(state, leases, handles, rng.integers(100, 140, 16))
    for _ in range(16):
        outcome = steps.step(outcome.state, outcome.leases, handles, np.ones(16, np.int64))
    span = (outcome.state.bands[0].low, outcome.state.bands[0].high)
    settled, moved = set(), 0
    for _ in range(10_000):
        outcome = steps.step(outcome.state, outcome.leases, handles, np.ones(16, np.int64))
        moved += outcome.plan.moves
        settled.add((outcome.state.bands[0].low, outcome.state.bands[0].high))
    assert moved == 0
    assert max(high for _, high in settled) <= span[1]
    assert min(low for low, _ in settled) >= span[0]
    assert verify(outcome.state) == []


def test_F37_nothing_is_half_restored() -> None:
    """A prefix whose state has no copy, or whose window has slid out, is refused whole; the heir holds nothing."""
    hybrid, attention = Served(HYBRID, 4096 * 12), Served(ATTENTION, 4096 * 12)
    for served, tokens, text in ((hybrid, 8, "state|cross"), (attention, 8, "slid out"), (attention, 6, "inside a page")):
        source, heir = served.open(2)
        served.step({source: 40})
        served.step({source: 4})
        with pytest.raises(LeaseError, match=text):
            share(served.leases, source, heir, tokens)
        assert served.held(heir) == [{} for _ in served.layout.bands]
        served.compare()
    source, heir = attention.open(2)
    attention.step({source: 40})
    attention.leases, _ = share(attention.leases, source, heir, 40)
    attention.tokens[heir], attention.pages[heir] = 40, attention.held(heir)
    attention.compare()
    attention.step({heir: 1, source: 1})


def test_F39_a_checkpoint_that_does_not_fit_is_skipped() -> None:
    """Every state slot is taken: forking a checkpoint is refused as a value, and the request itself goes on."""
    layout = build_layout([BandSpec("state", 4096, retention="state"), BandSpec("full", 256, slots_per_page=4)], 4096 * 3)
    served = Served(layout.bands, 4096 * 3)
    (request,) = served.open(1)
    served.step({request: 8})
    served.state = pin(served.state, bound_pages(served.state)).state
    while not isinstance(answer := fork(served.state, served.leases, request), Refusal):
        served.state, served.leases = answer[0].state, answer[0].leases
    assert answer.band in ("state", "full")
    outcome = steps.step(served.state, served.leases, np.array([request]), np.array([1]))
    assert isinstance(outcome, StepOutcome), "what is mandatory still fits"


def test_F38_snapshots_of_a_long_prompt_stop_at_the_cap() -> None:
    """A snapshot is wanted every 128 of 54,000 tokens: the band's maximum bounds them, says so by name, and the prompt ends."""
    prompt, every, most = 54_000, 128, 5
    bands = [BandSpec("state", 4096, pages_max=most, retention="state"), BandSpec("full", 256, slots_per_page=16)]
    layout = build_layout(bands, 2**21)
    state, leases = initial(layout), empty_leases(layout, sequences=500, context=prompt)
    leases, handles = open_leases(leases, 1)
    snapshots, refusals = [], []
    for done in range(0, prompt, every):
        made = steps.step(state, leases, handles, np.array([min(every, prompt - done)]))
        assert isinstance(made, StepOutcome), "snapshots never cost the request its memory"
        forked = fork(made.state, made.leases, int(handles[0]))
        if isinstance(forked, Refusal):
            refusals.append((forked.band, forked.reason))
            state, leases = made.state, made.leases
        else:
            snapshots.append(forked[1])
            state, leases = forked[0].state, forked[0].leases
        assert state.bands[0].live == 1 + len(snapshots) <= most
    assert len(snapshots) == most - 1 and len(refusals) == -(-prompt // every) - len(snapshots)
    assert set(refusals) == {("state", "maximum")}
    ended = steps.step(state, leases, np.empty(0, np.int64), np.empty(0, np.int64), np.array([*handles, *snapshots]))
    assert isinstance(ended, StepOutcome) and all(band.is_empty for band in ended.state.bands)


def test_F51_the_last_token_of_a_full_context() -> None:
    """Context full, speculative tokens on top: the table is wide enough and the last token has a slot of its own page."""
    for page in (1, 2, 4, 16):
        layout = build_layout([BandSpec("full", 64 * page, slots_per_page=page)], 4096 * 8)
        leases = empty_leases(layout, sequences=2, context=CONTEXT, draft_tokens=DRAFT)
        assert leases.widths[0] == -(-(CONTEXT + 4 + DRAFT) // page)
        leases, handles = open_leases(leases, 1)
        outcome = steps.step(initial(layout), leases, handles, np.array([CONTEXT]))
        outcome = steps.step(outcome.state, outcome.leases, handles, np.array([DRAFT]))
        assert isinstance(outcome, StepOutcome)
        slots = write_slots(outcome, 0)
        table = block_table(outcome.state, outcome.leases, outcome.slots, 0, leases.widths[0])[0]
        last = CONTEXT + DRAFT - 1
        assert slots[-1] == table[last // page] * page + last % page
        assert table[last // page] > 0
        assert not table[-(-(CONTEXT + DRAFT) // page) :].any()
        with pytest.raises(LeaseError, match="page table"):
            steps.step(outcome.state, outcome.leases, handles, np.array([1]))
        with pytest.raises(LeaseError, match="columns"):
            block_table(outcome.state, outcome.leases, outcome.slots, 0, leases.widths[0] + 1)


def test_splits_move_no_page() -> None:
    """Cut at a page boundary: both halves hold what one held, positions kept; ends free each half once."""
    served = Served(ATTENTION, 4096 * 12)
    front, rear = served.open(2)
    served.step({front: 20})
    before = served.held(front)
    served.leases, _ = split(served.leases, front, rear, 12)
    halves = [served.held(front), served.held(rear)]
    for band, spec in enumerate(served.layout.bands):
        assert halves[0][band] | halves[1][band] == before[band]
        assert all(at < 12 // spec.slots_per_page for at in halves[0][band])
    served.tokens |= {front: 12, rear: 20}
    served.pages |= {front: halves[0], rear: halves[1]}
    served.compare()
    served.step({}, [front])
    served.step({}, [rear])
    assert served.state == initial(served.layout)


def test_extents_by_band_and_position() -> None:
    """Byte offsets of every page of a pinned lease; while pinned its end is refused, and relief does not change them."""
    served = Served(HYBRID, 4096 * 12)
    first, other = served.open(2)
    served.step({first: 9, other: 30})
    pages = np.concatenate(pages_of(served.leases, first))
    served.state = pin(served.state, pages).state
    places = extents(served.state, served.leases, first)
    assert len(places) == len(pages)
    for name, position, offset, length in places:
        band = served.layout.index(name)
        assert length == served.layout.bands[band].frame_bytes
        assert offset == served.frame(served.pages[first][band][position]) * length
    with pytest.raises(PagePinned):
        steps.step(served.state, served.leases, [], [], np.array([first]))
    ended = steps.step(served.state, served.leases, [], [], np.array([other]))
    assert extents(ended.state, ended.leases, first) == places


def test_an_empty_step_changes_nothing() -> None:
    """No lease, no token: an empty plan, the same value."""
    served = Served(HYBRID, 4096 * 12)
    (handle,) = served.open(1)
    served.step({handle: 5})
    outcome = steps.step(served.state, served.leases, [], [])
    assert outcome.plan.is_empty
    assert outcome.state == served.state
    still = steps.step(served.state, served.leases, [handle], [0])
    assert still.plan.moves == 0
    assert [band.live for band in still.state.bands] == [band.live for band in served.state.bands]


@pytest.mark.parametrize(
    ("sequences", "context", "draft"), [(0, 10, 0), (1 << 20, 10, 0), (4, 0, 0), (4, 10, -1)]
)
def test_bad_lease_tables(sequences: int, context: int, draft: int) -> None:
    """No sequence, too many for a handle, no context, negative drafts: LeaseError."""
    with pytest.raises(LeaseError, match="expected"):
        empty_leases(build_layout(ATTENTION, 4096 * 4), sequences=sequences, context=context, draft_tokens=draft)


def test_bad_demands_never_reach_a_step() -> None:
    """The demand of a step follows from leases, so nothing but tokens can be wrong with it; absurd tokens are refused."""
    served = Served(ATTENTION, 4096 * 4)
    (handle,) = served.open(1)
    with pytest.raises((LeaseError, DemandError)):
        steps.step(served.state, served.leases, [handle], [2**62])
    served.step({handle: 3})
    with pytest.raises(LeaseError, match=f"{2**63 - 1} tokens exceed"):  # 3 more would wrap
        steps.step(served.state, served.leases, [handle], [2**63 - 1])
    served.step({handle: 1})


@pytest.mark.parametrize(
    "spec",
    [
        BandSpec("full", 64, 4),
        *(BandSpec("w", 64, 4, "window", window) for window in (1, 4, 7)),
        *(BandSpec("c", 64, 4, "chunked", chunk) for chunk in (1, 4, 7)),
    ],
)
def test_windows_slide_alike_for_one_length_and_for_many(spec: BandSpec) -> None:
    """The first visible token of an array of lengths is that of each length alone."""
    lengths = np.arange(30)
    assert steps.first_visible(spec, lengths).tolist() == [spec.first_visible(length) for length in range(30)]


def test_what_a_step_shows_cannot_be_written_to() -> None:
    """Slots, tokens before and row cells are kept by older versions, so a caller who writes into them is stopped."""
    served = Served(ATTENTION, 4096 * 4)
    handles = np.array(served.open(2))
    made = steps.step(served.state, served.leases, handles, np.array([3, 5]))
    assert isinstance(made, StepOutcome)
    for shown in (made.slots, made.before, *(write.cells for write in made.writes)):
        with pytest.raises(ValueError, match="read-only"):
            shown[0] = 1
    kept = np.array([2, 4])
    cut = trim(made.state, made.leases, handles, kept)
    kept[:] = 0
    assert cut.after.tolist() == [2, 4]
