"""Simulate pipelines on S3 and SQS: utilization of each resource, the bottleneck, backlog, age of rows, and cost.

    python -m benchmarks.capacity                         # the table of docs/run/capacity.md
    python -m benchmarks.capacity --tb-per-day 20 --object-mb 1 --pipelines 2 --cores 40 [--cost driver_us=90] ...

A deterministic simulation of discrete events; no service is called and no time passes. Objects arrive evenly. A worker
(one driver, one Python core) fills a batch, or takes what has arrived if it is idle; only full batches overlap, at most
``--in-flight``. A batch takes, one after the other, and each time waits in line for it: the driver (receive, parse,
plan), the ledger (claim), Spark and at the same time its share of S3's request rate, the driver, the ledger (commit),
and a publish of the table, which takes all batches that wait (at most `FILES_MAX` files) in one commit. Then its
messages are acked. The messages of one queue that are in flight have a quota. Not simulated: failures, retries, peaks,
background jobs, another writer, network bandwidth, a transform that costs anything.
"""

import argparse
import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace

from penstock.objects.stores import OPENED_AT_FIRST
from penstock.pipeline.republish import FILES_MAX

DAY = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Costs that were measured (docs/run/capacity.md, docs/why/benchmarks.md), that AWS documents, or assumed."""

    driver_us: float = 248.0  # of one core per object: `benchmarks.objects`, 100,000 objects
    sqs_us: float = 170.0  # of the driver's core per message, for boto3 in full batches: `benchmarks.sqs`
    claim_us: float = 207.0  # of the ledger per object: `benchmarks.ledger_servers`, PostgreSQL with a million rows
    commit_us: float = 166.0  # the same
    spark_object_ms: float = 1.0  # of a core per object: `benchmarks.chain`
    spark_gb_seconds: float = 13.0  # of a core per GB as stored: `benchmarks.chain`
    spark_batch_seconds: float = 2.0  # fixed, per batch: `benchmarks.objects`, 1,000 objects
    publish_ms: float = 11.0  # of one commit: `benchmarks.publish`
    publish_file_us: float = 3.5  # more per file that the table has: `benchmarks.publish`
    s3_seconds: float = 0.1  # of one request for a small object; AWS documents 0.1 to 0.2
    publish_requests: float = 8.0  # one after the other, of a publish in S3 (assumed)
    s3_gets: float = 5_500.0  # per second and partitioned prefix, at least (AWS)
    sqs_in_flight: float = 120_000.0  # messages per queue, about (AWS)
    core_hour: float = 0.048  # $, an m5.xlarge in us-east-1 has 4 vCPU for 0.192 (AWS)
    get: float = 0.4e-6  # $ (AWS)
    put: float = 5e-6  # $ (AWS)
    sqs: float = 0.4e-6  # $ per request (AWS)
    storage: float = 0.023  # $ per GB and month (AWS)
    ledger_cores: float = 4.0  # of one ledger's server (assumed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The arriving volume and the pipelines for it, which share Spark's cores and the S3 prefixes evenly."""

    tb_per_day: float = 100.0
    object_mb: float = 0.1
    batch: int = 5_000  # objects.max_batch_objects
    batch_gb: float = 8.6  # objects.max_batch_bytes
    in_flight: int = 2  # objects.batches_in_flight
    pipelines: int = 1  # each with a queue, a table and a ledger of its own
    workers: int = 1  # of each pipeline
    cores: int = 128  # of Spark, in all
    prefixes: int = 4  # of S3 that AWS has partitioned, in all
    files: int = 100_000  # that each table has at the beginning
    hours: float = 2.0

    @property
    def objects_per_second(self) -> float:
        return self.tb_per_day * 1e6 / self.object_mb / DAY

    @property
    def batch_objects(self) -> int:
        """The objects of a full batch."""
        return max(1, min(self.batch, int(self.batch_gb * 1e3 / self.object_mb)))


class Server:
    """One or more equal units that serve in the order of requests, one request each."""

    def __init__(self, units: int = 1) -> None:
        self._free = [0.0] * units
        self.units = units
        self.busy_seconds = 0.0

    def serve(self, now: float, seconds: float, until: float) -> float:
        """Return the end of a request made now. ``busy_seconds`` counts its part before ``until``."""
        start = max(now, heapq.heappop(self._free))
        heapq.heappush(self._free, start + seconds)
        self.busy_seconds += max(0.0, min(start + seconds, until) - min(start, until))
        return start + seconds


