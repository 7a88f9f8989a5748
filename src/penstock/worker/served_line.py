"""One line being served: its parts, and when it is asked again."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.messaging.delivery import Delivery
from penstock.worker.executors import Executors
from penstock.worker.intake import Intake
from penstock.worker.line import Line
from penstock.worker.upkeep import Upkeep


@dataclass(slots=True, kw_only=True)
class ServedLine:
    """A line with what serves it. The mutable fields are the I/O thread's."""

    line: Line
    intake: Intake
    executors: Executors
    upkeeps: Sequence[Upkeep]
    ask_at: float  # monotonic: not before
    polled_at: float | None = None  # monotonic: when the broker last answered for it
    receive_failures: int = 0  # in a row
    unheard: bool = False  # something may have arrived since it was asked last
    halted: bool = False  # set once, by whichever thread meets what nothing can mend
    started: bool = False  # whether what its line waits for is there; set once, by the thread that makes it

    @property
    def idle(self) -> bool:
        """Nothing at work, nothing held."""
        return not self.executors.busy and self.intake.empty

    @property
    def awaits(self) -> str | None:
        """What it waits for before its first receive."""
        return None if self.started or self.line.start is None else self.line.start.awaits

    @property
    def room(self) -> int:
        """How many more messages may be received."""
        if self.halted or self.awaits is not None:
            return 0
        room = self.intake.room(self.executors.free)
        admitted = None if self.line.gate is None else self.line.gate.admits()
        # What is held already counts: a line that waits for others to join a batch is admitted no more than one probe.
        return room if admitted is None else max(min(room, admitted - self.intake.held), 0)

    @property
    def barred(self) -> bool:
        """Whether what is held is not to begin here: the line was halted, or its gate fell shut."""
        if self.halted or self.line.gate is None:
            return self.halted
        admitted = self.line.gate.admits()
        return admitted is not None and self.intake.held > admitted

    @property
    def put_back_seconds(self) -> float:
        """How long what is barred stays invisible."""
        return 0.0 if self.line.gate is None else self.line.gate.put_back_seconds()

    @property
    def opens_at(self) -> float | None:
        """When its gate admits more (monotonic), if that is a matter of time."""
        return None if self.halted or self.line.gate is None else self.line.gate.opens_at()

    @property
    def to_be_heard(self) -> bool:
        """Whether it is to be asked before its time."""
        return self.unheard and not self.receive_failures

    def due_batches(self, now: float) -> Sequence[Sequence[Delivery]]:
        """The batches to begin now: those that share slots as a group, others one at a time and not too soon."""
        free = self.executors.free
        if free < 1 or now < self.executors.not_before or self.barred:
            return ()
        return self.intake.next_batches(free if self.line.shares_slots else 1, now)
