"""`sacctmgr`: queues in the words of accounts, read-only."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec

from fairlead.slurm.listing import Named, choose, lines_of
from fairlead.slurm.options import fail, parse
from fairlead.slurm.server import caller, connect
from fairlead.slurm.tables import SACCTMGR

if TYPE_CHECKING:
    from fairlead.client import Client

NAME = "sacctmgr"


class Entry(msgspec.Struct, kw_only=True):
    """A user in an account; both may be empty."""

    user: str = ""
    account: str = ""
    parent: str = ""
    share: str = "1"
    cluster: str = "fairlead"
    partition: str = ""


FIELDS: tuple[Named[Entry], ...] = (
    Named("Account", 10, lambda e: e.account),
    Named("AdminLevel", 9, lambda e: "None" if e.user else ""),
    Named("Cluster", 10, lambda e: e.cluster),
    Named("ControlHost", 15, lambda e: "127.0.0.1"),
    Named("ControlPort", 12, lambda e: "0"),
    Named("DefaultAccount", 10, lambda e: e.account),
    Named("DefaultQOS", 9, lambda e: ""),
    Named("Description", 20, lambda e: e.account),
    Named("FairShare", 9, lambda e: e.share),
    Named("GrpTRES", 13, lambda e: ""),
    Named("MaxJobs", 7, lambda e: ""),
    Named("MaxWall", 11, lambda e: ""),
    Named("Name", 10, lambda e: e.account or e.cluster),
    Named("Organization", 20, lambda e: e.parent),
    Named("ParentName", 10, lambda e: e.parent),
    Named("Partition", 10, lambda e: e.partition),
    Named("Priority", 10, lambda e: "0"),
    Named("QOS", 20, lambda e: "normal"),
    Named("RPC", 5, lambda e: "0"),
    Named("Share", 9, lambda e: e.share),
    Named("User", 10, lambda e: e.user),
    Named("WithAssoc", 10, lambda e: ""),
)
USUAL = {
    "user": "User,DefaultAccount,AdminLevel",
    "account": "Account,Description,Organization",
    "association": "Cluster,Account,User,Partition,Share,Priority,GrpTRES,MaxJobs,MaxWall,QOS",
    "cluster": "Cluster,ControlHost,ControlPort,RPC,Share,QOS",
    "qos": "Name,Priority,MaxJobs,MaxWall",
    "tres": "Name",
}


def main(words: list[str]) -> int:
    given, rest = parse(SACCTMGR, words)
    verb, *rest = rest or [""]
    if verb.lower() not in ("list", "show"):
        fail(
            NAME, f"{verb or 'an interactive mode'} is not supported: accounts are queues; see `fairlead config apply`"
        )
    entity, *rest = rest or [""]
    kind = next((name for name in USUAL if entity and name.startswith(entity.lower().rstrip("s"))), None)
    if kind is None:
        fail(NAME, f"No valid entity in list command\nInput line must include one of {', '.join(USUAL)}")
    values = dict(map(_condition, rest))
    wanted = values.get("format", USUAL[kind])
    if "withassoc" in values and "format" not in values:
        wanted = "User,DefaultAccount,AdminLevel,Cluster,Account,Partition,Share"
    fields = choose(NAME, FIELDS, wanted)
    with connect(NAME, given) as client:
        entries = _entries(client, kind, values)
    for line in lines_of(fields, entries, given):
        sys.stdout.write(line + "\n")
    return 0


def _condition(word: str) -> tuple[str, str]:
    """Return a condition as key and value. A word of its own is a name, unless it is one of the language."""
    key, equals, value = word.partition("=")
    if equals:
        return key.lower(), value
    return (key.lower() if key.lower() in ("where", "withassoc", "with") else "name"), key


def _entries(client: Client, kind: str, values: dict[str, str]) -> list[Entry]:
    cluster = client.partition or "fairlead"
    if kind in ("cluster", "tres"):
        return [Entry(cluster=cluster, account="" if kind == "cluster" else name) for name in _tres(kind)]
    if kind == "qos":
        return [Entry(account="normal", cluster=cluster)]
    queues = client.queues()
    accounts = [queue for queue in queues if queue.leaf]
    name = values.get("account", values.get("name", ""))
    if kind == "account":
        found = [_of_queue(queue.path, queue.share, cluster) for queue in accounts]
        return [entry for entry in found if not name or entry.account in name.split(",")]
    user = values.get("user", values.get("name", ""))
    users = user.strip('"').split(",") if user else [caller(client)]
    entries = [_of_queue(queue.path, queue.share, cluster) for queue in accounts]
    if kind == "user" and "format" not in values:
        entries = entries[:1]
    account = values.get("account", "")
    return [
        msgspec.structs.replace(entry, user=each)
        for entry in entries
        for each in users
        if not account or entry.account in account.split(",")
    ]


def _tres(kind: str) -> list[str]:
    return [""] if kind == "cluster" else ["cpu", "mem", "node", "billing", "gres/gpu"]


def _of_queue(path: str, share: int | None, cluster: str) -> Entry:
    parent, _, _ = path.rpartition(".")
    return Entry(
        account=path.removeprefix("root."),
        parent=parent,
        share=str(1 if share is None else share),
        cluster=cluster,
    )
