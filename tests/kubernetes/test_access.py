"""How an adapter logs in to a real API server with RBAC: client certificates, and the files of a pod."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead.client.async_pool import Address, Http
from fairlead.kubernetes import kubeconfig
from fairlead.kubernetes.kubeconfig import find_address, in_cluster, read_kubeconfig
from tests.kubernetes.cluster.control_plane import ControlPlane, control_plane

pytestmark = pytest.mark.kubernetes


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with control_plane(tmp_path_factory.mktemp("access"), "RBAC", kubelets=False) as plane:
        yield plane


def who(address: Address) -> Any:
    """Return the user that the API server takes the client for."""

    async def ask() -> Any:
        http = Http(address)
        try:
            body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
            path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
            reply = await http.call("POST", path, json.dumps(body).encode())
            assert reply.status == 201, reply.content
            return json.loads(reply.content)["status"]["userInfo"]
        finally:
            http.close()

    return asyncio.run(ask())


@pytest.mark.parametrize("inline", [True, False])
def test_a_client_certificate(guarded: ControlPlane, tmp_path: Path, inline: bool) -> None:
    certificate, key = guarded.users.issue("ann", "team")
    document = yaml.safe_load(guarded.kubeconfig().read_text())
    if inline:
        user = {
            "client-certificate-data": base64.b64encode(certificate).decode(),
            "client-key-data": base64.b64encode(key).decode(),
        }
    else:
        (tmp_path / "ann.crt").write_bytes(certificate)
        (tmp_path / "ann.key").write_bytes(key)
        user = {"client-certificate": "ann.crt", "client-key": "ann.key"}  # beside the kubeconfig file
    document["users"][0]["user"] = user
    file = tmp_path / "config"
    file.write_text(yaml.safe_dump(document))
    address, namespace = read_kubeconfig(file)
    found = who(address)
    assert found["username"] == "ann" and "team" in found["groups"] and namespace == "default"


def test_the_service_account_of_a_pod(guarded: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The token is a real one, and is read again when the kubelet has replaced it."""

    def token(account: str) -> str:
        path = "/api/v1/namespaces/default/serviceaccounts"
        guarded.request("POST", path, {"metadata": {"name": account}})
        answer = guarded.request("POST", f"{path}/{account}/token", {"spec": {"expirationSeconds": 600}})
        return str(json.loads(answer)["status"]["token"])

    (tmp_path / "token").write_text(token("one") + "\n")
    (tmp_path / "namespace").write_text("default")
    (tmp_path / "ca.crt").write_bytes(guarded.authority.read_bytes())
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(guarded.port))
    monkeypatch.setattr(kubeconfig, "in_cluster", lambda: in_cluster(tmp_path))
    address, namespace = find_address()
    assert namespace == "default"
    assert who(address)["username"] == "system:serviceaccount:default:one"
    (tmp_path / "token").write_text(token("two"))
    assert who(address)["username"] == "system:serviceaccount:default:one"
    monkeypatch.setattr(kubeconfig, "TOKEN_AGE", 0.0)
    assert who(address)["username"] == "system:serviceaccount:default:two"


def test_a_certificate_of_another_authority_is_refused(guarded: ControlPlane, tmp_path: Path) -> None:
    from tests.kubernetes.cluster.certificates import Authority

    document = yaml.safe_load(guarded.kubeconfig().read_text())
    Authority(tmp_path / "other.crt")
    document["clusters"][0]["cluster"]["certificate-authority"] = str(tmp_path / "other.crt")
    file = tmp_path / "config"
    file.write_text(yaml.safe_dump(document))
    with pytest.raises(Exception, match="certificate verify failed"):
        who(read_kubeconfig(file)[0])
