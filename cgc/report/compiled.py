"""What a report says of the step that was compiled, besides its estimates."""

from __future__ import annotations

from collections.abc import Sequence

from cgc.provenance import Provenance
from cs_toolkit.fabric import Fabric
from cs_toolkit.step import Precision

_LABEL_WIDTH = 47


def what_was_compiled(
    precision: Precision, batch_size: int, fabric: Fabric, made: Provenance | None
) -> list[tuple[str, str]]:
    """Lines of (label, text): the program as far as it is known, then what holds for every step."""
    known = dict((made or Provenance()).lines())
    size = f"{fabric.name}, {fabric.width:,} x {fabric.height:,} PEs at {fabric.clock_hz / 1e6:,.0f} MHz"
    lines = {
        "Model": known.pop("Model", ""),
        "Program": known.pop("Program", ""),
        "Command": known.pop("Command", ""),
        "Precision": str(precision),
        "Batch": f"{batch_size:,} samples a step",
        "Fabric": size,
        **known,
    }
    return [(label, text) for label, text in lines.items() if text]


def compiled_text(lines: Sequence[tuple[str, str]]) -> str:
    """The same as text, in the layout of the head."""
    return "\n".join(f"{label + ':':<{_LABEL_WIDTH}}{text}" for label, text in lines)
