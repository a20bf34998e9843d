"""Leases exactly at a bound: handles, rows, holders, sharing and splitting (see docs/MUTATION.md)."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from core_pure.errors import LeaseError, LeaseStale
from core_pure.fits import Refusal
from core_pure.layout import BandSpec, Layout
from core_pure.leases import (
    FIRST_BAND,
    SLOT_BITS,
    SLOT_MASK,
    TOKENS,
    Leases,
    empty_leases,
    flat,
    hold_again,
    least,
    let_go,
    open_leases,
    pages_of,
    share,
    slots_of,
    split,
    whole_numbers,
)
from core_pure.state import ArenaState, initial
from core_pure.step import fork, step, trim

FULL = Layout((BandSpec("a", 16, slots_per_page=2), BandSpec("b", 16, slots_per_page=4)), 1 << 14, 1 << 14)
WINDOW = Layout(
    (BandSpec("w", 16, slots_per_page=2, retention="window", window=5), BandSpec("a", 16, slots_per_page=4)), 1 << 14, 1 << 14
)


def grown(layout: Layout, tokens: int, *, leases: int = 3, by: int = 99) -> tuple[ArenaState, Leases, list[int]]:
    """So many leases, of which the first has these tokens, ``by`` at a time."""
    state, (held, handles) = initial(layout), open_leases(empty_leases(layout, sequences=4, context=40), leases)
    while tokens:
        made = step(state, held, handles[:1], [min(by, tokens)])
        assert not isinstance(made, Refusal)
        state, held, tokens = made.state, made.leases, tokens - min(by, tokens)
    return state, held, handles.tolist()


def test_runs_one_after_the_other() -> None:
    """Runs of any lengths, none and empty ones too, up to sums on both sides of a power of two."""
    rng = random.Random(1)
    for count in (0, 1, 2, 3, 7):
        for _ in range(40):
            starts = [rng.randrange(50) for _ in range(count)]
            counts = [rng.choice((0, 0, 1, 2, 5, 8, 31)) for _ in range(count)]
            expected = [start + x for start, n in zip(starts, counts, strict=True) for x in range(n)]
            assert flat(np.array(starts, np.int64), np.array(counts, np.int64)).tolist() == expected
    for total in range(1, 70):
        assert flat(np.array([3, 0]), np.array([total - 1, 1])).tolist() == [*range(3, total + 2), 0]


def test_the_least_of_some_and_of_none() -> None:
    """The smallest value wherever it stands; 1 when there is none, so that nothing seems out of range."""
    assert [least(np.array(row, np.int64)) for row in ([3, -1, 2], [0], [5, 7], [])] == [-1, 0, 5, 1]


@pytest.mark.parametrize("wrong", [[1.0], [[1]], 1, np.array(1), ["a"], [True], [None], np.float32([2])])
def test_rows_of_anything_else_are_refused(wrong: object) -> None:
    """Only one row of whole numbers is; an empty row of any type is one of no numbers."""
    with pytest.raises(LeaseError, match="whole numbers"):
        whole_numbers(wrong, "these")
    for row in ([], np.empty(0), np.array([2], np.uint8), (2,), np.array([2])):
        assert whole_numbers(row, "these").dtype == np.int64 and whole_numbers(row, "these").tolist() in ([], [2])


def test_only_open_leases_have_slots() -> None:
    """Handle 0, a negative one, one never given out, one whose serial or slot is another's, and an ended one are stale."""
    _, leases, handles = grown(FULL, 3)
    assert slots_of(leases, handles)[0].tolist() == [0, 1, 2] and slots_of(leases, [])[0].tolist() == []
    last = handles[-1]
    for wrong in (0, -1, -handles[0], last + 1, last + 100, last + (1 << SLOT_BITS), last - (1 << SLOT_BITS), SLOT_MASK, 1, 3):
        with pytest.raises(LeaseStale, match=str(wrong)):
            slots_of(leases, [handles[0], wrong])


