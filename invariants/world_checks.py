"""The claims that small worlds check in every state and on every transition, against brute force and the reference.

Each check is a generator of sentences that start with the claim's name; none for a sound arena.
"""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32

from core_pure.compact import compact
from core_pure.errors import ArenaError
from core_pure.fits import NOW, RELIEF, Refusal, obtainable
from core_pure.plan import encode
from core_pure.state import Outcome
from core_pure.verify import verify

from . import brute
from .interpreter import band_of, frame_is_legal
from .reference import Disagreement, Reference
from .worlds import Node, StateCheck, Step, StepCheck, World

SAMPLE = 4  # figures that need many brute-force questions are checked in one state of this many


def chain_of(node: Node, demand: tuple[int, ...], released: tuple[int, ...] = ()) -> brute.BruteChain:
    """A state as sets of frames, some pages gone, under a demand."""
    layout = node.state.layout
    bands = []
    for index, spec in enumerate(layout.bands):
        pages = {page: frame for page, frame in node.pages[index].items() if page not in released}
        fences: dict[int, frozenset[int]] = {}
        for frame, fence in node.waiting[index].items():
            fences[fence] = fences.get(fence, frozenset()) | {frame}
        bands.append(
            brute.BruteBand(
                frame_bytes=spec.frame_bytes,
                live=frozenset(pages.values()),
                quarantined=fences,
                pinned=frozenset(pages[page] for page in node.pins[index]),
                ask=demand[index],
                pages_min=spec.pages_min,
                pages_max=spec.pages_max,
            )
        )
    return brute.BruteChain(tuple(bands), layout.total_bytes, layout.sink_bytes)


def model_of(node: Node) -> Reference:
    """A reference arena in the same state, every page and every frame still read holding bytes of its own."""
    layout = node.state.layout
    model = Reference(layout)
    model.launched, model.retired = node.state.launched, node.state.retired
    for index, band in enumerate(model.bands):
        band.pages, band.waiting = dict(node.pages[index]), dict(node.waiting[index])
        band.pins.update(node.pins[index])
        frame_bytes = layout.bands[index].frame_bytes
        for page, frame in band.pages.items():
            model.table[page] = frame
            model.write(page)
        for number, frame in enumerate(band.waiting):
            left = bytes([index + 1, number + 1] * frame_bytes)[:frame_bytes]
            model.buffer[frame * frame_bytes : (frame + 1) * frame_bytes] = model.left_to_read[index, frame] = left
    return model


# --- in every state -----------------------------------------------------------------------------------------------------


def state_is_sound(world: World, node: Node) -> Iterator[str]:
    """Frames conserved; page ↔ frame one to one; spans are hulls, in order, disjoint, above the sink."""
    layout, edge = node.state.layout, node.state.layout.sink_bytes
    table = [0] * layout.ids_total
    for index, band in enumerate(node.state.bands):
        held = [*node.pages[index].values(), *node.waiting[index]]
        if len(set(held)) != len(held):
            yield f"frames: {band.name} holds a frame twice: {sorted(held)}"
        if any(not frame_is_legal(layout, index, frame) for frame in held):
            yield f"frames: {band.name} holds a frame outside the arena or in the sink: {sorted(held)}"
        if any(band_of(layout, page) != index for page in node.pages[index]):
            yield f"pages: {band.name} names a page of another band: {sorted(node.pages[index])}"
        hull = (min(held), max(held) + 1) if held else (0, 0)
        if (band.low, band.high) != hull:
            yield f"span: {band.name} covers [{band.low}, {band.high}), its hull is {hull}"
        counts = (band.live, band.quarantined, band.holes)
        expected = (len(node.pages[index]), len(node.waiting[index]), hull[1] - hull[0] - len(held))
        if counts != expected:
            yield f"counts: {band.name} (live, quarantined, holes) says {counts}, the sets are {expected}"
        if held and min(held) * band.spec.frame_bytes < edge:
            yield f"chain: {band.name} starts at frame {min(held)}, below byte {edge}"
        named = band.page_of.read(band.live_frames()) + band.home.id_base
        if dict(zip(named.tolist(), band.live_frames().tolist(), strict=True)) != node.pages[index]:
            yield f"pages: {band.name} finds {named.tolist()} in its frames, its pages are {node.pages[index]}"
        edge = hull[1] * band.spec.frame_bytes if held else edge
        for page, frame in node.pages[index].items():
            table[page] = frame
        if not set(node.pins[index]) <= set(node.pages[index]) or any(n < 1 for n in node.pins[index].values()):
            yield f"pins: {band.name} pins {node.pins[index]}"
    if node.state.table().tolist() != table:
        yield f"table: says {node.state.table().tolist()}, the pages are {table}"


