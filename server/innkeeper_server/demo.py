"""Four agents to meet Innkeeper with: `innkeeper serve --agents innkeeper_server.demo`.

Owns nothing but examples, each of which shows one thing more than the one before: a plain function,
kept state with actions, a conversation, and agents that call each other. They need no model and no
network; where a real agent would ask one, the concierge has a few rules.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from innkeeper_server import Agent, AgentError, action

__all__ = ["Concierge", "Counter", "Planner", "echo"]

MAX_NOTES = 100
MAX_LINES = 200  # of a conversation that are kept


async def echo(message: str) -> AsyncIterator[str]:
    """Says what it hears, word by word."""
    for word in re.findall(r"\s*\S+", message):
        yield word


class Count(BaseModel):
    """What a counter keeps."""

    count: int = 0


class Counter(Agent[Count]):
    """Counts. Each counter has a number of its own, and calls to one run one by one."""

    @action
    async def add(self, n: int = 1) -> int:
        """Add to the count and return it."""
        self.state.count += n
        return self.state.count

    @action
    async def get(self) -> int:
        """The count."""
        return self.state.count


class Line(BaseModel):
    """One line of a conversation."""

    speaker: Literal["guest", "concierge"]
    text: str


class Stay(BaseModel):
    """What the concierge knows of a guest."""

    guest: str = ""
    notes: list[str] = []
    conversation: list[Line] = []
    turns: int = 0


class Concierge(Agent[Stay]):
    """Remembers who you are and what you asked it to note, for as long as you like.

    Try "I am Ada", "remember that the train leaves at nine", "what do you remember?", "who am I?".
    """

    pace = 0.03  # seconds between two words of a reply, so that one sees it stream

    async def chat(self, message: str) -> AsyncIterator[str]:
        """Answer one line of a conversation."""
        self.state.turns += 1
        self._log("guest", message)
        answer = self._answer(message.strip())
        self._log("concierge", answer)
        for word in re.findall(r"\s*\S+", answer):
            yield word
            await asyncio.sleep(self.pace)

    @action
    async def note(self, text: Annotated[str, Field(min_length=1, max_length=500)]) -> int:
        """Keep a note and return how many there are."""
        if len(self.state.notes) == MAX_NOTES:
            raise AgentError("RESOURCE_EXHAUSTED", f"my notebook is full: {MAX_NOTES} notes")
        self.state.notes.append(text)
        self.turn.emit({"text": text, "notes": len(self.state.notes)}, name="noted")
        return len(self.state.notes)

    @action
    async def notes(self) -> list[str]:
        """All notes, the oldest first."""
        return self.state.notes

    @action
    async def conversation(self, last: Annotated[int, Field(ge=1)] = 10) -> list[Line]:
        """The last lines that were said."""
        return self.state.conversation[-last:]

    @action
    def search(self, word: str) -> list[str]:
        """The notes with a word in them. A plain method: it runs in a thread."""
        return [note for note in self.state.notes if word.lower() in note.lower()]

    def _log(self, speaker: Literal["guest", "concierge"], text: str) -> None:
        self.state.conversation.append(Line(speaker=speaker, text=text))
        del self.state.conversation[:-MAX_LINES]

    def _answer(self, said: str) -> str:
        for pattern, reply in _RULES:
            if match := re.fullmatch(pattern, said, re.IGNORECASE | re.DOTALL):
                return str(getattr(self, reply)(*match.groups()))
        return self._small_talk(said)

    def _meet(self, name: str) -> str:
        before, self.state.guest = self.state.guest, name
        if before == name:
            return f"I know, {name}. How can I help?"
        return f"Welcome, {name}. I will remember you."

    def _who(self) -> str:
        if not self.state.guest:
            return "You have not told me your name yet. Who are you?"
        return f"You are {self.state.guest}, and we have spoken {_times(self.state.turns)}."

    def _keep(self, text: str) -> str:
        if len(self.state.notes) == MAX_NOTES:
            return "My notebook is full. Say “forget everything” and I begin a new one."
        self.state.notes.append(text)
        self.turn.emit({"text": text, "notes": len(self.state.notes)}, name="noted")
        return f"Noted: {text}."

    def _recall(self) -> str:
        if not self.state.notes:
            return "Nothing so far. Say “remember that …” and I will."
        return "I remember this: " + "; ".join(self.state.notes) + "."

    def _forget(self) -> str:
        forgotten, self.state.notes = len(self.state.notes), []
        return f"Done. I have torn {_pages(forgotten)} out of my notebook."

    def _count(self) -> str:
        return f"This is the {_ordinal(self.state.turns)} thing you have said to me."

    def _greet(self) -> str:
        if self.state.guest:
            return f"Good to see you again, {self.state.guest}. What can I do for you?"
        return "Good day, and welcome. May I ask your name?"

    def _part(self) -> str:
        guest = self.state.guest or "dear guest"
        return f"Goodbye, {guest}. I may nod off, but I forget nothing."

    def _help(self) -> str:
        return (
            "Tell me your name (“I am Ada”), have me note something (“remember that …”), "
            "ask “what do you remember?”, “who am I?” or “how often have we spoken?”, "
            "or say “forget everything”."
        )

    def _small_talk(self, said: str) -> str:
        if not said:
            return "I am listening."
        guest = f", {self.state.guest}" if self.state.guest else ""
        if said.endswith("?"):
            return f"That is beyond a concierge{guest}, I fear. Ask for “help” to see what I do."
        return f"I see{guest}. Shall I note it? Then say “remember that {_short(said)}”."


# What was said, and the method that answers; the first that fits.
_RULES = (
    (r"(?:hello|hi|hey|good (?:day|morning|evening))\b[\s!.,]*", "_greet"),
    (r"(?:goodbye|bye|good night|see you)\b.*", "_part"),
    (r"help\W*|what can you do\W*", "_help"),
    (r"(?:who am i|what is my name|what's my name)\W*", "_who"),
    (r"(?:hello|hi|hey)?[\s,!]*(?:my name is|i am called|call me)\s+(.+?)[\s.!]*", "_meet"),
    (r"(?:hello|hi|hey)?[\s,!]*(?:i am|i'm)\s+([A-Z][\w'-]*(?:\s+[A-Z][\w'-]*)*)[\s.!]*", "_meet"),
    (r"(?:what do you (?:remember|know)|what have you noted|(?:my )?notes)\b.*", "_recall"),
    (r"forget (?:everything|it all|my notes)\W*", "_forget"),
    (r"(?:please )?(?:remember|note)(?: that|:)?\s+(.+?)[\s.!]*", "_keep"),
    (r"how (?:often|many times)\b.*", "_count"),
)


class Plan(BaseModel):
    """What a planner keeps: how many errands it has handed out."""

    errands: int = 0


class Planner(Agent[Plan]):
    """Splits a list of errands, numbers each, and leaves it with the concierge.

    All planners draw their numbers from one counter, "errands"; the concierge is the one with the
    planner's own id.
    """

    async def chat(self, message: str) -> AsyncIterator[str]:
        """Take errands, separated by semicolons or new lines."""
        errands = [each.strip() for each in re.split(r"[;\n]", message) if each.strip()]
        if not errands:
            yield "Give me a few errands, such as: buy bread; call Ada; water the plants."
            return
        counter = self.host.agent("counter", "errands")
        concierge = self.host.agent("concierge", self.id)
        for errand in errands:
            number = await counter.invoke("add")
            await concierge.invoke("note", text=f"errand {number}: {errand}")
            self.state.errands += 1
            self.turn.emit({"number": number, "errand": errand}, name="handed_out")
            yield f"{number}. {errand}\n"
        yield f"The concierge has {'it' if len(errands) == 1 else 'them'} all."

    @action
    async def summary(self) -> str:
        """What was handed out, as the concierge has it."""
        notes = await self.host.agent("concierge", self.id).invoke("notes")
        return f"{self.state.errands} handed out; the concierge has: {'; '.join(notes) or 'none'}"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _pages(count: int) -> str:
    return {0: "no pages", 1: "one page"}.get(count, f"{count} pages")


def _ordinal(count: int) -> str:
    ending = "th" if 10 <= count % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(count % 10, "th")
    return f"{count}{ending}"


def _short(text: str) -> str:
    text = text.rstrip(" .!")
    return text if len(text) <= 40 else f"{text[:40].rstrip()}…"
