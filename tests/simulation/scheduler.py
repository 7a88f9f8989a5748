"""Run actors one at a time, in their own threads, and decide at every step which one continues and which one dies.

Only the actor that holds the baton runs; at a step it may pass the baton on, by chance. A schedule is therefore
determined by its seed alone and is reproducible.
"""

import threading
from collections.abc import Callable
from random import Random

PATIENCE_SECONDS = 60.0  # of real time; a step that takes longer is a deadlock


class Crash(BaseException):
    """The process of this actor ends here. Product code must not catch it, so it is not an `Exception`."""


class Actor:
    """One thread of the schedule. ``stalled_until``: the turn before which it is not chosen."""

    def __init__(self, name: str, schedule: Callable[[], None]) -> None:
        self.name = name
        self.schedule = schedule
        self.baton = threading.Semaphore(0)
        self.stalled_until = 0


class Scheduler:
    """The scheduler. Only the thread that holds the baton touches its fields."""

    def __init__(
        self,
        random: Random,
        *,
        turns_max: int,
        switch: float,
        crash: float,
        deadly_step: str | None,
        stall: float,
        disturb: Callable[[], None],
    ) -> None:
        """Create a scheduler.

        Args:
            turns_max: Number of steps that the chaos lasts.
            deadly_step: The step at which every second actor dies.
            disturb: Called at every step; it may do anything but take one.
        """
        self.random = random
        self.turn = 0
        self.log: list[str] = []
        self.deaths: list[str] = []  # the steps at which an actor died
        self._turns_max = turns_max
        self._switch, self._crash, self.deadly_step, self._stall = switch, crash, deadly_step, stall
        self._disturb = disturb
        self._actors: list[Actor] = []
        self._here: Actor | None = None
        self._apart = False  # inside a disturbance: its own steps are not steps of the schedule
        self._over = threading.Semaphore(0)
        self._defect: BaseException | None = None

    @property
    def chaos(self) -> bool:
        """True during the chaos, while faults may still happen."""
        return self.turn < self._turns_max and self._here is not None

    def chance(self, probability: float) -> bool:
        """Return True with this probability; never once the chaos is over."""
        return self.chaos and not self._apart and self.random.random() < probability

    def calm_down(self) -> None:
        """End the chaos."""
        self._turns_max = 0

    def enter(self, name: str, schedule: Callable[[], None]) -> None:
        """Add an actor; it begins when it is chosen."""
        actor = Actor(name, schedule)
        self._actors.append(actor)
        threading.Thread(target=self._perform, args=(actor,), name=name, daemon=True).start()

    def run(self) -> None:
        """Run until every actor has left. Raises the exception of an actor, except `Crash`."""
        if self._actors:
            self._hand_over()
            if not self._over.acquire(timeout=PATIENCE_SECONDS):
                raise AssertionError(f"deadlock at {self.log[-5:]}")
        if self._defect is not None:
            raise self._defect

    def step(self, name: str, *, inside: bool = False) -> None:
        """Mark a point at which the actor may die or others may run; ``inside`` a transaction others have to wait."""
        here = self._here
        if here is None or self._apart:
            return
        self.turn += 1
        self.log.append(f"{here.name}: {name}")
        if self.chance(0.5 if name == self.deadly_step else self._crash):
            self.log.append(f"{here.name} dies")
            self.deaths.append(name)
            raise Crash(name)
        if inside:
            return
        if self.chaos:
            self._apart = True
            try:
                self._disturb()
            finally:
                self._apart = False
            if self.chance(self._stall):
                here.stalled_until = self.turn + self.random.randrange(5, 60)
                self.log.append(f"{here.name} stalls until {here.stalled_until}")
        if here.stalled_until > self.turn or self.random.random() < self._switch:
            self._switch_from(here)

    def rest(self, turns: int) -> None:
        """Let the running actor do nothing for a while."""
        if self._here is not None:
            self._here.stalled_until = self.turn + turns
        self.step("rests")

    def _switch_from(self, here: Actor) -> None:
        chosen = self._choose()
        if chosen is here:
            return
        self._here = chosen
        chosen.baton.release()
        here.baton.acquire()

    def _choose(self) -> Actor:
        awake = [actor for actor in self._actors if actor.stalled_until <= self.turn]
        return self.random.choice(awake or self._actors)

    def _hand_over(self) -> None:
        """Pass the baton on from an actor that leaves."""
        if self._actors:
            self._here = self._choose()
            self._here.baton.release()
        else:
            self._here = None
            self._over.release()

    def _perform(self, actor: Actor) -> None:
        actor.baton.acquire()
        try:
            actor.schedule()
        except Crash:
            pass  # its process has ended; the others continue
        except BaseException as defect:
            self._defect = self._defect or defect
        self._actors.remove(actor)
        self._hand_over()
