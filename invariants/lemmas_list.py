"""Lemmas about names and addresses, and the list of all lemmas."""

from __future__ import annotations

import z3

from . import lemmas as chain
from .lemmas import Formula, Lemma, Term

ARENA_LIMIT = 1 << 40  # bytes: 1 TiB, several times the memory of any accelerator
INT32, INT64 = 1 << 31, 1 << 63
TILE_MIN, TILE_MAX = 1 << 8, 1 << 13  # words of 8 bytes that one program of a kernel touches at once
SLOT_BITS = 20
WORD_BYTES, UNIT_WORDS = 8, 2


def page_id(bases: list[Term], band: Term, index: Term) -> Term:
    """Global page id of an index of one of three bands: ``layout.id_bases[band] + index``."""
    return index + z3.If(band == 0, bases[0], z3.If(band == 1, bases[1], bases[2]))


def ids_are_a_bijection(wrong: bool = False) -> Formula:
    """Three bands of any sizes: (band, index) ↔ id is one to one, onto 1 … total, and never the sink's 0."""
    sizes = list(z3.Ints("n0 n1 n2"))
    bases = [z3.IntVal(0), sizes[0] - (1 if wrong else 0), sizes[0] + sizes[1]]
    band, index, band_b, index_b, some = z3.Ints("band index band_b index_b some")

    def is_page(b: Term, i: Term) -> Formula:
        most = z3.If(b == 0, sizes[0], z3.If(b == 1, sizes[1], sizes[2]))
        return z3.And(0 <= b, b <= 2, 1 <= i, i <= most)

    total = sum(sizes)
    here, there = page_id(bases, band, index), page_id(bases, band_b, index_b)
    once = z3.Implies(
        z3.And(here == there, is_page(band, index), is_page(band_b, index_b)), z3.And(band == band_b, index == index_b)
    )
    inside = z3.Implies(is_page(band, index), z3.And(1 <= here, here <= total))
    owned = z3.Or(*(z3.And(some > bases[b], some <= bases[b] + sizes[b]) for b in range(3)))
    onto = z3.Implies(z3.And(1 <= some, some <= total), owned)
    return z3.Implies(z3.And(*(n >= 0 for n in sizes)), z3.And(once, inside, onto))


def slots_are_a_bijection(wrong: bool = False) -> Formula:
    """Two write slots ``frame · slots + place`` are equal only for the same frame and the same place in it."""
    frame, other, place, place_b, slots = z3.Ints("frame other place place_b slots")
    bound = slots if wrong else slots - 1
    known = z3.And(slots >= 1, 0 <= place, place <= bound, 0 <= place_b, place_b <= bound)
    same = frame * slots + place == other * slots + place_b
    return z3.Implies(z3.And(known, same), z3.And(frame == other, place == place_b))


def frames_are_disjoint(wrong: bool = False) -> Formula:
    """Two frames of one band share no byte; with the sink below the first frame, none of them touches it."""
    frame, other, size, sink, low = z3.Ints("frame other size sink low")
    known = z3.And(size >= 1, 0 <= frame, frame < other, chain.ceiling_of(sink, size, low), low <= frame)
    apart = (frame + 1) * size <= other * size - (1 if wrong else 0)
    return z3.Implies(known, z3.And(apart, frame * size >= sink))


def handles_are_a_bijection(wrong: bool = False) -> Formula:
    """serial · 2²⁰ + slot names one serial and one slot, and fits in int64 for 2⁴² serials."""
    serial, other, slot, slot_b = z3.Ints("serial other slot slot_b")
    limit = 1 << (SLOT_BITS + 1 if wrong else SLOT_BITS)
    known = z3.And(0 <= slot, slot < limit, 0 <= slot_b, slot_b < limit, 0 <= serial, serial < 1 << 42)
    handle = serial * (1 << SLOT_BITS) + slot
    same = handle == other * (1 << SLOT_BITS) + slot_b
    return z3.Implies(known, z3.And(z3.Implies(same, z3.And(serial == other, slot == slot_b)), handle < INT64))


def _word(frame: Term, units: Term, offset: Term) -> list[Term]:
    """The intermediate values of ``frame · units · 2 + offset`` as the kernels compute it, units of 16 bytes."""
    return [frame * units, frame * units * UNIT_WORDS, frame * units * UNIT_WORDS + offset]


def kernel_words_fit(wrong: bool = False) -> Formula:
    """move_wave, finish_plan: every value on the way to a word of the arena stays in [0, 2⁶³), masked lanes too."""
    frame, units, total, offset, tile = z3.Ints("frame units total offset tile")
    known = [units >= 1, 0 <= frame, (frame + 1) * units * UNIT_WORDS * WORD_BYTES <= total, total <= ARENA_LIMIT]
    known += [TILE_MIN <= tile, tile <= TILE_MAX, 0 <= offset, offset < units * UNIT_WORDS + tile]
    limit = INT32 if wrong else INT64
    return z3.Implies(z3.And(*known), z3.And(*(z3.And(0 <= value, value < limit) for value in _word(frame, units, offset))))


def kernel_tiles_fit(wrong: bool = False) -> Formula:
    """The count of tiles of one wave or fill, tiles · rows, stays in int32: rows are disjoint frames of the arena."""
    words, rows, tiles, total, tile = z3.Ints("words rows tiles total tile")
    known = [words >= 1, rows >= 0, rows * words * WORD_BYTES <= total, total <= ARENA_LIMIT, tile == TILE_MIN]
    known += [chain.ceiling_of(words, tile, tiles)]
    known += [] if wrong else [rows < 1 << 30]
    return z3.Implies(z3.And(*known), tiles * rows < INT32)


