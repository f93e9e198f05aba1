"""Refused input: each case has its exact message, which names the field and the remedy, and changes nothing.

The tables list the input for the world that `world` builds, by kind: jobs, nodes, configurations, commands, and items
of a resource manager's update.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest

from fairlead.core.commands import (
    Accepted,
    AddNode,
    BringToFront,
    CancelAsk,
    Configure,
    HoldJob,
    Kill,
    MarkReady,
    MoveNode,
    MoveQueue,
    RegisterManager,
    Rejected,
    ReleaseHold,
    ReleaseJob,
    RemoveManager,
    RemoveNode,
    RemovePartition,
    Report,
    Requeue,
    ResetLane,
    Scale,
    SetPriority,
    Submit,
    UpdateManager,
    UpdateNode,
)
from fairlead.core.config import parse_config
from fairlead.core.documents import parse_job, parse_node
from fairlead.core.errors import Refused
from fairlead.core.settings import DEFAULT_CONFIG
from fairlead.journal.in_memory import MemoryJournal
from fairlead.pools.provider import check_providers
from fairlead.testing import World
from fairlead.writer.writer import Writer

LONG = "x" * 10_000_000
NOT_A_NAME = (
    "is not a name; a name has 1 to 63 letters, digits or . _ @ + - and starts with a letter or digit, "
    "without two dots in a row"
)
NOT_A_QUEUE = "is not a queue's name; use 1 to 63 letters, digits or _ @ + - and no dots"
JOB_KEYS = (
    "it has after, begin, done_when, gang, groups, hold, labels, name, notify, notify_on, preemptible, preempts, "
    "priority, queue, singleton, stages, user"
)
STAGE_KEYS = (
    "it has apart, array, command, count, directory, environment, error, estimate, grace, image, min, mounts, name, "
    "near, on_failure, on_loss, output, parameters, pool, prefer, pty, resources, results, scaling, secrets, "
    "selectors, signal, snapshot, stdin, throttle, time_limit, tolerations, tries, where"
)
EXPRESSIONS = (
    "write label, !label, label = value, label != value, label in (one, two), label notin (one, two), label > 8 or "
    "label < 8, separated by commas"
)
NODE_KEYS = "it has labels, name, pool, resources, taints, users"
PARTITION_KEYS = (
    "it has backfill, batch_window, chain, checks, estimates, fence, heartbeat, held_nodes_percent, hold_for, "
    "hold_large, hold_score, keep_ended, keep_keys, launch_timeout, lease, max_batch, max_launch_tries, max_orders, "
    "max_placed, max_queued_bytes, max_queued_jobs, max_result_bytes, max_result_files, min_runtime, place, "
    "pool_pause, pools, preempt, preempt_grace, promise_for, queues, ready_after, rebalance_after, "
    "rebalance_threshold, recall_after, replace_within, requestors, seed, share_memory, starving_after, unit, victims"
)
QUEUE_KEYS = (
    "it has share, guarantee, limit, max_jobs, order, scale_first, preemptible, submit, admin, users, "
    "groups, max_priority, max_grace, and other queues as mappings"
)
A_DURATION = (
    "is not a duration; write seconds, numbers with us, ms, s, min, h or d such as 50ms, 5min or 1h30min, "
    "or hours as 01:30:00"
)
A_COUNT = "is not accepted; write a whole number from 1 to 10000000"
A_CPU = "is not an amount of cpu; write a number such as 2, 0.5 or 500m"
A_SIZE = "is not an amount of memory; write bytes or a size such as 512Mi, 8Gi or 5GB"
LEAVES = "name one of root.a, root.b.c, root.b.d, root.closed, root.leaving, root.stopped"

QUEUES: dict[str, Any] = {
    "root": {
        "a": {"share": 60, "admin": ["boss"]},
        "b": {"c": {}, "d": {}},
        "closed": {"submit": ["@ml", "eve"]},
        "stopped": {},
    }
}


def world() -> World:
    """Two running jobs and an ended one, two resource managers, a stopped queue and a draining one."""
    w = World({"queues": {"root": {**QUEUES["root"], "leaving": {}}}})
    w.node("n1", cpu=8, memory="16Gi", gpu=2)
    w.submit(name="run", queue="root.a", user="ann", key="once", stages=[{"name": "w", "resources": {"cpu": 1}}])
    w.submit(name="dead", queue="root.a", user="ann", stages=[{"name": "w"}])
    w.submit(name="last", queue="root.leaving", stages=[{"resources": {"cpu": 1}}])
    w.stop_queue("root.stopped")
    for name in ("k8s", "slurm"):
        w.rm(name).register()
        w.rm(name).update(
            nodes=[{"name": f"{name}-n", "resources": {"cpu": 4}}],
            jobs=[{"job": f"{name}-j", "queue": "root.a"}],
            asks=[{"job": f"{name}-j", "ask": "x", "count": 2, "resources": {"cpu": 1}}],
        )
    w.cycle()
    w.kill("dead")
    w.cycle()
    w.configure({"queues": QUEUES})
    w.cycle()
    w.cycle()
    w.rm("k8s").events()
    w.answers()
    return w


def send(w: World, command: Any) -> Any:
    (answer,) = w.cluster.writers["default"].cycle([command], w.now).answers
    return answer


def submit(w: World, doc: object, job_id: str = "") -> Any:
    spec = parse_job(doc)
    return send(w, Submit(spec=spec, id=job_id, user=spec.user, groups=spec.groups))


def add_node(w: World, doc: object) -> Any:
    name, spec = parse_node(doc)
    return send(w, AddNode(name=name, spec=spec, operator=True))


def configure(w: World, doc: object) -> Any:
    return w.cluster.configure(parse_config(doc), w.now)


def update(w: World, items: Mapping[str, Any]) -> Any:
    """Send one item, and return its refusal."""
    parts: dict[str, Any] = {key: (item,) for key, item in items.items()}
    answer = send(w, UpdateManager(name="k8s", operator=True, **parts))
    (item,) = answer.items
    return item.reason if not item.accepted else item


def check(act: Callable[[World], Any], message: str) -> None:
    w = world()
    before = (w.dump(), w.cluster.configured)
    try:
        answer = act(w)
    except Refused as refusal:
        answer = str(refusal)
    assert str(answer) == message
    assert len(message) < 650
    assert (w.dump(), w.cluster.configured) == before
    w.check()


def job(stage: Mapping[str, Any] | None = None, **rest: Any) -> dict[str, Any]:
    return {"queue": "root.a", "user": "ann", "stages": [{"name": "w", **(stage or {})}], **rest}


def need(**resources: Any) -> dict[str, Any]:
    return job({"resources": resources})


JOBS: dict[str, tuple[object, str]] = {
    "not a mapping": (["x"], "job: a list is not a mapping; a job is written as key: value pairs"),
    "a number as key": ({1: 2}, "job: the key 1 is not text; write it in quotes"),
    "no stages": ({"queue": "root.a"}, "stages: a job needs at least one stage; write a list of stages"),
    "stages are no list": ({"stages": {"name": "w"}}, "stages: a job needs at least one stage; write a list of stages"),
    "an empty list of stages": ({"stages": []}, "stages: a job needs at least one stage; write a list of stages"),
    "too many stages": ({"stages": [{}] * 1001}, "stages: 1001 stages are too many; at most 1000 are allowed"),
    "a stage is a text": ({"stages": ["w"]}, 'stages[0]: "w" is not a mapping; a stage is written as key: value pairs'),
    "an unknown key": (job(queu="root.a"), f"queu: a job has no such key (did you mean queue?); {JOB_KEYS}"),
    "an unknown key of a stage": (
        job({"resource": {"cpu": 1}}),
        f"stages[0].resource: a stage has no such key (did you mean resources?); {STAGE_KEYS}",
    ),
    "a key nothing is close to": (job({"zzz": 1}), f"stages[0].zzz: a stage has no such key; {STAGE_KEYS}"),
    "a long unknown key": (job({LONG: 1}), f"stages[0].{LONG[:100]}…: a stage has no such key; {STAGE_KEYS}"),
    "an unknown key over two lines": (job({"a\nb": 1}), f"stages[0].a?b: a stage has no such key; {STAGE_KEYS}"),
    "duplicate stages": (
        {"stages": [{"name": "w"}, {"name": "v"}, {"name": "w"}]},
        'stages[2].name: "w" is also the name of stage 0; give each stage its own',
    ),
    "stages without names": (
        {"stages": [{}, {}]},
        'stages[1].name: "main" is also the name of stage 0; give each stage its own',
    ),
    "an empty gang": (job({"count": 0}), f"stages[0].count: 0 {A_COUNT}"),
    "a negative count": (job({"count": -1}), f"stages[0].count: -1 {A_COUNT}"),
    "a count as text": (job({"count": "3"}), f'stages[0].count: "3" {A_COUNT}'),
    "a count with a fraction": (job({"count": 2.0}), f"stages[0].count: 2.0 {A_COUNT}"),
    "true for a count": (job({"count": True}), f"stages[0].count: true {A_COUNT}"),
    "a huge count": (job({"count": 10**400}), f"stages[0].count: a number of 1329 bits {A_COUNT}"),
    "min above count": (job({"count": 2, "min": 3}), "stages[0].min: 3 is more than the count 2; write at most 2"),
    "min 0": (job({"count": 2, "min": 0}), f"stages[0].min: 0 {A_COUNT}"),
    "a file name with an unknown code": (
        job({"output": "out-%j-%%-%x"}),
        'stages[0].output: %x in "out-%j-%%-%x" stands for nothing; write %j for the id of the job, %s for the stage, '
        "%a for the index of the task, %r for its attempt, or %% for a percent sign",
    ),
    "a directory that depends on another": (
        job({"directory": "data"}),
        'stages[0].directory: "data" is not an absolute path; write one that starts with /',
    ),
    "a secret without a name": (
        job({"secrets": {"TOKEN": ""}}),
        f'stages[0].secrets.TOKEN: "" {NOT_A_NAME}',
    ),
    "negative cpu": (need(cpu=-1), "stages[0].resources.cpu: -1 is negative; write 0 or more"),
    "huge cpu": (need(cpu=1e308), "stages[0].resources.cpu: 1e+308 is too large; write at most 1125899906842.624"),
    "cpu is not a number": (need(cpu=float("nan")), f"stages[0].resources.cpu: nan {A_CPU}"),
    "infinite memory": (need(memory=float("inf")), f"stages[0].resources.memory: inf {A_SIZE}"),
    "a wrong unit": (need(memory="8Gb"), f'stages[0].resources.memory: "8Gb" {A_SIZE}'),
    "a unit of time": (need(cpu="2h"), f'stages[0].resources.cpu: "2h" {A_CPU}'),
    "cpu too fine": (
        need(cpu=0.0001),
        "stages[0].resources.cpu: 0.0001 is finer than 0.001; round it to a multiple of 0.001",
    ),
    "a long amount": (
        need(cpu="9" * 1000),
        'stages[0].resources.cpu: "9999999999999999999999999999999999999999…" is too long; write at most 40 characters',
    ),
    "cpu as a list": (need(cpu=[1]), f"stages[0].resources.cpu: a list {A_CPU}"),
    "true for cpu": (need(cpu=True), f"stages[0].resources.cpu: true {A_CPU}"),
    "null for cpu": (need(cpu=None), f"stages[0].resources.cpu: null {A_CPU}"),
    "one and a half gpus": (
        need(gpu=1.5),
        "stages[0].resources.gpu: a task takes whole GPUs or a part of one: write 1, 2 or a fraction below 1",
    ),
    "more gpus than a node can have": (
        need(gpu=10**9),
        "stages[0].resources.gpu: 1000000000 is more than one node can have; write at most 1024",
    ),
    "an unknown resource": (
        need(gppu=1),
        "stages[0].resources.gppu: no node or pool offers it (did you mean gpu?); known are cpu, gpu, memory",
    ),
    "a resource in capitals": (
        need(CPU=1),
        'stages[0].resources: "CPU" is not a resource name; write a lower-case letter, then up to 62 of '
        "a-z, 0-9, '.', '_', '/' and '-'",
    ),
    "resources as a text": (
        job({"resources": "1 cpu"}),
        'stages[0].resources: "1 cpu" is not a set of resources; write names with amounts such as cpu: 2',
    ),
    "too many resources": (
        need(**{f"r{at}": 1 for at in range(101)}),
        "stages[0].resources: 101 resources are too many; write at most 100",
    ),
    "a name with a path": (job(name="../x"), f'name: "../x" {NOT_A_NAME}'),
    "a name with a slash": (job(name="a/b"), f'name: "a/b" {NOT_A_NAME}'),
    "a name with two dots": (job(name="a..b"), f'name: "a..b" {NOT_A_NAME}'),
    "a name with a zero": (job(name="a\0b"), f'name: "a?b" {NOT_A_NAME}'),
    "a name over two lines": (job(name="a\nb"), f'name: "a?b" {NOT_A_NAME}'),
    "a name that ends in a newline": (job(name="a\n"), f'name: "a?" {NOT_A_NAME}'),
    "a name with half a pair": (job(name="a\ud800"), f'name: "a?" {NOT_A_NAME}'),
    "an empty name": (job(name=""), f'name: "" {NOT_A_NAME}'),
    "a long name": (job(name=LONG), f'name: "{LONG[:40]}…" {NOT_A_NAME}'),
    "a number for a name": (
        job(name=7),
        "name: 7 is not text; a name has 1 to 63 letters, digits or . _ @ + - and starts with a letter or digit",
    ),
    "a path for a stage": ({"stages": [{"name": "../w"}]}, f'stages[0].name: "../w" {NOT_A_NAME}'),
    "a user with a slash": (job(user="a/b"), f'user: "a/b" {NOT_A_NAME}'),
    "a long queue": (job(queue=LONG), "queue: 10000000 characters are too many; at most 1000 are allowed"),
    "an unknown queue": (job(queue="root.aa"), f'queue: there is no queue "root.aa" (did you mean root.a?); {LEAVES}'),
    "a queue with a path": (
        job(queue="root.a/../b"),
        f'queue: there is no queue "root.a/../b" (did you mean root.a?); {LEAVES}',
    ),
    "a parent queue": (
        job(queue="root.b"),
        "queue: root.b has queues below it and takes no jobs; name one of root.b.c, root.b.d",
    ),
    "the root": (job(queue="root"), f"queue: root has queues below it and takes no jobs; {LEAVES}"),
    "a stopped queue": (
        job(queue="root.stopped"),
        "queue: root.stopped is stopped and takes no new jobs; name another one",
    ),
    "a draining queue": (
        job(queue="root.leaving"),
        "queue: root.leaving is draining and takes no new jobs; name another one",
    ),
    "no queue and no pattern": (
        job(queue=None),
        f"queue: missing, and no requestor pattern matches user ann; {LEAVES}",
    ),
    "a queue that lists others": (
        job(queue="root.closed"),
        "queue: user ann may not submit to root.closed; ask for an entry in its submit list, or name another queue",
    ),
    "a priority that is too high": (
        job(priority=2**31),
        "priority: 2147483648 is not accepted; write a whole number from -2147483648 to 2147483647",
    ),
    "a priority as text": (
        job(priority="high"),
        'priority: "high" is not accepted; write a whole number from -2147483648 to 2147483647',
    ),
    "after itself": (job(after=["x"]), "after[0]: a job cannot come after itself; leave it out"),
    "after an unknown job": (
        job(after=["missing"]),
        'after[0]: there is no job "missing" in this partition; name one that is known',
    ),
    "after an unknown end": (
        job(after=["run", "dead:late"]),
        'after[1]: "dead:late" has no known condition; write dead or one of dead:ok, dead:any, dead:failed, '
        "dead:started, dead:each",
    ),
    "each task after one that is none": (
        job(after=["dead:each"]),
        "after[0]: only the tasks of an array can follow those of another job; leave :each out to wait for the whole "
        "job",
    ),
    "after as a text": (job(after="run"), 'after: "run" is not a list; write [one, two]'),
    "an unknown gang": (job(gang="all"), 'gang: "all" is not one of stage, job; write one of them'),
    "preemptible as a text": (job(preemptible="no"), 'preemptible: "no" is neither true nor false; write one of them'),
    "a label with a space": (
        job(labels={"a b": "c"}),
        'labels: "a b" is not a label; use letters, digits and . _ / - (at most 127)',
    ),
    "a label that is a number": (job(labels={"a": 1}), "labels.a: 1 is not text; write it in quotes"),
    "a command as a text": (job({"command": "run it"}), 'stages[0].command: "run it" is not a list; write [one, two]'),
    "a number in a command": (
        job({"command": ["sleep", 5]}),
        "stages[0].command[1]: 5 is not text; write it in quotes",
    ),
    "a zero in a command": (
        job({"command": ["a\0"]}),
        "stages[0].command[0]: a zero character is not allowed; remove it",
    ),
    "half a pair in a command": (
        job({"command": ["\ud800"]}),
        "stages[0].command[0]: half a surrogate pair is not a character; remove it",
    ),
    "a long command": (
        job({"command": [LONG]}),
        "stages[0].command[0]: 10000000 characters are too many; at most 131072 are allowed",
    ),
    "a command repeated by an anchor": (
        job({"command": ["x" * 100_000] * 1000}),
        "stages: 100000000 characters are too many for a job; write at most 2097152",
    ),
    "a variable with a digit first": (
        job({"environment": {"1A": "b"}}),
        'stages[0].environment: "1A" is not a variable\'s name; use letters, digits and _ , not a digit first',
    ),
    "a duration in weeks": (job({"estimate": "5w"}), f'stages[0].estimate: "5w" {A_DURATION}'),
    "a negative duration": (job({"estimate": -5}), "stages[0].estimate: -5 is negative; write 0 or more"),
    "a duration of ages": (
        job({"time_limit": "999999h"}),
        'stages[0].time_limit: "999999h" is too large; write at most 36525d',
    ),
    "no time at all": (
        job({"time_limit": 0}),
        "stages[0].time_limit: 0 would end every task at once; leave it out for no limit",
    ),
    "no tries": (job({"tries": 0}), "stages[0].tries: 0 is not accepted; write a whole number from 1 to 1000"),
    "count beside array": (
        job({"array": 2, "count": 2}),
        "stages[0].count: it stands beside array, which means count: 2 and min: 1; write array alone for tasks that "
        "start one by one, or count alone for tasks that start together",
    ),
    "min beside array": (
        job({"array": 2, "min": 2}),
        "stages[0].min: it stands beside array, which means count: 2 and min: 1; write array alone for tasks that "
        "start one by one, or count alone for tasks that start together",
    ),
    "a parent is not suggested": (job(queue="rot"), f'queue: there is no queue "rot" (did you mean root.a?); {LEAVES}'),
    "an unknown on_loss": (
        job({"on_loss": "retry"}),
        'stages[0].on_loss: "retry" is not one of replace, restart, fail (did you mean restart?); write one of them',
    ),
    "a selector without values": (
        job({"selectors": {"rack": []}}),
        "stages[0].selectors.rack: an empty list matches no node; name at least one value, or * for any",
    ),
    "a where that is no expression": (
        job({"where": "zone is a"}),
        f'stages[0].where: "zone is a" is not an expression; {EXPRESSIONS}',
    ),
    "a where as a number": (
        job({"where": 3}),
        f"stages[0].where: 3 is not an expression; {EXPRESSIONS}",
    ),
    "an empty where": (
        job({"where": []}),
        "stages[0].where: an empty list matches no node; leave it out for all nodes",
    ),
    "an alternative without a label": (
        job({"where": ["zone = a", "= b"]}),
        f'stages[0].where[1]: "= b" is not an expression; {EXPRESSIONS}',
    ),
    "a where that compares with a word": (
        job({"where": "cores > many"}),
        'stages[0].where: "many" is not a whole number; compare cores with one',
    ),
    "a where with an odd value": (
        job({"where": "zone in (a b)"}),
        'stages[0].where: "a b" is not a value; a value has no blanks and none of , ( ) = ! < > *',
    ),
    "too many alternatives": (
        job({"where": [f"zone = z{at}" for at in range(101)]}),
        "stages[0].where: 101 alternatives are too many; write at most 100",
    ),
    "too many conditions": (
        job({"where": ",".join(f"l{at}" for at in range(101))}),
        "stages[0].where: 101 conditions are too many; write at most 100",
    ),
    "a preference as a list": (
        job({"prefer": ["zone = a"]}),
        'stages[0].prefer: a list is not a mapping; write expressions with weights, such as "zone = a": 10',
    ),
    "a weight that is too high": (
        job({"prefer": {"zone = a": 1_001}}),
        "stages[0].prefer.zone = a: 1001 is not a weight; write a whole number from 1 to 1000",
    ),
    "a preference twice": (
        job({"prefer": {"zone = a": 1, "zone=a": 2}}),
        "stages[0].prefer.zone=a: the same expression is there twice; write it once, with one weight",
    ),
    "a toleration with two stars": (
        job({"tolerations": ["*gpu*"]}),
        'stages[0].tolerations[0]: "*gpu*" has more than one *; write at most one',
    ),
    "selectors as a list": (
        job({"selectors": ["rack"]}),
        "stages[0].selectors: a list is not a mapping; write label: value",
    ),
}

NODES: dict[str, tuple[object, str]] = {
    "no name": ({"resources": {"cpu": 1}}, "name: missing; a node needs it"),
    "a path": ({"name": "../n"}, f'name: "../n" {NOT_A_NAME}'),
    "no resources": (
        {"name": "n2"},
        "resources: a node without resources runs nothing; give it at least cpu and memory",
    ),
    "only zeros": (
        {"name": "n2", "resources": {"cpu": 0}},
        "resources: a node without resources runs nothing; give it at least cpu and memory",
    ),
    "half a gpu": ({"name": "n2", "resources": {"gpu": 0.5}}, "resources.gpu: a node has whole GPUs: write 1, 2 or 8"),
    "too many gpus": (
        {"name": "n2", "resources": {"gpu": 2000}},
        "resources.gpu: 2000 is more than one node can have; write at most 1024",
    ),
    "negative memory": (
        {"name": "n2", "resources": {"memory": "-1Gi"}},
        'resources.memory: "-1Gi" is negative; write 0 or more',
    ),
    "an unknown key": ({"name": "n2", "cpu": 4}, f"cpu: a node has no such key; {NODE_KEYS}"),
    "a close key": ({"name": "n2", "label": {}}, f"label: a node has no such key (did you mean labels?); {NODE_KEYS}"),
    "a taint that is a number": ({"name": "n2", "taints": [1]}, "taints[0]: 1 is not text; write it in quotes"),
    "a name that a manager has": (
        {"name": "k8s-n", "resources": {"cpu": 1}},
        "name: node k8s-n belongs to k8s; choose another name",
    ),
}


def tree(**root: Any) -> dict[str, Any]:
    return {"partitions": {"default": {"queues": {"root": root}}}}


def part(**settings: Any) -> dict[str, Any]:
    return {"partitions": {"default": settings}}


def pool(**settings: Any) -> dict[str, Any]:
    return part(pools={"p": {"node": {"cpu": 1}, **settings}})


def route(match: object, queue: object) -> dict[str, Any]:
    return part(queues=QUEUES, requestors=[{"match": "", "queue": "root.a"}, {"match": match, "queue": queue}])


def endless() -> dict[str, Any]:
    loop: dict[str, Any] = {}
    loop["again"] = {"x": loop}
    return loop


def deep(levels: int) -> dict[str, Any]:
    doc: dict[str, Any] = {}
    for _ in range(levels):
        doc = {"q": doc}
    return doc


def laughs() -> dict[str, Any]:
    doc: dict[str, Any] = {}
    for _ in range(15):
        doc = {f"q{at}": doc for at in range(9)}
    return doc


CONFIGS: dict[str, tuple[object, str]] = {
    "a list": ([], "configuration: a list is not a mapping; a configuration is written as key: value pairs"),
    "no partition": ({"partitions": {}}, "partitions: a cluster needs at least one; write partitions: {default: {}}"),
    "a partition with a path": ({"partitions": {"a/b": {}}}, f'partitions.a/b: "a/b" {NOT_A_NAME}'),
    "a partition as a text": (
        {"partitions": {"default": "all"}},
        'partitions.default: "all" is not a mapping; a partition is written as key: value pairs',
    ),
    "an unknown key": (
        {"partition": {}},
        "partition: a configuration has no such key (did you mean partitions?); it has partitions",
    ),
    "an unknown setting": (
        part(batch_windw="1s"),
        f"partitions.default.batch_windw: a partition has no such key (did you mean batch_window?); {PARTITION_KEYS}",
    ),
    "a memory of seconds": (
        part(share_memory="5s"),
        'partitions.default.share_memory: "5s" is too short; write 1min or more, or 0 for off',
    ),
    "a duration in weeks": (part(lease="5w"), f'partitions.default.lease: "5w" {A_DURATION}'),
    "a percentage above 100": (
        part(held_nodes_percent=101),
        "partitions.default.held_nodes_percent: 101 is not accepted; write a whole number from 0 to 100",
    ),
    "a negative percentage": (
        part(rebalance_threshold=-1),
        "partitions.default.rebalance_threshold: -1 is not accepted; write a whole number from 0 to 100",
    ),
    "an unknown unit": (
        part(unit="nodes"),
        'partitions.default.unit: "nodes" is not one of dominant, slots; write one of them',
    ),
    "a flag as a text": (
        part(hold_large="yes"),
        'partitions.default.hold_large: "yes" is neither true nor false; write one of them',
    ),
    "an unknown backfill": (
        part(backfill="shortes"),
        'partitions.default.backfill: "shortes" is not one of off, easy, shortest, conservative (did you mean '
        "shortest?); write one of them",
    ),
    "backfill as it was": (
        part(backfill=True),
        "partitions.default.backfill: true is not one of off, easy, shortest, conservative; write easy",
    ),
    "backfill off without quotes": (
        part(backfill=False),
        "partitions.default.backfill: false is not one of off, easy, shortest, conservative; write off, in YAML with "
        'quotes: "off"',
    ),
    "preempt off without quotes": (
        part(preempt=False),
        "partitions.default.preempt: false is not one of priority, guarantees, off; write off, in YAML with quotes: "
        '"off"',
    ),
    "a queue beside root": (
        part(queues={"root": {}, "ml": {}}),
        "partitions.default.queues.ml: the tree has one queue at the top, root; write this one below it",
    ),
    "no root": (part(queues={}), "partitions.default.queues.root: missing; the queue tree starts with it"),
    "a tree that contains itself": (
        tree(a=endless()),
        "partitions.default.queues.root.a.again.x: the queue contains itself; a queue stands in the tree once",
    ),
    "a tree that is too deep": (
        tree(**deep(10_000)),
        "partitions.default.queues.root.q.q.q.q.q.q.q.q.q.q.q.q.q.q.q.q.q.q.q.q: the tree is too deep; "
        "at most 20 levels and 1000 characters",
    ),
    "a tree that is too wide": (
        tree(**laughs()),
        "partitions.default.queues.root.q0.q0.q0.q0.q0.q0.q0.q0.q0.q1.q4.q4.q8.q2.q3: the tree has more "
        "than 100000 queues; write fewer",
    ),
    "a setting at the top": (
        {"keep_ended": "1h"},
        "keep_ended: it belongs to a partition; write it below partitions.default",
    ),
    "a limit on a near miss": (
        tree(a={"limit": {"cpus": 4}}),
        "partitions.default.queues.root.a.limit.cpus: there is no resource cpus; write cpu",
    ),
    "a queue with a dot": (tree(**{"a.b": {}}), f'partitions.default.queues.root.a.b: "a.b" {NOT_A_QUEUE}'),
    "a queue with a path": (tree(**{"../x": {}}), f'partitions.default.queues.root.../x: "../x" {NOT_A_QUEUE}'),
    "a queue over two lines": (tree(**{"a\nb": {}}), f'partitions.default.queues.root.a?b: "a?b" {NOT_A_QUEUE}'),
    "a long queue": (tree(**{LONG: {}}), f'partitions.default.queues.root.{LONG[:100]}…: "{LONG[:40]}…" {NOT_A_QUEUE}'),
    "a number for a queue": (
        part(queues={"root": {7: {}}}),
        "partitions.default.queues.root: the key 7 is not text; write it in quotes",
    ),
    "an unknown setting of a queue": (
        tree(a={"guarante": 5}),
        "partitions.default.queues.root.a.guarante: a queue has no such setting (did you mean "
        f"guarantee?); {QUEUE_KEYS}",
    ),
    "a limit that looks like a queue": (
        tree(a={"limt": {"cpu": 1}}),
        f"partitions.default.queues.root.a.limt: a queue has no such setting (did you mean limit?); {QUEUE_KEYS}",
    ),
    "a guarantee that looks like a queue": (
        tree(a={"guarantees": {}}),
        "partitions.default.queues.root.a.guarantees: a queue has no such setting (did you mean guarantee?); "
        f"{QUEUE_KEYS}",
    ),
    "a setting that looks like a queue": (
        tree(a={"user": {"ann": {"max_jobs": 1}}}),
        f"partitions.default.queues.root.a.user: a queue has no such setting (did you mean users?); {QUEUE_KEYS}",
    ),
    "a negative share": (
        tree(a={"share": -1}),
        "partitions.default.queues.root.a.share: -1 is not accepted; write a whole number from 0 to 10000",
    ),
    "a share with a fraction": (
        tree(a={"share": 12.5}),
        "partitions.default.queues.root.a.share: 12.5 is not accepted; write a whole number from 0 to 10000",
    ),
    "a template of YuniKorn": (
        tree(a={"template": {"order": "fair"}}),
        'partitions.default.queues.root.a.template: "template" is a setting of YuniKorn and no name for a queue here: '
        "queues are not made by submissions; write each queue, or let users share one, with order: fair and "
        'users: {"*": …}; `fairlead config import yunikorn` converts a whole file',
    ),
    "resources of YuniKorn": (
        tree(a={"Resources": {"max": {"cpu": 4}}}),
        'partitions.default.queues.root.a.Resources: "Resources" is a setting of YuniKorn and no name for a queue '
        "here: write guarantee and limit; `fairlead config import yunikorn` converts a whole file",
    ),
    "an unknown order": (
        tree(a={"order": "lifo"}),
        'partitions.default.queues.root.a.order: "lifo" is not one of priority, fifo, fair, jobs (did you mean fifo?); '
        "write one of them",
    ),
    "a check that is not installed": (
        {"partitions": {"default": {"checks": ["small_crew"]}}},
        'partitions.default.checks[0]: there is no check "small_crew", and no package brings one; leave it out or '
        "install its package",
    ),
    "a check that is always made": (
        {"partitions": {"default": {"checks": ["limits"]}}},
        'partitions.default.checks[0]: "limits" is always checked; leave it out',
    ),
    "a limit below the guarantee": (
        tree(ads={"limit": {"cpu": 10}, "guarantee": {"cpu": 20}}),
        "partitions.default.queues.root.ads.guarantee: limit cpu 10 is below the guarantee 20; raise the "
        "limit or lower the guarantee",
    ),
    "a limit above below the guarantee": (
        tree(limit={"memory": "1Gi"}, ads={"guarantee": {"memory": "1.5Gi"}}),
        "partitions.default.queues.root.ads.guarantee: limit memory 1Gi of queue root is below the "
        "guarantee 1.5Gi; raise the limit or lower the guarantee",
    ),
    "guarantees above the parent's": (
        tree(a={"guarantee": {"gpu": 3}, "b": {"guarantee": {"gpu": 2}}, "c": {"guarantee": {"gpu": 2}}}),
        "partitions.default.queues.root.a.guarantee: the queues below are guaranteed gpu 4 together, "
        "more than 3; raise it or lower theirs",
    ),
    "guarantees above the parent's limit": (
        tree(limit={"cpu": 5}, a={"guarantee": {"cpu": 3}}, b={"guarantee": {"cpu": "2001m"}}),
        "partitions.default.queues.root.limit: the queues below are guaranteed cpu 5.001 together, more "
        "than 5; raise it or lower theirs",
    ),
    "an unknown user limit": (
        tree(users={"ann": {"cpu": 5}}),
        "partitions.default.queues.root.users.ann.cpu: a limit has no such key; it has limit, max_jobs, max_priority",
    ),
    "a user with a slash": (tree(users={"a/b": {}}), f'partitions.default.queues.root.users.a/b: "a/b" {NOT_A_NAME}'),
    "a limit that is a number": (
        tree(limit=5),
        "partitions.default.queues.root.limit: 5 is not a set of resources; write names with amounts such as cpu: 2",
    ),
    "a list that names a path": (
        tree(submit=["ann", "@../x"]),
        f'partitions.default.queues.root.submit[1]: "../x" {NOT_A_NAME}',
    ),
    "a list as a text": (
        tree(submit="ann"),
        'partitions.default.queues.root.submit: "ann" is not a list; write [one, two]',
    ),
    "a bad pattern": (
        route("(", "root.a"),
        'partitions.default.requestors[1].match: "(" is not a pattern for names '
        "(missing ), unterminated subpattern at position 0); correct it",
    ),
    "a pattern that would go back and forth": (
        route(r"(a)\1", "root.a"),
        r'partitions.default.requestors[1].match: "(a)\1" is not a pattern for names ('
        "(? and backreferences are not supported); correct it",
    ),
    "a pattern that would grow without end": (
        route("(((a{100}){100}){100})", "root.a"),
        'partitions.default.requestors[1].match: "(((a{100}){100}){100})" is not a pattern for names '
        "(a group cannot be repeated); correct it",
    ),
    "a pattern with many ways to match": (
        route("(a|a)(a|a)b*", "root.a"),
        'partitions.default.requestors[1].match: "(a|a)(a|a)b*" is not a pattern for names '
        "(it has 3 repetitions and groups, at most 2); correct it",
    ),
    "a pattern to nowhere": (
        route("x", "root.z"),
        'partitions.default.requestors[1].queue: there is no queue "root.z" (did you mean root.a?); name one of '
        "root.a, root.b.c, root.b.d, root.closed, root.stopped",
    ),
    "a pattern to a parent": (
        route("x", "root.b"),
        "partitions.default.requestors[1].queue: root.b has queues below it and takes no jobs; name one "
        "of root.a, root.b.c, root.b.d, root.closed, root.stopped",
    ),
    "a pattern that is a number": (
        route(5, "root.a"),
        "partitions.default.requestors[1].match: 5 is not text; write it in quotes",
    ),
    "a pattern with a slip": (
        part(requestors=[{"mach": "", "queue": "root.default"}]),
        "partitions.default.requestors[0].match: missing; a requestor pattern needs it (is mach meant for it?)",
    ),
    "patterns as a mapping": (
        part(requestors={"": "root.a"}),
        "partitions.default.requestors: a mapping is not a list; write [{match: pattern, queue: path}]",
    ),
    "a pool without nodes": (
        part(pools={"p": {"max": 3}}),
        "partitions.default.pools.p.node: missing or empty; say what each node has, such as {cpu: 8, memory: 32Gi}",
    ),
    "a pool with max below min": (
        pool(min=5, max=4),
        "partitions.default.pools.p.max: 4 is below min 5; raise max or lower min",
    ),
    "a pool with a slip": (
        pool(max_idel=1),
        "partitions.default.pools.p.max_idel: a pool has no such key (did you mean max_idle?); it has "
        "cost, idle_for, labels, max, max_idle, min, min_free, min_idle, node, provider, taints",
    ),
    "a pool that keeps free what its nodes do not have": (
        pool(min_free={"gpu": 1}),
        "partitions.default.pools.p.min_free.gpu: a node of the pool has no gpu, so no number of nodes is enough; "
        "name one of cpu",
    ),
    "a pool with a path": (
        part(pools={"../p": {"node": {"cpu": 1}}}),
        f'partitions.default.pools.../p: "../p" {NOT_A_NAME}',
    ),
    "half a gpu in a pool": (
        pool(node={"gpu": 0.5}),
        "partitions.default.pools.p.node.gpu: a node has whole GPUs: write 1, 2 or 8",
    ),
    "a provider as a text": (
        pool(provider="./cloud"),
        'partitions.default.pools.p.provider: "./cloud" is not a mapping; write for example {command: [./mycloud]}',
    ),
    "a provider that contains itself": (
        pool(provider=endless()),
        "partitions.default.pools.p.provider: it has more than 1000 entries, or contains itself; write less at once",
    ),
    "a provider with an object": (
        pool(provider={"command": object}),
        "partitions.default.pools.p.provider: it cannot be written as JSON (Encoding objects of type "
        "type is unsupported); use texts, numbers and lists",
    ),
    "a queue with jobs gets children": (
        part(queues={"root": {**QUEUES["root"], "a": {"below": {}}}}),
        "partitions.default.queues.root.a.below: queue root.a has 3 jobs and cannot get queues below it; "
        "wait until they ended, or kill them",
    ),
    "a stopped queue leaves": (
        part(queues={"root": {key: each for key, each in QUEUES["root"].items() if key != "stopped"}}),
        "partitions.default.queues.root.stopped: queue root.stopped is stopped and cannot be removed; "
        "start it first, so that it can drain",
    ),
}

AT = "partitions.default.pools.p"
PROVIDERS: dict[str, tuple[object, str]] = {
    "a provider that there is not": (
        pool(provider={"comand": ["./cloud"]}),
        f'{AT}.provider: "comand" names no provider (did you mean command?); '
        "write for example {local: {}} or {command: [./mycloud]}",
    ),
    "no provider": (
        pool(provider={}),
        f"{AT}.provider: it names no provider; write for example {{local: {{}}}} or {{command: [./mycloud]}}",
    ),
    "a provider for tests": (
        pool(provider={"memory": {}}),
        f'{AT}.provider: "memory" names no provider; write for example {{local: {{}}}} or {{command: [./mycloud]}}',
    ),
    "two providers": (
        pool(provider={"local": {}, "command": ["x"]}, max=1),
        f"{AT}.provider: it names local and command; a pool has one provider, so remove one",
    ),
    "a command as a text": (
        pool(provider={"command": "./cloud create"}),
        f'{AT}.provider.command: "./cloud create" is not a list; write [one, two]',
    ),
    "an empty command": (
        pool(provider={"command": []}),
        f"{AT}.provider.command: empty; name the program, such as [./mycloud]",
    ),
    "a command without a name": (
        pool(provider={"command": ["", "x"]}),
        f"{AT}.provider.command: empty; name the program, such as [./mycloud]",
    ),
    "a command with a number": (
        pool(provider={"command": ["./cloud", 5]}),
        f"{AT}.provider.command[1]: 5 is not text; write it in quotes",
    ),
    "a command with no time": (
        pool(provider={"command": ["./cloud"], "timeout": 0}),
        f"{AT}.provider.timeout: it has to be longer than 0 s; write for example 1min",
    ),
    "a command with a slip": (
        pool(provider={"command": ["./cloud"], "time_out": 5}),
        f"{AT}.provider.time_out: a provider has no such key (did you mean timeout?); it has command, timeout",
    ),
    "a local provider with a setting": (
        pool(provider={"local": {"directory": "/tmp"}}, max=1),
        f"{AT}.provider.local.directory: a local provider has no settings; "
        "write {local: {}} or {command: [./mycloud]}",
    ),
    "a local provider as a text": (
        pool(provider={"local": "yes"}, max=1),
        f'{AT}.provider.local: "yes" is not a mapping; a local provider is written as key: value pairs',
    ),
    "a local provider without a bound": (
        pool(provider={"local": {}}),
        f"{AT}.max: missing; a local pool starts agents on this machine, so say how many at most",
    ),
    "a local provider with GPUs": (
        pool(node={"gpu": 1}, provider={"local": {}}, max=1),
        f"{AT}.node.gpu: local agents cannot divide the GPUs of this machine; start one agent that has all of them",
    ),
}
"""A live server refuses these. The core does not look into a provider."""

ANN: dict[str, Any] = {"user": "ann"}
BOB: dict[str, Any] = {"user": "bob"}
OP: dict[str, Any] = {"operator": True}
SPEC = parse_job(job())
NODE = parse_node({"name": "n2", "resources": {"cpu": 1}})[1]


def report(indices: Any = (0, 1), **rest: Any) -> Report:
    values: dict[str, Any] = {"attempt": 1, "state": "failed", **rest}
    return Report(node="n1", job="run", stage="w", indices=indices, operator=True, **values)


COMMANDS: dict[str, tuple[Any, str]] = {
    "a key with another body": (
        Submit(spec=SPEC, key="once", **ANN),
        "key: was used before with another body; use a new key for a new request",
    ),
    "a long key": (
        Submit(spec=SPEC, key="k" * 201, **ANN),
        "key: 201 characters are too many; at most 200 are allowed",
    ),
    "a key with a zero": (Kill(job="run", key="a\0", **ANN), "key: a zero character is not allowed; remove it"),
    "a user with half a pair": (
        Kill(job="run", user="\ud800"),
        "user: half a surrogate pair is not a character; remove it",
    ),
    "a user of great length": (
        Kill(job="run", user=LONG),
        "user: 10000000 characters are too many; at most 200 are allowed",
    ),
    "another's name": (Submit(spec=SPEC, **BOB), "user: bob cannot submit as ann; leave the field out"),
    "an id that is there": (Submit(spec=SPEC, id="run", **ANN), "id: there is already a job run; choose another id"),
    "an id of an ended job": (
        Submit(spec=SPEC, id="dead", **ANN),
        "id: there is already a job dead; choose another id",
    ),
    "a number as id": (
        Submit(spec=SPEC, id="17", **ANN),
        'id: "17" is a number, and numbers are given by the scheduler; add a letter',
    ),
    "an id with a path": (Submit(spec=SPEC, id="../17", **ANN), f'id: "../17" {NOT_A_NAME}'),
    "another's job": (
        Kill(job="run", **BOB),
        "user: bob may not kill job run; its owner ann or an administrator of root.a may",
    ),
    "without a user": (
        Kill(job="run"),
        "user: anonymous may not kill job run; its owner ann or an administrator of root.a may",
    ),
    "an unknown job": (
        Kill(job="rum", **ANN),
        'job: there is no job "rum" (did you mean run?); name one that is known',
    ),
    "a long job": (Kill(job=LONG, **ANN), f'job: there is no job "{LONG[:40]}…"; name one that is known'),
    "scaling an ended job": (
        Scale(job="dead", stage="w", count=2, **ANN),
        "job: job dead is over (killed) and cannot be scaled; submit it again",
    ),
    "holding an ended job": (
        HoldJob(job="dead", **ANN),
        "job: job dead is over (killed), so there is nothing to hold back; leave it",
    ),
    "requeueing an ended job": (
        Requeue(job="dead", **ANN),
        "job: job dead is over (killed) and cannot be requeued; submit it again",
    ),
    "holding another's job": (
        HoldJob(job="run", **BOB),
        "user: bob may not hold job run; its owner ann or an administrator of root.a may",
    ),
    "releasing no job": (ReleaseJob(job="x", **OP), 'job: there is no job "x"; name one that is known'),
    "the priority of an ended job": (
        SetPriority(job="dead", priority=-1, **ANN),
        "job: job dead is over (killed), and its priority has no effect",
    ),
    "scaling below zero": (
        Scale(job="run", stage="w", count=-1, **ANN),
        "count: -1 is not accepted; write a whole number from 0 to 10000000",
    ),
    "scaling beyond measure": (
        Scale(job="run", stage="w", count=10**12, **ANN),
        "count: 1000000000000 is not accepted; write a whole number from 0 to 10000000",
    ),
    "scaling by true": (
        Scale(job="run", stage="w", count=True, **ANN),
        "count: true is not accepted; write a whole number from 0 to 10000000",
    ),
    "scaling an unknown stage": (
        Scale(job="run", stage="v", count=2, **ANN),
        'stage: job run has no stage "v"; it has w',
    ),
    "scaling another's job": (
        Scale(job="run", stage="w", count=2, **BOB),
        "user: bob may not scale job run; its owner ann or an administrator of root.a may",
    ),
    "scaling a manager's job": (
        Scale(job="k8s-j", stage="x", count=2, **OP),
        "job: job k8s-j belongs to k8s; scale it there",
    ),
    "raising one's own priority": (
        SetPriority(job="run", priority=1, **ANN),
        "priority: 1 is above 0, the max_priority of user ann in root.a; write at most 0, or ask an operator for a "
        "higher max_priority",
    ),
    "a priority beyond measure": (
        SetPriority(job="run", priority=10**10, **OP),
        "priority: 10000000000 is not accepted; write a whole number from -2147483648 to 2147483647",
    ),
    "to the front by its owner": (
        BringToFront(job="run", stage="w", **ANN),
        "user: only an operator may bring an ask to the front; ask one",
    ),
    "releasing a hold by its owner": (
        ReleaseHold(job="run", stage="w", **ANN),
        "user: only an operator may release a hold; ask one",
    ),
    "releasing a hold of no job": (
        ReleaseHold(job="x", **OP),
        'job: there is no job "x"; name one that is known',
    ),
    "cancelling another's": (
        CancelAsk(job="run", stage="w", **BOB),
        "user: bob may not cancel an ask of job run; its owner ann or an administrator of root.a may",
    ),
    "a lane of no queue": (
        ResetLane(queue="root.q", job="run", **OP),
        'queue: there is no queue "root.q" (did you mean root.b?); name one that is known',
    ),
    "a lane of no job": (ResetLane(queue="root.a", job="x", **OP), 'job: there is no job "x"; name one that is known'),
    "draining an unknown node": (
        MoveNode(name="n11", action="drain", **OP),
        'name: there is no node "n11" (did you mean n1?); name one that is known',
    ),
    "an unknown move of a node": (
        MoveNode(name="n1", action=cast(Any, "explode"), **OP),
        'action: "explode" is not one of drain, disable, enable, lose; write one of them',
    ),
    "draining by a user": (
        MoveNode(name="n1", action="drain", **ANN),
        "user: only an operator may drain a node; ask one",
    ),
    "removing an unknown node": (
        RemoveNode(name="../n1", **OP),
        'name: there is no node "../n1"; name one that is known',
    ),
    "updating an unknown node": (
        UpdateNode(name="n2", spec=NODE, **OP),
        'name: there is no node "n2"; name one that is known',
    ),
    "a node with a path": (AddNode(name="a/b", spec=NODE, **OP), f'name: "a/b" {NOT_A_NAME}'),
    "a node by a user": (AddNode(name="n2", spec=NODE, **ANN), "user: only an operator may add a node; ask one"),
    "stopping an unknown queue": (
        MoveQueue(queue="root.q", action="stop", **OP),
        'queue: there is no queue "root.q" (did you mean root.b?); name one that is known',
    ),
    "an unknown move of a queue": (
        MoveQueue(queue="root.a", action=cast(Any, "burn"), **OP),
        'action: "burn" is not one of start, stop; write one of them',
    ),
    "stopping a draining queue": (
        MoveQueue(queue="root.leaving", action="stop", **OP),
        "queue: root.leaving left the configuration and drains; put it back there to keep it",
    ),
    "configuring by a user": (Configure(config=DEFAULT_CONFIG, **ANN), "user: only an operator may configure; ask one"),
    "ready by a user": (MarkReady(**ANN), "user: only an operator may mark the partition ready; ask one"),
    "removing a partition by a user": (
        RemovePartition(**ANN),
        "user: only an operator may remove a partition; ask one",
    ),
    "a report of half a range": (report((0,)), "indices: ranges have 1 numbers: write pairs of start and end"),
    "a report of an empty range": (report((1, 1)), "indices[1]: a range must end after its start: write a larger end"),
    "a report of ranges out of order": (
        report((4, 5, 0, 1)),
        "indices[2]: ranges must be sorted with a gap between them: sort and join them",
    ),
    "a report of negative ranges": (report((-1, 1)), "indices[0]: a bound of a range is negative: write 0 or more"),
    "a report of texts": (report(("0", "1")), "indices[0]: a bound of a range must be a whole number: write 0 or more"),
    "a report of all there could be": (
        report((0, 10**15)),
        "indices: a stage has at most 10000000 tasks; report those it has",
    ),
    "a report that is no range": (report("0-7"), "indices: ranges must be a list of numbers: write [start, end, …]"),
    "a report from the future": (
        report(attempt=9),
        "attempt: 9 of run w[0] (job number 0) was never given by this journal, which is at 1 in era 0; its data were "
        "set back to an earlier time, or it is the wrong one",
    ),
    "a report of attempt -1": (
        report(attempt=-1),
        "attempt: -1 is not accepted; write a whole number from 0 to 9007199254740992",
    ),
    "a report of an unknown state": (
        report(state="exploded"),
        'state: "exploded" is not one of running, refused, succeeded, failed, stopped, lost; write one',
    ),
    "a report of a huge exit code": (
        report(exit_code=2**80),
        "exit_code: 1208925819614629174706176 is not accepted; write a whole number from "
        "-9007199254740992 to 9007199254740992",
    ),
    "a report of a negative run time": (
        report(state="succeeded", ran=-1),
        "ran: -1 is not accepted; write a whole number from 0 to 9007199254740992",
    ),
    "a report of half a microsecond": (
        report(state="succeeded", ran=0.5),
        "ran: 0.5 is not accepted; write a whole number from 0 to 9007199254740992",
    ),
    "a manager with a path": (RegisterManager(name="../k8s", **OP), f'name: "../k8s" {NOT_A_NAME}'),
    "a manager by a user": (
        RegisterManager(name="k9", **ANN),
        "user: only an operator may register a resource manager; ask one",
    ),
    "a manager to remove that is not known": (
        RemoveManager(name="nothing", **OP),
        'name: there is no resource manager "nothing"; name one that is known',
    ),
    "a manager that a user removes": (
        RemoveManager(name="k8s", **ANN),
        "user: only an operator may remove a resource manager; ask one",
    ),
    "an update of an unknown manager": (
        UpdateManager(name="k9", **OP),
        'name: there is no resource manager "k9"; register it first',
    ),
    "an update by a user": (
        UpdateManager(name="k8s", **ANN),
        "user: only an operator may send a resource manager's update; ask one",
    ),
    "an update that is too long": (
        UpdateManager(name="k8s", releases=({},) * 100_001, **OP),
        "update: 100001 items are too many; send at most 100000 at once",
    ),
    "a request that cannot be compared": (
        Kill(job="\ud800", key="u", **ANN),
        "key: the request cannot be compared with others ('utf-8' codec can't encode character '\\ud800' "
        "in position 0: surrogates not allowed); correct it",
    ),
}

ITEMS: dict[str, tuple[dict[str, Any], str]] = {
    "no mapping": ({"jobs": "j"}, 'job[0]: "j" is not a mapping; a manager\'s job is written as key: value pairs'),
    "a job without id": ({"jobs": {"queue": "root.a"}}, "job[0].job: missing; a manager's job needs it"),
    "a job with a number": (
        {"jobs": {"job": "12"}},
        'job[0].job: "12" is a number, and numbers are given by the scheduler; add a letter',
    ),
    "a job with a slip": (
        {"jobs": {"job": "j", "quue": "root.a"}},
        "job[0].quue: a manager's job has no such key (did you mean queue?); it has gang, groups, job, labels, "
        "name, preemptible, preempts, priority, queue, remove, stages, user",
    ),
    "a job in no queue": (
        {"jobs": {"job": "j", "queue": "root.q"}},
        f'job[0].queue: there is no queue "root.q" (did you mean root.a?); {LEAVES}',
    ),
    "a job of another manager": (
        {"jobs": {"job": "slurm-j", "queue": "root.a"}},
        "job[0].job: there is already a job slurm-j; choose another id",
    ),
    "a job of ours": (
        {"jobs": {"job": "run", "queue": "root.a"}},
        "job[0].job: there is already a job run; choose another id",
    ),
    "removing another manager's job": (
        {"jobs": {"job": "slurm-j", "remove": True}},
        "job[0].job: job slurm-j is not one of k8s's; name one that is",
    ),
    "removing a job of ours": (
        {"jobs": {"job": "run", "remove": True}},
        "job[0].job: job run is not one of k8s's; name one that is",
    ),
    "an ask of an unknown job": (
        {"asks": {"job": "j", "ask": "x"}},
        'ask[0].job: there is no job "j"; name one that is known',
    ),
    "an ask of another manager's job": (
        {"asks": {"job": "slurm-j", "ask": "x"}},
        "ask[0].job: job slurm-j is not one of k8s's; name one that is",
    ),
    "an ask with a negative amount": (
        {"asks": {"job": "k8s-j", "ask": "y", "resources": {"cpu": -1}}},
        "ask[0].resources.cpu: -1 is negative; write 0 or more",
    ),
    "an ask of an unknown resource": (
        {"asks": {"job": "k8s-j", "ask": "y", "resources": {"fpga": 1}}},
        "ask[0].resources.fpga: no node or pool offers it; known are cpu, gpu, memory",
    ),
    "an ask with another shape": (
        {"asks": {"job": "k8s-j", "ask": "x", "resources": {"cpu": 2}}},
        "ask[0].ask: x of job k8s-j was asked for with another shape; withdraw it and choose another name",
    ),
    "an ask with a path": ({"asks": {"job": "k8s-j", "ask": "a/b"}}, f'ask[0].ask: "a/b" {NOT_A_NAME}'),
    "a node of another manager": (
        {"nodes": {"name": "slurm-n", "resources": {"cpu": 9}}},
        "node[0].name: node slurm-n is not one of k8s's; choose another name",
    ),
    "a node of ours": (
        {"nodes": {"name": "n1", "action": "drain"}},
        "node[0].name: node n1 is not one of k8s's; choose another name",
    ),
    "an unknown action": (
        {"nodes": {"name": "k8s-n", "action": "eat"}},
        'node[0].action: "eat" is not one of add, update, drain, disable, enable, lose, remove; write one of them',
    ),
    "draining an unknown node": (
        {"nodes": {"name": "k9-n", "action": "drain"}},
        'node[0].name: there is no node "k9-n" (did you mean k8s-n?); name one that is known',
    ),
    "draining with a slip": (
        {"nodes": {"name": "k8s-n", "action": "drain", "resorces": {}}},
        "node[0].resorces: a manager's node has no such key (did you mean resources?); it has action, "
        "labels, name, pool, reason, resources, taints, users",
    ),
    "a node without resources": (
        {"nodes": {"name": "k2"}},
        "node[0].resources: a node without resources runs nothing; give it at least cpu and memory",
    ),
    "a release with a negative index": (
        {"releases": {"job": "k8s-j", "index": -1}},
        "release[0].index: -1 is not accepted; write a whole number from 0 to 10000000",
    ),
    "a release with a slip": (
        {"releases": {"jobs": "k8s-j"}},
        "release[0].jobs: a manager's release has no such key (did you mean job?); it has ask, index, job, lost, "
        "reason, withdraw",
    ),
    "recovering on an unknown node": (
        {"recover": {"job": "k8s-j", "ask": "y", "node": "k9-n"}},
        'recover[0].node: there is no node "k9-n" (did you mean k8s-n?); name one that is known',
    ),
    "recovering on another manager's node": (
        {"recover": {"job": "k8s-j", "ask": "y", "node": "slurm-n"}},
        "recover[0].node: node slurm-n is not one of k8s's; name one that is",
    ),
    "recovering on a node of ours": (
        {"recover": {"job": "k8s-j", "ask": "y", "node": "n1"}},
        "recover[0].node: node n1 is not one of k8s's; name one that is",
    ),
    "recovering another manager's job": (
        {"recover": {"job": "slurm-j", "ask": "x", "node": "k8s-n"}},
        "recover[0].job: job slurm-j is not one of k8s's; name one that is",
    ),
    "recovering with another shape": (
        {"recover": {"job": "k8s-j", "ask": "x", "node": "k8s-n", "resources": {"cpu": 2}}},
        "recover[0].resources: x of job k8s-j was asked for with others; recover it under another name",
    ),
    "recovering a huge index": (
        {"recover": {"job": "k8s-j", "ask": "y", "node": "k8s-n", "index": 10**9}},
        "recover[0].index: 1000000000 is not accepted; write a whole number from 0 to 9999999",
    ),
}


@pytest.mark.parametrize("name", JOBS)
def test_a_job_that_is_refused(name: str) -> None:
    doc, message = JOBS[name]
    check(lambda w: submit(w, doc, "x"), message)


@pytest.mark.parametrize("name", NODES)
def test_a_node_that_is_refused(name: str) -> None:
    doc, message = NODES[name]
    check(lambda w: add_node(w, doc), message)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_that_is_refused(name: str) -> None:
    doc, message = CONFIGS[name]
    check(lambda w: configure(w, doc), message)


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_provider_that_is_refused(name: str) -> None:
    doc, message = PROVIDERS[name]
    configs = parse_config(doc)
    with pytest.raises(Refused) as refusal:
        check_providers(configs)
    assert str(refusal.value) == message


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_is_refused(name: str) -> None:
    command, message = COMMANDS[name]
    check(lambda w: send(w, command), message)


@pytest.mark.parametrize("name", ITEMS)
def test_an_item_that_is_refused(name: str) -> None:
    item, message = ITEMS[name]
    check(lambda w: update(w, item), message)


def test_good_items_among_bad_ones_are_accepted() -> None:
    w = world()
    w.rm("k8s").update(
        nodes=[
            {"name": "k8s-n2"},
            {"name": "k8s-n3", "resources": {"cpu": 2}},
            {"name": "slurm-n", "action": "remove"},
        ],
        jobs=[{"job": "good", "queue": "root.a"}, {"job": "17"}],
        asks=[
            {"job": "good", "ask": "x", "resources": {"cpu": -2}},
            {"job": "good", "ask": "y", "resources": {"cpu": 2}},
            {"job": "17", "ask": "y"},
        ],
        releases=[{"job": "k8s-j", "ask": "x", "index": 0}, {"job": "k8s-j", "index": "all"}, {"job": "missing"}],
    )
    w.cycle()
    events = w.rm("k8s").events()
    answers = [(event.item, event.job, event.what) for event in events if event.what in ("accepted", "rejected")]
    assert answers == [
        ("node", "k8s-n2", "rejected"),
        ("node", "k8s-n3", "accepted"),
        ("node", "slurm-n", "rejected"),
        ("job", "good", "accepted"),
        ("job", "17", "rejected"),
        ("ask", "good/x", "rejected"),
        ("ask", "good/y", "accepted"),
        ("ask", "17/y", "rejected"),
        ("release", "k8s-j/x", "accepted"),
        ("release", "k8s-j", "rejected"),
        ("release", "missing/", "accepted"),
    ]
    assert list(w.placements("good")) == [("y", 0)]
    assert list(w.placements("k8s-j")) == [("x", 1)]


def test_a_bad_command_disturbs_no_other() -> None:
    w = world()
    before = w.submit(name="before", queue="root.a", stages=[{"resources": {"cpu": 1}}])
    w.submit(name="bad", queue="root.nowhere", stages=[{}])
    w.kill("run", user="eve")
    w.drain("nowhere")
    after = w.submit(name="after", queue="root.a", stages=[{"resources": {"cpu": 1}}], after=[before])
    w.cycle()
    assert [isinstance(answer, Accepted) for answer in w.answers()] == [True, False, False, False, True]
    assert w.job(before).state == "running"
    assert w.job(after).state == "pending"
    assert w.job("run").state == "running"


def test_a_refused_configuration_leaves_the_next_one_alone() -> None:
    w = world()
    w.queue("root.new", limit={"cpu": 1}, guarantee={"cpu": 2})
    with pytest.raises(Refused, match="limit cpu 1 is below the guarantee 2"):
        w.cycle()
    assert "root.new" not in w.partition().queues
    w.queue("root.other")
    w.cycle()
    assert "root.other" in w.partition().queues and "root.new" not in w.partition().queues


@pytest.mark.parametrize("queue", ["", "root.a"])
def test_a_job_for_a_partition_that_is_not_configured_yet(queue: str) -> None:
    """Its writer may have ended before the first configuration was written."""
    writer = Writer(MemoryJournal(), "default")
    document = {"user": "ann", "queue": queue, "stages": [{"command": ["true"]}]}
    (answer,) = writer.cycle([Submit(spec=parse_job({k: v for k, v in document.items() if v}))], 1).answers
    assert answer == Rejected("queue", "the partition is not configured yet and has none; ask again later", "unknown")
