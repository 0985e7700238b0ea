"""The options of an execution: one record of their names, types, defaults, help texts and checks.

The signatures, flags, configurations and tables of options of both front ends are made from it. It is in the
foundation, because the compiler and the CS system read some of the options too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from inspect import cleandoc
from operator import index
from textwrap import fill
from types import MappingProxyType
from typing import Any, Literal, TypeVar, get_args

from cs_toolkit.errors import UsageError, suggestion
from cs_toolkit.step import EXECUTION_CHOICES, PRECISIONS, ExecutionChoice, Precision

AUTO: Literal["auto"] = "auto"
ReplicaChoice = int | Literal["auto"]
"""A number of replicas of the model on one wafer; auto chooses the one with the best predicted rate."""
Recompute = Literal["auto", "none", "all"]
"""Layers that recompute their forward part in the backward pass; auto for as few as memory requires."""
InputPosition = Literal["toolkit", "program"]
"""Which side skips the batches that earlier runs have used when a training run resumes."""

INPUT_ORDER_VARIABLE = "CSRUN_INPUT_ORDER"
ALLOW_INPUT_CHANGE_VARIABLE = "CSRUN_ALLOW_INPUT_CHANGE"
"""Set by `csrun_wse --input-order` and `--allow-input-change`, for programs that have no such options."""

EXECUTION_VARIABLE = "CSRUN_EXECUTION"
"""Set by `python-ws` to select weight streaming for programs that choose no execution mode."""

# Smaller values of `max_act_per_csx` are numbers of activation servers in programs of the original stack.
SERVERS_BELOW = 1000

_AUTO_NUMBER = -1  # auto in programs of the original stack
_UNIT_BYTES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZE = re.compile(r"([0-9.]+(?:e[0-9]+)?) *([KMGT]?B)?", re.IGNORECASE)

Documented = TypeVar("Documented")


class OptionError(UsageError, ValueError):
    """An option has an invalid value, or options exclude each other."""


@dataclass(frozen=True)
class Option:
    """An option, apart from its type and default, which are those of its field in `ExecutionOptions`.

    Attributes:
        help: Description for the user.
        expected: The valid values, for the user.
        parse: Converts a value, in any of the spellings of users; TypeError or ValueError if it is invalid.
        choices: The valid values of an option that is one of several words.
        configure_default: Its default in `cstorch.configure`, as the original documents it; None for the
            default of the field.
        flag: Type of the command-line argument in programs of releases 1.x; None if they have no such flag.
        estimator_only: Only TensorFlow programs have it: PyTorch has its own API for the same.
    """

    help: str
    expected: str
    parse: Callable[[Any], Any]
    choices: Sequence[str] = ()
    configure_default: Any = None
    flag: Callable[[str], Any] | None = None
    estimator_only: bool = False


def default_execution() -> ExecutionChoice:
    """Return the execution mode of a program that chooses none."""
    return "weight_streaming" if os.environ.get(EXECUTION_VARIABLE) == "weight_streaming" else "auto"


def default_input_order() -> str:
    """Return the order of the input of a program that chooses none."""
    return os.environ.get(INPUT_ORDER_VARIABLE) or "fixed"


def _parse_text(value: Any) -> str:
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise TypeError
    return str(os.fspath(value))


def default_allow_input_change() -> bool:
    """Return the launcher's setting of `allow_input_change`, for programs that do not set it."""
    return os.environ.get(ALLOW_INPUT_CHANGE_VARIABLE) == "1"


def _parse_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _parse_count(value: Any) -> int:
    """Parse a whole number of 1 or more, which may be a NumPy integer."""
    number = index(value)
    if isinstance(value, bool) or number < 1:
        raise ValueError
    return number


def _parse_count_or_auto(value: Any) -> int | Literal["auto"]:
    return AUTO if value == AUTO else _parse_count(value)


