"""Lines about a program that a process writes once, however often it traces that program."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from cs_toolkit.messages import Message
from estimator.run_config import MULTI_MODEL_STACK_KEY, CSRunConfig

log = logging.getLogger("estimator")


def announce_dropped(dropped: Iterable[str]) -> None:
    """Names what a step on the CS system leaves out, each once.

    Args:
        dropped: As `cgc.importers.tensorflow.ImportedStep.dropped`.
    """
    for what in dropped:
        _announce(what)


@cache
def _announce(what: str) -> None:
    log.warning(
        "%s is left out on the CS system, where a step cannot reach this host; on this CPU it runs. Look at "
        "numbers of every step by a hook or a summary (docs/hooks.md)",
        what,
    )


def announce_unused(config: CSRunConfig) -> None:
    """Names, once, what a program has set of the original stack's options and nothing here reads."""
    unused = [
        *_unused("cs_config", config.cs_config, _READ_OF_CS_CONFIG),
        *_unused("stack_params", config.stack_params, _READ_OF_STACK_PARAMS),
    ]
    if unused:
        _announce_unused(", ".join(unused))


_READ_OF_CS_CONFIG = frozenset({"use_cbfloat16"})
_READ_OF_STACK_PARAMS = frozenset({"config.target_num_replicas", MULTI_MODEL_STACK_KEY})


def _unused(name: str, given: Any, read: Collection[str]) -> list[str]:
    """The options that are set, as dotted names, without those that are read."""
    return [f"{name}.{path}" for path in _paths(given) if not any(_is_in(path, known) for known in read)]


def _is_in(path: str, known: str) -> bool:
    return path == known or path.startswith(f"{known}.")


def _paths(given: Any) -> Iterator[str]:
    """Dotted names of what is set in a message or mapping; what is false or empty is not set."""
    values = given.as_dict() if isinstance(given, Message) else given
    if not isinstance(values, Mapping):
        return
    for name, value in values.items():
        inner = list(_paths(value))
        if inner:
            yield from (f"{name}.{path}" for path in inner)
        elif value and not isinstance(value, Message | Mapping):
            yield str(name)


@cache
def _announce_unused(names: str) -> None:
    log.warning("%s: options of the original stack, without effect here", names)
