"""An agent that can never work stops at once, and says why and what to do."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from fairlead.agent.coordinator import Joining
from fairlead.agent.session import Refused
from fairlead.cli.agent import FINAL
from fairlead.wire.handshake import Key, encoded
from tests.live import PROGRAM, SECONDS, Up

AS_ME = ("--for", "ann", *(("--user", "root") if os.geteuid() == 0 else ()))


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    found = Up(tmp_path_factory.mktemp("agents") / "data")
    found.until("node", "list", said="box")
    try:
        yield found
    finally:
        found.close()


def agent(up: Up, folder: Path, *options: str, token: str | None = None) -> subprocess.CompletedProcess[str]:
    """An agent, until it ends by itself."""
    if token is not None:
        (folder / "token").write_text(token)
        options = ("--token-file", str(folder / "token"), *options)
    return subprocess.run(
        [PROGRAM, "agent", "--join", up.url, "--directory", str(folder / "agent"), *AS_ME, *options],
        env=up.environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def join_token(up: Up, *options: str) -> str:
    return up.run("token", "create", "--role", "join", *options).strip().splitlines()[-1]


CREATE = "fairlead token create --role join --node n9"


@pytest.mark.parametrize(
    ("token", "options", "said"),
    [
        (None, (), f"there is no join token; give one with --token-file: {CREATE}"),
        (None, ("--token-file", "nowhere"), "(nowhere does not exist)"),
        ("user", (), f"the token of a user, and an agent needs a join token; create one: {CREATE}"),
        (
            "damaged",
            (),
            f"the join token is damaged (a key has 32 bytes, not 3); copy it again, or create another: {CREATE}",
        ),
        ("used", (), f"the join token is not known, was used before or has expired; create another: {CREATE}"),
        ("good", ("--resource", "cpu=foo"), 'resources.cpu: "foo"'),
        ("good", ("--resource", "bad name=1"), 'resources: "bad name"'),
        ("good", ("--name", "bad name"), '"bad name"'),
        ("good", ("--partition", "none"), 'there is no partition "none"; name one of default'),
    ],
)
def test_an_agent_that_can_never_join_stops(
    up: Up, tmp_path: Path, token: str | None, options: tuple[str, ...], said: str
) -> None:
    good = join_token(up, "--node", "n9") if token is not None else ""
    secret, _, key = good.partition(".")
    texts = {"user": up.token, "damaged": f"{secret}.abcd", "used": f"{secret[:-1]}.{key}", "good": good}
    done = agent(up, tmp_path, "--name", "n9", *options, token=texts[token] if token else None)
    assert (done.returncode, said in done.stderr) == (FINAL, True), done.stderr
    assert done.stderr.count(said) == 1


def test_an_agent_stops_when_its_partition_is_removed(up: Up, tmp_path: Path) -> None:
    night = f"{up.url}/api/v1/partitions/night"
    rights = {"authorization": f"Bearer {up.token}"}
    assert httpx.put(night, json={}, headers=rights).is_success
    (tmp_path / "token").write_text(join_token(up, "--node", "n5"))
    options = ("--name", "n5", "--partition", "night", "--token-file", "token", "--directory", "here", *AS_ME)
    command = [PROGRAM, "agent", "--join", up.url, *options]
    with subprocess.Popen(command, env=up.environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        until_joined(process)
        assert httpx.delete(night, headers=rights).is_success
        assert process.wait(SECONDS) == FINAL
        assert process.stderr is not None
        said = process.stderr.read()
        assert "partition night was removed, and its tasks have ended; join another one with --partition" in said


def test_an_agent_stops_at_a_server_with_another_key(up: Up, tmp_path: Path) -> None:
    secret, _, _ = join_token(up, "--node", "n9").partition(".")
    done = agent(up, tmp_path, "--name", "n9", token=f"{secret}.{encoded(Key().public)}")
    said = "the server has another key than the one that this machine is to join; check the address"
    assert (done.returncode, done.stderr.count(said)) == (FINAL, 1), done.stderr


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A server with a certificate for its address: the file of the certificate, and the URL."""
    folder = tmp_path_factory.mktemp("tls")
    options = ("-days", "2", "-nodes", "-subj", "/CN=here", "-addext", "subjectAltName=IP:127.0.0.1")
    files = ("-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem"))
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", *options, *files]
    subprocess.run(made, check=True, capture_output=True)
    shown = ("--certificate", str(folder / "cert.pem"), "--key", str(folder / "key.pem"))
    command = [PROGRAM, "server", "--data", str(folder / "data"), "--port", "0", "--json", *shown]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        yield folder / "cert.pem", f"https://127.0.0.1:{urlsplit(url).port}"
        process.terminate()


@pytest.mark.parametrize(
    ("trusted", "host", "said"),
    [
        (False, "127.0.0.1", "name the file with the certificate of its authority, with --ca or FAIRLEAD_CA"),
        (True, "localhost", "join by a name that the certificate has, or add this one to the certificate"),
    ],
)
def test_an_agent_that_cannot_trust_its_server_stops(
    up: Up, tls: tuple[Path, str], tmp_path: Path, trusted: bool, host: str, said: str
) -> None:
    certificate, url = tls
    url = url.replace("127.0.0.1", host)
    named = ("--ca", str(certificate)) if trusted else ()
    done = agent(up, tmp_path, "--name", "n9", *named, "--join", url, token=join_token(up, "--node", "n9"))
    assert done.returncode == FINAL and f"the certificate of {url} is not trusted" in done.stderr, done.stderr
    assert done.stderr.count(said) == 1


