"""The arena as dictionaries and a bytearray: what every event must mean, written from the design alone.

Driven beside the core. ``expect_*`` says beforehand which verdicts are right ("outcome", "refusal", or names of error
classes; misuse may break two rules at once). ``absorb`` takes the encoded plan that the core gave, carries it out on
real bytes, and raises ``Disagreement`` when a page lost a byte, an id or frame is unsound, or the plan does not do
what the event means. Which frames are used is the core's choice; everything else is determined here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from attrs import define, field

from .interpreter import LayoutLike, Occupancy, PlanText, band_of, check_hazards, read_plan, run_plan

OUTCOME, REFUSAL = frozenset({"outcome"}), frozenset({"refusal"})
SCRIBBLE = b"\xa5"  # what a free frame holds: not zero, so that a missing fill shows


class Disagreement(AssertionError):
    """The core did something else than the reference says."""


@define
class ReferenceBand:
    """One band's sets. Units: page ids, frames, fences."""

    pages: dict[int, int] = field(factory=dict)  # page id -> frame
    waiting: dict[int, int] = field(factory=dict)  # quarantined frame -> fence
    pins: Counter[int] = field(factory=Counter)  # page id -> count


def _check(holds: bool, text: str) -> None:
    if not holds:
        raise Disagreement(text)


