"""Which dead letters a verb means: the options that the verbs of `penstock dead` share."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from penstock.cli import dead_options
from penstock.cli.durations import duration_if
from penstock.cli.where import object_uri
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.app.dead_letters import Asked

Tier = Literal["dlq", "dead"]
Queue = Annotated[
    str | None,
    typer.Option("--queue", metavar="QUEUE", help="Letters of this queue alone: its name, or where they lie."),
]
TierOption = Annotated[
    Tier | None, typer.Option("--tier", help="dlq: those that are replayed by themselves; dead: those for people.")
]
Handler = Annotated[str | None, typer.Option("--handler", metavar="NAME", help="Given up on by this handler.")]
Error = Annotated[
    str | None,
    typer.Option(
        "--error", metavar="TEXT", help="Text of the reason or exception, or a group as `dead groups` has it."
    ),
]
OlderThan = Annotated[
    str | None, typer.Option("--older-than", metavar="TIME", help="Dead for longer: seconds, or such as 2h, 3d.")
]
YoungerThan = Annotated[str | None, typer.Option("--younger-than", metavar="TIME", help="Dead for less.")]
Attribute = Annotated[
    list[str] | None,
    typer.Option("--attribute", metavar="NAME=VALUE", help="With this attribute; may be given several times."),
]
Object = Annotated[
    str | None, typer.Option("--object", metavar="URI", help="Announcing this object: s3://BUCKET/KEY, or a path.")
]
Ids = Annotated[list[str] | None, typer.Option("--id", metavar="ID", help="This one; may be given several times.")]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="At most so many letters.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Which:
    """The filters."""

    queue: Queue = None
    tier: TierOption = None
    handler: Handler = None
    error: Error = None
    older_than: OlderThan = None
    younger_than: YoungerThan = None
    attribute: Attribute = None
    object_: Object = None
    ids: Ids = None

    def asked(self, *, limit: int | None = None) -> "Asked":
        """What the options mean. Raises `UsageError` for one that means nothing."""
        from penstock.app.dead_letters import Asked
        from penstock.replay.filters import Wanted

        pairs = [pair.partition("=") for pair in self.attribute or ()]
        if wrong := next(("".join(pair) for pair in pairs if not (pair[0] and pair[1])), None):
            raise UsageError(f"--attribute {wrong} is no NAME=VALUE.")
        given = {"--error": self.error, "--handler": self.handler, "--queue": self.queue, "--object": self.object_}
        dead_options.must_say_something({**given, "--id": next((id for id in self.ids or () if not id), None)})
        wanted = Wanted(
            handler=self.handler,
            error=self.error,
            older_than_seconds=duration_if("--older-than", self.older_than),
            younger_than_seconds=duration_if("--younger-than", self.younger_than),
            attributes={name: value for name, _, value in pairs},
            object_uri=None if self.object_ is None else object_uri(self.object_),
            ids=frozenset(self.ids or ()),
        )
        return Asked(queue=self.queue, tier=self.tier, wanted=wanted, limit=limit)
