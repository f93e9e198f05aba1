"""Tunnels on a node whose agent was started as root: what runs in them runs as the user of the job."""

from __future__ import annotations

import pwd
import socket
from pathlib import Path

import pytest

from fairlead.client import Problem
from tests.people import needs_root, people
from tests.test_hostile_jobs import SECONDS, Services
from tests.until import until

pytestmark = needs_root


def test_what_runs_in_a_tunnel_runs_as_the_user_of_the_job() -> None:
    with people("ann", "bob") as found:
        site = Services(found)
        try:
            ann, bob = site.clients["ann"], site.clients["bob"]
            person = pwd.getpwnam(found.names["ann"])
            job = site.submit("ann", ["sleep", "600"], environment={"COLOUR": "blue"})
            until(lambda: ann.job(job).stages[0].running, SECONDS)
            script = "id -u; id -G; echo $COLOUR; pwd; cat /proc/self/cgroup; echo mine > /tmp/mine"
            done = ann.attach(job, ["sh", "-c", script])
            uid, groups, colour, folder, *cgroups = done.stdout.decode().splitlines()
            assert (done.returncode, int(uid), groups) == (0, person.pw_uid, str(person.pw_gid))
            assert (colour, folder) == ("blue", person.pw_dir)
            [label] = [node.labels for node in site.admin.nodes()]
            assert label["cgroup"] == "none" or any("/fairlead-" in line for line in cgroups)
            if label["tmp"] == "private":
                assert not Path("/tmp/mine").exists()
            for stranger in (bob, site.admin):
                with pytest.raises(Problem) as refused:
                    stranger.attach(job, ["true"])
                assert refused.value.status in (403, 404)
            with (
                ann.forward(job, int(site.url.rpartition(":")[2])) as local,
                socket.create_connection(("127.0.0.1", local), SECONDS) as near,
            ):
                near.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
                near.settimeout(SECONDS)
                assert near.recv(100).startswith(b"HTTP/1.1 200")
            terminal = site.submit("bob", ["sh", "-c", "id -u; tty; sleep 600"], pty=True)
            until(lambda: "/dev/pts/" in site.output(terminal), SECONDS)
            assert site.output(terminal).split()[0] == str(pwd.getpwnam(found.names["bob"]).pw_uid)
            for each in (job, terminal):
                site.admin.kill(each)
                site.admin.wait(each, SECONDS)
        finally:
            site.close()
