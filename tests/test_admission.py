"""What is promised: folded admissions, longest request, largest concurrency, the fewest bytes evicted, every cost rounded up."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import numpy as np
import pytest

from core_pure.admission import (
    AdmissionBudget,
    added,
    eviction_advice,
    fits_empty,
    largest_concurrency,
    max_request_tokens,
    request_pages,
)
from core_pure.advance import allocate, release
from core_pure.capacity import Unit
from core_pure.door import Door
from core_pure.errors import DemandError
from core_pure.event import content_digest
from core_pure.fits import Refusal
from core_pure.layout import BandSpec, Layout, boot_floor, build_layout, order_chain
from core_pure.state import ArenaState, Outcome, initial
from invariants import brute
from tests.core_states import bound_pages, histories, layout_of, sets_of

CHUNK = 16


def hybrid(total_bytes: int, *, state_slots: int = 1, page: int = 4) -> Layout:
    """State, window and full attention, off each other's grid."""
    return build_layout(
        [
            BandSpec("state", 2_720, retention="state", pages_fixed=state_slots),
            BandSpec("window-24", 336 * page, slots_per_page=page, retention="window", window=24),
            BandSpec("full", 272 * page, slots_per_page=page),
        ],
        total_bytes,
    )


# --- folding ---------------------------------------------------------------------------------------------------------------


