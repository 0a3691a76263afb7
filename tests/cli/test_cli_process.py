"""The command as a process: the demo, a host, a conversation on a terminal, an interruption."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-c", "from innkeeper_server.cli import main; main()"]
# A fuse: no test needs it, a hanging one ends by it.
FUSE = 60.0


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if "INNKEEPER" not in name}
    path = os.pathsep.join(str(ROOT / room) for room in ("protos", "server", "client"))
    return {**kept, "PYTHONPATH": path, "COLUMNS": "100", **more}


def run(*arguments: str, cwd: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=FUSE,
        env=environment(**more),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
    )


def test_the_demo_shows_an_eviction_a_refusal_and_a_return(tmp_path: Path) -> None:
    # Variables meant for `serve` must not disturb it.
    ended = run("demo", cwd=tmp_path, INNKEEPER_CAPACITY="many", INNKEEPER_ADMIN_LISTEN="nowhere")
    assert ended.returncode == 0, ended.stderr
    said = ended.stdout
    for line in (
        "Welcome, Ada. I will remember you.",
        "2 of 2 slots used, 2 idle, 0 waiting",
        "concierge/lobby is not resident",
        "You are Ada, and we have spoken 3 times.",
        "[CAPACITY_EXHAUSTED]",
    ):
        assert line in said
    assert said.count("\n42\n") == 2
    assert not list(tmp_path.iterdir())


def test_the_demo_stays_up_to_be_tried_if_asked() -> None:
    demo = subprocess.Popen(
        [*COMMAND, "demo", "--serve"], stdout=subprocess.PIPE, text=True, env=environment()
    )
    fuse = threading.Timer(FUSE, demo.kill)
    fuse.start()
    assert demo.stdout is not None
    with demo.stdout:
        lines = iter(demo.stdout.readline, "")
        export = next(line for line in lines if "export INNKEEPER_TARGET=" in line)
        target = export.strip().partition("=")[2]
        assert run("invoke", "counter/a", "get", "--target", target).stdout == "42\n"
        demo.send_signal(signal.SIGINT)
        assert demo.wait() == 0
    fuse.cancel()


@pytest.fixture
def target(tmp_path: Path) -> Iterator[str]:
    """Where a host with the example agents listens; it must end cleanly."""
    serve = ["serve", "--agents", "innkeeper_server.demo", "--store", "memory:", "--listen"]
    process = subprocess.Popen(
        [*COMMAND, *serve, f"unix:{tmp_path}/host"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(INNKEEPER_CAPACITY="5"),
        cwd=tmp_path,
    )
    fuse = threading.Timer(FUSE, process.kill)
    fuse.start()
    assert process.stdout is not None
    with process.stdout:
        assert "serving" in process.stdout.readline()
        yield f"unix:{tmp_path}/host"
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
    fuse.cancel()


def test_settings_come_from_flags_variables_and_defaults(target: str) -> None:
    ended = run("capacity", "--json", INNKEEPER_TARGET=target)
    assert json.loads(ended.stdout) == {"capacity": 5, "used": 0}


def test_wrong_settings_are_refused_by_name(tmp_path: Path) -> None:
    ended = run("serve", "--capacity", "0", cwd=tmp_path)
    assert ended.returncode == 2
    assert "capacity: should be greater than or equal to 1" in ended.stderr
    assert "--capacity" in ended.stderr
    (tmp_path / "innkeeper.toml").write_text("capasity = 5\n")
    ended = run("serve", cwd=tmp_path)
    assert (ended.returncode, "capasity: no such setting" in ended.stderr) == (2, True)


class Terminal:
    """A command on a terminal."""

    def __init__(self, *arguments: str) -> None:
        self._side, other = pty.openpty()
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=other,
            stdout=other,
            stderr=other,
            env=environment(TERM="dumb"),
            start_new_session=True,
        )
        os.close(other)
        self._fuse = threading.Timer(FUSE, self.process.kill)
        self._fuse.start()
        self.seen = ""

    def sees(self, words: str) -> None:
        """Read until these words have come since the last time."""
        while words not in self.seen:
            self.seen += os.read(self._side, 4096).decode()
        self.seen = self.seen.partition(words)[2]

    def types(self, text: str) -> None:
        os.write(self._side, text.encode())

    def ends(self) -> int:
        code = self.process.wait()
        self._fuse.cancel()
        os.close(self._side)
        return code


def test_a_conversation_on_a_terminal(target: str) -> None:
    terminal = Terminal("chat", "concierge/lobby", "--target", target)
    terminal.sees("talking to concierge/lobby")
    terminal.sees("> ")
    terminal.types("I am Ada\n")
    terminal.sees("Welcome, Ada.")
    terminal.sees("> ")
    terminal.types("remember that the train leaves at nine\n")
    terminal.sees('[noted] {"notes": 1, "text": "the train leaves at nine"}')
    terminal.sees("> ")
    terminal.types("help\n")
    terminal.sees("Tell me")
    terminal.process.send_signal(signal.SIGINT)
    terminal.sees("(stopped)")
    terminal.sees("> ")
    terminal.types("how often have we spoken?\n")
    # The stopped turn left nothing behind.
    terminal.sees("This is the 3rd thing")
    terminal.sees("> ")
    terminal.types("\x04")
    assert terminal.ends() == 0


def test_an_interruption_at_the_prompt_ends_with_130(target: str) -> None:
    terminal = Terminal("chat", "concierge/lobby", "--target", target)
    terminal.sees("> ")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.ends() == 130


def test_an_interrupted_watch_ends_with_130_and_has_told_what_it_saw(target: str) -> None:
    watch = subprocess.Popen(
        [*COMMAND, "watch", "--after", "0", "--json", "--target", target],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert watch.stdout is not None
    with watch.stdout:
        assert run("invoke", "counter/a", "add", "--target", target).stdout == "1\n"
        first, second = (json.loads(watch.stdout.readline()) for _ in range(2))
        assert [first["to_state"], second["to_state"]] == ["loading", "resident"]
        watch.send_signal(signal.SIGINT)
        assert watch.wait(FUSE) == 130


def test_a_table_on_a_terminal_leaves_out_what_is_empty(target: str) -> None:
    run("invoke", "counter/a", "add", "--target", target)
    terminal = Terminal("residents", "--target", target)
    terminal.sees("agent")
    terminal.sees("counter/a")
    assert terminal.ends() == 0
    piped = run("residents", "--target", target).stdout.splitlines()
    assert piped[0].split("\t")[:4] == ["agent", "runtime", "epoch", "state"]
    assert len({line.count("\t") for line in piped}) == 1
