"""Programs that run pipelines, each in a process of its own, for `test_given_sessions`.

The longest sets up a session as a user does, and compares everything that a user could see of it before and after runs.
"""

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyspark import RDD
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession, functions

from penstock import App, DeltaSink, ObjectSource, Pipeline
from penstock.config import Settings
from penstock.errors import PenstockError
from penstock.events import Event, SparkStarted
from penstock.pipeline.spark.session import runtime_of
from penstock.worker.shutdown import StopSignal

SCHEMA = "id long, v double, day date, at timestamp"
DAY, AT = date(1500, 3, 1), datetime(1500, 3, 1, 12, tzinfo=UTC)
LOGGERS = ("py4j", "pyspark", "SQLQueryContextLogger", "DataFrameQueryContextLogger")
JOB_PROPERTIES = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel", "spark.scheduler.pool")


def on_ctrl_c(*_: object) -> None:
    raise KeyboardInterrupt


def users_session(master: str = "local[2]", **conf: str) -> SparkSession:
    """Return a session in which a user has settings, a view, a function, a job group and a SIGINT handler."""
    builder: Any = SparkSession.builder.master(master).appName("theirs")
    given = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "Asia/Tokyo",
        "spark.sql.shuffle.partitions": "7",
        # These must not show in tables, nor in the meaning of errors.
        "spark.sql.timestampType": "TIMESTAMP_NTZ",
        "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
        "spark.sql.execution.pyspark.udf.hideTraceback.enabled": "true",
        **conf,
    }
    for key, value in given.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    spark.range(3).createTempView("theirs")
    spark.udf.register("plus_one", lambda number: number + 1, "long")
    spark.sql("CREATE DATABASE mine")
    spark.sql("USE mine")
    spark.sparkContext.setJobGroup("their group", "their job", True)
    spark.sparkContext.addJobTag("their-tag")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    with suppress(AnalysisException):  # PySpark makes its loggers with the first queries that fail
        spark.sql("SELECT missing FROM theirs")
    with suppress(AnalysisException):
        broken(spark.table("theirs"))
    signal.signal(signal.SIGINT, on_ctrl_c)
    return spark


def seen(spark: SparkSession) -> dict[str, Any]:
    """Return everything that the user can see of the session and that a run could change."""
    session: Any = spark
    context: Any = spark.sparkContext
    java = session._jsparkSession
    return {
        "settings": dict(session.conf.getAll),
        "settings of the context": sorted(context.getConf().getAll()),
        "views": sorted(table.name for table in spark.catalog.listTables()),
        # Not by `listFunctions`, which calls the JVM for each of Spark's own 500.
        "functions": sorted(row.function for row in spark.sql("SHOW USER FUNCTIONS").collect()),
        "database": (spark.catalog.currentCatalog(), spark.catalog.currentDatabase()),
        "data source": java.sessionState().dataSourceManager().dataSourceExists("penstock"),
        "active": SparkSession.getActiveSession() is spark,
        "active in the JVM": context._jvm.org.apache.spark.sql.classic.SparkSession.getActiveSession().get() == java,
        "default": SparkSession.builder.getOrCreate() is spark,
        "job": {name: context.getLocalProperty(name) for name in JOB_PROPERTIES},
        "tags": sorted(context.getJobTags()),
        "frames of RDDs": getattr(RDD, "toDF", None),  # PySpark binds it to a session
        "query listeners": len(java.listenerManager().listListeners()),
        "listeners": spark_listeners(context),
        "stream listeners": len(java.streams().listListeners()),
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        # Not by `getLogger`: it would make one before PySpark makes one of its own class.
        "log levels": {name: getattr(logging.root.manager.loggerDict.get(name), "level", 0) for name in LOGGERS},
        "log filters": list(logging.getLogger().filters),
        "environment": dict(os.environ),
        "path": list(sys.path),
    }


def spark_listeners(context: Any) -> list[str]:
    """Return the classes of the context's listeners, without those that Spark adds for each session."""
    listeners = context._jsc.sc().listenerBus().listeners()
    names = [listeners.get(place).getClass().getSimpleName() for place in range(listeners.size())]
    return sorted(name for name in names if name not in ("ExecutionListenerBus", "StreamingQueryListenerBus"))


