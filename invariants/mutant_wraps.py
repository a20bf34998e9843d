"""What wrapped mutants do: each stands between the callers of one function and the function, and is wrong in one way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from attrs import evolve

Wrapped = Callable[..., Any]


def band_result(change: Callable[[Any], Any]) -> Wrapped:
    """Change the band that a transition of one band returns, alone or first of a tuple."""

    def wrapped(original: Wrapped, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        return (change(result[0]), *result[1:]) if isinstance(result, tuple) else change(result)

    return wrapped


def plan_result(change: Callable[[Any], Any]) -> Wrapped:
    def wrapped(original: Wrapped, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        return evolve(result, plan=change(result.plan)) if hasattr(result, "plan") else result

    return wrapped


def no_rows_of_minus_one(original: Wrapped, *args: Any) -> Any:
    rows = original(*args)
    return rows[rows[:, 1] >= 0]


def rows_without_moved(original: Wrapped, freed: Any, released: Any, bound: Any) -> Any:
    return original(
        freed, released, {at: got._replace(moved=got.moved[:0], moved_to=got.moved_to[:0]) for at, got in bound.items()}
    )


def rows_twice(original: Wrapped, *args: Any) -> Any:
    rows = original(*args)
    return np.concatenate((rows, rows[:1]))


def unbind_now(original: Wrapped, band: Any, ids: Any, frames: Any, reader: Any, **kwargs: Any) -> Any:
    return original(band, ids, frames, None, **kwargs)


def not_withheld(original: Wrapped, state: Any, **kwargs: Any) -> Any:
    return original(state, **{**kwargs, "withhold": False})


def keeps_total(original: Wrapped, state: Any, total_bytes: int) -> Any:
    result = original(state, total_bytes)
    return evolve(result, state=evolve(result.state, layout=state.layout)) if hasattr(result, "plan") else result


def drops_sink(original: Wrapped, state: Any, pages: Any) -> Any:
    ids = np.asarray(pages)
    return original(state, ids[ids != 0])


def dissolve_one(original: Wrapped, band: Any, fence: int) -> Any:
    batches = band.held.batches
    early = [batch for batch in batches if batch.fence <= fence]
    if len(early) < 2:
        return original(band, fence)
    return original(evolve(band, held=evolve(band.held, batches=tuple(b for b in batches if b is not early[0]))), fence)


def no_pins(original: Wrapped, band: Any, batches: Any, pins: Any) -> Any:
    return original(band, batches, {})


def ignores_cap(original: Wrapped, *args: Any, **kwargs: Any) -> int:
    return -1


def drops_one_source(original: Wrapped, band: Any, window: Any) -> Any:
    return original(band, window)[1:]


def one_wave(original: Wrapped, moves: Any) -> list[int]:
    return [1] * len(moves)


def first_band(original: Wrapped, band: Any, first: Any, second: Any) -> Any:
    return original(0, first, second)


def links_new_values(original: Wrapped, table: Any, index: Any, values: Any, *known: Any) -> Any:
    new = original(table, index, values, *known)
    if table is not new and table._link is not None:
        newer, at, old = table._link
        table._link = (newer, at, old + 1)
    return new


def pin_once(original: Wrapped, band: Any, ids: Any, step: int) -> Any:
    if step > 0 and any(int(page) in band.held.pins for page in ids):
        return band
    return original(band, ids, step)


def any_reader(original: Wrapped, state: Any, reader: Any) -> None:
    return None


def written_move_too(original: Wrapped, band: Any, target: Any, left: Any, fixed: Any) -> Any:
    return original(band, target, left, None)


def no_limit(original: Wrapped, band: Any, target: Any, left: Any, fixed: Any) -> Any:
    return original(band, target, None, fixed)


def forgets_before(original: Wrapped, a: Any, b: Any) -> Any:
    return b


def no_fills(original: Wrapped, state: Any, bound: Any) -> Any:
    return original(state, {})


def fills_moved(original: Wrapped, state: Any, bound: Any) -> Any:
    moved = {at: got._replace(frames=np.concatenate((got.frames, got.moved_to))) for at, got in bound.items()}
    return original(state, moved)


def same_id_twice(original: Wrapped, band: Any, count: int) -> Any:
    ids = original(band, count)
    return np.concatenate((ids[:1], ids[:-1])) if count > 1 else ids


def ends_at_first(original: Wrapped, state: Any, fence: int) -> Any:
    return original(state, min(fence, state.retired + 1))


def next_slot(original: Wrapped, step: Any, band: int) -> Any:
    return original(step, band) + 1


def reports_no_tail(original: Wrapped, state: Any) -> Any:
    said = original(state)
    return evolve(said, gap_bytes=max(0, said.gap_bytes - 1))


def next_bands_frame(original: Wrapped, state: Any, pages: Any) -> Any:
    frames = original(state, pages)
    return np.where(np.asarray(pages) > state.layout.ids_total - 2, 0, frames).astype(frames.dtype)


def sees_one_more(original: Wrapped, state: Any, at: int, mode: Any, evicted: Any = None) -> int:
    return int(original(state, at, mode, evicted)) + 1


def joint_of_one(original: Wrapped, state: Any, demand: Any, mode: Any, evicted: Any = None) -> Any:
    joint = original(state, demand, mode, evicted)
    return tuple(max(0, pages - 1) for pages in joint)


def empty_cannot(original: Wrapped, layout: Any, demand: Any) -> bool:
    return bool(original(layout, tuple(pages + 1 for pages in demand)))


def stop_short(original: Wrapped, band: Any) -> Any:
    after = original(band)
    return evolve(after, high=after.high + 1) if after.high and after.high < band.high else after


def hull_one_short(original: Wrapped, held: Any, fence: int, frames: Any) -> Any:
    after = original(held, fence, frames)
    return evolve(after, end=after.end - 1)


def forgets_last(original: Wrapped, held: Any, fence: int, frames: Any) -> Any:
    return original(held, fence, frames[:-1]) if len(frames) > 1 else original(held, fence, frames)


def launches_nothing(original: Wrapped, state: Any) -> Any:
    return evolve(original(state), state=state)


def cheap(original: Wrapped, bands: Any, sink: int, total: int) -> Any:
    """Everything stays where relief would pack it: the front's first state instead of its cheapest."""
    packed = [(claim._replace(first=1 << 62, end=0), live[:0]) for claim, live in bands]
    found = original(packed, sink, total)
    pinned = any(claim.end for claim, _ in bands)
    return original(bands, sink, total) if pinned or found is None else found
