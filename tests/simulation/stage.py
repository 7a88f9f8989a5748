"""Runs actors one at a time, in threads of their own, and decides at every step who goes on and who dies there.

Only the actor that holds the baton runs; it hands it over at a step, if chance says so. A schedule is therefore decided
by its seed alone, and goes the same way every time it is run.
"""

import threading
from collections.abc import Callable
from random import Random

PATIENCE_SECONDS = 60.0  # of real time; a step that takes longer is a deadlock


class Crash(BaseException):
    """The process of this actor ends here. Product code may not survive it, so it is no `Exception`."""


class Actor:
    """One thread of the play. ``stalled_until`` is the turn before which it is not chosen."""

    def __init__(self, name: str, play: Callable[[], None]) -> None:
        self.name = name
        self.play = play
        self.baton = threading.Semaphore(0)
        self.stalled_until = 0


class Stage:
    """The scheduler. Every field is touched only by the thread that holds the baton."""

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
        """Chaos lasts ``turns_max`` steps. At the ``deadly_step`` every second actor dies.

        ``disturb`` is called at every step and may do anything but take one.
        """
        self.random = random
        self.turn = 0
        self.log: list[str] = []
        self.deaths: list[str] = []  # the steps at which somebody died
        self._turns_max = turns_max
        self._switch, self._crash, self._deadly_step, self._stall = switch, crash, deadly_step, stall
        self._disturb = disturb
        self._actors: list[Actor] = []
        self._here: Actor | None = None
        self._apart = False  # inside a disturbance: its own steps are no steps of the play
        self._over = threading.Semaphore(0)
        self._defect: BaseException | None = None

    @property
    def chaos(self) -> bool:
        """Whether things may still go wrong."""
        return self.turn < self._turns_max and self._here is not None

    def chance(self, probability: float) -> bool:
        """Whether something happens now; never once the chaos is over."""
        return self.chaos and not self._apart and self.random.random() < probability

    def calm_down(self) -> None:
        """From now on nothing goes wrong."""
        self._turns_max = 0

    def enter(self, name: str, play: Callable[[], None]) -> None:
        """Add an actor; it begins when it is chosen."""
        actor = Actor(name, play)
        self._actors.append(actor)
        threading.Thread(target=self._perform, args=(actor,), name=name, daemon=True).start()

    def run(self) -> None:
        """Play until every actor has left. Raises what an actor raised, `Crash` aside."""
        if self._actors:
            self._hand_over()
            if not self._over.acquire(timeout=PATIENCE_SECONDS):
                raise AssertionError(f"deadlock at {self.log[-5:]}")
        if self._defect is not None:
            raise self._defect

    def step(self, name: str, *, inside: bool = False) -> None:
        """A place where the actor may die, or others go on first; ``inside`` a transaction others have to wait."""
        here = self._here
        if here is None or self._apart:
            return
        self.turn += 1
        self.log.append(f"{here.name}: {name}")
        if self.chance(0.5 if name == self._deadly_step else self._crash):
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
        """The actor on stage has nothing to do for a while."""
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
        """The one who has the baton leaves."""
        if self._actors:
            self._here = self._choose()
            self._here.baton.release()
        else:
            self._here = None
            self._over.release()

    def _perform(self, actor: Actor) -> None:
        actor.baton.acquire()
        try:
            actor.play()
        except Crash:
            pass  # its process is gone, and that is all
        except BaseException as defect:
            self._defect = self._defect or defect
        self._actors.remove(actor)
        self._hand_over()
