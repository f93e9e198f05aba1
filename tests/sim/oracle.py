"""FCFS and backfill on identical processors, implemented apart from the scheduler with plain lists, one pass at a time.

A job is (submit, run, processors, estimate), in the order of the queue. Each function returns the start of every job.
No job runs longer than its estimate. Every schedule is checked: the first job of the queue starts no later than it was
planned when it became the first.
"""

from __future__ import annotations

from typing import Literal

Mode = Literal["off", "easy", "shortest", "conservative"]
Jobs = list[tuple[int, int, int, int]]


def fcfs(jobs: Jobs, machine: int) -> list[int]:
    return schedule(jobs, machine, "off")


def easy(jobs: Jobs, machine: int) -> list[int]:
    return schedule(jobs, machine, "easy")


def schedule(jobs: Jobs, machine: int, mode: Mode) -> list[int]:
    starts = [-1] * len(jobs)
    planned: dict[int, int] = {}
    waiting: list[int] = []
    running: list[tuple[int, int]] = []  # end, job
    coming = 0
    while coming < len(jobs) or waiting or running:
        times = [end for end, _ in running]
        if coming < len(jobs):
            times.append(jobs[coming][0])
        now = min(times)
        running = [(end, job) for end, job in running if end > now]
        while coming < len(jobs) and jobs[coming][0] <= now:
            waiting.append(coming)
            coming += 1
        if mode == "conservative":
            begun = planned_now(jobs, machine, waiting, running, now, starts)
        else:
            begun = chosen(jobs, machine, waiting, running, now, starts, mode)
        for job in begun:
            starts[job] = now
            assert now <= planned.get(job, now), f"job {job} starts at {now}, planned for {planned[job]}"
            waiting.remove(job)
            running.append((now + jobs[job][1], job))
        if waiting:
            free = machine - sum(jobs[job][2] for _, job in running)
            head = jobs[waiting[0]][2]
            planned.setdefault(waiting[0], shadow_of(head, free, expected(jobs, running, starts), now)[0])
    return starts


def chosen(
    jobs: Jobs,
    machine: int,
    waiting: list[int],
    running: list[tuple[int, int]],
    now: int,
    starts: list[int],
    mode: Mode,
) -> list[int]:
    """Return the jobs that start in one pass."""
    free = machine - sum(jobs[job][2] for _, job in running)
    begun: list[int] = []
    queue = list(waiting)
    while queue and jobs[queue[0]][2] <= free:
        free -= jobs[queue[0]][2]
        begun.append(queue.pop(0))
    if not queue or mode == "off":
        return begun
    ends = expected(jobs, running, starts) + [(now + jobs[job][3], jobs[job][2]) for job in begun]
    shadow, spare = shadow_of(jobs[queue[0]][2], free, ends, now)
    behind = queue[1:]
    if mode == "shortest":
        behind.sort(key=lambda job: jobs[job][3])
    for job in behind:
        _, _, processors, estimate = jobs[job]
        if processors > free:
            continue
        if now + estimate > shadow:
            if processors > spare:
                continue
            spare -= processors
        free -= processors
        begun.append(job)
    return begun


def expected(jobs: Jobs, running: list[tuple[int, int]], starts: list[int]) -> list[tuple[int, int]]:
    """Return the ends of running jobs by their estimates, and their processors."""
    return [(starts[job] + jobs[job][3], jobs[job][2]) for _, job in running]


def shadow_of(wanted: int, free: int, ends: list[tuple[int, int]], now: int) -> tuple[int, int]:
    """Return when a number of processors is free by the estimates, and those to spare then."""
    room, shadow = free, now
    for end, processors in sorted(ends):
        room += processors
        if room >= wanted:
            shadow = end
            break
    return shadow, free + sum(processors for end, processors in ends if end <= shadow) - wanted


def planned_now(
    jobs: Jobs, machine: int, waiting: list[int], running: list[tuple[int, int]], now: int, starts: list[int]
) -> list[int]:
    """Plan all waiting jobs one after another, each as early as it fits; return those that are planned for now."""
    uses = [(now, starts[job] + jobs[job][3], jobs[job][2]) for _, job in running]  # from, to, processors
    begun: list[int] = []
    for job in waiting:
        _, _, processors, estimate = jobs[job]
        for when in sorted({now, *[end for _, end, _ in uses if end > now]}):
            instants = [when, *[since for since, _, _ in uses if when < since < when + estimate]]
            used = [sum(taken for since, to, taken in uses if since <= at < to) for at in instants]
            if max(used) + processors <= machine:
                uses.append((when, when + max(estimate, 1), processors))
                if when == now:
                    begun.append(job)
                break
    return begun
