"""Leader election by a Lease: of several adapters for one cluster, one works and the others wait.

The holder renews the lease. Another adapter takes it if it sees no renewal for the duration of the lease, by its own
clock. A holder that cannot renew the lease stops before that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from time import monotonic

import msgspec

from fairlead.client.async_pool import Http, Lost, Reply
from fairlead.kubernetes.objects import Lease, LeaseSpec, Meta

DURATION = 4
RENEWED_EACH = 1.0
GIVEN_UP_AFTER = 3.0
"""Seconds without a renewal after which the holder stops. It is less than `DURATION`, so that never two work."""

_decode = msgspec.json.Decoder(Lease).decode
_encode = msgspec.json.Encoder().encode


class LeaseLost(Exception):
    """Raised if another adapter may hold the lease now."""


class Election:
    """One candidate for a lease."""

    def __init__(
        self,
        http: Http,
        namespace: str,
        name: str,
        identity: str,
        note: Callable[[str], None],
    ) -> None:
        self._http = http
        self._folder = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._name = name
        self._identity = identity
        self._note = note
        self._seen: tuple[str, str] = ("", "")
        self._seen_at = 0.0
        self._renewed_at = 0.0
        self.leads = False

    async def win(self) -> None:
        """Wait until this candidate holds the lease."""
        while True:
            try:
                if await self._try():
                    self.leads = True
                    self._note(f"{self._identity} holds the lease {self._name}")
                    return
            except Lost as lost:
                self._note(f"the lease cannot be read: {lost}")
            await asyncio.sleep(RENEWED_EACH / 2)

    async def keep(self) -> None:
        """Renew the lease until it is lost; then raise `LeaseLost`."""
        problem = "no answer"
        while True:
            await asyncio.sleep(RENEWED_EACH)
            try:
                async with asyncio.timeout(self._renewed_at + GIVEN_UP_AFTER - monotonic()):
                    if not await self._try():
                        raise LeaseLost("another adapter holds the lease")
            except Lost as lost:
                problem = str(lost)
            except TimeoutError:
                raise LeaseLost(f"the lease could not be renewed: {problem}") from None

    async def give_up(self) -> None:
        """Release the lease, so that another adapter takes over at once."""
        if not self.leads:
            return
        self.leads = False
        try:
            lease = await self._read(timeout=3.0)
            if lease.spec.holder_identity == self._identity:
                lease.spec.holder_identity = ""
                await self._write(lease, timeout=3.0)
        except Lost:
            pass  # the lease expires by itself

    async def _try(self) -> bool:
        """Take or renew the lease. Return False if another adapter holds it."""
        lease = await self._read(timeout=5.0)
        now, spec = monotonic(), lease.spec
        holder = spec.holder_identity or ""
        if (holder, spec.renew_time or "") != self._seen:
            self._seen, self._seen_at = (holder, spec.renew_time or ""), now
        duration = spec.lease_duration_seconds or DURATION
        if holder not in ("", self._identity) and now - self._seen_at < duration:
            return False
        time = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        taken = holder != self._identity
        lease.spec = LeaseSpec(
            holder_identity=self._identity,
            lease_duration_seconds=DURATION,
            acquire_time=time if taken else spec.acquire_time,
            renew_time=time,
            lease_transitions=(spec.lease_transitions or 0) + taken,
        )
        reply = await self._write(lease, timeout=5.0)
        if reply.status == 409:  # another adapter was faster
            return False
        if reply.status >= 300:
            raise Lost(f"{reply.status} {reply.text}")
        self._renewed_at = now
        return True

    async def _read(self, timeout: float) -> Lease:
        """Return the lease; a new one if it does not exist."""
        reply = await self._http.call("GET", f"{self._folder}/{self._name}", timeout=timeout)
        if reply.status == 404:
            return Lease(Meta(name=self._name))
        if reply.status == 200:
            return _decode(reply.content)
        raise Lost(f"{reply.status} {reply.text}")

    async def _write(self, lease: Lease, timeout: float) -> Reply:
        """Write the lease. Its resource version makes the write fail if it has changed since it was read."""
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", **msgspec.to_builtins(lease)}
        if lease.metadata.resource_version:
            return await self._http.call("PUT", f"{self._folder}/{self._name}", _encode(body), timeout=timeout)
        return await self._http.call("POST", self._folder, _encode(body), timeout=timeout)
