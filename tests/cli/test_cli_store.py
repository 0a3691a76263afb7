"""`innkeeper store`: what its commands say and how they end. That all of a store is carried is
proved in tests/store.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import stat
from pathlib import Path

import pytest
from cli_kit import Ended
from typer.testing import CliRunner

from innkeeper_server.cli.app import app
from innkeeper_server.identity import AgentKey
from innkeeper_server.store import open_store

MOVED = {"agents": 2, "followups": 0, "outcomes": 0, "events": 0, "alarms": 0}


def run(*arguments: str, input: bytes | None = None) -> Ended:
    ended = CliRunner().invoke(app, ("store", *arguments), input=input)
    return Ended(ended.exit_code, ended.stdout, ended.stderr)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own, whose innkeeper.db has two agents."""
    monkeypatch.chdir(tmp_path)

    async def fill() -> None:
        store = open_store("sqlite:///innkeeper.db")
        await store.open()
        for id in ("a", "b"):
            await store.hydrate(AgentKey("default", "counter", id))
        await store.close()

    asyncio.run(fill())
    return tmp_path


@pytest.mark.parametrize("name", ["all.jsonl", "all.jsonl.gz"])
def test_a_store_goes_into_a_file_and_back(here: Path, name: str) -> None:
    done = run("export", name)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[:2] == ["table\trows", "agents\t2"]
    assert stat.S_IMODE((here / name).stat().st_mode) == 0o600
    data = (here / name).read_bytes()
    lines = (gzip.decompress(data) if name.endswith(".gz") else data).splitlines()
    assert json.loads(lines[1])["id"] == "a"
    done = run("import", name, "--store", "sqlite:///new.db", "--json")
    assert (done.code, done.json) == (0, {"rows": MOVED})
    done = run("check", "--store", "sqlite:///new.db", "--json")
    assert done.code == 0
    assert done.json["rows"] == MOVED
    assert done.json["findings"] == []


def test_a_pipe_carries_it_too() -> None:
    done = run("export", "-")
    assert done.code == 0
    done = run("import", "-", "--store", "sqlite:///new.db", "--json", input=done.out.encode())
    assert (done.code, done.json) == (0, {"rows": MOVED})


def test_a_file_that_is_there_is_replaced_only_where_that_is_wanted(here: Path) -> None:
    (here / "all").write_text("mine")
    done = run("export", "all")
    assert done.code == 2
    assert "all is there already; --force replaces it" in done.err
    assert (here / "all").read_text() == "mine"
    assert run("export", "all", "--force").code == 0
    assert (here / "all").read_text().startswith("{")


def test_an_export_that_fails_leaves_the_file_that_was_there(here: Path) -> None:
    (here / "all").write_text("mine")
    done = run("export", "all", "--force", "--store", "sqlite:///none.db")
    assert done.code == 5
    assert "no host has used it yet" in done.err
    assert sorted(path.name for path in here.iterdir()) == [
        "all",
        "innkeeper.db",
        "innkeeper.db.lock",
    ]
    assert (here / "all").read_text() == "mine"


def test_a_wrong_file_leaves_the_store_as_it_was(here: Path) -> None:
    run("export", "all.gz")
    (here / "cut.gz").write_bytes((here / "all.gz").read_bytes()[:-12])
    for file in ("cut.gz", "innkeeper.db"):
        done = run("import", file, "--store", "sqlite:///new.db", "--json")
        assert done.code == 1
        assert "the import left the store as it was: line " in done.json["error"]["message"]
        assert done.json["error"]["exit_code"] == 1
    assert run("import", "all.gz", "--store", "sqlite:///new.db").code == 0
    done = run("import", "all.gz", "--store", "sqlite:///new.db")
    assert done.code == 5
    assert "the store is not empty" in done.err


def test_the_schema_is_brought_up_to_date_once() -> None:
    done = run("migrate", "--store", "sqlite:///new.db")
    assert done.code == 0
    assert "the schema was brought from version 0 to " in done.out
    done = run("migrate", "--store", "sqlite:///new.db")
    assert "the schema is up to date: version " in done.out
    done = run("migrate", "--store", "sqlite:///new.db", "--json")
    assert done.json["before"] == done.json["after"]


def test_a_check_that_finds_something_fails(here: Path) -> None:
    import sqlite3

    with sqlite3.connect(here / "innkeeper.db") as file:
        file.execute("UPDATE agents SET epoch = 0")
    file.close()
    done = run("check")
    assert done.code == 1
    assert "error: agents with an epoch below 1 or a version below 0: 2" in done.err
    assert "something is wrong" in done.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("check", "--store", "memory:"), "memory: keeps nothing once its host has ended"),
        (("check", "--store", "nowhere:"), "store: 'nowhere:' names no store"),
        (("check", "--config", "none.toml"), "none.toml: cannot be read"),
    ],
)
def test_a_wrong_store_is_a_wrong_usage(arguments: tuple[str, ...], words: str) -> None:
    done = run(*arguments)
    assert done.code == 2
    assert words in done.err


def test_a_file_that_cannot_be_had_is_named() -> None:
    for verb in ("import", "export"):
        done = run(verb, "nowhere/all")
        assert done.code == 1
        assert "error: nowhere/all" in done.err
        assert "No such file or directory" in done.err


def test_the_settings_name_the_store(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "innkeeper.toml").write_text('store = "sqlite:///third.db"')
    assert run("migrate").code == 0
    assert (here / "third.db").exists()
    monkeypatch.setenv("INNKEEPER_STORE", "sqlite:///fourth.db")
    assert run("migrate").code == 0
    assert (here / "fourth.db").exists()
