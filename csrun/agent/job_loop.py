"""Supervises a job on nodes, from the start of the scheduler's command to the end of the last agent.

One loop waits for a message of an agent, a line of the command, a signal, or a deadline. Every agent has a
connection to the launcher; a broken connection or missing heartbeats mean a lost task. The console's writer
and the monitoring of the queue and of the CS system have their own threads.
"""

# A scheduler's own information is insufficient: Slurm's srun waits forever for a killed step daemon, and
# notices a lost node late or never.

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import ssl
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from cs_toolkit.network.liveness import SilenceTimer
from csrun.agent.admission import Admission
from csrun.agent.connection import Connection
from csrun.agent.log import write_record
from csrun.agent.plan import AgentPlan
from csrun.agent.protocol import (
    WINDOW_BYTES,
    Credit,
    Ended,
    Gone,
    Hello,
    Interrupted,
    Message,
    Note,
    Orphaned,
    Output,
    Refused,
    Restart,
    Signal,
    Start,
    Started,
    launcher_proof,
)
from csrun.agent.starter import Starter
from csrun.jobs.layout import pin_cpus
from csrun.jobs.output import PROGRESS_INTERVAL_S, JobReport, printable
from csrun.jobs.record import JobRecord, timestamp
from csrun.jobs.state import QueueWatch
from csrun.jobs.supervisor import Phase, Supervisor
from csrun.system_status import CHIEF_REPORT_LIMIT_S, SystemWatch
from csrun.tasks.place import tf_config
from csrun.tasks.processes import end_command
from csrun.tasks.signals import INTERRUPTS, PASSED_ON, SignalPipe

EXITS_DIR = "exits"
POLL_S = 0.5
ENDING_POLL_S = 0.05
READ_BYTES = 65_536
# From the first to the last agent: a node may boot, or run a slow prolog, while the others are ready.
ARRIVAL_LIMIT_S = 600.0
ARRIVAL_LINES_S = (10.0, 60.0, 180.0, 300.0, 480.0)  # when to log for whom the others wait
ARRIVAL_AFTER_FAILURE_S = 5.0  # the same after the command has reported the end of a task
AGENTS_LIMIT_S = 20.0  # agents notice the death of the launcher and end their tasks; then the command ends
COMMAND_LIMIT_S = 5.0
AFTER_COMMAND_S = 3.0  # from the end of the command until its remaining tasks are ended
# From the last agent until the job is cancelled, if a task was lost: Slurm's srun may then wait forever.
AFTER_LOSS_S = 0.5
QUEUE_WATCH_AFTER_S = 1.0


class _Agent:
    """The connected agent of one task."""

    def __init__(
        self, connection: Connection, hello: Hello, launcher_nonce: str, silence: SilenceTimer
    ) -> None:
        self.connection = connection
        self.hello = hello
        self.launcher_nonce = launcher_nonce
        self.silence = silence
        self.ended = False
        self.uncredited_bytes = 0
        self.signal_sent: int | None = None


