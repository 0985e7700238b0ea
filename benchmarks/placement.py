"""Placement: the graphs of the ISPD 2020 contest, and kernel graphs of deep networks.

`python -m benchmarks.placement` prints both tables; `--time-limit` and `--graphs` choose what is solved.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import click
import numpy as np

from benchmarks.contest_graphs import contest_graphs
from benchmarks.harness import Row, table
from benchmarks.ispd2020.format import parse_graph
from benchmarks.ispd2020.model import ContestGraph
from benchmarks.ispd2020.solve import Result, solve
from cgc.kernels import Edge, Kernel, KernelGraph
from cgc.placement import Placement, place
from cgc.placement.shapes import areas, kernel_shapes, targets_from
from cs_toolkit.fabric import load_fabric

SAMPLES = {"A": 74_617.5, "C": 154_597.5, "D": 61_891.5}
"""Objectives of the public sample solutions."""

WITHOUT_ADAPTERS = "ABCDIJKLMN"
TARGET_RATIO = 1.25
TIME_LIMIT_S = 20.0


def contest_rows(letters: str = WITHOUT_ADAPTERS, time_limit_s: float = TIME_LIMIT_S) -> list[Row]:
    """One row a graph; the ratio is the one of the objective to the area bound of the time."""
    texts = contest_graphs()
    return [_contest_row(letter, parse_graph(texts[letter]), time_limit_s) for letter in letters]


def _contest_row(letter: str, graph: ContestGraph, time_limit_s: float) -> Row:
    result = solve(graph, time_limit_s)
    score, bounds = result.score, result.known_bounds
    ratio = score.objective / (graph.wdeltat * bounds.area_time)
    # Heavy wires make the area bound of the time meaningless: no solution comes near it.
    reachable = max(graph.wdeltat * bounds.area_time, bounds.objective)
    adapters = f", adapters {score.adapters}" if graph.wadapter else ""
    return Row(
        f"ISPD 2020 {letter}, {len(graph.kernels)} kernels",
        f"{score.objective:,.1f} = {score.time:,.0f} cycles + {graph.wlength:g} x {score.wires:,.1f} tiles"
        f"{adapters}; {result.seconds:.0f} s",
        _contest_bounds(letter, graph, result),
        ratio,
        f"≤ {TARGET_RATIO} x the higher bound",
        score.legal and score.objective <= TARGET_RATIO * reachable,
    )


def _contest_bounds(letter: str, graph: ContestGraph, result: Result) -> str:
    bounds = result.known_bounds
    text = f"area bound {graph.wdeltat * bounds.area_time:,.0f}, with wires {bounds.objective:,.0f}"
    return f"{text}; public sample {SAMPLES[letter]:,.1f}" if letter in SAMPLES else text


@dataclass(frozen=True)
class _Network:
    """A deep network: blocks of eleven kernels, as in a Transformer.

    Attributes:
        blocks: how many.
        hidden: neurons between blocks.
        length: positions of a sample.
        limit_s: seconds that placing it may take.
    """

    blocks: int
    hidden: int
    length: int
    limit_s: float


NETWORKS = (_Network(12, 768, 128, 4.0), _Network(50, 256, 128, 4.0), _Network(180, 128, 64, 15.0))


def compiler_rows() -> list[Row]:
    """Return one row per network: seconds, and the distance of speed and wires from their bounds."""
    return [_compiler_row(network) for network in NETWORKS]


def _compiler_row(network: _Network) -> Row:
    graph, fabric = _transformer(network), load_fabric("cs2")
    start = time.perf_counter()
    placement = place(graph, fabric)
    seconds = time.perf_counter() - start
    shapes = kernel_shapes(graph.kernels, fabric)
    targets = targets_from(shapes, max(int(kernel.cycles[0]) for kernel in shapes))
    bound = int(targets[np.argmax(areas(shapes, targets) <= fabric.processing_elements)])
    slowest = max(layout.cycles for layout in placement.layouts.values())
    return Row(
        f"placing {len(graph.kernels)} kernels of {network.blocks} blocks",
        f"{seconds:.1f} s; {placement.total_utilization:.0%} of the fabric, slowest {slowest:,} cycles, "
        f"{placement.wire_length / len(graph.edges):.0f} PEs a wire",
        f"area bound {bound:,} cycles; {_anywhere(placement):.0f} PEs a wire without order",
        None,
        f"≤ {network.limit_s:g} s",
        seconds <= network.limit_s,
    )


def _anywhere(placement: Placement) -> float:
    """Mean distance of all pairs of kernels: the length of a wire if places did not depend on the wires."""
    centers = [rect.center for rect in placement.rects.values()]
    return float(np.mean([abs(a[0] - b[0]) + abs(a[1] - b[1]) for a, b in combinations(centers, 2)]))


def _transformer(network: _Network) -> KernelGraph:
    kernels = [_loops("embedding", network, 1, 4)]
    edges: list[tuple[str, str]] = []
    previous = "embedding"
    for block in range(network.blocks):
        for kernel, sources in _block(f"block{block}", previous, network):
            kernels.append(kernel)
            edges += [(source, kernel.name) for source in sources]
        previous = kernels[-1].name
    both = [Edge(*pair, network.hidden) for edge in edges for pair in (edge, edge[::-1])]
    return KernelGraph(tuple(kernels), tuple(both), batch_size=256)


def _block(name: str, before: str, network: _Network) -> Iterator[tuple[Kernel, list[str]]]:
    """The kernels of a block with their sources; gradients flow the other way."""
    hidden = network.hidden

    def at(part: str) -> str:
        return f"{name}.{part}"

    for part in ("query", "key", "value"):
        yield _layer(at(part), network, hidden, hidden), [before]
    yield _loops(at("softmax"), network, 1, 90), [at("query"), at("key")]
    yield _layer(at("project"), network, hidden, hidden), [at("softmax"), at("value")]
    yield _loops(at("add1"), network, 1, 8), [at("project"), before]
    yield _loops(at("norm1"), network, 1, 20), [at("add1")]
    yield _layer(at("up"), network, hidden, 4 * hidden), [at("norm1")]
    yield _loops(at("gelu"), network, 4, 200), [at("up")]
    yield _layer(at("down"), network, 4 * hidden, hidden), [at("gelu")]
    yield _loops(at("add2"), network, 1, 8), [at("down"), at("norm1")]


def _layer(name: str, network: _Network, inputs: int, outputs: int) -> Kernel:
    sizes = {
        "rows": network.length,
        "inputs": inputs,
        "outputs": outputs,
        "passes": 3,
        "element_bytes": 2,
        "resident_bytes": 14 * inputs * outputs,
        "stash_bytes": 8 * network.length * inputs,
        "epilogue_millicycles": 500 * outputs * network.length,
        "step_millicycles": 45_000 * inputs * outputs,
        "reload": 0,
        "batch": 256,
    }
    return Kernel(name, "fully_connected", sizes)


def _loops(name: str, network: _Network, width: int, cycles_per_element: int) -> Kernel:
    elements = width * network.hidden
    sizes = {
        "rows": network.length,
        "row_elements": elements,
        "starts": 2,
        "reductions": 0,
        "work_millicycles": 1000 * cycles_per_element * elements * network.length,
        "step_millicycles": 0,
        "streamed_elements": elements * network.length,
        "element_bytes": 2,
        "resident_bytes": 0,
        "stash_bytes": 8 * elements * network.length,
        "batch": 256,
    }
    return Kernel(name, "elementwise", sizes)


def rows() -> list[Row]:
    """All rows of `make bench`."""
    return [*contest_rows(), *compiler_rows()]


@click.command()
@click.option("--time-limit", default=TIME_LIMIT_S, show_default=True, help="Seconds for each contest graph.")
@click.option(
    "--graphs", default=WITHOUT_ADAPTERS, show_default=True, help="Letters of contest graphs, A to T."
)
def main(time_limit: float, graphs: Sequence[str]) -> None:
    """Print the tables of the placement benchmark."""
    for row in (*contest_rows("".join(graphs), time_limit), *compiler_rows()):
        print(table([row]).splitlines()[-1], flush=True)


if __name__ == "__main__":
    main()
