"""Example requests, and example answers made from the types of answers. The tests compare both with a server."""

from __future__ import annotations

from contextlib import suppress
from types import UnionType
from typing import Any, Literal, get_args, get_origin

import msgspec
from msgspec import NODEFAULT

from fairlead.wire.operation import JSON, Row, bare
from fairlead.wire.operations import Openapi

JOB: dict[str, Any] = {
    "name": "train",
    "queue": "root.default",
    "stages": [
        {
            "name": "worker",
            "count": 2,
            "resources": {"cpu": 1, "memory": "512Mi"},
            "command": ["python", "-c", "print('hello')"],
            "time_limit": "1h",
            "tries": 2,
        }
    ],
}
CONFIG = {"partitions": {"default": {"queues": {"root": {"ml": {"share": 60}, "ci": {"share": 40}}}}}}

SENT: dict[str, dict[str, Any]] = {
    "submit": JOB,
    "submitMany": {"jobs": [JOB, JOB]},
    "submitPipeline": {"name": "nightly", "jobs": [JOB, {**JOB, "name": "report", "after": ["train:any"]}]},
    "dryRun": JOB,
    "sentences": {"jobs": ["17"]},
    "etas": {"jobs": ["17"]},
    "whatIf": {"add_nodes": {"gpu": 8}, "shares": {"root.default": 40}, "priorities": {"17": 9}},
    "closeNodes": {"labels": {"rack": "r1"}, "lasts": "2h", "reason": "new switch"},
    "openNodes": {"labels": {"rack": "r1"}},
    "stopTasks": {"stage": "worker", "indices": [0, 1]},
    "scale": {"stage": "worker", "count": 4},
    "rerun": {"failed": True, "environment": {"LR": "0.1"}},
    "updateJob": {"queue": "root.default", "labels": {"team": "nlp"}, "resources": {"cpu": 2}},
    "setPriority": {"priority": -1},
    "tryPriority": {"priority": 10},
    "bringToFront": {"job": "17", "stage": "worker"},
    "cancelAsk": {"job": "17", "stage": "worker"},
    "releaseHold": {"job": "17", "stage": "worker"},
    "resetLane": {"queue": "root.default", "job": "17"},
    "scalePool": {"nodes": 4},
    "validateConfig": CONFIG,
    "applyConfig": CONFIG,
    "setPartition": {"queues": {"root": {"night": {"share": 100}}}},
    "setShares": {"shares": {"root.default": 60}, "rebalance_after": "4min"},
    "storeContent": {"size": 5, "data": "aGVsbG8="},
    "setSecret": {"value": "s3cret"},
    "updateManager": {
        "nodes": [{"name": "k1", "resources": {"cpu": 8}}],
        "jobs": [{"job": "app-1", "queue": "root.default"}],
        "asks": [{"job": "app-1", "ask": "executor", "count": 4, "resources": {"cpu": 1}}],
    },
    "managerWaiting": {"jobs": ["app-1"]},
    "createToken": {"role": "user", "user": "ann", "groups": ["ml"], "note": "laptop"},
}
"""Operation → the document of a request."""

WAITS_FOR = "waits for 2 CPUs at once (2 tasks with 1 each): 1 is free on n2, enough for 1"
NO_CAPACITY = "1 of 2 fit now: 2 nodes have too few CPUs free; 1 has capacity, but not for all 2"
MEMORY = 8 * 2**30

