"""Containers: the root folder of an image takes the place of that of the node. All else stays: user, limits, devices.

The folder is entered by namespaces of the kernel, without another program: the pid of the task is that of its
program, and signals reach it. An image of a registry is unpacked by skopeo and umoci into such a folder, once a node.
Where that is missing, Apptainer or Podman runs the container.
"""

from __future__ import annotations

import base64
import ctypes
import hashlib
import json
import os
import shutil
import subprocess
from contextlib import nullcontext, suppress

from fairlead.agent.spawner.confine import BIND, NEW_MOUNTS, NO_DEVICES, NO_SUID, RECURSIVE, SLAVE, check, libc
from fairlead.agent.spawner.node_cache import CannotPrepare, entry, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PROGRAMS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where programs are, in images that do not say it, and those of runtimes on the node."""
AUTH = "FAIRLEAD_REGISTRY_AUTH"
"""The variable with the credentials for a registry. The task does not get it."""
OURS = "/.fairlead"
"""The folder in a container with what belongs to the node: libraries of the driver."""
ALWAYS = ("/proc", "/sys", "/dev", "/tmp", "/var/tmp", "/etc/resolv.conf", "/etc/hosts")
"""What a container has of the node without being asked."""
NEW_USERS = 0x10000000
READ_ONLY, REMOUNT, DETACH = 0x1, 0x20, 0x2
KEPT_FLAGS = 0xC0E
"""Flags of a mount that a later one must keep: nosuid, nodev, noexec, noatime, nodiratime."""
RELATIME, UNBINDABLE = 1 << 21, 1 << 17

Bind = tuple[str, str, bool]
"""Source on the node, target in the container, True if it is read-only."""


def kinds() -> dict[str, str]:
    """Return the kinds of images that this node runs, each with what runs it."""
    own = can_enter()
    apptainer = "apptainer" if _program("apptainer") else ""
    podman = "podman" if _program("podman") else ""
    unpacked = "unpacked" if own and _program("skopeo") and _program("umoci") else ""
    found = {
        "folder": "namespaces" if own else apptainer or podman,
        "docker": unpacked or apptainer or podman,
        "oras": apptainer,
        "sif": apptainer,
    }
    return {kind: runtime for kind, runtime in found.items() if runtime}


def enter(cache: str, image: str, mounts: Iterable[str], command: list[str]) -> None:
    """Enter a container, in which the caller then runs the command; or run it by another runtime, without returning."""
    if not image.endswith(".sif") and "://" not in image and not os.path.isdir(image):
        raise CannotPrepare(f"the image {image} is not a folder on {os.environ.get('FAIRLEAD_NODE', 'this node')}")
    runtime = kinds().get(image.partition("://")[0] if "://" in image else _kind_of(image), "")
    binds = list(_binds(mounts))
    if runtime in ("namespaces", "unpacked"):
        root, variables = (image, {}) if runtime == "namespaces" else _unpacked(cache, image)
        os.environ.pop(AUTH, None)
        for name, value in {"PATH": PROGRAMS, **variables}.items():
            os.environ.setdefault(name, value)
        if any(target.startswith(OURS) for _, target, _ in binds):
            os.environ["LD_LIBRARY_PATH"] = ":".join(filter(None, (os.environ.get("LD_LIBRARY_PATH"), OURS)))
            os.environ["PATH"] += f":{OURS}"
        enter_folder(root, binds, cache)
        return
    auth = _auth_file(image)
    if runtime == "apptainer":
        words = _apptainer(image, binds, command)
    elif runtime == "podman":
        words = _podman(image, binds, command, auth)
    else:
        raise CannotPrepare(f"{os.environ.get('FAIRLEAD_NODE', 'this node')} runs no images such as {image} any more")
    program = _program(words[0])
    os.environ.pop(AUTH, None)
    os.environ.setdefault("PATH", PROGRAMS)
    os.execv(program, words)


def _kind_of(image: str) -> str:
    return "sif" if image.endswith(".sif") else "folder"


def _program(name: str) -> str:
    return shutil.which(name, path=PROGRAMS) or ""


def _binds(mounts: Iterable[str]) -> Iterator[Bind]:
    """Yield what a container has of the node, outer folders first."""
    stop_file = os.environ.get("FAIRLEAD_STOP_FILE", "")
    own = (
        os.environ.get("HOME", ""),
        os.getcwd(),
        os.path.dirname(stop_file),
        os.environ.get("FAIRLEAD_CHECKPOINT", ""),
    )
    named = {path for path in own if path.startswith("/")}
    folders = sorted((named | {os.path.realpath(path) for path in named}) - {"/"})
    for path in (*ALWAYS, *folders):
        if os.path.exists(path):
            yield path, path, path.startswith("/etc/")
    yield from _gpu_binds()
    for mount in mounts:
        source, _, target = mount.removesuffix(":ro").partition(":")
        if not os.path.exists(source):
            raise CannotPrepare(f"the mount {source} does not exist on {os.environ.get('FAIRLEAD_NODE', 'this node')}")
        yield source, os.path.normpath(target or source), mount.endswith(":ro")


def _gpu_binds() -> Iterator[Bind]:
    """Yield the libraries and programs of the driver, for a task with GPUs. They must be those of the node's kernel."""
    if os.environ.get("NVIDIA_VISIBLE_DEVICES", "void") == "void" or not os.path.exists("/dev/nvidiactl"):
        return
    listed = subprocess.run([_program("ldconfig") or "ldconfig", "-p"], capture_output=True, text=True, check=False)
    seen = set()
    for line in listed.stdout.splitlines():
        name, _, path = line.strip().partition(" => ")
        name = name.partition(" ")[0]
        if (
            path
            and "64" in line
            and name.startswith(("libcuda.so", "libnvidia-", "libnvcuvid.so"))
            and name not in seen
        ):
            seen.add(name)
            yield os.path.realpath(path), f"{OURS}/{name}", True
    if _program("nvidia-smi"):
        yield _program("nvidia-smi"), f"{OURS}/nvidia-smi", True


