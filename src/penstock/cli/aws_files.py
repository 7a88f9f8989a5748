"""What `penstock init --aws` writes: Terraform as it is in starter/aws, and the values of its variables as JSON."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import permutations
from typing import TYPE_CHECKING, Any

from penstock.errors import UsageError
from penstock.storage.address import S3Address, is_s3, s3_address

if TYPE_CHECKING:
    from penstock.config import Settings

FOLDER = "starter/aws"  # of the templates, beside this file
VALUES = "terraform.tfvars.json"  # read by Terraform and OpenTofu by themselves
TEMPLATES = ("versions.tf", "variables.tf", "queues.tf", "bucket.tf", "policies.tf", "outputs.tf")

_QUEUE = re.compile(r"[A-Za-z0-9_-]{1,75}")  # 80 are SQS's own limit, and "-dead" comes behind it
_BUCKET = re.compile(r"(?!xn--|sthree-)[a-z0-9](?!.*\.\.)[a-z0-9.-]{1,61}[a-z0-9]")
_ADDRESS = re.compile(r"\d+\.\d+\.\d+\.\d+")
_PART = re.compile(r"[A-Za-z0-9!_.'()-]+")
_PART_WORDS = "letters, digits and ! - _ . ' ( ), since S3 wants others encoded there, and IAM reads * as anything"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Names that were checked. None: what the variables have by default."""

    queue: str | None
    bucket: str | None
    prefixes: tuple[str, ...]  # each empty or with a slash at its end
    table: S3Address | None


def wanted(*, queue: str | None, bucket: str | None, prefixes: Sequence[str], table: str | None) -> Wanted:
    """What a command line names. Raises `UsageError` for what AWS would not take, or what would go round in circles."""
    if queue is not None:
        _check_queue(queue)
    if bucket is not None:
        _check_bucket(bucket)
    elif prefixes:
        raise UsageError(f"The prefix {prefixes[0]} has no bucket; name it with --bucket.")
    found = tuple(_prefix(text) for text in prefixes)
    for longer, shorter in permutations(found, 2):
        if longer.startswith(shorter):
            raise UsageError(
                f"The prefixes {shorter or '(all)'} and {longer or '(all)'} overlap, which S3 refuses; keep the first."
            )
    where = None if table is None else _table(table)
    if where is not None and where.bucket == bucket:
        _check_apart(where, found or ("",))
    return Wanted(queue=queue, bucket=bucket, prefixes=found, table=where)


def aws_files(names: Wanted, settings: "Settings") -> Mapping[str, str]:
    """The text of each file, by its name."""
    starter = files("penstock.cli") / FOLDER
    texts = {name: (starter / name).read_text(encoding="utf-8") for name in TEMPLATES}
    return {**texts, VALUES: json.dumps(_values(names, settings), indent=2) + "\n"}


def _values(names: Wanted, settings: "Settings") -> Mapping[str, Any]:
    given: dict[str, Any] = {
        "region": settings.aws_region,
        "queue": names.queue,
        "bucket": names.bucket,
        "prefixes": list(names.prefixes) or None,
        "table": None if names.table is None else {"bucket": names.table.bucket, "prefix": names.table.prefix},
        "max_attempts": settings.max_attempts,
        "lease_seconds": settings.lease_seconds,
        "stop_timeout_seconds": settings.stop_timeout_seconds,
    }
    return {name: value for name, value in given.items() if value is not None}


def _check_queue(name: str) -> None:
    if name.endswith(".fifo"):
        raise UsageError(f"The queue {name} is a FIFO queue, to which S3 sends nothing; name one without .fifo.")
    if not _QUEUE.fullmatch(name):
        raise UsageError(
            f"The queue's name {name!r} does not fit: up to 75 letters, digits, hyphens and underscores (SQS takes 80, "
            "and its dead letters' names are five longer)."
        )


def _check_bucket(name: str) -> None:
    if is_s3(name):
        raise UsageError(f"--bucket wants a name alone: --bucket {s3_address(name).bucket}, and --prefix for the rest.")
    if not _BUCKET.fullmatch(name) or _ADDRESS.fullmatch(name):
        raise UsageError(
            f"The bucket's name {name!r} does not fit: 3 to 63 lowercase letters, digits, dots and hyphens, a letter "
            "or digit at either end."
        )


def _prefix(text: str) -> str:
    """With one slash at its end, as a folder's; all of the bucket is empty."""
    if text.startswith("/"):
        raise UsageError(
            f"The prefix {text!r} begins with a slash, which S3 takes for a part of a key's name; leave that slash out "
            "(all of the bucket is no prefix at all)."
        )
    parts = text.removesuffix("/").split("/") if text else []
    if not all(_PART.fullmatch(part) for part in parts):
        raise UsageError(f"The prefix {text!r} does not fit: {_PART_WORDS}; with slashes between its parts.")
    return "".join(f"{part}/" for part in parts)


def _table(text: str) -> S3Address:
    where = s3_address(text)
    _check_bucket(where.bucket)
    if not where.prefix:
        raise UsageError(f"The table {text} is a whole bucket; name a place in it: {text.rstrip('/')}/NAME.")
    return S3Address(bucket=where.bucket, prefix=_prefix(where.prefix).rstrip("/"))


def _check_apart(table: S3Address, prefixes: Sequence[str]) -> None:
    """Files of the table must not be announced as new objects, nor its objects read as a source."""
    for prefix in prefixes:
        for own in (f"{table.prefix}/", f"{table.prefix}_quarantine/"):
            if own.startswith(prefix) or prefix.startswith(own):
                raise UsageError(
                    f"The table {table} and the prefix {prefix or '(all of the bucket)'} hold one another, so its own "
                    "files would be announced as new objects; put the table elsewhere, or name prefixes with --prefix."
                )
