"""Fault scenarios, drawn from a seed: a small cluster, jobs, requests and timed faults.

All are in one list of events, so that a failing scenario can be reduced to the events that cause the failure.
"""

from __future__ import annotations

from random import Random
from typing import Any, Literal, get_args

import msgspec

from fairlead.core.resources import SECOND

Micros = int

Point = Literal["before", "failed", "unknown, written", "unknown, not written", "committed", "half told"]
"""Where in a turn the server is killed, or how its write to the journal fails."""
POINTS: tuple[Point, ...] = ("before", "failed", "unknown, written", "unknown, not written", "committed", "half told")

AgentFaultKind = Literal["break", "hang", "crash", "refuse", "slow", "resend", "overtake", "restart", "spawner"]
"""Faults of an agent and its machine.

- `break`: connections break or stand still
- `hang`: the agent is stopped for a while
- `crash`: the machine loses power
- `refuse`: no task can be started
- `slow`: the network is slow
- `resend`: connections end when reports have arrived and are not confirmed
- `overtake`: connections end while reports are under way; the reports arrive when the agent connects again
- `restart`: the agent is killed and started again
- `spawner`: a spawner is killed
"""
AGENT_FAULTS: tuple[AgentFaultKind, ...] = (
    "break", "hang", "crash", "refuse", "slow", "resend", "overtake", "restart", "spawner",
)  # fmt: skip

LeaderFaultKind = Literal[
    "pause", "pause in a turn", "suspend", "cut off", "cut off agents", "lose an answer", "drain", "restart", "database"
]
LEADER_FAULTS: tuple[LeaderFaultKind, ...] = get_args(LeaderFaultKind)

CloudFaultKind = Literal["late", "stuck", "fail", "unknown", "unlisted", "twice"]
CLOUD_FAULTS: tuple[CloudFaultKind, ...] = ("late", "late", "stuck", "fail", "fail", "unknown", "unlisted", "twice")

MachineFaultKind = Literal["vanish", "drain", "disable", "remove"] | AgentFaultKind
MACHINE_FAULTS: tuple[MachineFaultKind, ...] = (
    "vanish",
    "vanish",
    "vanish",
    "drain",
    "disable",
    "remove",
    *AGENT_FAULTS,
)

JobRequest = Literal["kill", "scale", "priority", "front", "hold", "release", "requeue"]
NodeRequest = Literal["drain", "disable", "enable", "configure", "remove"]
PoolRequest = Literal["pause pool", "resume pool", "scale pool", "resize pool"]
RequestKind = JobRequest | NodeRequest | PoolRequest


class Submission(msgspec.Struct, frozen=True, tag="submit"):
    at: Micros
    job: str
    document: dict[str, Any]
    durations: tuple[Micros, ...]
    """Run time of a task, by stage."""
    failing: int
    """Percent of the attempts that fail."""


class Request(msgspec.Struct, frozen=True, tag="request"):
    """A request of a user or operator; `target` is a job, a node or a pool.

    `configure` limits queue a to `value` CPUs, with 0 for no limit. `resize pool` sets the pool's `max`; 0 removes the
    pool. `remove` switches the machine off first; its agent comes back after a while.
    """

    at: Micros
    what: RequestKind
    target: str
    value: int = 0


class AgentFault(msgspec.Struct, frozen=True, tag="agent"):
    at: Micros
    node: str
    what: AgentFaultKind
    lasts: Micros


class ServerFault(msgspec.Struct, frozen=True, tag="server"):
    """Kills the server in its next turn and starts it again after `down`; `step` moves its wall clock.

    If the journal fails instead, the server stays up and recovers after `down`, when the journal can be opened again.
    """

    at: Micros
    point: Point
    down: Micros
    step: Micros


