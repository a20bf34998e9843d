"""Every claim, once: its id, one sentence, what checks it, for which transitions, and the planted bug that it must notice.

The ids are those that violations carry. ``matrix`` lays transitions against claims; a cell names what checks it. State claims are
checked in the state *after* every transition, so they cover all of them by the same code.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from core_pure.event import KINDS

STATE, TRANSITION, RUN, SERVING = "state", "transition", "run", "serving"
ALL = KINDS
MOVERS = ("allocate", "advance", "compact", "resize")
TAKERS = ("allocate", "advance", "copy")
GIVERS = ("release", "advance", "clear")


@frozen
class Claim:
    """One claim. predicate: "module.function" that yields violations. kinds: transitions it says something about.

    mutant: the planted bug that it must notice, "" where a twin of its proof stands for it. written: the argument for the cells
    where no check applies, by transition.
    """

    id: str
    sentence: str
    scope: str
    predicate: str
    kinds: tuple[str, ...]
    mutant: str


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "LIVE-1",
        "the live count is the number of frames that hold a page",
        STATE,
        "plain.counts_are_those_of_the_tables",
        ALL,
        "live-drifts",
    ),
    Claim(
        "HOLE-1",
        "per block, the hole count is the number of free frames inside the hull",
        STATE,
        "plain.counts_are_those_of_the_tables",
        ALL,
        "holes-drift",
    ),
    Claim(
        "FRAME-1",
        "live, hole, quarantined and outside partition the frames [first, total // frame_bytes)",
        STATE,
        "plain.frames_are_conserved",
        ALL,
        "resize-forgotten",
    ),
    Claim(
        "QUAR-1",
        "quarantined frames are those of the batches, each once, and none is older than what retired",
        STATE,
        "plain.quarantine_is_listed",
        ALL,
        "quarantine-loses-frame",
    ),
    Claim("EDGE-1", "a span is the hull of what is live or quarantined", STATE, "plain.span_is_the_hull", ALL, "edge-stays"),
    Claim(
        "PAGE-1",
        "page to frame and frame to page are inverse on live pages",
        STATE,
        "plain.tables_are_inverse",
        ALL,
        "source-not-freed",
    ),
    Claim("IDS-1", "every id ever used is bound or free, once", STATE, "plain.ids_are_used_once", ALL, "id-lost"),
    Claim(
        "PIN-1",
        "pins are positive, on bound pages, and inside the immovable hull",
        STATE,
        "plain.pins_are_of_live_pages",
        ALL,
        "hull-one-short",
    ),
    Claim("CHAIN-1", "bands are ordered, disjoint and inside the arena", STATE, "plain.chain_is_ordered", ALL, "bands-overlap"),
    Claim("SINK-1", "no band reaches into the sink", STATE, "plain.chain_is_ordered", ALL, "edge-rounds-down"),
    Claim(
        "BYTES-1",
        "live + hole + quarantined + gaps + sink = total bytes",
        STATE,
        "plain.bytes_are_conserved",
        ALL,
        "report-loses-a-byte",
    ),
    Claim(
        "FIT-1",
        "an allocation succeeds exactly when a packing exists",
        TRANSITION,
        "expected.expectation",
        (*TAKERS, "resize"),
        "top-frame-lost",
    ),
    Claim(
        "MISUSE-1",
        "a wrong id, pin or fence raises its own error and nothing else does",
        TRANSITION,
        "expected.expectation",
        ALL,
        "double-free",
    ),
    Claim(
        "INPUT-1",
        "a transition leaves the value it was given, and older ones, as they were",
        TRANSITION,
        "checked.Checked._inputs",
        ALL,
        "old-value-corrupt",
    ),
    Claim(
        "SETS-1",
        "pages, quarantine, pins and fences change exactly as the event says",
        TRANSITION,
        "checked.agreement",
        ALL,
        "launch-forgotten",
    ),
    Claim(
        "PLAN-1",
        "a plan is canonical and free of hazards: targets, order, waits, rows, fills",
        TRANSITION,
        "interpreter.check_hazards",
        ALL,
        "all-in-one-wave",
    ),
    Claim(
        "PLAN-2", "replaying the plan on the old table gives the new one", TRANSITION, "checked.agreement", ALL, "last-id-missed"
    ),
    Claim(
        "BYTE-1",
        "every live byte, and every byte still read, survives every plan",
        TRANSITION,
        "reference.Reference.check",
        ALL,
        "mover-forgotten",
    ),
    Claim(
        "BYTE-2",
        "a page of a band that zeroes is handed out zeroed",
        TRANSITION,
        "reference.Reference._bind",
        TAKERS,
        "never-zeroed",
    ),
    Claim("SINK-2", "the sink is never written", TRANSITION, "reference.Reference.check", ALL, "edge-rounds-down"),
    Claim(
        "RELIEF-1",
        "relief moves the fewest bytes that make the demand fit, in at most bands - 1 waves",
        TRANSITION,
        "checked.relief_is_optimal",
        ("allocate", "advance", "resize"),
        "cost-below-free",
    ),
    Claim(
        "WAIT-1",
        "a reader is waited for exactly when nothing fits without",
        TRANSITION,
        "checked.relief_is_optimal",
        TAKERS,
        "wait-forgotten",
    ),
    Claim(
        "LIMIT-1",
        "compaction moves at most its byte limit",
        TRANSITION,
        "reference.Reference.absorb",
        ("compact",),
        "compact-no-limit",
    ),
    Claim(
        "REFUSE-1",
        "a refusal's figures and fence are true, and following them works",
        TRANSITION,
        "checked.refusal_is_true",
        TAKERS,
        "joint-too-small",
    ),
    Claim(
        "CAP-1",
        "the capacity reported is the capacity obtainable",
        TRANSITION,
        "checked.capacity_is_obtainable",
        ALL,
        "room-one-more",
    ),
    Claim(
        "ADMIT-1",
        "requests that a budget accepted are allocated together",
        TRANSITION,
        "checked.prefix_is_allocatable",
        ALL,
        "fold-forgets",
    ),
    Claim(
        "PROGRESS-1",
        "the empty arena admits exactly what fits alone",
        TRANSITION,
        "checked.prefix_is_allocatable",
        ALL,
        "empty-arena-shy",
    ),
    Claim(
        "DIGEST-1",
        "the same events give the same digest and state, other events another digest",
        RUN,
        "runs.digest_is_reproducible",
        ALL,
        "digest-without-reader",
    ),
    Claim(
        "UNDO-1",
        "undoing a plan restores the table, and the bytes of every page that lived before and after",
        TRANSITION,
        "checked.undone",
        ("allocate", "advance", "resize", "copy"),
        "undo-in-forward-order",
    ),
    Claim(
        "LEASE-1",
        "leases hold, position by position, what their tokens need; a page goes with its last holder",
        SERVING,
        "serving.ServingWalk.agrees",
        ("advance", "copy"),
        "last-but-one-holder",
    ),
    Claim(
        "SLOT-1",
        "write slots and block tables are the frames of the pages that the tokens lie in",
        SERVING,
        "serving.ServingWalk.slots_are_right",
        ("advance", "copy"),
        "slot-off-by-one",
    ),
    Claim(
        "LAZY-1",
        "lazy and eager end with the same pages bound and the same bytes in them",
        RUN,
        "runs.lazy_is_eager",
        ("allocate", "release", "advance", "compact"),
        "",
    ),
    Claim(
        "WORLD-1",
        "in every state, every event does what brute force says",
        TRANSITION,
        "world_checks.answer_is_exact",
        ("allocate", "release", "advance", "compact", "pin", "unpin", "launch", "retire"),
        "quarantine-not-counted",
    ),
)


BY_ID = {claim.id: claim for claim in CLAIMS}


COLUMNS = {
    "walks": "random walks (kvarena campaign; tests/test_campaign.py)",
    "machine": "Hypothesis machine (tests/test_machines.py)",
    "worlds": "exhausted small worlds (tests/test_small_worlds.py)",
    "serving": "serving walks (invariants/serving.py; tests/test_mutants.py)",
    "argument": "written argument",
}
WORLD_KINDS = ("allocate", "release", "advance", "compact", "pin", "unpin", "launch", "retire", "clear")
WORLD_CLAIMS = (
    "LIVE-1",
    "FRAME-1",
    "QUAR-1",
    "EDGE-1",
    "PAGE-1",
    "PIN-1",
    "CHAIN-1",
    "SINK-1",
    "FIT-1",
    "MISUSE-1",
    "INPUT-1",
    "SETS-1",
    "PLAN-1",
    "PLAN-2",
    "BYTE-1",
    "BYTE-2",
    "RELIEF-1",
    "WAIT-1",
    "LIMIT-1",
    "REFUSE-1",
    "CAP-1",
    "WORLD-1",
)
ONLY_WORLDS = ("WORLD-1",)
ONLY_SERVING = ("LEASE-1", "SLOT-1")
NOT_IN_MACHINE = ("DIGEST-1", "LAZY-1", "WORLD-1")

ARGUED: dict[tuple[str, str], str] = {}
"""(claim, transition) that no check covers, and why none is needed. At most a tenth of the cells."""


def cell(claim: Claim, kind: str) -> str:
    """What checks this claim on this transition; "-" where the claim says nothing about it."""
    if kind not in claim.kinds:
        return "-"
    if (claim.id, kind) in ARGUED:
        return "argument"
    if claim.id in ONLY_SERVING:
        return "serving"
    names = [] if claim.id in ONLY_WORLDS else ["walks"]
    if claim.id not in NOT_IN_MACHINE:
        names.append("machine")
    if claim.id in WORLD_CLAIMS and kind in WORLD_KINDS:
        names.append("worlds")
    return ", ".join(names)


def matrix() -> Iterator[str]:
    """docs/MATRIX.md, line by line. Generated; a test compares."""
    yield "# Transition × invariant"
    yield ""
    yield "Generated by `python -m invariants.catalogue > docs/MATRIX.md`; a test fails when it is stale. A cell names what checks"
    yield "the claim on the transition: " + "; ".join(f"**{name}** = {what}" for name, what in COLUMNS.items()) + "."
    yield "`-`: the claim says nothing about that transition. State claims are checked in the state after the transition."
    yield ""
    yield "| claim | " + " | ".join(KINDS) + " | must notice |"
    yield "|---|" + "---|" * (len(KINDS) + 1)
    for claim in CLAIMS:
        cells = " | ".join(cell(claim, kind) for kind in KINDS)
        yield f"| {claim.id} | {cells} | {claim.mutant or 'a lossy compaction (tests/test_mutants.py)'} |"
    yield ""
    yield "| claim | sentence | checked by |"
    yield "|---|---|---|"
    for claim in CLAIMS:
        module, predicate = claim.predicate.split(".", 1)
        yield f"| {claim.id} | {claim.sentence} | `invariants/{module}.py`: `{predicate}` |"


if __name__ == "__main__":
    print("\n".join(matrix()))
