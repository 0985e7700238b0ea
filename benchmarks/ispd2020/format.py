"""The files of the contest: graphs (`.kgraph`) and solutions (`.paint`)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from benchmarks.ispd2020.model import (
    KINDS,
    ContestGraph,
    Edge,
    Kernel,
    Placed,
    Solution,
    block_kernel,
    conv_kernel,
)
from cgc.errors import CompileError


class ContestFileError(CompileError):
    """A graph or a solution that cannot be read or written; the message starts with the file and line."""

    exit_code = 2


class ContestError(CompileError):
    """A graph without a legal placement: the kernel, its needs and the available tiles."""


LARGEST_SIDE = 2000
"""Tiles of a fabric's side; memory and time of the search are proportional to it."""

LARGEST_SIZE = 65_536
"""Rows, columns, channels of a layer; products of four of them are numbers that are still exact enough."""

_HEADER_KEYS = ("width", "height", "wdeltat", "wlength", "wadapter", "memlimit")
_NODE = re.compile(r"(\w+)\s*\[\s*(\d+)\s*\]\s*(.*)", re.DOTALL)
_ATTRIBUTE = re.compile(r"(\w+)\s*=\s*('[^']*'|\[[^\]]*\]|[^\s\[\]']+)")
_EDGE = re.compile(r"\w+\s*\[\s*(\d+)\s*\]\s*:\s*\w+\s*->\s*\w+\s*\[\s*(\d+)\s*\]\s*:\s*\w+\b.*")
_DEFINITION = re.compile(r"(\w+)\s*=\s*(conv|dblock|cblock)\s*\(([^()]*)\)")
_PLACE = re.compile(r"(\w+)\s*:\s*place\s*\(\s*(-?\d+)\s+(-?\d+)\s+(\w+)\s*\)")
_IGNORED = re.compile(r"include\s+\"[^\"]*\"|\w+\s*:\s*name\s*\(.*\)|\w+\s*=\s*union\s*\(.*\)", re.DOTALL)


@dataclass
class _GraphParts:
    header: dict[str, float] = field(default_factory=dict)
    test: str = ""
    nodes: dict[int, Kernel | None] = field(default_factory=dict)
    edges: list[tuple[int, int, int]] = field(default_factory=list)


def parse_graph(text: str, file: str = "graph") -> ContestGraph:
    """Reads a `.kgraph`.

    Args:
        text: the file's content.
        file: its name, for messages.

    Raises:
        ContestFileError: the first line that is wrong, what it holds and what was expected.
    """
    parts = _GraphParts()
    for line, statement, is_comment in _statements(text):
        try:
            if is_comment:
                _read_header(parts, statement)
            elif "->" in statement:
                _read_edge(parts, statement, line)
            else:
                _read_node(parts, statement)
        except (ValueError, KeyError) as error:
            raise ContestFileError(f"{file}:{line}: {_reason(error)}") from None
    return _graph(parts, file)


def _reason(error: Exception) -> str:
    return f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)


def _statements(text: str) -> Iterator[tuple[int, str, bool]]:
    """Lines with their number; every line of a `(* ... *)` comment apart, flagged, without the marks."""
    inside = False
    for number, raw in enumerate(text.splitlines(), 1):
        rest = raw
        while rest.strip():
            mark = "*)" if inside else "(*"
            piece, found, rest = rest.partition(mark)
            if piece.strip():
                yield number, piece.strip(), inside
            if found:
                inside = not inside


def _read_header(parts: _GraphParts, statement: str) -> None:
    key, found, value = (piece.strip() for piece in statement.partition("="))
    if not found:
        return
    if key == "test":
        parts.test = value
    elif key in _HEADER_KEYS:
        try:
            parts.header[key] = float(value)
        except ValueError:
            raise ValueError(f"{key}={value}, expected a number") from None


