"""The option and the handling of errors that all modules of `cs_system` commands share."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec

import click

from cs_toolkit.errors import ToolkitError
from cs_toolkit.security.identity import CERTS_VARIABLE

P = ParamSpec("P")


def reporting(command: Callable[P, None]) -> Callable[P, None]:
    """Decorate a command to exit with the message of an expected failure and no traceback."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except ToolkitError as error:
            click.echo(f"cs_system: error: {error}", err=True)
            raise SystemExit(error.exit_code) from error
        except KeyboardInterrupt:
            raise SystemExit(130) from None

    return run


def certs_option(*, expose_value: bool = False) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the option `--certs`, which sets the variable also for the processes started from here."""
    return click.option(
        "--certs",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        expose_value=expose_value,
        callback=_set_certs,
        help="Directory with ca.pem, cert.pem and key.pem for TLS, of `cs_system certs`.  "
        "[default: CS_CERTS]",
    )


def _set_certs(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    if value is not None:
        os.environ[CERTS_VARIABLE] = str(value.absolute())
    return value
