"""What can be set: every setting with its bounds, its default and a sentence."""

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from penstock.errors import UsageError
from penstock.storage.address import check_folder
from penstock.storage.aws import Aws

SETTINGS_FILE = "penstock.toml"
PREFIX = "PENSTOCK_"
GIB = 1024**3
STOP_TIMEOUT_SECONDS_MIN = 10.0
STOP_TIMEOUT_SECONDS_MAX = 86_400.0

MetricsExport = Literal["otel", "emf", "cloudwatch"]
LogLevel = Literal["debug", "info", "warning", "error"]

EXAMPLES: Mapping[str, object] = MappingProxyType(
    {
        "queues": {"orders": 2},
        "spark_conf": {"spark.sql.shuffle.partitions": "8"},
        "log_levels": {"message.received": "debug"},
        "log_sampling": {"message.finished": 0.01},
        "replay_queues": {"orders": {"replays_max": 5}},
        "metrics_export": ["otel"],
        "late_queues": {"orders": 60},
        "notify_urls": ["slack://TOKEN_A/TOKEN_B/TOKEN_C"],
    }
)
"""The settings that are JSON in the environment, each with an example for people."""

_BROKER_WORDS = (
    "where messages wait: sqlite:///FILE, redis://USER:PASSWORD@HOST:PORT/NUMBER (rediss:// with TLS, unix:// for "
    "a socket, redis+cluster:// and rediss+cluster:// for a cluster), sqs:// or memory://"
)


def _folder(text: str) -> str:
    try:
        return check_folder("path", text)
    except UsageError as error:
        raise ValueError(str(error).rstrip(".")) from error


