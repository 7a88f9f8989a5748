"""`penstock admin config`: show the settings in effect, and check that stopping fits a platform's grace period."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from penstock.cli.options import seconds_option
from penstock.cli.output import Json, print_json, print_table, talk
from penstock.config import (
    Audience,
    EffectiveSettings,
    Settings,
    audience,
    dotted,
    load_effective,
    shown,
)
from penstock.operations.shutdown_budget import plan

app = typer.Typer(no_args_is_help=True)


class PlatformName(StrEnum):
    """A platform that stops workers."""

    ECS = "ecs"
    FARGATE = "fargate"
    KUBERNETES = "kubernetes"
    SYSTEMD = "systemd"
    DOCKER = "docker"


@app.command()
def show(
    all_: Annotated[bool, typer.Option("--all", help="Include advanced settings at their defaults.")] = False,
    json_: Json = False,
) -> None:
    """Show the settings with the origin of each value: the common ones, and all that are set. Secrets are masked."""
    rows = _rows(load_effective(), everything=all_)
    if json_:
        print_json(rows)
        return
    print_table(
        ("setting", "value", "origin", "description"),
        [(row["setting"], _text(row["value"]), row["origin"], row["description"]) for row in rows],
        empty="",
    )
    if not all_ and not json_:
        talk("Advanced settings at their defaults are left out; --all shows them.")


@app.command("check-budget")
def check_budget(
    platform: Annotated[PlatformName, typer.Option("--platform", help="The platform that stops the worker.")],
    stop_timeout: Annotated[
        float | None,
        seconds_option("--stop-timeout", least=0, help="The platform's grace period. Default: that of the platform."),
    ] = None,
    pre_stop: Annotated[
        float, seconds_option("--pre-stop", least=0, help="Kubernetes: the duration of the preStop hook.")
    ] = 0.0,
    drain: Annotated[
        float | None,
        seconds_option("--drain", least=0, help="The time for handlers to finish. Default: the rest."),
    ] = None,
    json_: Json = False,
) -> None:
    """Check that stopping fits the platform's grace period, and print what to set. Exit code 78: it does not fit."""
    found = plan(platform.value, platform_seconds=stop_timeout, pre_stop_seconds=pre_stop, drain_seconds=drain)
    if json_:
        print_json(dataclasses.asdict(found))
        return
    print_table(
        ("part", "seconds", "ends at"),
        [(part.name, f"{part.seconds:g}", f"{part.ends_at_seconds:g}") for part in found.parts],
        empty="",
    )
    print(f"\n{found.platform} kills a worker {found.platform_seconds:g} s after the signal. It fits with")
    print(f"  {found.platform_line}    in {found.platform_where}")
    print(f"  {found.setting_line}    in the section [worker] of penstock.toml")


def _rows(effective: EffectiveSettings, *, everything: bool) -> Sequence[Mapping[str, Any]]:

    rows = []
    for field, info in Settings.model_fields.items():
        mark, origin = audience(field), effective.origins[field]
        if origin == "default" and (mark is Audience.HIDDEN or (mark is Audience.ADVANCED and not everything)):
            continue
        rows.append(
            {
                "setting": dotted(field),
                "value": shown(field, getattr(effective.settings, field)),
                "origin": origin,
                "description": info.description or "",
            }
        )
    return rows


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
