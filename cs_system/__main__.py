"""Run the command `cs_system` as `python -m cs_system`."""

from __future__ import annotations

from cs_system.commands import main

if __name__ == "__main__":
    main(prog_name="cs_system")