SIMPLE: dict[Any, Any] = {str: "", int: 1, float: 12.5, bool: False}
"""Type → its value in examples, unless `VALUES` has one for the field."""
TIME = 1790000000.25
TIMES = frozenset(
    "asked at complete_since created earliest ends grew now registered since start started submitted".split()
)
"""Fields whose value in examples is `TIME`."""
KEYS = {
    "partitions": "default",
    "pools": "gpu",
    "queues": "root.ml",
    "labels": "rack",
    "used": "worker",
    "stages": "worker",
}
"""Field with a mapping → the key in the example."""
VALUES: dict[str, Any] = {
    "accepted": True,
    "by": ["user"],
    "cause": "demand",
    "complete": True,
    "count": 2,
    "code": "no capacity",
    "comes": ["1 task of job 16 ends in 40min at the latest (time limit)"],
    "command": ["python", "-c", "print('hello')"],
    "cpu": 25,
    "cpus": [4.0],
    "differences": [{"key": "default.queues.root.ml.share", "before": 50, "after": 60, "what": "setting"}],
    "disabled": 0,
    "ended": 1790000031.5,
    "entitlement": [40.0, 40.0],
    "event": "tasks running",
    "exit_code": 0,
    "expires": 1790043200.0,
    "fields": {"stage": "worker", "tasks": 2, "attempt": 1, "node": "n1"},
    "files": [{"name": "out/model.pt", "size": 2**20}],
    "group": {"user": "ann"},
    "groups": ["ml"],
    "held": {"cpu": 4},
    "hours": {"cpu": 41.5, "gpu": 8.25, "memory": 178241142784.0},
    "idle": -2,
    "id": "17",
    "index": 0,
    "indices": [0, 2],
    "job": "17",
    "key": "3q2-7w",
    "kind": "new",
    "labels": {"rack": "r1"},
    "leads": ["default"],
    "leaf": True,
    "limit": None,
    "loan": [0.0, 15.0],
    "match": "^ci-",
    "max": 10,
    "memory": [MEMORY],
    "min": 2,
    "min_free": {"gpu": 4},
    "name": "train",
    "names": ["n1"],
    "node": "n1",
    "nodes": 2,
    "not_before": None,
    "number": 17,
    "of": [0],
    "order": 3,
    "ordered": 2,
    "outcome": "succeeded",
    "partition": "default",
    "path": "root.default",
    "paused_until": None,
    "scope": {"read_only": False, "queue": "root.ml", "budget": {"gpu": 10.0}, "left": {"gpu": 9.5}, "confirm": False},
    "pending": 3,
    "position": 0,
    "provider": "command",
    "queue": "root.default",
    "ready": True,
    "rebalance_threshold": 20,
    "reported": True,
    "resources": {"cpu": 1, "memory": MEMORY},
    "role": "user",
    "secret": "fl_this-is-shown-once",
    "shape": "cpu=1 memory=512Mi",
    "share": 40,
    "shrank": None,
    "stage": "worker",
    "state": "running",
    "stopping": 0,
    "tasks": 2,
    "total": 4,
    "until": 1790604800.0,
    "use": [35.0, 55.0],
    "used": {"cpu": 2},
    "user": "ann",
    "values": ["r1"],
    "version": 3,
    "waiting_since": None,
    "Ask.reason": NO_CAPACITY,
    "Ask.waiting_since": TIME,
    "Bar.ended": None,
    "Bar.outcome": "",
    "Closure.reason": "new switch",
    "Config.partitions": CONFIG["partitions"],
    "DryRun.sentence": f"submitted now, it {WAITS_FOR}",
    "Eta.started": None,
    "Eta.state": "pending",
    "Eta.start": 1790001500.0,
    "Eta.median": 1790001620.0,
    "Eta.earliest": 1790000600.0,
    "Eta.latest": 1790003600.0,
    "Eta.text": "job 17 starts in about 25min (90 % sure: in 10min to 1h)",
    "Explanation.state": "pending",
    "Explanation.sentence": f"job 17 {WAITS_FOR}",
    "Health.version": "0.2.0",
    "Hold.held": {"n1": {"gpu": 4}},
    "Hold.nodes": ["n1", "n2"],
    "Job.ended": None,
    "LeftMachine.reason": "no credentials",
    "Manager.name": "k8s",
    "ManagerAsk.ask": "executor",
    "ManagerAsk.waiting": [3, 4],
    "ManagerNode.name": "k1",
    "ManagerNode.state": "up",
    "Node.name": "n1",
    "Node.resources": {"cpu": 8, "memory": MEMORY},
    "Node.state": "up",
    "Node.until": None,
    "NodeRow.devices": "A0",
    "NodeRow.memory": 10,
    "NodeRow.state": 0,
    "NodeMap.at": "1f0c9a3e-1",
    "NodeMap.states": ["up", "disconnected", "draining", "disabled", "lost"],
    "NodeTasks.devices": [0, 0],
    "Orphan.name": "gpu-1-4",
    "Orphan.note": "i-0abc",
    "Pool.name": "gpu",
    "Pool.resources": {"cpu": 32, "memory": 2**38, "gpu": 8},
    "PoolOrder.nodes": ["gpu-3-0", "gpu-3-1"],
    "Promise.held": {"n3": {"gpu": 1}},
    "Promise.nodes": ["n3"],
    "Partition.name": "default",
    "Queue.state": "active",
    "PastJob.state": "succeeded",
    "PastJob.tasks": {"succeeded": 2},
    "Queue.order": "fair",
    "QueuePast.share": [40, 40],
    "QueuePast.times": [1789996400.0, 1790000000.0],
    "RecordedTrace.trace": {
        "nodes": [{"name": "n1", "resources": {"cpu": 8}}],
        "jobs": [{"id": "16", "submit": "0s", "stages": [{"name": "main", "count": 2, "duration": "31.5s"}]}],
    },
    "Secrets.secrets": ["registry-password"],
    "Sentences.sentences": {"17": f"job 17 {WAITS_FOR}"},
    "Server.id": "5b8f0c1d2e3a4f60",
    "Server.state": "up",
    "Server.url": "https://one:7070",
    "Shares.shares": {"root.ml": 60, "root.ci": 40},
    "Stage.name": "worker",
    "StoryLine.text": "tasks running: stage worker, tasks 2, attempt 1, node n1",
    "Task.exit_code": None,
    "Token.id": "3f9a0c1b2d4e",
    "Token.node": "",
    "Token.partition": "",
    "Token.expires": None,
    "Token.note": "laptop",
    "Token.uses": 0,
    "UpdateItem.name": "k1",
    "UpdateItem.what": "node",
    "Waiting.reason": NO_CAPACITY,
    "Waiting.remedies": [
        {
            "text": "1 task of job 16 on n1 ends",
            "operator": True,
            "steps": [{"code": "end tasks", "text": "1 task of job 16 on n1 ends", "operator": True, "jobs": ["16"]}],
        }
    ],
    "Waiting.text": f"worker: 2 tasks wait, first in queue root.default; {NO_CAPACITY}",
}
"""Field, with or without its type → its value in examples."""