def check_same(spark: SparkSession, before: dict[str, Any]) -> None:
    after = seen(spark)
    changed = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
    assert not changed, changed
    assert [row.id for row in spark.sql("SELECT plus_one(id) AS id FROM theirs ORDER BY id").collect()] == [1, 2, 3]


def joined(frame: DataFrame) -> DataFrame:
    """A transform with a table of its own, as users write it; `createDataFrame` makes its session the active one."""
    names = frame.sparkSession.createDataFrame([(0, "even"), (1, "odd")], "rest long, name string")
    return frame.withColumn("rest", frame.id % 2).join(names, "rest").drop("rest")


def broken(frame: DataFrame) -> DataFrame:
    return frame.select("no_such_column")


def raising(frame: DataFrame) -> DataFrame:
    return frame.withColumn("v", functions.udf(no_good, "double")("v"))


def no_good(_: float) -> float:
    raise ValueError("the line says: No space left on device")


class Shop:
    """An app in a folder with one pipeline."""

    def __init__(self, folder: Path, transform: Callable[[DataFrame], DataFrame] = joined, **options: Any) -> None:
        folder.mkdir()
        self.landing = folder / "landing"
        self.landing.mkdir()
        self.events: list[Event] = []
        settings = Settings.model_construct(
            broker=f"sqlite:///{folder}/state/queue.db",
            ledger=f"sqlite:///{folder}/state/ledger.db",
            data_dir=f"{folder}/state",
            **options.pop("settings", {}),
        )
        self.app = App(settings=settings, listeners=[self.events.append], **options)
        self.clicks: Pipeline = self.app.pipeline(
            "clicks",
            source=ObjectSource(self.landing, queue="clicks-events", schema=SCHEMA),
            sink=DeltaSink(folder / "clicks"),
            transform=transform,
        )

    def run(self, *given: Any, stop: StopSignal | None = None, name: str = "a.jsonl") -> int:
        """Run the pipeline on one more file of 10 rows, and return the number of rows written."""
        fixed = {"day": DAY.isoformat(), "at": AT.isoformat()}
        rows = [json.dumps({"id": number, "v": number / 2, **fixed}) for number in range(10)]
        (self.landing / name).write_text("\n".join(rows) + "\n")
        report = self.clicks.run(*given, source=self.landing, stop=stop)
        return report.rows_written

    @property
    def started(self) -> bool:
        """True if Penstock started a Spark of its own."""
        return any(isinstance(event, SparkStarted) for event in self.events)


def refusal(run: Callable[[], object]) -> str:
    """Return the sentence with which a run fails."""
    try:
        run()
    except PenstockError as error:
        return str(error)
    raise AssertionError("the run did not fail")


def of_the_user(folder: Path) -> None:
    """Use one session of the user until it is stopped in a run, and then sessions of Penstock's own.

    One process, as the start of a JVM and its first run take longer than all that follows.
    """
    spark = users_session()
    before = seen(spark)
    stays_unchanged(folder, spark, before)
    used_in_another_thread(folder, spark, before)
    stopped_in_a_run(folder, spark)
    sessions_afterwards(folder)


def stays_unchanged(folder: Path, spark: SparkSession, before: dict[str, Any]) -> None:
    def unused() -> SparkSession:
        raise AssertionError("this session is not the one to use")

    # Given to the call, which wins over the app; to the app, which wins over the setting; as a function; and found.
    assert Shop(folder / "call", spark=unused).run(spark) == 10
    check_same(spark, before)
    rows = DeltaTable(folder / "call" / "clicks").to_pyarrow_table()
    assert (set(rows["day"].to_pylist()), set(rows["at"].to_pylist())) == ({DAY}, {AT}), rows
    assert Shop(folder / "app", spark=spark, settings={"spark_session": "own"}).run() == 10
    check_same(spark, before)
    assert Shop(folder / "function", spark=lambda: spark).run() == 10
    found = Shop(folder / "found")
    assert found.run() == 10
    assert not found.started
    check_same(spark, before)
    # Jobs that are marked in the user's own thread, as a reconcile does.
    with runtime_of(spark).tagged("a tag", "a description", pool="a pool"):
        spark.range(1).count()
    check_same(spark, before)
    # A run that fails.
    sentence = refusal(lambda: Shop(folder / "broken", transform=broken).run(spark))
    assert sentence.startswith("Spark cannot plan what the transform returned"), sentence
    check_same(spark, before)
    sentence = refusal(lambda: Shop(folder / "raising", transform=raising).run(spark))
    assert "ValueError: the line says: No space left on device (given_session_story.py:" in sentence, sentence
    check_same(spark, before)
    # A run that is stopped by a signal.
    stop = StopSignal()
    stop.install(signal.SIGTERM)

    def terminated(frame: DataFrame) -> DataFrame:
        os.kill(os.getpid(), signal.SIGTERM)
        return frame

    Shop(folder / "stopped", transform=terminated).run(spark, stop=stop)
    assert stop.requested
    stop.remove()
    check_same(spark, before)


