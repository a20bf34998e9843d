"""Contracts of the byte arithmetic, for CrossHair: each function states what one shipped function promises, for all integers.

A contract calls the shipped function by its name in this file, so that a planted twin can stand in for it. Preconditions
are one conjunction each, bounds first. The list of contracts, witnesses and twins is in ``contracts_list``.
"""

from __future__ import annotations

from core_pure.geometry import (
    align,
    ceil_div,
    first_visible,
    floor_arena,
    row_offset,
    slot_offset,
    table_pages,
    window_pages,
    window_pages_max,
)


def ceil_div_is_least(value: int, unit: int) -> int:
    """The least count of units that holds the value.

    pre: unit >= 1 and value >= 0
    post: (__return__ - 1) * unit < value <= __return__ * unit
    """
    return ceil_div(value, unit)


def align_is_next_multiple(value: int, unit: int) -> int:
    """Not below the value, less than one unit above it.

    pre: unit >= 1 and value >= 0
    post: value <= __return__ < value + unit
    """
    return align(value, unit)


def floor_arena_loses_less_than_a_granule(budget: int) -> int:
    """Whole granules, and the next one would not fit (case F09).

    pre: budget >= 0
    post: __return__ <= budget < __return__ + 4096 and __return__ % 4096 == 0
    """
    return floor_arena(budget)


def row_lies_in_its_page(before: int, stride: int, after: int, slots: int, slot: int) -> int:
    """Layer-major: a slot of a row lies inside the page that ``before + stride + after`` bytes a slot make.

    pre: before >= 0 and stride >= 1 and after >= 0 and 0 <= slot < slots <= 4
    post: 0 <= __return__ and __return__ + stride <= (before + stride + after) * slots
    """
    return slot_offset(before, stride, before + stride + after, slots, slot, False)


def token_row_lies_in_its_page(before: int, stride: int, after: int, slots: int, slot: int) -> int:
    """Token-major: the same.

    pre: before >= 0 and stride >= 1 and after >= 0 and 0 <= slot < slots <= 4
    post: 0 <= __return__ and __return__ + stride <= (before + stride + after) * slots
    """
    return slot_offset(before, stride, before + stride + after, slots, slot, True)


def slots_do_not_overlap(before: int, stride: int, after: int, slot: int, major: bool) -> int:
    """The next slot of a row starts at or above the end of this one.

    pre: before >= 0 and stride >= 1 and after >= 0 and 0 <= slot
    post: __return__ >= stride
    """
    entry = before + stride + after
    return slot_offset(before, stride, entry, 256, slot + 1, major) - slot_offset(before, stride, entry, 256, slot, major)


def rows_do_not_overlap(before: int, stride: int, next_stride: int, slot: int, other: int) -> int:
    """Layer-major: every slot of the next row starts at or above the end of every slot of this row.

    pre: before >= 0 and stride >= 1 and next_stride >= 1 and 0 <= slot < 16 and 0 <= other < 16
    post: __return__ >= stride
    """
    entry = before + stride + next_stride
    above = slot_offset(before + stride, next_stride, entry, 16, other, False)
    return above - slot_offset(before, stride, entry, 16, slot, False)


def one_slot_orders_agree(before: int, stride: int, entry: int) -> int:
    """At one slot per page, layer-major and token-major place a row alike: at the per-token offset.

    pre: before >= 0 and stride >= 1 and entry >= before + stride
    post: __return__ == before == slot_offset(before, stride, entry, 1, 0, True)
    """
    return slot_offset(before, stride, entry, 1, 0, False)


def row_starts_after_rows_before(before: int, slots: int) -> int:
    """A row's first byte is that of the whole rows before it.

    pre: before >= 0 and 1 <= slots
    post: __return__ == before * slots
    """
    return row_offset(before, slots, False)


def window_sees_its_tokens(tokens: int, window: int) -> int:
    """The next token of a sliding window reads at most ``window`` positions, itself included, and as many as there are.

    pre: tokens >= 0 and window >= 1
    post: 0 <= __return__ <= tokens and (tokens - __return__ + 1 == window or (__return__ == 0 and tokens < window))
    """
    return first_visible(tokens, window, False)


def chunk_sees_its_tokens(tokens: int, window: int) -> int:
    """The next token of a chunk reads from the start of its own chunk.

    pre: tokens >= 0 and window >= 1
    post: __return__ <= tokens < __return__ + window
    """
    return first_visible(tokens, window, True)


def window_pages_within_most(tokens: int, window: int) -> int:
    """Live pages are never more than the window can touch over all alignments (case F27), pages of 16.

    pre: tokens >= 0 and window >= 1
    post: 0 <= __return__ <= window_pages_max(window, 16, 1, tokens)
    """
    return window_pages(tokens, window, 16, False)


def window_pages_cover_window(tokens: int, window: int) -> int:
    """What is kept covers everything that the next token sees, pages of 16.

    pre: tokens >= 1 and window >= 1
    post: __return__ * 16 >= tokens - first_visible(tokens, window, False)
    """
    return window_pages(tokens, window, 16, False)


def window_most_covers_step(window: int, slots: int, step: int, most: int) -> int:
    """The charge of a window holds the window and one step, and one page for the alignment.

    pre: window >= 1 and slots >= 1 and step >= 1 and most >= 0
    post: (__return__ - 1) * slots >= min(most, window - 1 + step) > (__return__ - 2) * slots
    """
    return window_pages_max(window, slots, step, most)


def table_holds_context_and_drafts(context: int, drafts: int, slots: int) -> int:
    """A page table holds the context, the drafts and 4 more, with less than a page to spare (case F51).

    pre: context >= 1 and drafts >= 0 and slots >= 1
    post: (__return__ - 1) * slots < context + drafts + 4 <= __return__ * slots
    """
    return table_pages(context, drafts, slots)
