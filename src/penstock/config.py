"""Settings: read once, checked loudly, then frozen.

Precedence: what the caller gives (flags) > environment (``PENSTOCK_...``) > secrets directory > ``penstock.toml`` >
default. No other room reads the environment.
"""

import difflib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SecretsSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from penstock.errors import SettingUnfit, UsageError
from penstock.messaging.addresses import MASK, masked
from penstock.storage.address import check_folder
from penstock.storage.aws import Aws

SETTINGS_FILE = "penstock.toml"
PREFIX = "PENSTOCK_"
SECRETS_VARIABLE = "PENSTOCK_SECRETS_DIR"
GIB = 1024**3
STOP_TIMEOUT_SECONDS_MIN = 10.0
STOP_TIMEOUT_SECONDS_MAX = 86_400.0

_BROKER_WORDS = (
    "where messages wait: sqlite:///FILE, redis://USER:PASSWORD@HOST:PORT/NUMBER (rediss:// with TLS, unix:// for "
    "a socket, redis+cluster:// and rediss+cluster:// for a cluster), sqs:// or memory://"
)

LogLevel = Literal["debug", "info", "warning", "error"]

_SECRET_NAME = re.compile(r"(password|passwd|secret|token|credential|access[._-]?key)", re.IGNORECASE)
_UNPARSED = re.compile(r'parsing value for field "(?P<name>\w+)" from source "(?P<source>\w+)"')
_ADDRESSES = frozenset({"broker", "ledger"})  # settings that are addresses as a whole

_TABLES: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "queues": {"orders": 2},
        "spark_conf": {"spark.sql.shuffle.partitions": "8"},
        "log_levels": {"message.received": "debug"},
        "log_sampling": {"message.finished": 0.01},
        "replay_queues": {"orders": {"replays_max": 5}},
    }
)
"""The settings that are JSON in the environment, each with an example for people."""


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

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", toml_file=SETTINGS_FILE)

    broker: str = Field("sqlite:///.penstock/queue.db", description=_BROKER_WORDS)
    ledger: str = Field(
        "sqlite:///.penstock/ledger.db",
        description="what was done: sqlite:///FILE, mysql://USER:PASSWORD@HOST/DATABASE or postgresql://...",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """The settings, and where each of them comes from."""

    settings: Settings
    origins: Mapping[str, str]  # by setting: flag, the variable, the secrets directory, penstock.toml or default


def load_settings(**given: Any) -> Settings:
    """The effective settings; ``given`` are flags, None for those that were not.

    Raises `ConfigurationError` naming the first setting that does not fit, or a penstock.toml that cannot be read.
    """
    try:
        return Settings(_secrets_dir=_secrets_folder(), **_present(given))
    except ValidationError as error:
        raise _does_not_fit(error) from error
    except SettingsError as error:  # a variable or secret that should hold JSON
        raise _no_json(error) from error
    except (OSError, ValueError) as error:  # TOML that is no TOML, or a file that cannot be read
        raise SettingUnfit(f"{SETTINGS_FILE} in the current folder cannot be read: {error}.") from error


def load_effective(**given: Any) -> Effective:
    """As `load_settings`, and where each of them comes from."""
    settings = load_settings(**given)
    folder = _secrets_folder()
    origins = dict.fromkeys(Settings.model_fields, "default")
    origins |= dict.fromkeys(TomlConfigSettingsSource(Settings)(), SETTINGS_FILE)
    if folder is not None:
        origins |= dict.fromkeys(SecretsSettingsSource(Settings, secrets_dir=folder)(), f"secrets directory {folder}")
    origins |= {name: f"{PREFIX}{name.upper()}" for name in EnvSettingsSource(Settings)()}
    origins |= dict.fromkeys(_present(given), "flag")
    return Effective(settings=settings, origins=origins)


def with_flags(settings: Settings, **given: Any) -> Settings:
    """These settings with what a command line gave, None for what it did not. Raises `ConfigurationError`."""
    update: dict[str, Any] = {}
    for name, value in _present(given).items():
        field = Settings.model_fields[name]
        annotated: Any = Annotated[field.annotation, field]
        try:
            update[name] = TypeAdapter(annotated).validate_python(value)
        except ValidationError as error:
            raise _does_not_fit(error, name) from error
    return settings.model_copy(update=update)


def shown(name: str, value: Any) -> Any:
    """A setting's value for people and logs: what looks like a secret is masked, also inside addresses and tables."""
    if isinstance(value, BaseModel):
        value = value.model_dump(exclude_unset=True)
    if isinstance(value, Mapping):
        return {key: shown(str(key), inner) for key, inner in value.items()}
    if value is None or value == "":
        return value
    if _SECRET_NAME.search(name):
        return MASK
    if isinstance(value, str):
        if name in _ADDRESSES and "://" not in value and ("@" in value or "?" in value):
            # the slip hides where the password begins
            return MASK
        return masked(value)
    return value


def unknown_variables() -> list[str]:
    """The PENSTOCK_ variables that name no setting: slips, or what Kubernetes injects for a service called penstock."""
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields} | {SECRETS_VARIABLE}
    return sorted(name for name in os.environ if name.upper().startswith(PREFIX) and name.upper() not in known)


def _secrets_folder() -> Path | None:
    named = os.environ.get(SECRETS_VARIABLE)
    if not named:
        return None
    folder = Path(named)
    if not folder.is_dir():
        raise SettingUnfit(
            f"{SECRETS_VARIABLE} names {named}, which is no folder; mount the secrets there, or unset the variable."
        )
    return folder


def _present(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _does_not_fit(error: ValidationError, flag: str = "") -> SettingUnfit:
    first = error.errors()[0]
    path = [part for part in (flag, *map(str, first["loc"])) if part]
    name = path[0] if path else "settings"
    if first["type"] == "extra_forbidden" and len(path) < 2:
        close = difflib.get_close_matches(name, Settings.model_fields, n=1)
        meant = f"did you mean {close[0]}?" if close else "`penstock config show` lists those there are."
        return SettingUnfit(f"{SETTINGS_FILE} has no setting {name}; {meant}")
    if first["type"] == "extra_forbidden":
        return SettingUnfit(
            f"{SETTINGS_FILE}, or {PREFIX}{name.upper()}, has {'.'.join(path)}, which is no part of {name}: "
            f"{Settings.model_fields[name].description}."
        )
    return SettingUnfit(
        f"The setting {'.'.join(path) or name} (flag, {PREFIX}{name.upper()} or {SETTINGS_FILE}) does not fit: "
        f"{first['msg']}, given {shown('.'.join(path), first.get('input'))!r}."
    )


def _no_json(error: SettingsError) -> SettingUnfit:
    """A table that is no JSON; or a secret that could not be read at all."""
    found = _UNPARSED.search(str(error))
    if found is None:
        return SettingUnfit(f"A {PREFIX} variable or secret in the environment cannot be read: {error}.")
    name = found["name"]
    of_secrets = found["source"] == SecretsSettingsSource.__name__
    where = f"The file {PREFIX.lower()}{name} in {SECRETS_VARIABLE}" if of_secrets else f"{PREFIX}{name.upper()}"
    example = f", such as {json.dumps(_TABLES[name])}" if name in _TABLES else ""
    return SettingUnfit(f"{where} cannot be read: it holds JSON{example}.")