def test_a_slot_that_was_given_back_answers_to_no_handle() -> None:
    """Neither to the one that ended nor to a small number; the error names the handle that is wrong, not the one beside it."""
    state, leases, handles = grown(FULL, 3)
    ended = step(state, leases, [], [], handles[:2])
    assert not isinstance(ended, Refusal)
    for wrong in (*handles[:2], 0, 1, 2, 3):
        with pytest.raises(LeaseStale, match=f"lease {wrong} "):
            slots_of(ended.leases, [handles[2], wrong])


def test_tables_of_the_smallest_and_largest_size() -> None:
    """One sequence of one token, or 2²⁰ - 1 sequences; rows are as wide as context, drafts and four tokens more need."""
    assert empty_leases(FULL, sequences=1, context=1).widths == (3, 2)
    assert empty_leases(FULL, sequences=SLOT_MASK, context=9, draft_tokens=4).widths == (9, 5)
    for sequences, context, draft in (
        (0, 1, 0),
        (SLOT_MASK + 1, 1, 0),
        (1, 0, 0),
        (1, 1, -1),
        (1.0, 1, 0),
        (1, True, 0),
        (1, 1, "0"),
    ):
        with pytest.raises(LeaseError, match="expected"):
            empty_leases(FULL, sequences=sequences, context=context, draft_tokens=draft)  # type: ignore[arg-type]


def test_slots_are_used_again_and_handles_are_not() -> None:
    """Whatever opens and ends: handles are all different, slots stay below the most that were ever open, all free at the end."""
    rng, given, state = random.Random(2), set[int](), initial(FULL)
    leases, opened = empty_leases(FULL, sequences=5, context=8), []
    for _ in range(200):
        count = rng.randrange(0, 5 - len(opened) + 1)
        leases, handles = open_leases(leases, count)
        assert given.isdisjoint(handles.tolist()) and len(handles) == count
        given |= set(handles.tolist())
        opened += handles.tolist()
        assert len({handle & SLOT_MASK for handle in opened}) == len(opened) == leases.open_count <= leases.fresh <= 5
        ended = [handle for handle in opened if rng.random() < 0.5]
        opened = [handle for handle in opened if handle not in ended]
        made = step(state, leases, opened, [0] * len(opened), ended)
        assert not isinstance(made, Refusal)
        leases = made.leases
        assert opened or (leases.fresh, leases.idle) == (0, ())
        with pytest.raises(LeaseError, match=f"{5 - len(opened)} of 5"):
            open_leases(leases, 6 - len(opened))


def test_a_page_goes_with_its_last_holder() -> None:
    """Holders are counted: of pages held once, twice and three times, letting go of some frees those with no holder left."""
    leases = empty_leases(FULL, sequences=2, context=8)
    twice, thrice = np.array([5, 7], np.int32), np.array([7], np.int32)
    held = hold_again(hold_again(leases, twice), thrice)
    assert (held.shared, held.holders.item(5), held.holders.item(7)) == (3, 1, 2)
    for gone in itertools.product(range(2), range(3), range(4)):
        names = np.array([3] * gone[0] + [5] * gone[1] + [7] * gone[2], np.int32)
        after, freed = let_go(held, names)
        assert freed.tolist() == [page for page, n, most in zip((3, 5, 7), gone, (1, 2, 3), strict=True) if n == most]
        assert after.shared == int(after.holders.copy().sum()) == 3 - (len(names) - len(freed))


