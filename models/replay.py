"""Replay: one trace through the one loop, once per policy, at equal bytes; what came out, as rows and series.

Which pool stands behind the name ``arena`` is decided by the caller, who may have a buffer; everything else is here.
"""

from __future__ import annotations

import resource
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction

from attrs import define, field, frozen

from core_pure.admission import max_request_tokens
from core_pure.capacity import Pool
from core_pure.errors import ConfigError, LayoutError
from core_pure.geometry import BandGeometry
from core_pure.layout import Layout
from core_pure.verify import Violation
from models.dry import Watched
from models.loop import LoopOptions, Observer, ServingLoop, StepRecord
from models.padded import padded_page
from models.pools import SGLANG_DEFAULT_SHARE, PaddedPages, StaticPools
from models.progress import Display
from models.replay_checks import PlanCheck
from models.stamps import Stamper
from models.statistics import Meter, Statistics, Summary, summarise
from models.traces import Trace

ARENA, PADDED, STATIC_DEFAULT = "arena", "padded", "static-default"
SHARES = tuple(range(10, 100, 10))  # per cent of the bytes that go to state
STATIC = {f"static-{share}": Fraction(share, 100) for share in SHARES} | {STATIC_DEFAULT: SGLANG_DEFAULT_SHARE}
POLICIES = (ARENA, *STATIC, PADDED)
GROUPS = {"all": POLICIES, "static": tuple(STATIC), "compare": (ARENA, STATIC_DEFAULT, PADDED)}
KIBIBYTE = 1_024  # ru_maxrss is in KiB on Linux
VIOLATIONS_TOLD = 10

Check = Callable[[Pool], Iterable[Violation | str]]


@frozen
class Setting:
    """What every policy of one comparison shares."""

    model: str
    layout: Layout
    trace: Trace
    options: LoopOptions

    @property
    def context(self) -> int:
        """The longest request of the trace, so that page tables are no wider than needed. Units: tokens."""
        return int((self.trace.inputs + self.trace.outputs).max()) - 1


@frozen
class ArenaRig:
    """An arena ready to be served from, with what watches it. ``checks`` run after every step."""

    pool: Watched
    meter: Meter
    checks: Sequence[Check] = ()
    stamper: Stamper | None = None
    plan_check: PlanCheck | None = None


@frozen
class StampEquation:
    """Frames read back whole against what the meter counted: checked = pages released + frames moved."""

    checked: int
    pages_released: int
    frames_moved: int
    stamped: int

    @property
    def holds(self) -> bool:
        """Whether both sides are equal."""
        return self.checked == self.pages_released + self.frames_moved

    @property
    def says_something(self) -> bool:
        """Whether pages were released and frames moved at all."""
        return self.pages_released > 0 and self.frames_moved > 0

    def __str__(self) -> str:
        sign = "=" if self.holds else "≠"
        idle = "" if self.says_something else " (a load without pressure: it says nothing about moves)"
        text = f"{self.checked:,} frames checked {sign} {self.pages_released:,} pages released + {self.frames_moved:,} frames moved"
        return text + idle


@define
class Run:
    """One policy's outcome. ``failed`` says why its pool could not be built at all; then there is no summary."""

    policy: str
    summary: Summary | None = None
    stats: Statistics = field(factory=Statistics)
    failed: str = ""
    violations: list[str] = field(factory=list)
    checks_made: int = 0
    plans_checked: int = 0
    max_request_tokens: int = 0
    stamps: StampEquation | None = None


@define
class Verifier:
    """Runs every check after every step. A violation is told once per step; the run goes on, so that all are seen."""

    checks: Sequence[Check]
    violations: list[str] = field(factory=list)
    made: int = 0

    def after_step(self, loop: ServingLoop, record: StepRecord) -> None:
        """Check the pool as it stands now."""
        for check in self.checks:
            self.made += 1
            self.violations.extend(f"step {record.number}: {found}" for found in check(loop.pool))