class LeaderFault(msgspec.Struct, frozen=True, tag="leader"):
    """A fault of one of several servers that share a journal, or of that journal.

    - `pause`, `pause in a turn`: the process stands still, at once or before its next write
    - `suspend`: its machine stands still, and its steady clock with it
    - `cut off`, `cut off agents`: the database, or agents, and the server do not reach each other
    - `lose an answer`: the connection to the database is lost before or after the next write
    - `drain`, `restart`: an operator drains the server, or restarts it
    - `database`: no server reaches the database
    """

    at: Micros
    what: LeaderFaultKind
    which: int
    """0 for the leader at that time, 1 for the next server, and so on."""
    lasts: Micros


class CloudFault(msgspec.Struct, frozen=True, tag="cloud"):
    """A fault of the cloud that lasts for a while.

    - `late`, `stuck`: machines come late, or never
    - `fail`: machines are refused
    - `unknown`: calls are not answered, whether done or not
    - `unlisted`: machines cannot be listed
    - `twice`: each request is carried out twice
    """

    at: Micros
    what: CloudFaultKind
    lasts: Micros


class MachineFault(msgspec.Struct, frozen=True, tag="machine"):
    """A fault of a machine of a pool. `which` selects one of the machines that the cloud has at that time."""

    at: Micros
    which: int
    what: MachineFaultKind
    lasts: Micros


Event = Submission | Request | AgentFault | ServerFault | LeaderFault | CloudFault | MachineFault


class Scenario(msgspec.Struct, frozen=True):
    seed: int
    config: dict[str, Any]
    nodes: dict[str, dict[str, int]]
    events: tuple[Event, ...]
    servers: int = 1


class Profile(msgspec.Struct, frozen=True):
    """The number of jobs, requests and faults in a scenario."""

    jobs: int = 14
    asks: int = 8
    agent_faults: int = 8
    server_faults: int = 3
    leader_faults: int = 0
    """If above 0, several servers share the journal."""
    span: Micros = 900 * SECOND


PROFILES = {
    "calm": Profile(agent_faults=0, server_faults=0),
    "agents": Profile(agent_faults=14, server_faults=0),
    "server": Profile(agent_faults=0, server_faults=8),
    "all": Profile(),
    "servers": Profile(agent_faults=6, server_faults=4, leader_faults=14),
    "storm": Profile(jobs=20, asks=16, agent_faults=25, server_faults=10),
}


WITH_POOLS = 0.3
"""Fraction of the scenarios with pools that grow and shrink."""


WITH_MIN_FREE = 0.3
"""Fraction of the pools that keep CPUs free."""

WITH_LOANS = 0.4
"""Fraction of the scenarios that take loans back."""


WITH_USERS = 0.4
"""Fraction of the scenarios in which more users take turns, mostly with past use."""

LEARNED = 0.4
"""Fraction of the scenarios with learned estimates."""
BY_JOBS = 0.15
"""Fraction of the scenarios with a queue in which jobs take turns."""

OTHER_BACKFILL = 0.2
"""Fraction of the scenarios with a mode of backfill other than `off` and `easy`."""


