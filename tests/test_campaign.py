"""Campaigns: they find planted bugs, shrink them to a short recording, resume, and name bad input."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from core_pure import recording
from core_pure.errors import RecordingError
from invariants import campaign, mutants
from invariants.campaign import CampaignError, Options, Progress, campaign_main, check, estimated, load, save
from invariants.campaign_worker import BITS, Job, search, shape_of, shrunk
from invariants.mutants import UnknownMutant, by_name, planted
from invariants.shrinking import shortest
from invariants.walks import SHAPES, Tally, moves, run, walk

EVENTS_MOST = 12
REFUSED_LEAST = RELIEF_LEAST = 0.10


def job(**changes: object) -> Job:
    """A short job without the Hypothesis machine."""
    return Job(**{"seed": 5, "first": 0, "stride": 1, "seconds": 0.0, "machines": False, **changes})  # type: ignore[arg-type]


def test_walks_cover_refusals_and_relief() -> None:
    """Over the campaign's mix of arenas at least a tenth of the transitions is refused, and a tenth needs relief."""
    tally = Tally()
    for number in range(42):
        shape = shape_of(number)
        assert run(shape, moves(number, shape, 120), tally) is None
    assert tally.refusals >= REFUSED_LEAST * tally.transitions
    assert tally.relief >= RELIEF_LEAST * tally.transitions
    assert {"allocate", "release", "advance", "compact", "pin", "unpin", "launch", "retire", "copy", "resize"} <= set(tally.kinds)


def test_same_seed_same_walk() -> None:
    """A walk follows from its seed alone."""
    first, second = (walk(SHAPES[3], moves(11, SHAPES[3], 80)) for _ in range(2))
    assert first.events == second.events
    assert first.checked.state.digest == second.checked.state.digest


@pytest.mark.parametrize("name", ["cost-below-free", "no-quarantine", "row-twice", "compact-no-wait", "bands-overlap"])
def test_failure_shrinks_to_few_events(name: str) -> None:
    """A failing walk is shrunk to at most twelve events that still break the same claim."""
    with planted(by_name(name)):
        found = next(f for number in range(200) if (f := run(shape_of(number), moves(number, shape_of(number), 150))) is not None)
        short = shortest(found)
        again = run(short.shape, short.moves, thorough=found.violation.claim)
    assert again is not None and again.violation.claim == found.violation.claim
    assert len(short.events) <= EVENTS_MOST


def test_worker_reports_what_it_did() -> None:
    """One worker, time for one walk: its report has the transitions, and states were marked."""
    (report,) = search(0, job())
    assert report.done and report.failure is None
    assert report.walks == 1 and report.tally.transitions > 50 and report.next_walk == 1
    assert report.states is not None and any(report.states)


def test_worker_shrinks_what_it_finds() -> None:
    """A worker on a planted core ends with a shrunk failure."""
    with planted(by_name("live-drifts")):
        *_, last = search(0, job(seconds=60.0))
    assert last.failure is not None and last.failure.violation.claim == "LIVE-1"
    assert len(last.failure.events) <= 2


def test_failures_without_moves_are_shrunk_too() -> None:
    """A failure known by its events only, as the machine gives it, is turned into moves and shrunk."""
    with planted(by_name("live-drifts")):
        found = next(f for seed in range(20) if (f := run(SHAPES[1], moves(seed, SHAPES[1], 60))) is not None)
        bare = type(found)(found.shape, (), found.events, found.violation)
        assert len(shrunk(bare).events) <= 2


