"""Enumerations of the original's compiler, which release 1.6 imports from here; the launchers have them."""

from cstorch.aliases import alias

alias(__name__, "cerebras.pb")
