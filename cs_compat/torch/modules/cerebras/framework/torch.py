"""The session API."""

from cs_toolkit.aliases import alias

alias(__name__, "cstorch.session")
