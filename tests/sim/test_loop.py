"""The virtual loop: time, order, and processes that stop and end between any two steps."""

from __future__ import annotations

import asyncio

import pytest

from tests.chaos.loop import Process, VirtualLoop


def new_loop() -> VirtualLoop:
    return VirtualLoop((OSError,))  # type: ignore[abstract]


def run(loop: VirtualLoop, *processes: Process, until: float) -> None:
    done: list[bool] = []
    loop.world_at(until, done.append, True)
    try:
        loop.run(lambda: bool(done))
    finally:
        loop.end(processes)


def test_time_is_that_of_the_next_timer() -> None:
    loop, seen = new_loop(), list[tuple[str, float]]()

    async def work(name: str, seconds: float) -> None:
        for _ in range(2):
            await asyncio.sleep(seconds)
            seen.append((name, asyncio.get_running_loop().time()))

    process = Process(loop, "one")
    process.start(work("slow", 3600))
    process.start(work("quick", 5))
    run(loop, process, until=10_000)
    assert seen == [("quick", 5), ("quick", 10), ("slow", 3600), ("slow", 7200)]


def test_shipped_ways_to_wait_work() -> None:
    loop, seen = new_loop(), list[object]()

    async def work() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(7):
                await asyncio.Event().wait()
        seen.append(await asyncio.to_thread(loop.time))
        done, _ = await asyncio.wait([asyncio.create_task(asyncio.sleep(1, "slept"))], timeout=5)
        seen.append([task.result() for task in done])

    process = Process(loop, "one")
    process.start(work())
    run(loop, process, until=100)
    assert seen == [7, ["slept"]]


def test_a_killed_process_does_nothing_more_and_others_go_on() -> None:
    loop, seen = new_loop(), list[str]()

    async def work(name: str) -> None:
        try:
            while True:
                await asyncio.sleep(1)
                seen.append(name)
        finally:
            seen.append(f"{name} unwound")

    one, other = Process(loop, "one"), Process(loop, "other")
    for process in (one, other):
        process.start(work(process.name))
    loop.world_at(2.5, one.kill)
    done: list[bool] = []
    loop.world_at(4.5, done.append, True)
    loop.run(lambda: bool(done))
    assert seen == ["one", "other", "one", "other", "other", "other"]
    loop.end([one, other])  # only here, after all checks
    assert sorted(seen[6:]) == ["one unwound", "other unwound"]


def test_a_stopped_process_goes_on_where_it_was() -> None:
    loop, seen = new_loop(), list[tuple[float, float]]()

    async def work() -> None:
        before = loop.time()
        await asyncio.sleep(1)
        seen.append((before, loop.time()))

    process = Process(loop, "one")
    process.start(work())
    loop.world_at(0.5, process.freeze)
    loop.world_at(60, process.thaw)
    run(loop, process, until=100)
    assert seen == [(0, 60)]


def test_a_process_is_killed_at_a_step() -> None:
    loop, seen = new_loop(), list[int]()

    async def work() -> None:
        for number in range(10):
            seen.append(number)
            await asyncio.sleep(0)

    process = Process(loop, "one")
    process.start(work())
    process.kill_after(3, process.kill)
    run(loop, process, until=10)
    assert seen == [0, 1, 2]


def test_what_is_not_expected_is_a_fault() -> None:
    async def work(problem: Exception) -> None:
        raise problem

    for problem in (OSError("a link broke"), ZeroDivisionError()):
        loop = new_loop()
        process = Process(loop, "one")
        process.start(work(problem))
        if isinstance(problem, OSError):
            run(loop, process, until=1)
        else:
            with pytest.raises(ZeroDivisionError):
                run(loop, process, until=1)


def test_an_end_of_all_that_could_happen_is_a_fault() -> None:
    with pytest.raises(AssertionError, match="nothing is left"):
        new_loop().run(lambda: False)