# -- namespaces --------------------------------------------------------------------------------------------------------


def can_enter() -> bool:
    """True if a process of this user can enter a container by namespaces."""
    pid = os.fork()
    if not pid:
        code = 1
        with suppress(OSError):
            _separate()
            _mount("tmpfs", "/tmp", "tmpfs", NO_SUID | NO_DEVICES)
            code = 0
        os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def enter_folder(image: str, binds: list[Bind], cache: str) -> None:
    """Make a folder the root of this process, with what the node gives. The folder itself is read-only."""
    here = os.getcwd()
    root = f"{cache}/root"
    os.makedirs(root, 0o700, exist_ok=True)
    users = _with_user(image)
    _separate()
    _mount("tmpfs", root, "tmpfs", NO_SUID | NO_DEVICES, "mode=0755")
    targets = [target for _, target, _ in binds]
    _lay(image, root, "", targets)
    if users:
        _write(f"{root}{OURS}/passwd", users)
        _bind(f"{root}{OURS}/passwd", root + _inside(root, "/etc/passwd"), True)
    _mount("", root, "", UNBINDABLE)  # it is below the home, perhaps, which it gets
    for source, target, read_only in binds:
        with suppress(OSError) if target in ALWAYS else nullcontext():
            _bind(source, root + _inside(root, target), read_only)
    _mount("", root, "", REMOUNT | BIND | READ_ONLY | NO_SUID | NO_DEVICES)
    os.chdir(root)
    check(libc.pivot_root(b".", b"."), "pivot_root")
    check(libc.umount2(b".", DETACH), "umount /")
    try:
        os.chdir(here)
    except FileNotFoundError:
        os.chdir("/")