def used_in_another_thread(folder: Path, spark: SparkSession, before: dict[str, Any]) -> None:
    """Use a session that another thread started: PySpark's own getActiveSession returns None there."""
    results: list[object] = []

    def work() -> None:
        results.append(SparkSession.getActiveSession())
        shop = Shop(folder / "thread")
        results.extend([shop.run(), shop.started])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results == [None, 10, False], results
    check_same(spark, before)
    # A master that is set asks for another Spark, which this process cannot have.
    sentence = refusal(lambda: Shop(folder / "master", settings={"spark_master": "local[1]"}).run())
    assert sentence.startswith("This process has a Spark session already, at local[2], so none can be started at"), (
        sentence
    )
    check_same(spark, before)


def stopped_in_a_run(folder: Path, spark: SparkSession) -> None:
    def stopping(frame: DataFrame) -> DataFrame:
        spark.stop()
        return frame

    shop = Shop(folder / "ended", transform=stopping)
    sentence = refusal(lambda: shop.run(spark))
    assert sentence == "The Spark session was stopped. Nothing is lost; start a session and run it again.", sentence
    # And passes it in afterwards.
    assert refusal(lambda: Shop(folder / "late").run(spark)) == sentence


def sessions_afterwards(folder: Path) -> None:
    """Have one session of Penstock's own after the other, and then one of the user's again."""
    environment, handler = dict(os.environ), signal.getsignal(signal.SIGINT)
    for number in range(2):
        own = Shop(folder / f"own-{number}", settings={"spark_driver_memory": "1g"})
        assert own.run() == 10
        assert own.started
    assert (dict(os.environ), signal.getsignal(signal.SIGINT)) == (environment, handler)
    again = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    assert again.range(3).count() == 3
    again.stop()


def bare_context(folder: Path) -> None:
    """Use the Spark of a program that has a SparkContext only, and leave it running."""
    from pyspark import SparkConf, SparkContext

    conf = SparkConf().setMaster("local[2]").setAppName("rdd").set("spark.ui.enabled", "false")
    context = SparkContext(conf=conf)
    shop = Shop(folder / "shop")
    assert shop.run() == 10
    assert not shop.started
    assert context.parallelize(range(10)).sum() == 45
    context.stop()


def cluster_defaults(folder: Path) -> None:
    """Start a session of Penstock's own on a cluster that has a spark-defaults.conf, and print its settings."""
    conf: dict[str, str] = json.loads(os.environ.pop("STORY_CONF"))
    found: dict[str, Any] = {}

    def watching(frame: DataFrame) -> DataFrame:
        spark = frame.sparkSession
        found["context"] = dict(spark.sparkContext.getConf().getAll())
        found["session"] = dict(spark.conf.getAll)
        found["python"] = spark.sparkContext.pythonExec
        return frame

    environment = dict(os.environ)
    settings = {"spark_master": conf.pop("spark.master"), "spark_conf": conf}
    shop = Shop(folder / "shop", transform=watching, settings=settings)
    assert shop.run() == 10
    assert shop.started
    # PySpark itself sets the first two.
    added = set(os.environ) - set(environment) - {"SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE"}
    assert not added, added
    assert {name: os.environ[name] for name in environment} == environment
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