def _parse_replicas(value: Any) -> ReplicaChoice:
    number = int(value) if isinstance(value, str) and value != AUTO else value
    return AUTO if number == _AUTO_NUMBER else _parse_count_or_auto(number)


def _parse_size(value: Any) -> int | None:
    size = value
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        size = float(match[1]) * _UNIT_BYTES[(match[2] or "").upper()] if match else None
    if not isinstance(size, int | float) or isinstance(size, bool) or not 0 <= size < float("inf"):
        raise ValueError
    return None if size < SERVERS_BELOW else int(size)


def _option(text: str, expected: str, parse: Callable[[Any], Any], **more: Any) -> Mapping[str, Option]:
    return {"option": Option(text, expected, parse, **more)}


def _choice(text: str, choices: Sequence[str], **more: Any) -> Mapping[str, Option]:
    def parse(value: Any) -> Any:
        if value not in choices:
            raise ValueError
        return value

    return _option(text, f"one of {', '.join(choices)}", parse, choices=choices, **more)


@dataclass(frozen=True, kw_only=True)
class ExecutionOptions:
    """How the CS system executes the steps of a run.

    A field is an option: its type, its default, and an `Option` with the rest. `change` parses values as
    users write them; the constructor takes parsed ones.
    """

    precision: Precision = field(
        default="float32",
        metadata=_choice(
            "Number format of activations and their gradients. Master weights, optimizer, losses and "
            "statistics stay float32.",
            PRECISIONS,
            estimator_only=True,
        ),
    )
    execution: ExecutionChoice = field(
        default_factory=default_execution,
        metadata=_choice(
            "How a step is executed: `pipelined`, with all layers on the wafer at once; `weight_streaming`, "
            "layer by layer, with weights from MemoryX; `auto`, pipelined if the model fits on the wafer, "
            "else `weight_streaming`. The default is `weight_streaming` under `python-ws`, else `auto`.",
            EXECUTION_CHOICES,
        ),
    )
    num_csx: int = field(
        default=1,
        metadata=_option(
            "Number of CS systems that share a batch by weight streaming.",
            "a whole number of 1 or more",
            _parse_count,
            flag=int,
        ),
    )
    num_replicas: ReplicaChoice = field(
        default=1,
        metadata=_option(
            "Number of copies of the model on one wafer that share a batch, pipelined: a divisor of the "
            "batch size, or `auto` (also -1) for the number with the best predicted rate.",
            "a whole number of 1 or more, or 'auto' for the fastest number of copies of the model",
            _parse_replicas,
            flag=str,
        ),
    )
    max_act_per_csx: int | None = field(
        default=None,
        metadata=_option(
            "With weight streaming, maximum bytes of stored activations in one system, or a text such as "
            '"16 GB"; None for the memory of the wafer. A number below 1,000 counts activation servers, as '
            "in programs of the original stack, and sets no limit.",
            "a number of bytes, a text such as '16 GB', or None for the memory of the wafer",
            _parse_size,
            configure_default=1,
        ),
    )
    recompute: Recompute = field(
        default="auto",
        metadata=_choice(
            "With weight streaming, layers that recompute their forward part in the backward pass instead of "
            "storing it: `auto`, as few as make the activations fit; `none`; `all`.",
            get_args(Recompute),
        ),
    )
    micro_batch_size: int | Literal["auto"] = field(
        default=AUTO,
        metadata=_option(
            "With weight streaming, number of samples of a system that pass through the layers together in "
            "training; their gradients are accumulated. `auto`: as many as fit.",
            "a whole number of 1 or more samples, or 'auto' for as many as fit",
            _parse_count_or_auto,
        ),
    )
    max_wgt_servers: int | None = field(
        default=None,
        metadata=_option(
            "With weight streaming, maximum number of MemoryX processes that share the layers; None for all "
            "that the system has.",
            "a whole number of 1 or more, or None for all",
            _parse_count,
            configure_default=24,
            flag=int,
        ),
    )
    input_position: InputPosition = field(
        default="toolkit",
        metadata=_choice(
            "Which side skips the batches that earlier runs have used, when training resumes on the CS "
            "system: `toolkit`, or `program` if `input_fn` does. The default is `toolkit`, or `program` for "
            "the classes with the names of the original stack.",
            get_args(InputPosition),
            estimator_only=True,
        ),
    )
    input_shards: int | Literal["auto"] = field(
        default=AUTO,
        metadata=_option(
            "Number of shards over which the order of the input is defined when training starts; each worker "
            "reads its part of them, with an iterator for each. `auto`: one a worker. With more, a run can "
            "resume with more workers without reading a shard in several of them.",
            "a whole number of 1 or more, or 'auto' for one shard a worker",
            _parse_count_or_auto,
        ),
    )
    input_order: str = field(
        default_factory=default_input_order,
        metadata=_option(
            "Order in which batches of the workers are used: `fixed`, in rotation; `first-ready`, as they "
            "come, with a log in `input_order.shards`; or such a file of an earlier run, to replay its "
            "order. The default is `fixed`, or the value of `csrun_wse --input-order`.",
            "fixed, first-ready, or a file input_order.shards of an earlier run",
            _parse_text,
        ),
    )
    allow_input_change: bool = field(
        default_factory=default_allow_input_change,
        metadata=_option(
            "Resume with another number of workers although the program determines what each of them reads, "
            "so that samples are repeated and lost. The default is False, or True under "
            "`csrun_wse --allow-input-change`.",
            "True or False",
            _parse_bool,
        ),
    )

    def change(self, given: Mapping[str, Any]) -> ExecutionOptions:
        """Return these options with others changed, by name; None sets an option to its default.

        Raises:
            OptionError: A value is invalid.
        """
        return replace(self, **{name: parse_option(name, value) for name, value in given.items()})

    @property
    def streaming(self) -> Streaming:
        """The options of weight streaming that the compiler reads."""
        return Streaming(self.num_csx, self.max_act_per_csx, self.recompute, self.micro_batch_size)

    @property
    def share(self) -> SystemShare:
        """The part of the CS system that runs the step."""
        return SystemShare(self.num_csx, self.max_wgt_servers)

    @property
    def program_skips_batches(self) -> bool:
        """True if the program's input function skips the batches that earlier runs have used."""
        return self.input_position == "program"

    @property
    def needs_streaming(self) -> bool:
        """True if several wafers share a batch, which leaves execution auto no choice."""
        return self.num_csx > 1 and self.execution == "auto"

    def check(self) -> None:
        """Check that the options do not exclude each other.

        Raises:
            OptionError: Two of them do.
        """
        if self.num_csx > 1 and self.execution == "pipelined":
            raise OptionError(
                f"num_csx is {self.num_csx} with execution 'pipelined', expected 1: several CS systems share "
                "a batch only by weight streaming; set execution to weight_streaming, or leave it auto"
            )
        if self.num_replicas not in (1, AUTO) and (self.execution == "weight_streaming" or self.num_csx > 1):
            conflict = f"num_csx {self.num_csx}" if self.num_csx > 1 else "execution 'weight_streaming'"
            raise OptionError(
                f"num_replicas is {self.num_replicas} with {conflict}, expected 1: replicas are copies of a "
                "whole model on one wafer, weight streaming has one layer at a time there; remove one of the "
                "two"
            )

    def check_batch(self, batch_size: int, *, trains: bool) -> None:
        """Check that wafers, replicas and micro-batches can share a batch of the run.

        Args:
            batch_size: Samples in a batch.
            trains: True for a training run, which has micro-batches.

        Raises:
            OptionError: They cannot.
        """
        self.check()
        error = replica_error(batch_size, self.num_replicas)
        if error is None and batch_size % self.num_csx:
            error = (
                f"a batch of {batch_size} samples cannot be shared equally by {self.num_csx} CS systems; "
                f"choose a batch size that {self.num_csx} divides, or another num_csx"
            )
        if error is None and trains:
            error = micro_batch_error(batch_size, self.streaming)
        if error is None and self.micro_batch_size != AUTO and self.execution == "pipelined":
            error = (
                f"micro_batch_size is {self.micro_batch_size} with execution 'pipelined', expected none: "
                "samples flow through the pipeline one by one; remove it, or set execution to auto"
            )
        if error is not None:
            raise OptionError(error)


