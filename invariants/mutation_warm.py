"""Where the tests of one edit run: a forked child, of a process that has imported the copy and collected its tests before.

To import the core and collect tests anew for each edit would cost more than the tests. So a *warm* process does both once, on the
unchanged copy, and notes which functions of the core were called meanwhile, and for which test file. A child of it exchanges the
code of the edited function. Where that function has not been called before, nothing can tell this child from one that imported the
edited file: such a verdict is as good. All other edits (constants, defaults, class bodies, what runs at import) are judged by a
child that imports the edited copy (``Bench`` of mutation.py).
"""

from __future__ import annotations

import ast
import gc
import importlib
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

FOREIGN = 3
"""Exit code of a child that imported another core than that of the copy."""


def in_child(work: Callable[[], dict[str, Any]], folder: Path, cpu_s: int) -> dict[str, Any] | None:
    """What ``work`` returns, from a forked child of at most ``cpu_s`` seconds of processor time; None when that was not enough."""
    answer = folder / "answer.json"
    answer.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            silent = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(silent, stream)
            used = resource.getrusage(resource.RUSAGE_SELF)
            limit = int(used.ru_utime + used.ru_stime) + cpu_s
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
            resource.setrlimit(resource.RLIMIT_DATA, (6 << 30, 6 << 30))
            signal.signal(signal.SIGXCPU, signal.SIG_DFL)
            answer.with_suffix(".part").write_text(json.dumps(work()))
            answer.with_suffix(".part").rename(answer)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == FOREIGN:
        raise SystemExit("a child imported another core than that of the copy")
    if answer.exists():
        found: dict[str, Any] = json.loads(answer.read_text())
        return found
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL):
        return None
    return {"failed": "the process died", "tests": []}


SOON, SOON_TESTS = 4, 40
"""Walks of each kind, and tests, of the first turn."""


class Calls:
    """Which functions of the core are called while modules are imported and tests collected, by the file that made it happen."""

    def __init__(self, core: Path, tests: Path) -> None:
        self.core, self.tests = str(core), str(tests)
        self.collecting = ""
        self.made: dict[str, set[str]] = {"": set()}

    def trace(self, frame: FrameType, event: str, argument: object) -> None:
        """For sys.settrace. What neither a test file nor the collection of one has called is called for all ("")."""
        code = frame.f_code
        if not code.co_filename.startswith(self.core) or code.co_name == "<module>":
            return
        above: FrameType | None = frame
        while above is not None and above.f_code.co_name != "<module>":
            above = above.f_back
        file = self.collecting if above is None else above.f_code.co_filename
        file = file if file.startswith(self.tests) else ""
        self.made.setdefault(file, set()).add(f"{Path(code.co_filename).stem}:{code.co_qualname.split('.<locals>')[0]}")

    def before(self, file: str) -> set[str]:
        """What was called for all, for this file of tests, and for what it imports of ``tests``."""
        todo, seen = [file], {""}
        while todo:
            path = todo.pop()
            if path not in seen:
                seen.add(path)
                todo += [str(path) for path in _imported(Path(path), Path(self.tests))]
        return set().union(*(self.made.get(path, set()) for path in seen))


