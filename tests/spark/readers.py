"""A reader for the tests: pairs of a number and its half, such as ``7=3.5``, separated by semicolons."""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from penstock import SourceObject


def read_pairs(obj: SourceObject) -> Iterator[pa.RecordBatch]:
    """Yield a batch per pair. An id that is no number is a text, which does not fit."""
    with obj.open() as file:
        for pair in file.read().decode().split(";"):
            name, half = pair.split("=")
            yield pa.RecordBatch.from_pydict({"id": [int(name) if name.isdigit() else name], "half": [float(half)]})


def written(numbers: Iterable[int]) -> str:
    """Return the text of an object."""
    return ";".join(f"{number}={number / 2}" for number in numbers)