def _read_node(parts: _GraphParts, statement: str) -> None:
    match = _NODE.fullmatch(statement)
    if match is None:
        raise ValueError(
            f"got {statement!r}, expected a node such as conv[1] W=14 ... name='k1' or an edge such as "
            "conv[1]:y -> conv[2]:x"
        )
    kind, number = match[1], int(match[2])
    if number in parts.nodes:
        raise ValueError(f"node [{number}] is defined twice")
    if kind in ("input", "output"):
        parts.nodes[number] = None
        return
    attributes = {key: value.strip("'") for key, value in _ATTRIBUTE.findall(match[3])}
    name = attributes.pop("name", f"k{number}")
    if not re.fullmatch(r"\w+", name):
        raise ValueError(f"name {name!r}, expected letters, digits and underscores")
    if any(node is not None and node.name == name for node in parts.nodes.values()):
        raise ValueError(f"the name {name!r} is taken by another node")
    parts.nodes[number] = _kernel(kind, name, attributes)


def _kernel(kind: str, name: str, attributes: dict[str, str]) -> Kernel:
    if kind not in KINDS:
        raise ValueError(f"node of kind {kind!r}, expected input, output, {', '.join(KINDS)}")
    wanted = "HWCKRSTU" if kind == "conv" else "hwf"
    absent = [key for key in wanted if key not in attributes]
    if absent:
        raise ValueError(f"{kind} without {', '.join(absent)}, expected {' '.join(f'{k}=' for k in wanted)}")
    sizes = {key: _integer(key, attributes[key]) for key in wanted}
    large = [f"{key}={size}" for key, size in sizes.items() if size > LARGEST_SIZE]
    if large:
        raise ValueError(f"{kind} with {', '.join(large)}, expected at most {LARGEST_SIZE}")
    if kind == "conv":
        return conv_kernel(name, sizes)
    return block_kernel(name, kind, sizes["h"], sizes["w"], sizes["f"])


def _integer(key: str, value: str) -> int:
    if not re.fullmatch(r"-?\d+", value):
        raise ValueError(f"{key}={value}, expected a whole number")
    return int(value)


def _read_edge(parts: _GraphParts, statement: str, line: int) -> None:
    match = _EDGE.fullmatch(statement)
    if match is None:
        raise ValueError(
            f"got {statement!r}, expected an edge such as conv[1]:y -> conv[2]:x, shape:[14][14][512]"
        )
    parts.edges.append((line, int(match[1]), int(match[2])))


def _graph(parts: _GraphParts, file: str) -> ContestGraph:
    absent = [key for key in _HEADER_KEYS if key not in parts.header]
    if absent:
        raise ContestFileError(
            f"{file}:1: {', '.join(absent)} not given, expected a line such as {absent[0]}=1 in the first "
            "comment"
        )
    header = parts.header
    for key in ("width", "height"):
        if not 1 <= header[key] <= LARGEST_SIDE or header[key] % 1:
            raise ContestFileError(
                f"{file}:1: {key}={header[key]:g}, expected a whole number from 1 to {LARGEST_SIDE}"
            )
    if not 1 <= header["memlimit"] < math.inf:
        raise ContestFileError(f"{file}:1: memlimit={header['memlimit']:g}, expected a number of at least 1")
    for key in ("wdeltat", "wlength", "wadapter"):
        if not 0 <= header[key] < math.inf:
            raise ContestFileError(f"{file}:1: {key}={header[key]:g}, expected a number of at least 0")
    indices: dict[int, int] = {}
    kernels: list[Kernel] = []
    for number, kernel in parts.nodes.items():
        if kernel is not None:
            indices[number] = len(kernels)
            kernels.append(kernel)
    if not kernels:
        raise ContestFileError(f"{file}:1: the graph has no kernel, expected a conv, dblock or cblock node")
    edges = []
    for line, source, target in parts.edges:
        for end in (source, target):
            if end not in parts.nodes:
                raise ContestFileError(f"{file}:{line}: edge to node [{end}], which is not defined")
        if source in indices and target in indices and source != target:
            edges.append(Edge(indices[source], indices[target]))
    return ContestGraph(
        test=parts.test,
        width=int(header["width"]),
        height=int(header["height"]),
        wdeltat=header["wdeltat"],
        wlength=header["wlength"],
        wadapter=header["wadapter"],
        memlimit=header["memlimit"],
        kernels=tuple(kernels),
        edges=tuple(edges),
    )


def format_solution(graph: ContestGraph, solution: Solution) -> str:
    """The text of a `.paint`, kernels in the order of the graph."""
    lines = ['include "common.paint"', ""]
    for kernel in graph.kernels:
        placed = solution[kernel.name]
        numbers = " ".join(str(number) for number in (*kernel.formal, *placed.splits.arguments))
        turn = "R90" if placed.rotated else "R0"
        lines += [
            f"{kernel.name} = {kernel.kind}( {numbers} )",
            f"{kernel.name} : name('{kernel.name})",
            f"{kernel.name} : place({placed.x} {placed.y} {turn})",
        ]
    names = " ".join(kernel.name for kernel in graph.kernels)
    return "\n".join([*lines, "", f"kmap = union( {names} )", ""])


def parse_solution(text: str, graph: ContestGraph, file: str = "solution") -> dict[str, Placed]:
    """Reads a `.paint` of a graph.

    Returns:
        The kernels that are both defined and placed; others are absent, which the score reports.

    Raises:
        ContestFileError: a line that cannot be read; a kernel that the graph does not have or has with other
            formal arguments; a kernel that is defined or placed twice.
    """
    kernels = {kernel.name: kernel for kernel in graph.kernels}
    defined: dict[str, tuple[int, ...]] = {}
    places: dict[str, tuple[int, int, bool]] = {}
    for line, statement, is_comment in _statements(text):
        if is_comment:
            continue
        try:
            _read_paint(statement, kernels, defined, places)
        except ValueError as error:
            raise ContestFileError(f"{file}:{line}: {error}") from None
    return {
        name: Placed(kernels[name].splits(defined[name]), *places[name]) for name in defined if name in places
    }


def _read_paint(
    statement: str,
    kernels: dict[str, Kernel],
    defined: dict[str, tuple[int, ...]],
    places: dict[str, tuple[int, int, bool]],
) -> None:
    readers: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], None]], ...] = (
        (_DEFINITION, lambda match: _read_definition(match, kernels, defined)),
        (_PLACE, lambda match: _read_place(match, kernels, places)),
        (_IGNORED, lambda _: None),
    )
    for pattern, reader in readers:
        if match := pattern.fullmatch(statement):
            return reader(match)
    raise ValueError(
        f"got {statement!r}, expected NAME = conv( ... ), NAME : place(x y R0|R90), NAME : name(...), "
        "include or union"
    )


def _read_definition(
    match: re.Match[str], kernels: dict[str, Kernel], defined: dict[str, tuple[int, ...]]
) -> None:
    name, kind = match[1], match[2]
    kernel = _find_kernel(name, kernels)
    numbers = tuple(_integer("argument", value) for value in match[3].split())
    formal, execution = numbers[: len(kernel.formal)], numbers[len(kernel.formal) :]
    if (kind, formal) != (kernel.kind, kernel.formal):
        expected = " ".join(str(number) for number in kernel.formal)
        raise ValueError(f"{name} is {kind}( {match[3].strip()} ), expected {kernel.kind}( {expected} ... )")
    if name in defined:
        raise ValueError(f"{name} is defined twice")
    try:
        kernel.splits(execution)
    except ValueError as error:
        given = " ".join(str(number) for number in execution)
        raise ValueError(f"{name} has the execution arguments ({given}), {error}") from None
    defined[name] = execution


def _read_place(
    match: re.Match[str], kernels: dict[str, Kernel], places: dict[str, tuple[int, int, bool]]
) -> None:
    name, turn = match[1], match[4]
    _find_kernel(name, kernels)
    if turn not in ("R0", "R90"):
        raise ValueError(f"{name} is turned {turn}, expected R0 or R90")
    if name in places:
        raise ValueError(f"{name} is placed twice")
    places[name] = (int(match[2]), int(match[3]), turn == "R90")


def _find_kernel(name: str, kernels: dict[str, Kernel]) -> Kernel:
    if name not in kernels:
        raise ValueError(
            f"kernel {name!r} is not in the graph, which has {', '.join(list(kernels)[:8])}, ..."
        )
    return kernels[name]
