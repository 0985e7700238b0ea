"""Host lists such as `n[08-10],m1`, which Slurm and Flux use. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import product

from cs_toolkit.errors import UsageError

MAX_NODES = 65_536  # more than any cluster has: a typo in a range must not fill the memory

_NUMBERED = re.compile(r"(.*?)([0-9]+)", re.DOTALL)


def expand_hostlist(text: str) -> list[str]:
    """Expand a host list: `n[08-10]` to n08, n09, n10.

    Raises:
        UsageError: brackets do not match, a range is descending, or there are more than `MAX_NODES` names.
    """
    # Not with `scontrol show hostnames`, which does not exist inside a container.
    names: list[str] = []
    for entry in _split(text, text):
        names.extend(_expand_entry(entry, text, MAX_NODES - len(names)))
    return names


def compress_hostlist(names: Iterable[str]) -> str:
    """Return a host list that expands to `names` in the same order, with ranges for consecutive numbers."""
    parts: list[str] = []
    run: list[str] = []
    for name in names:
        if run and _follows(run[-1], name):
            run.append(name)
            continue
        if run:
            parts.append(_format_range(run))
        run = [name]
    if run:
        parts.append(_format_range(run))
    return ",".join(parts)


def _split(text: str, whole: str) -> list[str]:
    """Split at commas outside brackets, without blanks around entries and without empty entries."""
    entries, depth, start = [], 0, 0
    for position, character in enumerate(f"{text},"):
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        elif character == "," and depth == 0:
            entries.append(text[start:position].strip())
            start = position + 1
        if depth not in (0, 1):
            break
    if depth != 0:
        raise _invalid(whole, "brackets that do not match")
    return [entry for entry in entries if entry]


def _expand_entry(entry: str, whole: str, room: int) -> list[str]:
    pieces: list[list[str]] = []
    count = 1
    for number, part in enumerate(re.split(r"\[([^\]]*)\]", entry)):
        choices = _range_members(part, whole) if number % 2 else [part]
        count *= len(choices)
        if count > room:
            raise _invalid(whole, f"more than {MAX_NODES} names")
        pieces.append(choices)
    return ["".join(combination) for combination in product(*pieces)]


def _range_members(text: str, whole: str) -> list[str]:
    members: list[str] = []
    for item in text.split(","):
        low, dash, high = item.strip().partition("-")
        if not (_is_number(low) and (_is_number(high) if dash else not high)):
            raise _invalid(whole, f"{item!r} between brackets, which is not a number or a range")
        first, last = int(low), int(high or low)
        if last < first or last - first >= MAX_NODES:
            raise _invalid(whole, f"the range {item!r}")
        if len(members) + last - first >= MAX_NODES:
            raise _invalid(whole, f"more than {MAX_NODES} names")
        # Leading zeros are part of the names: n08, n09, n10.
        members += [str(value).zfill(len(low)) for value in range(first, last + 1)]
    return members


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18


def _follows(before: str, name: str) -> bool:
    first, second = _NUMBERED.fullmatch(before), _NUMBERED.fullmatch(name)
    if not first or not second or first[1] != second[1]:
        return False
    if not (_is_number(first[2]) and _is_number(second[2])):
        return False
    following = str(int(first[2]) + 1).zfill(len(first[2]))
    return following == second[2]


def _format_range(run: list[str]) -> str:
    first, last = _NUMBERED.fullmatch(run[0]), _NUMBERED.fullmatch(run[-1])
    if len(run) == 1 or first is None or last is None:
        return run[0]
    return f"{first[1]}[{first[2]}-{last[2]}]"


def _invalid(text: str, what: str) -> UsageError:
    shown = text if len(text) <= 80 else f"{text[:77]}..."
    return UsageError(
        f"the host list {shown!r} has {what}; expected names such as node1,node[02-05,9]: correct the list"
    )
