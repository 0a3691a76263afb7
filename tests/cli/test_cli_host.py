"""The commands against a real host: what they print, and how they end."""

from __future__ import annotations

import json

import pytest
from cli_kit import House

from innkeeper_client import errors

pytestmark = pytest.mark.usefixtures("house")


async def test_an_invoke_prints_what_the_action_returned(house: House) -> None:
    ended = await house.run("invoke", "guest/a", "add", "n=2")
    assert (ended.code, ended.out, ended.err) == (0, "2\n", "")
    ended = await house.run("invoke", "guest/a", "add", "--input", '{"n": 40}', "--json")
    assert ended.json["output"] == 42
    assert ended.json.keys() == {"output", "turn_id", "runtime_id", "replayed"}
    ended = await house.run("invoke", "guest/a", "show")
    assert json.loads(ended.out)["state"] == {"count": 42}


async def test_an_invoke_reads_its_input_from_a_pipe(house: House) -> None:
    assert (await house.run("invoke", "guest/a", "add", "-", input='{"n": 3}')).out == "3\n"
    assert (await house.run("invoke", "echo/a", "-", input="good day")).out == "good day \n"
    assert (await house.run("invoke", "echo/a", "--text", "-", input="[1]")).out == "[1] \n"


async def test_a_chat_streams_text_to_one_stream_and_the_rest_to_the_other(house: House) -> None:
    ended = await house.run("chat", "tally/a", "good", "day")
    assert (ended.code, ended.out) == (0, "good day \n")
    assert '[event] {"words": 2}' in ended.err


async def test_a_chat_in_json_is_one_event_a_line(house: House) -> None:
    ended = await house.run("chat", "tally/a", "--json", input="good day\n")
    lines = ended.lines
    cursors = [line.pop("cursor") for line in lines]
    assert [cursor.rsplit(":", 1)[1] for cursor in cursors] == ["1", "2", "3", "4"]
    assert lines == [
        {"event": "text", "text": "good "},
        {"event": "text", "text": "day "},
        {"event": "custom", "name": "event", "data": {"words": 2}},
        {"event": "completed", "output": None},
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["invoke", "guest/a", "add", "n=many"], 2, "INVALID_REQUEST"),
        (["invoke", "guest/a\x01"], 2, "INVALID_REQUEST"),
        (["invoke", "nobody/a"], 3, "UNKNOWN_AGENT_TYPE"),
        (["invoke", "guest/a", "fly"], 3, "NO_HANDLER"),
        (["chat", "guest/a", "hello"], 3, "NO_HANDLER"),
        (["agents", "guest/a"], 3, "AGENT_NOT_FOUND"),
        (["invoke", "guest/a", "fail"], 1, "HANDLER_FAILED"),
        (["invoke", "guest/a", "fail", "how=NOT_FOUND"], 1, "AGENT_ERROR"),
        (["evict", "guest/a"], 7, "NOT_RESIDENT"),
        (["health", "nobody.Knows"], 3, "INVALID_REQUEST"),
    ],
)
async def test_errors_end_with_their_codes_and_say_why(
    house: House, arguments: list[str], code: int, reason: str
) -> None:
    ended = await house.run(*arguments, "--json")
    assert ended.code == code
    assert f"[{reason}]" in ended.err.splitlines()[0]
    assert "secret" not in ended.err + ended.out
    told = ended.json["error"]
    assert (told["reason"], told["exit_code"]) == (reason, code)


async def test_a_wrong_argument_is_named(house: House) -> None:
    ended = await house.run("invoke", "guest/a", "add", "n=many", "--json")
    assert ended.json["error"]["violations"][0]["field"] == "input.n"


async def test_refusals_for_lack_of_room_end_with_4(house: House) -> None:
    async with house.holding("a") as held:
        busy = await house.run("invoke", "guest/a", "add", "--busy", "reject")
        assert (busy.code, "AGENT_BUSY" in busy.err) == (4, True)
        await house.run("pin", "guest/b", "--owner", "ops")
        full = await house.run("invoke", "guest/c", "add", "--timeout", "1")
        assert full.code == 4
        assert "guest/b: 1 pin (ops)" in full.err
        assert "innkeeper residents" in full.err
        late = await house.run("invoke", "guest/a", "add", "--timeout", "0.1")
        assert (late.code, "DEADLINE_EXCEEDED" in late.err) == (6, True)
        await house.run("unpin", "guest/b", "--all")
        house.gate.set()
        assert await held == "let go"


async def test_work_can_be_seen_explained_and_cancelled(house: House) -> None:
    async with house.holding("a") as held:
        (resident,) = (await house.run("residents", "--json")).json["residents"]
        assert (resident["busy"], resident["active_requests"]) == (True, 1)
        why = await house.run("why", "guest/a")
        assert why.out.startswith("guest/a cannot be evicted: 1 call")
        assert (await house.run("evict", "guest/a")).code == 7
        stopped = (await house.run("cancel", "guest/a", "--json")).json["cancelled"]
        assert [(work["kind"], work["was_running"]) for work in stopped] == [("invoke", True)]
        with pytest.raises(errors.WorkCancelled):
            await held
    assert "nothing to stop" in (await house.run("cancel", "guest/a", "--scope", "all")).err


