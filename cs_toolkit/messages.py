"""Messages of the original stack with arbitrary fields, which may all be set and read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


class Message:
    """A message whose fields are created at their first use.

    A field that is read before it is set is a new message, empty and false, which can be filled, or used as a
    list or a map: `config.matching.kernel.no_dcache_spill_splits = True`,
    `...disabled.append("x")`, `...labels["name"] = "x"`.

    Args:
        **fields: First values; a dict becomes a message.
    """

    def __init__(self, **fields: Any) -> None:
        self.__dict__["_values"] = {}
        self.__dict__["_items"] = []
        self.__dict__["_entries"] = {}
        for name, value in fields.items():
            setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:
        # copy and pickle look for special methods before __init__ has run.
        if name.startswith("_"):
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        return self._values.setdefault(name, Message())

    def __setattr__(self, name: str, value: Any) -> None:
        self._values[name] = Message(**value) if isinstance(value, dict) else value

    def __delattr__(self, name: str) -> None:
        del self._values[name]

    def append(self, item: Any) -> None:
        """Append to a repeated field."""
        self._items.append(item)

    def extend(self, items: Iterable[Any]) -> None:
        """Append to a repeated field."""
        self._items.extend(items)

    def add(self, **fields: Any) -> Message:
        """Append a new message to a repeated field."""
        item = Message(**fields)
        self._items.append(item)
        return item

    def HasField(self, name: str) -> bool:  # noqa: N802 - the name of protobuf's method
        """Return True if the field, or a field in it, is set."""
        return name in self._values and not _is_empty(self._values[name])

    def ClearField(self, name: str) -> None:  # noqa: N802 - the name of protobuf's method
        """Clear a field."""
        self._values.pop(name, None)

    def CopyFrom(self, other: Message) -> None:  # noqa: N802 - the name of protobuf's method
        """Replace this message by a copy of another one."""
        from copy import deepcopy

        self.__dict__.update(deepcopy(other.__dict__))

    def MergeFrom(self, other: Message) -> None:  # noqa: N802 - the name of protobuf's method
        """Merge the fields of another message into this one; repeated fields are appended."""
        for name, value in other._values.items():
            if isinstance(value, Message) and isinstance(self._values.get(name), Message):
                self._values[name].MergeFrom(value)
            else:
                self._values[name] = value
        self._items.extend(other._items)
        self._entries.update(other._entries)

    def fields(self) -> list[tuple[str, Any]]:
        """Return the names and values of all fields that are set."""
        return [(name, value) for name, value in self._values.items() if not _is_empty(value)]

    def entries(self) -> list[tuple[str, Any]]:
        """Return the keys and values of a map."""
        return list(self._entries.items())

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that are set, as plain data."""
        return {name: _plain(value) for name, value in (*self.fields(), *self.entries())}

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str):
            return self._entries.setdefault(index, Message())
        return self._items[index]

    def __setitem__(self, key: str, value: Any) -> None:
        self._entries[key] = value

    def __contains__(self, key: object) -> bool:
        return key in self._entries or key in self._items

    def __bool__(self) -> bool:
        return not _is_empty(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return (self.as_dict(), self._items) == (other.as_dict(), other._items)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({_plain(self)!r})"


def _is_empty(value: Any) -> bool:
    return (
        isinstance(value, Message)
        and not value._items
        and not value._entries
        and all(_is_empty(field) for field in value._values.values())
    )


def _plain(value: Any) -> Any:
    if not isinstance(value, Message):
        return value
    return [_plain(item) for item in value] if value._items else value.as_dict()