def _separate() -> None:
    """Give this process mounts of its own, in which its user may mount. The ids stay what they are."""
    uid, gid = os.geteuid(), os.getegid()
    check(libc.unshare(NEW_MOUNTS | (NEW_USERS if uid else 0)), "unshare")
    if uid:
        for file, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{file}", "w") as opened:
                opened.write(text)
    _mount("none", "/", "", RECURSIVE | SLAVE)


def _lay(image: str, root: str, path: str, targets: list[str]) -> None:
    """Show a folder of the image in the new root. A folder that gets a target which the image lacks is made anew, with
    its entries bound one by one."""
    for name in sorted(os.listdir(image + path)):
        inner = f"{path}/{name}"
        source, place = image + inner, root + inner
        if os.path.islink(source):
            os.symlink(os.readlink(source), place)
        elif os.path.isdir(source) and any(_lacks(image, inner, target) for target in targets):
            os.mkdir(place)
            _lay(image, root, inner, targets)
        elif inner not in targets:
            _bind(source, place, True)


def _lacks(image: str, folder: str, target: str) -> bool:
    return target.startswith(f"{folder}/") and not os.path.lexists(image + target)


def _inside(root: str, target: str) -> str:
    """Return the path of a target within the new root after its links are resolved, such as /run for /var/run."""
    path = ""
    for name in target.strip("/").split("/"):
        path += f"/{name}"
        for _ in range(10):
            if not os.path.islink(root + path):
                break
            path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(root + path)))
            path = "/" + path.lstrip("/")
    return path


def _bind(source: str, place: str, read_only: bool) -> None:
    if not os.path.lexists(place):
        os.makedirs(place if os.path.isdir(source) else os.path.dirname(place), exist_ok=True)
    if not os.path.isdir(source) and not os.path.lexists(place):
        _write(place, "")
    _mount(source, place, "", BIND | RECURSIVE)
    if read_only:
        flags = os.statvfs(place).f_flag
        _mount("", place, "", REMOUNT | BIND | READ_ONLY | flags & KEPT_FLAGS | (RELATIME if flags & 4096 else 0))


def _mount(source: str, place: str, kind: str, flags: int, data: str = "") -> None:
    words = [os.fsencode(word) or None for word in (source, place, kind)]
    check(libc.mount(*words, ctypes.c_ulong(flags), os.fsencode(data) or None), f"mount {place}")


def _write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)


def _with_user(image: str) -> str:
    """Return the users of an image with that of the task; empty if the image has no such file."""
    import pwd

    try:
        with open(f"{image}/etc/passwd") as file:
            known = file.read()
        person = pwd.getpwuid(os.getuid())
    except (OSError, KeyError):
        return ""
    if any(line.split(":")[2:3] == [str(person.pw_uid)] for line in known.splitlines()):
        return ""
    line = f"{person.pw_name}:x:{person.pw_uid}:{person.pw_gid}::{person.pw_dir}:/bin/sh\n"
    return known + ("" if known.endswith("\n") or not known else "\n") + line


# -- images of registries ----------------------------------------------------------------------------------------------


def _unpacked(cache: str, image: str) -> tuple[str, dict[str, str]]:
    """Return the folder of an image and its variables. What a name stands for is asked once for each job and node."""
    names = f"{cache}/names"
    auth = _auth_file(image)

    def ask(path: str) -> None:
        flags = ["--authfile", auth] if auth else []
        words = ["skopeo", "inspect", *flags, "--format", "{{.Digest}}", image]
        digest = _run(words, f"the image {image} was not found", capture=True).strip()
        with open(path, "w") as file:
            file.write(digest)

    def fetch(path: str) -> None:
        say(f"fetching {image} to this node")
        flags = ["--src-authfile", auth] if auth else []
        os.makedirs(path)
        _run(["skopeo", "copy", *flags, image, f"oci:{path}/oci:image"], f"the image {image} could not be fetched")
        say("unpacking it")
        rootless = ["--rootless"] if os.getuid() else []
        _run(
            ["umoci", "unpack", *rootless, "--image", f"{path}/oci:image", f"{path}/bundle"], "it could not be unpacked"
        )
        shutil.rmtree(f"{path}/oci")

    name = hashlib.sha256(image.encode()).hexdigest()[:16]
    with open(entry(names, f"{os.environ.get('FAIRLEAD_JOB', '')}-{name}", ask)) as file:
        digest = file.read()
    folder = entry(f"{cache}/images", digest.replace(":", "-"), fetch)
    with open(f"{folder}/bundle/config.json") as file:
        variables = json.load(file)["process"].get("env", [])
    return f"{folder}/bundle/rootfs", dict(text.split("=", 1) for text in variables if not text.startswith("HOME="))