async def test_a_call_with_a_key_runs_once(house: House) -> None:
    for _ in range(3):
        assert (await house.run("invoke", "guest/k", "add", "--key", "order-7")).out == "1\n"
    first = await house.run("followup", "echo/k", "once", "--key", "n", "--json")
    again = await house.run("followup", "echo/k", "once", "--key", "n", "--json")
    assert first.json["receipt"]["receipt_id"] == again.json["receipt"]["receipt_id"]
    other = await house.run("followup", "echo/k", "twice", "--key", "n")
    assert (other.code, "IDEMPOTENCY_MISMATCH" in other.err) == (7, True)


async def test_a_followup_prints_its_receipt_and_runs(house: House) -> None:
    ended = await house.run("followup", "echo/a", "later", "--expires-in", "60", "--json")
    assert ended.json["receipt"]["state"] == "accepted"
    assert (await house.run("followup", "echo/a", "-", input="later\n")).code == 0
    id = ended.json["receipt"]["receipt_id"]
    waited = await house.run("receipt", id, "--wait", "--json")
    assert (waited.code, waited.json["receipt"]["state"]) == (0, "completed")
    assert (await house.run("receipt", id)).out == f"{id}\tcompleted\nlater \n"
    missing = await house.run("receipt", "nobody")
    assert (missing.code, "RECEIPT_NOT_FOUND" in missing.err) == (3, True)


async def test_the_catalog_and_the_account_are_listed(house: House) -> None:
    for name in ("a", "b", "c"):
        await house.run("invoke", f"guest/{name}", "add")
    kinds = (await house.run("types", "--json")).json["agent_types"]
    assert [kind["type"] for kind in kinds] == ["echo", "guest", "tally"]
    assert "add(n)" in (await house.run("types")).out
    listed = await house.run("agents", "--json")
    assert [entry["agent"]["id"] for entry in listed.json["agents"]] == ["a", "b", "c"]
    assert [entry["resident"] for entry in listed.json["agents"]] == [False, True, True]
    some = await house.run("agents", "--limit", "2")
    assert len(some.out.splitlines()) == 3
    assert "more than 2" in some.err
    one = await house.run("agents", "guest/a", "--json")
    assert one.json["agent"]["state"] == {"count": 1}
    idle = await house.run("residents", "--order", "idle")
    first_cells = [line.split("\t")[0] for line in idle.out.splitlines()]
    assert first_cells == ["agent", "guest/b", "guest/c"]
    gone = await house.run("why", "guest/a", "--json")
    assert gone.json["resident"] is None
    assert gone.json["story"][-1]["to_state"] == ""


async def test_an_operator_steers(house: House) -> None:
    await house.run("invoke", "guest/a", "add")
    assert (await house.run("capacity")).out == "1 of 2 slots used\n"
    assert (await house.run("capacity", "3", "--json")).json == {"capacity": 3, "used": 1}
    pinned = (await house.run("pin", "guest/a", "--ttl", "60", "--json")).json
    assert (await house.run("unpin", "guest/a", "--json")).json == {"unpinned": 1}
    stale = await house.run("evict", "guest/a", "--runtime", "another")
    assert (stale.code, "STALE_RUNTIME" in stale.err) == (7, True)
    evicted = await house.run("evict", "guest/a", "--runtime", pinned["runtime_id"], "--json")
    assert evicted.json == {"runtime_id": pinned["runtime_id"], "stopped": True}
    assert (await house.run("delete", "guest/a", input="n\n")).code == 1
    assert (await house.run("delete", "guest/a", "--yes", "--json")).json == {"deleted": True}
    assert (await house.run("invoke", "guest/a", "add")).code == 3


async def test_a_drain_is_told_step_by_step_and_refuses_until_undone(house: House) -> None:
    await house.run("invoke", "guest/a", "add")
    assert (await house.run("health")).out == "serving\n"
    plan = await house.run("drain", "--dry-run", "--json")
    assert [line["step"] for line in plan.lines] == ["plan"]
    drained = await house.run("drain", "--deadline", "5", "--json")
    assert drained.code == 0
    assert [drained.lines[0]["step"], drained.lines[-1]["step"]] == ["plan", "report"]
    assert drained.lines[-1]["evicted"] == 1
    assert drained.lines[-1]["clean"]
    health = await house.run("health", "--json")
    assert (health.code, health.json["status"]) == (5, "not_serving")
    assert (await house.run("invoke", "guest/a", "add", "--timeout", "1")).code == 5
    assert (await house.run("undrain", "--json")).json == {"was_draining": True}
    assert (await house.run("invoke", "guest/a", "add")).out == "2\n"