def verify_is_quiet(world: World, node: Node) -> Iterator[str]:
    """The core's own cheap invariants find nothing."""
    yield from (f"verify: {violation.claim} {violation.text}" for violation in verify(node.state))


def capacity_is_obtainable(world: World, node: Node) -> Iterator[str]:
    """The most pages that one band can take is what brute force can place: now and after relief (a sample of states)."""
    pick = crc32(repr(node.key()).encode())
    if pick % SAMPLE:
        return
    index = pick // SAMPLE % len(world.frames)
    chain = chain_of(node, (0,) * len(world.frames))
    for mode, judged in ((NOW, brute.NOW), (RELIEF, brute.RELIEF)):
        said, true = obtainable(node.state, index, mode), brute.obtainable(chain, index, judged)
        if said != true:
            yield f"capacity: band {index} says {said} pages {mode}, {true} can be placed"


# --- on every transition ------------------------------------------------------------------------------------------------


def answer_is_exact(step: Step) -> Iterator[str]:
    """A demand is met if and only if some packing exists, with the fewest bytes moved; a fence is waited for only then."""
    event, result = step.event, step.result
    if event.kind not in ("allocate", "advance") or isinstance(result, ArenaError):
        return
    chain = chain_of(step.before, event.demand, event.pages)
    if event.fence is None:
        least, wait = brute.optimum_bytes(chain), None
    else:
        leaving = chain_of(step.before, event.demand) if event.pages else chain
        if event.pages:  # released frames wait for this reader, so they count as quarantined now
            leaving = _quarantine(step, leaving)
        now = brute.feasible(leaving, brute.NOW)
        least = 0 if now else brute.optimum_bytes(leaving, brute.after(event.fence))
        wait = None if now else event.fence
    if isinstance(result, Refusal):
        if least is not None:
            yield f"exact: refused, but {least} moved bytes make it fit"
        yield from _refusal_is_true(step, chain, result)
        return
    moved = sum(step.world.frames[band] for wave in result.plan.waves for band in wave[:, 0].tolist())
    if least is None:
        yield "exact: granted, but no packing exists"
    elif moved != least:
        yield f"optimum: moved {moved} bytes, {least} suffice"
    if result.plan.wait != wait:
        yield f"wait: the plan waits for {result.plan.wait}, needed is {wait}"
    if len(result.plan.waves) > max(1, len(step.world.frames) - 1):
        yield f"waves: {len(result.plan.waves)} for {len(step.world.frames)} bands"


def relief_is_bounded(step: Step) -> Iterator[str]:
    """No band moves more than the bytes asked, one frame of its own and one frame of every float."""
    event, result, frames = step.event, step.result, step.world.frames
    if event.kind not in ("allocate", "advance") or not isinstance(result, Outcome) or not result.plan.waves:
        return
    bands = [band for wave in result.plan.waves for band in wave[:, 0].tolist()]
    asked = sum(pages * size for pages, size in zip(event.demand, frames, strict=True))
    for band in set(bands):
        moved, bound = bands.count(band) * frames[band], asked + frames[band] + sum(frames[1:-1])
        if moved > bound:
            yield f"bound: band {band} moves {moved} bytes for {asked} asked; the bound is {bound}"


