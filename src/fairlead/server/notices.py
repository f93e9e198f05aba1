"""Notices of ended jobs: calls webhooks and sends mail.

The history has the ended jobs whose notice was not sent yet, so none is forgotten when a server ends. Each notice is
sent at least once: a server that ends between a delivery and its record sends it again. A webhook that does not answer
with success is tried again after longer and longer pauses, and given up after the last of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import http.client
import socket
import ssl
import subprocess
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from email.message import EmailMessage
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from threading import Timer
from time import time
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from fairlead.core.resources import SECOND
from fairlead.history.recorder import JobRow
from fairlead.history.store import History
from fairlead.journal.journal import JournalError

SIGNING_SECRET = "webhook"
"""The secret of a user with which webhooks are signed."""
SIGNATURE = "Fairlead-Signature"
EVERY = 1.0
"""Seconds between two looks for ends to tell."""
AT_ONCE, OF_USER = 20, 4
"""Jobs whose ends are told at a time, of all users and of one."""
LOOKED_AT = 1_000
"""Jobs among which those that are due are chosen."""
TIMEOUT = 10.0
"""Seconds for one delivery."""
TRANSLATED = IPv6Network("64:ff9b::/96")
"""Addresses that routers translate to the IPv4 address in their last four bytes."""
MAILS, HOUR = 100, 3600.0
"""Mails that are sent for one user in an hour: users name the addresses, and a server must not flood them."""
PUBLIC = IPv6Network("2000::/3")
MACHINE = IPv4Address("168.63.129.16")
"""An address that reaches the host of a virtual machine in Azure, and has the form of a public one."""
PAUSES = (1.0, 5.0, 30.0, 120.0, 600.0, 1800.0)
"""Seconds between the tries of a webhook."""


class Undelivered(Exception):
    """A delivery failed. `final` is True if another try would fail too."""

    def __init__(self, why: str, final: bool = False) -> None:
        super().__init__(why)
        self.final = final


class Tried(NamedTuple):
    """The tries of one delivery."""

    times: int
    again: float
    """When the next try is due, by the clock of the event loop."""


class Door:
    """Delivers one message. Its methods block."""

    def __init__(self, allowed: Iterable[str] = (), sendmail: str = "/usr/sbin/sendmail") -> None:
        """`allowed` are networks and host names to which webhooks may go although they are not public."""
        self._networks: list[IPv4Network | IPv6Network] = []
        self._hosts: set[str] = set()
        for text in allowed:
            try:
                self._networks.append(ip_network(text, strict=False))
            except ValueError:
                self._hosts.add(text.lower())
        self._sendmail = sendmail

    def deliver(self, target: str, job: JobRow, secret: str) -> None:
        """Send the notice of an ended job. Raise `Undelivered` if that failed."""
        if target.startswith("mailto:"):
            self._mail(target.removeprefix("mailto:"), job)
        else:
            self._post(target, body_of(job), secret)

    def _post(self, url: str, body: bytes, secret: str) -> None:
        try:
            parts = urlsplit(url)
            host, tls = parts.hostname or "", parts.scheme == "https"
            address = self._address(host, parts.port or (443 if tls else 80))
        except ValueError as problem:
            raise Undelivered(f"the address is malformed: {problem}", final=True) from None
        headers = {"Content-Type": "application/json", "User-Agent": "fairlead"}
        if secret:
            headers[SIGNATURE] = signature(secret, int(time()), body)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        try:
            with closing(_Connection(host, address, tls)) as connection:
                connection.request("POST", path, body, headers)
                status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as problem:
            raise Undelivered(f"{type(problem).__name__}: {problem}") from None
        if not 200 <= status < 300:
            # Redirects are not followed: they could lead to an address that is not allowed.
            raise Undelivered(f"it answered {status}", final=300 <= status < 400 or status in (404, 410))

    def _address(self, host: str, port: int) -> tuple[str, int]:
        """Return an address of a host, or refuse it. The connection goes to that address: a name may change."""
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as problem:
            raise Undelivered(f"the name {host} was not found: {problem}") from None
        for *_, place in found:
            if not (host.lower() in self._hosts or self._is_allowed(str(place[0]))):
                raise Undelivered(
                    f"{place[0]} is in the network of the server; an administrator may allow it with --notify-allow",
                    final=True,
                )
        return str(found[0][4][0]), port

    def _is_allowed(self, text: str) -> bool:
        address = ip_address(text.partition("%")[0])
        mapped = _ipv4_in(address) or address if isinstance(address, IPv6Address) else address
        public = mapped.is_global and not mapped.is_multicast and mapped != MACHINE
        if isinstance(mapped, IPv6Address):
            public = public and mapped in PUBLIC  # others are translated, or of a site
        return public or any(mapped in network for network in self._networks)

    def _mail(self, address: str, job: JobRow) -> None:
        message = EmailMessage()
        message["To"] = address
        message["Subject"] = f"Job {job.id} ({job.name}) {_how(job)}"
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(text_of(job))
        try:
            done = subprocess.run(
                [self._sendmail, "-i", "--", address],
                input=message.as_bytes(),
                capture_output=True,
                timeout=60,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as problem:
            raise Undelivered(f"{self._sendmail}: {problem}") from None
        if done.returncode:
            raise Undelivered(
                f"{self._sendmail} ended with {done.returncode}: {done.stderr.decode(errors='replace')[:200]}"
            )


def _ipv4_in(address: IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address to which a router may translate an IPv6 address; None if there is none."""
    if address in TRANSLATED:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


