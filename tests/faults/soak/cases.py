"""Random fault cases: what is run, what strikes it, and how the run may end.

A case is a function of a seed and a number, so that SOAK_CASE=SEED:NUMBER repeats it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal

FrontEnd = Literal["tensorflow", "torch"]
Execution = Literal["pipelined", "weight_streaming"]
Kind = Literal["kill", "terminate", "stop", "cut", "damage", "fill", "clock"]

PROCESSES = ("worker", "chief", "launcher", "system", "memoryx", "engine", "wafer")
VICTIMS: dict[Kind, tuple[str, ...]] = {
    "kill": (*PROCESSES, "agent", "node"),
    "terminate": ("worker", "chief", "launcher", "system", "memoryx"),
    "stop": PROCESSES,
    "cut": ("data", "control", "memoryx"),
    "damage": ("data", "control", "memoryx"),
    "fill": ("job", "memoryx"),
    "clock": ("job", "system"),
}
WEIGHTS: dict[Kind, int] = {
    "kill": 4,
    "terminate": 2,
    "stop": 4,
    "cut": 3,
    "damage": 3,
    "fill": 2,
    "clock": 2,
}
LAST_STEP = 100


@dataclass(frozen=True)
class Fault:
    """A fault and its moment.

    Attributes:
        kind: What happens.
        victim: The process, the connections, the disk or the clock to which it happens.
        worker: Which worker, if the victim is one: its index modulo the number of workers.
        step: Completed steps of the run at which it happens; None while the job starts.
        after_s: Seconds after this step, or after the start of the job.
        seconds: Length of a stop, jump of a clock, or time until a dead service returns.
        seed: Of further choices, such as the bit that is changed.
    """

    kind: Kind
    victim: str
    worker: int
    step: int | None
    after_s: float
    seconds: float
    seed: int

    def __str__(self) -> str:
        length = f" ({self.seconds:.1f} s)" if self.kind in ("stop", "clock") else ""
        moment = "at the start" if self.step is None else f"at step {self.step}"
        name = f"worker {self.worker}" if self.victim == "worker" else self.victim
        return f"{self.kind} {name}{length} {moment} + {self.after_s:.2f} s"

    def exit_codes(self) -> set[int]:
        """Return how `csrun_wse` may end because of this fault; 0 if the run has to survive it."""
        survived = {("stop", self.victim), ("clock", self.victim)}
        survived |= {(kind, "data") for kind in ("cut", "damage")}
        survived |= {(kind, "worker") for kind in ("kill", "terminate")}
        if (self.kind, self.victim) in survived:
            return {0}
        number = {"kill": signal.SIGKILL, "terminate": signal.SIGTERM}.get(self.kind, 0)
        if self.victim == "launcher":
            return {-number if self.kind == "kill" else 128 + number}
        if self.victim == "node":  # Slurm ends the other tasks if it has not started all
            return {0, 1, 128 + signal.SIGTERM}
        # A run that has everything it needs may end before it notices.
        return {0, 128 + number if self.victim == "chief" else 1}


@dataclass(frozen=True)
class Case:
    """A training run and the faults that strike it.

    Attributes:
        seed: Of all cases of a soak test.
        number: Of this one.
        front_end: Framework of the program.
        execution: Mode of execution.
        wafers: Number of wafers that share a batch.
        tls: The system and its MemoryX use mutual TLS.
        shares_memory: Batches may come in shared memory.
        standing: MemoryX is a process that serves many jobs.
        slurm: The tasks run on nodes of a cluster; otherwise they are processes of this machine.
        workers: Number of workers, in the first attempt and in later ones.
        compiles: Nobody has compiled the program before.
        faults: In the order of their steps.
    """

    seed: int
    number: int
    front_end: FrontEnd
    execution: Execution
    wafers: int
    tls: bool
    shares_memory: bool
    standing: bool
    slurm: bool
    workers: tuple[int, int]
    compiles: bool
    faults: tuple[Fault, ...]

    @property
    def name(self) -> str:
        """The value of SOAK_CASE that repeats it."""
        return f"{self.seed}:{self.number}"

    @property
    def victims(self) -> set[tuple[Kind, str]]:
        """The kinds of its faults, each with its victim."""
        return {(fault.kind, fault.victim) for fault in self.faults}

    def __str__(self) -> str:
        words = [
            self.front_end,
            self.execution,
            f"{self.wafers} wafer(s)",
            "slurm" if self.slurm else "local",
        ]
        words.append(f"{self.workers[0]} worker(s)")
        words += [f"then {self.workers[1]}"] if self.workers[0] != self.workers[1] else []
        words += ["TLS"] if self.tls else ["no TLS"]
        words += [] if self.shares_memory else ["no shared memory"]
        words += ["standing MemoryX"] if self.standing else []
        words += ["compiles"] if self.compiles else []
        return f"SOAK_CASE={self.name}: {', '.join(words)}: {'; then '.join(map(str, self.faults))}"


def draw_case(seed: int, number: int) -> Case:
    """Return the case of a seed and a number."""
    random = Random(f"{seed}:{number}")
    kind, victim = _draw_kind(random, VICTIMS)
    case = _draw_run(random, seed, number)
    # Not a victim that the run has: agents and wafers, which few runs have, would hardly ever be struck.
    while victim not in existing_victims(case).get(kind, ()):
        case = _draw_run(random, seed, number)
    faults = [_draw_fault(random, kind, victim, case.tls)]
    if random.random() < 0.3:
        faults.append(_draw_fault(random, *_draw_kind(random, existing_victims(case)), case.tls))
    faults.sort(key=lambda fault: -1 if fault.step is None else fault.step)
    return replace(case, faults=tuple(faults))


def _draw_run(random: Random, seed: int, number: int) -> Case:
    streaming = random.random() < 0.5
    # Every task imports its framework, which takes most of the time of a case.
    first = random.choice((1, 1, 2, 3))
    return Case(
        seed=seed,
        number=number,
        front_end=random.choice(("tensorflow", "torch")),
        execution="weight_streaming" if streaming else "pipelined",
        wafers=random.choice((1, 2)) if streaming else 1,
        tls=random.random() < 0.85,
        shares_memory=random.random() < 0.5,
        standing=streaming and random.random() < 0.5,
        slurm=random.random() < 0.2,
        workers=(first, first if random.random() < 0.8 else random.choice((1, 2, 3))),
        compiles=random.random() < 0.1,
        faults=(),
    )


def existing_victims(case: Case) -> dict[Kind, list[str]]:
    """Return the victims that a case has, for each kind that has any."""
    streaming = case.execution == "weight_streaming"
    absent = {
        *(() if streaming else ("memoryx",)),
        *(() if case.wafers > 1 else ("wafer",)),
        *(() if case.wafers == 1 else ("engine",)),
        *(() if case.slurm else ("agent", "node")),
    }
    found = {kind: [name for name in names if name not in absent] for kind, names in VICTIMS.items()}
    if not case.standing:  # its own MemoryX is part of the system
        for kind in ("cut", "damage", "terminate"):
            found[kind] = [name for name in found[kind] if name != "memoryx"]
    if case.slurm:  # a disk that is mounted later is none of the nodes'
        found["fill"] = [name for name in found["fill"] if name != "job"]
    return {kind: names for kind, names in found.items() if names}


def _draw_kind(random: Random, victims: Mapping[Kind, Sequence[str]]) -> tuple[Kind, str]:
    (kind,) = random.choices([*victims], [WEIGHTS[kind] for kind in victims])
    return kind, random.choice(victims[kind])


def _draw_fault(random: Random, kind: Kind, victim: str, tls: bool) -> Fault:
    # A full disk of MemoryX is noticed when a run asks for its space.
    starts = random.random() < 0.2 or (kind, victim) == ("fill", "memoryx")
    return Fault(
        kind,
        victim,
        worker=random.randrange(3),
        step=None if starts else random.randrange(LAST_STEP - 5),
        after_s=random.uniform(0, 6) if starts else random.uniform(0, 0.1),
        seconds=_draw_seconds(random, kind, tls),
        seed=random.randrange(1 << 30),
    )


def _draw_seconds(random: Random, kind: Kind, tls: bool) -> float:
    if kind == "stop":
        return random.uniform(5, 45) if random.random() < 0.1 else random.uniform(0.2, 5)
    if kind == "clock":  # certificates are valid for two days, and from ten minutes before their issue
        return random.uniform(-300 if tls else -40_000, 40_000)
    return random.uniform(0, 3)


def selected_cases() -> list[Case]:
    """Return the cases that the environment asks for: SOAK_CASE, or SOAK_FAULTS of SOAK_SEED."""
    if chosen := os.environ.get("SOAK_CASE"):
        return [parse_case(text) for text in chosen.split(",")]
    seed, count = int(os.environ.get("SOAK_SEED", "35")), int(os.environ.get("SOAK_FAULTS", "0"))
    first = int(os.environ.get("SOAK_FIRST", "0"))
    return [draw_case(seed, number) for number in range(first, first + count)]


def parse_case(text: str) -> Case:
    """Return the case SEED:NUMBER."""
    seed, _, number = text.partition(":")
    return draw_case(int(seed), int(number))
