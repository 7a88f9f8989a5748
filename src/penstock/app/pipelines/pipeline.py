"""`Pipeline`: the object that `app.pipeline(...)` returns. Spark is imported only when it is run or read."""

from collections.abc import Callable, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from penstock.app.context import AppContext
from penstock.app.pipelines.declaration import PipelineDeclaration
from penstock.app.pipelines.published import PublishedBatch
from penstock.errors import UsageError
from penstock.events import Listener
from penstock.messaging.schema import Queue
from penstock.pipeline.extra import require_spark
from penstock.storage.aws import Aws
from penstock.worker.shutdown import StopSignal

if TYPE_CHECKING:
    from penstock.app.pipelines.running import RunReport
    from penstock.pipeline.spark.declaration import Frame
    from penstock.pipeline.spark.runtime import GivenSpark, Session


class QuarantineTable:
    """The quarantine of one pipeline: the lines of its objects that could not be read."""

    def __init__(self, declaration: PipelineDeclaration, aws: Callable[[], Aws]) -> None:
        self._declaration = declaration
        self._aws = aws

    def read(self, spark: "Session") -> "Frame":
        """Return the quarantined lines as a DataFrame: object, offset, raw bytes, reason.

        Raises:
            TableError: If nothing has been quarantined yet.
        """
        from penstock.app.pipelines.reading import quarantine_frame

        return quarantine_frame(spark, self._declaration, self._aws())


class Pipeline:
    """One declared pipeline, created by `App.pipeline` or `Handlers.pipeline`.

    A worker of its app serves it; `run` serves it alone in this process.
    """

    def __init__(self, declaration: PipelineDeclaration) -> None:
        self.declaration = declaration
        self.quarantine = QuarantineTable(declaration, self._aws)
        self._homes: tuple[AppContext, ...] = ()  # written while apps are assembled

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r})"

    @property
    def name(self) -> str:
        """The pipeline's name in the app and in the ledger; unique in its app."""
        return self.declaration.name

    @property
    def published(self) -> Queue[PublishedBatch]:
        """The queue with one message per published batch, if the app has a handler for it.

        Messages are in batch order and sent at least once. Batches committed before a worker first had such a handler
        are left out.
        """
        return self.declaration.published

    def run(
        self,
        spark: "GivenSpark | None" = None,
        *,
        available_now: bool = True,
        source: str | PathLike[str] | None = None,
        stop: StopSignal | None = None,
        listeners: Sequence[Listener] = (),
    ) -> "RunReport":
        """Serve this pipeline alone in this process, until its queue is empty and all batches are published.

        Args:
            spark: The session to use, or a function that returns one; it is neither changed nor stopped. Default: that
                of the app, else as the setting ``spark.session`` says. One of Penstock's own is started when there is
                work, and stopped at the end.
            available_now: False serves until ``stop``.
            source: The pipeline's folder, or one inside it; notifications are sent first for its objects that are not
                done.
            stop: Ends the run early.
            listeners: Called with every event.

        Returns:
            The report of the run.

        Raises:
            UserError: If a person has to fix something. Batches already committed stay committed.
        """
        require_spark(self.declaration.sink.scheme)
        from penstock.app.pipelines.running import run

        return run(
            self.declaration,
            self._home(),
            spark=spark,
            available_now=available_now,
            source=source,
            stop=stop or StopSignal(),
            listeners=listeners,
        )

    def read(self, spark: "Session") -> "Frame":
        """Return the table's current rows as a DataFrame, without connector jars.

        Raises:
            TableError: If the table does not exist yet.
        """
        from penstock.app.pipelines.reading import rows_frame

        return rows_frame(spark, self.declaration, self._aws())

    def belongs_to(self, home: Any) -> None:
        """Bind the pipeline to an app that includes it."""
        if home not in self._homes:
            self._homes = (*self._homes, home)

    def _aws(self) -> Aws:
        """Return the app's AWS settings, or the AWS defaults without an app."""
        return self._homes[0].settings.aws if self._homes else Aws()

    def _home(self) -> AppContext:
        if len(self._homes) != 1:
            found = f"{len(self._homes)} apps include it" if self._homes else "no App includes its group"
            raise UsageError(f"The pipeline {self.name} cannot be run alone, since {found}; it needs exactly one.")
        return self._homes[0]
