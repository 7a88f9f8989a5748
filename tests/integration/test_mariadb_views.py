"""An upgrade by a MariaDB user who may not create views."""

import pytest
from sqlalchemy import inspect
from sqlalchemy.engine import make_url
from tests.services.plugin import Servers

from penstock.ledger import Ledger


@pytest.fixture
def limited_url(servers: Servers, mariadb_url: str) -> str:
    """Return the address of the database for a user with the permissions that earlier versions needed."""
    url = make_url(mariadb_url)
    server = servers.mariadb()
    server.sql("CREATE USER IF NOT EXISTS 'limited'@'%' IDENTIFIED BY 'secret'")
    server.sql("CREATE USER IF NOT EXISTS 'limited'@'localhost' IDENTIFIED BY 'secret'")
    for host in ("%", "localhost"):
        server.sql(
            "GRANT SELECT, INSERT, UPDATE, DELETE, CREATE TEMPORARY TABLES, CREATE, ALTER, DROP, INDEX "
            f"ON {url.database}.* TO 'limited'@'{host}'"
        )
    return url.set(username="limited", password="secret").render_as_string(hide_password=False)


def test_views_are_omitted_if_the_user_may_not_create_them(limited_url: str, mariadb_url: str) -> None:
    ledger = Ledger.open(limited_url)
    with ledger.database.reading() as connection:
        assert "owners" in inspect(connection).get_table_names()
        assert inspect(connection).get_view_names() == []
    ledger.close()
    again = Ledger.open(limited_url)
    assert again.works() == []
    again.close()
