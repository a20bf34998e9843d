"""The SGLang-shaped allocator over the arena: the calls an engine makes, its bytes, its capacity, its mistakes."""

import numpy as np
import pytest
import torch

from core_pure.capacity import Unit
from core_pure.errors import DemandError, DuplicatePage, ForeignPage, PageNotBound, PagePinned, SinkPage
from core_pure.geometry import BandGeometry, FullAttention, Layer, RecurrentState, StateTensor
from core_pure.layout import BandSpec, build_layout
from shell_gpu.adapters import SglangAllocator
from shell_gpu.arena import Arena, BuildOptions
from shell_gpu.errors import AlreadyPhysical, TensorError
from shell_gpu.ops import WriteLocs

PAGE = 4


def build(total=64 << 10, poison=True):
    """A hybrid of one attention and one state layer. Returns: arena, adapter of tokens, adapter of states."""
    full = BandGeometry("full", "full", None, PAGE, (Layer(0, FullAttention(2, 16, 16, "float32")),))
    state = BandGeometry("state", "state", None, 1, (Layer(1, RecurrentState((StateTensor("conv", (50, 4), "float32"),))),))
    layout = build_layout((BandSpec.of(full), BandSpec.of(state)), total)
    arena = Arena.build(layout, device="cpu", sequences=4, context=64, chunk=16, options=BuildOptions(poison=poison))
    return arena, SglangAllocator(arena, "full"), SglangAllocator(arena, "state")


def longs(*numbers):
    """A host int64 vector."""
    return torch.tensor(numbers, dtype=torch.int64)