@dataclass(frozen=True)
class Streaming:
    """Options of weight streaming that the compiler reads, see `ExecutionOptions`.

    Attributes:
        max_act_bytes: Limit of stored activations per system; None for the capacity of the wafer.
    """

    num_csx: int = 1
    max_act_bytes: int | None = None
    recompute: Recompute = "auto"
    micro_batch_size: int | Literal["auto"] = "auto"


@dataclass(frozen=True)
class SystemShare:
    """The part of a CS system that a program uses.

    Attributes:
        wafers: Number of wafers that share a batch.
        weight_servers: Maximum number of MemoryX processes that share the layers; None for all of the system.
    """

    wafers: int = 1
    weight_servers: int | None = None


ONE_WAFER = SystemShare()

OPTIONS: Mapping[str, Option] = MappingProxyType(
    {member.name: member.metadata["option"] for member in fields(ExecutionOptions)}
)
"""All options by name, in the order of the fields."""

SHARED_OPTIONS = tuple(name for name, option in OPTIONS.items() if not option.estimator_only)
"""Names of the options that both front ends have."""


def default_of(name: str) -> Any:
    """Return the default of an option."""
    return getattr(ExecutionOptions(), name)


def configure_default_of(name: str) -> Any:
    """Return the default of an option in `cstorch.configure`, as a program may write it."""
    given = OPTIONS[name].configure_default
    return default_of(name) if given is None else given


