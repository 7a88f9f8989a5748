"""Reading the settings, and what a person is told of one that does not fit.

Settings as people and logs may see them.
"""

import difflib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic_settings import EnvSettingsSource, SecretsSettingsSource, SettingsError, TomlConfigSettingsSource

from penstock.config.settings import EXAMPLES, PREFIX, SETTINGS_FILE, Settings
from penstock.errors import SettingUnfit
from penstock.messaging.addresses import MASK, masked

_SECRET_NAME = re.compile(r"(password|passwd|secret|token|credential|access[._-]?key)", re.IGNORECASE)
_SECRETS = frozenset({"sentry_dsn", "notify_urls"})  # whose names do not say so
_ADDRESSES = frozenset({"broker", "ledger"})  # settings that are addresses as a whole


def shown(name: str, value: Any) -> Any:
    """A setting's value for people and logs: what looks like a secret is masked, also inside addresses and tables."""
    if isinstance(value, BaseModel):
        value = value.model_dump(exclude_unset=True)
    if value is None or value == "":
        return value
    if _SECRET_NAME.search(name) or (name.partition(".")[0] in _SECRETS and value):
        return MASK  # whatever was written there, and whichever part of it
    if isinstance(value, Mapping):
        return {key: shown(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):  # also where somebody wrote a list that should be none
        return [shown(name, inner) for inner in value]
    if isinstance(value, str):
        if name in _ADDRESSES and "://" not in value and ("@" in value or "?" in value):
            # the slip hides where the password begins
            return MASK
        return masked(value)
    return value


SECRETS_VARIABLE = f"{PREFIX}SECRETS_DIR"

_UNPARSED = re.compile(r'parsing value for field "(?P<name>\w+)" from source "(?P<source>\w+)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveSettings:
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


def load_effective(**given: Any) -> EffectiveSettings:
    """As `load_settings`, and where each of them comes from."""
    settings = load_settings(**given)
    folder = _secrets_folder()
    origins = dict.fromkeys(Settings.model_fields, "default")
    origins |= dict.fromkeys(TomlConfigSettingsSource(Settings)(), SETTINGS_FILE)
    if folder is not None:
        origins |= dict.fromkeys(SecretsSettingsSource(Settings, secrets_dir=folder)(), f"secrets directory {folder}")
    origins |= {name: f"{PREFIX}{name.upper()}" for name in EnvSettingsSource(Settings)()}
    origins |= dict.fromkeys(_present(given), "flag")
    return EffectiveSettings(settings=settings, origins=origins)


def with_flags(settings: Settings, **given: Any) -> Settings:
    """These settings with what a command line gave, None for what it did not. Raises `ConfigurationError`."""
    update: dict[str, Any] = {}
    for name, value in _present(given).items():
        field = Settings.model_fields[name]
        annotated: Any = Annotated[field.annotation, field]
        try:
            config = ConfigDict(hide_input_in_errors=True)  # as in `Settings`
            update[name] = TypeAdapter(annotated, config=config).validate_python(value)
        except ValidationError as error:
            raise _does_not_fit(error, name) from error
    return settings.model_copy(update=update)


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
    example = _example(name) if len(path) == 1 else ""
    return SettingUnfit(
        f"The setting {'.'.join(path) or name} (flag, {PREFIX}{name.upper()} or {SETTINGS_FILE}) does not fit: "
        f"{first['msg']}, given {shown('.'.join(path), first.get('input'))!r}.{example}"
    )


def _example(name: str) -> str:
    """Of a table or a list, how it is written; of others nothing."""
    if name not in EXAMPLES:
        return ""
    written = json.dumps(EXAMPLES[name])
    toml = written.replace('": ', '" = ')  # tables of one line
    return f" Write such as {name} = {toml} in {SETTINGS_FILE}, or {PREFIX}{name.upper()}='{written}'."


def _no_json(error: SettingsError) -> SettingUnfit:
    """A table that is no JSON; or a secret that could not be read at all."""
    found = _UNPARSED.search(str(error))
    if found is None:
        return SettingUnfit(f"A {PREFIX} variable or secret in the environment cannot be read: {error}.")
    name = found["name"]
    of_secrets = found["source"] == SecretsSettingsSource.__name__
    where = f"The file {PREFIX.lower()}{name} in {SECRETS_VARIABLE}" if of_secrets else f"{PREFIX}{name.upper()}"
    example = f", such as {json.dumps(EXAMPLES[name])}" if name in EXAMPLES else ""
    return SettingUnfit(f"{where} cannot be read: it holds JSON{example}.")