class Tree:
    """A prefix cache as an evictor: units of token ids, oldest first, each with its state slot."""

    def __init__(self, tokens, states):
        self.tokens, self.states = tokens, states
        self.nodes = []
        self.evicted = 0

    def add(self, count):
        self.nodes.append((self.tokens.alloc(count), self.states.alloc(1)))
        return None not in self.nodes[-1]

    def units(self):
        names = self.tokens.arena.names
        pages = {"full": None, "state": 1}
        return [Unit(at, tuple({**pages, "full": len(ids) // PAGE}[name] for name in names))
                for at, (ids, _) in enumerate(self.nodes)]  # fmt: skip

    def evict(self, keys):
        for key in sorted(keys, reverse=True):
            ids, slot = self.nodes.pop(key)
            self.tokens.free(ids)
            self.states.free(slot)
            self.evicted += 1


def test_available_size_is_what_alloc_gives_and_no_more():
    """In any state on a random walk: alloc of all that is available succeeds, and of one page more is refused with a reason."""
    arena, tokens, states = build()
    random = np.random.default_rng(0)
    held = []
    for step in range(60):
        which = tokens if random.integers(3) else states
        if held and random.integers(2):
            owner, ids = held.pop(int(random.integers(len(held))))
            owner.free(ids)
        elif (ids := which.alloc(int(random.integers(1, 6)) * which.page_size)) is not None:
            held.append((which, ids))
        if step % 6 == 0:
            size = which.available_size()
            assert which.alloc(size + which.page_size) is None and which.last_refusal.band in arena.names
            everything = which.alloc(size)
            assert len(everything) == size and which.available_size() == 0
            if size:
                which.free(everything)
        assert tokens.verify_byte_accounting() == []
    for owner, ids in held:
        owner.free(ids)
    assert arena.report().live_bytes == 0


def test_bytes_follow_their_virtual_ids_through_every_move():
    """What was written at a translated id is read at its translation later, however often frames moved in between."""
    arena, tokens, _ = build()
    states = SglangAllocator(arena, "state")
    keys = arena.views["full"][0, "k"]
    random, held, moves = np.random.default_rng(1), {}, 0
    for number in range(1, 120):
        if len(held) > 4 and random.integers(2):
            ids, slot = held.pop(int(random.choice(list(held))))[:2]
            tokens.free(ids)
            states.free(slot)
        ids, slot = tokens.alloc(int(random.integers(1, 5)) * PAGE), states.alloc(1)
        if ids is None or slot is None:
            for one, owner in ((ids, tokens), (slot, states)):
                if one is not None:
                    owner.free(one)
        else:
            where = tokens.translate_kv_loc(ids)
            keys[where // PAGE, where % PAGE] = float(number)
            held[number] = (ids, slot)
        moves += arena.compact()
        for tag, (ids, _) in held.items():
            where = tokens.translate_kv_loc(ids)
            assert (keys[where // PAGE, where % PAGE] == tag).all()
    assert moves > 0


def test_extend_and_decode_fill_the_last_page_before_taking_another():
    """Prompts and decode steps get ids in order; pages taken are exactly those that the new lengths need."""
    arena, tokens, _ = build()
    ids = tokens.alloc_extend(longs(0, 0), longs(6, 3), longs(-1, -1), 9)
    first, second = ids[:6], ids[6:]
    assert arena.report().live_bytes == 3 * arena.layout.bands[tokens.band].frame_bytes
    assert (first % PAGE).tolist() == [0, 1, 2, 3, 0, 1] and (second % PAGE).tolist() == [0, 1, 2]
    third = tokens.alloc_decode(longs(7, 4), torch.stack((first[-1], second[-1])))
    assert third.tolist() == [int(first[-1]) + 1, int(second[-1]) + 1]
    fourth = tokens.alloc_decode(longs(8, 5), third)
    assert int(fourth[0]) == int(third[0]) + 1 and int(fourth[1]) % PAGE == 0 and int(fourth[1]) // PAGE != int(third[1]) // PAGE
    more = tokens.alloc_extend(longs(8), longs(15), fourth[:1])
    assert (more % PAGE).tolist() == [0, 1, 2, 3, 0, 1, 2] and len(set((more // PAGE).tolist())) == 2
    everyone = torch.cat((first, third[:1], fourth[:1], more))
    assert len(set(everyone.tolist())) == 15
    tokens.free(torch.cat((everyone, second, third[1:], fourth[1:])))
    assert arena.report().live_bytes == 0
    assert tokens.alloc_extend(longs(0), longs(100_000), longs(-1)) is None
    with pytest.raises(DemandError, match="no length falls"):
        tokens.alloc_extend(longs(5), longs(3), longs(4))
    with pytest.raises(DemandError, match="whole number of pages"):
        tokens.alloc(PAGE + 1)


def test_decode_capacity_evicts_jointly_and_a_yes_is_kept():
    """check_decode_capacity evicts the least, for tokens and states together; after a yes the allocations succeed."""
    _, tokens, states = build()
    tree = Tree(tokens, states)
    while tree.add(2 * PAGE):
        pass
    for one, owner in zip(tree.nodes.pop(), (tokens, states), strict=True):
        if one is not None:
            owner.free(one)
    before = len(tree.nodes)
    assert tokens.check_decode_capacity(num_tokens=3 * PAGE, tree_cache=tree, states=2)
    assert 0 < tree.evicted < before
    assert tokens.alloc(3 * PAGE) is not None and states.alloc(2) is not None
    assert tokens.evict_to_free_tokens(tree, PAGE) and tokens.alloc(PAGE) is not None
    kept = len(tree.nodes)
    assert not tokens.check_decode_capacity(num_tokens=tokens.size + PAGE, tree_cache=tree)
    assert len(tree.nodes) == kept, "an infeasible demand evicts nothing"
    assert not tokens.check_decode_capacity(num_tokens=tokens.available_size() + PAGE)


def test_misuse_is_named_and_changes_nothing():
    """Double free, padding, another band, a token named twice, a pinned page, ids of a wrong type or device: typed errors."""
    arena, tokens, states = build()
    ids, slots = tokens.alloc(2 * PAGE), states.alloc(2)
    gone = tokens.alloc(PAGE)
    tokens.free(gone)
    tokens.pin(ids[:0])  # of nothing: nothing is pinned
    tokens.pin(ids[:1])
    before = arena.state
    for owner, wrong, error in (
        (tokens, gone, PageNotBound),
        (tokens, longs(0), SinkPage),
        (tokens, longs(-1), SinkPage),
        (tokens, longs(tokens.largest_id + 1), ForeignPage),
        (tokens, torch.cat((ids[PAGE:], ids[-1:])), DuplicatePage),
        (tokens, ids, PagePinned),
        (tokens, slots * PAGE, ForeignPage),
        (states, torch.unique(ids // PAGE), ForeignPage),
        (states, slots.float(), TensorError),
        (states, slots.to("meta"), TensorError),
        (states, slots.view(2, 1), TensorError),
    ):
        with pytest.raises(error):
            owner.free(wrong)
        assert arena.state == before and arena.state is before
    tokens.unpin(ids[:1])
    tokens.free(ids)
    states.free(slots)
    assert arena.report().live_bytes == 0


def test_free_groups_are_one_plan_and_all_or_nothing():
    """Frees between begin and end are applied together; one bad id in the group frees none of it."""
    arena, tokens, _ = build()
    a, b = tokens.alloc(PAGE), tokens.alloc(2 * PAGE)
    tokens.free_group_begin()
    with pytest.raises(DemandError, match="nested"):
        tokens.free_group_begin()
    tokens.free(a)
    tokens.free(b[:PAGE])
    tokens.free(b[PAGE:])
    assert tokens.is_slot_allocated(int(a[0]))
    tokens.free_group_end()
    assert arena.report().live_bytes == 0 and not tokens.is_slot_allocated(int(a[0]))
    c = tokens.alloc(PAGE)
    tokens.free_group_begin()
    tokens.free(c)
    tokens.free(longs(0))
    with pytest.raises(SinkPage):
        tokens.free_group_end()
    assert tokens.is_slot_allocated(int(c[0]))
    tokens.clear()
    assert arena.report().live_bytes == 0 and not tokens.is_slot_allocated(int(c[0]))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_F16_unmapped_token_ids_give_the_padding_lane(dtype):
    """-1, 0, freed and out-of-range tokens translate to 0, in place too; a held one to its frame and offset."""
    arena, tokens, _ = build()
    ids, gone = tokens.alloc(PAGE), tokens.alloc(PAGE)
    tokens.free(gone)
    frame = int(arena.state.frames_of((ids[:1] // PAGE).numpy())[0])
    wrong = [-1, 0, PAGE - 1, int(gone[0]), tokens.largest_id + 1, 2**31 - 1]
    loc = torch.tensor([*wrong, *ids.tolist()], dtype=dtype)
    wanted = [0] * len(wrong) + [frame * PAGE + place for place in range(PAGE)]
    assert tokens.translate_kv_loc(loc).tolist() == wanted
    table = loc.long().view(2, -1)
    assert tokens.translate_kv_loc(table, out=table) is table and table.flatten().tolist() == wanted
    with pytest.raises(AlreadyPhysical):
        tokens.translate_kv_loc(WriteLocs(arena.names, arena.tables.write_slots, 1))
