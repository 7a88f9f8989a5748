"""`penstock publish`: make committed batches visible."""

from penstock.cli.option_groups import grouped_options
from penstock.cli.output import Json, counted, print_json, printable
from penstock.cli.upkeep import App, Name, pipelines
from penstock.cli.where import Where


@grouped_options
def publish(
    where: Where,
    app: App = None,
    name: Name = None,
    json_: Json = False,
) -> None:
    """Make visible what is committed: what a worker does by itself after each batch, when it starts, and when idle."""
    with pipelines(app=app, name=name, where=where) as found:
        done = {one: kept.publish() for one, kept in found.items()}
    if json_:
        print_json([{"pipeline": one, "batches": batches} for one, batches in done.items()])
        return
    for one, batches in done.items():
        what = f"{counted(batches, 'batch', 'batches')} published" if batches else "nothing to publish"
        print(printable(f"{one}: {what}."))
