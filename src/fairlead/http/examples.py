"""An example request and answer for every operation. The tests send the requests and compare the answers."""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead.wire.api import Done
from fairlead.wire.operation import JSON, Row

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

STAGE_ANSWER = {
    "name": "worker",
    "count": 2,
    "min": 2,
    "resources": {"cpu": 1, "memory": 536870912},
    "command": ["python", "-c", "print('hello')"],
    "waiting": 0,
    "running": 2,
    "ended": {},
}
JOB_ANSWER = {
    "id": "17",
    "number": 17,
    "partition": "default",
    "name": "train",
    "user": "ann",
    "queue": "root.default",
    "state": "running",
    "priority": 0,
    "labels": {},
    "after": [],
    "submitted": 1790000000.25,
    "waiting_since": None,
    "ended": None,
    "reason": "",
    "stages": [STAGE_ANSWER],
}
TASK_ANSWER = {
    "stage": "worker",
    "index": 0,
    "state": "running",
    "attempt": 1,
    "tries_used": 0,
    "node": "n1",
    "devices": [],
    "exit_code": None,
    "reason": "",
    "note": "",
    "started": 1790000000.5,
}
NODE_ANSWER = {
    "name": "n1",
    "state": "up",
    "pool": "",
    "manager": "",
    "labels": {"rack": "r1"},
    "taints": [],
    "users": [],
    "resources": {"cpu": 8, "memory": 17179869184},
    "used": {"cpu": 2, "memory": 1073741824},
    "devices": [],
    "tasks": 2,
    "held": {},
    "until": None,
    "avoided": False,
    "credential": "valid",
    "credential_expires": 1792592000.0,
}
QUEUE_ANSWER = {
    "path": "root.default",
    "state": "active",
    "leaf": True,
    "order": "fair",
    "share": 100,
    "guarantee": {},
    "limit": None,
    "used": {"cpu": 2},
    "jobs": 1,
    "running": 1,
    "asks": 0,
    "entitlement_percent": 100.0,
    "use_percent": 25.0,
    "loan_percent": 0.0,
    "past_percent": 12.5,
    "users": [{"user": "ann", "use_percent": 25.0, "past_percent": 12.5}],
}
POOL_USE = {
    "ready": True,
    "total": 4,
    "available": 1,
    "pending": 3,
    "idle": -2,
    "ordered": 2,
    "disabled": 0,
}
POOL_ANSWER = {
    "name": "gpu",
    "partition": "default",
    "provider": "command",
    "resources": {"cpu": 32, "memory": 274877906944, "gpu": 8},
    "labels": {},
    "taints": [],
    "min": 0,
    "max": 10,
    "min_idle": 0,
    "max_idle": 0,
    "idle_for": 600.0,
    "cost": 1,
    "min_free": {"gpu": 4},
    "use": POOL_USE,
    "paused": False,
    "paused_until": None,
    "problem": "",
    "grew": 1790000000.25,
    "shrank": None,
    "orders": [
        {
            "order": 3,
            "cause": "demand",
            "since": 1790000000.25,
            "nodes": ["gpu-3-0", "gpu-3-1"],
            "tasks": 16,
            "jobs": [{"job": "17", "stage": "worker", "tasks": 16}],
        }
    ],
    "leaving": [],
    "orphans": [{"name": "gpu-1-4", "note": "i-0abc"}],
}
CONFIG = {"partitions": {"default": {"queues": {"root": {"ml": {"share": 60}, "ci": {"share": 40}}}}}}
DIFFERENCE = {"key": "default.queues.root.ml.share", "before": 50, "after": 60, "what": "setting"}
TOKEN = {
    "id": "3f9a0c1b2d4e",
    "role": "user",
    "user": "ann",
    "groups": ["ml"],
    "partition": "",
    "pool": "",
    "node": "",
    "users": [],
    "uses": 0,
    "note": "laptop",
    "created": 1790000000.0,
    "expires": None,
}
PAST_JOB = {
    "id": "17",
    "number": 17,
    "partition": "default",
    "name": "train",
    "user": "ann",
    "queue": "root.default",
    "state": "succeeded",
    "reason": "",
    "submitted": 1790000000.25,
    "ended": 1790000031.5,
    "tasks": {"succeeded": 2},
    "started": 1790000000.5,
    "labels": {"team": "vision"},
}
USED = {
    "group": {},
    "jobs": 12,
    "attempts": 340,
    "preempted": 2,
    "hours": {"cpu": 41.5, "gpu": 8.25, "memory": 178241142784.0},
    "wait_mean": 71.5,
    "wait_median": 20.25,
    "wait_95": 310.0,
}
ATTEMPT = {
    "stage": "worker",
    "indices": [0, 2],
    "attempt": 1,
    "outcome": "succeeded",
    "node": "n1",
    "exit_code": 0,
    "reason": "",
    "started": 1790000000.5,
    "ended": 1790000031.5,
}
ETA = {
    "job": "17",
    "state": "pending",
    "started": None,
    "start": 1790001500.0,
    "median": 1790001620.0,
    "earliest": 1790000600.0,
    "latest": 1790003600.0,
    "not_before": None,
    "note": "",
    "text": "job 17 starts in about 25min (90 % sure: in 10min to 1h)",
}
MAP = {
    "at": "1f0c9a3e-1",
    "partition": "default",
    "now": 1790000000.25,
    "ready": True,
    "states": ["up", "disconnected", "draining", "disabled", "lost"],
    "names": ["n1"],
    "cpus": [4.0],
    "memory": [8589934592],
    "pools": {"values": [], "of": [-1]},
    "labels": {"rack": {"values": ["r1"], "of": [0]}},
    "rows": [[0, 0, 25, 10, 1, "A0"]],
    "queues": [QUEUE_ANSWER],
}
HEALTH = {"version": "0.1.0", "ready": True, "partitions": {"default": True}, "problem": ""}

