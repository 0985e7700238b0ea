"""What an input could do better, for the log of a run: found by whoever knows its framework.

The front end of TensorFlow asks `input_rules.tf.inspection` itself. What is known of torch's loaders is the
analyzer's: as in `handover`, neither side imports the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module

from input_rules.finding import Finding
from input_rules.handover import InputProgram
from input_rules.pipeline import Framework

INSPECTORS: Mapping[Framework, str] = {"torch": "input_analyzer.torch.inspection:inspect"}
"""MODULE:FUNCTION, which is given the program and the number of workers."""


@dataclass(frozen=True)
class Inspection:
    """What was found.

    Attributes:
        findings: The gravest first.
        notes: What a reader must know beside, one sentence each.
    """

    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()


def inspect(program: InputProgram, workers: int) -> Inspection:
    """Makes the input and looks at it, without timing it.

    Args:
        program: Its input function.
        workers: Tasks that read it.
    """
    module, _, function = INSPECTORS[program.framework].partition(":")
    found: Inspection = getattr(import_module(module), function)(program, workers)
    return found
