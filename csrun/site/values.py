"""What the values of single settings may look like. Every `check_*` returns the value or raises ValueError.

The message completes the sentence "KEY is VALUE: expected ...".
"""

from __future__ import annotations

import re

MAX_COUNT = 10**9 - 1
_GRES = re.compile(r"[A-Za-z_][\w-]*(:[A-Za-z_][\w.-]*)?(:[0-9]+)?")
_LICENCE = re.compile(r"[A-Za-z_][\w.@-]*([:=][0-9]+)?")
_TIME_LIMIT = re.compile(
    r"[0-9]+|[0-9]+:[0-5]?[0-9]|[0-9]+:[0-5]?[0-9]:[0-5]?[0-9]"
    r"|[0-9]+-[0-9]{1,2}(:[0-5]?[0-9]){0,2}|UNLIMITED|INFINITE",
    re.IGNORECASE,
)
_NAME = re.compile(r"[^\s,]+")


def parse_count(text: str, minimum: int = 1) -> int | None:
    """The whole number that `text` spells in decimal digits; None if it is none or below `minimum`."""
    # int() alone would also take "1_0", " 1" and digits of other scripts.
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(MAX_COUNT)):
        return None
    value = int(text)
    return value if value >= minimum else None


def check_path(text: str) -> str:
    """An absolute path; empty: not set. A relative one would mean another file in every directory."""
    if text and (not text.startswith("/") or not text.isprintable()):
        raise ValueError("expected an absolute path, one that starts with '/'")
    return text


def check_mount_dir(text: str) -> str:
    """An absolute path that a comma list and a `-B` or `-b` argument can hold."""
    if not check_path(text) or "," in text or ":" in text:
        raise ValueError("expected the absolute path of a directory, without ',' and ':'")
    return text


def check_gres(text: str) -> str:
    """A generic resource without the prefixes that sites put in front: "cs:1" for "--gres=gres:cs:1"."""
    resource = text.strip().removeprefix("--gres=").removeprefix("gres:").removeprefix("gres/")
    if resource and not _GRES.fullmatch(resource):
        raise ValueError("expected a Slurm resource as NAME, NAME:COUNT or NAME:TYPE:COUNT, for example cs:1")
    return resource


def check_licence(text: str) -> str:
    """A Slurm licence with its count, without "--licenses="."""
    licence = text.strip().removeprefix("--licenses=")
    if licence and not _LICENCE.fullmatch(licence):
        raise ValueError("expected a Slurm licence as NAME or NAME:COUNT, for example cs:1")
    return licence


def check_name(text: str) -> str:
    """One name as Slurm takes it; empty: not set."""
    if text and not _NAME.fullmatch(text):
        raise ValueError("expected one name, without blanks and commas")
    return text


def check_address(text: str) -> str:
    """`HOST` or `HOST:PORT`; empty: not set."""
    host, colon, port = text.partition(":")
    if text and (not _NAME.fullmatch(host) or (colon and not 1 <= (parse_count(port) or 0) <= 65535)):
        raise ValueError("expected HOST or HOST:PORT, for example 192.0.2.7:9000")
    return text


def check_time_limit(text: str) -> str:
    """A time as srun --time takes it; empty: not set."""
    if text and not _TIME_LIMIT.fullmatch(text):
        raise ValueError(
            "expected a time limit as MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, DAYS-HOURS, "
            "DAYS-HOURS:MINUTES:SECONDS or UNLIMITED"
        )
    return text


def check_argument(text: str) -> str:
    """One word of a command line: not empty, no control characters."""
    if not text or not text.isprintable():
        raise ValueError("expected one argument of a command line, without control characters")
    return text


def check_options(words: tuple[str, ...]) -> tuple[str, ...]:
    """Arguments that may stand between a program's name and the command that it runs."""
    for word in words:
        check_argument(word)
    if words and not words[0].startswith("-"):
        raise ValueError(f"expected options: the first one, {words[0]!r}, does not start with '-'")
    if "--" in words:
        raise ValueError("expected options without '--', which would end them")
    return words


def check_mount_dirs(directories: tuple[str, ...]) -> tuple[str, ...]:
    """Absolute directories, each once, in their order."""
    return tuple(dict.fromkeys(check_mount_dir(directory) for directory in directories))
