"""Access control: every route is tried without a token, with a wrong one and in each role."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from fairlead.core.errors import Refused
from fairlead.http.middleware import OPEN_PATHS, Bounds
from fairlead.identity.tokens import Tokens
from fairlead.wire import api as wire
from tests.http.serving import JOB, Serving, serving, submit

# Operation → the least role that may do it.
ROLES = {
    "user": "submit dryRun submitMany jobs job tasks explain eta etas story log results resultFile resultArchive "
    "bill waits history attempts kill hold release requeue stopTasks scale submitPipeline updateJob rerun table "
    "jobUsage promisedStarts "
    "setPriority tryPriority nodes node queues queue lanes "
    "storeContent content "
    "holds cancelAsk partitions usage usageReport pools pool watch whoami secrets setSecret removeSecret metrics login "
    "logout map live timeline pastMap pastQueues sentences mapTasks loans "
    "closures openTunnel",
    "manager": "registerManager updateManager managerState managerWaiting managerQueues managerEvents",
    "operator": "moveNode closeNodes openNodes removeNode revokeNode moveQueue bringToFront resetLane releaseHold "
    "markReady config validateConfig shares setShares managers removeManager "
    "movePool scalePool servers drainServer enableServer whatIf trace",
    "admin": "applyConfig setPartition removePartition tokens createToken revokeToken",
    "public": "healthz readyz",
}
LEAST = {operation: role for role, operations in ROLES.items() for operation in operations.split()}
ACTIONS = {"tasks": "kill", "nodes": "drain", "queues": "stop", "pools": "pause", "": ""}
MAY = {
    "join": set(),
    "manager": {"manager"},
    "user": {"user"},
    "operator": {"user", "manager", "operator"},
    "admin": {"user", "manager", "operator", "admin"},
}


def operations(site: Serving) -> list[tuple[str, str, str]]:
    """Return operation, method and path of each route, with values for its parameters."""
    paths = site.as_owner.get("/api/v1/openapi.json").json()["paths"]
    return [
        (
            operation["operationId"],
            method.upper(),
            path.replace("{action}", next(action for noun, action in ACTIONS.items() if noun in path))
            .replace("{", "x")
            .replace("}", ""),
        )
        for path, methods in paths.items()
        for method, operation in methods.items()
    ]


def ask(client: httpx.Client, method: str, path: str) -> int:
    with client.stream(method, path, json={} if method in ("POST", "PUT") else None) as answer:
        return answer.status_code


def test_every_operation_has_a_least_role(site: Serving) -> None:
    assert {operation for operation, _, _ in operations(site)} == set(LEAST)


def test_no_route_without_a_token(tmp_path: Path) -> None:
    with serving(tmp_path, bounds=Bounds(failures_burst=10_000)) as site:
        for operation, method, path in operations(site):
            wanted = 200 if LEAST[operation] == "public" else 401
            for client in (site.client(), site.client("fl_wrong"), site.client(site.owner[:-1])):
                assert ask(client, method, path) == wanted, (operation, path)
    assert {"/healthz", "/readyz", "/api/v1/openapi.json"} == OPEN_PATHS


@pytest.mark.parametrize("role", MAY)
def test_every_route_in_each_role(site: Serving, role: Any) -> None:
    client = site.as_user("ann", role)
    for operation, method, path in operations(site):
        status = ask(client, method, path)
        least = LEAST[operation]
        allowed = least == "public" or least in MAY[role]
        assert (status == 403) != allowed, (operation, path, status)
        assert status < 500


def test_users_see_and_touch_only_their_own(site: Serving) -> None:
    site.node("n1", cpu=1)
    ann, bob = site.as_user("ann"), site.as_user("bob")
    hers, other = submit(ann, {"id": "hers", **JOB}), submit(ann, {"id": "other", **JOB})
    assert [job["id"] for job in ann.get("/api/v1/jobs").json()["jobs"]] == [other, hers]
    assert bob.get("/api/v1/jobs").json()["jobs"] == []
    assert bob.get("/api/v1/jobs", params={"user": "ann"}).json()["jobs"] == []
    for method, path, body in (
        ("GET", f"/api/v1/jobs/{hers}", None),
        ("GET", f"/api/v1/jobs/{hers}/tasks", None),
        ("GET", f"/api/v1/jobs/{hers}/explain", None),
        ("GET", f"/api/v1/jobs/{hers}/eta", None),
        ("POST", "/api/v1/eta", {"jobs": [hers]}),
        ("GET", f"/api/v1/jobs/{hers}/story", None),
        ("POST", f"/api/v1/jobs/{hers}/kill", None),
        ("POST", f"/api/v1/jobs/{hers}/scale", {"count": 3}),
        ("POST", f"/api/v1/jobs/{hers}/scale", {"stage": "main", "count": 3}),
        ("POST", f"/api/v1/jobs/{hers}/priority", {"priority": -1}),
        ("POST", f"/api/v1/jobs/{hers}/update", {"labels": {"a": "b"}}),
        ("POST", "/api/v1/lanes/cancel", {"job": hers, "stage": "main"}),
    ):
        there = bob.request(method, path, json=body)
        nowhere = bob.request(
            method, path.replace(hers, "none"), json=body and json.loads(json.dumps(body).replace(hers, "none"))
        )
        assert (there.status_code, nowhere.status_code) == (404, 404), path
        # The message must not show that a job exists either.
        assert there.text.replace(hers, "none") == nowhere.text
    lanes = bob.get("/api/v1/lanes").json()["lanes"]
    assert [(lane["tasks"], lane["first"]) for lane in lanes] == [(1, [])]
    assert ann.get("/api/v1/lanes").json()["lanes"][0]["first"][0]["job"] == other
    assert ann.post(f"/api/v1/jobs/{hers}/kill").status_code == 200


def test_a_user_cannot_be_another(site: Serving) -> None:
    ann = site.as_user("ann", groups=("ml",))
    answer = ann.post("/api/v1/jobs", json={"user": "bob", **JOB})
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert site.as_owner.get(f"/api/v1/jobs/{submit(site.as_owner, {'user': 'bob', **JOB})}").json()["user"] == "bob"
    assert ann.get("/api/v1/whoami").json() == {
        "user": "ann",
        "groups": ["ml"],
        "role": "user",
        "scope": msgspec.to_builtins(wire.Scope()),
    }


def test_queue_lists_are_kept(tmp_path: Path) -> None:
    queues = {
        "root": {"ml": {"submit": ["@ml"]}, "ops": {"submit": ["carl"], "admin": ["carl"]}, "open": {"submit": ["*"]}}
    }
    with serving(tmp_path, {"partitions": {"default": {"queues": queues}}}) as site:
        ann, bob, carl = site.as_user("ann", groups=("ml",)), site.as_user("bob"), site.as_user("carl")
        assert ann.post("/api/v1/jobs", json={"queue": "root.ml", **JOB}).status_code == 201
        assert bob.post("/api/v1/jobs", json={"queue": "root.ml", **JOB}).status_code == 403
        # Groups are what the token says, not what a document says.
        assert bob.post("/api/v1/jobs", json={"queue": "root.ml", "groups": ["ml"], **JOB}).status_code == 403
        batch = bob.post("/api/v1/jobs/batch", json={"jobs": [{"queue": "root.ml", **JOB}]}).json()["items"]
        assert batch[0]["problem"]["status"] == 403
        name = submit(site.as_owner, {"queue": "root.ops", "user": "bob", **JOB})
        assert carl.get(f"/api/v1/jobs/{name}").status_code == 200  # an administrator of the queue
        assert ann.get(f"/api/v1/jobs/{name}").status_code == 404
        assert carl.post(f"/api/v1/jobs/{name}/kill").status_code == 200


# -- tokens ------------------------------------------------------------------------------------------------------


def test_tokens_are_made_and_revoked(site: Serving) -> None:
    made = site.as_owner.post("/api/v1/tokens", json={"role": "user", "user": "ann", "groups": ["a"], "note": "x"})
    assert made.status_code == 201
    secret, token = made.json()["secret"], made.json()["token"]
    with site.client(secret) as client:
        assert client.get("/api/v1/whoami").json()["user"] == "ann"
        assert token in site.as_owner.get("/api/v1/tokens").json()["tokens"]
        assert site.as_owner.delete(f"/api/v1/tokens/{token['id']}").status_code == 200
        assert client.get("/api/v1/whoami").status_code == 401
    assert site.as_owner.delete(f"/api/v1/tokens/{token['id']}").status_code == 404
    for wrong in (
        {"role": "user"},
        {"user": "ann"},
        {"role": None, "user": "ann"},
        {"role": "king", "user": "ann"},
        {"role": "user", "user": "a b"},
        {"role": "user", "user": "ann", "node": "n1"},
        {"role": "user", "user": "ann", "more": 1},
        {"role": "user", "user": "ann", "uses": 1},
        {"role": "join", "user": "ann"},
        {"role": "join", "uses": 0},
        {"role": "join", "node": "n1", "uses": 2},
        {"role": "agent", "user": "ann"},
    ):
        assert site.as_owner.post("/api/v1/tokens", json=wrong).status_code == 422


def test_the_file_has_no_secret_and_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    tokens = Tokens(path)
    secret, _ = tokens.create("user", "ann")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert secret not in path.read_text() and secret[3:] not in path.read_text()
    found = Tokens(path).find(secret)
    assert found is not None and found.user == "ann"

    def standing(tokens: Tokens) -> str:
        return tokens.standing(tmp_path / "token", "owner", "admin", "me", "the owner's")

    owner = standing(tokens)
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
    assert standing(Tokens(path)) == owner
    (tmp_path / "token").unlink()
    other = standing(Tokens(path))
    again = Tokens(path)
    assert other != owner and again.find(owner) is None and again.find(other) is not None
    with pytest.raises(Refused):
        again.revoke("nothing")


def test_a_token_expires(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "tokens")
    over, _ = tokens.create("user", "ann", expires_in=-1.0)
    later, _ = tokens.create("user", "ann", expires_in=1_000.0)
    assert tokens.find(over) is None and tokens.find(later) is not None


def test_a_job_that_may_not_be_seen_cannot_be_waited_for(tmp_path: Path) -> None:
    queues = {"root": {"ml": {}, "ops": {"submit": ["*"], "admin": ["carl"]}}}
    with serving(tmp_path, {"partitions": {"default": {"queues": queues}}}) as site:
        ann, bob, carl = site.as_user("ann"), site.as_user("bob"), site.as_user("carl")
        hers = submit(ann, {"id": "hers", "queue": "root.ops", **JOB})
        failed = submit(ann, {"id": "failed", "queue": "root.ops", **JOB})
        ann.post(f"/api/v1/jobs/{failed}/kill")
        said = set()
        for name in (hers, failed, "none", "1"):
            answer = bob.post("/api/v1/jobs", json={"queue": "root.ml", "after": [name], **JOB})
            said.add((answer.status_code, answer.text.replace(name, "none")))
        # Neither the code nor the message shows that a job exists, or how it ended.
        assert len(said) == 1
        for client in (ann, carl, site.as_owner):
            assert client.post("/api/v1/jobs", json={"queue": "root.ops", "after": [hers], **JOB}).status_code == 201


def test_open_paths_tell_nothing_more(site: Serving) -> None:
    stranger = site.client()
    for path in ("/healthz", "/readyz"):
        assert str(site.folder) not in stranger.get(path).text
        for more in ("/", "/x", "//", "/../api/v1/jobs", "%2f", ";x"):
            assert stranger.get(path + more).status_code in (400, 401), path + more
            assert site.as_owner.get(path + more).status_code < 500