class Reference:
    """Mutable model of one arena; ``launched`` and ``retired`` are the newest fences, 0 for none (a launch adds 1)."""

    def __init__(self, layout: LayoutLike) -> None:
        self.layout = layout
        self.bands = [ReferenceBand() for _ in layout.bands]
        self.buffer = bytearray(SCRIBBLE * layout.total_bytes)
        self.table = [0] * (1 + sum(layout.frames_max))
        self.contents: dict[int, bytes] = {}  # page id -> bytes last written
        self.left_to_read: dict[tuple[int, int], bytes] = {}  # quarantined (band, frame) -> bytes
        self.launched = self.retired = self.writes = 0

    # --- what is expected ---------------------------------------------------------------------------------------------

    def fits(self, demand: Sequence[int], *, now: bool = False, fence: int = -1, leaving: Iterable[int] = ()) -> bool:
        """Is there a packing? Each band in turn tries every first frame and keeps the lowest end.

        Exact: a lower end of one band never takes a possibility away from the bands above it.
        fence: quarantine up to it counts as hole. leaving: page ids that are released first.
        """
        edge, gone = self.layout.sink_bytes, set(leaving)
        for index, band in enumerate(self.bands):
            spec = self.layout.bands[index]
            frames_total = self.layout.total_bytes // spec.frame_bytes
            kept = {page: frame for page, frame in band.pages.items() if page not in gone}
            waiting = {frame for frame, until in band.waiting.items() if until > fence}
            stay = waiting | {frame for page, frame in kept.items() if now or band.pins[page]}
            pages_max = getattr(spec, "pages_max", None)
            if demand[index] and pages_max is not None and len(kept) + demand[index] > pages_max:
                return False
            need = max(len(kept) + len(waiting) + demand[index], getattr(spec, "pages_min", 0))
            lowest, top = min(stay, default=frames_total), max(stay, default=-1) + 1
            ends = [
                high * spec.frame_bytes
                for low in range(min(lowest, frames_total - 1) + 1)
                for high in [max(low + need, top)]
                if low * spec.frame_bytes >= edge and high <= frames_total
            ]
            if need:
                if not ends:
                    return False
                edge = min(ends)
        return True

    def expect_pages(self, pages: Sequence[int], *, to: str = "release") -> frozenset[str]:
        """Verdicts on naming these pages to "release", "pin" or "unpin" them: every broken rule, or "outcome"."""
        wrong: set[str] = set()
        for page in pages:
            owner = band_of(self.layout, page)
            if page <= 0:
                wrong.add("SinkPage")
            elif owner is None:
                wrong.add("ForeignPage")
            elif page not in self.bands[owner].pages:
                wrong.add("PageNotBound")
            elif to == "release" and self.bands[owner].pins[page]:
                wrong.add("PagePinned")
            elif to == "unpin" and self.bands[owner].pins[page] < pages.count(page):
                wrong.add("PinError")
        if to == "release" and len(set(pages)) < len(pages):
            wrong.add("DuplicatePage")
        return frozenset(wrong) or OUTCOME

    def expect_advance(self, released: Sequence[int], demand: Sequence[int], *, reader: int | None = None) -> frozenset[str]:
        """Verdict of one step: misuse first, then feasibility once the released pages are gone."""
        wrong: set[str] = set()
        if len(demand) != len(self.bands) or any(type(pages) is not int or pages < 0 for pages in demand):
            wrong.add("DemandError")
        if reader is not None and not self.retired < reader <= self.launched:
            wrong.add("FenceError")
        if wrong := wrong | (self.expect_pages(released) - OUTCOME):
            return frozenset(wrong)
        return OUTCOME if self.fits(demand, fence=-1 if reader is None else reader, leaving=released) else REFUSAL

    # --- what has happened --------------------------------------------------------------------------------------------

    def occupancy(self) -> Occupancy:
        """Who holds which frames now."""
        waiting: list[dict[int, frozenset[int]]] = [{} for _ in self.bands]
        for fences, band in zip(waiting, self.bands, strict=True):
            for frame, fence in band.waiting.items():
                fences[fence] = fences.get(fence, frozenset()) | {frame}
        pinned = tuple(frozenset(+band.pins) for band in self.bands)
        return Occupancy(tuple(dict(band.pages) for band in self.bands), tuple(waiting), pinned)

    def absorb(
        self,
        words: Iterable[int],
        *,
        released: Sequence[int] = (),
        pages: Sequence[Iterable[int]] | None = None,
        demand: Sequence[int] | None = None,
        reader: int | None = None,
        bytes_limit: int | None = None,
        written: Sequence[int] | None = None,
    ) -> PlanText:
        """Carry out the plan of an accepted release, allocate, advance or compact; raise what is wrong with it.

        pages: the new page ids per band as the core reports them. bytes_limit: the most bytes the plan may move.
        written: for a compaction beside ``reader``, the pages that this step writes.
        """
        words = [int(word) for word in words]
        for hazard in check_hazards(words, self.occupancy(), self.layout, released=released, reader=reader, written=written):
            raise Disagreement(hazard)
        plan, wanted = read_plan(words), [0] * len(self.bands) if demand is None else list(demand)
        moved = sum(self.layout.bands[band].frame_bytes for band, _, _ in plan.moves)
        _check(bytes_limit is None or moved <= bytes_limit, f"{moved} bytes moved, {bytes_limit} allowed")
        self._let_go(set(released), reader)
        if plan.wait is not None and demand is not None:  # a compaction that waits leaves older quarantine alone
            self._pass(plan.wait)
        in_use = {(index, f) for index, band in enumerate(self.bands) for f in [*band.pages.values(), *band.waiting]}
        run_plan(words, self.buffer, self.table, self.layout, in_use)
        landed = {(band, source): target for band, source, target in plan.moves}
        for index, band in enumerate(self.bands):
            if reader is not None and plan.wait is None:  # moved beside the reader, which still reads the old frames
                band.waiting |= {frame: reader for moved, frame in landed if moved == index}
                self.left_to_read |= {place: self._read(*place) for place in landed if place[0] == index}
            band.pages = {page: landed.get((index, frame), frame) for page, frame in band.pages.items()}
        self._bind(plan, [[int(page) for page in new] for new in pages or [()] * len(self.bands)], wanted)
        self.check()
        return plan

    def _let_go(self, gone: set[int], reader: int | None) -> None:
        for index, band in enumerate(self.bands):
            for page in gone & band.pages.keys():
                frame = band.pages.pop(page)
                content = self.contents.pop(page)
                if reader is None:
                    self._write(index, frame, SCRIBBLE * len(content))
                else:
                    band.waiting[frame] = reader
                    self.left_to_read[index, frame] = content

    def _pass(self, fence: int) -> None:
        for index, band in enumerate(self.bands):
            for frame in [frame for frame, until in band.waiting.items() if until <= fence]:
                del band.waiting[frame]
                self._write(index, frame, SCRIBBLE * len(self.left_to_read.pop((index, frame))))

    def _bind(self, plan: PlanText, pages: list[list[int]], demand: list[int]) -> None:
        kept = {page for band in self.bands for page in band.pages}
        new = {page: frame for page, frame in plan.rows if frame != -1 and page not in kept}
        copied = {(band, target): source for band, source, target in plan.copies}
        _check([len(ids) for ids in pages] == demand, f"{pages} handed out for demand {demand}")
        _check(sorted(page for ids in pages for page in ids) == sorted(new), f"rows bind {new}, pages are {pages}")
        for index, page in ((index, page) for index, ids in enumerate(pages) for page in ids):
            frame = new[page]
            _check(band_of(self.layout, page) == index, f"page {page} is no id of band {index}")
            found = self._read(index, frame)
            if (index, frame) in copied:
                _check(found == self._read(index, copied[index, frame]), f"page {page} is no copy of its source")
            elif self.layout.bands[index].zero_on_bind:
                _check(not any(found), f"page {page} of band {index} is handed out dirty")
            self.bands[index].pages[page] = frame
            self.write(page, found if (index, frame) in copied else None)

    def write(self, page: int, content: bytes | None = None) -> None:
        """The holder fills its page, with bytes never used before unless some are given."""
        index = band_of(self.layout, page) or 0
        self.writes += 1
        length = self.layout.bands[index].frame_bytes
        fresh = ((self.writes * 2654435761 % 2**32).to_bytes(4, "little") * length)[:length]
        self.contents[page] = fresh if content is None else content
        self._write(index, self.bands[index].pages[page], self.contents[page])

    def pin(self, pages: Iterable[int], count: int) -> None:
        """Add ``count`` pins (-1 gives one back) on each page."""
        for page in pages:
            self.bands[band_of(self.layout, page) or 0].pins[page] += count

    def retire(self, fence: int) -> None:
        """Every fence up to this one has passed."""
        self.retired = max(self.retired, fence)
        self._pass(fence)

    # --- what must hold -----------------------------------------------------------------------------------------------

    def _read(self, band: int, frame: int) -> bytes:
        frame_bytes = self.layout.bands[band].frame_bytes
        return bytes(self.buffer[frame * frame_bytes : (frame + 1) * frame_bytes])

    def _write(self, band: int, frame: int, content: bytes) -> None:
        start = frame * self.layout.bands[band].frame_bytes
        self.buffer[start : start + len(content)] = content

    def check(self) -> None:
        """Every byte of every page and of every frame still read is there; the table says where; bands are in order."""
        edge, table = self.layout.sink_bytes, [0] * len(self.table)
        _check(not self.buffer[:edge].strip(SCRIBBLE), "the sink was written")
        for index, band in enumerate(self.bands):
            for page, frame in band.pages.items():
                table[page] = frame
                _check(self._read(index, frame) == self.contents[page], f"page {page} lost its bytes in frame {frame}")
            for frame in band.waiting:
                left = self.left_to_read[index, frame]
                _check(self._read(index, frame) == left, f"band {index} frame {frame} changed under its reader")
            frames = [*band.pages.values(), *band.waiting]
            _check(len(set(frames)) == len(frames), f"band {index} has two holders of one frame")
            if frames:
                frame_bytes = self.layout.bands[index].frame_bytes
                _check(min(frames) * frame_bytes >= edge, f"band {index} starts below byte {edge}")
                edge = (max(frames) + 1) * frame_bytes
        _check(edge <= self.layout.total_bytes, f"the top band ends at {edge}")
        _check(table == list(self.table), "the table differs from the pages' frames")

    def differences(self, pages: Sequence[object], waiting: Sequence[object], pins: Sequence[object]) -> Iterator[str]:
        """What another account says otherwise, per band: {page: frame}, {frame: fence}, {page: pins above 0}."""
        for index, band in enumerate(self.bands):
            own, other = (band.pages, band.waiting, dict(+band.pins)), (pages[index], waiting[index], pins[index])
            if own != other:
                yield f"band {index} (pages, quarantine, pins): {own} here, {other} there"