def _quarantine(step: Step, chain: brute.BruteChain) -> brute.BruteChain:
    """The chain once the event's pages are released under its reader."""
    bands = []
    for index, band in enumerate(chain.bands):
        gone = frozenset(step.before.pages[index][page] for page in step.event.pages if page in step.before.pages[index])
        fence = step.event.fence or 0
        waiting = {**band.quarantined, fence: band.quarantined.get(fence, frozenset()) | gone}
        bands.append(
            brute.BruteBand(band.frame_bytes, band.live - gone, waiting, band.pinned, band.ask, band.pages_min, band.pages_max)
        )
    return brute.BruteChain(tuple(bands), chain.total_bytes, chain.sink_bytes)


def _refusal_is_true(step: Step, chain: brute.BruteChain, refusal: Refusal) -> Iterator[str]:
    """Its fence is the first whose passing helps; its figures per band, in a sample of states, are what can be had."""
    state, event = step.before.state, step.event
    if event.fence is None and not event.pages:
        helping = [k for k in range(state.retired + 1, state.launched + 1) if brute.feasible(chain, brute.after(k))]
        if refusal.fence != (helping[0] if helping else None):
            yield f"advice: wait for fence {refusal.fence}; the first that helps is {helping[:1]}"
    if event.pages or crc32(repr(step.before.key()).encode()) % SAMPLE:
        return
    nothing = brute.with_ask(chain, (0,) * len(chain.bands))
    for index, band in enumerate(refusal.bands):
        figures = (band.wanted, band.now, band.after_relief)
        true = (
            event.demand[index],
            brute.obtainable(nothing, index, brute.NOW),
            brute.obtainable(nothing, index, brute.RELIEF),
        )
        if figures != true:
            yield f"figures: band {index} (wanted, now, after relief) says {figures}, true is {true}"


def _released(step: Step) -> tuple[int, ...]:
    """The pages that this event lets go."""
    if step.event.kind == "clear":
        return tuple(page for pages in step.before.pages for page in pages)
    return step.event.pages if step.event.kind in ("release", "advance") else ()


def sets_change_as_named(step: Step) -> Iterator[str]:
    """After an event, pages, quarantine and pins are those of before with exactly the named change, fences too."""
    event, result, before, after = step.event, step.result, step.before, step.after
    if not isinstance(result, Outcome):
        return
    wait = -1 if result.plan.wait is None else result.plan.wait
    passed = event.fence or 0 if event.kind == "retire" else wait
    if event.kind == "clear":
        passed = before.state.launched
    released = _released(step)
    step_of = {"pin": 1, "unpin": -1}.get(event.kind, 0)
    for index in range(len(step.world.frames)):
        kept = {page for page in before.pages[index] if page not in released}
        new = set(result.pages[index].tolist()) if result.pages else set()
        asked = event.demand[index] if event.demand else 0
        if len(new) != asked or new & kept or set(after.pages[index]) != kept | new:
            yield f"pages: band {index} had {kept} kept, {new} new, has {sorted(after.pages[index])}"
        waiting = dict(before.waiting[index])
        if released and event.fence is not None:
            waiting |= {before.pages[index][page]: event.fence for page in released if page in before.pages[index]}
        expected = {frame: fence for frame, fence in waiting.items() if fence > passed}
        if after.waiting[index] != expected:
            yield f"quarantine: band {index} should be {expected}, is {after.waiting[index]}"
        pins = {page: count for page, count in before.pins[index].items() if page not in released}
        for page in event.pages if step_of else ():
            if page in before.pages[index]:
                pins[page] = pins.get(page, 0) + step_of
        if after.pins[index] != {page: count for page, count in pins.items() if count}:
            yield f"pins: band {index} should be {pins}, is {after.pins[index]}"
    fences = (before.state.launched + (event.kind == "launch"), before.state.retired)
    if event.kind == "retire":
        fences = (fences[0], max(fences[1], event.fence or 0))
    elif event.kind == "clear":  # whatever still runs, nothing here is left for it to read
        fences = (fences[0], fences[0])
    if (after.state.launched, after.state.retired) != fences:
        yield f"fences: should be {fences}, are {(after.state.launched, after.state.retired)}"


