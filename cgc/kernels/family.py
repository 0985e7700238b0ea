"""What a kernel family is: one file of `cgc.kernels.families`, with one record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from cgc.kernels.configurations import Configurations

if TYPE_CHECKING:
    from cgc.kernels.assignment import Assignment, Group
    from cgc.kernels.program import Program

CostFunction = Callable[[Mapping[str, int]], Configurations]
Rule = Callable[["Assignment"], None]
"""Gives free ops of a step to kernels."""


class Naming(Enum):
    """How the kernels of a family are called in reports."""

    NUMBERED = auto()
    """By their label and a number, whatever the layer is called, as in published reports."""
    BY_LAYER = auto()
    """By the path of their layer, else by their label and a number."""
    PLAIN = auto()
    """By their label."""


def _labelled_by_name(_program: Program, group: Group) -> str:
    return group.family.name


@dataclass(frozen=True, kw_only=True)
class Family:
    """A kind of kernel.

    Attributes:
        name: of the family, in `Kernel.family`.
        doc: what its kernels do, one line.
        match: the rule that opens its kernels; None where the loop nests of generated kernels do.
        cost: all layouts of a kernel from its parameters.
        parameters: the keys that `cost` reads.
        optional: keys that it reads where they are given.
        figures: the parameters of a group, without those that all families have (`batch`, `stash_bytes`,
            `resident_bytes`) and those of images.
        rows: rows of a sample that stream through a kernel one after the other.
        delay: samples that a kernel holds back, where that is not one of its rows; None for the others.
        has_images: lines of images stream through its kernels.
        keeps_samples: what its backward ops read waits in its own memory; else it lies with the kernels
            beside it that have weights.
        computes_again: its results are computed again for the gradient, from what it read.
        takes_layer: what is left of a kernel's layer belongs to it.
        label: of a group, in names.
        naming: what else is in a name.
        fastest: the law that limits a kernel at its fastest layout; a template of its parameters.
    """

    name: str
    doc: str
    match: Rule | None
    cost: CostFunction
    parameters: frozenset[str]
    figures: Callable[[Assignment, Group], dict[str, int]]
    rows: Callable[[Assignment, Group], int]
    fastest: str
    optional: frozenset[str] = frozenset()
    delay: Callable[[Group], float | None] = lambda _group: None
    has_images: bool = False
    keeps_samples: bool = True
    computes_again: bool = False
    takes_layer: bool = False
    label: Callable[[Program, Group], str] = _labelled_by_name
    naming: Naming = Naming.NUMBERED
