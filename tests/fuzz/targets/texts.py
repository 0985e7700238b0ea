"""Files that people write: YAML of parameters, fabrics and sites; and certificates."""

from __future__ import annotations

import ssl
from contextlib import suppress
from functools import cache

from cs_toolkit.errors import UsageError
from cs_toolkit.fabric import Fabric
from cs_toolkit.loader import ConfigError, load_mapping, load_model, load_yaml
from cs_toolkit.security.certificates import (
    CertificateError,
    check_issuer,
    create_authority,
    read_certificate,
)
from csrun.errors import RoleError
from csrun.jobs.layout import read_recommendation
from csrun.site.file import read_site_file
from csrun.tasks import roles
from tests.fuzz.target import HERE, Target, temporary_file

ROOT = HERE.parents[1]
YAML = rb"""
runconfig: &run
  max_steps: 1_000
  lr: 1e-4
  on: [yes, 0x1F, ~, .inf, 12:30, 2026-01-02]
copy: *run
merged:
  <<: *run
  text: |
    lines
  "quoted \u00e4": !!str 7
"""


def parse_yaml(data: bytes) -> None:
    path = temporary_file(data)
    for load in (load_mapping, load_yaml):
        with suppress(ConfigError):
            load(path)


def parse_site(data: bytes) -> None:
    read_site_file(temporary_file(data))
    try:
        load_model(temporary_file(data), Fabric)
    except ConfigError:
        return


def parse_certificate(data: bytes) -> None:
    """The content of a certificate in DER."""
    pem = ssl.DER_cert_to_PEM_cert(data) if data else ""
    path = temporary_file(pem.encode())
    certificate = read_certificate(path)
    str(certificate.identity)
    certificate.days_left()
    check_issuer(path, path)


@cache
def certificate() -> bytes:
    """Create a certificate in DER."""
    directory = temporary_file(b"").parent
    create_authority(directory / "certs", "site", overwrite=True)
    return ssl.PEM_cert_to_DER_cert((directory / "certs" / "ca.pem").read_text())


def parse_tf_config(data: bytes) -> None:
    roles._from_tf_config({"TF_CONFIG": data.decode("utf-8", "replace")})


TARGETS = [
    Target("texts.yaml", parse_yaml, (), lambda: [YAML], mutations=50),
    Target(
        "texts.site",
        parse_site,
        (),
        lambda: [path.read_bytes() for path in sorted((ROOT / "configs").glob("*.yaml"))],
        mutations=30,
    ),
    Target("texts.certificate", parse_certificate, (CertificateError,), lambda: [certificate()]),
    Target(
        "texts.tf_config",
        parse_tf_config,
        (RoleError,),
        lambda: [
            b'{"cluster": {"chief": ["a"], "worker": ["b", "c"]}, "task": {"type": "worker", "index": 1}}'
        ],
    ),
    Target(
        "texts.recommendation",
        lambda data: read_recommendation(temporary_file(data)),
        (UsageError,),
        lambda: [b'{"recommendation": {"nodes": 1, "tasks_per_node": 2, "cpus_per_task": 4}}'],
    ),
]
