"""The original's appliance, under one of its names."""

from cs_toolkit.aliases import alias

alias(__name__, "cs_compat.appliance")
alias(f"{__name__}.pb", "cerebras.pb")
