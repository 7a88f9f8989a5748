"""Every setting with its section, bounds, default and description.

A setting belongs to a section, or to none (`broker`). Its field in `Settings` is SECTION_NAME, and all else follows:

    penstock.toml       [worker] with concurrency = 100
    environment         PENSTOCK_WORKER_CONCURRENCY=100
    secrets directory   a file penstock_worker_concurrency
    Python              Settings(worker_concurrency=100), App.from_config(worker_concurrency=100)
    texts               worker.concurrency

Durations are texts such as "90s", "2m", "1h30m" or "3d", or numbers of seconds. In Python their fields hold seconds.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from ipaddress import ip_network
from types import MappingProxyType
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetCoreSchemaHandler
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from penstock.config.file import SettingsFile
from penstock.config.names import PREFIX, SETTINGS_FILE
from penstock.errors import UsageError
from penstock.handlers.durations import duration_text, seconds_of
from penstock.storage.address import check_folder
from penstock.storage.aws import Aws

GIB = 1024**3
DAY = 86_400.0
USER_CHARACTERS_MAX = 200
STOP_TIMEOUT_SECONDS_MIN = 10.0
STOP_TIMEOUT_SECONDS_MAX = 86_400.0

JOBS = ("replay", "monitor", "cleanup", "reconcile", "archive", "gc", "compact", "expiry")
"""The background jobs of workers."""
_ALL_JOBS, _NO_JOBS, _ONLY_JOBS = "all", "none", "only"  # the other values of `worker.jobs`

REDACTED = (
    "password",
    "passwd",
    "secret",
    "token",
    "authorization",
    "api_key",
    "access_key",
    "secret_key",
    "private_key",
    "credentials",
    "cookie",
)
"""The names of secrets in bodies and attributes, unless `web.redact` has others."""

MetricsExport = Literal["otel", "emf", "cloudwatch"]
LogLevel = Literal["debug", "info", "warning", "error"]


def is_user_name(name: str) -> bool:
    """Return True for a name that can be shown and recorded: of bounded length, without control characters."""
    return 0 < len(name) <= USER_CHARACTERS_MAX and name.isprintable() and name == name.strip()


class Audience(StrEnum):
    """The places that list a setting. Without it: the main table of the docs, and `penstock admin config show`."""

    STARTER = "starter"  # also in the penstock.toml that `penstock init` writes
    ADVANCED = "advanced"  # in the second table, `config show --all` and `init --full`
    HIDDEN = "hidden"  # for tests of Penstock itself


STARTER, ADVANCED, HIDDEN = Audience.STARTER, Audience.ADVANCED, Audience.HIDDEN


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Mark a field as a duration: text or a number of seconds within bounds."""

    least: float = 0.0
    most: float | None = None
    zero: bool = False  # 0 is allowed too

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._parse, handler(source))

    def _parse(self, given: Any) -> float | None:
        if given is None:
            return None
        if isinstance(given, bool) or not isinstance(given, int | float | str | timedelta):
            raise ValueError(self._expected)
        try:
            seconds = seconds_of("duration", given, zero=self.zero)
        except UsageError:
            raise ValueError(self._expected) from None
        if seconds < self.least or (self.most is not None and seconds > self.most):
            raise ValueError(self._expected)
        return seconds

    @property
    def _expected(self) -> str:
        least = f"of at least {duration_text(self.least)}" if self.least or self.zero else "above 0"
        most = "" if self.most is None else f" and at most {duration_text(self.most)}"
        return f"it should be a duration {least}{most}, such as 90s or 1h30m"


def _folder(text: str) -> str:
    try:
        return check_folder("path", text)
    except UsageError as error:
        raise ValueError(str(error).rstrip(".")) from error


def _session(value: str) -> str:
    """Return the setting spark.session if it is one of its words or of the form module:function."""
    if value not in ("auto", "own", "current") and not re.fullmatch(r"[^:\s]+:[^:\s]+", value):
        raise ValueError("it should be auto, own, current or MODULE:FUNCTION")
    return value


