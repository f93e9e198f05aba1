"""Finds the API server and the credentials for it: in a kubeconfig file, or in the files of a pod in the cluster."""

from __future__ import annotations

import base64
import binascii
import json
import math
import os
import ssl
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from threading import Thread
from time import monotonic, time
from typing import Any

import yaml

from fairlead.client.async_pool import Address
from fairlead.wire.addresses import parse_url

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_AGE = 60.0
"""Seconds after which a token file is read again. The cluster replaces the tokens of pods before they expire."""


class ConfigProblem(Exception):
    """Raised if the configuration cannot be used. The text says where and what to do."""


def find_address(kubeconfig: str = "", context: str = "") -> tuple[Address, str]:
    """Return the address of the API server and the namespace to use there.

    A named file comes first, then KUBECONFIG, then the files of a pod, then ~/.kube/config.
    """
    file = kubeconfig or os.environ.get("KUBECONFIG", "").split(os.pathsep)[0]
    if file:
        return read_kubeconfig(Path(file), context)
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster()
    home = Path.home() / ".kube/config"
    if home.exists():
        return read_kubeconfig(home, context)
    raise ConfigProblem("no cluster is known; name a file with --kubeconfig, or set KUBECONFIG")


def in_cluster(folder: Path = SERVICE_ACCOUNT) -> tuple[Address, str]:
    """Return the address for a pod that runs in the cluster."""
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    try:
        tls = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        namespace = (folder / "namespace").read_text().strip()
    except OSError as problem:
        raise ConfigProblem(f"{folder}: {problem.strerror or problem}; the pod needs a service account") from None
    return Address(host, int(port), "", tls, token_file(folder / "token")), namespace


def token_file(path: Path) -> Callable[[], str]:
    """Return a function that returns the token in a file. It reads the file again from time to time."""
    last, read_at = "", 0.0

    def token() -> str:
        nonlocal last, read_at
        if not last or monotonic() - read_at > TOKEN_AGE:
            try:
                last = path.read_text().strip()
            except OSError as problem:
                raise ConfigProblem(f"{path}: {problem.strerror}; the token cannot be read") from None
            read_at = monotonic()
        return last

    return token


def read_kubeconfig(path: Path, context: str = "") -> tuple[Address, str]:
    """Return the address and the namespace of a context of a kubeconfig file; by default of its current context."""
    try:
        document = yaml.safe_load(path.read_text())
    except OSError as problem:
        raise ConfigProblem(f"{path}: {problem.strerror}; name a kubeconfig file that can be read") from None
    except yaml.YAMLError as problem:
        raise ConfigProblem(f"{path} is not YAML: {problem}") from None
    if not isinstance(document, Mapping):
        raise ConfigProblem(f"{path} is not a kubeconfig file; it has no clusters")
    name = context or str(document.get("current-context") or "")
    if not name:
        raise ConfigProblem(f"{path} has no current-context; name one with --context")
    chosen = _entry(path, document, "contexts", name, "context")
    cluster = _entry(path, document, "clusters", str(chosen.get("cluster")), "cluster")
    user = _entry(path, document, "users", str(chosen.get("user")), "user") if chosen.get("user") else {}
    return _address(path, cluster, user), str(chosen.get("namespace") or "default")