def _run(words: list[str], failed: str, capture: bool = False) -> str:
    """Run a program, whose progress goes to standard error."""
    environment = {"PATH": PROGRAMS, **os.environ}
    done = subprocess.run(
        [_program(words[0]), *words[1:]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if capture else 2,
        env=environment,
        text=True,
        check=False,
        close_fds=False,
    )
    if done.returncode:
        raise CannotPrepare(failed)
    return done.stdout or ""


def _auth_file(image: str) -> str:
    """Return the path of a file in memory with the credentials of the task for the registry; empty if it has none."""
    given = os.environ.get(AUTH, "")
    if not given:
        return ""
    user, _, password = given.partition(":")
    os.environ |= {"APPTAINER_DOCKER_USERNAME": user, "APPTAINER_DOCKER_PASSWORD": password}
    host = image.partition("://")[2].partition("/")[0]
    host = host if "." in host or ":" in host or host == "localhost" else "docker.io"
    text = json.dumps({"auths": {host: {"auth": base64.b64encode(given.encode()).decode()}}})
    fd = os.memfd_create("auth", 0)
    os.write(fd, text.encode())
    return f"/proc/self/fd/{fd}"


# -- other runtimes ----------------------------------------------------------------------------------------------------


def _apptainer(image: str, binds: list[Bind], command: list[str]) -> list[str]:
    """Return the command of Apptainer. It shows /proc, /dev, the home and the temporary folders by itself."""
    words = ["apptainer", "--quiet", "exec", "--pwd", os.getcwd()]
    for source, target, read_only in binds:
        if source not in ALWAYS and not target.startswith(OURS):
            words += ["--bind", f"{source}:{target}{':ro' if read_only else ''}"]
    if any(target.startswith(OURS) for _, target, _ in binds):
        words.append("--nv")
    return [*words, image, *command]


def _podman(image: str, binds: list[Bind], command: list[str], auth: str) -> list[str]:
    """Return the command of Podman. Variables are named and not written, so that no secret is in its arguments."""
    words = ["podman", "run", "--rm", "--cgroups", "disabled", "--network", "host", "--ipc", "host", "--read-only"]
    words += ["--security-opt", "label=disable", "--workdir", os.getcwd(), "--interactive"]
    words += ["--userns", "keep-id"] if os.getuid() else []
    words += ["--tty"] if os.isatty(0) else []
    words += ["--authfile", auth] if auth else []
    for name in os.environ.keys() - {AUTH}:
        words += ["--env", name]
    for source, target, read_only in binds:
        if source not in ("/proc", "/sys", "/dev"):
            words += ["--volume", f"{source}:{target}{':ro' if read_only else ''}"]
    if any(target.startswith(OURS) for _, target, _ in binds):
        words += [f"--device=/dev/{name}" for name in os.listdir("/dev") if name.startswith("nvidia")]
        words += ["--env", f"LD_LIBRARY_PATH={OURS}"]
    words += ["--entrypoint", command[0]]
    which = ["--rootfs", image] if image.startswith("/") else ["--pull", "newer", image]
    return [*words, *which, *command[1:]]
