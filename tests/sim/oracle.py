"""FCFS and EASY on identical processors, implemented apart from the scheduler with plain lists, one pass at a time.

A job is (submit, run, processors, estimate), in the order of the queue. Each function returns the start of every job.
"""

from __future__ import annotations

Jobs = list[tuple[int, int, int, int]]


def fcfs(jobs: Jobs, machine: int) -> list[int]:
    return schedule(jobs, machine, backfill=False)


def easy(jobs: Jobs, machine: int) -> list[int]:
    return schedule(jobs, machine, backfill=True)


def schedule(jobs: Jobs, machine: int, backfill: bool) -> list[int]:
    starts = [-1] * len(jobs)
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
        for job in chosen(jobs, machine, waiting, running, now, starts, backfill):
            starts[job] = now
            waiting.remove(job)
            running.append((now + jobs[job][1], job))
    return starts


def chosen(
    jobs: Jobs,
    machine: int,
    waiting: list[int],
    running: list[tuple[int, int]],
    now: int,
    starts: list[int],
    backfill: bool,
) -> list[int]:
    """Return the jobs that start in one pass."""
    free = machine - sum(jobs[job][2] for _, job in running)
    begun: list[int] = []
    queue = list(waiting)
    while queue and jobs[queue[0]][2] <= free:
        free -= jobs[queue[0]][2]
        begun.append(queue.pop(0))
    if not queue or not backfill:
        return begun
    head = jobs[queue[0]][2]
    # By the estimates: the time at which the head fits, and the processors to spare then.
    ends = sorted(
        [(starts[job] + jobs[job][3], jobs[job][2]) for _, job in running]
        + [(now + jobs[job][3], jobs[job][2]) for job in begun]
    )
    room, shadow = free, now
    for end, processors in ends:
        room += processors
        if room >= head:
            shadow = end
            break
    spare = free + sum(processors for end, processors in ends if end <= shadow) - head
    for job in queue[1:]:
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
