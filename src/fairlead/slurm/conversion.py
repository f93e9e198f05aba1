"""Converts slurm.conf, the dump of sacctmgr and its list of QOS into a configuration of Fairlead.

A partition is a leaf queue. With a dump, accounts are the queues above: `root.physics.gpu` is partition `gpu` for
account `physics`, so that `-A` and `-p` choose it together. Each key is carried over, or named with its line. Layout:
the whole, the settings of the cluster, partitions, accounts, limits, nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fairlead.slurm.conf_lines import Entry, NotRead
from fairlead.slurm.values import listed, parse_duration, parse_size
from fairlead.wire.hostlist import expand_hosts, fold_hosts

Document = dict[str, Any]
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_@+-]{0,62}")
TAKEN = frozenset(
    "share guarantee limit max_jobs order scale_first preemptible submit admin users groups max_priority".split()
)
"""Settings of a queue, which cannot be names of queues."""
USUAL = {
    "default": "no", "maxtime": "infinite", "state": "up", "oversubscribe": "no", "shared": "no", "hidden": "no",
    "rootonly": "no", "disablerootjobs": "no", "maxnodes": "unlimited", "minnodes": "0", "lln": "no",
    "exclusiveuser": "no", "prioritytier": "1", "priorityjobfactor": "1", "defaulttime": "none", "allowgroups": "all",
    "allowaccounts": "all", "allowqos": "all", "gracetime": "0", "preemptmode": "", "reqresv": "no", "qos": "n/a",
    "maxcpuspernode": "unlimited", "maxmempernode": "unlimited", "defmempernode": "unlimited", "allocnodes": "all",
    "overtimelimit": "none", "selecttypeparameters": "none",
}  # fmt: skip
"""Options of partitions → their defaults, which say nothing."""
OF_PARTITION = {
    "maxtime": "queues have no time limit; give jobs -t",
    "defaulttime": "queues have no default time limit; give jobs -t",
    "maxnodes": "queues have no limit of nodes for a job; `limit` bounds the whole queue",
    "minnodes": "queues have no least size of jobs",
    "prioritytier": "shares and `max_priority` decide between queues",
    "priorityjobfactor": "shares and `max_priority` decide between queues",
    "oversubscribe": "CPUs are never shared between jobs",
    "shared": "CPUs are never shared between jobs",
    "exclusiveuser": "give jobs --exclusive",
    "gracetime": "`preempt_grace` of the whole cluster is the time to end",
    "allowqos": "QOS do not open or close queues; use `submit`",
    "denyqos": "QOS do not open or close queues; use `submit`",
    "defmempernode": "jobs ask for memory with --mem",
    "defmempercpu": "jobs ask for memory with --mem-per-cpu",
    "defmempergpu": "jobs ask for memory with --mem-per-gpu",
    "maxmempernode": "queues have no limit of memory for a node; `limit` bounds the whole queue",
    "maxmempercpu": "queues have no limit of memory for a CPU; `limit` bounds the whole queue",
    "maxcpuspernode": "queues have no limit of CPUs for a node; `limit` bounds the whole queue",
    "tresbillingweights": "use is measured by the largest fraction of any resource",
    "lln": "`place: spread` is for the whole cluster",
    "state": "stop the queue with `fairlead queue stop`",
    "jobdefaults": "jobs ask for CPUs and memory of each GPU themselves",
}


class Warnings:
    def __init__(self) -> None:
        self._found: list[tuple[str, int, str]] = []

    def add(self, entry: Entry, key: str, why: str) -> None:
        file, _, line = entry.place.rpartition(":")
        self._found.append((file, int(line), f"{entry.words.get(key, key)}={entry.values.get(key, '')}: {why}"))

    def lines(self) -> list[str]:
        """Return all warnings, by file and line."""
        ordered = sorted(self._found, key=lambda found: found[:2])
        return [f"{file}:{line}: {text}" for file, line, text in dict.fromkeys(ordered)]


def convert(
    conf: Iterable[Entry], dump: Sequence[Entry], qos: Mapping[str, Entry]
) -> tuple[Document, list[str], list[str]]:
    """Return the configuration, what is not carried over, and what to start the agents of the nodes with."""
    warnings = Warnings()
    own: dict[str, tuple[Entry, str]] = {}
    partitions: list[Entry] = []
    nodes: list[Entry] = []
    usual: dict[str, dict[str, str]] = {}
    for entry in conf:
        if entry.kind in ("partitionname", "nodename"):
            if entry.values[entry.kind].upper() == "DEFAULT":
                usual[entry.kind] = {key: value for key, value in entry.values.items() if key != entry.kind}
                continue
            values = {entry.kind: entry.values[entry.kind], **usual.get(entry.kind, {}), **entry.values}
            whole = Entry(entry.place, values, {key: key for key in values} | entry.words)
            (partitions if entry.kind == "partitionname" else nodes).append(whole)
        elif entry.kind in ("nodeset", "downnodes", "frontendname"):
            warnings.add(entry, entry.kind, "nodes join by their agents, and `fairlead node` closes them")
        else:
            own |= {key: (entry, value) for key, value in entry.values.items()}
    if not partitions:
        raise NotRead("there is no PartitionName; is this a slurm.conf?")
    settings = _settings(own, warnings)
    hosts = _hosts(nodes)
    leaves = {_name(entry, "partitionname", warnings): entry for entry in partitions}
    default = next((name for name, entry in leaves.items() if entry.values.get("default", "").lower() == "yes"), "")
    order = settings.pop("order")
    plain = {name: _partition(entry, hosts, order, qos, warnings) for name, entry in leaves.items()}
    if dump:
        enforced = own.get("accountingstorageenforce", (None, "none"))[1].lower() not in ("none", "wckeys", "nojobs")
        root, rules = _accounts(dump, plain, leaves, default, enforced, warnings)
    else:
        for entry in leaves.values():
            for key in ("allowaccounts", "denyaccounts"):
                if entry.values.get(key, "all").lower() != "all":
                    warnings.add(entry, key, "accounts are in the dump of sacctmgr; name it too")
        root, rules = plain, [{"match": ".*", "queue": f"root.{default}"}] if default else []
    if rules:
        settings["requestors"] = rules
    settings["queues"] = {"root": root}
    agents = _agents(nodes, warnings)
    return {"partitions": {"default": settings}}, warnings.lines(), agents


def _name(entry: Entry, key: str, warnings: Warnings) -> str:
    """Return a name as queues have them."""
    name = entry.values[key]
    if NAME.fullmatch(name) and name not in TAKEN:
        return name
    new = re.sub(r"[^A-Za-z0-9_@+-]", "-", name).lstrip("-_@+")[:60] or "queue"
    new = f"{new}-q" if new in TAKEN else new
    warnings.add(entry, key, f"a queue cannot have this name; it is {new}")
    return new


# -- the settings of the cluster ---------------------------------------------------------------------------------


def _settings(own: Mapping[str, tuple[Entry, str]], warnings: Warnings) -> Document:
    settings: Document = {"order": "fifo"}
    if own.get("prioritytype", (None, "priority/multifactor"))[1] != "priority/basic":
        settings["order"] = "fair"
    settings["backfill"] = "off" if own.get("schedulertype", (None, ""))[1] == "sched/builtin" else "easy"
    kind = own.get("preempttype", (None, "preempt/none"))[1]
    settings["preempt"] = "off" if kind == "preempt/none" else "priority"
    for key, (entry, value) in own.items():
        if key == "prioritydecayhalflife":
            seconds = _seconds(entry, key)
            if seconds >= 60:
                settings["share_memory"] = f"{seconds:g}s"
        elif key == "killwait":
            settings["preempt_grace"] = f"{int(value)}s" if value.isdigit() else "30s"
        elif key == "minjobage" and value.isdigit() and int(value):
            settings["keep_ended"] = f"{value}s"
        elif key == "preemptmode" and value.upper() not in ("OFF", "REQUEUE"):
            warnings.add(entry, key, "tasks are stopped and wait again, as with REQUEUE")
        elif key.startswith("priorityweight") and value not in ("0", ""):
            why = "turns go by use" if key == "priorityweightfairshare" else "turns go by use, then by priority and age"
            warnings.add(entry, key, f"there are no weights; under order fair, {why}")
        elif key == "maxjobcount":
            warnings.add(entry, key, "`max_queued_jobs` bounds the jobs of each user")
        elif key not in KNOWN:
            warnings.add(entry, key, "it sets up Slurm itself, or has no counterpart here")
    return settings


KNOWN = {"clustername", "prioritytype", "schedulertype", "preempttype", "preemptmode", "accountingstorageenforce"}


def _seconds(entry: Entry, key: str) -> float:
    try:
        return parse_duration(entry.values[key]) or 0
    except ValueError:
        raise NotRead(f"{entry.place}: {key}={entry.values[key]} is not a time") from None


# -- partitions --------------------------------------------------------------------------------------------------


def _partition(
    entry: Entry, hosts: Sequence[str], order: str, qos: Mapping[str, Entry], warnings: Warnings
) -> Document:
    """Return the queue of a partition."""
    queue: Document = {"order": order}
    for key, value in entry.values.items():
        if key in ("partitionname", "default", "allowaccounts", "denyaccounts"):
            continue
        if key == "nodes":
            named = _expand(entry, key)
            if value.upper() != "ALL" and {*named} < {*hosts}:
                warnings.add(entry, key, "a queue has no nodes of its own; give these nodes a label, and jobs -C")
        elif value.lower() == USUAL.get(key):
            continue
        elif key == "allowgroups":
            queue["submit"] = [f"@{group}" for group in listed(value)]
        elif key == "rootonly":
            queue["submit"] = ["root"]
        elif key == "preemptmode" and value.upper() == "OFF":
            queue["preemptible"] = False
        elif key == "qos" and value in qos:
            _apply_qos(queue, qos[value], warnings)
        elif key == "qos":
            warnings.add(entry, key, "name a file with the output of `sacctmgr -P show qos` too")
        else:
            warnings.add(entry, key, OF_PARTITION.get(key, "it has no counterpart here"))
    return queue


def _apply_qos(queue: Document, entry: Entry, warnings: Warnings) -> None:
    """Set the limits of a QOS on the queue of the partition that has it."""
    for key, value in entry.values.items():
        if key == "grptres":
            _set_limit(queue, entry, key, warnings)
        elif key == "grpjobs":
            queue["max_jobs"] = int(value)
        elif key in ("maxtrespu", "maxtresperuser"):
            _set_limit(_each_user(queue), entry, key, warnings)
        elif key in ("maxjobspu", "maxjobsperuser"):
            _each_user(queue)["max_jobs"] = int(value)
        elif key not in ("name", "usagefactor", "gracetime") and value not in ("0", "cluster", "00:00:00"):
            warnings.add(entry, key, "it has no counterpart in the limits of a queue")


def _each_user(queue: Document) -> Document:
    limits: Document = queue.setdefault("users", {}).setdefault("*", {})
    return limits


# -- accounts ----------------------------------------------------------------------------------------------------


def _accounts(
    dump: Sequence[Entry],
    plain: Mapping[str, Document],
    leaves: Mapping[str, Entry],
    default: str,
    enforced: bool,
    warnings: Warnings,
) -> tuple[Document, list[Document]]:
    """Return the queues of accounts, with a queue for each partition in them, and the queues of users."""
    root: Document = {}
    queues: dict[str, tuple[str, Document]] = {"root": ("root", root)}
    rules: list[Document] = []
    parent = "root"
    for entry in dump:
        kind, name = entry.kind, entry.values[entry.kind]
        if kind == "cluster":
            _rest(entry, {"cluster", "fairshare", "qos"}, warnings)
        elif kind == "parent":
            if name not in queues:
                raise NotRead(f"{entry.place}: Parent - {name!r} comes before its account")
            parent = name
        elif kind == "account":
            path, above = queues[parent]
            own = _name(entry, "account", warnings)
            account: Document = above.setdefault(own, {})
            queues[name] = (f"{path}.{own}", account)
            _limit_account(account, entry, warnings)
            for leaf, partition in plain.items():
                if _may_use(leaves[leaf], name):
                    account[leaf] = {"share": 1, **partition}
        elif kind == "user":
            path, account = queues[parent]
            if enforced and parent != "root":
                account.setdefault("submit", []).append(name)
            _limit_user(account, entry, name, warnings)
            for coordinated in listed(entry.values.get("coordinator", "")):
                if coordinated in queues:
                    queues[coordinated][1].setdefault("admin", []).append(name)
            target = default if default in account else next((leaf for leaf in plain if leaf in account), "")
            if entry.values.get("defaultaccount", parent) == parent and target and parent != "root":
                rules.append({"match": f"^{re.escape(name)}$", "queue": f"{path}.{target}"})
        else:
            warnings.add(entry, kind, "it has no counterpart here")
    return root, rules


def _may_use(partition: Entry, account: str) -> bool:
    allowed, denied = partition.values.get("allowaccounts", "ALL"), partition.values.get("denyaccounts", "")
    return (allowed.upper() == "ALL" or account in listed(allowed)) and account not in listed(denied)


def _limit_account(account: Document, entry: Entry, warnings: Warnings) -> None:
    share = entry.values.get("fairshare", "1")
    account["share"] = int(share) if share.isdigit() else 1
    if not share.isdigit():
        warnings.add(entry, "fairshare", "users of an account share its queue; the share is 1")
    if "grptres" in entry.values:
        _set_limit(account, entry, "grptres", warnings)
    if "grpjobs" in entry.values:
        account["max_jobs"] = int(entry.values["grpjobs"])
    if "maxjobs" in entry.values:
        _each_user(account)["max_jobs"] = int(entry.values["maxjobs"])
    known = {"account", "fairshare", "grptres", "grpjobs", "maxjobs", "description", "organization"}
    _rest(entry, known, warnings)


def _limit_user(account: Document, entry: Entry, name: str, warnings: Warnings) -> None:
    limits: Document = {}
    if "grptres" in entry.values:
        _set_limit(limits, entry, "grptres", warnings)
    for key in ("maxjobs", "grpjobs"):
        if key in entry.values:
            limits["max_jobs"] = int(entry.values[key])
    if limits:
        account.setdefault("users", {})[name] = limits
    if entry.values.get("adminlevel", "None") != "None":
        warnings.add(entry, "adminlevel", f"`fairlead token create --user {name} --role operator` or `--role admin`")
    if entry.values.get("fairshare", "1") != "1":
        warnings.add(entry, "fairshare", "users of a queue share it equally; give the user an account of its own")
    known = {"user", "grptres", "maxjobs", "grpjobs", "adminlevel", "fairshare", "defaultaccount", "coordinator"}
    _rest(entry, known, warnings)


def _rest(entry: Entry, known: set[str], warnings: Warnings) -> None:
    for key in sorted(entry.values.keys() - known):
        if entry.values[key] not in ("", "normal", ",normal"):
            warnings.add(entry, key, "it has no counterpart in the limits of a queue")


# -- limits ------------------------------------------------------------------------------------------------------


def _set_limit(queue: Document, entry: Entry, key: str, warnings: Warnings) -> None:
    """Set a limit from a list such as `cpu=100,mem=1T,gres/gpu=8`."""
    limit: Document = {}
    for part in listed(entry.values[key]):
        name, _, amount = part.partition("=")
        try:
            if name.lower() == "cpu":
                limit["cpu"] = int(amount)
            elif name.lower() == "mem":
                limit["memory"] = f"{parse_size(amount)}Mi"
            elif name.startswith(("gres/", "license/")):
                limit[name.partition("/")[2].partition(":")[0]] = int(amount)
            else:
                warnings.add(entry, key, f"{name} is no resource of nodes here")
        except ValueError:
            raise NotRead(f"{entry.place}: {entry.words.get(key, key)}: {part!r} has no amount") from None
    if limit:
        queue["limit"] = limit


# -- nodes -------------------------------------------------------------------------------------------------------


def _expand(entry: Entry, key: str) -> list[str]:
    try:
        return expand_hosts(entry.values[key])
    except ValueError as problem:
        raise NotRead(f"{entry.place}: {problem}") from None


def _hosts(nodes: Iterable[Entry]) -> list[str]:
    return [name for entry in nodes for name in _expand(entry, "nodename")]


KEPT_BY_AGENTS = {
    "cpus", "procs", "boards", "sockets", "socketsperboard", "corespersocket", "threadspercore", "realmemory",
    "tmpdisk", "nodeaddr", "nodehostname", "port", "bcastaddr", "state", "nodename", "feature", "features", "gres",
    "weight",
}  # fmt: skip


def _agents(nodes: Iterable[Entry], warnings: Warnings) -> list[str]:
    """Return how the agents of nodes are started: with their features as labels, and resources that are not found."""
    lines = []
    for entry in nodes:
        options = [
            f"--label {feature}=" for feature in listed(entry.values.get("feature", entry.values.get("features", "")))
        ]
        for gres in listed(entry.values.get("gres", "")):
            name, *rest = gres.partition("(")[0].split(":")
            if name != "gpu":  # an agent finds its GPUs, as its CPUs and its memory
                count = rest[-1] if rest and rest[-1].isdigit() else "1"
                options.append(f"--resource {name}={count}")
        state = entry.values.get("state", "UNKNOWN").upper()
        if state in ("CLOUD", "FUTURE"):
            warnings.add(entry, "state", "machines that come when they are needed are a pool")
        elif state not in ("UNKNOWN", "IDLE"):
            warnings.add(entry, "state", "close the node with `fairlead node drain` once it has joined")
        if entry.values.get("weight", "1") != "1":
            warnings.add(entry, "weight", "where tasks go is set for the partition, with `place`")
        for key in sorted(entry.values.keys() - KEPT_BY_AGENTS):
            warnings.add(entry, key, "it has no counterpart here")
        lines.append(f"{fold_hosts(_expand(entry, 'nodename'))}: fairlead agent {' '.join(options)}".rstrip())
    return lines
