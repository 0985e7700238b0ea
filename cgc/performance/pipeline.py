"""When each kernel works on a sample: the pipeline of the wafer, from the first sample on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from cgc.kernels.graph import Edge, Kernel


def start_cycles(
    kernels: Iterable[Kernel], edges: Iterable[Edge], cycles: Mapping[str, int]
) -> dict[str, int]:
    """Return the cycle at which each kernel starts on the first sample, by name.

    Sample n follows n intervals later on all kernels. A kernel starts when the first row of each of its
    inputs has been computed.

    Args:
        kernels: in data-flow order.
        edges: streams between them.
        cycles: cycles per sample of each kernel.
    """
    sources: dict[str, list[str]] = defaultdict(list)
    for edge in edges:
        sources[edge.dst].append(edge.src)
    first_row: dict[str, int] = {}
    starts: dict[str, int] = {}
    for kernel in kernels:
        # A stream from a later kernel carries values of an earlier sample.
        starts[kernel.name] = max((first_row.get(source, 0) for source in sources[kernel.name]), default=0)
        rows = max(1, kernel.parameters.get("rows", 1))
        first_row[kernel.name] = starts[kernel.name] + -(-cycles[kernel.name] // rows)
    return starts
