"""Virtual time where it meets real threads, and what is told when a scenario fails."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from innkeeper_server.testing import Deadlock, Scene, VirtualLoop, explore, replay, run, settle
from innkeeper_server.testing.explorer import ScheduleFailed
from innkeeper_server.threads import in_thread


def test_no_virtual_time_passes_while_a_handler_s_thread_works() -> None:
    async def scenario() -> float:
        loop = asyncio.get_running_loop()
        began, goes_on = threading.Event(), threading.Event()

        def handler() -> str:
            began.set()
            goes_on.wait(60)
            return "done"

        alarm = loop.call_later(3600, lambda: None)
        # Opened by another thread, which waits until the handler's own is really at work.
        opener = threading.Thread(target=lambda: began.wait(60) and goes_on.set())
        opener.start()
        assert await in_thread(handler) == "done"
        opener.join()
        alarm.cancel()
        return loop.time()

    assert run(scenario()) == 0.0


def test_a_foreign_thread_is_waited_for_where_nothing_else_is_left_to_do() -> None:
    async def scenario() -> str:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[str] = loop.create_future()
        thread = threading.Thread(
            target=lambda: loop.call_soon_threadsafe(answer.set_result, "from outside")
        )
        thread.start()
        said = await answer
        thread.join()
        return said

    assert run(scenario()) == "from outside"


def test_what_goes_to_an_executor_runs_in_its_place() -> None:
    async def scenario() -> list[int]:
        return [await asyncio.to_thread(threading.get_ident), threading.get_ident()]

    there, here = run(scenario())
    assert there == here


def test_everything_that_needs_no_time_goes_on_before_it_is_quiet() -> None:
    async def scenario() -> tuple[int, float]:
        steps = [0]

        async def walk() -> None:
            for _ in range(500):
                await asyncio.sleep(0)
                steps[0] += 1
            await asyncio.sleep(1)
            steps[0] += 1

        task = asyncio.ensure_future(walk())
        await settle()
        seen = steps[0], asyncio.get_running_loop().time()
        await task
        return seen

    assert run(scenario()) == (500, 0.0)


def test_a_deadlock_names_the_innermost_place_first() -> None:
    async def inner() -> None:
        await asyncio.Event().wait()

    async def outer() -> None:
        await inner()

    with pytest.raises(Deadlock, match=r"wait line \d+ < inner line \d+ < outer line \d+"):
        run(outer())


def test_the_first_failure_is_told_also_where_the_scenario_cannot_be_ended() -> None:
    async def deaf() -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    async def scenario() -> None:
        task = asyncio.ensure_future(deaf())
        await asyncio.sleep(0)
        raise ValueError(f"the cause, not {task.get_name()}")

    with pytest.raises(ValueError, match="the cause"):
        run(scenario())


def test_an_invariant_that_fails_is_asked_no_more() -> None:
    asked: list[int] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)

        def check() -> None:
            asked.append(1)
            raise AssertionError("broken")

        loop.after_step = check
        await asyncio.sleep(1)

    with pytest.raises(AssertionError, match="broken"):
        run(scenario())
    assert len(asked) == 1


async def only_backwards(scene: Scene) -> None:
    """Fails where the last of three goes first, and the first of them last."""
    said: list[str] = []

    async def say(word: str) -> None:
        said.append(word)

    crowd = [asyncio.ensure_future(asyncio.sleep(0)) for _ in range(3)]
    await asyncio.gather(*(say(word) for word in "abc"), *crowd)
    assert said != ["c", "b", "a"], "backwards"


def test_a_failing_walk_is_told_without_what_does_not_matter() -> None:
    with pytest.raises(ScheduleFailed, match="backwards") as found:
        explore(only_backwards, deviations=0, walks=2_000)
    assert 1 <= len(found.value.schedule.split(",")) <= 3
    with pytest.raises(AssertionError, match="backwards"):
        replay(only_backwards, found.value.schedule)


def test_both_of_two_deviations_are_searched_and_the_same_search_repeats() -> None:
    def search() -> tuple[str, Any]:
        with pytest.raises(ScheduleFailed) as found:
            explore(only_backwards, deviations=2, walks=0, most=5_000)
        return found.value.schedule, str(found.value)

    first = search()
    assert first == search()
    assert len(first[0].split(",")) == 2
    explore(only_backwards, deviations=1, walks=0, most=5_000)
