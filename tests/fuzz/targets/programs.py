"""What programs under the original's names read: YAML of parameters, and debug arguments."""

from __future__ import annotations

from pathlib import Path

from cs_compat.appliance.messages import get_debug_args, write_debug_args
from cs_runtime.errors import CallError
from cs_toolkit.loader import ConfigError
from cstorch.v1.runner import settings
from tests.fuzz.target import Target, temporary_file

PARAMETERS = b"""
runconfig:
  log_steps: 10
  max_steps: 1_000
  eval_steps: 2
  checkpoint_steps: 100
  save_initial_checkpoint: yes
  num_replicas: auto
  cs_ip: 10.0.0.7:9000
  logging: info
  seed: 7
model: {hidden_size: 8, layers: [1, 2]}
optimizer:
  learning_rate: 1e-3
"""
DEBUG_ARGS = rb"""
debug_usr { share { a: 1.5 b: "text\n" } c: [1, 2, NAME] d: true }  # comment
labels { key: "one" value: 'two' }
labels < key: "three" value: -4 >;
"""


def parse_parameters(data: bytes) -> None:
    path = temporary_file(data, "params.yaml")
    args, own = settings.parse(path.parent, None, ["-p", str(path), "-m", "train"])
    config = settings.RunConfig.of(settings.merge_params(args, own))
    config.log_level(only_streams=False)
    assert isinstance(config.total_steps(0, 10), int)


def parse_debug_args(data: bytes) -> None:
    message = get_debug_args(temporary_file(data, "debug_args"))
    write_debug_args(message, Path(temporary_file(b"", "written")))


TARGETS = [
    Target(
        "programs.parameters", parse_parameters, (CallError, ConfigError), lambda: [PARAMETERS], mutations=100
    ),
    Target("programs.debug_args", parse_debug_args, (ValueError,), lambda: [DEBUG_ARGS]),
]
