"""Common parts of benchmarks: interleaved rounds, medians and ratios of pairs, the table."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        name: What is measured.
        ours: Our median with its unit.
        others: The contenders' medians, or a limit.
        ratio: Our figure over the better contender's (median of the ratios of each round); None where the
            target is an absolute one.
        target: What we are after.
        met: Whether it is reached.
    """

    name: str
    ours: str
    others: str
    ratio: float | None
    target: str
    met: bool


def interleave(contenders: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Runs every contender once a round, starting each round with another one.

    Args:
        contenders: Name to a function that measures once and returns its figure.
        rounds: Number of rounds.

    Returns:
        The figures of each contender by round.
    """
    names = list(contenders)
    figures: dict[str, list[T]] = {name: [] for name in names}
    for number in range(rounds):
        for offset in range(len(names)):
            name = names[(number + offset) % len(names)]
            figures[name].append(contenders[name]())
    return figures


def ratio_to_best(figures: Mapping[str, list[float]], ours: str) -> float:
    """Median over the rounds of our figure over the best other figure of that round; more is better."""
    others = [values for name, values in figures.items() if name != ours]
    return statistics.median(mine / max(best) for mine, *best in zip(figures[ours], *others, strict=True))


def medians_text(figures: Mapping[str, list[float]], skip: str, unit: str) -> str:
    """`name 123 unit` of every contender but one."""
    return ", ".join(
        f"{name} {statistics.median(values):,.0f} {unit}" for name, values in figures.items() if name != skip
    )


def machine() -> str:
    """The machine in one line: processor, cores, memory, versions."""
    packages = " ".join(
        f"{name} {metadata.version(name)}" for name in ("jax", "tensorflow-cpu", "torch", "numpy")
    )
    return f"{_cpu()}, {_cores()} cores, {_memory_gib()} GiB; Python {platform.python_version()}, {packages}"


def table(rows: list[Row]) -> str:
    """The rows as a Markdown table."""
    lines = ["| what | ours | against | ratio | target | met |", "|---|---|---|---|---|---|"]
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        met = "yes" if row.met else "**no**"
        lines.append(f"| {row.name} | {row.ours} | {row.others} | {ratio} | {row.target} | {met} |")
    return "\n".join(lines)


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _memory_gib() -> int:
    kib = int(Path("/proc/meminfo").read_text().split()[1])
    return round(kib / 2**20)
