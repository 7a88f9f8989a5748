"""The checks of the configured Spark. `penstock doctor` runs one trial job, `penstock doctor --spark` all checks."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory, mkstemp
from typing import TYPE_CHECKING

from penstock.app.loading import load_app
from penstock.app.pipelines.sources import declared_source
from penstock.app.scope import find_scope
from penstock.app.spark import Spark
from penstock.config import Settings, load_settings
from penstock.errors import PenstockError
from penstock.events import Bus
from penstock.messaging.clock import SystemClock
from penstock.operations.doctor.findings import Finding, FindingLevel, failure, guarded
from penstock.pipeline.extra import require_spark
from penstock.pipeline.spark.requirements import FOR_S3, REQUIRED
from penstock.storage.address import S3Address, is_s3, s3_address
from penstock.worker.shutdown import StopSignal

if TYPE_CHECKING:
    from penstock.app.paths import TablePaths
    from penstock.app.scope import ScopeRequest
    from penstock.pipeline.spark.probe import WorkerPython
    from penstock.pipeline.spark.runtime import Session
    from penstock.storage.aws import Aws

NO_CANCEL = "A stop waits until the running batch has ended."


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineLocations:
    """The table of one pipeline, and its source if that is known."""

    paths: "TablePaths"
    source: str | None = None

    @property
    def in_s3(self) -> Sequence[S3Address]:
        """Return those of them that are in S3."""
        uris = [self.paths.table.uri] if is_s3(self.paths.table.uri) else []
        uris += [self.source] if self.source is not None and is_s3(self.source) else []
        return [s3_address(uri) for uri in uris]


def spark_checks(request: "ScopeRequest", *, master: str | None = None) -> Iterator[Finding]:
    """Open the configured Spark, or the one at ``master``, and yield a finding for each thing that pipelines need.

    Checks that depend on a failed one are skipped. The folders and buckets are those of the named or current scope.
    """
    try:
        require_spark()
        settings = _settings(request, master)
        locations = pipeline_locations(request)
    except PenstockError as error:
        yield failure("spark session", error)
        return
    with _temporary_spark(settings, checks=False) as spark:
        try:
            session = spark.session()
            found = _description(session)
        except Exception as error:
            yield failure("spark session", error)
            return
        yield Finding(check="spark session", level=FindingLevel.OK, found=found)
        yield from _SessionChecks(session, locations).findings()


def run_trial_job() -> tuple[FindingLevel, str]:
    """Open the configured Spark, send numbers through a Python worker, and write Parquet if tasks run here."""
    from penstock.pipeline.spark.session import runtime_of
    from penstock.pipeline.spark.trial import try_out

    clock = SystemClock()
    began_at = clock.monotonic()
    with _temporary_spark(load_settings()) as spark:
        session = spark.session()
        with TemporaryDirectory(prefix="penstock-doctor-") as folder:
            try_out(session, Path(folder))
        address = runtime_of(session).address
    return FindingLevel.OK, f"runs Python in a worker on {address} ({clock.monotonic() - began_at:.1f} s)"


def pipeline_locations(request: "ScopeRequest") -> Sequence[PipelineLocations]:
    """Return the tables of the named or current scope with their sources. Raises `UsageError` for a wrong name."""
    named = request.means_app or request.means_table
    try:
        scope = find_scope(request, here=Path.cwd(), make=True)
    except PenstockError:
        if named:
            raise
        return []
    if request.app is None:
        return [PipelineLocations(paths=paths) for paths in scope.tables.values()]
    sources = {one.name: one.declaration.source for one in load_app(request.app).pipelines}
    return [
        PipelineLocations(paths=paths, source=declared_source(sources[name], paths).address)
        for name, paths in scope.tables.items()
    ]


def _settings(request: "ScopeRequest", master: str | None) -> Settings:
    settings = load_settings() if request.app is None else load_app(request.app).settings
    if master is None:
        return settings
    return Settings.model_construct(
        settings.model_fields_set | {"spark_master"}, **{**dict(settings), "spark_master": master}
    )


@contextmanager
def _temporary_spark(settings: Settings, *, checks: bool = True) -> Iterator[Spark]:
    """Yield a holder of a Spark session. Its files are deleted after the block, but for the log of a failed start."""
    descriptor, log = mkstemp(prefix="penstock-doctor-", suffix=".log")
    os.close(descriptor)
    with TemporaryDirectory(prefix="penstock-doctor-") as folder:
        spark = Spark(
            settings,
            scratch=Path(folder) / "scratch",
            log=Path(log),
            clock=SystemClock(),
            bus=Bus(),
            stop=StopSignal(),
            checks=checks,
        )
        try:
            yield spark
        finally:
            spark.close()
            if not spark.has_failed:
                Path(log).unlink(missing_ok=True)


def _description(session: "Session") -> str:
    from penstock.pipeline.spark.session import runtime_of

    runtime = runtime_of(session)
    executors = runtime.executors()
    counted = "" if runtime.is_local or executors is None else f", executors: {executors}"
    return f"Spark {session.version} on {runtime.address}, tasks at once: {runtime.tasks_at_once()}{counted}"


class _SessionChecks:
    """The checks of one session."""

    def __init__(self, session: "Session", locations: Sequence[PipelineLocations]) -> None:
        self._session = session
        self._locations = locations
        self._uses_s3 = any(one.in_s3 for one in locations)

    def findings(self) -> Iterator[Finding]:
        """Yield all findings. A failed check ends those that depend on it."""
        try:
            workers = self._survey()
        except Exception as error:
            yield failure("workers", error)
            return
        yield from map(_program, workers)
        packages = [self._packages(worker) for worker in workers]
        yield from packages
        if any(finding.level is FindingLevel.FAILED for finding in packages):
            return
        shipped = self._guarded("penstock", self._shipped)
        yield shipped
        if shipped.level is not FindingLevel.FAILED:
            yield from self._jobs()

    def _jobs(self) -> Iterator[Finding]:
        yield self._guarded("mapInArrow", self._arrow)
        yield self._guarded("cancel", self._cancel, hint=NO_CANCEL)
        for one in self._locations:
            yield self._guarded("shared folders", partial(self._shared, one))
            for address in one.in_s3:
                yield self._guarded("s3 in tasks", partial(self._listed, address, one.paths.aws))

    def _survey(self) -> "Sequence[WorkerPython]":
        from penstock.pipeline.spark.faults import SPARK_ERRORS
        from penstock.pipeline.spark.probe import refused, survey
        from penstock.pipeline.spark.session import runtime_of

        try:
            return survey(self._session, [*REQUIRED, *FOR_S3])
        except SPARK_ERRORS as error:
            raise refused(error, runtime_of(self._session)) from error

    def _packages(self, worker: "WorkerPython") -> Finding:
        from penstock.pipeline.spark.probe import package_faults, remedy

        faults = package_faults(worker, REQUIRED)
        s3_faults = package_faults(worker, FOR_S3)
        if self._uses_s3 and s3_faults:
            return _lacking(worker, [*faults, *s3_faults], remedy("aws"))
        if faults:
            return _lacking(worker, faults, remedy())
        names = [f"{name} {version}" for name, version in worker.packages.items() if version is not None]
        without_s3 = f"; not enough for S3: it {' and '.join(s3_faults)}" if s3_faults else ""
        return Finding(check="packages", level=FindingLevel.OK, found=f"{worker.host}: {', '.join(names)}{without_s3}")

    def _shipped(self) -> tuple[FindingLevel, str]:
        from penstock.pipeline.spark.probe import penstock_in_workers
        from penstock.pipeline.spark.session import runtime_of

        places = penstock_in_workers(self._session)
        if runtime_of(self._session).is_local:
            return FindingLevel.OK, f"imported from {', '.join(places)}; the Python data source works"
        shipped = [place for place in places if ".zip/" in place]
        if len(shipped) < len(places):
            other = next(place for place in places if place not in shipped)
            found = f"the workers import Penstock from {other}, and not the shipped version {_version()}"
            return FindingLevel.FAILED, f"{found}: remove it from the PYTHONPATH of the executors"
        return FindingLevel.OK, f"{_version()}, shipped to the workers; the Python data source works"

    def _arrow(self) -> tuple[FindingLevel, str]:
        from penstock.pipeline.spark.trial import run_arrow

        return FindingLevel.OK, f"Arrow functions run; tasks: {run_arrow(self._session)}"

    def _cancel(self) -> tuple[FindingLevel, str]:
        from penstock.pipeline.spark.trial import cancel_by_tag

        if cancel_by_tag(self._session):
            return FindingLevel.OK, "a job was cancelled by its tag"
        return FindingLevel.WARNING, "a job could not be cancelled by its tag"

    def _shared(self, one: PipelineLocations) -> tuple[FindingLevel, str]:
        from penstock.pipeline.spark.session import runtime_of
        from penstock.pipeline.spark.shared_folders import prove_places

        paths = one.paths
        checked = prove_places(
            self._session, table=paths.table, quarantine=paths.quarantine, work=paths.work, source=one.source
        )
        if checked:
            return FindingLevel.OK, f"{paths.table}: all executors share its folders: {checked}"
        why = "all tasks run on this host" if runtime_of(self._session).is_local else "S3 needs no mount"
        return FindingLevel.OK, f"{paths.table}: {why}"

    def _listed(self, address: S3Address, aws: "Aws") -> tuple[FindingLevel, str]:
        from penstock.pipeline.spark.trial import list_s3

        replies = list_s3(self._session, address, aws)
        faults = [f"on the host {reply.host}: {reply.fault}" for reply in replies if reply.fault is not None]
        if faults:
            return FindingLevel.FAILED, f"{address} cannot be listed in a task {faults[0]}"
        found = sorted({f"{reply.host} (credentials: {reply.found})" for reply in replies})
        return FindingLevel.OK, f"{address}: listed on {', '.join(found)}"

    def _guarded(self, check: str, run: Callable[[], tuple[FindingLevel, str]], *, hint: str = "") -> Finding:
        """Run a check as `guarded` does, with a sentence in place of Spark's errors."""
        from penstock.pipeline.spark.faults import SPARK_ERRORS
        from penstock.pipeline.spark.probe import refused
        from penstock.pipeline.spark.session import runtime_of

        def explained() -> tuple[FindingLevel, str]:
            try:
                return run()
            except SPARK_ERRORS as error:
                raise refused(error, runtime_of(self._session), when_planning=True) from error

        return guarded(check, explained, hint=hint)


def _program(worker: "WorkerPython") -> Finding:
    return Finding(
        check="workers",
        level=FindingLevel.OK,
        found=f"{worker.host}: Python {worker.version} ({worker.program})",
    )


def _lacking(worker: "WorkerPython", faults: Sequence[str], hint: str) -> Finding:
    return Finding(
        check="packages",
        level=FindingLevel.FAILED,
        found=f"{worker.host}: Python {worker.version} {' and '.join(faults)}",
        hint=hint,
    )


def _version() -> str:
    try:
        return version("penstock")
    except PackageNotFoundError:
        return "run from its source"
