"""Contracts of claims, caps, boot and admission, for CrossHair: the integer part of ``fits``, ``layout`` and ``admission``.

Bands are built with symbolic counts and without tables: these functions must not read any, and would fail if they did.
"""

from __future__ import annotations

from typing import Any, cast

from core_pure.admission import added, fits_empty
from core_pure.band import Band, Batch, Held, Home
from core_pure.chain import NOWHERE, Claim
from core_pure.fits import NOW, RELIEF, After, claim, frames_kept
from core_pure.layout import BandSpec, Layout, claims_of_empty, smallest_total

ABSENT = cast(Any, None)
"""Stands for a table that integer functions must not touch."""


def counted_band(live: int, waiting: int, low: int, high: int, first: int, end: int, least: int = 0) -> Band:
    """A band of these counts, frames of 7 bytes, without tables."""
    home = Home(BandSpec("band", 7, pages_min=least), 0, 0, 1, 1, -1)
    return Band(home, ABSENT, ABSENT, ABSENT, ABSENT, live, 0, 1, low, high, Held((), {}, waiting, first, end))


def claim_needs_what_is_kept(live: int, waiting: int, pages: int, evicted: int, least: int) -> Claim:
    """Relief: live less evicted, plus quarantined, plus asked; never under the minimum; the hull is the immovable one.

    pre: live >= 0 and waiting >= 0 and pages >= 0 and 0 <= evicted <= live and least >= 0
    post: __return__.need == max(live - evicted + waiting + pages, least)
    post: __return__.first == 3 and __return__.end == 9 and __return__.frame_bytes == 7
    """
    return claim(counted_band(live, waiting, 1, 10, 3, 9, least), pages, RELIEF, evicted)


def claim_now_keeps_the_span(live: int, waiting: int, low: int, high: int, pages: int) -> Claim:
    """Now: nothing moves, so the hull is the span; an empty span has none.

    pre: live >= 0 and waiting >= 0 and 0 <= low <= high and pages >= 0
    post: __return__.need == live + waiting + pages
    post: (__return__.first, __return__.end) == ((low, high) if high > 0 else (NOWHERE, 0))
    """
    return claim(counted_band(live, waiting, low, high, NOWHERE, 0), pages, NOW)


def waiting_never_needs_more(live: int, fence: int, other: int, wait: int) -> int:
    """After waiting for a fence, a band needs what relief needs, less the quarantine that has passed.

    pre: live >= 0 and fence >= 1 and other >= 1 and wait >= 0
    post: __return__ == live + (2 if fence > wait else 0) + (1 if other > wait else 0)
    """
    band = counted_band(live, 3, 1, 20, 3, 9)
    batches = (Batch(fence, cast(Any, (3, 8))), Batch(other, cast(Any, (5,))))
    held = Held(batches, {}, 3, 3, 9)
    counted = Band(band.home, ABSENT, ABSENT, ABSENT, ABSENT, live, 0, 1, 1, 20, held)
    return frames_kept(counted, After(wait))


def peak_covers_tokens(tokens: int, chunk: int) -> int:
    """A full-attention request is charged whole pages, rounded up, pages of 16.

    pre: tokens >= 0 and chunk >= 1
    post: (__return__ - 1) * 16 < tokens <= __return__ * 16
    """
    return BandSpec("full", 7, slots_per_page=16).pages_peak(tokens, chunk)


def peak_of_window_is_bounded(tokens: int, chunk: int, window: int) -> int:
    """A window request is charged at most its tokens and at most window and chunk, and holds the window, pages of 16.

    pre: tokens >= 0 and chunk >= 1 and window >= 1
    post: (__return__ - 1) * 16 < tokens and (__return__ - 2) * 16 < window - 1 + chunk
    post: __return__ * 16 >= min(tokens, window)
    """
    return BandSpec("w", 7, slots_per_page=16, retention="window", window=window).pages_peak(tokens, chunk)


def peak_grows_with_tokens(tokens: int, more: int, chunk: int) -> int:
    """A longer request never costs fewer pages: reserving growth rounds up, jointly (case F05).

    pre: tokens >= 0 and more >= 0 and chunk >= 1
    post: __return__ >= 0
    """
    spec = BandSpec("full", 7, slots_per_page=16)
    return spec.pages_peak(tokens + more, chunk) - spec.pages_peak(tokens, chunk)


def state_charge_is_fixed(tokens: int, chunk: int, fixed: int) -> int:
    """A state costs its slots, tracking included, whatever the length (case F46).

    pre: tokens >= 0 and chunk >= 1 and fixed >= 1
    post: __return__ == fixed
    """
    return BandSpec("state", 7, retention="state", pages_fixed=fixed).pages_peak(tokens, chunk)


def fold_adds_every_band(a: int, b: int, more_a: int, more_b: int) -> tuple[int, ...]:
    """Folding adds the pages of each band, and only there.

    pre: a >= 0 and b >= 0 and more_a >= 0 and more_b >= 0
    post: __return__ == (a + more_a, b + more_b)
    """
    return added((a, b), (more_a, more_b))


def smaller_fold_fits_too(a: int, b: int, less_a: int, less_b: int, total: int) -> bool:
    """What an accepted fold leaves out is accepted too, two bands of 7 and 5 bytes (case F47).

    pre: 0 <= less_a <= a and 0 <= less_b <= b and 7 <= total <= 4096
    post: not __return__ or fits_empty(Layout((BandSpec("a", 7), BandSpec("b", 5)), total, total), (less_a, less_b))
    """
    return fits_empty(Layout((BandSpec("a", 7), BandSpec("b", 5)), total, total), (a, b))


def floor_admits_its_demand(a: int, b: int) -> int:
    """The smallest total admits the demand it was made for, and a granule less does not (case F08).

    pre: 1 <= a <= 4096 and 1 <= b <= 4096
    post: fits_empty(Layout((BandSpec("a", 7), BandSpec("b", 5)), __return__, __return__), (a, b))
    post: not fits_empty(Layout((BandSpec("a", 7), BandSpec("b", 5)), __return__ - 4096, __return__ - 4096), (a, b))
    """
    return smallest_total((BandSpec("a", 7), BandSpec("b", 5)), (a, b))


def minimum_is_claimed(asked: int, least: int) -> tuple[Claim, ...]:
    """Bytes for a band's minimum are kept even when it asks for less.

    pre: asked >= 0 and least >= 0
    post: __return__[0].need == max(asked, least)
    """
    return claims_of_empty(Layout((BandSpec("a", 7, pages_min=least),), 4096, 4096), (asked,))


def chain_fits(layout: Layout, demand: tuple[int, ...]) -> bool:
    """``fits_empty`` itself, for the twin of the contract on it: a name that no twin replaces."""
    return _FITS_EMPTY(layout, demand)


_FITS_EMPTY = fits_empty
