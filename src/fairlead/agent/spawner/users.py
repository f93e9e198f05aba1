"""Maps a Fairlead user to the system user that runs the user's tasks, and refuses users that may not run tasks here.

The root helper reads the map file, the allowed uids and the groups itself. The agent passes only the user's name.
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
"""Default range of uids, if `login.defs` does not set it."""
LONGEST = 63


class NotAllowed(Exception):
    """Raised if the tasks of a user cannot run here; the text says why and what to do."""


class Person:
    """A system user: the ids, groups, home and shell that tasks run with."""

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
    """Return the system user that runs the tasks of a Fairlead user. Raises `NotAllowed` if there is none.

    `names` has the lines of the map file, `uids` the first and last allowed uid, `agent` the uid and gid of the agent.
    """
    if not 0 < len(user) <= LONGEST or not all(char.isascii() and (char.isalnum() or char in "._@+-") for char in user):
        raise NotAllowed("the name of the user is not valid in Fairlead")
    name = names.get(user, user)
    try:
        account = pwd.getpwnam(name)
    except KeyError:
        raise NotAllowed(f"user {user}: this node has no system user {name}; create it, or map {user} to one") from None
    _check_account(account, user, uids, agent)
    groups = [group for group in os.getgrouplist(name, account.pw_gid) if group != agent[1]]
    home = account.pw_dir if os.path.isabs(account.pw_dir) else "/"
    return Person(name, account.pw_uid, account.pw_gid, groups, home, account.pw_shell or "/bin/sh")


def _check_account(account: pwd.struct_passwd, user: str, uids: tuple[int, int], agent: tuple[int, int]) -> None:
    name = account.pw_name
    if not uids[0] <= account.pw_uid <= uids[1] or account.pw_uid == 0:
        raise NotAllowed(
            f"user {user}: system user {name} has uid {account.pw_uid}, and this node allows {uids[0]} to {uids[1]}"
        )
    if account.pw_gid == 0 or account.pw_uid == agent[0]:
        raise NotAllowed(f"user {user}: system user {name} is the agent's or in group root; map {user} to another")
    if account.pw_gid == agent[1]:
        raise NotAllowed(
            f"user {user}: the primary group of system user {name} is the agent's, which reads the logs of all users; "
            f"give {name} another one with `usermod -g`"
        )


def read_map(path: str) -> dict[str, str]:
    """Read lines of `fairlead-user=system-user`; `#` starts a comment. Return a map from Fairlead to system users.

    Raises `NotAllowed` if users other than root can write the file.
    """
    if not path:
        return {}
    with open(path) as file:
        status = os.fstat(file.fileno())
        if status.st_uid != 0 or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
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
    """Return the first and last uid of regular users on this machine: `UID_MIN` and `UID_MAX`."""
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
