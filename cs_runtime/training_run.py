"""A training under way, for whoever owns the loop: so many steps more, a checkpoint now.

`cs_runtime.training.train` stands on it. A front end whose programs own their loop enters it itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager

from cs_runtime import progress_notes
from cs_runtime.background_checkpoint import ReadingState
from cs_runtime.errors import GlobalStepError, NothingToDoError
from cs_runtime.program import FrontEnd, Observer, State
from cs_runtime.progress import Progress
from cs_runtime.session import Session, open_session, prime
from cs_runtime.settings import RunSettings
from cs_runtime.timeline import Timeline
from cs_runtime.waiting import WaitLog, announced
from cs_runtime.worker import worker_beside
from cs_system.client import StepOutputs
from cs_system.errors import CsSystemError
from cs_toolkit.step import GLOBAL_STEP
from csrun.roles import TaskInfo


class TrainingRun:
    """A system that is programmed, has its state and gets batches; on the chief.

    Attributes:
        session: The chief's side of the system.
        settings: Of the run.
        progress: Steps, samples and the last loss so far.
        input_ended: No worker has a batch left; `advance` does nothing more.
        is_to_stop: Whether the observer has asked to stop, or the front end with a checkpoint that was
            written beside steps.
    """

    def __init__(
        self,
        session: Session,
        front_end: FrontEnd,
        settings: RunSettings,
        observer: Observer,
        progress: Progress,
        timeline: Timeline,
    ) -> None:
        self.session = session
        self.settings = settings
        self.progress = progress
        self.input_ended = False
        self._front_end = front_end
        self._observer = observer
        self._timeline = timeline
        self._wait_log = WaitLog()
        self._reading: ReadingState | None = None
        self.is_to_stop = False

    @property
    def first_step(self) -> int:
        """Global step at which the run began."""
        return self.session.first_step

    @property
    def step(self) -> int:
        """Global step that has been reached."""
        return self.progress.step

    def advance(self, steps: int) -> int:
        """Trains on the next batches; the observer sees what the steps put out.

        Args:
            steps: How many steps.

        Returns:
            The number of steps done: fewer where the input ends (`input_ended`) or
            `Reservation.pause_steps` was called.

        Raises:
            NothingToDoError: the input ended before the first step of the run.
            NonFiniteLossError: the loss became NaN or infinite.
            OutOfRangeError: a label is no class, or an id no row of its table.
            cs_system.errors.CsSystemError: the system failed; a worker was lost.
        """
        before = self.step
        for _ in self.spans(steps):
            pass
        return self.step - before

    def spans(self, steps: int) -> Iterator[StepOutputs]:
        """As `advance`, but hands the outputs over as they come: the system computes while they are used."""
        if self.input_ended:
            return
        stream = self.session.reservation.run_steps(steps, self._waits_for, self.session.every)
        try:
            for span in stream:
                self._wait_log.reset()
                self._timeline.mark("first step")
                outputs = self.session.checked(span)
                self.progress.add(outputs)
                if self._observer.steps(outputs) and not self.is_to_stop:
                    self.is_to_stop = True
                    self.session.reservation.pause_steps()
                yield outputs
                self._save_what_is_here()
        except CsSystemError:
            # Where only the steps have failed, the checkpoint before them is still to be had.
            with contextlib.suppress(CsSystemError):
                self.end_checkpoint()
            raise
        self.input_ended = stream.end_of_input
        if self.input_ended and self.step == self.first_step:
            raise NothingToDoError(self.first_step, skipped=self.settings.input_position == "toolkit")

    def state(self) -> State:
        """The whole state by resource name, to be used before the next step.

        Raises:
            GlobalStepError: the system has done another number of steps than this run knows of.
        """
        with announced("give the state"):
            found = self.session.reservation.state()
        return self._checked_state(self.step, found)

    def checkpoint(self) -> bool:
        """Has the front end write a checkpoint of the state; returns whether it asks to stop there."""
        self.end_checkpoint()
        with self._timeline.phase("checkpoint"):
            return self._front_end.save(self.step, self.state())

    def begin_checkpoint(self) -> bool:
        """As `checkpoint`, but where the system keeps the state, it is read and written while steps run.

        `advance` then pauses where the front end asks to stop, see `is_to_stop`.
        """
        self.end_checkpoint()
        stream = self.session.reservation.snapshot()
        if stream is None:
            return self.checkpoint()
        self._reading = ReadingState(self.step, stream)
        return self.is_to_stop

    def end_checkpoint(self) -> None:
        """Waits for the checkpoint that `begin_checkpoint` has begun, if there is one, and has it written."""
        reading, self._reading = self._reading, None
        if reading is None:
            return
        with self._timeline.phase("checkpoint"):
            with announced("give the state"):
                found = reading.state()
            state = self._checked_state(reading.step, found)
            self.is_to_stop |= self._front_end.save(reading.step, state)

    def _waits_for(self, text: str) -> None:
        if self._wait_log(text):
            progress_notes.waits_for(text)

    def _save_what_is_here(self) -> None:
        if self._reading is not None and self._reading.is_here:
            self.end_checkpoint()
            if self.is_to_stop:
                self.session.reservation.pause_steps()

    def _checked_state(self, step: int, found: State) -> State:
        if int(found[GLOBAL_STEP]) != step:
            raise GlobalStepError(step, int(found[GLOBAL_STEP]))
        return found


@contextmanager
def training_run(
    front_end: FrontEnd,
    settings: RunSettings,
    observer: Observer,
    task: TaskInfo,
    run: int,
    timeline: Timeline,
) -> Iterator[TrainingRun]:
    """Brings the system to the first step of a training, and gives it back at the end of the body.

    A training that begins at step 0 writes its first checkpoint here.

    Args:
        front_end: Of the user's program.
        settings: Of the run.
        observer: Is shown what the steps put out.
        task: This task, the chief.
        run: Number of the run in the program (`cs_runtime.session.next_run`).
        timeline: Gets the phases.

    Raises:
        NoSystemError: no `cs_ip`.
        cs_system.errors.CsSystemError: the system is not there or busy; a worker did not come.
    """
    with open_session(front_end, settings, task, run, timeline) as session:
        progress = Progress(
            session.first_step, settings.batch_size, settings.log_every_steps, settings.model_dir
        )
        if session.first_step == 0:
            front_end.save(0, session.initial_state)
        with worker_beside(front_end, settings, task, run) as check:
            prime(session, task, timeline, check)
            training = TrainingRun(session, front_end, settings, observer, progress, timeline)
            yield training
            training.end_checkpoint()
            session.reservation.stop(None)