WAITS_FOR = "waits for 2 CPUs at once (2 tasks with 1 each): 1 is free on n2, enough for 1"
FIT = "1 of 2 fit now: 2 nodes have too few CPUs free; 1 has capacity, but not for all 2"
WAITING_ANSWER = {
    "stage": "worker",
    "kind": "new",
    "count": 2,
    "position": 0,
    "code": "no capacity",
    "reason": FIT,
    "text": f"worker: 2 tasks wait, first in queue root.default; {FIT}",
    "comes": ["1 task of job 16 ends in 40min at the latest (time limit)"],
    "no_hold": "",
    "remedies": [
        {
            "text": "1 task of job 16 on n1 ends",
            "operator": True,
            "steps": [
                {
                    "code": "end tasks",
                    "text": "1 task of job 16 on n1 ends",
                    "operator": True,
                    "node": "n1",
                    "tasks": 1,
                    "jobs": ["16"],
                }
            ],
        }
    ],
}

SENT: dict[str, dict[str, Any]] = {
    "submit": JOB,
    "submitMany": {"jobs": [JOB, JOB]},
    "dryRun": JOB,
    "sentences": {"jobs": ["17"]},
    "etas": {"jobs": ["17"]},
    "whatIf": {"add_nodes": {"gpu": 8}, "shares": {"root.default": 40}, "priorities": {"17": 9}},
    "closeNodes": {"labels": {"rack": "r1"}, "lasts": "2h", "reason": "new switch"},
    "openNodes": {"labels": {"rack": "r1"}},
    "stopTasks": {"stage": "worker", "indices": [0, 1]},
    "scale": {"stage": "worker", "count": 4},
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

ANSWERED: dict[str, Any] = {
    "submit": {"job": "17", "partition": "default", "warning": ""},
    "submitMany": {"items": [{"job": name, "problem": None, "warning": ""} for name in ("17", "18")]},
    "jobs": {"jobs": [JOB_ANSWER], "next": ""},
    "job": JOB_ANSWER,
    "tasks": {"tasks": [TASK_ANSWER], "next": ""},
    "explain": {
        "job": "17",
        "state": "pending",
        "waiting": [WAITING_ANSWER],
        "sentence": f"job 17 {WAITS_FOR}",
    },
    "dryRun": {
        "partition": "default",
        "queue": "root.default",
        "starts": False,
        "sentence": f"submitted now, it {WAITS_FOR}",
        "placements": [],
        "waiting": [WAITING_ANSWER],
    },
    "sentences": {"sentences": {"17": f"job 17 {WAITS_FOR}"}},
    "eta": ETA,
    "etas": {"etas": [ETA]},
    "whatIf": {
        "compared": 3,
        "earlier": 1,
        "later": 0,
        "same": 1,
        "no_longer": 0,
        "never": 1,
        "unknown": 0,
        "jobs": [
            {
                "job": "17",
                "name": "train",
                "user": "ann",
                "queue": "root.ml",
                "wait_before": 1500.0,
                "wait_after": 0.0,
                "never_before": False,
                "never_after": False,
            }
        ],
        "mean_wait_before": 1200.0,
        "mean_wait_after": 450.0,
        "utilisation_before": 0.93,
        "utilisation_after": 0.71,
        "note": "",
    },
    "story": {
        "job": "17",
        "lines": [
            {
                "at": 1790000000.5,
                "event": "tasks running",
                "fields": {"stage": "worker", "tasks": 2, "attempt": 1, "node": "n1"},
                "text": "tasks running: stage worker, tasks 2, attempt 1, node n1",
            }
        ],
        "complete_since": 1789990000.0,
    },
    "trace": {
        "trace": {
            "nodes": [{"name": "n1", "resources": {"cpu": 8}}],
            "jobs": [
                {
                    "id": "16",
                    "submit": "0s",
                    "name": "train",
                    "user": "ann",
                    "queue": "root.ml",
                    "stages": [{"name": "main", "count": 2, "resources": {"cpu": 1}, "duration": "31.5s"}],
                }
            ],
        },
        "since": 1790000000.5,
        "not_ended": 1,
        "never_ran": 2,
        "after_left_out": 0,
    },
    "tryPriority": {
        "tasks": 2,
        "stops": [{"job": "7", "name": "sweep", "user": "bob", "stage": "main", "node": "n1", "tasks": 2}],
    },
    "nodes": {"nodes": [NODE_ANSWER], "next": ""},
    "node": NODE_ANSWER,
    "closures": {"closures": [{"labels": {"rack": "r1"}, "until": 1790007200.0, "reason": "new switch"}]},
    "closeNodes": {"note": "4 nodes are disabled"},
    "openNodes": {"note": "4 nodes are up"},
    "queues": {"queues": [QUEUE_ANSWER]},
    "queue": QUEUE_ANSWER,
    "lanes": {
        "lanes": [
            {
                "queue": "root.default",
                "shape": "cpu=1 memory=512Mi",
                "asks": 1,
                "tasks": 2,
                "first": [
                    {
                        "job": "17",
                        "stage": "worker",
                        "kind": "new",
                        "count": 2,
                        "asked": 1790000000.25,
                        "waiting_since": 1790000000.25,
                        "name": "train",
                        "user": "ann",
                        "reason": "no free capacity for 2 tasks at once",
                    }
                ],
            }
        ],
        "ready": True,
    },
    "holds": {
        "holds": [
            {
                "job": "17",
                "stage": "worker",
                "tasks": 8,
                "nodes": ["n1", "n2"],
                "since": 1790000000.25,
                "until": 1790086400.25,
                "held": {"n1": {"gpu": 4}, "n2": {"gpu": 4}},
            }
        ],
        "promises": [
            {
                "job": "18",
                "stage": "worker",
                "tasks": 1,
                "nodes": ["n3"],
                "since": 1790000000.25,
                "stopping": 1,
                "ordered": False,
                "held": {"n3": {"gpu": 1}},
            }
        ],
    },
    "partitions": {
        "partitions": [{"name": "default", "ready": True, "nodes": 1, "jobs": 1, "waiting_for": [], "leader": ""}]
    },
    "servers": {
        "servers": [{"id": "5b8f0c1d2e3a4f60", "url": "https://one:7070", "state": "up", "leads": ["default"]}]
    },
    "usage": {
        "partition": "default",
        "ready": True,
        "pools": {"gpu": POOL_USE},
        "without_pool": POOL_USE,
    },
    "pools": {"partition": "default", "pools": [POOL_ANSWER]},
    "pool": POOL_ANSWER,
    "scalePool": {"note": "2 nodes ordered"},
    "config": {"version": 3, **CONFIG},
    "validateConfig": {"version": 3, "differences": [DIFFERENCE]},
    "applyConfig": {"version": 4, "differences": [DIFFERENCE]},
    "setPartition": {"version": 5, "differences": []},
    "removePartition": {
        "version": 6,
        "differences": [{"key": "night", "before": {}, "after": None, "what": "partition"}],
        "losses": [{"key": "night", "jobs": 3, "nodes": 2}],
        "machines": [{"partition": "night", "pool": "gpu", "name": "gpu-1-4", "reason": "no credentials"}],
    },
    "shares": {
        "shares": {"root.ml": 60, "root.ci": 40},
        "requestors": [{"match": "^ci-", "queue": "root.ci"}],
        "rebalance_threshold": 20,
        "rebalance_after": 240.0,
    },
    "setShares": {"version": 4, "differences": []},
    "secrets": {"secrets": ["registry-password"]},
    "managers": {"managers": [{"name": "k8s", "registered": 1790000000.0, "nodes": 12, "jobs": 3, "reported": True}]},
    "updateManager": {"items": [{"what": "node", "name": "k1", "accepted": True, "reason": ""}]},
    "managerState": {
        "seq": 812,
        "nodes": [{"name": "k1", "state": "up", "reason": ""}],
        "jobs": [
            {
                "job": "app-1",
                "over": False,
                "asks": [
                    {
                        "ask": "executor",
                        "count": 4,
                        "live": [{"node": "k1", "indices": [0, 3], "state": "running", "cause": ""}],
                        "waiting": [3, 4],
                        "ended": [],
                    }
                ],
            }
        ],
    },
    "managerWaiting": {
        "jobs": [
            {
                "job": "app-1",
                "code": "no capacity",
                "reason": "0 of 1 fit now: 1 node has too few CPUs free",
                "missing": True,
            }
        ]
    },
    "history": {"jobs": [PAST_JOB], "next": ""},
    "usageReport": {
        "by": ["user"],
        "since": 1790000000.0,
        "until": 1790604800.0,
        "rows": [{**USED, "group": {"user": "ann"}}],
        "total": USED,
    },
    "attempts": {
        "attempts": [ATTEMPT],
        "used": {"worker": {"attempts": 2, "cpu_seconds": 0.25, "most_memory": 12582912}},
        "next": "",
    },
    "results": {
        "tasks": [
            {
                "stage": "main",
                "index": 0,
                "attempt": 1,
                "files": [{"name": "out/model.pt", "size": 1048576}],
                "warning": "",
            }
        ],
        "waiting": 0,
        "next": "",
    },
    "whoami": {"user": "ann", "groups": ["ml"], "role": "user"},
    "login": {"user": "ann", "groups": ["ml"], "role": "user", "key": "3q2-7w", "expires": 1790043200.0},
    "map": MAP,
    "mapTasks": {
        "tasks": [
            {
                "node": "n1",
                "job": "17",
                "name": "train",
                "stage": "worker",
                "user": "ann",
                "state": "running",
                "tasks": 2,
                "indices": [0, 1],
                "resources": {"cpu": 1, "gpu": 0.5},
                "devices": [0, 0],
                "since": 1789998000.0,
                "ends": 1790001600.0,
            }
        ],
        "more": False,
    },
    "loans": {
        "loans": [
            {
                "queue": "root.ml",
                "percent": 15.0,
                "returns": [{"at": 1790001600.0, "percent": 5.0}, {"at": 1790003600.0, "percent": 10.0}],
                "unknown_percent": 5.0,
            }
        ]
    },
    "pastMap": {"since": 1789990000.0, "map": MAP},
    "pastQueues": {
        "since": 1789990000.0,
        "queues": {
            "root.ml": {
                "times": [1789996400.0, 1790000000.0],
                "share": [40, 40],
                "entitlement": [40.0, 40.0],
                "use": [35.0, 55.0],
                "loan": [0.0, 15.0],
            }
        },
    },
    "timeline": {
        "since": 1789996400.0,
        "until": 1790000000.0,
        "bars": [
            {
                "node": "n1",
                "job": "17",
                "name": "train",
                "stage": "worker",
                "user": "ann",
                "queue": "root.ml",
                "tasks": 2,
                "resources": {"cpu": 1},
                "started": 1789998000.0,
                "ended": None,
                "outcome": "",
            }
        ],
        "complete": True,
    },
    "tokens": {"tokens": [TOKEN]},
    "createToken": {"secret": "fl_this-is-shown-once", "token": TOKEN},
    "healthz": HEALTH,
    "readyz": HEALTH,
}
"""Operation → an answer, without what is the default of its type."""


def answer_of(row: Row) -> Any:
    """Return the example of an answer; None for a stream."""
    if row.route.media != JSON or (row.operation_id not in ANSWERED and row.answer is not Done):
        return None
    return msgspec.to_builtins(msgspec.convert(ANSWERED.get(row.operation_id, {}), row.answer))