class _Connection(http.client.HTTPConnection):
    """A connection to one address of a host, whose certificate is checked by the name of the host.

    It ends `TIMEOUT` seconds after it was made, also if the other side sends a byte now and then.
    """

    def __init__(self, host: str, address: tuple[str, int], tls: bool) -> None:
        super().__init__(host, address[1], timeout=TIMEOUT)
        self._place = address
        self._tls = ssl.create_default_context() if tls else None
        self._alarm = Timer(TIMEOUT, self._cut)
        self._alarm.daemon = True

    def connect(self) -> None:
        self.sock = plain = socket.create_connection(self._place, TIMEOUT)
        self._alarm.start()
        if self._tls is not None:
            self.sock = tls = self._tls.wrap_socket(plain, server_hostname=self.host, do_handshake_on_connect=False)
            tls.do_handshake()

    def _cut(self) -> None:
        sock = self.sock
        if sock is not None:
            with suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def close(self) -> None:
        self._alarm.cancel()
        super().close()


def signature(secret: str, at: int, body: bytes) -> str:
    """Return the header with which a receiver checks the sender and the time of a message."""
    code = hmac.new(secret.encode(), b"%d." % at + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={code}"


def body_of(job: JobRow) -> bytes:
    """Return the message of a webhook, as JSON."""
    told: dict[str, Any] = {
        "event": "job ended",
        "job": job.id,
        "name": job.name,
        "user": job.user,
        "partition": job.partition,
        "queue": job.queue,
        "state": job.state,
        "reason": job.reason,
        "submitted": job.submitted / SECOND,
        "ended": job.ended / SECOND,
        "tasks": job.tasks,
        "labels": job.labels,
        "text": f"Job {job.id} ({job.name}) of {job.user} {_how(job)}{f': {job.reason}' if job.reason else ''}",
    }
    return msgspec.json.encode(told)


def text_of(job: JobRow) -> str:
    tasks = ", ".join(f"{number} {outcome}" for outcome, number in sorted(job.tasks.items()))
    lasted = (job.ended - job.submitted) / SECOND
    lines = [
        f"Job {job.id} ({job.name}) of {job.user} in queue {job.queue} {_how(job)}.",
        *([job.reason] if job.reason else []),
        f"Tasks: {tasks or 'none'}. It ended {lasted:.0f} s after its submission.",
        f"Its output: fairlead logs {job.id}",
    ]
    return "\n".join(lines) + "\n"


def _how(job: JobRow) -> str:
    return "was killed" if job.state == "killed" else job.state


Delivery = tuple[str, int, str]
"""A partition, the number of a job, and an address to which its end is told."""


def _deliveries(job: JobRow) -> list[Delivery]:
    return [(job.partition, job.number, target) for target in dict.fromkeys(job.notify)]


class Notices:
    """Tells the ends of the jobs of all partitions that this server leads."""

    def __init__(
        self,
        history: History,
        led: Callable[[], list[str]],
        secret: Callable[[str], str],
        door: Door,
        log: Callable[[str, dict[str, Any]], None],
    ) -> None:
        """`secret` returns the secret with which the webhooks of a user are signed; empty for no signature."""
        self._history = history
        self._led = led
        self._secret = secret
        self._door = door
        self._log = log
        self._tried: dict[Delivery, Tried] = {}
        self._done: set[Delivery] = set()
        """Deliveries that are over, of jobs with others that are not."""
        self._telling: dict[tuple[str, int], tuple[str, asyncio.Task[None]]] = {}
        """Partition and number of each job whose end is being told → its user, and what tells it."""
        self._mailed: dict[str, deque[float]] = {}
        """User → when the last `MAILS` mails were sent, by the clock of the event loop."""
        self._threads = ThreadPoolExecutor(AT_ONCE, "notices")
        """Threads of its own: those that do not answer must not keep other work of the server waiting."""

    async def run(self) -> None:
        """Tell ends until this is cancelled."""
        while True:
            await asyncio.sleep(EVERY)
            try:
                await self.tell()
            except JournalError as problem:
                self._log("ends not told", {"problem": str(problem)})

    async def tell(self) -> None:
        """Begin the deliveries that are due, as far as there is room."""
        for partition in self._led():
            jobs = await asyncio.to_thread(self._history.untold, partition, LOOKED_AT)
            busy = Counter(user for user, _ in self._telling.values())
            for job in jobs:
                key = job.partition, job.number
                if len(self._telling) >= AT_ONCE:
                    return
                if busy[job.user] < OF_USER and key not in self._telling and any(map(self._is_due, _deliveries(job))):
                    busy[job.user] += 1
                    self._telling[key] = job.user, asyncio.create_task(self._tell(job))

    def _is_due(self, key: Delivery) -> bool:
        tried = self._tried.get(key)
        return key not in self._done and (tried is None or tried.again <= asyncio.get_running_loop().time())

    async def _tell(self, job: JobRow) -> None:
        keys = _deliveries(job)
        try:
            for key in filter(self._is_due, keys):
                await self._try(key, job, self._tried.get(key, Tried(0, 0.0)))
            if all(key in self._done for key in keys):
                await asyncio.to_thread(self._history.mark_told, job.partition, job.number)
                self._done.difference_update(keys)
        except JournalError as problem:
            self._log("ends not told", {"problem": str(problem)})
        finally:
            del self._telling[job.partition, job.number]

    async def _try(self, key: Delivery, job: JobRow, tried: Tried) -> None:
        *_, target = key
        # The path of a webhook may be a secret.
        shown = target if target.startswith("mailto:") else target.split("/")[2].partition("?")[0]
        loop = asyncio.get_running_loop()
        try:
            if target.startswith("mailto:"):
                self._count_mail(job.user, loop.time())
            await loop.run_in_executor(self._threads, self._door.deliver, target, job, self._secret(job.user))
        except Undelivered as problem:
            over = problem.final or tried.times >= len(PAUSES)
            fields = {"job": job.id, "to": shown, "problem": str(problem), "tries": tried.times + 1}
            self._log("end not told" if over else "end to be told again", fields)
            if not over:
                pause = PAUSES[tried.times]
                self._tried[key] = Tried(tried.times + 1, loop.time() + pause)
                return
        else:
            self._log("end told", {"job": job.id, "to": shown})
        self._tried.pop(key, None)
        self._done.add(key)

    def _count_mail(self, user: str, now: float) -> None:
        sent = self._mailed.setdefault(user, deque(maxlen=MAILS))
        if len(sent) == MAILS and now < sent[0] + HOUR:
            raise Undelivered(f"{MAILS} mails were sent for {user} within an hour; this one is left out", final=True)
        sent.append(now)
