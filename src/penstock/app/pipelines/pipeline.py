"""`Pipeline`: what `app.pipeline(...)` answers. Nothing heavy is imported before it is run or read."""

from collections.abc import Callable, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from penstock.app.context import AppContext
from penstock.app.pipelines.declaration import PipelineDeclaration
from penstock.app.pipelines.published import PublishedBatch
from penstock.errors import UsageError
from penstock.events import Listener
from penstock.messaging.schema import Queue
from penstock.storage.aws import Aws
from penstock.worker.shutdown import StopSignal

if TYPE_CHECKING:
    from penstock.app.pipelines.running import RunReport
    from penstock.pipeline.spark.declaration import Frame
    from penstock.pipeline.spark.session import Session


class QuarantineTable:
    """The lines of one pipeline that could not be read."""

    def __init__(self, declaration: PipelineDeclaration, aws: Callable[[], Aws]) -> None:
        self._declaration = declaration
        self._aws = aws

    def read(self, spark: "Session") -> "Frame":
        """The quarantined lines now: object, offset, raw bytes, reason. Raises `TableError` while there are none."""
        from penstock.app.pipelines.reading import quarantine_frame

        return quarantine_frame(spark, self._declaration, self._aws())


class Pipeline:
    """One declared pipeline. A worker over its app serves it; `run` does so in this process."""

    def __init__(self, declaration: PipelineDeclaration) -> None:
        self.declaration = declaration
        self.quarantine = QuarantineTable(declaration, self._aws)
        self._homes: tuple[AppContext, ...] = ()  # written while apps are put together

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r})"

    @property
    def name(self) -> str:
        """Unique in its app; the ledger knows the pipeline by it."""
        return self.declaration.name

    @property
    def published(self) -> Queue[PublishedBatch]:
        """The queue with one message for each batch that became visible, if the app has a handler for it.

        In the batches' order, at least once. Those committed before a worker first had such a handler are not told of.
        """
        return self.declaration.published

    def run(
        self,
        spark: "Session | None" = None,
        *,
        available_now: bool = True,
        source: str | PathLike[str] | None = None,
        stop: StopSignal | None = None,
        listeners: Sequence[Listener] = (),
    ) -> "RunReport":
        """Serve this pipeline alone: until its queue is empty and all is published, or until ``stop``.

        ``spark`` is used as it is and not stopped; without one a session is started where there is something to do, and
        ended. ``source`` is a folder, the pipeline's own or one in it, whose files are announced first unless they are
        done. ``available_now=False`` serves until ``stop``.

        Raises `UserError` with a sentence for what a person has to mend; what was committed until then stays.
        """
        from penstock.pipeline.extra import require_spark

        require_spark()
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
        """The table's rows now, as a DataFrame, without connector jars. Raises `TableError` while there are none."""
        from penstock.app.pipelines.reading import rows_frame

        return rows_frame(spark, self.declaration, self._aws())

    def belongs_to(self, home: Any) -> None:
        """An app has it now."""
        if home not in self._homes:
            self._homes = (*self._homes, home)

    def _aws(self) -> Aws:
        """As its app speaks to AWS; without an app, as AWS's own settings say."""
        return self._homes[0].settings.aws if self._homes else Aws()

    def _home(self) -> AppContext:
        if len(self._homes) != 1:
            found = f"{len(self._homes)} apps include it" if self._homes else "no App includes its group"
            raise UsageError(f"The pipeline {self.name} cannot be run by itself, since {found}; it needs exactly one.")
        return self._homes[0]