def draw_scenario(seed: int, profile: Profile) -> Scenario:
    rng = Random(seed)
    nodes = {f"n{at}": _node(rng) for at in range(rng.randint(2, 5))}
    jobs = [f"j{at}" for at in range(profile.jobs)]
    events: list[Event] = [_submission(rng, job, jobs[:at], profile.span) for at, job in enumerate(jobs)]
    events += [_asking(rng, jobs, list(nodes), profile.span) for _ in range(profile.asks)]
    events += [_agent_fault(rng, list(nodes), profile.span) for _ in range(profile.agent_faults)]
    events += [_server_fault(rng, profile.span) for _ in range(profile.server_faults)]
    config = _config(rng)
    # Pools have their own random generator, so that a seed gives the same scenario with and without pools.
    apart = Random(f"{seed} pools")
    if apart.random() < WITH_POOLS:
        pools = {name: _pool(apart) for name in ("p", "q")[: apart.randint(1, 2)]}
        config = {**config, **_pool_settings(apart), "pools": pools}
        spare = Random(f"{seed} min_free")
        for pool in pools.values():
            if spare.random() < WITH_MIN_FREE:
                pool["min_free"] = {"cpu": spare.randint(1, 2 * pool["node"]["cpu"])}
        nodes = dict(list(nodes.items())[: apart.choice((0, 1, 2, 5))])
        events = [_for_pools(apart, event, pools) for event in events if _concerns(event, nodes)]
        events += _pool_events(apart, profile, pools)
    # Loans too.
    apart = Random(f"{seed} loans and shares")
    if apart.random() < WITH_LOANS:
        config = {**config, **_loan_settings(apart)}
        config["queues"]["root"]["a"]["share"] = apart.choice((20, 50, 80))
        events += [_long_array(apart, f"l{at}", profile.span) for at in range(apart.randint(2, 4))]
    apart = Random(f"{seed} users")
    if apart.random() < WITH_USERS:
        config = {**config, "share_memory": apart.choice((0, "1min", "2min", "1h"))}
        config["queues"]["root"]["a"]["order"] = "fair"
        events = [_of_any_user(apart, event) if isinstance(event, Submission) else event for event in events]
    if Random(f"{seed} order").random() < BY_JOBS:
        config["queues"]["root"]["b"]["order"] = "jobs"
    apart = Random(f"{seed} backfill")
    if apart.random() < OTHER_BACKFILL:
        config = {**config, "backfill": apart.choice(("shortest", "conservative"))}
    if apart.random() < LEARNED:
        config = {**config, "estimates": "learned"}
    apart = Random(f"{seed} servers")
    servers = apart.choice((2, 3, 3)) if profile.leader_faults else 1
    events += [_leader_fault(apart, profile.span) for _ in range(profile.leader_faults)]
    return Scenario(seed, config, nodes, tuple(sorted(events, key=lambda event: event.at)), servers)


def _node(rng: Random) -> dict[str, int]:
    node = {"cpu": rng.choice((2, 4, 8))}
    return {**node, "gpu": 2} if rng.random() < 0.3 else node


def _config(rng: Random) -> dict[str, Any]:
    queues: dict[str, Any] = {
        "a": {"order": rng.choice(("priority", "fifo", "fair")), "share": 50},
        "b": {"order": rng.choice(("priority", "fifo", "fair")), "share": 50},
    }
    if rng.random() < 0.3:
        queues["b"]["guarantee"] = {"cpu": 2}
    if rng.random() < 0.5:
        queues["a"]["limit"] = {"cpu": rng.randint(4, 8)}
    if rng.random() < 0.3:
        queues["b"]["max_jobs"] = rng.randint(1, 3)
    return {
        "chain": 0,
        "place": rng.choice(("pack", "pack", "spread", "bestfit", "fgd")),
        "launch_timeout": "60s",
        "lease": "30s",
        "heartbeat": "5s",
        "ready_after": "20s",
        "replace_within": "60s",
        "max_launch_tries": 1_000,  # a failed launch is never the job's fault here
        "max_placed": rng.choice((3, 5000)),
        "starving_after": rng.choice(("5s", "20s", "2d")),
        "hold_for": rng.choice(("15s", "40s", "1d")),
        "held_nodes_percent": rng.choice((30, 50, 100)),
        "hold_large": rng.random() < 0.5,
        "backfill": "easy" if rng.random() < 0.3 else "off",
        "keep_ended": rng.choice(("60s", "1h")),
        "queues": {"root": queues},
        "requestors": [{"match": "", "queue": "root.a"}],
    }