def _imported(path: Path, tests: Path) -> Iterator[Path]:
    """Files of ``tests`` that a file imports anywhere."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        names = [each.name for each in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{name}" for name in names] + [node.module or ""]
        for name in names:
            parts = name.split(".")
            found = tests / ("/".join(parts[1:]) + ".py")
            if parts[0] == tests.name and found.is_file():
                yield found


def code_of(source: bytes, file: str, place: str) -> CodeType | None:
    """The code of the function or method of that name; None if there is not exactly one."""
    level: CodeType = compile(source, file, "exec")
    for name in place.split("."):
        inner = [each for each in level.co_consts if isinstance(each, CodeType) and each.co_name == name]
        if len(inner) != 1:
            return None
        level = inner[0]
    return level


class Collected:
    """Pytest plugin of the warm process: instead of the tests, run ``serve`` with what was collected."""

    def __init__(self, calls: Calls, serve: Callable[[Mapping[str, Any]], None]) -> None:
        self.calls, self.serve = calls, serve

    def pytest_collectstart(self, collector: Any) -> None:
        """Whose collection makes the calls that follow."""
        self.calls.collecting = str(collector.path)

    def pytest_runtestloop(self, session: Any) -> bool:
        """All is collected."""
        sys.settrace(None)
        self.serve({item.nodeid: item for item in session.items})
        return True


def run_items(items: Sequence[Any], failed: Callable[[], str]) -> None:
    """Run collected tests in this order until one fails."""
    for at, item in enumerate(items):
        item.ihook.pytest_runtest_protocol(item=item, nextitem=items[at + 1] if at + 1 < len(items) else None)
        if failed():
            break


class Warm:
    """The warm process, and a line to it.

    start: called in it, imports the copy's core and what walks need. walk: in a child, the claim that some of the walks broke,
    or "". A child takes turns, so that most edits are killed soon: a few walks, a few tests, all walks, all tests.
    """

    def __init__(
        self, core: Path, folder: Path, files: Sequence[str], start: Callable[[], None], walk: Callable[[slice], str], watch: Any
    ) -> None:
        self.core, self.folder, self.walk, self.watch = core, folder, walk, watch
        asks, tells = os.pipe(), os.pipe()
        self.process = os.fork()
        if self.process == 0:
            os.close(asks[1])
            os.close(tells[0])
            self.asks, self.tells = os.fdopen(asks[0]), os.fdopen(tells[1], "w")
            try:
                self._become(files, start)
            finally:
                os._exit(1)
        os.close(asks[0])
        os.close(tells[1])
        self.tells, self.asks = os.fdopen(asks[1], "w"), os.fdopen(tells[0])
        self.before: dict[str, set[str]] = {file: set(names) for file, names in (self._hear() or {}).items()}

    def close(self) -> None:
        """End the process."""
        self.tells.close()
        os.waitpid(self.process, 0)

    def can(self, name: str, file: str) -> bool:
        """Whether "module:function" was not called before the tests of this file begin (the walks, for the file "")."""
        return file in self.before and name not in self.before[file]

    def judge(self, module: str, place: str, names: Sequence[str], cpu_s: int) -> dict[str, Any] | None:
        """What ``in_child`` returns for the edit that now stands in the copy; "cold" in it: this process cannot make it."""
        self._tell({"module": module, "place": place, "names": list(names), "cpu_s": cpu_s})
        return self._hear()

    def _tell(self, what: object) -> None:
        self.tells.write(json.dumps(what) + "\n")
        self.tells.flush()

    def _hear(self) -> dict[str, Any] | None:
        line = self.asks.readline()
        if not line:
            raise SystemExit("the process with the collected tests died")
        heard: dict[str, Any] | None = json.loads(line)
        return heard

    def _become(self, files: Sequence[str], start: Callable[[], None]) -> None:
        """In the warm process: import, collect, then serve until the line is closed."""
        silent = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silent, stream)
        calls = Calls(self.core, self.core.parent / "tests")
        sys.settrace(calls.trace)
        start()
        pytest = importlib.import_module("pytest")
        options = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:benchmark"]
        pytest.main([*options, *files], plugins=[self.watch, Collected(calls, lambda items: self._serve(items, calls))])

    def _serve(self, items: Mapping[str, Any], calls: Calls) -> None:
        sys.dont_write_bytecode = True
        files = {name.split("::")[0] for name in items}
        self._tell({"": sorted(calls.made[""])} | {file: sorted(calls.before(str(self.core.parent / file))) for file in files})
        self.watch.failed = ""
        functions: dict[str, list[FunctionType]] = {}
        for each in gc.get_objects():
            if type(each) is FunctionType and each.__code__.co_filename.startswith(str(self.core)):
                functions.setdefault(f"{Path(each.__code__.co_filename).stem}:{each.__code__.co_qualname}", []).append(each)
        gc.freeze()
        for line in self.asks:
            asked = json.loads(line)
            found = functions.get(f"{asked['module']}:{asked['place']}", [])
            file = self.core / f"{asked['module']}.py"
            code = code_of(file.read_bytes(), str(file), asked["place"])
            if len(found) != 1 or code is None or code == found[0].__code__ or code.co_freevars != found[0].__code__.co_freevars:
                self._tell({"failed": "", "cold": True})
                continue
            chosen = [items[name] for name in asked["names"]]
            self._tell(in_child(partial(self._face, found[0], code, chosen), self.folder, asked["cpu_s"]))

    def _face(self, function: FunctionType, code: CodeType, items: Sequence[Any]) -> dict[str, Any]:
        """In the child: what an edit has to survive."""
        function.__code__ = code
        for walks, tests in ((slice(0, SOON), items[:SOON_TESTS]), (slice(SOON, None), items[SOON_TESTS:])):
            broken = self.walk(walks)
            if broken:
                return {"failed": broken}
            run_items(tests, lambda: str(self.watch.failed))
            if self.watch.failed:
                break
        return {"failed": self.watch.failed}
