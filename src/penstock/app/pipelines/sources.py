"""The source of a declared pipeline."""

from penstock.app.paths import TablePaths
from penstock.app.pipelines.declaration import ObjectSource
from penstock.app.sources import SourceLocation, source_of


def declared_source(source: ObjectSource, where: TablePaths) -> SourceLocation:
    """Return the source with its filters. Raises `UsageError` as `source_of` does."""
    return source_of(source.folder, where, include=source.include, exclude=source.exclude)
