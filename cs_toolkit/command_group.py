"""The click group of all commands with subcommands."""

from __future__ import annotations

import click

# Longer than any first sentence: click cuts summaries at a line's end, and the formatter wraps them.
_SUMMARY_LIMIT = 1_000


class CommandGroup(click.Group):
    """A group whose help lists its subcommands with uncut summaries."""

    group_class = type  # subgroups, too

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of subcommands, each with the first sentence of its help."""
        commands = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [
            (name, command.get_short_help_str(_SUMMARY_LIMIT))
            for name, command in commands
            if command is not None and not command.hidden
        ]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)