def plan_does_the_event(step: Step) -> Iterator[str]:
    """The encoded plan, carried out on real bytes, leads exactly from one state to the other and loses no byte.

    A plan without moves and copies cannot touch a live byte: there, rows and fills are compared as sets instead.
    """
    event, result, before, after = step.event, step.result, step.before, step.after
    if not isinstance(result, Outcome):
        return
    plan = result.plan
    if plan.waves or len(plan.copies):
        model = model_of(before)
        try:
            model.absorb(
                encode(plan),
                released=_released(step),
                pages=result.pages or None,
                demand=event.demand or None,
                reader=event.fence,
                bytes_limit=event.limit,
            )
        except Disagreement as error:
            yield f"plan: {error}"
            return
        yield from (f"plan: {text}" for text in model.differences(after.pages, after.waiting, after.pins))
        return
    released = _released(step)
    new = {int(page): index for index, pages in enumerate(result.pages) for page in pages}
    frames = {page: after.pages[index].get(page, -1) for page, index in new.items()}
    rows = dict.fromkeys(released, -1) | frames
    fills = {(index, frames[page]) for page, index in new.items()}
    if sorted(map(tuple, plan.rows.tolist())) != sorted(rows.items()):
        yield f"plan: rows {plan.rows.tolist()}, should be {rows}"
    if sorted(plan.fills.tolist()) != sorted([index, frame, 0] for index, frame in fills):
        yield f"plan: fills {plan.fills.tolist()}, should zero {fills}"
    for index, kept in enumerate(before.pages):
        for page, frame in kept.items():
            if page not in released and after.pages[index].get(page) != frame:
                yield f"plan: page {page} leaves frame {frame} without a move"


def misuse_is_named(step: Step) -> Iterator[str]:
    """Wrong ids, pinned releases and future fences raise their own error; nothing else raises."""
    event, result, model = step.event, step.result, None
    names = {"release": "release", "advance": "release", "misuse": "release", "pin": "pin", "unpin": "unpin"}
    expected = frozenset({"outcome"})
    if event.kind == "misuse" and event.fence is not None:
        expected = frozenset({"FenceError"})
    elif event.kind in names and event.pages:
        bad = event.kind == "misuse" or any(page in pins for page in event.pages for pins in step.before.pins)
        if bad:
            model = model_of(step.before)
            expected = model.expect_pages(event.pages, to=names[event.kind])
    name = type(result).__name__ if isinstance(result, ArenaError) else "outcome"
    if name not in expected:
        yield f"misuse: {event.kind} of {event.pages} gave {name}, expected {sorted(expected)}"


def compaction_settles(step: Step) -> Iterator[str]:
    """Without a limit, a call per band leaves nothing to compact; with nothing immovable, the ends are packed at once.

    A float can be centred only after the neighbours that it moves between were packed, which is the call before.
    """
    event, result = step.event, step.result
    if event.kind != "compact" or event.limit is not None or not isinstance(result, Outcome):
        return
    again = result
    for _ in result.state.bands:
        following = compact(again.state)
        if not isinstance(following, Outcome) or not following.plan.moves:
            break
        again = following
    else:
        yield f"compact: call after call still moves {[wave.tolist() for wave in again.plan.waves]}"
    if any(step.before.waiting) or any(step.before.pins):
        return
    layout = result.state.layout
    low, high = result.state.bands[0], result.state.bands[-1]
    if low.live and (low.holes or low.low != -(-layout.sink_bytes // low.spec.frame_bytes)):
        yield f"compact: the low end covers [{low.low}, {low.high}) with {low.holes} holes"
    if len(layout.bands) > 1 and high.live and (high.holes or high.high != layout.total_bytes // high.spec.frame_bytes):
        yield f"compact: the high end covers [{high.low}, {high.high}) with {high.holes} holes"


STATE_CHECKS: tuple[StateCheck, ...] = (state_is_sound, verify_is_quiet, capacity_is_obtainable)
STEP_CHECKS: tuple[StepCheck, ...] = (
    answer_is_exact,
    relief_is_bounded,
    sets_change_as_named,
    plan_does_the_event,
    misuse_is_named,
    compaction_settles,
)