def store_addresses_fit(wrong: bool = False) -> Formula:
    """store_rows: frame · frame stride + place · slot stride + item stays in the frame's bytes, and in [0, 2⁶³)."""
    frame, stride, slot_stride, place, item, slots, items, total = z3.Ints("frame stride slot_stride place item slots items total")
    known = [0 <= frame, 1 <= items, items <= slot_stride, slots >= 1, slots * slot_stride <= stride]
    known += [0 <= place, place < slots, 0 <= item, item < items, (frame + 1) * stride <= total, total <= ARENA_LIMIT]
    at = frame * stride + place * slot_stride + item
    inside = z3.And(frame * stride <= at, at < (frame + 1) * stride - (slot_stride if wrong else 0))
    return z3.Implies(z3.And(*known), z3.And(inside, 0 <= at, at < INT64))


def write_slots_fit(wrong: bool = False) -> Formula:
    """translate: frame · slots + place fits in int64 for int32 frames and slots."""
    frame, slots, place = z3.Ints("frame slots place")
    known = z3.And(0 <= frame, frame < INT32, 1 <= slots, slots < INT32, 0 <= place, place < slots)
    return z3.Implies(known, frame * slots + place < (INT32 if wrong else INT64))


_ANY = "all integers"
_WALK = ("core_pure.chain.edge_above", "core_pure.chain.refused_at")

LEMMAS: tuple[Lemma, ...] = (
    Lemma("refused-2", "two bands: if any placement exists, nothing is refused", _WALK,
          lambda: chain.refused_means_impossible(2), lambda: chain.refused_means_impossible(2, True), "all sizes, two bands"),
    Lemma("refused-3", "three bands: if any placement exists, nothing is refused", _WALK,
          lambda: chain.refused_means_impossible(3), lambda: chain.refused_means_impossible(3, True), "all sizes, three bands"),
    Lemma("least-step", "one step of the walk ends no higher than any rival window", _WALK,
          chain.step_is_least, lambda: chain.step_is_least(True), "all sizes, any number of bands by induction"),
    Lemma("disjoint-2", "two bands: a walk that succeeds is a placement, in order and disjoint", _WALK,
          lambda: chain.walk_is_a_placement(2), lambda: chain.walk_is_a_placement(2, True), "all sizes, two bands"),
    Lemma("disjoint-3", "three bands: a walk that succeeds is a placement, in order and disjoint", _WALK,
          lambda: chain.walk_is_a_placement(3), lambda: chain.walk_is_a_placement(3, True), "all sizes, three bands"),
    Lemma("windows-iff", "walking up from an edge succeeds exactly when the ceiling found walking down is at or above it",
          ("core_pure.chain.edge_above", "core_pure.chain.edge_below", "core_pure.chain.ceilings"),
          chain.ceilings_are_reached, lambda: chain.ceilings_are_reached(True), "all sizes, any number of bands by induction"),
    Lemma("windows-step", "a window of ``windows`` keeps its hull and need between its neighbours",
          ("core_pure.chain.window", "core_pure.chain.windows"),
          chain.windows_step, lambda: chain.windows_step(True), "all sizes, any number of bands by induction"),
    Lemma("monotone", "more need, a wider hull or a higher edge never turns a no into a yes", _WALK,
          chain.walking_is_monotone, lambda: chain.walking_is_monotone(True), "all sizes, any number of bands by induction"),
    Lemma("room-most", "room is obtainable, and no window between the same neighbours holds more", ("core_pure.chain.room",),
          chain.room_is_most, lambda: chain.room_is_most(True), "all sizes, any number of bands by induction"),
    Lemma("ids-bijection", "page ids name one band and one index each, and all of 1 … total", ("core_pure.layout.Layout.id_bases",),
          ids_are_a_bijection, lambda: ids_are_a_bijection(True), "all sizes, three bands"),
    Lemma("slots-bijection", "a write slot names one frame and one place", ("core_pure.step.write_slots",),
          slots_are_a_bijection, lambda: slots_are_a_bijection(True), _ANY),
    Lemma("frames-disjoint", "frames of one band share no byte, with each other or with the sink", ("core_pure.state.first_frame",),
          frames_are_disjoint, lambda: frames_are_disjoint(True), _ANY),
    Lemma("handles-bijection", "a lease handle names one serial and one slot", ("core_pure.leases.open_leases",),
          handles_are_a_bijection, lambda: handles_are_a_bijection(True), "2⁴² serials, 2²⁰ slots"),
    Lemma("move-64", "addresses of moves and fills do not overflow 64 bits",
          ("shell_gpu.kernels.frames.move_wave", "shell_gpu.kernels.frames.finish_plan"),
          kernel_words_fit, lambda: kernel_words_fit(True), "arenas up to 1 TiB"),
    Lemma("tiles-32", "the number of tiles of a wave fits in 32 bits", ("shell_gpu.kernels.frames.move_wave",),
          kernel_tiles_fit, lambda: kernel_tiles_fit(True), "arenas up to 1 TiB, up to 2³⁰ rows"),
    Lemma("store-64", "a stored row stays in its frame and does not overflow 64 bits", ("shell_gpu.kernels.store.store_rows",),
          store_addresses_fit, lambda: store_addresses_fit(True), "arenas up to 1 TiB"),
    Lemma("slots-64", "write slots do not overflow 64 bits", ("shell_gpu.kernels.translate.translate_step",),
          write_slots_fit, lambda: write_slots_fit(True), "int32 frames and slots"),
)  # fmt: skip
