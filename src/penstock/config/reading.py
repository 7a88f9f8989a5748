"""Load settings from their sources, report invalid ones, and mask secrets where settings are shown."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import EnvSettingsSource, SecretsSettingsSource, SettingsError

from penstock.config.file import SettingsFile
from penstock.config.names import (
    FORMER,
    PREFIX,
    SETTINGS_FILE,
    dotted,
    is_of_kubernetes,
    name_of,
    section_of,
    suggested,
    variable,
)
from penstock.config.settings import EXAMPLES, Settings, is_duration
from penstock.errors import SettingUnfit
from penstock.handlers.durations import duration_text
from penstock.messaging.addresses import MASK, masked

SECRETS_VARIABLE = f"{PREFIX}SECRETS_DIR"
FLAG = "flag"  # the origin of a value given on the command line or as an argument

_SECRET_NAME = re.compile(r"(password|passwd|secret|token|credential|access[._-]?key)", re.IGNORECASE)
# secrets whose names do not match the pattern
_SECRETS = frozenset({"alerts_sentry_dsn", "alerts_notify_urls", "web_users"})
_ADDRESSES = frozenset({"broker", "ledger"})
_FAULTY = re.compile(r'(?P<step>parsing|getting) value for field "(?P<field>\w+)" from source "(?P<source>\w+)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveSettings:
    """Settings with the origin of each value."""

    settings: Settings
    origins: Mapping[str, str]  # by field: flag, the variable, the secrets directory, penstock.toml or default


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownVariable:
    """A PENSTOCK_ variable in the environment that is not a setting."""

    name: str
    suggestion: str | None  # the variable that the user probably means

    def __str__(self) -> str:
        meant = "" if self.suggestion is None else f" Did you mean {self.suggestion}?"
        return f"The environment variable {self.name} is not a setting of Penstock and is ignored.{meant}"


def load_settings(**given: Any) -> Settings:
    """Load the settings.

    Args:
        **given: Values that override all sources, by field; None is ignored.

    Raises:
        ConfigurationError: A value is invalid, a name in penstock.toml does not exist, the environment or the secrets
            directory has a former name, or penstock.toml or a secret cannot be read.
    """
    _refuse_former_names()
    try:
        return Settings(_secrets_dir=_secrets_folder(), **_present(given))
    except ValidationError as error:
        raise _invalid(error.errors()[0], origins=_origins(given)) from error
    except SettingsError as error:  # a variable or secret that should hold JSON
        raise _no_json(error) from error
    except (OSError, ValueError) as error:  # invalid TOML, or a file that cannot be read
        raise SettingUnfit(f"{SETTINGS_FILE} in the current folder cannot be read: {error}.") from error


def load_effective(**given: Any) -> EffectiveSettings:
    """Load the settings as `load_settings` does, with the origin of each value."""
    return EffectiveSettings(settings=load_settings(**given), origins=_origins(given))


def with_flags(settings: Settings, **given: Any) -> Settings:
    """Return the settings with values from the command line, by field; None is ignored. Raises `ConfigurationError`."""
    update: dict[str, Any] = {}
    for name, value in _present(given).items():
        field = Settings.model_fields[name]
        annotated: Any = Annotated[field.annotation, field]
        try:
            config = ConfigDict(hide_input_in_errors=True)  # as in `Settings`
            update[name] = TypeAdapter(annotated, config=config).validate_python(value)
        except ValidationError as error:
            raise _invalid(error.errors()[0], origins={name: FLAG}, flag=name) from error
    return settings.model_copy(update=update)


def unknown_variables() -> Sequence[UnknownVariable]:
    """Return the PENSTOCK_ variables in the environment that are not settings.

    Those that Kubernetes sets are left out, and so are former names of settings: `load_settings` refuses them.
    """
    former = {f"{PREFIX}{name}".upper() for name in FORMER}
    known = {variable(field) for field in Settings.model_fields} | {SECRETS_VARIABLE} | former
    unknown = sorted(
        name
        for name in os.environ
        if name.upper().startswith(PREFIX) and name.upper() not in known and not is_of_kubernetes(name)
    )
    return [UnknownVariable(name=name, suggestion=_suggested_variable(name)) for name in unknown]


def shown(name: str, value: Any) -> Any:
    """Return the value of a setting for people and logs: durations as text, secrets masked, also in addresses.

    Args:
        name: The field, with a dot before the key of a table: "spark_conf.spark.ui.port".
        value: The value, valid or not.
    """
    if isinstance(value, BaseModel):
        value = value.model_dump(exclude_unset=True)
    if value is None or value == "":
        return value
    field = name.partition(".")[0]
    if _SECRET_NAME.search(name) or (field in _SECRETS and value and not _is_by_user(field, value)):
        return MASK  # whichever part of it
    if isinstance(value, Mapping):
        return {key: shown(f"{field}.{key}", inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):  # also an invalid list
        return [shown(name, inner) for inner in value]
    if isinstance(value, str):
        if name in _ADDRESSES and "://" not in value and ("@" in value or "?" in value):
            return MASK  # not an address: where its password begins is unknown
        return masked(value)
    if isinstance(value, float) and 0 <= value < float("inf") and _is_duration(name):
        return duration_text(value)
    return value


def _is_by_user(field: str, value: Any) -> bool:
    """Return True for secrets by user, whose names are no secret."""
    return field == "web_users" and isinstance(value, Mapping)


def _is_duration(name: str) -> bool:
    field, _, key = name.partition(".")
    if field == "dead_letters_replay_queues":
        return key in ("replay_base", "max_replay_wait")
    return field in Settings.model_fields and is_duration(field)


def _refuse_former_names() -> None:
    """Raise `SettingUnfit` for the former name of a setting in the environment or the secrets directory.

    Ignoring it would run a worker with other settings than its deployment asks for.
    """
    for name in sorted(os.environ):
        field = FORMER.get(name.upper().removeprefix(PREFIX).lower()) if name.upper().startswith(PREFIX) else None
        if field is not None:
            raise SettingUnfit(f"The environment variable {name} is now called {variable(field)}. Rename it.")
    for file in _secret_files():  # their case does not matter either
        name = file.upper()
        field = FORMER.get(name.removeprefix(PREFIX).lower()) if name.startswith(PREFIX) else None
        if field is not None:
            raise SettingUnfit(
                f"The file {file} in {SECRETS_VARIABLE} is now called {variable(field).lower()}. Rename it."
            )


def _secrets_folder() -> Path | None:
    path = os.environ.get(SECRETS_VARIABLE)
    if not path:
        return None
    folder = Path(path)
    if not folder.is_dir():
        raise SettingUnfit(
            f"{SECRETS_VARIABLE} is {path}, which is not a folder. Mount the secrets there, or unset the variable."
        )
    return folder


def _secret_files() -> Sequence[str]:
    folder = _secrets_folder()
    try:
        return [] if folder is None else sorted(file.name for file in folder.iterdir())
    except OSError as error:
        raise SettingUnfit(f"The folder {folder} in {SECRETS_VARIABLE} cannot be read: {error.strerror}.") from error


def _origins(given: Mapping[str, Any]) -> dict[str, str]:
    folder = _secrets_folder()
    origins = dict.fromkeys(Settings.model_fields, "default")
    origins |= dict.fromkeys(SettingsFile(Settings)(), SETTINGS_FILE)
    if folder is not None:
        origins |= dict.fromkeys(SecretsSettingsSource(Settings, secrets_dir=folder)(), f"secrets directory {folder}")
    origins |= {field: variable(field) for field in EnvSettingsSource(Settings)()}
    origins |= dict.fromkeys(_present(given), FLAG)
    return origins


def _present(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _suggested_variable(name: str) -> str | None:
    field = suggested(name.upper().removeprefix(PREFIX).lower(), Settings.model_fields)
    return None if field is None else variable(field)


def _invalid(error: ErrorDetails, *, origins: Mapping[str, str], flag: str = "") -> SettingUnfit:
    """Return the error for a value that pydantic refused: which setting, from where, what is wrong with which value."""
    path = [part for part in (flag, *map(str, error["loc"])) if part]
    if not path:
        return SettingUnfit(f"The settings are invalid: {error['msg']}.")
    field, *keys = path
    if field not in Settings.model_fields:  # an argument of `load_settings` or `App.from_config`
        meant = suggested(field, Settings.model_fields)
        return SettingUnfit(f"There is no setting {field}.{'' if meant is None else f' Did you mean {meant}?'}")
    name, origin = ".".join([dotted(field), *keys]), origins.get(field, FLAG)
    source = "a flag or an argument" if origin == FLAG else origin
    if error["type"] == "extra_forbidden":
        return SettingUnfit(
            f"The setting {dotted(field)} (from {source}) has an unknown part {'.'.join(keys)}. "
            f"{Settings.model_fields[field].description}"
        )
    value = shown(".".join(path), error.get("input"))
    example = "" if keys else _example(field)
    return SettingUnfit(f"The setting {name} (from {source}) is invalid: {_problem(error)}, not {value!r}.{example}")


def _problem(error: ErrorDetails) -> str:
    match error["type"]:
        case "dict_type" | "model_type":
            return "it should be a table"
        case "list_type":
            return "it should be a list"
    return re.sub(r"^(Input|String) should", "it should", error["msg"].removeprefix("Value error, "))


def _example(field: str) -> str:
    """Return how to write a table or a list; empty for other settings."""
    if field not in EXAMPLES:
        return ""
    text = json.dumps(EXAMPLES[field])
    toml = text.replace('": ', '" = ')  # an inline table
    section = section_of(field)
    where = f"in the section [{section}] of {SETTINGS_FILE}" if section else f"in {SETTINGS_FILE}"
    return f" Write, for example, {name_of(field)} = {toml} {where}, or {variable(field)}='{text}'."


def _no_json(error: SettingsError) -> SettingUnfit:
    """Return the error for a variable or a secret that is not valid JSON or cannot be read."""
    found = _FAULTY.search(str(error))
    if found is None:
        return SettingUnfit(f"A {PREFIX} variable or a secret cannot be read: {error}.")
    field = found["field"]
    is_secret = found["source"] == SecretsSettingsSource.__name__
    where = f"The file {variable(field).lower()} in {SECRETS_VARIABLE}" if is_secret else variable(field)
    if found["step"] == "getting":
        return SettingUnfit(f"{where} cannot be read. Check that this process may read it, and that it is UTF-8 text.")
    example = f", such as {json.dumps(EXAMPLES[field])}" if field in EXAMPLES else ""
    return SettingUnfit(f"{where} is not valid JSON. Write JSON{example}.")