def test_what_can_be_shared() -> None:
    """Whole pages of 1 to all tokens, with an empty lease; in a window, lengths whose visible tokens are still held."""
    _, leases, (source, target, other) = grown(FULL, 12)
    for tokens in range(-1, 15):
        if 0 < tokens <= 12 and tokens % 4 == 0:
            heirs, _ = share(leases, source, target, tokens)
            for held, mine in zip(pages_of(heirs, source), pages_of(heirs, target), strict=True):
                assert held[: len(mine)].tolist() == mine.tolist() and (heirs.holders.read(mine.astype(np.intp)) == 1).all()
            assert [len(pages) for pages in pages_of(heirs, target)] == [
                tokens // 2,
                tokens // 4,
            ] and heirs.shared == tokens // 2 + tokens // 4
            assert int(slots_of(heirs, [target])[1][0, TOKENS]) == tokens
            with pytest.raises(LeaseError, match="with one that holds"):
                share(heirs, source, target, tokens)
            continue
        with pytest.raises(LeaseError):
            share(leases, source, target, tokens)
    for wrong in (4.0, True, "4"):
        with pytest.raises(LeaseError):
            share(leases, source, other, wrong)  # type: ignore[arg-type]
    _, leases, (source, target, _) = grown(WINDOW, 20, by=1)
    first = int(slots_of(leases, [source])[1][0, FIRST_BAND]) * 2
    for tokens in (4, 8, 12, 16, 20):
        if tokens - 5 + 1 >= first:
            assert len(pages_of(share(leases, source, target, tokens)[0], target)[0]) == (tokens - first) // 2
        else:
            with pytest.raises(LeaseError, match="slid out"):
                share(leases, source, target, tokens)


def test_pages_of_one_token_are_shared_from_the_first_on() -> None:
    """In three bands of such pages, any length from 1 token to all of them."""
    layout = Layout(tuple(BandSpec(name, 16) for name in "abc"), 1 << 14, 1 << 14)
    _, leases, (source, target, _) = grown(layout, 3)
    for tokens in (1, 2, 3):
        heirs, _ = share(leases, source, target, tokens)
        assert [pages.tolist() for pages in pages_of(heirs, target)] == [
            pages[:tokens].tolist() for pages in pages_of(leases, source)
        ]


