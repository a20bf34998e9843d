"""Planting bugs: how a mutant replaces one function of the core, and which check must notice.

Two ways. A *text* mutant replaces one piece of a function's source, and swaps the compiled code into the function object, so that
every importer runs it. A *wrapped* mutant stands between the callers and the function, in every module that imported it. Both
are undone on leaving. A text that is no longer found is an error: the mutant would plant nothing.
"""

from __future__ import annotations

import functools
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from difflib import get_close_matches
from importlib import import_module
from types import FunctionType
from typing import Any
from unittest import mock

from attrs import frozen

from core_pure.errors import ArenaError

from . import runs, walks
from .walks import SHAPES, Failure, Shape


class UnknownMutant(ArenaError):
    """No mutant has that name."""


class StaleMutant(ArenaError):
    """The source that a mutant replaces is not there any more, or not once."""


@frozen
class Mutant:
    """One planted bug.

    target: "module:function" or "module:Class.method" of core_pure. wrong: what is wrong, as a sentence. killers: ids of claims,
    any of which must notice. text: (old, new), or wrap: called as wrap(original, *args, **kwargs). shape: name of the walk shape
    that shows it soonest, "" for any.
    """

    name: str
    target: str
    wrong: str
    killers: tuple[str, ...]
    text: tuple[str, str] | None = None
    wrap: Callable[..., Any] | None = None
    shape: str = ""


def function_of(target: str) -> FunctionType:
    """The function object that a target names."""
    module, path = target.split(":")
    found: Any = import_module(f"core_pure.{module}")
    for name in path.split("."):
        found = inspect.getattr_static(found, name)
    found = getattr(found, "fget", None) or getattr(found, "func", None) or getattr(found, "__func__", found)
    assert isinstance(found, FunctionType), target
    return found


def recompiled(function: FunctionType, source: str) -> Any:
    """The code object of ``source``, a whole ``def``, in the function's own module."""
    scope = dict(vars(sys.modules[function.__module__]))
    text = "from __future__ import annotations\n" + source
    exec(compile(text, f"<mutant of {function.__qualname__}>", "exec"), scope)
    made = scope[function.__name__]
    made = getattr(made, "fget", None) or getattr(made, "func", None) or getattr(made, "__func__", made)
    return made.__code__


def _standing_before(wrap: Callable[..., Any], function: FunctionType) -> Callable[..., Any]:
    """A plain function, so that it works as a method too."""

    @functools.wraps(function)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        return wrap(function, *args, **kwargs)

    return replacement


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """The core with the bug in it."""
    function = function_of(mutant.target)
    if mutant.text is not None:
        source, (old, new) = textwrap.dedent(inspect.getsource(function)), mutant.text
        if source.count(old) != 1:
            raise StaleMutant(f"{mutant.name}: {old!r} stands {source.count(old)} times in {mutant.target}")
        code, function.__code__ = function.__code__, recompiled(function, source.replace(old, new))
        try:
            yield
        finally:
            function.__code__ = code
        return
    assert mutant.wrap is not None
    replacement = _standing_before(mutant.wrap, function)
    with ExitStack() as stack:
        if "." in mutant.target.split(":")[1]:
            owner, method = mutant.target.split(":")[1].split(".")
            module = import_module(f"core_pure.{mutant.target.split(':')[0]}")
            stack.enter_context(mock.patch.object(getattr(module, owner), method, replacement))
        for name, module in list(sys.modules.items()):
            if name.startswith(("core_pure.", "invariants.")):
                for attribute, value in list(vars(module).items()):
                    if value is function:
                        stack.enter_context(mock.patch.object(module, attribute, replacement))
        yield


# --- finding them ------------------------------------------------------------------------------------------------------


def hunt(
    mutant: Mutant, *, seed: int = 0, walks_most: int = 400, length: int = 120, claims: tuple[str, ...] = ()
) -> Failure | None:
    """Random walks, and claims about whole runs, on the planted core until one of ``claims`` (any, if none) is violated."""
    shapes: list[Shape] = [shape for shape in SHAPES if shape.name == mutant.shape] or list(SHAPES)
    with planted(mutant):
        for number in range(walks_most):
            shape = shapes[number % len(shapes)]
            with walks.blocks_of(shape.block_bits):
                done = walks.walk(shape, walks.moves(seed + number, shape, length))
                if done.failure is not None:
                    if not claims or done.failure.violation.claim in claims:
                        return done.failure
                    continue
                told = (*runs.digest_is_reproducible(shape, done), *runs.digest_tells_apart(shape, done))
            if told and (not claims or told[0].claim in claims):
                return Failure(shape, (), done.events, told[0])
    return None


def by_name(name: str) -> Mutant:
    """The mutant of that name. Raises: UnknownMutant."""
    for mutant in every():
        if mutant.name == name:
            return mutant
    names = sorted(mutant.name for mutant in every())
    near = get_close_matches(name, names, n=3) or names[:3]
    raise UnknownMutant(f"no mutant named {name!r}, of {len(names)}: {', '.join(near)} …; invariants/mutants_*.py list them")


def every() -> tuple[Mutant, ...]:
    """All mutants that walks must find, those written blind included."""
    from .mutants_blind import BLIND
    from .mutants_list import MUTANTS

    return (*MUTANTS, *BLIND)
