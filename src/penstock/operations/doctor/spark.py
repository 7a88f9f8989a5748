"""The checks of `penstock doctor --spark`: the configured Spark, its workers, and what a pipeline needs from it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from penstock.app.loading import load_app
from penstock.app.scope import find_scope
from penstock.app.sources import source_of
from penstock.app.spark import Spark
from penstock.config import Settings, load_settings
from penstock.errors import PenstockError
from penstock.events import Bus
from penstock.messaging.clock import SystemClock
from penstock.operations.doctor.findings import Finding, FindingLevel, guarded
from penstock.pipeline.extra import require_spark
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
class SparkPlace:
    """The table of one pipeline, and its source if that is known."""

    paths: "TablePaths"
    source: str | None = None

    @property
    def in_s3(self) -> Sequence[S3Address]:
        """Return its places in S3."""
        uris = [self.paths.table.uri] if is_s3(self.paths.table.uri) else []
        uris += [self.source] if self.source is not None and is_s3(self.source) else []
        return [s3_address(uri) for uri in uris]


def spark_checks(request: "ScopeRequest", *, master: str | None = None) -> Iterator[Finding]:
    """Open the configured Spark, or the one at ``master``, and yield a finding for each thing that pipelines need.

    Checks that depend on a failed one are skipped. The folders and S3 places are those of the named or current scope.
    """
    try:
        require_spark()
        settings = _settings(request, master)
        places = spark_places(request)
    except PenstockError as error:
        yield Finding(check="spark session", level=FindingLevel.FAILED, found=str(error))
        return
    with TemporaryDirectory(prefix="penstock-doctor-") as folder:
        own = Spark(
            settings,
            scratch=Path(folder) / "scratch",
            log=Path(folder) / "spark.log",
            clock=SystemClock(),
            bus=Bus(),
            stop=StopSignal(),
            checks=False,
        )
        try:
            session: list[Session] = []
            opened = guarded("spark session", partial(_open, own, session))
            yield opened
            if session:
                yield from _SessionChecks(session[0], places).findings()
        finally:
            own.close()


def spark_places(request: "ScopeRequest") -> Sequence[SparkPlace]:
    """Return the tables of the named or current scope with their sources. Raises `UsageError` for a wrong name."""
    named = request.means_app or request.means_table
    try:
        scope = find_scope(request, here=Path.cwd(), make=True)
    except PenstockError:
        if named:
            raise
        return []
    if request.app is None:
        return [SparkPlace(paths=paths) for paths in scope.tables.values()]
    sources = {one.name: str(one.declaration.source.folder) for one in load_app(request.app).pipelines}
    return [
        SparkPlace(paths=paths, source=source_of(sources[name], paths).address) for name, paths in scope.tables.items()
    ]


def _settings(request: "ScopeRequest", master: str | None) -> Settings:
    settings = load_settings() if request.app is None else load_app(request.app).settings
    if master is None:
        return settings
    return Settings.model_construct(
        settings.model_fields_set | {"spark_master"}, **{**dict(settings), "spark_master": master}
    )


def _open(own: Spark, opened: "list[Session]") -> tuple[FindingLevel, str]:
    from penstock.pipeline.spark.session import runtime_of

    session = own.session()
    runtime = runtime_of(session)
    executors = runtime.executors()
    counted = "" if runtime.is_local or executors is None else f", executors: {executors}"
    text = f"Spark {session.version} on {runtime.place}, tasks at once: {runtime.tasks_at_once()}{counted}"
    opened.append(session)
    return FindingLevel.OK, text


class _SessionChecks:
    """The checks of one session."""

    def __init__(self, session: "Session", places: Sequence[SparkPlace]) -> None:
        self._session = session
        self._places = places
        self._uses_s3 = any(place.in_s3 for place in places)

    def findings(self) -> Iterator[Finding]:
        workers: list[WorkerPython] = []
        surveyed = guarded("workers", partial(self._survey, workers))
        if surveyed.level is FindingLevel.FAILED:
            yield surveyed
            return
        failed = False
        for worker in workers:
            yield _program(worker)
            packages = self._packages(worker)
            failed = failed or packages.level is FindingLevel.FAILED
            yield packages
        if failed:
            return
        shipped = guarded("penstock", partial(self._explained, self._shipped))
        yield shipped
        if shipped.level is FindingLevel.FAILED:
            return
        yield guarded("mapInArrow", partial(self._explained, self._arrow))
        yield guarded("cancel", partial(self._explained, self._cancel), hint=NO_CANCEL)
        for place in self._places:
            yield guarded("shared folders", partial(self._explained, partial(self._shared, place)))
            for address in place.in_s3:
                yield guarded("s3 in tasks", partial(self._explained, partial(self._listed, address, place.paths.aws)))

    def _survey(self, workers: "list[WorkerPython]") -> tuple[FindingLevel, str]:
        from penstock.pipeline.spark.faults import SPARK_ERRORS
        from penstock.pipeline.spark.probe import FOR_S3, REQUIRED, refused, survey
        from penstock.pipeline.spark.session import runtime_of

        try:
            workers += survey(self._session, [*REQUIRED, *FOR_S3])
        except SPARK_ERRORS as error:
            raise refused(error, runtime_of(self._session)) from error
        return FindingLevel.OK, ""

    def _packages(self, worker: "WorkerPython") -> Finding:
        from penstock.pipeline.spark.probe import FOR_S3, REQUIRED, package_faults, remedy

        faults = package_faults(worker, REQUIRED)
        s3_faults = package_faults(worker, FOR_S3)
        if self._uses_s3 and s3_faults:
            return _lacking(worker, [*faults, *s3_faults], remedy("aws"))
        if faults:
            return _lacking(worker, faults, remedy())
        names = [f"{name} {version}" for name, version in worker.packages.items() if version is not None]
        without_s3 = f"; S3 would need more: it {' and '.join(s3_faults)}" if s3_faults else ""
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
            return (
                FindingLevel.FAILED,
                (
                    f"the workers import Penstock from {other}, and not the shipped version {_version()}: remove it "
                    "from the PYTHONPATH of the executors"
                ),
            )
        return FindingLevel.OK, f"{_version()}, shipped to the workers; the Python data source works"

    def _arrow(self) -> tuple[FindingLevel, str]:
        from penstock.pipeline.spark.trial import run_arrow

        return FindingLevel.OK, f"Arrow functions run; tasks: {run_arrow(self._session)}"

    def _cancel(self) -> tuple[FindingLevel, str]:
        from penstock.pipeline.spark.trial import cancel_by_tag

        if cancel_by_tag(self._session):
            return FindingLevel.OK, "a job was cancelled by its tag"
        return FindingLevel.WARNING, "a job could not be cancelled by its tag"

    def _shared(self, place: SparkPlace) -> tuple[FindingLevel, str]:
        from penstock.pipeline.spark.session import runtime_of
        from penstock.pipeline.spark.shared_folders import prove_places

        paths = place.paths
        checked = prove_places(
            self._session, table=paths.table, quarantine=paths.quarantine, work=paths.work, source=place.source
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

    def _explained(self, check: Callable[[], tuple[FindingLevel, str]]) -> tuple[FindingLevel, str]:
        from penstock.pipeline.spark.faults import SPARK_ERRORS
        from penstock.pipeline.spark.probe import refused
        from penstock.pipeline.spark.session import runtime_of

        try:
            return check()
        except SPARK_ERRORS as error:
            raise refused(error, runtime_of(self._session), when_planning=True) from error


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
