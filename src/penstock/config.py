"""Settings: read once, checked loudly, then frozen.

Precedence: what the caller gives (flags) > environment (``PENSTOCK_...``) > ``penstock.toml`` > default. No other room
reads the environment.
"""

from typing import Any

from pydantic import Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from penstock.errors import ConfigurationError

SETTINGS_FILE = "penstock.toml"
GIB = 1024**3


class Settings(BaseSettings):
    """What can be set. Every field is also ``PENSTOCK_<FIELD>`` in the environment and ``<field>`` in penstock.toml."""

    model_config = SettingsConfigDict(env_prefix="PENSTOCK_", frozen=True, extra="forbid", toml_file=SETTINGS_FILE)

    broker: str = Field("sqlite:///.penstock/queue.db", description="where messages wait: sqlite:///FILE or memory://")
    ledger: str = Field("sqlite:///.penstock/ledger.db", description="what was done: a database URL")
    state: str = Field(".penstock", description="a folder of this host for locks, scratch files and logs")
    queues: dict[str, int] = Field(default_factory=dict, description="the queues a worker serves, each with its weight")
    concurrency: int = Field(100, ge=1, le=10_000, description="messages in work at once in one worker")
    spark_master: str = Field("local[*]", description="where Spark runs")
    spark_driver_memory: str = Field("2g", pattern=r"^\d+[kmgKMG]$", description="the JVM's heap")
    spark_conf: dict[str, str] = Field(default_factory=dict, description="further Spark settings")
    lease_seconds: float = Field(60.0, ge=3, le=43_200, description="how long a claim or a delivery is held unextended")
    stop_timeout_seconds: float = Field(30.0, ge=10, description="from SIGTERM to the platform's SIGKILL")
    max_objects: int = Field(5_000, ge=1, le=100_000, description="objects a batch")
    max_bytes: int = Field(8 * GIB, ge=1, description="bytes a batch, as stored")
    max_attempts: int = Field(4, ge=1, le=100, description="attempts on an object before it is dead")
    retry_base_seconds: float = Field(0.5, gt=0, description="the wait after the first failure is uniform(0, this)")
    retry_cap_seconds: float = Field(60.0, gt=0, description="no wait is longer")
    kill_at: str | None = Field(None, description="for crash tests: SIGKILL the process group at this step, `step[:n]`")
    max_quarantine_ratio: float = Field(1.0, ge=0, le=1, description="an object with more bad lines than this fails")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the signature is pydantic's; .env is not read
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - as above; no secrets directory is read
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)


def load_settings(**given: Any) -> Settings:
    """The effective settings; ``given`` are flags, None for those that were not.

    Raises `ConfigurationError` naming the first setting that does not fit, or a penstock.toml that cannot be read.
    """
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"]) or "settings"
        raise ConfigurationError(
            f"The setting {name} (flag, PENSTOCK_{name.upper()} or {SETTINGS_FILE}) does not fit: "
            f"{first['msg']}, given {first.get('input')!r}."
        ) from error
    except SettingsError as error:  # a variable that should hold JSON
        raise ConfigurationError(f"A PENSTOCK_ variable in the environment cannot be read: {error}.") from error
    except (OSError, ValueError) as error:  # TOML that is no TOML, or a file that cannot be read
        raise ConfigurationError(f"{SETTINGS_FILE} in the current folder cannot be read: {error}.") from error
