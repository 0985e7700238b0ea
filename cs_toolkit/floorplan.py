"""The floorplan of a compiled step, as the chief offers it with the step and the CS system's status shows it.

It crosses the network as JSON and comes from an unauthenticated peer, so it has limits and holds numbers and
names, never markup.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cs_toolkit.errors import ToolkitError

# A floorplan of 1,000 kernels has about 100 KB.
MAX_BYTES = 256 << 10
MAX_KERNELS = 4096
MAX_COPIES = 4096
_MAX_SIZE = 1 << 20  # PEs in a row or column
_NAME_CHARS, _TEXT_CHARS = 200, 1000


class FloorplanError(ToolkitError):
    """The text is not a floorplan within the limits."""


@dataclass(frozen=True)
class PlacedKernel:
    """A kernel on the wafer; positions and sizes are in PEs.

    Attributes:
        load: Its time for a sample as a part of the slowest kernel's; None if it was not estimated.
    """

    name: str
    x: int
    y: int
    width: int
    height: int
    load: float | None = None


@dataclass(frozen=True)
class Floorplan:
    """The placement of a step, or with streamed weights of its slowest layer.

    Attributes:
        part: Name of that layer; empty if the whole step is placed.
        width: Columns of the fabric, or of the part in use.
        height: Rows of it.
        kernels: Kernels of one copy of the model.
        copies: Corners (x, y) of further copies of them.
        bound_by: Names of the kernels that bound the rate.
        reason: Why, as a phrase; may be empty.
        samples_per_s: Estimated rate on the wafer.
    """

    part: str
    width: int
    height: int
    kernels: tuple[PlacedKernel, ...]
    copies: tuple[tuple[int, int], ...]
    bound_by: tuple[str, ...]
    reason: str
    samples_per_s: float

    def to_json(self) -> str:
        """Return compact JSON, or an empty text if the floorplan is over the limits."""
        kernels = [[k.name, k.x, k.y, k.width, k.height, k.load] for k in self.kernels]
        text = json.dumps(
            {
                "part": self.part,
                "size": [self.width, self.height],
                "kernels": kernels,
                "copies": self.copies,
                "bound_by": self.bound_by,
                "reason": self.reason,
                "samples_per_s": self.samples_per_s,
            },
            separators=(",", ":"),
        )
        try:
            read_floorplan(text)
        except FloorplanError:
            return ""
        return text


def read_floorplan(text: str) -> Floorplan:
    """Read `Floorplan.to_json` from an untrusted peer.

    Raises:
        FloorplanError: a value is invalid or over a limit.
    """
    if len(text) > MAX_BYTES:
        raise FloorplanError(f"the floorplan has {len(text):,} characters, expected at most {MAX_BYTES:,}")
    try:
        fields = json.loads(text)
        return _floorplan(fields)
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        raise FloorplanError(f"the floorplan cannot be read: {error}") from error


def _floorplan(fields: Mapping[str, Any]) -> Floorplan:
    width, height = (_whole(size, 1) for size in fields["size"])
    kernels, copies = fields["kernels"], fields["copies"]
    if len(kernels) > MAX_KERNELS or len(copies) > MAX_COPIES:
        raise ValueError(
            f"got {len(kernels)} kernels and {len(copies)} copies, expected at most {MAX_KERNELS} and "
            f"{MAX_COPIES}"
        )
    rate = fields["samples_per_s"]
    if not isinstance(rate, (int, float)) or not 0 <= rate < math.inf:
        raise ValueError(f"samples_per_s is {rate!r:.40}, expected a number of at least 0")
    return Floorplan(
        part=_text(fields["part"], _NAME_CHARS),
        width=width,
        height=height,
        kernels=tuple(_kernel(*kernel) for kernel in kernels),
        copies=tuple((_whole(x, 0), _whole(y, 0)) for x, y in copies),
        bound_by=tuple(_text(name, _NAME_CHARS) for name in fields["bound_by"][:MAX_KERNELS]),
        reason=_text(fields["reason"], _TEXT_CHARS),
        samples_per_s=float(rate),
    )


def _kernel(name: Any, x: Any, y: Any, width: Any, height: Any, load: Any) -> PlacedKernel:
    if load is not None and not (isinstance(load, (int, float)) and 0 <= load <= 1):
        raise ValueError(f"the load of a kernel is {load!r:.40}, expected 0 to 1")
    return PlacedKernel(
        _text(name, _NAME_CHARS),
        _whole(x, 0),
        _whole(y, 0),
        _whole(width, 1),
        _whole(height, 1),
        None if load is None else float(load),
    )


def _whole(value: Any, least: int) -> int:
    if type(value) is not int or not least <= value <= _MAX_SIZE:
        raise ValueError(f"got {value!r:.40}, expected a whole number from {least} to {_MAX_SIZE}")
    return value


def _text(value: Any, limit: int) -> str:
    if not isinstance(value, str) or len(value) > limit or not value.isprintable():
        raise ValueError(f"got {value!r:.40}, expected printable text of at most {limit} characters")
    return value