def _unity_url(url: str | None) -> str | None:
    """Return a URL. Raises `ValueError` for any but http and https, and for one with a password."""
    parts = urlsplit(url or "")
    if url is not None and (parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None):
        raise ValueError("it should be a URL such as https://example.cloud.databricks.com, without a password")
    return url


def _prometheus_url(url: str | None) -> str | None:
    """Return a URL. Raises `ValueError` for any but http and https, and for one with a query."""
    parts = urlsplit(url or "")
    if url is not None and (
        parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment
    ):
        raise ValueError("it should be a URL such as http://prometheus:9090, without a query")
    return url


def _jobs(text: str) -> str:
    """Return the value of `worker.jobs` without blanks. Raises `ValueError` for an unknown name."""
    names = [name.strip() for name in text.split(",")]
    is_one_word = len(names) == 1 and names[0] in (_ALL_JOBS, _NO_JOBS, _ONLY_JOBS)
    if not is_one_word and (not set(names) <= set(JOBS) or len(set(names)) < len(names)):
        raise ValueError(
            f"it should be {_ALL_JOBS}, {_NO_JOBS}, {_ONLY_JOBS}, or names separated by commas: {', '.join(JOBS)}"
        )
    return ",".join(names)


def _password_hash(text: str) -> str:
    """Return the hash of a password. Raises `ValueError` for anything else, such as a password."""
    if not re.fullmatch(r"scrypt:\d{1,8}:\d{1,3}:\d{1,3}:[\w-]{20,100}:[\w-]{20,100}", text, re.ASCII):
        raise ValueError("it should be a hash of the password that `penstock web --hash-password` printed")
    return text


PasswordHashText = Annotated[str, AfterValidator(_password_hash)]


def _user_names(users: dict[str, str]) -> dict[str, str]:
    """Return the users. Raises `ValueError` for a name that basic authentication cannot carry."""
    for name in users:
        if not is_user_name(name) or ":" in name:
            raise ValueError(f"its names should have 1 to {USER_CHARACTERS_MAX} visible characters and no colon")
    return users


def _header_name(text: str | None) -> str | None:
    if text is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]{0,99}", text):
        raise ValueError("it should be the name of a request header, such as X-Forwarded-User")
    return text


def _networks(texts: list[str]) -> list[str]:
    """Return the addresses and networks. Raises `ValueError` for a text that is neither."""
    for text in texts:
        try:
            ip_network(text, strict=False)
        except ValueError:
            raise ValueError("they should be addresses or networks, such as 10.0.0.7 or 10.0.0.0/8") from None
    return texts