@define
class Brake:
    """Lets an interrupt end a run between two steps, so that pools, counts and recording agree about the last one."""

    asked: bool = False

    def after_step(self, loop: ServingLoop, record: StepRecord) -> None:
        """Stop here if asked to. Must be the last observer: the others have seen the step. Raises: KeyboardInterrupt."""
        if self.asked:
            raise KeyboardInterrupt

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Within this block the first Ctrl-C waits for the step to end, and a second one does not wait."""
        plain = signal.default_int_handler
        if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is not plain:
            yield  # somebody else decides what an interrupt means
            return
        signal.signal(signal.SIGINT, self._ask)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, plain)

    def _ask(self, number: int, frame: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


def parse_policies(text: str) -> tuple[str, ...]:
    """Policy names out of a comma-separated list of names and groups, each once, in the order of POLICIES."""
    wanted: set[str] = set()
    for word in text.split(","):
        members = GROUPS.get(word.strip(), (word.strip(),))
        unknown = [name for name in members if name not in POLICIES]
        if unknown:
            raise ConfigError(f"policy {unknown[0]!r} is unknown; there are {', '.join((*GROUPS, *POLICIES))}")
        wanted.update(members)
    return tuple(name for name in POLICIES if name in wanted)


def rival(policy: str, setting: Setting) -> Pool:
    """The pool of a policy that is not the arena. Raises: LayoutError when the bytes hold no such pool."""
    chunk = setting.options.prefill_tokens
    if policy == PADDED:
        geometries = [band.geometry for band in setting.layout.bands]
        known: list[BandGeometry] = [geometry for geometry in geometries if geometry is not None]
        return PaddedPages(padded_page(known), setting.layout.total_bytes, chunk)
    return StaticPools.split(setting.layout, STATIC[policy], chunk)


def replay(
    setting: Setting, policies: Sequence[str], make_arena: Callable[[], ArenaRig], *, verify: bool, display: Display
) -> tuple[list[Run], bool]:
    """Serve the trace under each policy in turn.

    Returns: the runs so far, and whether the user interrupted (then the last run is marked partial).
    """
    runs: list[Run] = []
    for policy in policies:
        runs.append(Run(policy))
        try:
            interrupted = _run(runs[-1], setting, make_arena, verify, display)
        except KeyboardInterrupt:  # while the pool was built: this run has nothing to tell
            runs.pop()
            interrupted = True
        if interrupted:
            return runs, True
    return runs, False


def _run(run: Run, setting: Setting, make_arena: Callable[[], ArenaRig], verify: bool, display: Display) -> bool:
    """Build the policy's pool and serve from it. Returns: whether the user interrupted the serving."""
    if run.policy == ARENA:
        rig = make_arena()
        return _serve(run, rig.pool, rig, rig.checks, setting, display)
    try:
        pool = rival(run.policy, setting)
    except LayoutError as error:  # a share too small for one page is a result, not a mistake of the caller
        run.failed = str(error)
        return False
    return _serve(run, pool, None, (lambda pool: pool.verify(),) if verify else (), setting, display)


def _serve(run: Run, pool: Pool, rig: ArenaRig | None, checks: Sequence[Check], setting: Setting, display: Display) -> bool:
    """Run the loop to its end, or to an interrupt (True), and fill in the run."""
    watch = display.watch(run.policy, len(setting.trace))
    verifier = Verifier(checks, run.violations)
    brake = Brake()
    observers: list[Observer] = [run.stats, verifier, watch, *([rig.meter] if rig else []), brake]
    loop = ServingLoop(pool, setting.trace, setting.options, observers=observers)
    # The arena's own figure is capped by the page tables' width, which follows the trace; told is what the bytes allow.
    uncapped = max_request_tokens(setting.layout, setting.options.prefill_tokens)
    run.max_request_tokens = uncapped if rig else loop.tokens_max
    begun = time.perf_counter()
    try:
        with brake.holding():
            loop.run()
        partial = brake.asked  # during the very last step
    except KeyboardInterrupt:
        partial = True
    wall = time.perf_counter() - begun
    run.checks_made = verifier.made
    if rig and rig.stamper:
        released = rig.meter.pages_released(rig.pool.state)
        run.stamps = StampEquation(rig.stamper.checked, released, rig.meter.frames_moved, rig.stamper.stamped)
        run.violations += rig.stamper.violations
    if rig and rig.plan_check:
        run.plans_checked = rig.plan_check.made
        run.violations += rig.plan_check.violations
    run.summary = summarise(
        run.policy, loop, run.stats, rig.meter if rig else None, wall=wall, peak_process_bytes=peak_process_bytes(),
        partial=partial, violations=len(run.violations),
    )  # fmt: skip
    watch.draw(loop, "interrupted" if partial else f"{wall:.1f} s")
    return partial


def peak_process_bytes() -> int:
    """The most memory this process has held so far. Units: bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIBIBYTE
