"""Files of the contest, and the scorer on solutions made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.ispd2020.format import ContestFileError, format_solution, parse_graph, parse_solution
from benchmarks.ispd2020.model import Placed, Splits
from benchmarks.ispd2020.score import score

GRAPH = """(*
test=small
width=20
height=10
wdeltat=1
wlength=2
wadapter=0
memlimit=100
*)
(* Node Definitions *)
input[ 0] n=[ 4 4 2 ] name='k0'
conv[1] W=4 H=4 R=1 S=1 C=2 K=4 T=1 U=1 name='k1'
dblock[ 2] f=8 h=4 w=4 name='k2'
output[3] n=[4 4 8] name='k3'

(* Connectivity *)
input[0]:_	->	conv[1]:x, shape:[4][4][2]
conv[1]:y    -> dblock[ 2]:x, shape:[4][4][4]
dblock[ 2]:y -> output[3]:_, shape:[4][4][8]"""

PAINT = """include "common.paint"
k1 = conv( 4 4 2 4 1 1 1 1 2 1 2 1 )
k1 : name('k1)
k1 : place(0 0 R90)
k2 = dblock( 4 4 8 1 1 4 2 2 1 1 2 )
k2 : name('k2)
k2 : place(6 0 R0)
kmap = union( k1 k2 )
"""


def test_graph_is_read_as_written() -> None:
    graph = parse_graph(GRAPH)
    assert (graph.test, graph.width, graph.height, graph.wlength) == ("small", 20, 10, 2)
    assert [(kernel.name, kernel.kind) for kernel in graph.kernels] == [("k1", "conv"), ("k2", "dblock")]
    assert graph.kernels[0].formal == (4, 4, 2, 4, 1, 1, 1, 1)
    assert [(edge.source, edge.target) for edge in graph.edges] == [(0, 1)]


def test_solution_round_trip() -> None:
    graph = parse_graph(GRAPH)
    solution = parse_solution(PAINT, graph)
    assert solution["k1"] == Placed(Splits(2, 1, (2,), (1,)), 0, 0, True)
    assert parse_solution(format_solution(graph, solution), graph) == solution


def test_score_of_a_legal_solution() -> None:
    graph = parse_graph(GRAPH)
    found = score(graph, parse_solution(PAINT, graph))
    # k1: 6 high, 3 wide, turned: center (3, 1.5). k2: 5 high, 12 wide from x = 6: center (12, 2.5).
    assert found.legal
    assert found.time == max(2 * 4 * 1 * 4, 16 * 2 * 2, 16 * 1 * 2 * 9, 16 * 1 * 4)
    assert found.slowest == "k2"
    assert found.wires == 9 + 1
    assert found.objective == 288 + 2 * 10
    assert found.used_tiles == 18 + 60


def test_adapters_count_what_differs_at_an_edge() -> None:
    graph = replace(parse_graph(GRAPH), wadapter=100)
    solution = parse_solution(PAINT, graph)
    # h' is 2 against 1, w' is equal, k' = 1 against c' = 4.
    assert score(graph, solution).adapters == 2
    assert score(graph, solution).objective == 308 + 200


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("place(6 0 R0)", "place(5 0 R0)", "k1 on x 0..5, y 0..2 overlaps k2 on x 5..16, y 0..4"),
        ("place(6 0 R0)", "place(9 0 R0)", "k2 lies on x 9..20, y 0..4, expected to lie inside 20 x 10"),
        ("place(0 0 R90)", "place(0 8 R90)", "k1 lies on x 0..5, y 8..10"),
        ("place(0 0 R90)", "place(-1 0 R90)", "k1 lies on x -1..4"),
        ("place(0 0 R90)", "place(0 0 R0)", ""),
        ("k2 : place(6 0 R0)\n", "", "k2 is not placed"),
        ("1 1 4 2 2 1 1 2", "1 1 1 2 2 1 1 1", "k2 needs 136.0 words a tile, expected at most 100"),
    ],
)
def test_every_illegality_is_named(old: str, new: str, fault: str) -> None:
    graph = parse_graph(GRAPH)
    memory = graph if "136" in fault else replace(graph, memlimit=1000)
    found = score(memory, parse_solution(PAINT.replace(old, new), memory))
    assert found.legal == (not fault)
    assert fault in "".join(found.faults)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("W=4 H=4 R=1", "H=4 R=1", r"g:12: conv without W, expected H= W= C="),
        ("H=4 R=1", "H=4.5 R=1", r"g:12: H=4.5, expected a whole number"),
        ("W=4 H=4 R=1", "W=4 H=99999 R=1", r"g:12: conv with H=99999, expected at most 65536"),
        ("U=1", "U=2", r"g:12: strides T=1 and U=2 differ"),
        ("f=8", "f=6", r"g:13: h=4 w=4 f=6, expected .* multiple of 4"),
        ("dblock[ 2] f", "eblock[ 2] f", r"g:13: node of kind 'eblock', expected input, output, conv"),
        ("name='k2'", "name='k1'", r"g:13: the name 'k1' is taken"),
        ("dblock[ 2] f", "dblock[1] f", r"g:13: node \[1\] is defined twice"),
        ("-> dblock[ 2]:x", "-> dblock[7]:x", r"g:18: edge to node \[7\], which is not defined"),
        ("conv[1]:y    ->", "conv 1 ->", r"g:18: got 'conv 1 -> .*expected an edge such as"),
        ("width=20\n", "", r"g:1: width not given, expected a line such as width=1"),
        ("width=20", "width=wide", r"g:3: width=wide, expected a number"),
        ("height=10", "height=0", r"g:1: height=0, expected a whole number from 1 to 2000"),
        ("height=10", "height=99999", r"g:1: height=99999, expected a whole number from 1 to 2000"),
        ("wlength=2", "wlength=-2", r"wlength=-2, expected a number of at least 0"),
        ("wlength=2", "wlength=nan", r"wlength=nan, expected a number of at least 0"),
        ("width=20", "width=inf", r"width=inf, expected a whole number"),
        ("conv[1] W", "what is this?\nconv[1] W", r"g:12: got 'what is this\?', expected a node"),
    ],
)
def test_bad_graphs_name_the_line(old: str, new: str, message: str) -> None:
    with pytest.raises(ContestFileError, match=message) as caught:
        parse_graph(GRAPH.replace(old, new), "g")
    assert caught.value.exit_code == 2


def test_graph_without_kernels_is_refused() -> None:
    with pytest.raises(ContestFileError, match="has no kernel"):
        parse_graph(GRAPH[: GRAPH.index("conv[1]")])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("k1 = conv( 4 4 2", "k1 = conv( 4 4 3", r"p:2: k1 is conv\( 4 4 3 .*expected conv\( 4 4 2 4 "),
        ("2 1 2 1 )", "2 1 2 )", r"p:2: k1 has the execution arguments \(2 1 2\), expected 4"),
        ("2 1 2 1 )", "2 1 2 0 )", r"p:2: .*at least 1"),
        ("k1 = conv", "k9 = conv", r"p:2: kernel 'k9' is not in the graph, which has k1, k2"),
        ("R90", "R45", r"p:4: k1 is turned R45, expected R0 or R90"),
        ("k1 : place", "k2 : place", r"p:7: k2 is placed twice"),
        ("kmap =", "and now", r"p:8: got 'and now .*expected NAME = conv"),
    ],
)
def test_bad_solutions_name_the_line(old: str, new: str, message: str) -> None:
    with pytest.raises(ContestFileError, match=message):
        parse_solution(PAINT.replace(old, new), parse_graph(GRAPH), "p")
