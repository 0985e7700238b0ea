"""What setup.cfg cannot say: the wheel has the example programs of models/, in its folder csrun/examples."""

from __future__ import annotations

from typing import Any

from setuptools import Distribution, setup


class WithExamples(Distribution):
    """The packages that setup.cfg finds, and the folder of the examples, which is none in a checkout."""

    def parse_config_files(self, *args: Any, **keywords: Any) -> None:
        """Reads setup.cfg."""
        super().parse_config_files(*args, **keywords)
        self.packages = [*self.packages, "csrun.examples"]


setup(distclass=WithExamples)
