"""`penstock config`: the effective settings with their origin, and whether stopping fits its platform."""

import dataclasses
import json
from enum import StrEnum
from typing import Annotated, Any

import typer

from penstock.cli.options import seconds_option
from penstock.cli.output import Json, print_json, print_table, printable, talk

app = typer.Typer(help="The settings in effect, and the arithmetic of stopping.", no_args_is_help=True)


class PlatformName(StrEnum):
    """What stops our processes."""

    ECS = "ecs"
    FARGATE = "fargate"
    KUBERNETES = "kubernetes"
    SYSTEMD = "systemd"
    DOCKER = "docker"


@app.command()
def show(json_: Json = False) -> None:
    """Show every setting, with where its value comes from. Secrets are masked."""
    from penstock.config import Settings, load_effective, shown, unknown_variables

    effective = load_effective()
    rows = [
        {
            "setting": name,
            "value": shown(name, getattr(effective.settings, name)),
            "origin": effective.origins[name],
            "description": field.description or "",
        }
        for name, field in Settings.model_fields.items()
    ]
    for variable in unknown_variables():
        talk(printable(f"{variable} in the environment names no setting and is left alone; is it a slip?"))
    if json_:
        print_json(rows)
        return
    print_table(
        ("setting", "value", "origin", "description"),
        [(row["setting"], _text(row["value"]), row["origin"], row["description"]) for row in rows],
        empty="",
    )


@app.command("check-budget")
def check_budget(
    platform: Annotated[PlatformName, typer.Option("--platform", help="What stops the worker.")],
    stop_timeout: Annotated[
        float | None,
        seconds_option("--stop-timeout", least=0, help="What the platform grants; default: what it does by itself."),
    ] = None,
    pre_stop: Annotated[
        float, seconds_option("--pre-stop", least=0, help="Kubernetes: what the preStop hook takes.")
    ] = 0.0,
    drain: Annotated[
        float | None, seconds_option("--drain", least=0, help="For work in flight; default: what the rest leaves.")
    ] = None,
    json_: Json = False,
) -> None:
    """Does stopping fit into what the platform grants? Exit code 78: it cannot."""
    from penstock.operations.shutdown_budget import plan

    found = plan(platform.value, platform_seconds=stop_timeout, pre_stop_seconds=pre_stop, drain_seconds=drain)
    if json_:
        print_json(dataclasses.asdict(found))
        return
    print_table(
        ("part", "seconds", "ends at"),
        [(part.name, f"{part.seconds:g}", f"{part.ends_at_seconds:g}") for part in found.parts],
        empty="",
    )
    print(f"\n{found.platform} kills after {found.platform_seconds:g} s. It fits with")
    print(f"  {found.platform_line}    in {found.platform_where}")
    drained = "" if drain is None else f" and drain_seconds = {drain:g}"
    print(f"  {found.setting_line}{drained}    in penstock.toml")


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
