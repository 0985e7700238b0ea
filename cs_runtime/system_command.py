"""The `cs_system` command with the address of the CS system from the site's settings."""

# A separate module, because the system's own command line must not depend on the launcher: it takes the
# address from `CS_IP`.

from __future__ import annotations

import os
import sys

from cs_system.commands import ASKING
from cs_system.commands import main as cs_system_main
from csrun.site import SiteError
from csrun.site.loading import load_site
from csrun.tasks.environment import SYSTEM_VARIABLE


def main() -> None:
    """Entry point."""
    if sys.argv[1:2] and sys.argv[1] in ASKING and not os.environ.get(SYSTEM_VARIABLE):
        try:
            address = load_site(os.environ).site.cs_ip
        except SiteError as error:
            sys.stderr.write(f"cs_system: error: {error}\n")
            sys.exit(error.exit_code)
        if address:
            os.environ[SYSTEM_VARIABLE] = address
    cs_system_main()
