"""Which store a URL names."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from innkeeper_server.store import MemoryStore, SQLiteStore, open_store
from innkeeper_server.store.postgres.store import PostgresStore


def test_memory_is_the_store_that_forgets() -> None:
    assert isinstance(open_store("memory:"), MemoryStore)


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///agents.db", "agents.db"),
        ("sqlite:///data/agents of mine.db", "data/agents of mine.db"),
        ("sqlite:////var/lib/innkeeper/agents.db", "/var/lib/innkeeper/agents.db"),
        ("sqlite:///~/agents.db", str(Path.home() / "agents.db")),
        ("sqlite:///100%25#é.db", "100%25#é.db"),
    ],
)
def test_a_path_is_taken_as_it_is(url: str, path: str) -> None:
    store = open_store(url)
    assert isinstance(store, SQLiteStore)
    assert store.path == path


@pytest.mark.parametrize(
    "url",
    [
        "",
        "memory",
        "memory:x",
        "agents.db",
        "sqlite:",
        "sqlite://agents.db",
        "sqlite:///",
        "sqlite:///data/",
        "sqlite:///:memory:",
        "sqlite:///a.db?mode=ro",
        "sqlite:///a\0.db",
        "redis://localhost",
    ],
)
def test_another_url_is_refused_by_name(url: str) -> None:
    with pytest.raises(ValueError, match="names no") as refused:
        open_store(url)
    assert repr(url) in str(refused.value)


@pytest.mark.parametrize("url", ["postgresql://me@db.example/agents", "postgres:///agents"])
def test_a_postgresql_database_is_named_as_libpq_names_it(url: str) -> None:
    assert isinstance(open_store(url), PostgresStore)


@pytest.mark.parametrize(
    "url",
    [
        "mysql://me:secret@db.example/agents",
        "mysql://db.example/agents?user=me&password=secret&ssl=on",
    ],
)
def test_a_password_in_a_url_is_not_shown(url: str) -> None:
    with pytest.raises(ValueError, match="names no store") as refused:
        open_store(url)
    assert "secret" not in str(refused.value)
    assert "db.example" in str(refused.value)


def test_a_postgresql_url_without_its_package_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "innkeeper_server.store.postgres.store", None)
    with pytest.raises(ValueError, match=r"pip install 'innkeeper\[postgresql\]'") as refused:
        open_store("postgresql://me:secret@db.example/agents")
    assert "secret" not in str(refused.value)
