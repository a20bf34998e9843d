"""The core is pure: a fresh process imports every file of it and gets no device, clock, randomness, network or open file."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import core_pure

ROOT = Path(core_pure.__file__).parent
MODULES = sorted(f"core_pure.{path.stem}" for path in ROOT.glob("*.py") if path.stem != "__init__")
OWN = {"attr", "attrs", "numpy", "core_pure"}
"""Packages from outside the standard library that the core may name."""
STANDARD = {
    "__future__", "abc", "collections", "functools", "hashlib", "json", "operator", "struct", "threading", "types", "typing",
}  # fmt: skip
"""Standard modules that the core may name: none reads a clock, a file, a network or a source of randomness."""
IMPURE = ("torch", "triton", "transformers", "shell_gpu", "models", "invariants", "rich", "typer", "matplotlib")

SCRIPT = """
import builtins, importlib, io, json, os, sys
import attrs, numpy
opened, before = [], set(sys.modules)
def watch(event, args):
    if event == "open" and isinstance(args[0], str) and not args[0].endswith((".py", ".pyc")):
        opened.append(args[0])
    if event.startswith(("socket.", "subprocess.", "os.system", "os.exec", "os.fork", "tempfile.")):
        opened.append(event)
sys.addaudithook(watch)
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
new = set(sys.modules) - before
from core_pure.layout import BandSpec, build_layout
from core_pure.event import Event, apply, content_digest
from core_pure.state import initial
from core_pure.verify import verify
state = initial(build_layout([BandSpec("a", 700), BandSpec("b", 500)], 65536))
for event in (Event("allocate", demand=(9, 9)), Event("release", pages=numpy.arange(1, 8)), Event("compact")):
    state = apply(state, event).state
assert verify(state) == []
# what importing numpy brought was there before; numpy.random is loaded by numpy, not by the core
print(json.dumps({"new": sorted(new), "opened": opened, "files": sorted(os.listdir("/proc/self/fd"))}))
"""


def test_a_fresh_process_imports_nothing_impure() -> None:
    """Importing and using every core file adds no torch, clock, random source, socket or subprocess, and opens no file."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(MODULES)], capture_output=True, text=True, check=True, cwd=ROOT.parent
    )
    seen = json.loads(done.stdout)
    new = {name.split(".")[0] for name in seen["new"]}
    assert new.isdisjoint({*IMPURE, "time", "datetime", "random", "secrets", "socket", "ssl", "asyncio", "subprocess", "tempfile"})
    assert {name for name in seen["new"] if name.startswith("core_pure.")} == set(MODULES)
    assert seen["opened"] == []
    assert len(seen["files"]) <= 4, "standard streams and the listing itself"


def test_no_core_file_names_an_impure_module() -> None:
    """Read as text, every import of every core file is of the core, attrs, numpy or a few harmless standard modules."""
    assert len(MODULES) > 20
    for path in ROOT.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            foreign = {name.split(".")[0] for name in names} - OWN - STANDARD
            assert not foreign, f"{path.name} imports {foreign}"


def test_no_core_file_calls_what_reads_the_world() -> None:
    """No call of open, input, exec, eval, print, __import__, or of anything named random, time, now, environ or getenv."""
    forbidden = {"open", "input", "exec", "eval", "print", "__import__", "random", "urandom", "time", "now", "getenv", "environ"}
    for path in ROOT.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
                assert called not in forbidden, f"{path.name}:{node.lineno} calls {called}"


def test_the_door_holds_the_only_mutable_field() -> None:
    """Outside the door, the table and the eviction search, no core file assigns to an attribute of an object."""
    allowed = {"table.py", "door.py", "admission.py"}
    for path in ROOT.glob("*.py"):
        if path.name in allowed:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
            for target in targets:
                attribute = isinstance(target, ast.Attribute) and target.attr != "writeable"
                assert not attribute, f"{path.name}:{node.lineno} writes a field"