def test_no_lease_is_trimmed_into_what_another_holds() -> None:
    """Not to an end inside a shared page, of either holder, nor a cut lease to before its cut; to page ends, and to nothing."""
    state, leases, (source, target, _) = grown(FULL, 12)
    heirs, _ = share(leases, source, target, 8)
    for left in range(13):
        if left % 4 == 0 or left > 8:
            kept = pages_of(trim(state, heirs, [source], [left]).leases, source)
            assert [len(pages) for pages in kept] == [-(-left // 2), -(-left // 4)]
        else:
            with pytest.raises(LeaseError, match="inside a page that another lease holds"):
                trim(state, heirs, [source], [left])
    parts, _ = split(leases, source, target, 8)
    for left in range(1, 7):
        with pytest.raises(LeaseError, match="belong to another lease"):
            trim(state, parts, [target], [left])
    with pytest.raises(LeaseError, match="belong to another lease"):
        trim(state, parts, [source, target], [8, 2])
    ended = trim(state, parts, [target], [0])
    assert [len(pages) for pages in pages_of(ended.leases, target)] == [0, 0]


def test_one_lease_whose_window_has_slid_is_enough_to_refuse_a_trim() -> None:
    """Beside one that may be trimmed, and the other way round."""
    state, leases, (slid, fresh, _) = grown(WINDOW, 16, by=1)
    made = step(state, leases, [fresh], [16])
    assert not isinstance(made, Refusal)
    for handles in ([slid, fresh], [fresh, slid]):
        with pytest.raises(LeaseError, match="slid out"):
            trim(made.state, made.leases, handles, [3, 3])
    assert len(trim(made.state, made.leases, [fresh], [3]).after) == 1


def test_a_head_whose_window_has_slid_keeps_what_it_has() -> None:
    """Cut before its first page held, it holds none of the window; a step without tokens for it takes and frees nothing."""
    state, leases, (source, target, _) = grown(WINDOW, 16, by=1)
    parts, _ = split(leases, source, target, 4)
    before = [pages.tolist() for pages in pages_of(parts, source)]
    assert before[0] == [] and len(before[1]) == 1
    made = step(state, parts, [source], [0])
    assert not isinstance(made, Refusal) and made.plan.is_empty and made.event.demand == (0, 0)
    assert [pages.tolist() for pages in pages_of(made.leases, source)] == before
    assert [pages.tolist() for pages in pages_of(made.leases, target)] == [pages.tolist() for pages in pages_of(parts, target)]


@pytest.mark.parametrize("order", ["sab", "asb", "abs"])
@pytest.mark.parametrize("tokens", [1, 4, 5])
def test_a_fork_copies_its_states_and_its_partial_page(order: str, tokens: int) -> None:
    """Wherever the states stand in the chain: as many as the lease holds, none of them shared; whole pages are."""
    spec = {
        "s": BandSpec("s", 64, retention="state", pages_fixed=2), "a": BandSpec("a", 16, slots_per_page=4), "b": BandSpec("b", 16),
    }  # fmt: skip
    state, leases, (parent, *_) = grown(Layout(tuple(spec[name] for name in order), 1 << 14, 1 << 14), tokens, leases=1)
    forked = fork(state, leases, parent)
    assert not isinstance(forked, Refusal)
    mine, its = pages_of(forked[0].leases, parent), pages_of(forked[0].leases, forked[1])
    held, shared = {"s": 2, "a": -(-tokens // 4), "b": tokens}, {"s": 0, "a": tokens // 4, "b": tokens}
    for name, pages, copies in zip(order, mine, its, strict=True):
        assert len(pages) == len(copies) == held[name] and len(set(pages.tolist()) & set(copies.tolist())) == shared[name]
    assert len(forked[0].plan.copies) == 2 + (tokens % 4 > 0)


def test_a_trim_names_the_cells_that_it_empties() -> None:
    """One write per band: the positions from the last page kept on, all 0 now, in the rows too."""
    state, leases, (source, other, _) = grown(FULL, 12)
    outcome = trim(state, leases, [source, other], [5, 0])
    assert len(outcome.writes) == 2
    for write, rows, width, kept in zip(
        outcome.writes, outcome.leases.rows, leases.widths, (range(3, 6), range(2, 3)), strict=True
    ):
        assert write.cells.tolist() == list(kept) and not write.pages.any()
        assert not rows.copy()[kept.start : width].any()


def test_where_a_lease_can_be_cut() -> None:
    """At page boundaries inside it, into an empty lease; both parts together hold what the whole held, in order."""
    for layout, by in ((FULL, 12), (WINDOW, 1)):
        _, leases, (source, target, _) = grown(layout, 12, by=by)
        whole = [pages.tolist() for pages in pages_of(leases, source)]
        for tokens in range(-1, 14):
            if 0 < tokens < 12 and tokens % 4 == 0:
                parts, _ = split(leases, source, target, tokens)
                heads, tails = pages_of(parts, source), pages_of(parts, target)
                assert [[*head.tolist(), *tail.tolist()] for head, tail in zip(heads, tails, strict=True)] == whole
                assert slots_of(parts, [source, target])[1][:, TOKENS].tolist() == [tokens, 12] and parts.has_parts
                with pytest.raises(LeaseError, match="into one that holds"):
                    split(parts, source, target, 4)
                continue
            with pytest.raises(LeaseError):
                split(leases, source, target, tokens)


def test_a_lease_that_starts_where_an_earlier_one_slid_reads_the_sink() -> None:
    """Row cells below the first page of a shared or cut lease are 0, whatever the slot held before."""
    state, leases, (source, used, _) = grown(WINDOW, 16, by=1)
    made = step(state, leases, [used], [20])
    assert not isinstance(made, Refusal)
    ended = step(made.state, made.leases, [], [], [used])
    assert not isinstance(ended, Refusal)
    again, (target,) = open_leases(ended.leases, 1)
    assert int(target) & SLOT_MASK == used & SLOT_MASK
    for after in (share(again, source, int(target), 16)[0], split(again, source, int(target), 12)[0]):
        (slot,), facts = slots_of(after, [int(target)])
        for band, width in enumerate(after.widths):
            first = int(facts[0, FIRST_BAND + 2 * band])
            row = after.rows[band].copy()[slot * width : (slot + 1) * width]
            assert not row[:first].any() and (row[first : int(facts[0, FIRST_BAND + 2 * band + 1])] > 0).all()