class ExecPlugin:
    """Gets tokens from a program, as kubeconfig files of cloud clusters do, and new ones before they expire."""

    def __init__(self, path: Path, plugin: Mapping[str, Any], cluster: Mapping[str, Any]) -> None:
        self._field = f"{path}: users.user.exec"
        command = str(plugin.get("command") or "")
        if not command:
            raise ConfigProblem(f"{self._field}.command: missing; name the program that prints a token")
        if "/" in command:  # relative to the file, as for kubectl
            command = str(path.parent / command)
        self._command = [command, *map(str, plugin.get("args") or ())]
        self._version = str(plugin.get("apiVersion") or "client.authentication.k8s.io/v1")
        spec: dict[str, Any] = {"interactive": False}
        if plugin.get("provideClusterInfo"):
            spec["cluster"] = {
                key: cluster[key] for key in ("server", "certificate-authority-data") if cluster.get(key)
            }
        asked = {"apiVersion": self._version, "kind": "ExecCredential", "spec": spec}
        given = {str(each.get("name")): str(each.get("value", "")) for each in plugin.get("env") or ()}
        self._env = {**os.environ, **given, "KUBERNETES_EXEC_INFO": json.dumps(asked)}
        self._hint = str(plugin.get("installHint") or "install it, or use a token")
        self._token = ""
        self._renew_at = self._expires_at = 0.0
        self._renewing: Thread | None = None

    def __call__(self) -> str:
        """Return a token. The first one is waited for, later ones are got in the background before the last expires."""
        now = time()
        if not self._token or now >= self._expires_at:
            self._renew()
        elif now >= self._renew_at and (self._renewing is None or not self._renewing.is_alive()):
            self._renewing = Thread(target=self._renew_quietly, daemon=True)
            self._renewing.start()
        return self._token

    def _renew_quietly(self) -> None:
        with suppress(ConfigProblem):  # it is tried again at the next call, and reported when the token has expired
            self._renew()

    def _renew(self) -> None:
        name = self._command[0]
        try:
            done = subprocess.run(
                self._command, env=self._env, capture_output=True, stdin=subprocess.DEVNULL, timeout=60, check=False
            )
        except FileNotFoundError:
            raise ConfigProblem(f"{self._field}.command: there is no program {name}; {self._hint}") from None
        except (OSError, subprocess.TimeoutExpired) as problem:
            raise ConfigProblem(f"{self._field}.command: {name} cannot be run: {problem}") from None
        if done.returncode:
            text = done.stderr.decode(errors="replace").strip()[-500:]
            raise ConfigProblem(f"{self._field}.command: {name} ended with code {done.returncode}: {text}")
        try:
            status = json.loads(done.stdout)["status"]
            token = str(status.get("token") or "")
            until = status.get("expirationTimestamp")
            expires = datetime.fromisoformat(until).timestamp() if until else math.inf
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ConfigProblem(f"{self._field}.command: {name} printed no ExecCredential") from None
        if not token:
            raise ConfigProblem(f"{self._field}.command: {name} gave no token; certificates are not supported")
        now = time()
        self._token, self._expires_at, self._renew_at = token, expires, now + (expires - now) * 0.7


def _entry(path: Path, document: Mapping[str, Any], key: str, name: str, inner: str) -> Mapping[str, Any]:
    entries = document.get(key) or []
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, Mapping) and entry.get("name") == name:
            value = entry.get(inner)
            return value if isinstance(value, Mapping) else {}
    raise ConfigProblem(f"{path}: {key} has no entry {name}; name an entry that exists")


def _address(path: Path, cluster: Mapping[str, Any], user: Mapping[str, Any]) -> Address:
    try:
        encrypted, host, port, prefix = parse_url(str(cluster.get("server") or ""))
    except ValueError as problem:
        raise ConfigProblem(f"{path}: clusters.cluster.server: {problem}") from None
    if user.get("auth-provider"):
        raise ConfigProblem(f"{path}: users.user.auth-provider was removed from Kubernetes; use exec, or a token")
    tls = _tls(path, cluster, user) if encrypted else None
    if isinstance(plugin := user.get("exec"), Mapping):
        return Address(host, port, prefix, tls, ExecPlugin(path, plugin, cluster))
    if user.get("tokenFile"):
        return Address(host, port, prefix, tls, token_file(path.parent / str(user["tokenFile"])))
    token = str(user.get("token") or "")
    return Address(host, port, prefix, tls, lambda: token)


def _tls(path: Path, cluster: Mapping[str, Any], user: Mapping[str, Any]) -> ssl.SSLContext:
    try:
        authority = _content(path, cluster, "certificate-authority")
        tls = ssl.create_default_context(cadata=authority.decode() if authority else None)
        if cluster.get("insecure-skip-tls-verify"):
            tls.check_hostname = False
            tls.verify_mode = ssl.CERT_NONE
        certificate, key = _content(path, user, "client-certificate"), _content(path, user, "client-key")
        if certificate and key:
            with tempfile.TemporaryDirectory() as folder:  # the ssl module reads keys only from files
                pair = Path(folder, "certificate"), Path(folder, "key")
                for file, content in zip(pair, (certificate, key), strict=True):
                    file.touch(0o600)
                    file.write_bytes(content)
                tls.load_cert_chain(*map(str, pair))
        return tls
    except (OSError, ValueError) as problem:
        raise ConfigProblem(f"{path}: the certificates cannot be used: {problem}") from None


def _content(path: Path, entry: Mapping[str, Any], key: str) -> bytes:
    """Return the bytes of `KEY-data`, or of the file that `KEY` names; empty if neither is given."""
    if entry.get(f"{key}-data"):
        try:
            return base64.b64decode(str(entry[f"{key}-data"]), validate=True)
        except binascii.Error:
            raise ConfigProblem(f"{path}: {key}-data is not base64") from None
    if entry.get(key):
        return (path.parent / str(entry[key])).read_bytes()
    return b""