class ReplayQueue(BaseModel):
    """How the dead letters of one queue come back by themselves; what is not said is as for all queues."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    replays_max: int | None = Field(None, ge=0, le=1_000)
    base_seconds: float | None = Field(None, gt=0, allow_inf_nan=False)
    cap_seconds: float | None = Field(None, gt=0, allow_inf_nan=False)
    off: bool = False  # they stay where they are


class Settings(BaseSettings):
    """What can be set. Every field is also ``PENSTOCK_<FIELD>`` in the environment, a file ``penstock_<field>`` in the
    secrets directory, and ``<field>`` in penstock.toml."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        frozen=True,
        extra="forbid",
        toml_file=SETTINGS_FILE,
        hide_input_in_errors=True,  # a traceback has pydantic's error beside ours, and the value may be a secret
    )

    broker: str = Field("sqlite:///.penstock/queue.db", description=_BROKER_WORDS)
    ledger: str = Field(
        "sqlite:///.penstock/ledger.db",
        description="what was done: sqlite:///FILE, mysql://USER:PASSWORD@HOST/DATABASE or postgresql://...",
    )
    app_name: str | None = Field(
        None,
        min_length=1,
        max_length=200,
        description="what the ledger calls the app; unset: the name that its code gives it, or its module",
    )
    one_host: bool = Field(
        False, description="all workers run on this host, so that a ledger in a file may stand beside a shared broker"
    )
    state: Annotated[str, AfterValidator(_folder)] = Field(
        ".penstock", description="a folder of this host for locks, scratch files and logs"
    )
    queues: dict[str, Annotated[int, Field(ge=1, le=1_000)]] = Field(
        default_factory=dict, description="the queues a worker serves, each with its weight"
    )
    concurrency: int = Field(100, ge=1, le=10_000, description="messages in work at once in one worker")
    fetch_max: int = Field(50, ge=1, le=1_000, description="messages that a worker asks for at once")
    processes: int = Field(1, ge=1, le=256, description="worker processes that `penstock worker` starts and watches")
    aws_region: str | None = Field(None, description="AWS's region; unset: what AWS's own settings say")
    aws_endpoint_url: str | None = Field(None, description="a server that speaks SQS and S3; unset: AWS itself")
    aws_profile: str | None = Field(None, description="a profile of AWS's own settings; unset: the default one")
    aws_requester_pays: bool = Field(False, description="reading S3: we pay for requests, not the bucket's owner")
    spark_master: str = Field("local[*]", description="where Spark runs")
    spark_driver_memory: str = Field("2g", pattern=r"^\d+[kmgKMG]$", description="the JVM's heap")
    spark_conf: dict[str, str] = Field(default_factory=dict, description="further Spark settings")
    lease_seconds: float = Field(60.0, ge=3, le=43_200, description="how long a claim or a delivery is held unextended")
    stop_timeout_seconds: float = Field(
        30.0,
        ge=STOP_TIMEOUT_SECONDS_MIN,
        le=STOP_TIMEOUT_SECONDS_MAX,
        allow_inf_nan=False,
        description="from SIGTERM to the platform's SIGKILL",
    )
    idempotency_retention_seconds: float = Field(
        14 * 86_400.0, gt=0, description="how long the completions of idempotent handlers are remembered"
    )
    breaker_failures: int = Field(
        10, ge=0, le=10_000, description="messages in a row that fail alike before their queue is paused; 0: never"
    )
    breaker_probe_seconds_max: float = Field(
        30.0, gt=0, le=3_600, description="the longest wait between two messages that try whether an outage is over"
    )
    archive: str | None = Field(
        None,
        description="a folder or s3://BUCKET/PREFIX for rows that leave the ledger; unset: below each table",
    )
    archive_after_days: float | None = Field(
        None,
        ge=15,
        allow_inf_nan=False,
        description="rows of objects that were processed so long ago leave the ledger; unset: never",
    )
    drain_seconds: float | None = Field(
        None,
        ge=0,
        allow_inf_nan=False,
        description="of the stop timeout: how long work in flight may go on; unset: all but 8 seconds of it",
    )
    max_objects: int = Field(5_000, ge=1, le=100_000, description="objects a batch")
    max_bytes: int = Field(8 * GIB, ge=1, description="bytes a batch, as stored")
    max_attempts: int = Field(4, ge=1, le=100, description="attempts on an object before it is dead")
    retry_base_seconds: float = Field(0.5, gt=0, description="the wait after the first failure is uniform(0, this)")
    retry_cap_seconds: float = Field(60.0, gt=0, description="no wait is longer")
    max_quarantine_ratio: float = Field(1.0, ge=0, le=1, description="an object with more bad lines than this fails")
    reconcile_every_seconds: float | None = Field(
        None,
        ge=60,
        allow_inf_nan=False,
        description="how often workers look for objects that were never processed; unset: never",
    )
    reconcile_older_than_seconds: float = Field(
        900.0, ge=0, allow_inf_nan=False, description="younger objects are not missing yet: they may be on their way"
    )
    replay: bool = Field(False, description="workers also send the dead letters of their queues back, after a wait")
    replays_max: int = Field(3, ge=0, le=1_000, description="how often a dead letter comes back by itself")
    replay_base_seconds: float = Field(
        2.0,
        gt=0,
        allow_inf_nan=False,
        description="the wait before the first replay is uniform(0, this), and up to twice as long before each next",
    )
    replay_cap_seconds: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="no wait for a replay is longer; unset: the queue's retention"
    )
    dead_letters_archive: str | None = Field(
        None,
        description="a folder or s3://BUCKET/PREFIX for dead letters near the end of their retention; unset: deleted",
    )
    dead_letters_warn_share: float = Field(
        0.5, gt=0, le=1, description="the share of its retention after which a dead letter that waits is told of"
    )
    replay_queues: dict[str, ReplayQueue] = Field(
        default_factory=dict,
        description="queues whose dead letters come back otherwise: replays_max, base_seconds, cap_seconds, off",
    )
    log_format: Literal["auto", "json", "console"] = Field(
        "auto", description="how the log is written: auto is json unless it goes to a terminal"
    )
    log_level: LogLevel = Field("info", description="the lowest level that is logged")
    log_levels: dict[str, LogLevel] = Field(default_factory=dict, description="events of the log with another level")
    log_sampling: dict[str, float] = Field(
        default_factory=dict, description="events of which a share is logged, 0 to 1"
    )
    service: str = Field("penstock", description="what the log calls this service")
    service_version: str | None = Field(None, description="which version of the service the log names")
    environment: str | None = Field(None, description="which environment the log names, such as production")
    metrics_address: str | None = Field(
        None, description="HOST:PORT where a worker answers for its metrics and its health; unset: nowhere"
    )
    metrics_export: list[MetricsExport] = Field(
        default_factory=list,
        description="where metrics go besides: otel, emf (a line for CloudWatch Logs), cloudwatch",
    )
    metrics_export_seconds: float = Field(
        60.0, ge=1, le=3_600, allow_inf_nan=False, description="how often metrics are sent"
    )
    cloudwatch_namespace: str = Field("Penstock", min_length=1, description="what CloudWatch files the metrics under")
    traces: bool = Field(False, description="tell OpenTelemetry what becomes of each message")
    monitor_address: str = Field(
        "127.0.0.1:9564", description="HOST:PORT where `penstock monitor` answers for its metrics and its health"
    )
    monitor_seconds: float = Field(
        20.0, ge=1, le=60, allow_inf_nan=False, description="how often `penstock monitor` looks at queues and ledger"
    )
    late_after_seconds: float = Field(
        300.0, gt=0, allow_inf_nan=False, description="a queue whose oldest visible message is older is late"
    )
    late_queues: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(
        default_factory=dict, description="queues that are late after other times, in seconds"
    )
    overdue_after_seconds: float = Field(
        3_600.0, gt=0, allow_inf_nan=False, description="an object that waits longer to be processed is overdue"
    )
    ecs_task_protection: bool = Field(
        False, description="on ECS: a task that works on what a drain is too short for is not scaled in meanwhile"
    )
    sentry_dsn: str | None = Field(None, description="the project in Sentry that failures are told to")
    rollbar_token: str | None = Field(None, description="the access token of the project in Rollbar")
    notify_urls: list[str] = Field(
        default_factory=list,
        description="chats and mailboxes that failures are told to, as Apprise writes addresses",
    )
    kill_at: str | None = Field(None, description="for crash tests: SIGKILL the process group at this step, `step[:n]`")

    @property
    def aws(self) -> Aws:
        """How to speak to AWS. ``AWS_REGION``, which ECS and most of AWS's tools use, boto3 does not know."""
        return Aws(
            region=self.aws_region or os.environ.get("AWS_REGION"),
            endpoint_url=self.aws_endpoint_url,
            profile=self.aws_profile,
            requester_pays=self.aws_requester_pays,
        )

    @property
    def ecs_agent_uri(self) -> str | None:
        """Where the agent of ECS answers the containers of a task. None: this is no task of ECS."""
        return os.environ.get("ECS_AGENT_URI")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the signature is pydantic's; .env is not read
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, file_secret_settings, TomlConfigSettingsSource(settings_cls)
