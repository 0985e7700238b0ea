"""The command `cs_system` where the site's settings say which system is meant.

The system's own command line knows no launcher, and takes the address from `CS_IP`.
"""

from __future__ import annotations

import os
import sys

from cs_system.commands import ASKING
from cs_system.commands import main as cs_system_main
from csrun.site.loading import load_site
from csrun.site.model import SiteError
from csrun.tasks.environment import SYSTEM_VARIABLE


def main() -> None:
    """Entry point."""
    if any(word in sys.argv[1:2] for word in ASKING) and not os.environ.get(SYSTEM_VARIABLE):
        try:
            address = load_site(os.environ).site.cs_ip
        except SiteError as error:
            sys.stderr.write(f"cs_system: error: {error}\n")
            sys.exit(error.exit_code)
        if address:
            os.environ[SYSTEM_VARIABLE] = address
    cs_system_main()
