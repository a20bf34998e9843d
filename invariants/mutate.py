"""Small wrong edits of a source file: which there are, and the text with one of them made. Runs nothing.

An edit replaces the text of one expression or statement. Messages, annotations, docstrings and f-strings are left alone: they
change no behaviour that a claim speaks of. A comparison is mutated twice (its bound moves by one; it is turned round), a whole
number twice (one more, one less). The same source always gives the same edits in the same order.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator

from attrs import frozen

BOUND: dict[type[ast.cmpop], str] = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
TURNED: dict[type[ast.cmpop], str] = {
    ast.Lt: ">", ast.LtE: ">=", ast.Gt: "<", ast.GtE: "<=", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
OTHER: dict[type[ast.operator], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.Mod: "//", ast.BitAnd: "|", ast.BitOr: "&", ast.LShift: ">>", ast.RShift: "<<",
}  # fmt: skip
SWAPPED = {
    "min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum", "maximum": "minimum",
    "argmin": "argmax", "argmax": "argmin", "floor": "ceil", "ceil": "floor",
}  # fmt: skip
QUIET = (ast.JoinedStr, ast.Raise, ast.Assert, ast.Import, ast.ImportFrom)
"""Not looked into: texts, and what is raised (whether it is raised is mutated by way of the condition)."""


@frozen
class Named:
    """What names an edit. key outlives edits elsewhere in the file; line is that of the time when it was made.

    place: "function" or "Class.method", "" at module level. operator: what kind of edit. shown: "old -> new".
    """

    key: str
    module: str
    place: str
    line: int
    operator: str
    shown: str


@frozen
class Edit(Named):
    """One wrong edit. Offsets in bytes of the source."""

    start: int
    end: int
    new: str

    def made(self, source: bytes) -> bytes:
        """The source with this edit made."""
        return source[: self.start] + self.new.encode() + source[self.end :]


@frozen
class _Raw:
    node: ast.expr | ast.stmt
    operator: str
    new: str


def edits(module: str, source: bytes) -> list[Edit]:
    """All edits of one module, in reading order."""
    starts = [0]
    for line in source.split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    found: list[Edit] = []
    for place, top in _places(ast.parse(source)):
        digest = hashlib.sha256(ast.dump(_bare(top)).encode()).hexdigest()[:8]
        seen: Counter[str] = Counter()
        for raw in _walk(top):
            node = raw.node
            start = starts[node.lineno - 1] + node.col_offset
            end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
            old = " ".join(source[start:end].decode().split())
            shown = f"{old} -> {' '.join(raw.new.split())}"
            seen[raw.operator] += 1
            key = f"{module}:{place}:{digest}:{raw.operator}:{seen[raw.operator]}"
            found.append(Edit(key, module, place, node.lineno, raw.operator, shown, start, end, raw.new))
    return found


def _places(tree: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    """Functions, methods and the other statements of a module and its classes, each with its name."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                yield f"{node.name}.{inner.name}" if isinstance(inner, ast.FunctionDef) else node.name, inner
        else:
            yield "", node


def _bare(node: ast.stmt) -> ast.stmt:
    """Without its docstring, so that a reworded one keeps the keys."""
    if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
        return ast.FunctionDef(node.name, node.args, node.body[1:], node.decorator_list, node.returns, node.type_comment)
    return node


def _walk(node: ast.AST) -> Iterator[_Raw]:
    """Edits of a node and of what is below it."""
    if isinstance(node, QUIET) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        return
    if isinstance(node, ast.expr):
        yield from _of_expression(node)
    elif isinstance(node, ast.stmt):
        yield from _of_statement(node)
    for name, child in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for each in child if isinstance(child, list) else [child]:
            if isinstance(each, ast.AST):
                yield from _walk(each)


def _text(node: ast.expr) -> str:
    """The text of an operand, safe inside any operator."""
    return f"({ast.unparse(node)})"


