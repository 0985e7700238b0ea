"""Silence of peers: how long a peer has not answered, when that is logged, and when it counts as lost.

A killed process closes its connections, which its peers notice immediately. A stopped process, a suspended
machine or a broken network is only silent: it may return, so it counts as lost after the peer timeout, a
single setting of all protocols.
"""

# Agents import this module, so it needs only the standard library.

from __future__ import annotations

from collections.abc import Mapping

from cs_toolkit.errors import UsageError

PEER_TIMEOUT_VARIABLE = "CS_PEER_TIMEOUT_S"
DEFAULT_PEER_TIMEOUT_S = 60.0
MIN_PEER_TIMEOUT_S, MAX_PEER_TIMEOUT_S = 1.0, 86_400.0
LINE_EVERY_S = 10.0
_CHECK_EVERY_S = 1.0


def parse_peer_timeout(text: str) -> float:
    """Parse a peer timeout in seconds.

    Raises:
        ValueError: it is no number, or out of range; the message completes "KEY is VALUE: expected ...".
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not MIN_PEER_TIMEOUT_S <= seconds <= MAX_PEER_TIMEOUT_S:
        raise ValueError(f"expected seconds, {MIN_PEER_TIMEOUT_S:g} to {MAX_PEER_TIMEOUT_S:g}")
    return seconds


def peer_timeout_s(environment: Mapping[str, str]) -> float:
    """Return the peer timeout that the environment sets, or the default.

    Raises:
        UsageError: the variable has another value.
    """
    text = environment.get(PEER_TIMEOUT_VARIABLE, "").strip()
    try:
        return parse_peer_timeout(text) if text else DEFAULT_PEER_TIMEOUT_S
    except ValueError as error:
        raise UsageError(
            f"the environment variable {PEER_TIMEOUT_VARIABLE} is {text!r}; {error}: correct or unset it"
        ) from None


class SilenceTimer:
    """Measures the silence of a peer. Pure: callers pass monotonic times.

    The owner calls `check` every `check_every_s` while it listens to the peer. Time in which it did not,
    because this process was stopped or its machine suspended, does not count as silence: messages that
    the peer has sent in the meantime have not been read yet.

    Args:
        timeout_s: Silence after which the peer counts as lost.
        now_s: The current time.
        check_every_s: Interval of the checks, if that is not the usual one.

    Attributes:
        timeout_s: The same.
        check_every_s: Interval of the checks.
        silence_s: Silence at the last check.
    """

    def __init__(self, timeout_s: float, now_s: float, check_every_s: float | None = None) -> None:
        self.timeout_s = timeout_s
        self.check_every_s = check_every_s or min(_CHECK_EVERY_S, timeout_s / 6)
        self.line_every_s = min(LINE_EVERY_S, timeout_s / 3)
        self.silence_s = 0.0
        self._heard_at_s = self._checked_at_s = now_s
        self._next_line_s = self.line_every_s

    def heard(self, now_s: float) -> float | None:
        """Record a sign of life; return the silence before it if lines were due about that."""
        silence_s, was_reported = now_s - self._heard_at_s, self._next_line_s > self.line_every_s
        self._heard_at_s = self._checked_at_s = now_s
        self.silence_s, self._next_line_s = 0.0, self.line_every_s
        return silence_s if was_reported else None

    def check(self, now_s: float) -> bool:
        """Update `silence_s`; return True if a line about the silence is due."""
        gap_s = now_s - self._checked_at_s
        self._checked_at_s = now_s
        # A busy machine may delay a check by a multiple of its interval, but not by seconds.
        if gap_s > 3 * self.check_every_s:
            self._heard_at_s += gap_s - self.check_every_s
        self.silence_s = now_s - self._heard_at_s
        if self.silence_s < self._next_line_s:
            return False
        self._next_line_s = self.silence_s - self.silence_s % self.line_every_s + self.line_every_s
        return True

    @property
    def is_over(self) -> bool:
        """True if the peer counted as lost at the last check."""
        return self.silence_s >= self.timeout_s
