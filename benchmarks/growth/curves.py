"""The figures of one curve, and how CPU time is measured."""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

FLAT = 1.5  # a curve is flat if its last point is at most this many times its second one


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The cost of one unit of an operation at one size."""

    size: int
    cost: float  # CPU microseconds, or MB of memory
    wall_us: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The cost of one operation by size, with the sizes in order."""

    part: str  # a key of `benchmarks.growth.__main__.PARTS`
    operation: str
    unit: str
    points: Sequence[Point]

    @property
    def growth(self) -> float:
        """The cost at the last point by that at the second one; at the first one if there are only two."""
        base = self.points[min(1, len(self.points) - 2)] if len(self.points) > 1 else self.points[0]
        return self.points[-1].cost / base.cost if base.cost else 1.0

    @property
    def is_flat(self) -> bool:
        return self.growth <= FLAT


@dataclass(slots=True, kw_only=True)
class Meter:
    """CPU and wall time between `begin` and `end`: of this process, its children that ended, and ``more``."""

    more: Callable[[], float] = float  # returns the CPU seconds of a server; by default 0
    _began: tuple[float, float] = field(default=(0.0, 0.0), init=False)

    def begin(self) -> None:
        self._began = self._cpu_seconds(), time.perf_counter()

    def end(self) -> tuple[float, float]:
        """Return CPU and wall seconds since `begin`."""
        return self._cpu_seconds() - self._began[0], time.perf_counter() - self._began[1]

    def _cpu_seconds(self) -> float:
        own = os.times()
        used = time.process_time() + own.children_user + own.children_system
        return used + self.more()


def point(size: int, *, units: int, cpu_seconds: float, wall_seconds: float) -> Point:
    """Return the cost of one unit."""
    return Point(size=size, cost=cpu_seconds / units * 1e6, wall_us=wall_seconds / units * 1e6)


class Series:
    """The points of several operations of one part, as they are measured."""

    def __init__(self, part: str, units: Mapping[str, str]) -> None:
        """``units`` names the unit of each operation."""
        self._part = part
        self._units = units
        self._points: dict[str, list[Point]] = {operation: [] for operation in units}
        self._spent: dict[str, list[float]] = {}  # units, CPU and wall seconds of each operation at the present size

    @contextmanager
    def of(self, operation: str, units: int = 1, *, more: Callable[[], float] = float) -> Iterator[None]:
        """Measure the block, in which this number of units of an operation happens. Blocks of one size add up."""
        meter = Meter(more=more)
        meter.begin()
        yield
        cpu, wall = meter.end()
        spent = self._spent.setdefault(operation, [0.0, 0.0, 0.0])
        for at, amount in enumerate((units, cpu, wall)):
            spent[at] += amount

    def spent(self) -> Mapping[str, Mapping[str, float]]:
        """Return what was measured at the present size, as `add` takes it in another process."""
        names = ("units", "cpu_seconds", "wall_seconds")
        return {operation: dict(zip(names, spent, strict=True)) for operation, spent in self._spent.items()}

    def add(self, operation: str, *, units: float, cpu_seconds: float, wall_seconds: float) -> None:
        """Add what another process measured."""
        self._spent[operation] = [units, cpu_seconds, wall_seconds]

    def add_memory(self, operation: str, *, size: int, mb: float) -> None:
        """Add the memory that another process took."""
        self._points[operation].append(Point(size=size, cost=mb))
        print(f"{self._part:8} {size:>10,} {operation:30} {mb:>10,.0f} MB", flush=True)

    def done(self, size: int) -> None:
        """End the measurements of this size."""
        for operation, (units, cpu, wall) in self._spent.items():
            found = point(size, units=int(units), cpu_seconds=cpu, wall_seconds=wall)
            self._points[operation].append(found)
            print(
                f"{self._part:8} {size:>10,} {operation:30} {found.cost:>10,.1f} us CPU {found.wall_us:>10,.1f} us"
                f"  {self._units[operation]}",
                flush=True,
            )
        self._spent.clear()

    def curves(self) -> Sequence[Curve]:
        return [
            Curve(part=self._part, operation=operation, unit=self._units[operation], points=points)
            for operation, points in self._points.items()
            if points
        ]


def load(file: Path) -> Sequence[Curve]:
    """Return the curves in a file that `store` wrote; none if it does not exist."""
    if not file.exists():
        return []
    found = json.loads(file.read_text(encoding="utf-8"))
    return [Curve(**{**one, "points": [Point(**each) for each in one["points"]]}) for one in found]


def store(file: Path, curves: Sequence[Curve]) -> None:
    """Write the curves, with times to a tenth of a microsecond, one point in a line."""
    lines = []
    for curve in curves:
        points = ",\n   ".join(json.dumps(_rounded(one)) for one in curve.points)
        head = json.dumps({"part": curve.part, "operation": curve.operation, "unit": curve.unit})[:-1]
        lines.append(f' {head}, "points": [\n   {points}]}}')
    file.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def _rounded(one: Point) -> dict[str, float]:
    times = {} if one.wall_us is None else {"wall_us": round(one.wall_us, 1)}
    return {"size": one.size, "cost": round(one.cost, 1), **times}
