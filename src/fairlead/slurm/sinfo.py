"""`sinfo`: list queues as partitions, and nodes."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from fairlead.slurm.fields import Column, Field, NoSuchField, read_format, read_names
from fairlead.slurm.nodes import SHORT, Host, Part, read_hosts, read_parts
from fairlead.slurm.options import Given, fail, from_environment, parse
from fairlead.slurm.queues import is_below
from fairlead.slurm.server import connect
from fairlead.slurm.tables import SINFO
from fairlead.slurm.values import listed
from fairlead.wire.hostlist import expand_hosts, fold_hosts

if TYPE_CHECKING:
    from fairlead.client import Client

NAME = "sinfo"
VARIABLES = {"format": "SINFO_FORMAT", "Format": "", "noheader": ""}
USUAL = "%#P %.5a %.10l %.6D %.6t %N"
LONG = "%#P %.5a %.10l %.10s %.4r %.8h %.10g %.6D %.11T %N"
EACH = "%#N %.6D %#P %6t"
EACH_LONG = "%#N %.6D %#P %.11T %.4c %.8z %.6m %.8d %.6w %.8f %20E"
SUMMARY = "%#P %.5a %.10l %.16F %N"
REASONS = "%20E %9u %19H %N"


class Line(NamedTuple):
    """Some nodes of a queue that look alike in the fields that are shown."""

    part: Part
    hosts: list[Host]

    @property
    def first(self) -> Host | None:
        return self.hosts[0] if self.hosts else None

    def of_first(self, value: Callable[[Host], str], missing: str = "") -> str:
        return value(self.hosts[0]) if self.hosts else missing

    def cpus(self) -> str:
        counts = [0.0, 0.0, 0.0]
        for host in self.hosts:
            used = host.amount("cpu", True)
            counts[0] += used
            counts[1 if host.group < 2 else 2] += host.amount("cpu") - used
        total = sum(host.amount("cpu") for host in self.hosts)
        return "/".join(f"{count:.0f}" for count in (*counts, total))

    def states(self) -> str:
        counts = [sum(host.group == group for host in self.hosts) for group in range(3)]
        return "/".join(str(count) for count in (*counts, len(self.hosts)))


def _value(name: str, missing: str = "") -> Callable[[Line], str]:
    return lambda line: line.of_first(lambda host: str(getattr(host, name)), missing)


Together = frozenset("ADFCN")
"""Fields that add up nodes, so that they do not separate lines."""
FIELDS: tuple[Field[Line], ...] = (
    Field("a", "available", "AVAIL", lambda line: "up" if line.part.up else "down"),
    Field("A", "nodeai", "NODES(A/I)", lambda line: "/".join(line.states().split("/")[:2])),
    Field("b", "features_act", "ACTIVE_FEATURES", lambda line: line.of_first(lambda host: host.features) or "(null)"),
    Field("B", "maxcpuspernode", "MAX_CPUS_PER_NODE", lambda line: "UNLIMITED"),
    Field("c", "cpus", "CPUS", lambda line: line.of_first(lambda host: f"{host.amount('cpu'):g}", "0")),
    Field("C", "cpusstate", "CPUS(A/I/O/T)", Line.cpus),
    Field("d", "disk", "TMP_DISK", lambda line: "0"),
    Field("D", "nodes", "NODES", lambda line: str(len(line.hosts))),
    Field("e", "freemem", "FREE_MEM",
          lambda line: line.of_first(lambda host: str(host.mib - int(host.amount("memory", True) // 2**20)), "0")),
    Field("E", "reason", "REASON", lambda line: line.of_first(lambda host: host.node.reason) or "none"),
    Field("f", "features", "AVAIL_FEATURES", lambda line: line.of_first(lambda host: host.features) or "(null)"),
    Field("F", "nodeaiot", "NODES(A/I/O/T)", Line.states),
    Field("g", "groups", "GROUPS", lambda line: "all"),
    Field("G", "gres", "GRES", lambda line: line.of_first(lambda host: host.gres) or "(null)"),
    Field("h", "oversubscribe", "OVERSUBSCRIBE", lambda line: "NO"),
    Field("H", "timestamp", "TIMESTAMP", lambda line: "Unknown"),
    Field("i", "resv", "RESV", lambda line: ""),
    Field("I", "priorityjobfactor", "PRIO_JOB_FACTOR", lambda line: "1"),
    Field("l", "time", "TIMELIMIT", lambda line: "infinite"),
    Field("L", "defaulttime", "DEFAULTTIME", lambda line: "n/a"),
    Field("m", "memory", "MEMORY", lambda line: line.of_first(lambda host: str(host.mib), "0")),
    Field("M", "preemptmode", "PREEMPT_MODE", lambda line: "REQUEUE"),
    Field("n", "nodehost", "HOSTNAMES", _value("name", "n/a")),
    Field("N", "nodelist", "NODELIST", lambda line: fold_hosts(host.name for host in line.hosts)),
    Field("o", "nodeaddr", "NODE_ADDR", _value("name", "n/a")),
    Field("O", "cpusload", "CPU_LOAD", lambda line: line.of_first(lambda host: "N/A", "n/a")),
    Field("p", "prioritytier", "PRIO_TIER", lambda line: "1"),
    Field("P", "partition", "PARTITION", lambda line: line.part.name + "*" * line.part.default),
    Field("r", "root", "ROOT", lambda line: "no"),
    Field("R", "partitionname", "PARTITION", lambda line: line.part.name),
    Field("s", "size", "JOB_SIZE", lambda line: "1-infinite"),
    Field("S", "allocnodes", "ALLOCNODES", lambda line: "all"),
    Field("t", "statecompact", "STATE", _value("shown", "n/a")),
    Field("T", "statelong", "STATE",
          lambda line: line.of_first(lambda host: host.state.lower() + "*" * (not host.answers), "n/a")),
    Field("u", "user", "USER", lambda line: "Unknown"),
    Field("U", "userlong", "USER", lambda line: "Unknown"),
    Field("v", "version", "VERSION", lambda line: line.of_first(lambda host: host.node.labels.get("version", ""))),
    Field("V", "cluster", "CLUSTER", lambda line: ""),
    Field("w", "weight", "WEIGHT", lambda line: "1"),
    Field("X", "sockets", "SOCKETS", lambda line: line.of_first(lambda host: f"{host.amount('cpu'):g}", "0")),
    Field("Y", "cores", "CORES", lambda line: "1"),
    Field("z", "socketcorethread", "S:C:T", lambda line: line.of_first(lambda host: f"{host.amount('cpu'):g}:1:1")),
    Field("Z", "threads", "THREADS", lambda line: "1"),
    Field("", "state", "STATE", _value("shown", "n/a")),
    Field("", "statecomplete", "STATE", lambda line: line.of_first(lambda host: host.state.lower())),
    Field("", "gresused", "GRES_USED", lambda line: line.of_first(lambda host: host.gres_used)),
    Field("", "allocmem", "ALLOCMEM",
          lambda line: line.of_first(lambda host: str(int(host.amount("memory", True) // 2**20)), "0")),
    Field("", "port", "PORT", lambda line: "0"),
    Field("", "comment", "COMMENT", lambda line: ""),
    Field("", "extra", "EXTRA", lambda line: ""),
)  # fmt: skip
ADDED = {"nodeai", "nodeaiot", "cpusstate", "nodes", "nodelist"}
OF_PART = {"available", "cluster", "partition", "partitionname", "time", "defaulttime", "size", "root", "oversubscribe",
           "groups", "prioritytier", "priorityjobfactor", "preemptmode", "allocnodes", "maxcpuspernode"}  # fmt: skip


def main(words: list[str]) -> int:
    given, rest = parse(SINFO, words)
    if rest:
        fail(NAME, f"Unrecognized option: {rest[0]}")
    given = Given({**from_environment(SINFO, os.environ, "SINFO", VARIABLES), **given})
    with connect(NAME, given) as client:
        while True:
            _list(client, given)
            if "iterate" not in given:
                return 0
            sys.stdout.flush()
            time.sleep(max(1.0, float(given["iterate"])))


def _list(client: Client, given: Given) -> None:
    hosts = [host for host in read_hosts(client) if _wanted(host, given)]
    names = listed(given.get("partition", ""))
    parts = [part for part in read_parts(client) if not names or any(is_below(part.queue.path, name) for name in names)]
    if "json" in given:
        from fairlead.slurm.documents import encode
        from fairlead.slurm.scontrol import node_fields

        sys.stdout.write(encode(nodes=[node_fields(host, parts) for host in hosts]))
        return
    before, columns, sharp = _columns(given)
    lines = _lines(parts, hosts, columns, given)
    if "sort" in given:
        lines = _sorted(lines, given["sort"])
    columns = [
        column._replace(width=max([len(column.field.value(line)) for line in lines] + [len(column.field.heading)]))
        if at in sharp
        else column
        for at, column in enumerate(columns)
    ]
    if "long" in given and "noheader" not in given:
        print(time.strftime("%a %b %d %H:%M:%S %Y"))
    if "noheader" not in given:
        print(before + "".join([column.text(column.field.heading) for column in columns]))
    for line in lines:
        print(before + "".join([column.text(column.field.value(line)) for column in columns]))


def _columns(given: Given) -> tuple[str, list[Column[Line]], set[int]]:
    """Return the columns, and those of them that are as wide as their longest value."""
    if "Format" in given:
        try:
            return "", read_names(given["Format"], FIELDS), set()
        except NoSuchField as problem:
            fail(NAME, f"Invalid node format specification: {problem}")
    default = REASONS if "list-reasons" in given else SUMMARY if "summarize" in given else USUAL
    if "Node" in given:
        default = EACH_LONG if "long" in given else EACH
    elif "long" in given and default == USUAL:
        default = LONG
    text = given.get("format", default)
    codes = re.findall(r"%(#?)\.?\d*(.)", text)
    known = {field.letter for field in FIELDS}
    sharp = {at for at, (mark, _) in enumerate(code for code in codes if code[1] in known) if mark}
    before, columns = read_format(text.replace("%#", "%"), FIELDS)
    return before, columns, sharp


def _wanted(host: Host, given: Given) -> bool:
    if "nodes" in given:
        try:
            if host.name not in expand_hosts(given["nodes"]):
                return False
        except ValueError:
            fail(NAME, f"Invalid node name specified: {given['nodes']}")
    if ("dead" in given and host.answers) or ("responding" in given and not host.answers):
        return False
    if "list-reasons" in given and not host.node.reason:
        return False
    if "states" in given and given["states"].lower() != "all":
        words = {word.lower() for word in listed(given["states"])}
        names = {"alloc", "allocated"} if host.state in ("MIXED", "ALLOCATED") else set()
        names |= {SHORT[host.state], host.state.lower(), host.shown, "resp" if host.answers else "no_respond"}
        names |= {"drain"} if host.state.startswith("DRAIN") else set()
        return not words.isdisjoint(names)
    return True


def _lines(parts: Iterable[Part], hosts: list[Host], columns: list[Column[Line]], given: Given) -> list[Line]:
    """Group nodes into lines: nodes of one line are equal in all fields that are not sums over nodes."""
    apart = [column.field for column in columns if column.field.name not in ADDED]
    part_shown = any(field.name in OF_PART for field in apart)
    found: list[Line] = []
    if "Node" in given:
        return [Line(part, [host]) for host in sorted(hosts, key=lambda host: _by_number(host.name)) for part in parts]
    seen: dict[tuple[str, ...], Line] = {}
    for part in parts:
        if not hosts and part_shown and "list-reasons" not in given:
            found.append(Line(part, []))
        for host in sorted(hosts, key=lambda host: _by_number(host.name)):
            line = Line(part, [host])
            key = tuple(field.value(line) for field in apart)
            if key not in seen:
                seen[key] = line
                found.append(line)
            elif host not in seen[key].hosts:
                seen[key].hosts.append(host)
    return found


def _by_number(name: str) -> tuple[str, int]:
    match = re.fullmatch(r"(.*?)(\d{1,18})", name)
    return (match[1], int(match[2])) if match else (name, -1)


def _sorted(lines: list[Line], order: str) -> list[Line]:
    by_letter = {field.letter: field for field in FIELDS if field.letter}
    for word in reversed(listed(order)):
        field = by_letter.get(word.lstrip("+-#")[:1])
        if field is None:
            fail(NAME, f"Invalid sort specification: {word}")
        lines = sorted(lines, key=field.value, reverse=word.startswith("-"))
    return lines