@pytest.mark.parametrize("plain", [True, False])
def test_an_agent_that_speaks_otherwise_than_its_server_says_what_to_do(
    up: Up, tls: tuple[Path, str], tmp_path: Path, plain: bool
) -> None:
    """It may pass, so the agent goes on trying."""
    url = tls[1].replace("https:", "http:") if plain else up.url.replace("http:", "https:")
    said = "write https:// if the server has a certificate" if plain else "check that the server has a certificate"
    (tmp_path / "token").write_text(join_token(up, "--node", "n9"))
    options = ("--name", "n9", "--token-file", "token", "--directory", "here", "--ca", str(tls[0]), *AS_ME)
    command = [PROGRAM, "agent", "--join", url, *options]
    with subprocess.Popen(command, env=up.environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "disconnected" in line:
                assert said in line
                break
        assert process.poll() is None
        process.terminate()


def test_an_agent_that_has_joined_waits_for_a_refusal_that_may_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The network may lead to another machine for a while; the tasks go on meanwhile."""
    now = [0.0]
    refusals: list[float] = []

    class Outside:
        server = "https://head"

        def connect(self) -> Any:
            refusals.append(now[0])
            now[0] += 100.0
            raise Refused("another key", True, may_pass=True)

    async def at_once(seconds: float) -> None:
        return None

    monkeypatch.setattr(asyncio, "sleep", at_once)

    def stay(last_joined: float) -> list[float]:
        parts: Any = (None, Outside(), None, None, lambda event, fields: None)
        joining = Joining(*parts, steady=lambda: now[0])
        joining._last_joined = last_joined
        now[0] = 0.0
        refusals.clear()
        with pytest.raises(Refused, match="another key"):
            asyncio.run(joining.stay())
        return list(refusals)

    assert stay(float("-inf")) == [0.0]
    assert stay(0.0)[-1] == 500.0


@pytest.mark.parametrize("by_option", [True, False], ids=["option", "variable"])
def test_certificates_to_trust_are_named_by_option_or_variable(up: Up, tmp_path: Path, by_option: bool) -> None:
    (tmp_path / "token").write_text(join_token(up, "--node", "n6"))
    named = ["--ca", "nowhere.crt"] if by_option else []
    done = subprocess.run(
        [
            *(PROGRAM, "agent", "--join", "https://127.0.0.1:1", "--name", "n6"),
            *("--token-file", "token", "--directory", "here", *named, *AS_ME),
        ],
        env=up.environment if by_option else {**up.environment, "FAIRLEAD_CA": "nowhere.crt"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, "nowhere.crt has no certificates to trust" in done.stderr) == (FINAL, True), done.stderr


def test_an_agent_stops_when_its_node_is_revoked(up: Up, tmp_path: Path) -> None:
    """And its directory may be given relative to the current one."""
    (tmp_path / "token").write_text(join_token(up, "--node", "n8"))
    command = [
        PROGRAM,
        "agent",
        "--join",
        up.url,
        "--name",
        "n8",
        "--token-file",
        "token",
        "--directory",
        "here",
        *AS_ME,
    ]
    with subprocess.Popen(command, env=up.environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        up.until("node", "list", said="n8")
        assert (tmp_path / "here" / "identity").exists()
        up.run("node", "revoke", "n8")
        assert process.wait(SECONDS) == FINAL
        assert process.stderr is not None
        assert "the credential of node n8 was revoked; join again with a new token" in process.stderr.read()


def test_a_node_that_was_removed_joins_again(up: Up, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(join_token(up, "--node", "n7"))
    command = [
        PROGRAM,
        "agent",
        "--join",
        up.url,
        "--name",
        "n7",
        "--token-file",
        "token",
        "--directory",
        "here",
        *AS_ME,
    ]
    with subprocess.Popen(command, env=up.environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        until_joined(process)
        up.run("node", "remove", "n7")
        until_joined(process)
        up.until("node", "list", said="n7")
        process.terminate()


def test_a_machine_that_has_joined_ignores_the_token_of_a_users_shell(up: Up, tmp_path: Path) -> None:
    """An administrator's shell has FAIRLEAD_TOKEN for commands; an agent started there again needs no token."""
    (tmp_path / "token").write_text(join_token(up, "--node", "n6"))
    command = [PROGRAM, "agent", "--join", up.url, "--name", "n6", "--directory", "here", *AS_ME]
    environment = {**up.environment, "FAIRLEAD_TOKEN": up.token}
    for options in (["--token-file", "token"], []):
        with subprocess.Popen(
            [*command, *options], env=environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True
        ) as process:
            until_joined(process)
            process.terminate()


def until_joined(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if " joined " in line:
            return
    raise AssertionError("it has ended")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--resource", "cpu=foo"), 'resources.cpu: "foo"'),
        (("--name", "bad name"), '"bad name"'),
        (("--resource", "cpu"), "'cpu' is not key=value"),
    ],
)
def test_up_does_not_greet_if_its_agent_can_never_join(tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    done = subprocess.run(
        [PROGRAM, "up", "--port", "0", "--data", str(tmp_path / "data"), *options],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout, said in done.stderr) == (2, "", True), done.stderr