def test_F47_an_accepted_prefix_can_be_allocated_together() -> None:
    """Ten requests that each fit alone: the folded budget takes a prefix that is allocated in one demand, and no longer one."""
    rng, cut = random.Random(1), 0
    for _ in range(150):
        layout = hybrid(4096 * rng.randrange(12, 60))
        state = initial(layout)
        for _ in range(rng.randrange(4)):
            answer = allocate(state, request_pages(layout, rng.randrange(1, 60), CHUNK))
            state = answer.state if isinstance(answer, Outcome) else state
        pages = bound_pages(state)
        state = release(state, rng.sample(pages.tolist(), len(pages) // 3)).state
        requests = [(rng.randrange(1, 80), rng.randrange(40)) for _ in range(10)]
        budget, taken = AdmissionBudget.of(state, CHUNK), 0
        for now, reserved in requests:
            alone = AdmissionBudget.of(state, CHUNK).fold(now, reserved)
            folded = budget.fold(now, reserved)
            if isinstance(folded, Refusal):
                assert isinstance(allocate(state, added(budget.taken, request_pages(layout, now + reserved, CHUNK))), Refusal)
                cut += isinstance(alone, AdmissionBudget)
                break
            budget, taken = folded, taken + 1
        together = allocate(state, budget.taken)
        assert isinstance(together, Outcome)
        assert together.state.bands[2].live - state.bands[2].live == sum(
            -(-(now + reserved) // 4) for now, reserved in requests[:taken]
        )
    assert cut > 60


def test_folding_starts_from_what_is_promised() -> None:
    """A budget on top of promised pages refuses what does not fit beside them, and a refusal leaves it as it was."""
    state = initial(hybrid(4096 * 20))
    promised = {"full": 20, "window-24": 3, "state": 2}
    budget = AdmissionBudget.of(state, CHUNK, state.layout.demand(promised))
    alone = max_request_tokens(state.layout, CHUNK)
    assert isinstance(budget.fold(alone), Refusal)
    assert isinstance(AdmissionBudget.of(state, CHUNK).fold(alone), AdmissionBudget)
    assert budget.taken == state.layout.demand(promised)


@pytest.mark.parametrize(("now", "reserved"), [(-1, 0), (0, -1), (1.5, 0), (True, 0), ("7", 0), (1, None)])
def test_bad_requests_are_named(now: object, reserved: object) -> None:
    """Negative, fractional or missing token counts raise DemandError, and never grow a budget."""
    budget = AdmissionBudget.of(initial(hybrid(4096 * 20)), CHUNK)
    with pytest.raises(DemandError, match="tokens"):
        budget.fold(now, reserved)
    assert budget.taken == (0, 0, 0)


def test_F05_every_cost_rounds_up() -> None:
    """A state slot costs 2.5 full pages: a loop that admits while the budget says yes never exceeds the bytes."""
    layout = build_layout([BandSpec("state", 40 * 64, retention="state"), BandSpec("full", 16 * 64, slots_per_page=16)], 4096 * 8)
    for tokens in (1, 15, 16, 17, 33, 100):
        budget, count = AdmissionBudget.of(initial(layout), CHUNK), 0
        while isinstance(folded := budget.fold(tokens), AdmissionBudget):
            budget, count = folded, count + 1
        used = count * (40 * 64 + -(-tokens // 16) * 16 * 64)
        assert used + layout.sink_bytes <= layout.total_bytes < used + layout.sink_bytes + 2 * (40 * 64) + 7 * 1024
        assert isinstance(allocate(initial(layout), budget.taken), Outcome)
        assert count == largest_concurrency(layout, tokens, CHUNK)


def test_F30_admission_counts_what_allocation_takes() -> None:
    """Random chunked prefill with lookahead slots, then decode: peak pages held = pages charged, to the page.

    Exact for full attention and states. A window is charged for the worst alignment of its pages: never less than the peak,
    at most two pages more.
    """
    rng, reached = random.Random(3), 0
    for _ in range(60):
        page, chunk = rng.choice((1, 4, 16)), rng.choice((8, 16, 30))
        layout = hybrid(1 << 20, state_slots=rng.choice((1, 3)), page=page)
        lookahead, tokens = rng.randrange(5), rng.randrange(1, 200)
        door = Door(layout, sequences=2, context=400, chunk=chunk + lookahead)
        handles, held, peak = door.open(1), 0, [0, 0, 0]
        while held < tokens:
            new = min(rng.randint(1, chunk), tokens - held)
            result = door.step(handles, np.array([new + lookahead]))
            assert not isinstance(result, Refusal)
            held += new
            peak = [max(most, band.live) for most, band in zip(peak, door.state.bands, strict=True)]
            door.trim(handles, np.array([held]))
        charged = request_pages(layout, tokens + lookahead, chunk + lookahead)
        names = layout.names
        assert charged[names.index("full")] == peak[names.index("full")]
        assert charged[names.index("state")] == peak[names.index("state")]
        window = names.index("window-24")
        assert peak[window] <= charged[window] <= peak[window] + 2 + (chunk + page - 1) // page
        reached += peak[window] == charged[window]
    assert reached > 15


def test_F27_window_pages_over_all_alignments() -> None:
    """Windows shorter and longer than a page and than the context: exactly the pages that the window touches are held."""
    for window, page, context, chunk in ((11, 128, 400, 64), (128, 16, 400, 64), (1000, 16, 200, 64), (1, 1, 40, 1), (8, 4, 64, 3)):
        layout = build_layout([BandSpec("w", 256 * page, slots_per_page=page, retention="window", window=window)], 1 << 24)
        for first in range(1, min(chunk, 20) + 1):
            door = Door(layout, sequences=1, context=context, chunk=chunk)
            handles, held = door.open(1), 0
            while held < context - chunk:
                new = first if held == 0 else 1
                result = door.step(handles, np.array([new]))
                held += new
                pages = len(door.pages(int(handles[0]))[0])
                begin = int(door.leases.facts.copy()[0, 2])
                touched = {t // page for t in range(max(0, held - new - window + 1), held)}
                assert pages == len(touched), (window, page, held)
                assert begin == min(touched)
                assert not isinstance(result, Refusal)


# --- the longest and the many ------------------------------------------------------------------------------------------------


def test_max_request_tokens_is_the_largest_that_is_admitted() -> None:
    """In 200 random arenas: so many tokens are admitted into the empty arena, one more is not; the context caps it."""
    rng = random.Random(7)
    for _ in range(200):
        layout = hybrid(4096 * rng.randrange(12, 400), state_slots=rng.choice((1, 3)), page=rng.choice((1, 4, 16)))
        tokens = max_request_tokens(layout, CHUNK)
        assert fits_empty(layout, request_pages(layout, tokens, CHUNK))
        assert not fits_empty(layout, request_pages(layout, tokens + 1, CHUNK))
        assert isinstance(AdmissionBudget.of(initial(layout), CHUNK).fold(tokens + 1), Refusal)
        assert max_request_tokens(layout, CHUNK, tokens // 2) == tokens // 2
    windows_only = build_layout([BandSpec("w", 4096, slots_per_page=16, retention="window", window=64)], 4096 * 20)
    assert max_request_tokens(windows_only, CHUNK) == 1 << 40, "without full attention length costs nothing"
    assert max_request_tokens(windows_only, CHUNK, 500) == 500


def test_largest_concurrency_is_exact() -> None:
    """So many equal requests fit at their peak, one more does not."""
    rng = random.Random(8)
    for _ in range(200):
        layout = hybrid(4096 * rng.randrange(12, 600), page=rng.choice((1, 4, 16)))
        tokens = rng.randrange(1, 200)
        count, each = largest_concurrency(layout, tokens, CHUNK), request_pages(layout, tokens, CHUNK)
        assert fits_empty(layout, tuple(count * pages for pages in each))
        assert not fits_empty(layout, tuple((count + 1) * pages for pages in each))


def test_F46_tracking_slots_are_charged() -> None:
    """A request holds one state and two tracking slots: admission, boot floor and longest request all count three."""
    state = BandSpec("state", 4096, retention="state", pages_fixed=3)
    full = BandSpec("full", 1024, slots_per_page=4)
    for total, admitted in ((4096 * 4, False), (4096 * 5, True)):
        layout = Layout(order_chain([state, full]), total, total)
        assert request_pages(layout, 4, CHUNK)[0] == 3
        folded = AdmissionBudget.of(initial(layout), CHUNK).fold(4)
        assert isinstance(folded, AdmissionBudget) == admitted
        assert (max_request_tokens(layout, CHUNK) > 0) == admitted
    one_short = allocate(initial(Layout(order_chain([state, full]), 4096 * 8, 4096 * 8)), {"state": 4}).state
    assert isinstance(allocate(one_short, {"state": 1, "full": 1}), Outcome), "room for one slot"
    assert isinstance(AdmissionBudget.of(one_short, CHUNK).fold(4), Refusal)
    assert boot_floor([state], 100, CHUNK) == 4096 * 4
    assert boot_floor([BandSpec("state", 4096, retention="state", pages_fixed=5)], 100, CHUNK) == 4096 * 6


# --- eviction ------------------------------------------------------------------------------------------------------------------


def least_by_trying(state: ArenaState, demand: tuple[int, ...], units: list[tuple[int, ...]]) -> int | None:
    """Fewest bytes over every subset of the units."""
    chain, best = sets_of(state, demand), None
    for chosen in itertools.product((0, 1), repeat=len(units)):
        pages = [sum(unit[at] for unit, taken in zip(units, chosen, strict=True) if taken) for at in range(len(demand))]
        limits = [len(band.live - band.pinned) for band in chain.bands]
        capped = tuple(min(n, most) for n, most in zip(pages, limits, strict=True))
        cost = sum(n * band.frame_bytes for n, band in zip(pages, chain.bands, strict=True))
        if (best is None or cost < best) and brute.feasible(chain, brute.evict(capped)):
            best = cost
    return best


def test_F48_advice_frees_the_fewest_bytes() -> None:
    """Units that free pages of several bands at once: the advice is the cheapest of all subsets, works, and has no idle unit."""
    rng, seen, states = random.Random(11), Counter[str](), histories(12, bands=(2, 3), frames=5, steps=40)
    while sum(seen.values()) < 250:
        for _ in range(4):
            state = next(states)
        room = [band.live - len(band.held.pins) for band in state.bands]
        units: list[tuple[int, ...]] = []
        for _ in range(rng.randrange(1, 7)):
            unit = tuple(rng.randint(0, min(2, left)) for left in room)
            room = [left - n for left, n in zip(room, unit, strict=True)]
            units.append(unit)
        demand = tuple(rng.choice((0, 1, 3, 6)) for _ in state.bands)
        advice, least = eviction_advice(state, demand, units), least_by_trying(state, demand, units)
        assert isinstance(advice, Refusal) == (least is None)
        if isinstance(advice, Refusal):
            seen["refused"] += 1
            continue
        assert advice.freed_bytes == least
        assert advice.optimal
        gone = tuple(sum(units[at][band] for at in advice.units) for band in range(len(demand)))
        assert gone == advice.pages
        seen["nothing to evict" if not advice.units else "evicts"] += 1
        for dropped in advice.units:
            fewer = tuple(n - units[dropped][band] for band, n in enumerate(gone))
            assert not brute.feasible(sets_of(state, demand), brute.evict(fewer)), "each unit named is needed"
        victims = []
        for band, n in zip(state.bands, gone, strict=True):
            loose = [p for p in bound_pages(state, pinned=False).tolist() if 0 < p - band.home.id_base <= band.home.ids_max]
            victims += rng.sample(loose, n)
        assert isinstance(allocate(release(state, victims).state, demand), Outcome), "the advice works, whichever pages go"
    assert min(seen.values()) > 30, seen


def test_F48_one_unit_that_frees_two_kinds() -> None:
    """Of units with page vectors the one of fewest bytes goes; among equals the older; too small a unit is not named."""
    layout = layout_of((12, 4), 12 + 48 + 12)
    state = allocate(initial(layout), (4, 3)).state
    for units, chosen, freed in (
        ([(0, 1), (1, 2), (1, 0), (0, 3)], (2,), 12),
        ([(0, 1), (0, 3), (1, 0)], (1,), 12),
        ([(0, 1), (1, 1)], (1,), 16),
        ([(0, 1), (0, 1), (0, 1)], (0, 1, 2), 12),
    ):
        advice = eviction_advice(state, (1, 0), units)
        assert not isinstance(advice, Refusal)
        assert (advice.units, advice.freed_bytes) == (chosen, freed)


def test_F04_the_fewest_full_pages_make_room_for_a_state() -> None:
    """Full attention fills the arena with evictable pages, the gap is 40 % of a state slot: exactly the pages missing go."""
    layout = layout_of((10, 1), 10 + 10 + 4 + 30)
    state = allocate(initial(layout), (1, 30)).state
    assert isinstance(allocate(state, (1, 0)), Refusal)
    advice = eviction_advice(state, (1, 0), [(0, 1)] * 30)
    assert not isinstance(advice, Refusal)
    assert advice.units == tuple(range(6)), "six of one byte, the oldest first"
    gone = bound_pages(state)[[1, 5, 9, 14, 22, 30]]
    assert isinstance(allocate(release(state, gone).state, (1, 0)), Outcome), "whichever six they are"
    assert isinstance(allocate(release(state, gone[:5]).state, (1, 0)), Refusal)


def test_F02_no_eviction_beyond_what_helps() -> None:
    """Asked for more than eviction could ever give, the advice names no unit; the refusal tells what could be had."""
    state = allocate(initial(layout_of((1, 1), 9)), (2, 2)).state
    answer = eviction_advice(state, (9, 9), [(1, 0), (0, 1)])
    assert isinstance(answer, Refusal)
    assert [row.after_relief for row in answer.bands] == [6, 6], "with one page of each given up"
    helpful = eviction_advice(state, (4, 1), [(1, 0), (0, 1)])
    assert not isinstance(helpful, Refusal)
    assert len(helpful.units) == 1


def test_F10_nothing_is_evicted_for_what_cannot_fit() -> None:
    """A demand above the whole arena, everything evictable: the evictor is never called, the value unchanged."""

    class Everything:
        def units(self) -> list[object]:
            return [Unit(at, (0, 0, 1)) for at in range(10)]

        def evict(self, keys: list[int]) -> None:
            raise AssertionError(f"evicted {keys}")

    door = Door(hybrid(4096 * 40), sequences=4, context=300, chunk=CHUNK)
    handles = door.open(1)
    door.step(handles, np.array([CHUNK]))
    before = content_digest(door.state)
    assert door.evict_to_free((0, 0, 10**6), Everything()) == 0
    assert not door.check_decode((0, 0, 10**6), Everything())
    assert content_digest(door.state) == before