class JobLoop:
    """One run of a job."""

    def __init__(
        self,
        plan: AgentPlan,
        starter: Starter,
        signals: SignalPipe,
        listener: socket.socket,
        command: subprocess.Popen[bytes],
        on_start: Callable[[], None],
        token: str,
        context: ssl.SSLContext,
    ) -> None:
        self._plan = plan
        self._starter = starter
        self._signals = signals
        listener.setblocking(False)
        self._command = command
        self._on_start = on_start
        self._token = token
        self._supervisor = Supervisor(
            [task.label for task in plan.tasks],
            plan.grace_s,
            plan.wind_down_s,
            plan.requeue_code,
            plan.max_restarts,
        )
        self._record = JobRecord.of(plan)
        self._record.scheduler_job_id = plan.outer_job_id or None
        # Threads only from here on: the command has been forked.
        self._report = JobReport(plan, self._record)
        self._agents: dict[int, _Agent] = {}
        self._started = False
        self._early_signals: list[signal.Signals] = []
        self._first_agent_at_s: float | None = None
        self._arrival_lines = 0
        self._started_at_s = time.monotonic()
        self._command_ended_at_s: float | None = None
        self._command_terminated = False
        self._agents_gone_at_s: float | None = None
        self._cancelled = False
        self._some_lost = False
        self._queue: QueueWatch | None = None
        self._system: SystemWatch | None = None
        self._selector = selectors.DefaultSelector()
        self._admission = Admission(
            listener, context, token, len(plan.tasks), plan.peer_timeout_s, self._selector, self._report.say
        )

    def run(self) -> int:
        """Run the loop until nothing of the job is left, and return its exit code."""
        os.set_blocking(self._command_pipe, False)
        for source in (self._signals, self._command_pipe):
            self._selector.register(source, selectors.EVENT_READ)
        try:
            while not self._over():
                self._wait()
                self._step(time.monotonic())
        finally:
            self._clean_up()
        self._explain_refusal()
        if self._starter.cancel_reason and self._supervisor.interrupted_by:
            self._report.say(f"{self._starter.title}'s reason: {self._starter.cancel_reason}")
        self._report.conclude(self._supervisor, self._signals.read)
        return self._supervisor.exit_code

    def _step(self, now_s: float) -> None:
        """Handle all events that have arrived, then all limits of time."""
        self._admit(now_s)
        for rank in list(self._agents):
            self._read_agent(rank, now_s)
        self._read_command()
        for signum in self._signals.read():
            if signum in INTERRUPTS:
                self._report.act(self._supervisor.handle_interrupt(signum, now_s))
            elif signum in PASSED_ON and not self._started:
                self._early_signals.append(signum)
            elif signum in PASSED_ON:
                self._send_to_all(Signal(signum))
        if self._command_ended_at_s is None and self._command.poll() is not None:
            self._command_ended_at_s = now_s
        self._check_arrival(now_s)
        self._check_heartbeats(now_s)
        self._check_command(now_s)
        self._watch_queue(now_s)
        self._watch_system(now_s)
        self._report.act(self._supervisor.tick(now_s))
        for rank in self._supervisor.due_restarts(now_s):
            self._agents[rank].connection.send(Restart(self._supervisor.restarts(rank)))
        self._report.tick(now_s)
        self._forward_termination_signal()
        self._grant_credit()

    @property
    def _command_pipe(self) -> int:
        assert self._command.stdout is not None
        return -1 if self._command.stdout.closed else self._command.stdout.fileno()

    @property
    def _connected(self) -> list[int]:
        """Ranks of the connected agents."""
        return [rank for rank, agent in self._agents.items() if agent.connection.is_open()]

    def _wait(self) -> None:
        timeout_s = POLL_S
        if self._supervisor.termination_signal is not None or self._report.full:
            timeout_s = ENDING_POLL_S
        elif self._report.waiting:
            timeout_s = min(timeout_s, PROGRESS_INTERVAL_S / 2)
        if self._supervisor.next_tick_s is not None:
            timeout_s = min(timeout_s, max(0.0, self._supervisor.next_tick_s - time.monotonic()))
        self._selector.select(timeout_s)
        for agent in self._agents.values():
            agent.connection.flush()

    # --- agents

    def _admit(self, now_s: float) -> None:
        for admitted in self._admission.poll(now_s, self._agents):
            silence = SilenceTimer(self._plan.peer_timeout_s, now_s)
            agent = _Agent(admitted.connection, admitted.hello, admitted.nonce, silence)
            self._welcome(agent, now_s)
            for message in admitted.messages:
                self._handle(agent.hello.rank, agent, message, now_s)

    def _welcome(self, agent: _Agent, now_s: float) -> None:
        self._agents[agent.hello.rank] = agent
        if self._first_agent_at_s is None:
            self._first_agent_at_s = now_s
            if self._queue is not None:
                self._queue.stop()
            self._record.scheduler_job_id = self._record.scheduler_job_id or agent.hello.job_id
            if self._plan.outer_job_id and agent.hello.step_id:
                self._record.scheduler_step_id = f"{self._record.scheduler_job_id}.{agent.hello.step_id}"
        self._record.tasks[agent.hello.rank].host = agent.hello.node
        if len(self._agents) == len(self._plan.tasks) and self._supervisor.phase is Phase.RUNNING:
            self._start_all()

    def _start_all(self) -> None:
        """Start all tasks: only now are the hosts of all of them known, for TF_CONFIG."""
        self._started = True
        self._on_start()
        hosts = [self._agents[rank].hello.node for rank in range(len(self._plan.tasks))]
        pins = pin_tasks(self._plan.cpus_of_tasks, [self._agents[rank].hello for rank in range(len(hosts))])
        for task in self._plan.tasks:
            agent = self._agents[task.rank]
            start = Start(
                command=self._plan.executed,
                cwd=str(self._plan.cwd),
                values={
                    **self._plan.change.values,
                    **task.values,
                    "TF_CONFIG": json.dumps(tf_config(task.rank, hosts)),
                },
                unset=self._plan.change.unset,
                cpus=pins[task.rank],
                log=str(task.log_path),
                append=self._plan.restarts > 0,
                exit_record=str(self._exit_record(task.rank)),
                grace_s=self._plan.grace_s,
                peer_timeout_s=self._plan.peer_timeout_s,
                proof="",
            )
            proof = launcher_proof(self._token, agent.launcher_nonce, agent.hello.nonce, start)
            agent.connection.send(replace(start, proof=proof))
        for signum in self._early_signals:
            self._send_to_all(Signal(signum))
        if self._plan.system is not None:
            self._system = SystemWatch(*self._plan.system, self._plan.peer_timeout_s)
            self._selector.register(self._system, selectors.EVENT_READ)
        self._report.write_record()

    def _exit_record(self, rank: int) -> Path:
        return self._plan.log_dir / EXITS_DIR / f"rank-{rank}.json"

    def _read_agent(self, rank: int, now_s: float) -> None:
        agent = self._agents[rank]
        if not agent.connection.is_open():
            return
        messages = agent.connection.receive()
        if messages and (silence_s := agent.silence.heard(now_s)) is not None:
            label = self._plan.tasks[rank].label
            self._report.say(f"{label} on {agent.hello.node} answers again after {silence_s:.0f} s")
        for message in messages:
            self._handle(rank, agent, message, now_s)
        if not agent.connection.is_open():
            self._close_connection(agent.connection)
            if not agent.ended:
                self._handle_loss(rank, agent.connection.error or "its connection broke", now_s)

    def _handle(self, rank: int, agent: _Agent, message: Message, now_s: float) -> None:
        if isinstance(message, Output):
            agent.uncredited_bytes += len(message.data)
            self._report.output(rank, message.data, now_s)
        elif isinstance(message, Started):
            self._report.record_start(rank, message.pid, agent.hello.node)
            if all(task.pid is not None for task in self._record.tasks):
                self._report.write_record()
        elif isinstance(message, Note):
            self._report.say(message.text)
        elif isinstance(message, Refused):
            if self._supervisor.phase is Phase.RUNNING:
                text, runtime = message.text, self._plan.executed[0]
                if runtime != self._plan.command[0]:  # the user has given another command
                    text += f" ({runtime} is the site's container runtime, which starts the command)"
                self._report.act(self._supervisor.handle_job_failure(text, message.exit_code, now_s))
            self._handle_end(rank, agent, message.exit_code, now_s)
        elif isinstance(message, Ended):
            self._handle_end(rank, agent, message.exit_code, now_s, would_repeat=message.would_repeat)
        elif isinstance(message, Interrupted):
            signum = signal.Signals(message.signum)
            text = (
                f"{self._starter.title} has asked {self._plan.tasks[rank].label} on {agent.hello.node} to "
                f"end ({signum.name}): {self._starter.endings}; ending the job"
            )
            self._report.act(self._supervisor.handle_cancellation(text, signum, now_s))
        elif isinstance(message, Orphaned) and not agent.ended:
            agent.ended = True
            self._handle_loss(rank, f"{self._starter.title}'s daemon there was killed", now_s)
        elif isinstance(message, Gone) and self._record.tasks[rank].state == "restarting":
            agent.ended = True  # the job ends before the restart
        elif isinstance(message, Gone):  # without Ended before, the agent never had a task
            self._handle_end(rank, agent, 128 + signal.SIGTERM, now_s)

    def _handle_end(
        self, rank: int, agent: _Agent, exit_code: int, now_s: float, *, would_repeat: bool = False
    ) -> None:
        if agent.ended:
            return
        self._report.output_ended(rank, now_s)
        self._report.record_end(rank, exit_code)
        self._report.act(self._supervisor.handle_task_end(rank, exit_code, now_s, would_repeat=would_repeat))
        # The agent of a task that will be restarted can still be lost.
        agent.ended = not self._supervisor.is_restarting(rank)

    def _handle_loss(self, rank: int, reason: str, now_s: float) -> None:
        """Handle the loss of a task, whose end will remain unknown."""
        agent = self._agents[rank]
        agent.ended = True
        self._some_lost = True
        self._report.output_ended(rank, now_s)
        self._report.record_end(rank, None)
        self._report.act(self._supervisor.handle_task_loss(rank, reason, now_s))
        record = {
            "rank": rank,
            "node": agent.hello.node,
            "pid": self._record.tasks[rank].pid,
            "exit_code": None,
            "signal": None,
            "started": None,
            "ended": timestamp(),
            "reason": f"lost: {reason}",
        }
        # Not over the record of the agent, which may have written it before its connection broke.
        path = self._exit_record(rank)
        with suppress(OSError):
            if not path.exists():
                write_record(path, record)

    def _close_connection(self, connection: Connection) -> None:
        self._selector.unregister(connection)
        connection.close()

    def _send_to_all(self, message: Message) -> None:
        for rank in self._connected:
            self._agents[rank].connection.send(message)

    def _grant_credit(self) -> None:
        # Without credit tasks block as soon as their window is used up: the terminal is too slow for them.
        if self._report.full:
            return
        for rank in self._connected:
            agent = self._agents[rank]
            if agent.uncredited_bytes >= WINDOW_BYTES // 4:
                agent.connection.send(Credit(agent.uncredited_bytes))
                agent.uncredited_bytes = 0

    # --- limits of time

    def _check_arrival(self, now_s: float) -> None:
        if self._started or self._first_agent_at_s is None or self._command_ended_at_s is not None:
            return
        limit_s = ARRIVAL_AFTER_FAILURE_S if self._starter.task_failed else ARRIVAL_LIMIT_S
        waited_s = now_s - self._first_agent_at_s
        if self._supervisor.phase is not Phase.RUNNING:
            return
        missing = [task.label for task in self._plan.tasks if task.rank not in self._agents]
        names = f"{', '.join(missing[:8])}{', ...' if len(missing) > 8 else ''}"
        if self._arrival_lines < len(ARRIVAL_LINES_S) and waited_s > ARRIVAL_LINES_S[self._arrival_lines]:
            self._arrival_lines += 1
            self._report.say(
                f"waiting for {names}, for {waited_s:.0f} s: {len(self._agents)} of "
                f"{len(self._plan.tasks)} tasks have come; the job ends after {limit_s:.0f} s"
            )
        if waited_s > limit_s:
            text = (
                f"{names} did not start with the others within {limit_s:.0f} s; see the messages of "
                f"{self._starter.command} above, and check that the nodes are up and the toolkit is visible "
                f"on all of them"
            )
            self._report.act(self._supervisor.handle_job_failure(text, 1, now_s))

    def _check_heartbeats(self, now_s: float) -> None:
        connected = [self._agents[rank] for rank in self._connected]
        silent = [agent for agent in connected if agent.silence.check(now_s)]
        job_id = self._record.scheduler_job_id
        # A scheduler that suspends the job stops its agents, too.
        if silent and len(silent) == len(connected) and job_id and self._starter.is_suspended(job_id):
            for agent in connected:
                agent.silence.heard(now_s)
            return
        for agent in connected:
            silence, task = agent.silence, self._plan.tasks[agent.hello.rank]
            if silence.is_over:
                self._close_connection(agent.connection)
                if not agent.ended:
                    reason = f"no heartbeat for {silence.silence_s:.0f} s"
                    self._handle_loss(agent.hello.rank, reason, now_s)
            elif agent in silent:
                self._report.say(
                    f"{task.label} on {agent.hello.node} has not answered for {silence.silence_s:.0f} s; it "
                    f"counts as lost after {silence.timeout_s:g} s"
                )

    def _check_command(self, now_s: float) -> None:
        """End the tasks if the command has ended too early, and the command if it does not end after them."""
        if self._command_ended_at_s is not None:
            early = self._started and self._supervisor.phase in (Phase.RUNNING, Phase.WINDING_DOWN)
            late = now_s - self._command_ended_at_s > AFTER_COMMAND_S
            if early and late and self._supervisor.has_running_tasks:
                text = (
                    f"{self._starter.command} has ended before the tasks "
                    f"({self._starter.summary() or 'no message'})"
                )
                self._report.act(self._supervisor.handle_job_failure(text, 1, now_s))
            return
        if self._connected or not self._started:
            self._agents_gone_at_s = None
            return
        if self._agents_gone_at_s is None:
            self._agents_gone_at_s = now_s
        waited_s = now_s - self._agents_gone_at_s
        limit_s = AFTER_LOSS_S if self._some_lost else COMMAND_LIMIT_S
        if waited_s > limit_s and not self._cancelled:
            self._cancelled = True
            # The step, or the job if it is only this step.
            target = self._record.scheduler_step_id or self._record.scheduler_job_id
            if target:
                self._starter.cancel(target, COMMAND_LIMIT_S)
        if waited_s > limit_s + COMMAND_LIMIT_S:
            self._report.say(
                f"{self._starter.command} does not end although all tasks have: killed; if "
                f"'{self._starter.queue_command}' still lists job {self._record.scheduler_job_id}, "
                f"{self._starter.title} is waiting for a node that does not answer"
            )
            self._command.kill()
            self._command.wait()
            self._command_ended_at_s = now_s

    # --- the command, the queue, the CS system

    def _read_command(self) -> None:
        if self._command_pipe < 0:
            return
        with suppress(BlockingIOError):
            while data := os.read(self._command_pipe, READ_BYTES):
                ending = self._supervisor.termination_signal is not None
                for line in self._starter.feed(data, ending):
                    self._report.say_raw(f"{self._starter.command} | {printable(line)}\n")
                if self._starter.job_id and not self._record.scheduler_job_id:
                    self._record.scheduler_job_id = self._starter.job_id
                    self._report.write_record()
            self._selector.unregister(self._command_pipe)
            assert self._command.stdout is not None
            self._command.stdout.close()

    def _watch_queue(self, now_s: float) -> None:
        if self._plan.outer_job_id or self._first_agent_at_s is not None:
            return
        if self._queue is None and now_s - self._started_at_s > QUEUE_WATCH_AFTER_S:
            self._queue = QueueWatch(self._starter.wait_sentence, self._starter.wait_news)
        if self._queue is not None:
            for line in self._queue.lines():
                self._report.say(line)

    def _watch_system(self, now_s: float) -> None:
        if self._system is not None and self._system.gone:
            text = self._system.text
            self._selector.unregister(self._system)
            self._system.close()
            self._system = None
            self._report.act(self._supervisor.handle_system_loss(text, now_s, CHIEF_REPORT_LIMIT_S))

    # --- the end

    def _forward_termination_signal(self) -> None:
        signum = self._supervisor.termination_signal
        if signum is None:
            return
        for rank in self._connected:
            agent = self._agents[rank]
            if agent.signal_sent != signum:
                agent.signal_sent = signum
                agent.connection.send(Signal(signum))
        if not self._started and not self._command_terminated and self._command_ended_at_s is None:
            # No task runs yet: the command withdraws the job, or ends the agents that have started.
            self._command_terminated = True
            end_command(self._command, self._starter.end_signals)

    def _over(self) -> bool:
        if self._command_ended_at_s is None:
            return False
        if not self._started:
            return True
        return not self._connected and not self._supervisor.has_running_tasks

    def _clean_up(self) -> None:
        self._read_command()
        if self._queue is not None:
            self._queue.stop()
        if self._system is not None:
            self._system.close()
        self._admission.close()
        for agent in self._agents.values():
            agent.connection.close()
        # After an error of the launcher; otherwise the command has ended.
        if self._started:  # the agents end their tasks, and then the command ends
            with suppress(subprocess.TimeoutExpired):
                self._command.wait(AGENTS_LIMIT_S)
        if self._command.poll() is None:
            end_command(self._command, self._starter.end_signals)
            with suppress(subprocess.TimeoutExpired):
                self._command.wait(COMMAND_LIMIT_S)
            self._command.kill()
        self._command.wait()
        if self._command.stdout is not None:
            self._command.stdout.close()
        self._selector.close()

    def _explain_refusal(self) -> None:
        """Raise the error of a command that has ended by itself before any task was started."""
        if self._started or self._supervisor.phase is not Phase.RUNNING:
            return
        if self._starter.withdrawn:
            text = (
                f"{self._starter.title} job {self._starter.job_id} was cancelled before its tasks were "
                f"started: {self._starter.endings}"
            )
            self._report.act(self._supervisor.handle_cancellation(text, signal.SIGTERM, time.monotonic()))
            return
        error = self._starter.refusal()
        self._record.ended, self._record.exit_code = timestamp(), error.exit_code
        self._report.write_record()
        self._report.close()
        raise error


def pin_tasks(wanted: Sequence[int | None], hellos: Sequence[Hello]) -> list[tuple[int, ...]]:
    """Return the CPUs of every task, by rank; empty to leave the pinning to the scheduler.

    Args:
        wanted: number of CPUs of each task, by rank; None not to pin it.
        hellos: nodes and CPUs that the agents have reported, by rank.
    """
    # The scheduler has pinned no task of a node on which all tasks may use the same CPUs. Only a node that
    # belongs to the job as a whole is pinned here: on a shared one other jobs may have some of the CPUs.
    pins: list[tuple[int, ...]] = [()] * len(hellos)
    by_node: dict[str, list[int]] = defaultdict(list)
    for rank, hello in enumerate(hellos):
        by_node[hello.node].append(rank)
    for ranks in by_node.values():
        first = hellos[ranks[0]]
        alike = all(hellos[rank].cpus == first.cpus for rank in ranks)
        counts = {wanted[rank] for rank in ranks}
        if alike and first.cpus_on_node >= len(first.cpus) and len(counts) == 1:
            chosen = pin_cpus(len(ranks), counts.pop(), first.cpus)
            for rank, cpus in zip(ranks, chosen, strict=False):
                pins[rank] = cpus
    return pins
