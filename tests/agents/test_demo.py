"""The agents a newcomer meets: they do what their words promise."""

from typing import Any

import pytest
from agents_kit import SmallHost, carried_out, customs_of, text_of

from innkeeper_server.demo import MAX_NOTES, Concierge
from innkeeper_server.errors import AgentError
from innkeeper_server.identity import AgentKey
from innkeeper_server.registry import Registry


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> SmallHost:
    monkeypatch.setattr(Concierge, "pace", 0)
    return SmallHost(Registry.load(["innkeeper_server.demo"]))


async def talk(host: SmallHost, type: str, message: str, id: str = "ada") -> Any:
    bound = host.registry.resolve(type).bind_chat(message)
    output, said = await carried_out(bound, host.find(type, id))
    assert output == text_of(said)
    return output


async def ask(host: SmallHost, type: str, action: str, input: Any = None, id: str = "ada") -> Any:
    bound = host.registry.resolve(type).bind_invoke(action, input)
    return (await carried_out(bound, host.find(type, id)))[0]


def test_every_demo_agent_and_action_is_described(host: SmallHost) -> None:
    types = host.registry.types()
    assert [type.name for type in types] == ["concierge", "counter", "echo", "planner"]
    assert all(type.description for type in types)
    assert all(spec.description for type in types for spec in type.actions.values())


async def test_the_echo_says_what_it_hears_word_by_word(host: SmallHost) -> None:
    heard = "  good  morning,\nAda"
    bound = host.registry.resolve("echo").bind_chat(heard)
    output, said = await carried_out(bound, host.find("echo", "a"))
    assert output == heard
    assert len(said) == 3


async def test_each_counter_counts_for_itself(host: SmallHost) -> None:
    assert await ask(host, "counter", "add") == 1
    assert await ask(host, "counter", "add", {"n": 4}) == 5
    assert await ask(host, "counter", "get") == 5
    assert await ask(host, "counter", "get", id="bob") == 0


async def test_the_concierge_holds_a_conversation(host: SmallHost) -> None:
    lines = [
        ("hello", "Good day, and welcome. May I ask your name?"),
        ("who am I?", "You have not told me your name yet. Who are you?"),
        ("I am Ada Lovelace.", "Welcome, Ada Lovelace. I will remember you."),
        ("my name is Ada", "Welcome, Ada. I will remember you."),
        ("Hello, I'm Ada", "I know, Ada. How can I help?"),
        ("what do you remember?", "Nothing so far. Say “remember that …” and I will."),
        ("Remember that the train leaves at nine.", "Noted: the train leaves at nine."),
        ("note: towels", "Noted: towels."),
        (
            "what do you remember?",
            "I remember this: the train leaves at nine; towels.",
        ),
        ("who am i", "You are Ada, and we have spoken 10 times."),
        ("how often have we spoken?", "This is the 11th thing you have said to me."),
        ("Good evening!", "Good to see you again, Ada. What can I do for you?"),
        (
            "Where is the moon?",
            "That is beyond a concierge, Ada, I fear. Ask for “help” to see what I do.",
        ),
        (
            "It rains.",
            "I see, Ada. Shall I note it? Then say “remember that It rains”.",
        ),
        ("forget everything", "Done. I have torn 2 pages out of my notebook."),
        ("bye", "Goodbye, Ada. I may nod off, but I forget nothing."),
    ]
    for said, answer in lines:
        assert await talk(host, "concierge", said) == answer
    conversation = await ask(host, "concierge", "conversation", 2)
    assert conversation == [
        {"speaker": "guest", "text": "bye"},
        {"speaker": "concierge", "text": lines[-1][1]},
    ]
    assert "remember that" in await talk(host, "concierge", "help")


async def test_the_concierge_remembers_over_lives(host: SmallHost) -> None:
    await talk(host, "concierge", "I am Ada")
    type = host.registry.resolve("concierge")
    key = AgentKey("default", "concierge", "ada")
    stored = type.dump(host.living[key])
    host.living[key] = type.create(key, host, stored)
    assert await talk(host, "concierge", "who am I?") == "You are Ada, and we have spoken twice."


async def test_the_notebook_of_the_concierge_has_an_end(host: SmallHost) -> None:
    for n in range(MAX_NOTES):
        assert await ask(host, "concierge", "note", f"page {n}") == n + 1
    with pytest.raises(AgentError, match="notebook is full"):
        await ask(host, "concierge", "note", "one more")
    assert "is full" in await talk(host, "concierge", "remember that it is late")
    assert await ask(host, "concierge", "search", "PAGE 42") == ["page 42"]


async def test_the_planner_numbers_errands_and_leaves_them_with_the_concierge(
    host: SmallHost,
) -> None:
    bound = host.registry.resolve("planner").bind_chat("buy bread; call Ada;\nwater the plants")
    output, said = await carried_out(bound, host.find("planner", "ada"))
    assert output == ("1. buy bread\n2. call Ada\n3. water the plants\nThe concierge has them all.")
    assert customs_of(said)[1] == ("handed_out", {"number": 2, "errand": "call Ada"})
    assert await ask(host, "concierge", "notes") == [
        "errand 1: buy bread",
        "errand 2: call Ada",
        "errand 3: water the plants",
    ]
    assert await ask(host, "counter", "get", id="errands") == 3
    assert "3 handed out" in await ask(host, "planner", "summary")
    assert "Give me a few errands" in await talk(host, "planner", " ; ")
