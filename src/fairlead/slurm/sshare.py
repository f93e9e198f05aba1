"""`sshare`: the shares of queues, in the words of accounts."""

from __future__ import annotations

import sys

import msgspec

from fairlead.slurm.listing import Named, choose, help_lines, lines_of
from fairlead.slurm.options import fail, parse
from fairlead.slurm.server import caller, connect
from fairlead.slurm.tables import SSHARE
from fairlead.slurm.values import listed

NAME = "sshare"
USUAL = "Account,User,RawShares,NormShares,RawUsage,EffectvUsage,FairShare"


class Entry(msgspec.Struct, kw_only=True):
    """A queue, or a user of it."""

    account: str
    user: str = ""
    share: int = 1
    entitled: float = 0.0
    used: float = 0.0


FIELDS: tuple[Named[Entry], ...] = (
    Named("Account", -20, lambda e: e.account),
    Named("User", 10, lambda e: e.user),
    Named("RawShares", 10, lambda e: str(e.share)),
    Named("NormShares", 11, lambda e: f"{e.entitled / 100:.6f}"),
    Named("RawUsage", 11, lambda e: f"{e.used:.0f}"),
    Named("NormUsage", 11, lambda e: f"{e.used / 100:.6f}"),
    Named("EffectvUsage", 13, lambda e: f"{e.used / 100:.6f}"),
    Named("FairShare", 10, lambda e: f"{2 ** -(e.used / e.entitled) if e.entitled else 0.0:.6f}"),
    Named("LevelFS", 10, lambda e: f"{e.entitled / e.used:.6f}" if e.used else "inf"),
    Named("Cluster", 10, lambda e: "fairlead"),
    Named("ID", 6, lambda e: "0"),
    Named("Partition", 12, lambda e: ""),
)


def main(words: list[str]) -> int:
    given, rest = parse(SSHARE, words)
    if rest:
        fail(NAME, f"Invalid argument: {rest[0]}")
    if "helpformat" in given:
        print("\n".join(help_lines(FIELDS)))
        return 0
    fields = choose(NAME, FIELDS, given.get("format", USUAL))
    accounts, users = listed(given.get("accounts", "")), listed(given.get("users", ""))
    entries: list[Entry] = []
    with connect(NAME, given) as client:
        for queue in client.queues():
            name = queue.path.removeprefix("root.")
            if accounts and name not in accounts:
                continue
            share = 1 if queue.share is None else queue.share
            entitled, used = queue.entitlement_percent or 0.0, queue.use_percent or 0.0
            depth = queue.path.count(".") if not given.keys() & {"parsable", "parsable2"} else 0
            if "Users" not in given:
                entries.append(Entry(account=" " * depth + name, share=share, entitled=entitled, used=used))
            if not queue.leaf:
                continue
            known = {user.user: user.use_percent for user in queue.users}
            shown = users or (list(known) if "all" in given else [caller(client)])
            entries += [
                Entry(account=" " * depth + name, user=user, entitled=entitled, used=known.get(user, 0.0))
                for user in shown
            ]
    for line in lines_of(fields, entries, given):
        sys.stdout.write(line + "\n")
    return 0
