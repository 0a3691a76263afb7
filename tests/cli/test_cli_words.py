"""How a command line is read, and how errors and values are printed; no host needed."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from typing import Any

import grpc
import pytest
import typer
from typer.testing import CliRunner

from innkeeper.v1 import common_pb2 as common_pb
from innkeeper_client import AgentRef, Blob, errors
from innkeeper_client.requests import ABSENT
from innkeeper_server.cli import output, talk
from innkeeper_server.cli.app import app
from innkeeper_server.cli.asking import address
from innkeeper_server.cli.exits import Exit, exit_of
from innkeeper_server.config import Settings

COMMANDS = sorted(str(command.callback.__name__) for command in app.registered_commands)  # type: ignore[union-attr]


def run(*arguments: str, input: str | None = None) -> Any:
    return CliRunner().invoke(app, arguments, input=input)


def test_the_commands_that_were_promised_exist() -> None:
    promised = (
        "serve demo invoke chat followup cancel agents residents why evict pin unpin drain "
        "undrain health capacity watch version types"
    )
    assert set(promised.split()) <= set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_and_can_speak_json(command: str) -> None:
    shown = run(command, "--help")
    assert shown.exit_code == 0
    if command not in {"serve", "demo"}:
        assert "--json" in shown.output


def test_every_setting_is_a_flag_of_serve_with_its_default() -> None:
    shown = " ".join(run("serve", "--help").output.replace("│", " ").split())
    for name, field in Settings.model_fields.items():
        assert f"--{name.replace('_', '-')}" in shown
        if type(field.default) in (int, float) and not name.endswith("_bytes"):
            assert f"(default {field.default:g})" in shown, name


def test_the_exit_codes_are_documented() -> None:
    shown = run("--help").output
    assert "Exit codes" in shown
    assert "130" in shown


@pytest.mark.parametrize(
    ("words", "action", "rest"),
    [
        ([], "", []),
        (["add"], "add", []),
        (["add", "n=2"], "add", ["n=2"]),
        (["n=2"], "", ["n=2"]),
        (["-"], "", ["-"]),
        (["add", "-"], "add", ["-"]),
    ],
)
def test_the_action_may_be_left_out(words: list[str], action: str, rest: list[str]) -> None:
    assert talk.split_words(words) == (action, rest)


def test_values_are_json_where_they_parse_and_text_where_not() -> None:
    words = ["n=2", "x=1.5", "on=true", "s=hello", "q=\"2\"", "l=[1,{}]", "e=", "p=a=b", "z=007",
             "nan=NaN", "none=null"]  # fmt: skip
    assert talk.named_arguments(words) == {
        "n": 2, "x": 1.5, "on": True, "s": "hello", "q": "2", "l": [1, {}], "e": "", "p": "a=b",
        "z": "007", "nan": "NaN", "none": None,
    }  # fmt: skip


@pytest.mark.parametrize("words", [["n"], ["=2"], ["n=1", "n=2"]])
def test_arguments_that_are_none_are_refused_by_name(words: list[str]) -> None:
    with pytest.raises(typer.BadParameter, match=r"NAME=VALUE|twice"):
        talk.named_arguments(words)


def test_the_whole_input_is_json_text_or_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    assert talk.whole_input([], None, None) is ABSENT
    assert talk.whole_input([], '{"n": 2}', None) == {"n": 2}
    assert talk.whole_input([], None, "2") == "2"
    for piped, read in (("[1]", [1]), ("plain words\n", "plain words\n")):
        monkeypatch.setattr("sys.stdin", io.StringIO(piped))
        assert talk.whole_input(["-"], None, None) == read
    with pytest.raises(typer.BadParameter, match="not JSON"):
        talk.whole_input([], "{", None)
    with pytest.raises(typer.BadParameter, match="one of them"):
        talk.whole_input(["n=2"], "{}", None)


def test_an_address_needs_an_id() -> None:
    assert address("counter/a") == AgentRef("counter", "a")
    with pytest.raises(typer.BadParameter, match="TYPE/ID"):
        address("counter/")


@pytest.mark.parametrize(
    "arguments",
    [
        ["invoke"],
        ["invoke", "counter/"],
        ["invoke", "counter/a", "add", "n"],
        ["invoke", "counter/a", "add", "n=2", "--input", "{}"],
        ["invoke", "counter/a", "add", "n=99999999999999999999"],
        ["invoke", "counter/a", "--timeout", "0"],
        ["cancel", "counter/a", "--scope", "turn", "--id", "x"],
        ["cancel", "counter/a", "--scope", "everything"],
        ["followup", "counter/a", "x", "--expires-in", "-1"],
        ["capacity", "0"],
        ["unpin", "counter/a", "--owner", "me", "--all"],
        ["nonsense"],
    ],
)
def test_wrong_usage_ends_with_2_and_says_why(arguments: list[str]) -> None:
    ended = run(*arguments)
    assert ended.exit_code == Exit.USAGE
    assert ended.stderr.strip()
    assert not ended.stdout


REASONS = {name.removeprefix("ERROR_REASON_") for name in common_pb.ErrorReason.keys()[1:]}
FAILURES = {
    "EVICTED", "CANCELLED", "AGENT_ERROR", "HANDLER_FAILED", "INTERNAL", "INTERRUPTED",
    "SLOW_READER", "TOO_LARGE", "SESSION_PROTOCOL", "UNKNOWN_METHOD", "START_FAILED",
    "DEAD_LETTERED",
}  # fmt: skip


@pytest.mark.parametrize("reason", sorted(REASONS))
def test_every_reason_has_an_exit_code_on_purpose(reason: str) -> None:
    code = grpc.StatusCode.INVALID_ARGUMENT if reason == "INVALID_REQUEST" else grpc.StatusCode.OK
    error = errors.InnkeeperError("no", reason=reason, code=code)
    assert (exit_of(error) is Exit.FAILED) == (reason in FAILURES)


def test_an_agents_own_not_found_is_a_failure_of_the_agent() -> None:
    error = errors.AgentError("no such book", code=grpc.StatusCode.NOT_FOUND)
    assert exit_of(error) is Exit.FAILED
    assert exit_of(errors.InnkeeperError("x", code=grpc.StatusCode.NOT_FOUND)) is Exit.NOT_FOUND


def test_an_agents_own_wrong_call_of_another_is_a_failure_of_the_agent() -> None:
    error = errors.UnknownAgentType("no such type", metadata={"through": "planner/a"})
    assert exit_of(error) is Exit.FAILED


def test_an_error_is_a_line_with_its_fields_and_hint(capsys: pytest.CaptureFixture[str]) -> None:
    error = errors.InvalidRequest(
        "two fields are wrong",
        code=grpc.StatusCode.INVALID_ARGUMENT,
        violations=(("input.n", "not a number"), ("agent.id", "must not\x1b[2J be empty")),
    )
    output.Output(as_json=True).error(error)
    out, err = capsys.readouterr()
    assert err.splitlines()[0].endswith("two fields are wrong [INVALID_REQUEST]")
    assert "  input.n: not a number" in err.splitlines()
    assert "\x1b[2J" not in err
    told = json.loads(out)["error"]
    assert told["reason"] == "INVALID_REQUEST"
    assert told["violations"][0] == {"field": "input.n", "description": "not a number"}
    assert told["exit_code"] == 2


def test_everything_the_client_gives_has_a_json_form() -> None:
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    given = {"a": AgentRef("t", "i"), "b": Blob(b"\x00", "x/y"), "c": (moment, 1.5, None)}
    assert json.loads(json.dumps(output.plain(given))) == {
        "a": {"type": "t", "id": "i"},
        "b": {"data": "AA==", "content_type": "x/y"},
        "c": ["2026-01-02T00:00:00+00:00", 1.5, None],
    }


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, ""), (0.04, "0 s"), (0.44, "0.4 s"), (119, "119 s"), (120, "2 min"), (9000, "2.5 h"),
     (200_000, "2.3 d")],
)  # fmt: skip
def test_lengths_of_time_are_short(seconds: float | None, words: str) -> None:
    assert output.span(seconds) == words


def test_a_pipe_gets_tab_separated_lines(capsys: pytest.CaptureFixture[str]) -> None:
    output.Output(as_json=False).table(["agent", "n>"], [(AgentRef("t", "a\tb"), 1), ("x", None)])
    assert capsys.readouterr().out == "agent\tn\nt/a b\t1\nx\t\n"


def test_an_unreachable_host_ends_with_5_and_a_hint(tmp_path: Any) -> None:
    ended = run("health", "--json", "--target", f"unix:{tmp_path}/nobody")
    assert ended.exit_code == Exit.UNAVAILABLE
    assert "no host answers" in ended.stderr
    assert "innkeeper serve" in ended.stderr
    assert json.loads(ended.stdout)["error"]["reason"] == "UNREACHABLE"


def test_the_version_is_told_without_a_host() -> None:
    assert json.loads(run("version", "--json").stdout).keys() == {"innkeeper", "python", "grpc"}
