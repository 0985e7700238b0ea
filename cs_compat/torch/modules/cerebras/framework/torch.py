"""The session API."""

from cstorch.aliases import alias

alias(__name__, "cstorch.session")
