"""The directive `command-help`: the help of the commands, from their click objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import click
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from cgc.tools.opt import main as cgc_opt
from cgc.tools.report import main as cgc_report
from cs_system.commands import main as cs_system
from csrun.commands import cpu, csrun, wse
from csrun.site import Site
from input_analyzer import commands as analyzer

WIDTH = 88
COMMANDS: dict[str, Callable[[], click.Command]] = {
    "csrun": csrun.build_command,
    "csrun_cpu": lambda: cpu.build_command(Site()),
    "csrun_wse": lambda: wse.build_command(Site()),
    "cs_input_analyzer": lambda: analyzer.build_command(Site()),
    "cs_system": lambda: cs_system,
    "cgc-report": lambda: cgc_report,
    "cgc-opt": lambda: cgc_opt,
}


class CommandHelp(SphinxDirective):
    """A section for every command and subcommand, with the text of `--help`."""

    def run(self) -> list[nodes.Node]:
        """Return the sections."""
        sections: list[nodes.Node] = []
        for name, build in COMMANDS.items():
            for path, text in helps(build(), name):
                section = nodes.section(ids=[nodes.make_id(path)], names=[path])
                section += nodes.title("", "", nodes.literal(text=path))
                section += nodes.literal_block(text, text, language="none")
                self.state.document.note_explicit_target(section)
                sections.append(section)
        return sections


def helps(
    command: click.Command, path: str, parent: click.Context | None = None
) -> Iterator[tuple[str, str]]:
    """Yield the names of a command and of its subcommands, each with its help."""
    name = path.rpartition(" ")[2]
    context = click.Context(command, info_name=name, parent=parent, terminal_width=WIDTH)
    yield path, command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            subcommand = command.get_command(context, name)
            if subcommand is not None and not subcommand.hidden:
                yield from helps(subcommand, f"{path} {name}", context)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True}
