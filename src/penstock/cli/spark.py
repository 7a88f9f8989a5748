"""`penstock admin spark`: help with Spark clusters."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.output import Json, print_json, printable
from penstock.messaging.wording import counted
from penstock.operations.spark.pack import OWN_PYTHON, PackReport, PackRequest
from penstock.operations.spark.pack import pack as write_pack

app = typer.Typer(no_args_is_help=True)

_MEGABYTE = 1_000_000


@app.command()
def pack(
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="The archive to write; default: penstock-pythonX.Y.tar.gz here."),
    ] = None,
    extra: Annotated[
        list[str] | None,
        typer.Option("--extra", metavar="NAME", help="Also pack for this extra: aws, mysql, postgresql; repeatable."),
    ] = None,
    package: Annotated[
        list[str] | None,
        typer.Option("--package", metavar="NAME", help="Also pack this package, for a transform; repeatable."),
    ] = None,
    platform: Annotated[
        list[str] | None,
        typer.Option("--platform", metavar="TAG", help="Pack wheels for this platform, by pip's name; repeatable."),
    ] = None,
    python_version: Annotated[
        str | None,
        typer.Option("--python-version", metavar="X.Y", help="The executors' version of Python; default: this one."),
    ] = None,
    json_: Json = False,
) -> None:
    """Pack the packages that Spark's executors need into an archive for spark.archives.

    It takes pyarrow, numpy, pandas, zstandard and their dependencies from this environment, without a network. With
    --platform or --python-version, pip gets the same versions as wheels. Executors run their host's Python of that
    version with these packages. Penstock itself ships with each session.
    """
    report = write_pack(
        PackRequest(
            output=output,
            extras=extra or (),
            packages=package or (),
            platforms=platform or (),
            python_version=python_version,
        )
    )
    if json_:
        print_json(dataclasses.asdict(report))
    else:
        _print(report)


def _print(report: PackReport) -> None:
    print(
        printable(
            f"{report.file}: {report.bytes / _MEGABYTE:,.0f} MB, {counted(len(report.packages), 'package')} for Python "
            f"{report.python}."
        )
    )
    print(printable(f"Packages: {', '.join(f'{name} {version}' for name, version in report.packages.items())}."))
    print("Settings of Spark (spark.conf in Penstock's settings, or --conf of spark-submit):")
    for name, value in report.settings.items():
        print(printable(f"  {name}={value}"))
    print(
        "Under spark-submit in client mode, also unpack it into the folder penstock/ of the driver's working directory "
        "and set spark.pyspark.driver.python to the Python that has Penstock."
    )
    if report.python != OWN_PYTHON:
        print(f"This process is Python {OWN_PYTHON}; Spark needs the same version in driver and executors.")
