"""Settings: where they come from, and what is said of wrong ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from innkeeper_server.config import ConfigError, Settings, load
from innkeeper_server.limits import Limits


@pytest.fixture(autouse=True)
def _empty_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refused(config: str | None = None, **flags: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(config, **flags)
    return str(caught.value).splitlines()


def test_defaults_are_the_host_s_own() -> None:
    settings = load()
    assert settings.limits() == Limits()
    assert (settings.agents, settings.listen) == ((), "127.0.0.1:7420")
    assert (settings.store, settings.admin_listen) == ("sqlite:///innkeeper.db", None)


def test_flags_win_over_the_environment_and_that_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "innkeeper.toml").write_text(
        'capacity = 1\nidle_timeout = 1.5\nmax_waiting = 0\nagents = ["a", "b.py"]\n'
    )
    monkeypatch.setenv("INNKEEPER_CAPACITY", "2")
    monkeypatch.setenv("INNKEEPER_IDLE_TIMEOUT", "2.5")
    settings = load(capacity=3, idle_timeout=None)
    assert (settings.capacity, settings.idle_timeout, settings.max_waiting) == (3, 2.5, 0)
    assert settings.agents == ("a", "b.py")
    assert settings.limits().idle_timeout == 2.5


def test_the_file_is_named_by_argument_or_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one.toml").write_text("capacity = 1")
    (tmp_path / "two.toml").write_text("capacity = 2")
    (tmp_path / "innkeeper.toml").write_text("capacity = 3")
    assert load().capacity == 3
    monkeypatch.setenv("INNKEEPER_CONFIG", "one.toml")
    assert load().capacity == 1
    assert load("two.toml").capacity == 2


def test_agents_are_listed_with_commas_in_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("INNKEEPER_AGENTS", "my.agents, ./more.py,")
    assert load().agents == ("my.agents", "./more.py")
    assert load(agents=["other"]).agents == ("other",)


def test_unknown_names_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "innkeeper.toml").write_text("capacity = 1\ncapcity = 2\n[server]\nport = 1\n")
    assert refused() == [
        "capcity: no such setting (in innkeeper.toml)",
        "server: no such setting (in innkeeper.toml)",
    ]


def test_each_wrong_value_has_a_line_that_says_where_it_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "innkeeper.toml").write_text('mailbox_size = "many"\n')
    monkeypatch.setenv("INNKEEPER_IDLE_TIMEOUT", "-1")
    lines = refused(log_level="loud")
    assert len(lines) == 3
    by_name = {line.partition(":")[0]: line for line in lines}
    assert by_name["mailbox_size"].endswith("(in innkeeper.toml)")
    assert by_name["idle_timeout"].endswith("not '-1' (from INNKEEPER_IDLE_TIMEOUT)")
    assert "'debug', 'info'" in by_name["log_level"]
    assert by_name["log_level"].endswith("(from --log-level)")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("listen", "7420"),
        ("listen", "127.0.0.1:x"),
        ("listen", "127.0.0.1:65536"),
        ("listen", "::1:80"),
        ("listen", "unix:"),
        ("admin_listen", ":80"),
        ("metrics_listen", "unix:/tmp/x"),
        ("store", "mysql://x"),
        ("capacity", 0),
        ("max_waiting", -1),
        ("start_timeout", 0),
        ("turn_timeout", float("inf")),
        ("stop_timeout", float("nan")),
        ("max_message_bytes", 65_535),
        ("log_format", "xml"),
        ("uvloop", "perhaps"),
    ],
)
def test_a_wrong_value_is_refused_by_name(name: str, value: object) -> None:
    flags: dict[str, Any] = {name: value}
    (line,) = refused(**flags)
    assert line.startswith(f"{name}: ")


@pytest.mark.parametrize("address", ["[::1]:7420", "localhost:0", "unix:/run/i.sock", "unix:i"])
def test_addresses_have_these_forms(address: str) -> None:
    assert load(listen=address).listen == address


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert refused("none.toml") == ["none.toml: cannot be read: No such file or directory"]
    (tmp_path / "bad.toml").write_text("capacity = = 1")
    (line,) = refused("bad.toml")
    assert line.startswith("bad.toml: is no TOML: ")


def test_settings_do_not_change() -> None:
    settings = Settings()
    with pytest.raises(ValidationError):
        settings.capacity = 2


def test_the_sample_file_names_every_setting_with_its_default() -> None:
    sample = Path(__file__).parents[2] / "deploy/innkeeper.toml"
    shown = load(config=str(sample))
    defaults = {**Settings().model_dump(), "agents": ("innkeeper_server.demo",)}
    assert shown.model_dump() == defaults
    text = sample.read_text()
    assert [name for name in Settings.model_fields if f"{name} = " not in text] == []


def test_a_password_in_a_wrong_url_is_shown_nowhere() -> None:
    with pytest.raises(ConfigError) as caught:
        load(store="mysql://me:hun/ter2@db.example/agents")
    assert "mysql://***@db.example/agents" in str(caught.value)
    assert "ter2" not in str(caught.value)
