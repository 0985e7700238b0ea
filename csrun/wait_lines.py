"""Which lines about a wait in a queue a user gets. Pure."""

from __future__ import annotations

LINE_EVERY_S = 10.0


class WaitLines:
    """Tells what is new at once, and what still holds every ten seconds, with the time since the first."""

    def __init__(self) -> None:
        self._news = ""
        self._since_s: float | None = None
        self._next_s = 0.0

    def line(self, sentence: str, news: str, now_s: float) -> str | None:
        """The line that is due, if one is.

        Args:
            sentence: why the job waits; "" where it does not wait.
            news: what of the sentence is worth a line when it changes.
            now_s: monotonic time.
        """
        if not sentence:
            self._news, self._since_s = "", None
            return None
        if self._since_s is None:
            self._since_s = now_s
        elif news == self._news and now_s < self._next_s:
            return None
        self._news, self._next_s = news, now_s + LINE_EVERY_S
        waited_s = now_s - self._since_s
        return sentence if waited_s < 1 else f"{sentence}; it has waited for {waited_s:.0f} s"