def _submission(rng: Random, job: str, before: list[str], span: Micros) -> Submission:
    stages: list[dict[str, Any]] = []
    durations: list[Micros] = []
    for at in range(rng.choice((1, 1, 1, 2, 3))):
        count = rng.choice((1, 1, 2, 3, 4, 6))
        stage: dict[str, Any] = {"name": f"s{at}", "count": count, "resources": {"cpu": 1}}
        if rng.random() < 0.2:
            stage["resources"]["gpu"] = rng.choice((0.5, 1))
        if rng.random() < 0.4:
            stage["min"] = rng.randint(1, count)
        stage["tries"] = rng.choice((1, 2, 5))
        stage["on_loss"] = rng.choice(("replace", "replace", "restart", "fail"))
        stage["scaling"] = rng.choice(("strict", "partial"))
        stage["apart"] = rng.random() < 0.1
        if rng.random() < 0.2:
            stage["time_limit"] = f"{rng.randint(5, 200)}s"
        if rng.random() < 0.5:
            stage["estimate"] = f"{rng.randint(0, 100)}s"
        apart = Random(str(stage))  # does not alter what known seeds draw
        if apart.random() < 0.6:
            del stage["on_loss"]
        else:
            stage["on_failure"] = apart.choice(("replace", "restart", "restart", "fail"))
        stages.append(stage)
        durations.append(rng.choice((0, 1, 10, 30, 60, 200)) * SECOND + rng.randint(0, SECOND))
    document: dict[str, Any] = {
        "name": job,
        "preemptible": rng.random() < 0.8,
        "user": rng.choice(("ann", "bob")),
        "queue": rng.choice(("root.a", "root.b", "")),
        "priority": rng.randint(0, 2),
        "stages": stages,
        "gang": rng.choice(("stage", "stage", "job")),
    }
    if before and rng.random() < 0.15:
        document["after"] = [rng.choice(before)]
    return Submission(rng.randint(0, span), job, document, tuple(durations), rng.choice((0, 0, 5, 30)))


def _asking(rng: Random, jobs: list[str], nodes: list[str], span: Micros) -> Request:
    what: RequestKind = rng.choice(
        (
            "kill", "scale", "scale", "priority", "front", "hold", "hold", "release", "requeue",
            "drain", "disable", "enable", "configure", "remove",
        )
    )  # fmt: skip
    of_job = what in get_args(JobRequest)
    return Request(rng.randint(0, span), what, rng.choice(jobs if of_job else nodes), rng.randint(1, 6))


def _agent_fault(rng: Random, nodes: list[str], span: Micros) -> AgentFault:
    lasts = rng.choice((1, 5, 20, 40, 90, 200)) * SECOND + rng.randint(0, SECOND)
    return AgentFault(rng.randint(0, span), rng.choice(nodes), rng.choice(AGENT_FAULTS), lasts)


def _server_fault(rng: Random, span: Micros) -> ServerFault:
    step = rng.choice((0, 0, -3600, -5, 5, 3600)) * SECOND
    return ServerFault(rng.randint(0, span), rng.choice(POINTS), rng.choice((0, 1, 10, 60)) * SECOND, step)


def _leader_fault(rng: Random, span: Micros) -> LeaderFault:
    lasts = rng.choice((1, 4, 12, 30, 60)) * SECOND + rng.randint(0, SECOND)
    return LeaderFault(rng.randint(0, span), rng.choice(LEADER_FAULTS), rng.choice((0, 0, 0, 1, 2)), lasts)


# -- pools -------------------------------------------------------------------------------------------------------


def _pool(rng: Random) -> dict[str, Any]:
    node = {"cpu": rng.choice((2, 4, 12))}  # other nodes have at most 8
    if rng.random() < 0.4:
        node["gpu"] = 2
    pool: dict[str, Any] = {
        "node": node,
        "max": rng.randint(1, 5),
        "cost": rng.randint(1, 3),
        "provider": {"memory": {}},
    }
    pool["idle_for"] = rng.choice(("0s", "10s", "60s", "5min"))
    if rng.random() < 0.2:
        pool["min"] = 1
    if rng.random() < 0.2:
        pool["min_idle"] = 1
    if rng.random() < 0.2:
        pool["max_idle"] = 1
    return pool


