"""Which system user runs the tasks of a Fairlead user: the map, the allowed uids, and the user's groups.

Root reads this from its own files and from the user database. The agent names the Fairlead user and nothing else.
"""

from __future__ import annotations

import os
import pwd
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

LOGIN = "/etc/login.defs"
FIRST, LAST = 1000, 60000
"""The uids of people where `login.defs` does not say."""
LONGEST = 63


class NotAllowed(Exception):
    """The tasks of a user cannot run here; the text says why and what to do."""


class Person:
    """A system user as a task runs: its ids, groups and home."""

    __slots__ = ("gid", "groups", "home", "name", "shell", "uid")

    def __init__(self, name: str, uid: int, gid: int, groups: list[int], home: str, shell: str) -> None:
        self.name = name
        self.uid = uid
        self.gid = gid
        self.groups = groups
        self.home = home
        self.shell = shell

    @property
    def environment(self) -> dict[str, str]:
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name, "SHELL": self.shell}


def find_person(user: str, names: dict[str, str], uids: tuple[int, int], agent: tuple[int, int]) -> Person:
    """The system user that runs the tasks of a Fairlead user. `agent` has the uid and gid of the agent."""
    if (
        not user
        or len(user) > LONGEST
        or not all(each.isascii() and (each.isalnum() or each in "._@+-") for each in user)
    ):
        raise NotAllowed("the name of the user is not one of Fairlead's")
    name = names.get(user, user)
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise NotAllowed(f"user {user}: this node has no system user {name}; create it, or map {user} to one") from None
    if not uids[0] <= found.pw_uid <= uids[1] or found.pw_uid == 0:
        raise NotAllowed(
            f"user {user}: system user {name} has uid {found.pw_uid}, and this node allows {uids[0]} to {uids[1]}"
        )
    if found.pw_gid == 0 or found.pw_uid == agent[0]:
        raise NotAllowed(f"user {user}: system user {name} is the agent's or in group root; map {user} to another")
    if found.pw_gid == agent[1]:
        raise NotAllowed(
            f"user {user}: the primary group of system user {name} is the agent's, which reads the logs of all users; "
            f"give {name} another one with `usermod -g`"
        )
    groups = [each for each in os.getgrouplist(name, found.pw_gid) if each != agent[1]]
    home = found.pw_dir if os.path.isabs(found.pw_dir) else "/"
    return Person(name, found.pw_uid, found.pw_gid, groups, home, found.pw_shell or "/bin/sh")


def read_map(path: str) -> dict[str, str]:
    """Lines of `fairlead-user=system-user`; `#` starts a comment. Only root may be able to write the file."""
    if not path:
        return {}
    with open(path) as file:
        about = os.fstat(file.fileno())
        if about.st_uid != 0 or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise NotAllowed(f"{path}: not only root can write it; `chown root` and `chmod 644` it")
        return parse_map(file, path)


def parse_map(lines: Iterable[str], path: str) -> dict[str, str]:
    names: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if text:
            user, sign, name = (part.strip() for part in text.partition("="))
            if not (user and sign and name):
                raise NotAllowed(f"{path}:{number}: {text!r} is not fairlead-user=system-user")
            names[user] = name
    return names


def allowed_uids(path: str = LOGIN) -> tuple[int, int]:
    """The uids of people on this machine, from `UID_MIN` and `UID_MAX`."""
    first, last = FIRST, LAST
    try:
        with open(path) as file:
            for line in file:
                words = line.split()
                if len(words) >= 2 and words[1].isdigit():
                    first = int(words[1]) if words[0] == "UID_MIN" else first
                    last = int(words[1]) if words[0] == "UID_MAX" else last
    except OSError:
        pass
    return first, last