def test_estimate_of_states_is_close() -> None:
    """The bitmap's estimate of distinct values is within a few percent."""
    seen = bytearray(BITS // 8)
    for number in range(20_000):
        bit = number * 2_654_435_761 % BITS
        seen[bit >> 3] |= 1 << (bit & 7)
    assert abs(estimated(int.from_bytes(seen, "little")) - 20_000) < 1_000


# --- the command -------------------------------------------------------------------------------------------------------


def test_injected_mutant_is_found_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a planted bug the command ends with 1 and keeps a recording that reads back to the shrunk events."""
    code = campaign_main(Options(minutes=1, cores=1, seed=3, inject="id-lost", out=tmp_path))
    assert code == campaign.VIOLATED
    layout, events = recording.read((tmp_path / "id-lost.kvr").read_bytes())
    story = list(events)
    assert 1 <= len(story) <= EVENTS_MOST and layout.total_bytes in {shape.total_bytes for shape in SHAPES}
    assert "id-lost: found in" in capsys.readouterr().out


def test_clean_campaign_ends_with_zero(tmp_path: Path) -> None:
    """Some seconds over the shipped core: nothing found, state kept, and a resume has nothing left to do."""
    options = Options(minutes=0.05, cores=1, seed=1, out=tmp_path, machines=False)
    assert campaign_main(options) == campaign.CLEAN
    kept = json.loads((tmp_path / "state.json").read_text())
    assert kept["walks"] > 0 and kept["tally"]["transitions"] > 0
    assert campaign_main(Options(minutes=0.05, cores=1, seed=1, resume=True, out=tmp_path, machines=False)) == campaign.CLEAN


def test_killed_campaign_resumes(tmp_path: Path) -> None:
    """A campaign that was killed goes on with the walks it had not taken, and counts what it had done."""
    command = [
        sys.executable,
        "-c",
        "import kvarena; kvarena.main()",
        "campaign",
        "--minutes",
        "5",
        "--cores",
        "1",
        "--out",
        str(tmp_path),
    ]
    root = Path(__file__).parent.parent
    process = subprocess.Popen(command, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    state = tmp_path / "state.json"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (state.exists() and json.loads(state.read_text())["walks"]):
        time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = json.loads(state.read_text())
    assert done["walks"] > 0
    kept = load(Options(resume=True, out=tmp_path))
    assert (
        kept.next_walk == done["next_walk"] > 0
        and kept.checked == done["tally"]["transitions"] + done["neighbours"] + done["machine"]
    )
    more = campaign.campaign(Options(minutes=kept.seconds / 60 + 0.03, cores=1, out=tmp_path, machines=False), kept)
    assert more.walks > done["walks"] and more.next_walk > done["next_walk"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"minutes": 0.0}, "more than zero"),
        ({"minutes": float("nan")}, "more than zero"),
        ({"minutes": -1.0}, "more than zero"),
        ({"cores": 0}, "at least one"),
        ({"inject": "id-lost", "resume": True}, "do not go together"),
        ({"resume": True}, "nothing to resume"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, options: dict[str, object], message: str) -> None:
    """What cannot be done is refused before anything runs, with one line that says why."""
    with pytest.raises(CampaignError, match=message) as error:
        campaign_main(Options(**{"out": tmp_path, **options}))  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


def test_unknown_mutant_is_named(tmp_path: Path) -> None:
    """An unknown mutant is refused, naming those that are spelled alike; "ten" is no mutant's name."""
    with pytest.raises(UnknownMutant, match=r"no mutant named 'duoble-free'.*: double-free"):
        check(Options(inject="duoble-free", out=tmp_path))
    with pytest.raises(CampaignError, match="stands alone"):
        check(Options(inject="ten,double-free", out=tmp_path))


def test_workers_do_not_outlive_their_campaign() -> None:
    """A process of a campaign ends when the process that started it is killed, however hard."""
    script = (
        "import multiprocessing as m, time\n"
        "from invariants.campaign_worker import _end_with_the_campaign\n"
        "def work(queue):\n"
        "    _end_with_the_campaign()\n"
        "    queue.put(m.current_process().pid)\n"
        "    time.sleep(300)\n"
        "context = m.get_context('fork')\n"
        "queue = context.Queue()\n"
        "context.Process(target=work, args=(queue,), daemon=True).start()\n"
        "print(queue.get(), flush=True)\n"
        "time.sleep(300)\n"
    )
    campaign = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert campaign.stdout is not None
    worker = Path("/proc") / campaign.stdout.readline().strip() / "stat"
    assert worker.exists()
    campaign.kill()
    campaign.wait()
    end = time.monotonic() + 60
    while worker.exists() and worker.read_text().rsplit(")", 1)[1].split()[0] != "Z":  # dead, if nobody has asked for it yet
        assert time.monotonic() < end, "the worker lives on"
        time.sleep(0.1)


def test_ten_are_drawn_by_seed(tmp_path: Path) -> None:
    """``--inject ten`` names ten different mutants, the same for the same seed, others for another."""
    draws = [campaign.chosen_mutants(Options(seed=seed, inject="ten", out=tmp_path)) for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]
    assert len(set(draws[0])) == campaign.SAMPLE
    assert set(draws[0]) <= {mutant.name for mutant in mutants.every()}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda facts: "{", "damaged"),
        (lambda facts: json.dumps({**facts, "core": "other"}), "has changed"),
        (lambda facts: json.dumps({**facts, "seed": 9}), "--seed 9"),
        (lambda facts: json.dumps({key: value for key, value in facts.items() if key != "tally"}), "field 'tally' is None"),
        (lambda facts: "[]", "field 'version' is None, expected a whole number"),
        (lambda facts: json.dumps({**facts, "version": 7}), "version 7, this reads 1"),
        (lambda facts: json.dumps({**facts, "walks": -1}), "field 'walks' is -1, expected a whole number from 0 up"),
        (lambda facts: json.dumps({**facts, "seconds": float("nan")}), "field 'seconds' is nan"),
        (lambda facts: json.dumps({**facts, "next_walk": 1.5}), "field 'next_walk' is 1.5"),
        (lambda facts: json.dumps({**facts, "tally": {**facts["tally"], "kinds": {"pin": "x"}}}), "field 'pin' is x"),
    ],
)
def test_state_that_cannot_be_resumed_says_why(tmp_path: Path, damage: object, message: str) -> None:
    """A damaged state, one of another core or of another seed is not continued."""
    options = Options(resume=True, out=tmp_path)
    save(options, Progress())
    path = tmp_path / "state.json"
    path.write_text(damage(json.loads(path.read_text())))  # type: ignore[operator]
    with pytest.raises(CampaignError, match=message):
        load(options)


def test_corrupt_recording_is_named() -> None:
    """A damaged recording raises the typed error that the command line turns into exit code 2."""
    data = recording.write(SHAPES[1].layout(), walk(SHAPES[1], moves(1, SHAPES[1], 20)).events)
    with pytest.raises(RecordingError):
        list(recording.replay(*recording.read(data[:-3])))
