"""`penstock publish`: make committed batches visible."""

from penstock.cli.output import AppName, Json, Pipeline, StateFolder, Table, counted, print_json, printable
from penstock.cli.upkeep import App, Name, pipelines


def publish(
    app: App = None,
    name: Name = None,
    table: Table = None,
    state: StateFolder = None,
    pipeline: Pipeline = None,
    app_name: AppName = None,
    json_: Json = False,
) -> None:
    """Make visible what is committed: what a worker does by itself after each batch, when it starts, and when idle."""
    with pipelines(app=app, name=name, table=table, state=state, pipeline=pipeline, app_name=app_name) as found:
        done = {one: kept.publish() for one, kept in found.items()}
    if json_:
        print_json([{"pipeline": one, "batches": batches} for one, batches in done.items()])
        return
    for one, batches in done.items():
        what = f"{counted(batches, 'batch', 'batches')} published" if batches else "nothing to publish"
        print(printable(f"{one}: {what}."))
