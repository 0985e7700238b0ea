"""Import names of the original stack, for programs written for it; thin re-exports of the toolkit."""

from __future__ import annotations

from collections.abc import Sequence
from pkgutil import extend_path
from typing import Any


class _Portions(Sequence[str]):
    """The folders `cerebras` of all entries of `sys.path`, this one first; follows changes of `sys.path`.

    Other packages share the name: `cerebras.modelzoo` is found where it is installed, or where the program
    adds its folder to `sys.path`.
    """

    def __init__(self, own: list[str]) -> None:
        self._own = own

    def _folders(self) -> list[str]:
        return extend_path(self._own, __name__)

    def __getitem__(self, index: Any) -> Any:
        return self._folders()[index]

    def __len__(self) -> int:
        return len(self._folders())


__path__ = _Portions(__path__)  # type: ignore[assignment]
