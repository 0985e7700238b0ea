"""The command line `cs_system`: its servers; the commands that ask a system are in `operator_commands`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import click

from cs_system.address import DEFAULT_PORT, is_loopback
from cs_system.certificate_commands import certs
from cs_system.command_line import certs_option, reporting
from cs_system.logs import log_options
from cs_system.operator_commands import drain, mode, release, resume, status, top, usage
from cs_toolkit import __version__ as TOOLKIT_VERSION
from cs_toolkit.command_group import CommandGroup
from cs_toolkit.garbage import leave_at_exit, use_infrequent_collection
from cs_toolkit.network.liveness import (
    DEFAULT_PEER_TIMEOUT_S,
    MAX_PEER_TIMEOUT_S,
    MIN_PEER_TIMEOUT_S,
    PEER_TIMEOUT_VARIABLE,
    peer_timeout_s,
)
from cs_toolkit.security.identity import CERTS_VARIABLE

_MIB = 1 << 20

_HOST = click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; any other needs --certs or --insecure.",
)
_INSECURE = click.option(
    "--insecure",
    is_flag=True,
    help="Allow connections from other machines without TLS: nothing is encrypted.",
)
_THREADS = click.option(
    "--threads", type=click.IntRange(1), help="Number of compute threads.  [default: all CPUs]"
)
_CACHE_SIZE = click.option(
    "--cache-size",
    type=click.IntRange(0),
    default=1024,
    show_default=True,
    metavar="MIB",
    help="Limit for each kind of content in the cache, programs and their compiled form; 0: no cache.",
)
_MEMORYX_SECRET = click.option(
    "--memoryx-secret-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The secret that CS systems share with MemoryX, made if it is missing.  [default: memoryx.secret in "
    "the user's directory of configuration, ~/.config/csrun]",
)


def _set_peer_timeout(context: click.Context, parameter: click.Parameter, value: float) -> None:
    # For this process and those that it starts: wafers, MemoryX.
    os.environ[PEER_TIMEOUT_VARIABLE] = f"{value:g}"


_PEER_TIMEOUT = click.option(
    "--peer-timeout-s",
    type=click.FloatRange(MIN_PEER_TIMEOUT_S, MAX_PEER_TIMEOUT_S),
    default=DEFAULT_PEER_TIMEOUT_S,
    show_default=True,
    envvar=PEER_TIMEOUT_VARIABLE,
    metavar="SECONDS",
    expose_value=False,
    callback=_set_peer_timeout,
    help="How long a chief, a worker, MemoryX or another CS system may be silent, because it is stopped or "
    "its network is broken, until it counts as lost.",
)

# Commands that query a system, whose address is --cs_ip or CS_IP.
ASKING = ("status", "top", "release", "drain", "resume", "mode", "usage")


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(TOOLKIT_VERSION, prog_name="cs_system")
def main() -> None:
    """A simulated CS system, reached by IP and port, that really trains models."""
    use_infrequent_collection()  # the processes of a system are long-lived, and compile
    leave_at_exit()


@main.command()
@_HOST
@certs_option(expose_value=True)
@_INSECURE
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="Port of the control plane, the one of --cs_ip; 0: any free port.",
)
@click.option(
    "--data-port",
    type=click.IntRange(0, 65535),
    help="Port for the workers' batches.  [default: --port + 1, or any free port when that is 0]",
)
@click.option(
    "--no-shm", is_flag=True, help="Take the batches of workers on this machine through the socket, too."
)
@click.option(
    "--http-port",
    type=click.IntRange(0, 65535),
    help="Port of the status page and of the metrics for Prometheus; 0: any free port.  [default: no page]",
)
@click.option(
    "--http-host",
    default="127.0.0.1",
    show_default=True,
    help="Address of the status page; any other needs --certs (and a certificate in the browser) or "
    "--insecure.",
)
@click.option("--advertise", default="", metavar="HOST", help="Host that workers use for the data port.")
@click.option(
    "--ready-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="JSON with address and pid, written once the system accepts calls, removed when it ends.",
)
@click.option("--fabric", default="cs2", show_default=True, help="Name of a fabric, or its YAML file.")
@_THREADS
@click.option(
    "--cache-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="For programs and their compiled form.  [default: cs_system in the user's cache directory]",
)
@_CACHE_SIZE
@click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="For what survives a restart: drained or not, mode, usage log.  [default: a directory of host "
    "and port in the user's state directory; none with --port=0]",
)
@click.option(
    "--input-memory",
    type=click.IntRange(1),
    default=1024,
    show_default=True,
    metavar="MIB",
    help="Host memory for batches that wait to be computed.",
)
@click.option(
    "--reconnect-s",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a run waits for a lost worker to reconnect.",
)
@click.option(
    "--input-patience-s",
    type=click.FloatRange(0, min_open=True),
    default=1800.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a run waits for the next batch of a worker.",
)
@_PEER_TIMEOUT
@click.option(
    "--idle-release-s",
    type=click.FloatRange(0),
    default=1800.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a chief may hold the system without using it; 0: without limit.",
)
@click.option(
    "--num-csx",
    "wafers",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of CS systems in the group; with weight streaming they can share the batch of a program.",
)
@click.option(
    "--group-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File by which the other systems of the group, on other hosts, find this one, which writes it; it "
    "contains a secret.  [default in a Slurm step of several tasks: one in the working directory]",
)
@click.option(
    "--memoryx",
    metavar="HOST:PORT,...",
    help="MemoryX processes for weight streaming, which share the layers.  [default: started when needed]",
)
@_MEMORYX_SECRET
@click.option(
    "--wgt-servers",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of MemoryX processes to start; a program may ask for fewer (max_wgt_servers).",
)
@click.option(
    "--memoryx-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Where these store weights and gradients.  [default: the directory of temporary files]",
)
@reporting
@log_options
def serve(
    host: str,
    certs: Path | None,
    insecure: bool,
    port: int,
    data_port: int | None,
    no_shm: bool,
    http_port: int | None,
    http_host: str,
    advertise: str,
    ready_file: Path | None,
    fabric: str,
    threads: int | None,
    cache_dir: Path | None,
    cache_size: int,
    state_dir: Path | None,
    input_memory: int,
    reconnect_s: float,
    input_patience_s: float,
    idle_release_s: float,
    wafers: int,
    group_file: Path | None,
    memoryx: str | None,
    memoryx_secret_file: Path | None,
    wgt_servers: int,
    memoryx_dir: Path | None,
) -> None:
    """Run a CS system until SIGTERM or Ctrl-C; a second signal ends it immediately.

    \b
    Example, a group of four systems with a single address, each on its own host:
      srun --nodes=4 --ntasks-per-node=1 cs_system serve --num-csx=4 --host=0.0.0.0 --certs=DIR
    """
    from cs_system.memoryx.config import MemoryxConfig, parse_memoryx_addresses
    from cs_system.security import server_credentials
    from cs_system.server.artifacts import default_cache_dir
    from cs_system.server.process import ServerOptions
    from cs_system.server.process import serve as run_server
    from cs_system.server.run import RunLimits
    from cs_system.server.state_directory import default_state_directory
    from cs_system.server.system import SystemOptions
    from cs_system.swarmx.membership import find_group, run_member
    from cs_toolkit.fabric import load_fabric

    group = find_group(wafers, group_file, os.environ)
    environment = dict(os.environ)
    if insecure:
        os.environ.pop(CERTS_VARIABLE, None)  # wafers and MemoryX use no TLS either
    if group is not None and group.number:
        raise SystemExit(run_member(group.file, group.number))
    timeout_s = peer_timeout_s(os.environ)
    names = [advertise] if advertise else []
    credentials = server_credentials(host, certs, insecure, environment, names)
    http_credentials = None
    if http_port is not None and not is_loopback(http_host):
        http_credentials = credentials or server_credentials(
            http_host, certs, insecure, environment, names, "--http-host"
        )
    loaded = load_fabric(fabric)
    code = run_server(
        ServerOptions(
            system=SystemOptions(
                fabric=loaded.name,
                fabric_json=loaded.model_dump_json(),
                advertise=advertise,
                limits=RunLimits(input_memory * _MIB, reconnect_s, input_patience_s, timeout_s),
                memoryx=MemoryxConfig(
                    () if memoryx is None else parse_memoryx_addresses(memoryx, credentials is not None),
                    memoryx_dir or Path(tempfile.gettempdir()),
                    wgt_servers,
                    peer_timeout_s=timeout_s,
                    secret_file=memoryx_secret_file,
                ),
                wafers=wafers,
                peer_timeout_s=timeout_s,
                idle_release_s=idle_release_s,
            ),
            host=host,
            port=port,
            data_port=data_port if data_port is not None else port + 1 if 0 < port < 65535 else 0,
            ready_file=ready_file,
            threads=threads,
            cache_dir=(cache_dir or default_cache_dir()) if cache_size else None,
            cache_bytes=cache_size * _MIB,
            group=group,
            state_dir=state_dir or default_state_directory(port),
            http_host=http_host,
            http_port=http_port,
            http_credentials=http_credentials,
            credentials=credentials,
            shares_memory=not no_shm,
        )
    )
    raise SystemExit(code)


@main.command()
@click.option(
    "--group-file",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file that `cs_system serve --num-csx=N --group-file=FILE` writes.",
)
@certs_option()
@_PEER_TIMEOUT
@reporting
@log_options
def member(group_file: Path) -> None:
    """Join a group of CS systems that is led by a system on another host, until that ends.

    \b
    Example, a group of two systems; FILE is in a directory that both hosts share:
      cs_system serve --num-csx=2 --host=10.0.0.7 --group-file=FILE
      cs_system member --group-file=FILE
    """
    from cs_system.swarmx.membership import run_member

    raise SystemExit(run_member(group_file))


@main.group(name="memoryx")
def memoryx_group() -> None:
    """MemoryX: stores the weights of a model that the wafer holds a layer at a time."""


@memoryx_group.command(name="serve")
@_HOST
@certs_option(expose_value=True)
@_INSECURE
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT + 2,
    show_default=True,
    help="Port, the one of `cs_system serve --memoryx`; 0: any free port.",
)
@click.option(
    "--memoryx-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Where weights and gradients are stored.  [default: the directory of temporary files]",
)
@_MEMORYX_SECRET
@_THREADS
@click.option(
    "--xla-cache",
    type=click.Path(file_okay=False, path_type=Path),
    help="For compiled functions.  [default: none]",
)
@_CACHE_SIZE
@_PEER_TIMEOUT
@reporting
@log_options
def memoryx_serve(
    host: str,
    certs: Path | None,
    insecure: bool,
    port: int,
    memoryx_dir: Path | None,
    memoryx_secret_file: Path | None,
    threads: int | None,
    xla_cache: Path | None,
    cache_size: int,
) -> None:
    """Run MemoryX until SIGTERM or Ctrl-C.

    \b
    Example, with state on a large disk:
      cs_system memoryx serve --port=9002 --memoryx-dir=/scratch
      cs_system serve --memoryx=127.0.0.1:9002
    """
    from cs_system.engine.xla_cache import XlaCache
    from cs_system.memoryx.config import read_memoryx_secret
    from cs_system.memoryx.server import MemoryxOptions
    from cs_system.memoryx.server import serve as run_memoryx
    from cs_system.processes import end_process
    from cs_system.security import server_credentials

    directory = memoryx_dir or Path(tempfile.gettempdir())
    credentials = server_credentials(host, certs, insecure, os.environ)
    if is_loopback(host):
        credentials = None  # as for all parts of a system on one machine
    secret = read_memoryx_secret(memoryx_secret_file)
    cache = XlaCache.of_this_cpu(xla_cache, cache_size * _MIB) if xla_cache and cache_size else None
    end_process(run_memoryx(MemoryxOptions(host, port, directory, threads, cache, secret, credentials)))


@main.command(hidden=True)
def fork_server() -> None:
    """Fork the wafers and MemoryX of a CS system, which starts this command itself."""
    from cs_system.processes import run_fork_server

    run_fork_server()


for command in (status, top, release, drain, resume, mode, usage, certs):
    main.add_command(command)
