"""The `cs_system` command with the address of the CS system and the certificate from the site's settings."""

# A separate module, because the system's own command line must not depend on the launcher: it takes the
# address from `CS_IP`, and the certificate from `CS_CERTS`.

from __future__ import annotations

import os
import sys

from cs_system.commands import ASKING
from cs_system.commands import main as cs_system_main
from cs_toolkit.security.identity import CERTS_VARIABLE
from csrun.site import SiteError
from csrun.site.loading import load_site
from csrun.tasks.environment import SYSTEM_VARIABLE


def main() -> None:
    """Entry point."""
    if sys.argv[1:2] and sys.argv[1] in ASKING:
        try:
            site = load_site(os.environ).site
        except SiteError as error:
            sys.stderr.write(f"cs_system: error: {error}\n")
            sys.exit(error.exit_code)
        for name, value in ((SYSTEM_VARIABLE, site.system_addresses), (CERTS_VARIABLE, site.certs)):
            if value:
                os.environ.setdefault(name, value)
    cs_system_main()
