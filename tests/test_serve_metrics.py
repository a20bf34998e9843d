"""The Prometheus collector: what it shows adds up, and every count is caused by what it names."""

import threading

import numpy as np
import pytest

prometheus = pytest.importorskip("prometheus_client")

from core_pure.fits import RELIEF, Refusal, obtainable  # noqa: E402
from core_pure.layout import BandSpec, build_layout  # noqa: E402
from core_pure.verify import Violation  # noqa: E402
from models.dry import DryArena  # noqa: E402
from models.loop import LoopOptions, ServingLoop  # noqa: E402
from models.traces import Trace  # noqa: E402
from shell_gpu.metrics import ArenaCollector, withheld_by_pins  # noqa: E402

NONE = np.array([], np.int64)


def arena(total=1 << 16, sequences=16):
    """Two bands, states of 4096 bytes and pages of four tokens of 256 bytes each."""
    bands = (BandSpec("state", 4096, retention="state"), BandSpec("full", 1024, slots_per_page=4))
    return DryArena(build_layout(bands, total), sequences=sequences, context=200, chunk=64)


def samples(registry):
    """Every sample of a scrape: (name, labels as text) -> value."""
    return {
        (sample.name, ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))): sample.value
        for family in registry.collect()
        for sample in family.samples
    }


def test_bytes_by_band_and_state_add_up_to_the_total():
    """Live, hole, quarantined, gap and sink add up to the arena in every scrape; one line registers the collector."""
    door = arena()
    registry = prometheus.CollectorRegistry()
    registry.register(ArenaCollector(door, {"model": "tiny"}))
    handles = door.open(3)
    door.step(handles, np.array([20, 30, 7]))
    door.step(handles[:1], np.array([0]), finished=handles[1:2], reader=door.launch())
    seen = samples(registry)
    bands = [value for (name, _), value in seen.items() if name == "kvarena_band_bytes"]
    assert seen["kvarena_band_bytes", "band=full,model=tiny,state=quarantined"] == 8 * 1024
    whole = sum(bands) + seen["kvarena_gap_bytes", "model=tiny"] + seen["kvarena_sink_bytes", "model=tiny"]
    assert whole == seen["kvarena_total_bytes", "model=tiny"] == 1 << 16


def test_moves_copies_and_refusals_are_counted_by_their_cause():
    """A compaction counts its frames and bytes, a fork its copies, a refusal the band and the reason it names."""
    door = arena(total=1 << 15)
    registry = prometheus.CollectorRegistry()
    registry.register(ArenaCollector(door))
    first, second = door.open(1), door.open(1)
    door.step(first, np.array([12]))
    door.step(second, np.array([9]))
    door.step(NONE, NONE, finished=first)
    moved = door.compact()
    door.fork(int(second[0]))
    refused = door.step(second, np.array([150]))
    assert isinstance(refused, Refusal)
    seen = samples(registry)
    copied = sum(value for (name, _), value in seen.items() if name == "kvarena_copied_bytes_total")
    assert seen["kvarena_moved_frames_total", "band=state"] == 1
    assert seen["kvarena_moved_frames_total", "band=full"] * 1024 + 4096 == moved
    assert seen["kvarena_copied_frames_total", "band=state"] == seen["kvarena_copied_frames_total", "band=full"] == 1
    assert copied == moved + 4096 + 1024
    assert seen["kvarena_refusals_total", f"band={refused.band},reason={refused.reason}"] == 1
    assert seen["kvarena_plans_total", ""] == 5


def test_capacity_withheld_by_pins_is_what_unpinning_gives_back():
    """The gauge equals the capacity that appears when the pin goes, and is zero without pins."""
    door = arena()
    registry = prometheus.CollectorRegistry()
    registry.register(ArenaCollector(door))
    handles = door.open(2)
    door.step(handles, np.array([40, 40]))
    door.step(NONE, NONE, finished=handles[:1])
    door.pin(int(handles[1]))
    before = [obtainable(door.state, at, RELIEF) for at in range(2)]
    withheld = withheld_by_pins(door.state)
    assert max(withheld) > 0
    seen = samples(registry)
    assert [seen["kvarena_withheld_by_pins_pages", f"band={name}"] for name in door.names] == list(withheld)
    assert seen["kvarena_pinned_bytes", "band=full"] == 10 * 1024
    door.unpin(int(handles[1]))
    after = [obtainable(door.state, at, RELIEF) for at in range(2)]
    assert tuple(b - a for a, b in zip(before, after, strict=True)) == withheld
    assert withheld_by_pins(door.state) == (0, 0)


def test_the_serving_loop_tells_admissions_and_retractions():
    """As an observer of the loop the collector counts what the loop counts."""
    door = arena(total=1 << 16)
    collector = ArenaCollector(door)
    registry = prometheus.CollectorRegistry()
    registry.register(collector)
    trace = Trace("test", np.zeros(8), np.full(8, 16), np.full(8, 40))
    loop = ServingLoop(door, trace, LoopOptions(64, 8), observers=(collector,))
    loop.run()
    seen = samples(registry)
    assert seen["kvarena_retractions_total", ""] == loop.requests.retractions.sum() > 0
    assert seen["kvarena_admissions_total", ""] == 8 + loop.requests.retractions.sum()
    collector.verified([Violation("CHAIN-1", "planted")])
    assert samples(registry)["kvarena_violations_total", "claim=CHAIN-1"] == 1


def test_a_scrape_from_another_thread_reads_no_table():
    """A scrape on its own thread works while the arena belongs to this one (tables refuse a second thread)."""
    door = arena()
    registry = prometheus.CollectorRegistry()
    registry.register(ArenaCollector(door))
    handles = door.open(2)
    door.step(handles, np.array([20, 30]))
    door.pin(int(handles[0]))
    texts, errors = [], []

    def scrape():
        try:
            texts.append(prometheus.generate_latest(registry).decode())
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=scrape)
    thread.start()
    thread.join()
    assert not errors and "kvarena_band_bytes" in texts[0]
