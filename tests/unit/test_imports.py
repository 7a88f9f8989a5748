"""Imports stay cheap: the package and the CLI's help load no heavy library."""

import subprocess
import sys

import pytest

SERVICES = ("sentry_sdk", "rollbar", "apprise")
HEAVY = ("pyspark", "boto3", "sqlalchemy", "pyarrow", "deltalake", "numpy", "pandas", "opentelemetry", *SERVICES)

REPORT = f"""
import sys
print("loaded:", *sorted({set(HEAVY)!r} & set(sys.modules)))
"""

SHOW_HELP = """
import contextlib, io, sys
sys.argv = ["penstock", "--help"]
from penstock.cli.main import main
output = io.StringIO()
with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
    main()
assert "Usage" in output.getvalue(), output.getvalue()
"""


@pytest.mark.parametrize("code", ["import penstock", SHOW_HELP], ids=["import penstock", "penstock --help"])
def test_no_heavy_library_is_imported(code: str) -> None:
    command = [sys.executable, "-c", code + REPORT]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "loaded:"


def test_the_report_lists_a_heavy_library_that_is_loaded() -> None:
    command = [sys.executable, "-c", "import sqlalchemy" + REPORT]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "loaded: sqlalchemy"


@pytest.mark.parametrize(
    "module",
    ["arrow_writer", "declaration", "direct", "probe", "shared_folders", "source.datasource", "survey_task", "trial"],
)
def test_modules_of_tasks_need_no_package_that_executors_lack(module: str) -> None:
    code = (
        "import sys\n"
        "for name in ('alembic', 'deltalake', 'pydantic', 'rich', 'sqlalchemy', 'structlog', 'tenacity', 'typer'):\n"
        "    sys.modules[name] = None\n"
        f"import penstock.pipeline.spark.{module}"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_plain_sessions_need_no_greenlet() -> None:
    """Greenlet is needed by SQLAlchemy's async part only, and need not be installed."""
    code = (
        "import sys; sys.modules['greenlet'] = None\n"
        "import penstock.app.outbox, penstock.transactions.relay, penstock.transactions.sessions\n"
        "assert 'sqlalchemy.ext.asyncio' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_metrics_without_an_endpoint_need_no_prometheus_client() -> None:
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "from penstock.app.metering import metrics_beside, open_metering\n"
        "from penstock.config import Settings\n"
        "settings = metrics_beside(Settings(), 1)\n"
        "open_metering(settings, worker='w', health=None, queues={}, emit=lambda event: None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
