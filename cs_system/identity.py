"""What the tasks of a job have to agree on before any batch travels."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from cs_system.proto import cs_system_pb2 as pb


@dataclass(frozen=True)
class InputIdentity:
    """The input of one run as one task sees it.

    Attributes:
        run: Number of the run among all that the program makes on the system, from 1: `train` and `evaluate`
            after it are 1 and 2. It tells a worker that is ahead of the chief from one with another input.
        facts: Name -> text of what must be equal in all tasks, in the order in which differences are told.
    """

    run: int
    facts: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the facts, as the data plane compares them."""
        text = json.dumps(dict(self.facts), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def differences(self, worker: InputIdentity) -> list[str]:
        """What a worker has else than the chief, whose identity this is; empty where they agree."""
        names = [*self.facts, *(name for name in worker.facts if name not in self.facts)]
        return [
            f"{name}: {worker.facts.get(name, 'nothing')} in the worker, "
            f"{self.facts.get(name, 'nothing')} in the chief"
            for name in names
            if worker.facts.get(name) != self.facts.get(name)
        ]


def identity_to_wire(identity: InputIdentity) -> pb.InputIdentity:
    """The message of an identity."""
    facts = [pb.Fact(name=name, text=text) for name, text in identity.facts.items()]
    return pb.InputIdentity(run=identity.run, facts=facts)


def identity_from_wire(message: pb.InputIdentity) -> InputIdentity:
    """The reverse of `identity_to_wire`."""
    return InputIdentity(message.run, {str(fact.name): str(fact.text) for fact in message.facts})