def _of_expression(node: ast.expr) -> Iterator[_Raw]:
    if isinstance(node, ast.Compare):
        yield from _of_comparison(node)
    elif isinstance(node, ast.BinOp):
        yield from _of_arithmetic(node)
    elif isinstance(node, ast.BoolOp):
        word = " or " if isinstance(node.op, ast.And) else " and "
        yield _Raw(node, "and-or", f"({word.join(_text(value) for value in node.values)})")
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub | ast.Invert):
        if not isinstance(node.operand, ast.Constant):
            yield _Raw(node, "drop-unary", _text(node.operand))
    elif isinstance(node, ast.Call) and not node.keywords:
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name in SWAPPED:
            yield _Raw(node.func, "min-max", ast.unparse(node.func).removesuffix(name) + SWAPPED[name])
    elif isinstance(node, ast.IfExp) and not isinstance(node.test, ast.Compare | ast.UnaryOp):
        yield _Raw(node.test, "negate", f"(not {_text(node.test)})")
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield _Raw(node, "constant", str(not node.value))
        elif isinstance(node.value, int):
            yield _Raw(node, "constant", str(node.value + 1))
            yield _Raw(node, "constant", f"({node.value - 1})")
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        yield from _of_slice(node, node.slice)


def _of_comparison(node: ast.Compare) -> Iterator[_Raw]:
    operands = [_text(each) for each in (node.left, *node.comparators)]
    words = [_word(op) for op in node.ops]
    for at, op in enumerate(node.ops):
        for kind, table in (("bound", BOUND), ("turn", TURNED)):
            if type(op) in table:
                changed = [*words[:at], table[type(op)], *words[at + 1 :]]
                text = operands[0] + "".join(f" {w} {right}" for w, right in zip(changed, operands[1:], strict=True))
                yield _Raw(node, f"compare-{kind}", f"({text})")


def _word(op: ast.cmpop) -> str:
    return ast.unparse(ast.Compare(ast.Name("a"), [op], [ast.Name("b")]))[2:-2]


def _of_arithmetic(node: ast.BinOp) -> Iterator[_Raw]:
    left, right = _text(node.left), _text(node.right)
    if isinstance(node.op, ast.FloorDiv):
        yield _Raw(node, "rounding", f"(-(-{left} // {right}))")
    elif type(node.op) in OTHER and not any(
        isinstance(n, ast.Constant) and isinstance(n.value, str) for n in (node.left, node.right)
    ):
        yield _Raw(node, "arithmetic", f"({left} {OTHER[type(node.op)]} {right})")


def _of_slice(node: ast.Subscript, part: ast.Slice) -> Iterator[_Raw]:
    if part.step is not None:
        return
    lower = "" if part.lower is None else ast.unparse(part.lower)
    upper = "" if part.upper is None else ast.unparse(part.upper)
    if lower:
        yield _Raw(node, "slice", f"{ast.unparse(node.value)}[({lower}) + 1:{upper}]")
    if upper:
        yield _Raw(node, "slice", f"{ast.unparse(node.value)}[{lower}:({upper}) - 1]")


def _of_statement(node: ast.stmt) -> Iterator[_Raw]:
    if isinstance(node, ast.FunctionDef):
        yield from _of_function(node)
    elif isinstance(node, ast.If | ast.While):
        if not isinstance(node.test, ast.Compare | ast.BoolOp) and not (
            isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not)
        ):
            yield _Raw(node.test, "negate", f"(not {_text(node.test)})")
        if isinstance(node, ast.If) and isinstance(node.body[0], ast.Raise | ast.Return) and not node.orelse:
            yield _Raw(node.test, "drop-guard", "False")
    elif isinstance(node, ast.AugAssign | ast.Expr) or (
        isinstance(node, ast.Assign) and all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
    ):
        yield _Raw(node, "drop-statement", "pass")
    elif isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple) and len(node.value.elts) == 2:
        first, second = (ast.unparse(each) for each in node.value.elts)
        if first != second:
            yield _Raw(node.value, "return", f"({second}, {first})")


def _of_function(node: ast.FunctionDef) -> Iterator[_Raw]:
    """What needs the names of the whole function: a neighbour returned, a rebinding left out."""
    bound = [argument.arg for argument in (*node.args.args, *node.args.kwonlyargs) if argument.arg != "self"]
    for inner in ast.walk(node):
        if isinstance(inner, ast.Assign) and all(isinstance(target, ast.Name) for target in inner.targets):
            names = [target.id for target in inner.targets if isinstance(target, ast.Name)]
            if all(name in bound for name in names):
                yield _Raw(inner, "drop-statement", "pass")
            bound += [name for name in names if name not in bound]
        elif isinstance(inner, ast.Return) and isinstance(inner.value, ast.Name) and inner.value.id in bound[1:]:
            yield _Raw(inner.value, "return", bound[bound.index(inner.value.id) - 1])