def answer_of(row: Row) -> Any:
    """Return the example of an answer; None for a stream."""
    return example_of(row.answer) if row.route.media == JSON and row.operation is not Openapi else None


def example_of(kind: Any, field: str = "") -> Any:
    """Return an example of a type as JSON. `field` is the name of the field with this type, if any."""
    kind = bare(kind)
    arguments = get_args(kind)
    if isinstance(kind, UnionType):
        return example_of(arguments[0], field)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        found = {each.encode_name: _value(kind.__name__, each) for each in msgspec.structs.fields(kind)}
        return list(found.values()) if kind.__struct_config__.array_like else found
    if get_origin(kind) is Literal:
        return arguments[0]
    is_nested = bool(arguments) and not {*arguments} <= {str, int, float, int | float}
    if get_origin(kind) is list:
        return [example_of(arguments[0], field)] if is_nested else []
    if get_origin(kind) is dict:
        return {KEYS[field]: example_of(arguments[1], field)} if is_nested else {}
    return TIME if field in TIMES else SIMPLE[kind]


def _value(owner: str, field: msgspec.structs.FieldInfo) -> Any:
    for name in (f"{owner}.{field.name}", field.name):
        if name in VALUES:
            with suppress(msgspec.ValidationError):  # the value belongs to a field of another type
                value = msgspec.convert(VALUES[name], field.type)
                return msgspec.to_builtins(value)
    default = field.default if field.default_factory is NODEFAULT else field.default_factory()
    return example_of(field.type, field.name) if default is NODEFAULT else default