def parse_option(name: str, value: Any) -> Any:
    """Parse the value of an option as users write it; None for its default.

    Raises:
        OptionError: The value is invalid; the message states the valid ones.
    """
    option = OPTIONS[name]
    if value is None:
        return default_of(name)
    try:
        return option.parse(value)
    except (TypeError, ValueError):
        near = suggestion(str(value), option.choices)
        raise OptionError(f"{name} is {value!r}, expected {option.expected}{near}") from None


def document_options(*names: str) -> Callable[[Documented], Documented]:
    """Return a decorator that replaces the line `{options}` of a docstring by descriptions of options.

    Args:
        names: Names of the options.
    """
    texts = [
        fill(f"{name}: {OPTIONS[name].help}", 110, initial_indent=" " * 4, subsequent_indent=" " * 8)
        for name in names
    ]

    def insert(documented: Documented) -> Documented:
        if documented.__doc__ is not None:  # python -OO removes docstrings
            lines = cleandoc(documented.__doc__).replace("    {options}", "\n".join(texts))
            documented.__doc__ = lines
        return documented

    return insert


def replica_error(batch_size: int, replicas: ReplicaChoice) -> str | None:
    """Return why a number of replicas cannot share a batch; None if they can."""
    if replicas == AUTO or batch_size % replicas == 0:
        return None
    return (
        f"a batch of {batch_size:,} samples cannot be shared equally by {replicas:,} replicas; choose a "
        f"batch size that {replicas:,} divides, or another num_replicas"
    )


def micro_batch_error(batch_size: int, streaming: Streaming) -> str | None:
    """Return why a batch cannot be divided into micro-batches of the given size; None if it can.

    Args:
        batch_size: Samples of all systems.
        streaming: Options of the run.
    """
    size, count = streaming.micro_batch_size, streaming.num_csx
    if size == AUTO or batch_size % (size * count) == 0:
        return None
    per_system = "" if count == 1 else f", {batch_size // count} in each of {count} systems"
    return (
        f"micro_batch_size is {size}, expected a divisor of the batch of {batch_size} samples{per_system}; "
        "choose one that divides, or auto"
    )
