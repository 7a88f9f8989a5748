"""penstock.toml as a source of settings: its sections become the flat fields of `Settings`."""

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from pydantic_settings import BaseSettings, TomlConfigSettingsSource

from penstock.config.names import FORMER, SECTIONS, SETTINGS_FILE, dotted, in_file, name_of, section_of, suggested
from penstock.errors import SettingUnfit


class SettingsFile(TomlConfigSettingsSource):
    """Read penstock.toml in the current folder. Raises `SettingUnfit` for a name that does not exist."""

    def __init__(self, settings_cls: type[BaseSettings]) -> None:
        self._fields = settings_cls.model_fields  # before the file is read
        super().__init__(settings_cls)

    def __call__(self) -> dict[str, Any]:
        """Return the settings that no source above has: pydantic would merge their tables."""
        return {field: value for field, value in super().__call__().items() if field not in self.current_state}

    def _read_file(self, file_path: Any) -> dict[str, Any]:
        return flattened(super()._read_file(file_path), self._fields)


def flattened(document: Mapping[str, Any], fields: Collection[str]) -> dict[str, Any]:
    """Return the values of a parsed penstock.toml by field. Raises `SettingUnfit` for the first unknown name."""
    values: dict[str, Any] = {}
    for key, value in document.items():
        if key in SECTIONS:
            values |= _section(key, value, fields)
        elif key in fields and not section_of(key):
            values[key] = value
        else:
            raise SettingUnfit(_unknown_key(key, value, fields))
    return values


def _section(section: str, content: Any, fields: Collection[str]) -> dict[str, Any]:
    if not isinstance(content, Mapping):
        raise SettingUnfit(
            f"{SETTINGS_FILE}: {section} is a section, not a setting. Write [{section}] and its settings below."
        )
    values = {}
    for name, value in content.items():
        field = f"{section}_{name}"
        if field not in fields:
            raise SettingUnfit(_unknown_name(section, name, fields))
        values[field] = value
    return values


def _unknown_key(key: str, value: Any, fields: Collection[str]) -> str:
    """Return the error for a name above the sections, or for a section that does not exist."""
    if key in FORMER or key in fields:
        field = FORMER.get(key, key)
        if not section_of(field):
            return f"{SETTINGS_FILE}: {key} is now called {field}."
        if isinstance(value, Mapping):
            return f"{SETTINGS_FILE}: the table [{key}] is now [{dotted(field)}]."
        now = f"is now {name_of(field)} in" if name_of(field) != key else "belongs in"
        return f"{SETTINGS_FILE}: {key} {now} the section [{section_of(field)}]."
    if isinstance(value, Mapping):
        close = difflib.get_close_matches(key, SECTIONS, n=1)
        meant = f"Did you mean [{close[0]}]?" if close else f"The sections are {', '.join(SECTIONS)}."
        return f"{SETTINGS_FILE} has no section [{key}]. {meant}"
    return f"{SETTINGS_FILE} has no setting {key}. {_meant(key, fields)}"


def _unknown_name(section: str, name: str, fields: Collection[str]) -> str:
    """Return the error for a name that its section does not have."""
    if name in fields and not section_of(name):
        return f"{SETTINGS_FILE}: {name} belongs in no section. Move it above the first [section]."
    return f"{SETTINGS_FILE} has no setting {name} in the section [{section}]. {_meant(f'{section}_{name}', fields)}"


def _meant(name: str, fields: Collection[str]) -> str:
    field = suggested(name, fields)
    return (
        "`penstock admin config show --all` lists all settings." if field is None else f"Did you mean {in_file(field)}?"
    )
