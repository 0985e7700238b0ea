"""csrun trace: writes the timeline of a job, for Perfetto and Chrome."""

from __future__ import annotations

import json
import os
from pathlib import Path
from shlex import join

import click

from cs_toolkit.files import replace_file
from csrun.commands.completion import job_ids
from csrun.console import STDOUT, say, write_text
from csrun.errors import CsrunError
from csrun.jobs.registry import find_job, read_record

PROGRAM = "csrun"
FILE_NAME = "trace.json"


@click.command("trace")
@click.argument("job", shell_complete=job_ids)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="FILE",
    help=f"Where to write the trace; - for stdout. Default: {FILE_NAME} in the log directory of the job.",
)
def trace(job: str, output: Path | None) -> int:
    """Writes what chief, workers, system, wafers and MemoryX of JOB did, as a trace in JSON.

    Open it at https://ui.perfetto.dev or in chrome://tracing. It has the newest spans of each process.

    JOB is an id that csrun_wse has printed (or the start or end of one), the scheduler's number, or a log
    directory.
    """
    from csrun.jobs.record import SPANS_DIR
    from csrun.jobs.timeline import count_spans, make_trace, read_documents  # not for csrun --help

    found = find_job(job, os.environ)
    log_dir = Path(found.log_dir)
    documents = read_documents(log_dir)
    if not documents:
        raise CsrunError(
            f"job {found.job_id or job} has no spans in {log_dir / SPANS_DIR}; expected a job that has "
            f"trained or evaluated on a CS system: its tasks write them while they run"
        )
    record = read_record(found) or {}
    facts = {"job": found.job_id, "command": join(found.command), "exit_code": record.get("exit_code")}
    made = make_trace(documents, facts)
    text = json.dumps(made) + "\n"
    if output == Path("-"):
        write_text(STDOUT, text)
        return 0
    file = output or log_dir / FILE_NAME
    try:
        replace_file(file, text)
    except OSError as error:
        raise CsrunError(
            f"cannot write {file}: {error.strerror}; expected a file in a writable directory: give another "
            f"one with -o"
        ) from error
    error_s = made["otherData"]["clock_error_s"]
    if error_s is None:
        clocks = "not all clocks could be aligned"
    else:
        clocks = f"clocks aligned within {1000 * error_s:.3g} ms" if error_s else "all on one clock"
    say(PROGRAM, f"{file}: {len(documents)} processes, {count_spans(documents)} spans, {clocks}")
    say(PROGRAM, "open it at https://ui.perfetto.dev or in chrome://tracing")
    return 0