def _pool_settings(rng: Random) -> dict[str, Any]:
    return {
        "promise_for": rng.choice(("40s", "3min")),
        "pool_pause": rng.choice(("1s", "5s", "30s")),
        "max_orders": rng.choice((3, 1_000)),
    }


def _loan_settings(rng: Random) -> dict[str, Any]:
    return {
        "rebalance_threshold": rng.choice((None, 1, 10, 30)),
        "rebalance_after": rng.choice(("5s", "20s", "60s")),
        "preempt_grace": rng.choice(("1s", "10s")),
        "recall_after": rng.choice(("0s", "1s", "5s")),
        "min_runtime": rng.choice((None, "0s", "10s", "2min")),
    }


def _long_array(rng: Random, job: str, span: Micros) -> Submission:
    """Draw a job of many long tasks, which borrow all free capacity."""
    resources = {"cpu": rng.choice((1, 1, 2))}
    stage = {"name": "s0", "count": rng.randint(4, 16), "min": 1, "tries": 5, "resources": resources}
    document: dict[str, Any] = {
        "name": job,
        "user": rng.choice(("ann", "bob")),
        "queue": rng.choice(("root.a", "root.b")),
        "priority": rng.randint(0, 1),
        "stages": [stage],
        "gang": "stage",
    }
    return Submission(rng.randint(0, span), job, document, (rng.randint(60, 400) * SECOND,), 0)


def _of_any_user(rng: Random, event: Submission) -> Submission:
    document = {**event.document, "user": rng.choice(("ann", "ann", "bob", "eve"))}
    return msgspec.structs.replace(event, document=document)


def _concerns(event: Event, nodes: dict[str, Any]) -> bool:
    """True if an event concerns jobs, the server, or an existing node."""
    if isinstance(event, AgentFault):
        return event.node in nodes
    return (
        not (isinstance(event, Request) and event.what in ("drain", "disable", "enable", "remove"))
        or event.target in nodes
    )


def _for_pools(rng: Random, event: Event, pools: dict[str, Any]) -> Event:
    """Make some jobs ask for capacity that only pools have."""
    if not isinstance(event, Submission):
        return event
    stages = [dict(stage) for stage in event.document["stages"]]
    for stage in stages:
        drawn = rng.random()
        if drawn < 0.3:
            stage["pool"] = rng.choice(sorted(pools))
        elif drawn < 0.5:
            largest = max(pool["node"]["cpu"] for pool in pools.values())
            stage["resources"] = {**stage["resources"], "cpu": rng.choice((2, largest))}
    return msgspec.structs.replace(event, document={**event.document, "stages": stages})


def _pool_events(rng: Random, profile: Profile, pools: dict[str, Any]) -> list[Event]:
    """Draw requests and faults of pools, in the numbers of the profile."""
    names = sorted(pools)
    events: list[Event] = [_pool_asking(rng, names, profile.span) for _ in range(profile.asks // 2)]
    events += [_cloud_fault(rng, profile.span) for _ in range(profile.agent_faults // 2)]
    events += [_machine_fault(rng, profile.span) for _ in range(profile.agent_faults // 2)]
    return events


def _pool_asking(rng: Random, pools: list[str], span: Micros) -> Request:
    what: PoolRequest = rng.choice(("pause pool", "resume pool", "scale pool", "scale pool", "resize pool"))
    return Request(rng.randint(0, span), what, rng.choice(pools), rng.randint(0, 5))


def _cloud_fault(rng: Random, span: Micros) -> CloudFault:
    return CloudFault(rng.randint(0, span), rng.choice(CLOUD_FAULTS), rng.choice((10, 60, 200)) * SECOND)


def _machine_fault(rng: Random, span: Micros) -> MachineFault:
    lasts = rng.choice((1, 5, 20, 40, 90, 200)) * SECOND + rng.randint(0, SECOND)
    return MachineFault(rng.randint(0, span), rng.randrange(10), rng.choice(MACHINE_FAULTS), lasts)