class ReplayQueue(BaseModel):
    """How the dead letters of one queue are replayed. Unset: as for all queues."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_replays: int | None = Field(None, ge=0, le=1_000)
    replay_base: Annotated[float | None, Seconds()] = None
    max_replay_wait: Annotated[float | None, Seconds()] = None
    off: bool = False  # they are not replayed


EXAMPLES: Mapping[str, object] = MappingProxyType(
    {
        "worker_queues": {"orders": 2},
        "spark_conf": {"spark.sql.shuffle.partitions": "8"},
        "log_levels": {"message.received": "debug"},
        "log_sampling": {"message.finished": 0.01},
        "dead_letters_replay_queues": {"orders": {"max_replays": 5}},
        "metrics_export": ["otel"],
        "spark_py_files": ["shop", "helpers.py"],
        "alerts_lagging_queues": {"orders": "1m"},
        "alerts_notify_urls": ["slack://TOKEN_A/TOKEN_B/TOKEN_C"],
        "web_users": {"ann": "scrypt:32768:8:3:c2FsdHNhbHRzYWx0c2FsdA:aGFzaGhhc2hoYXNoaGFzaGhhc2hoYXNoaGFzaGhhc2g"},
        "web_proxy_addresses": ["10.0.0.0/8"],
        "web_operators": ["ann"],
        "web_redact": ["password", "token", "card_number"],
    }
)
"""The settings that are JSON in the environment, each with an example."""

_BROKER = (
    "The address of the broker: sqlite:///FILE, redis://USER:PASSWORD@HOST:PORT/NUMBER (rediss:// with TLS, unix:// "
    "for a socket, redis+cluster:// and rediss+cluster:// for a cluster), sqs:// or memory://."
)


class _Unmerged(PydanticBaseSettingsSource):
    """A source without the settings that a source above it has: pydantic would merge their tables."""

    def __init__(self, settings_cls: type[BaseSettings], source: PydanticBaseSettingsSource) -> None:
        super().__init__(settings_cls)
        self._source = source

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return self._source.get_field_value(field, field_name)

    def __call__(self) -> dict[str, Any]:
        return {field: value for field, value in self._source().items() if field not in self.current_state}


class Settings(BaseSettings):
    """All settings of Penstock, read-only. The module docstring has the naming rule; durations are in seconds."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        frozen=True,
        extra="forbid",
        toml_file=SETTINGS_FILE,
        hide_input_in_errors=True,  # a traceback shows pydantic's error beside ours, and the value may be a secret
    )

    app: Annotated[str | None, STARTER] = Field(
        None, description="The app that commands use, as MODULE:ATTRIBUTE, unless the command line names one."
    )
    broker: Annotated[str, STARTER] = Field("sqlite:///.penstock/queue.db", description=_BROKER)
    ledger: Annotated[str, STARTER] = Field(
        "sqlite:///.penstock/ledger.db",
        description="The address of the ledger, the record of completed work: sqlite:///FILE, "
        "mysql://USER:PASSWORD@HOST/DATABASE or postgresql://USER:PASSWORD@HOST/DATABASE.",
    )
    data_dir: Annotated[str, AfterValidator(_folder)] = Field(
        ".penstock", description="The directory for locks, scratch files and logs, on a disk of this host."
    )
    one_host: bool = Field(
        False, description="All workers run on this host: allow a ledger in a file together with a shared broker."
    )
    app_name: Annotated[str | None, ADVANCED] = Field(
        None,
        min_length=1,
        max_length=200,
        description="The name of the app in the ledger. Unset: the name in App(name=...), else the app's module.",
    )

    worker_queues: dict[str, Annotated[int, Field(ge=1, le=1_000)]] = Field(
        default_factory=dict, description="The queues that a worker serves, each with its weight. Empty: all."
    )
    worker_concurrency: Annotated[int, STARTER] = Field(
        100, ge=1, le=10_000, description="The maximum of messages that one worker process handles at the same time."
    )
    worker_processes: int = Field(1, ge=1, le=256, description="The processes that `penstock worker` runs.")
    worker_jobs: Annotated[str, AfterValidator(_jobs), ADVANCED] = Field(
        "all",
        description="The background jobs in which a worker takes part: all, none, only (and no queue of a handler or "
        f"pipeline), or names separated by commas: {', '.join(JOBS)}.",
    )
    worker_lease: Annotated[float, Seconds(least=3, most=43_200)] = Field(
        60.0, description="How long a worker holds a message, an object or a job before it must extend the lease."
    )
    worker_stop_timeout: Annotated[
        float, Seconds(least=STOP_TIMEOUT_SECONDS_MIN, most=STOP_TIMEOUT_SECONDS_MAX), STARTER
    ] = Field(30.0, description="The time from SIGTERM until the platform sends SIGKILL.")
    worker_drain: Annotated[float | None, Seconds(zero=True), ADVANCED] = Field(
        None,
        description="The part of the stop timeout for running handlers to finish. Unset: all but 8 seconds of it.",
    )
    worker_max_fetch: Annotated[int, ADVANCED] = Field(
        50, ge=1, le=1_000, description="The maximum of messages per receive call."
    )
    worker_idempotency_retention: Annotated[float, Seconds(), ADVANCED] = Field(
        14 * DAY, description="How long the ledger remembers which messages idempotent handlers have completed."
    )
    worker_breaker_failures: Annotated[int, ADVANCED] = Field(
        10, ge=0, le=10_000, description="Pause a queue after this many consecutive failures of one kind. 0: never."
    )
    worker_max_breaker_probe: Annotated[float, Seconds(most=3_600), ADVANCED] = Field(
        30.0, description="The longest wait between two messages that test whether a paused queue can resume."
    )
    worker_ecs_task_protection: Annotated[bool, ADVANCED] = Field(
        False, description="On ECS: protect the task from scale-in while a message runs for longer than a drain."
    )
    worker_web: Annotated[str | None, ADVANCED] = Field(
        None, description="HOST:PORT where a worker serves the dashboard. Unset: not served."
    )

    objects_max_attempts: int = Field(4, ge=1, le=100, description="The attempts on an object before it is failed.")
    objects_reconcile_every: Annotated[float | None, Seconds(least=60)] = Field(
        None, description="How often workers search the source for objects that were never processed. Unset: never."
    )
    objects_archive_after: Annotated[float | None, Seconds(least=15 * DAY), ADVANCED] = Field(
        None, description="Move ledger rows of objects processed this long ago to the archive. Unset: never."
    )
    objects_archive: Annotated[str | None, ADVANCED] = Field(
        None, description="A folder or s3://BUCKET/PREFIX for archived ledger rows. Unset: below each table."
    )
    objects_max_batch_objects: Annotated[int, ADVANCED] = Field(
        5_000, ge=1, le=100_000, description="The maximum of objects in a batch."
    )
    objects_max_batch_bytes: Annotated[int, ADVANCED] = Field(
        8 * GIB, ge=1, description="The maximum of bytes in a batch, as stored."
    )
    objects_batches_in_flight: Annotated[int, ADVANCED] = Field(
        2,
        ge=1,
        le=8,
        description="The maximum of batches that a worker processes at once, per pipeline. Only full batches overlap.",
    )
    objects_max_quarantine_ratio: Annotated[float, ADVANCED] = Field(
        1.0, ge=0, le=1, description="An object with a larger share of bad lines fails as a whole."
    )
    objects_retry_base: Annotated[float, Seconds(), ADVANCED] = Field(
        0.5, description="The wait after an object's first failure is random up to this, and doubles with each failure."
    )
    objects_max_retry_wait: Annotated[float, Seconds(), ADVANCED] = Field(
        60.0, description="The longest wait between two attempts on an object."
    )
    objects_reconcile_older_than: Annotated[float, Seconds(zero=True), ADVANCED] = Field(
        900.0, description="Reconcile ignores younger objects: their notifications may still be on the way."
    )
    objects_overdue_after: Annotated[float, Seconds(), ADVANCED] = Field(
        3_600.0, description="An object that waits longer than this to be processed is overdue."
    )

    tables_compact_every: Annotated[float | None, Seconds(least=60), ADVANCED] = Field(
        None, description="How often workers merge the small files of each table. Unset: never."
    )
    tables_unity_url: Annotated[str | None, AfterValidator(_unity_url), ADVANCED] = Field(
        None, description="The address of the Unity Catalog in which tables are registered, or of its workspace."
    )
    tables_unity_token: Annotated[str | None, ADVANCED] = Field(
        None, description="The access token for the Unity Catalog."
    )

    dead_letters_replay: Annotated[bool, STARTER] = Field(
        False, description="Workers replay the dead letters of their queues automatically, each after a wait."
    )
    dead_letters_max_replays: int = Field(
        3, ge=0, le=1_000, description="The automatic replays of a message before it moves to the final DLQ."
    )
    dead_letters_replay_base: Annotated[float, Seconds(), ADVANCED] = Field(
        2.0, description="The wait before the first replay is random up to this; the limit doubles with each replay."
    )
    dead_letters_max_replay_wait: Annotated[float | None, Seconds(), ADVANCED] = Field(
        None, description="The longest wait before a replay. Unset: the retention of the queue."
    )
    dead_letters_replay_queues: Annotated[dict[str, ReplayQueue], ADVANCED] = Field(
        default_factory=dict,
        description="Other values for single queues: max_replays, replay_base, max_replay_wait, off.",
    )
    dead_letters_archive: Annotated[str | None, ADVANCED] = Field(
        None, description="A folder or s3://BUCKET/PREFIX for dead letters that are about to expire. Unset: no archive."
    )
    dead_letters_warn_share: Annotated[float, ADVANCED] = Field(
        0.5, gt=0, le=1, description="Warn of a dead letter that has waited for this share of its retention."
    )

    spark_session: Annotated[str, AfterValidator(_session), ADVANCED] = Field(
        "auto",
        description="Where the Spark session comes from: own (started by Penstock), current (that of spark-submit, a "
        "notebook or a job), module:function (returns one), or auto: current where there is one, else own.",
    )
    spark_master: str = Field(
        "local[*]", description="The address of the Spark master, or of a Spark Connect server (sc://HOST:PORT)."
    )
    spark_driver_memory: str | None = Field(
        None, pattern=r"^\d+[kmgKMG]$", description="The heap of the Spark driver's JVM, such as 512m or 2g."
    )
    spark_py_files: Annotated[list[str], ADVANCED] = Field(
        default_factory=list,
        description="Your modules (.py), packages (folders) and archives (.zip, .whl) that executors of a cluster get.",
    )
    spark_conf: Annotated[dict[str, str], ADVANCED] = Field(default_factory=dict, description="Further Spark settings.")

    aws_region: str | None = Field(None, description="The AWS region. Unset: from AWS's own settings.")
    aws_endpoint_url: Annotated[str | None, ADVANCED] = Field(
        None, description="The URL of a server that speaks SQS and S3. Unset: AWS."
    )
    aws_profile: Annotated[str | None, ADVANCED] = Field(
        None, description="The profile in AWS's own settings. Unset: AWS's default."
    )
    aws_requester_pays: Annotated[bool, ADVANCED] = Field(
        False, description="Pay for S3 reads in place of the bucket's owner."
    )

    log_level: Annotated[LogLevel, STARTER] = Field("info", description="The lowest level that is logged.")
    log_format: Literal["auto", "json", "console"] = Field(
        "auto", description="The format of the log: json, console, or auto for json unless it goes to a terminal."
    )
    log_levels: Annotated[dict[str, LogLevel], ADVANCED] = Field(
        default_factory=dict, description="Another level for single events."
    )
    log_sampling: Annotated[dict[str, float], ADVANCED] = Field(
        default_factory=dict, description="The share of an event's lines that is logged, from 0 to 1."
    )
    log_service: Annotated[str, ADVANCED] = Field("penstock", description="The name of this service in log and traces.")
    log_service_version: Annotated[str | None, ADVANCED] = Field(
        None, description="The version of this service in log and traces."
    )
    log_environment: Annotated[str | None, ADVANCED] = Field(
        None, description="The environment in log and traces, such as production."
    )

    metrics_address: Annotated[str | None, STARTER] = Field(
        None, description="HOST:PORT where a worker serves its metrics and its health. Unset: not served."
    )
    metrics_export: list[MetricsExport] = Field(
        default_factory=list,
        description="Where metrics are also sent: otel (OTLP), emf (log lines for CloudWatch Logs), cloudwatch.",
    )
    metrics_export_every: Annotated[float, Seconds(least=1, most=3_600), ADVANCED] = Field(
        60.0, description="How often metrics are sent."
    )
    metrics_cloudwatch_namespace: Annotated[str, ADVANCED] = Field(
        "Penstock", min_length=1, description="The CloudWatch namespace of the metrics."
    )
    metrics_monitor_address: Annotated[str, ADVANCED] = Field(
        "127.0.0.1:9564", description="HOST:PORT where the monitor command serves its metrics and its health."
    )
    metrics_monitor_every: Annotated[float, Seconds(least=1, most=60), ADVANCED] = Field(
        20.0, description="How often the monitor polls the queues and the ledger."
    )

    tracing_enabled: bool = Field(False, description="Send OpenTelemetry spans for each message.")

    alerts_lagging_after: Annotated[float, Seconds()] = Field(
        300.0, description="A queue is lagging if its oldest visible message is older than this."
    )
    alerts_lagging_queues: Annotated[dict[str, Annotated[float, Seconds()]], ADVANCED] = Field(
        default_factory=dict, description="Other values of alerts.lagging_after for single queues."
    )
    alerts_sentry_dsn: Annotated[str | None, ADVANCED] = Field(
        None, description="The DSN of the Sentry project that receives failures."
    )
    alerts_rollbar_token: Annotated[str | None, ADVANCED] = Field(
        None, description="The access token of the Rollbar project that receives failures."
    )
    alerts_notify_urls: Annotated[list[str], STARTER] = Field(
        default_factory=list, description="Chats and mailboxes that receive failures, as Apprise URLs."
    )

    web_hide_bodies: bool = Field(
        False, description="The dashboard shows no bodies and no attribute values, and offers no download of them."
    )
    web_redact: Annotated[list[str], ADVANCED] = Field(
        default_factory=lambda: list(REDACTED),
        description="The JSON keys and attributes whose values the dashboard replaces by ***, at any depth.",
    )
    web_address: str = Field("127.0.0.1:8321", description="HOST:PORT where `penstock web` serves the dashboard.")
    web_prometheus_url: Annotated[str | None, AfterValidator(_prometheus_url), ADVANCED] = Field(
        None,
        description="The address of a Prometheus that has the metrics, for the dashboard's charts. Unset: its own "
        "history.",
    )
    web_users: Annotated[dict[str, PasswordHashText], AfterValidator(_user_names)] = Field(
        default_factory=dict,
        description="The users of the dashboard, each with the hash of the password, as `penstock web --hash-password` "
        "prints it.",
    )
    web_operators: list[str] | None = Field(
        None, description="The users who may change something in the dashboard. Unset: all. Empty: none."
    )
    web_read_only: bool = Field(False, description="The dashboard shows everything and changes nothing.")
    web_proxy_header: Annotated[str | None, AfterValidator(_header_name), ADVANCED] = Field(
        None, description="The request header in which a reverse proxy names the user, such as X-Forwarded-User."
    )
    web_proxy_addresses: Annotated[list[str], AfterValidator(_networks), ADVANCED] = Field(
        default_factory=lambda: ["127.0.0.1", "::1"],
        description="The addresses and networks of the reverse proxies whose header is believed.",
    )

    kill_at: Annotated[str | None, HIDDEN] = Field(
        None, description="For crash tests: SIGKILL the process group at this step, `step` or `step:n`."
    )

    @property
    def aws(self) -> Aws:
        """The access to AWS, with the region from ``AWS_REGION`` (set by ECS) if unset: boto3 does not read it."""
        return Aws(
            region=self.aws_region or os.environ.get("AWS_REGION"),
            endpoint_url=self.aws_endpoint_url,
            profile=self.aws_profile,
            requester_pays=self.aws_requester_pays,
        )

    @property
    def jobs(self) -> frozenset[str]:
        """The background jobs in which a worker takes part, if other settings enable them."""
        if self.worker_jobs in (_ALL_JOBS, _ONLY_JOBS):
            return frozenset(JOBS)
        return frozenset(JOBS) & frozenset(self.worker_jobs.split(","))

    @property
    def serves_handlers(self) -> bool:
        """False for a worker that runs background jobs and nothing else."""
        return self.worker_jobs != _ONLY_JOBS

    @property
    def ecs_agent_uri(self) -> str | None:
        """The URL of the ECS agent for this task; None outside ECS."""
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
        """Return the sources in the order of their precedence, called by pydantic."""
        environment, secrets = (_Unmerged(settings_cls, source) for source in (env_settings, file_secret_settings))
        return init_settings, environment, secrets, SettingsFile(settings_cls)


def audience(field: str) -> Audience | None:
    """Return where a setting is listed; None: in the main table."""
    return next((mark for mark in Settings.model_fields[field].metadata if isinstance(mark, Audience)), None)


def is_duration(field: str) -> bool:
    """Return True if a setting is a duration, or a table of durations."""
    return field == "alerts_lagging_queues" or any(
        isinstance(mark, Seconds) for mark in Settings.model_fields[field].metadata
    )
