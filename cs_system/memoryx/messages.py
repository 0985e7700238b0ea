"""What a wafer tells MemoryX of a model before its state comes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from cs_system.errors import MemoryxError
from cs_toolkit.errors import ToolkitError
from cs_toolkit.schedule import Schedule, schedule_from_json
from cs_toolkit.step import StepInterface, TensorSpec


@dataclass(frozen=True)
class Opening:
    """A model.

    Attributes:
        schedule: of its step.
        functions: of those that MemoryX computes, by number, what goes in and out; their bytes follow in
            this order.
        token: by which other wafers join, that get the same weights, and readers of the state.
        listeners: how many other wafers.
        shard: which part of the model this process has.
        shards: how many parts there are.
    """

    schedule: Schedule
    functions: dict[int, StepInterface]
    token: str
    listeners: int = 0
    shard: int = 0
    shards: int = 1

    def to_json(self) -> bytes:
        """As text."""
        functions = {
            number: [_to_json(interface.state), _to_json(interface.inputs), _to_json(interface.outputs)]
            for number, interface in self.functions.items()
        }
        fields: dict[str, Any] = {"schedule": self.schedule.to_json(), "functions": functions}
        fields |= {"token": self.token, "listeners": self.listeners}
        return json.dumps({**fields, "shard": self.shard, "shards": self.shards}).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Opening:
        """The inverse of `to_json`.

        Raises:
            MemoryxError: the text is none of these.
        """
        try:
            fields = json.loads(text)
            functions = {
                int(number): StepInterface(_from_json(inputs), _from_json(state), _from_json(outputs), ())
                for number, (state, inputs, outputs) in fields["functions"].items()
            }
            schedule = schedule_from_json(fields["schedule"])
            numbers = (int(fields[name]) for name in ("listeners", "shard", "shards"))
            return cls(schedule, functions, str(fields["token"]), *numbers)
        except (ValueError, TypeError, KeyError, ToolkitError) as error:
            raise MemoryxError(f"the wafer told no model that MemoryX understands: {error!r}") from error


def _to_json(specs: tuple[TensorSpec, ...]) -> list[list[Any]]:
    return [[spec.name, spec.dtype, list(spec.shape)] for spec in specs]


def _from_json(specs: list[list[Any]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name, dtype, tuple(shape)) for name, dtype, shape in specs)