@dataclass(slots=True)
class _Worker:
    driver: Server = field(default_factory=Server)
    spark: Server = field(default_factory=Server)
    running: int = 0
    looks_at: float = 0.0  # the time of its next look at the queue, if that lies ahead


@dataclass(slots=True)
class _Pipeline:
    workers: list[_Worker]
    ledger: Server = field(default_factory=Server)
    table: Server = field(default_factory=Server)
    taken: int = 0  # objects that batches hold or have held
    held: int = 0  # messages in flight
    held_seconds: float = 0.0
    is_refused: bool = False  # the queue's quota kept a full batch from beginning
    waiting: list["_Batch"] = field(default_factory=list)  # committed, for the next publish
    publishing: bool = False
    commits: int = 0
    files: int = 0  # of the table


@dataclass(slots=True, kw_only=True)
class _Batch:
    first: int  # the number of its first object
    objects: int
    files: int
    began: float
    worker: _Worker
    published: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The outcome of a simulation. Ages are those of objects that were published after the first tenth of the time."""

    utilization: dict[str, float]
    bottleneck: str
    overloaded: bool
    backlog: int  # objects that have arrived and are not published at the end
    age_p50: float | None  # seconds from arrival to publish
    age_p99: float | None
    commits_per_hour: float
    month: dict[str, float]  # $


class Simulation:
    def __init__(self, plan: Plan, costs: Costs) -> None:
        self.plan, self.costs, self.until = plan, costs, plan.hours * 3600.0
        self.rate = plan.objects_per_second / plan.pipelines  # of one pipeline
        self.pipelines = [
            _Pipeline([_Worker() for _ in range(plan.workers)], files=plan.files) for _ in range(plan.pipelines)
        ]
        self.s3 = Server()
        self.published: list[_Batch] = []
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def run(self) -> Result:
        for pipeline in self.pipelines:
            self._look(pipeline)
        while self._events and self._events[0][0] < self.until:
            self._now, _, event = heapq.heappop(self._events)
            event()
        return self._result()

    def _at(self, time: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), event))

    def _resume(self, process: Iterator[float]) -> None:
        """Run a process until it waits, and continue it at the time that it yields."""
        time = next(process, None)
        if time is not None:
            self._at(time, lambda: self._resume(process))

    def _look(self, pipeline: _Pipeline) -> None:
        """Start all batches that may begin now, and look again when the next one may have arrived."""
        plan = self.plan
        for worker in pipeline.workers:
            while worker.running < plan.in_flight:
                arrived = int(self._now * self.rate + 1e-6) - pipeline.taken
                room = int(self.costs.sqs_in_flight) - pipeline.held
                count = min(plan.batch_objects, arrived, room)
                if count <= 0 or (worker.running and count < plan.batch_objects):
                    pipeline.is_refused |= min(plan.batch_objects, arrived) > room
                    wanted = plan.batch_objects if worker.running else 1
                    if room >= wanted and not self._now < worker.looks_at:
                        worker.looks_at = max(self._now, (pipeline.taken + wanted) / self.rate)
                        self._at(worker.looks_at, lambda: self._look(pipeline))
                    break
                worker.running += 1
                pipeline.taken += count
                pipeline.held += count
                self._resume(self._batch(pipeline, worker, count))

    def _batch(self, pipeline: _Pipeline, worker: _Worker, count: int) -> Iterator[float]:
        plan, costs, until = self.plan, self.costs, self.until
        first, began = pipeline.taken - count, self._now
        cores = plan.cores / plan.pipelines / plan.workers
        half = count * (costs.driver_us + costs.sqs_us) / 2e6
        yield worker.driver.serve(self._now, half, until)
        yield pipeline.ledger.serve(self._now, count * costs.claim_us / 1e6, until)
        per_open = costs.s3_seconds / OPENED_AT_FIRST  # at least that many are opened at once
        task = max(costs.spark_object_ms / 1e3, per_open)
        work = count * (task + plan.object_mb / 1e3 * costs.spark_gb_seconds)
        gets = self.s3.serve(self._now, count / (costs.s3_gets * plan.prefixes), until)
        parallel = min(cores, max(1, count))
        yield max(gets, worker.spark.serve(self._now, costs.spark_batch_seconds + work / parallel, until))
        yield worker.driver.serve(self._now, half, until)
        yield pipeline.ledger.serve(self._now, count * costs.commit_us / 1e6, until)
        files = max(1, min(count, round(cores)))
        pipeline.waiting.append(_Batch(first=first, objects=count, files=files, began=began, worker=worker))
        if not pipeline.publishing:
            pipeline.publishing = True
            yield from self._publish(pipeline)

    def _publish(self, pipeline: _Pipeline) -> Iterator[float]:
        costs = self.costs
        while pipeline.waiting:
            number = 1
            files = pipeline.waiting[0].files
            while number < len(pipeline.waiting) and files + pipeline.waiting[number].files <= FILES_MAX:
                files += pipeline.waiting[number].files
                number += 1
            batches, pipeline.waiting = pipeline.waiting[:number], pipeline.waiting[number:]
            seconds = (costs.publish_ms + costs.publish_file_us / 1e3 * pipeline.files) / 1e3
            yield pipeline.table.serve(self._now, seconds + costs.publish_requests * costs.s3_seconds, self.until)
            pipeline.commits += 1
            pipeline.files += files
            for batch in batches:
                batch.published = self._now
                pipeline.held -= batch.objects
                pipeline.held_seconds += batch.objects * (self._now - batch.began)
                batch.worker.running -= 1
            self.published += batches
            self._look(pipeline)
        pipeline.publishing = False

    def _result(self) -> Result:
        plan, costs = self.plan, self.costs
        servers = {
            "driver": [worker.driver for pipeline in self.pipelines for worker in pipeline.workers],
            "ledger": [pipeline.ledger for pipeline in self.pipelines],
            "Spark": [worker.spark for pipeline in self.pipelines for worker in pipeline.workers],
            "S3 GETs": [self.s3],
            "publish": [pipeline.table for pipeline in self.pipelines],
        }
        used = {
            name: sum(server.busy_seconds for server in group) / sum(server.units for server in group) / self.until
            for name, group in servers.items()
        }
        held = sum(pipeline.held_seconds for pipeline in self.pipelines) / self.until / len(self.pipelines)
        used["SQS in flight"] = held / costs.sqs_in_flight
        arrived = round(self.rate * self.until) * plan.pipelines
        processed = sum(batch.objects for batch in self.published)
        late = [batch for batch in self.published if batch.published >= self.until / 2]
        overloaded = sum(batch.objects for batch in late) < 0.98 * arrived / 2
        bottleneck = max(used, key=lambda name: used[name])
        if overloaded and used[bottleneck] < 0.9:
            # No resource is busy: the batches that may run at once wait for each of them in turn.
            refused = any(pipeline.is_refused for pipeline in self.pipelines)
            bottleneck = "SQS in flight" if refused else "batches in flight"
        ages = self._ages()
        return Result(
            utilization=used,
            bottleneck=bottleneck,
            overloaded=overloaded,
            backlog=arrived - processed,
            age_p50=_percentile(ages, 0.5),
            age_p99=_percentile(ages, 0.99),
            commits_per_hour=sum(pipeline.commits for pipeline in self.pipelines) / plan.hours,
            month=self._month(processed),
        )

    def _ages(self) -> list[tuple[float, float]]:
        """Return age and weight of the objects, as ten points per batch."""
        points = []
        for batch in self.published:
            if batch.published < self.until / 10:
                continue
            for tenth in range(10):
                number = batch.first + 1 + int(batch.objects * (tenth + 0.5) / 10)
                points.append((batch.published - number / self.rate, batch.objects / 10))
        return sorted(points)

    def _month(self, processed: int) -> dict[str, float]:
        """Return the cost of 30 days at the simulated rate, in $, by part."""
        plan, costs = self.plan, self.costs
        objects = processed / plan.hours * 24 * 30
        files = sum(batch.files for batch in self.published) / plan.hours * 24 * 30
        hours = 24 * 30 * costs.core_hour
        return {
            "Spark": plan.cores * hours,
            "drivers, ledgers": plan.pipelines * (plan.workers + costs.ledger_cores) * hours,
            "S3 GET, PUT": objects * costs.get + files * costs.put,
            "SQS": objects * (1 + 0.2) * costs.sqs,  # S3 sends one by one; ten messages a receive, ten a delete
            "producer's PUTs": plan.objects_per_second * DAY * 30 * costs.put,
            "a day of the source": plan.tb_per_day * 1e3 * costs.storage,
        }


def simulate(plan: Plan, costs: Costs | None = None) -> Result:
    return Simulation(plan, costs or Costs()).run()


SCENARIOS = (
    Plan(),
    Plan(batch=100_000),
    Plan(workers=8, prefixes=8, cores=192),
    Plan(pipelines=8, prefixes=8, cores=192, batch=20_000),
    Plan(pipelines=16, prefixes=8, cores=192, batch=20_000),
    Plan(object_mb=10.0, cores=32),
    Plan(object_mb=128.0, cores=32),
)


def table(plans: Sequence[Plan], costs: Costs) -> str:
    """Return a table in Markdown with a column for each plan."""
    results = [simulate(plan, costs) for plan in plans]
    rows = [
        ("objects per second", [f"{plan.objects_per_second:,.0f}" for plan in plans]),
        ("size", [f"{plan.object_mb:g} MB" for plan in plans]),
        ("pipelines x workers", [f"{plan.pipelines} x {plan.workers}" for plan in plans]),
        ("objects in a full batch", [f"{plan.batch_objects:,}" for plan in plans]),
        ("Spark cores", [f"{plan.cores}" for plan in plans]),
    ]
    rows += [
        (f"{name}, busy", [f"{result.utilization[name]:.0%}" for result in results]) for name in results[0].utilization
    ]
    rows += [
        ("**bounded by**", [f"**{result.bottleneck}**" if result.overloaded else "-" for result in results]),
        ("backlog after the time", [f"{result.backlog:,}" for result in results]),
        ("age of rows, p50", [_seconds(result.age_p50) for result in results]),
        ("age of rows, p99", [_seconds(result.age_p99) for result in results]),
        ("commits per hour", [f"{result.commits_per_hour:,.0f}" for result in results]),
    ]
    rows += [
        (f"{name}, a month", ["-" if result.overloaded else f"${result.month[name]:,.0f}" for result in results])
        for name in results[0].month
    ]
    head = ["| |" + " |" * len(plans), "|---|" + "---:|" * len(plans)]
    return "\n".join(head + [f"| {name} | {' | '.join(cells)} |" for name, cells in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in fields(Plan):
        parser.add_argument(f"--{option.name.replace('_', '-')}", type=type(option.default))
    parser.add_argument("--cost", metavar="NAME=VALUE", action="append", default=[], help="a field of Costs")
    arguments = vars(parser.parse_args())
    costs = replace(Costs(), **_costs(parser, arguments.pop("cost")))
    given = {name: value for name, value in arguments.items() if value is not None}
    print(table([replace(Plan(), **given)] if given else SCENARIOS, costs))


def _costs(parser: argparse.ArgumentParser, given: Sequence[str]) -> dict[str, float]:
    names = {option.name for option in fields(Costs)}
    found = {}
    for text in given:
        name, _, value = text.partition("=")
        if name not in names:
            parser.error(f"--cost {text}: {name} is not one of {', '.join(sorted(names))}")
        try:
            found[name] = float(value)
        except ValueError:
            parser.error(f"--cost {text}: {value!r} is not a number")
    return found


def _seconds(value: float | None) -> str:
    if value is None:
        return "none published"
    return f"{value:,.0f} s" if value < 600 else f"{value / 60:,.0f} min"


def _percentile(points: Sequence[tuple[float, float]], share: float) -> float | None:
    """Return the smallest value that this share of the weight does not exceed."""
    left = sum(weight for _, weight in points) * share
    for value, weight in points:
        left -= weight
        if left <= 1e-9:
            return value
    return None


if __name__ == "__main__":
    main()
