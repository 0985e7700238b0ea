"""Loggers and levels of the original stack."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

TRACE = logging.DEBUG - 5
VERBOSE = logging.INFO - 5


class CerebrasLogger(logging.Logger):
    """A logger with two more levels: TRACE below DEBUG, VERBOSE below INFO."""

    def trace(self, message: object, *args: Any, **kwargs: Any) -> None:
        """Log a message at the level TRACE."""
        self.log(TRACE, message, *args, **kwargs)

    def verbose(self, message: object, *args: Any, **kwargs: Any) -> None:
        """Log a message at the level VERBOSE."""
        self.log(VERBOSE, message, *args, **kwargs)


def _get_logger(name: str) -> CerebrasLogger:
    """Return a logger of the class `CerebrasLogger`; loggers of all other names keep their class."""
    before = logging.getLoggerClass()
    logging.setLoggerClass(CerebrasLogger)
    try:
        found = logging.getLogger(name)
    finally:
        logging.setLoggerClass(before)
    if not isinstance(found, CerebrasLogger):  # another package has created it before
        found.__class__ = CerebrasLogger
    assert isinstance(found, CerebrasLogger)
    return found


logging.addLevelName(TRACE, "TRACE")
logging.addLevelName(VERBOSE, "VERBOSE")

logger = _get_logger("cerebras")
wsc_logger = _get_logger("cerebras.wsc")
"""Its children have the log levels of servers of the original's cluster."""


class ClassLogger:
    """Base of classes with a logger, which `named_class_logger` gives them.

    Attributes:
        logger: Logger of the class.
    """

    logger: ClassVar[CerebrasLogger]


def named_class_logger(cls_or_namespace: Any = None) -> Any:
    """Decorate a class with a logger: `cerebras.NAMESPACE`, or `cerebras.MODULE.CLASS` without a namespace.

    Args:
        cls_or_namespace: The class (`@named_class_logger`), or the namespace (`@named_class_logger("Name")`).
    """

    def decorate(cls: type) -> type:
        name = namespace if isinstance(namespace, str) else f"{cls.__module__}.{cls.__qualname__}"
        cls.logger = _get_logger(f"{logger.name}.{name}")  # type: ignore[attr-defined]
        return cls

    namespace = None if isinstance(cls_or_namespace, type) else cls_or_namespace
    decorator: Callable[[type], type] | type = decorate
    return decorator if namespace is cls_or_namespace else decorate(cls_or_namespace)


def get_level_name(level: str | int) -> Any:
    """Return the number of a level's name in capital or small letters, or the name of a number."""
    return logging.getLevelName(level.upper() if isinstance(level, str) else level)


class WscLogSetting(NamedTuple):
    """The level of one kind of servers of the original's cluster."""

    level: int
    tag: str
    mode: str | None = None
    role: str | None = None


def collect_wsc_log_settings() -> list[WscLogSetting]:
    """Return the levels that the program has set for servers of the original's cluster.

    There are no such servers here; this is logged if there is a setting.
    """
    prefix = f"{wsc_logger.name}."
    loggers = dict(logging.Logger.manager.loggerDict)
    found = [
        WscLogSetting(child.level, name.removeprefix(prefix))
        for name, child in sorted(loggers.items())
        if name.startswith(prefix) and isinstance(child, logging.Logger) and child.level
    ]
    if found:
        names = ", ".join(setting.tag for setting in found)
        wsc_logger.info("log levels of servers of the original's cluster have no effect here: %s", names)
    return found
