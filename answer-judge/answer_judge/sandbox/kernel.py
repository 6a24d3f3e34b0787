"""What a process does to confine itself, with the standard library and ctypes alone. It runs in the sandbox's server.

Each function gives whether the system did it; nothing here decides what is enough (``layers``).
"""

import ctypes
import os
import platform
import resource
import struct
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from answer_judge.sandbox.syscalls import ARCHITECTURES, bpf_program

LIBC = ctypes.CDLL(None, use_errno=True)
LINUX = sys.platform == "linux"
NOBODY = 65534
ABOVE = "/tmp"
PLACE = f"{ABOVE}/program"
"""Where a program's own folder is mounted, and where it starts."""

NEW_NS, NEW_UTS, NEW_IPC, NEW_USER, NEW_NET = 0x20000, 0x04000000, 0x08000000, 0x10000000, 0x40000000
_PRIVATE, _RECURSIVE, _READ_ONLY, _NO_SUID, _NO_DEV, _NO_EXEC, _REMOUNT = 1 << 18, 1 << 14, 1, 2, 4, 8, 32
_BIND, _MOVE, _DETACH = 1 << 12, 1 << 13, 2
_PDEATHSIG, _DUMPABLE, _SECCOMP, _NO_NEW_PRIVS = 1, 4, 22, 38
_READ_FILE, _READ_DIR, _WRITE_FILE = 1 << 2, 1 << 3, 1 << 1
_LEAST_ABI = 3
"""Landlock's version from which on cutting a file to length is confined too."""


def separate() -> bool:
    """Leave the network, other processes' shared memory and the system's mounts behind, and make ``PLACE``.

    Needs no privilege where users may create namespaces.
    """
    if not LINUX:
        return False
    uid, gid = os.getuid(), os.getgid()
    spaces = NEW_NS | NEW_UTS | NEW_IPC | NEW_NET
    if LIBC.unshare(spaces) != 0:
        if LIBC.unshare(spaces | NEW_USER) != 0:
            return False
        try:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{NOBODY} {uid} 1")
            Path("/proc/self/gid_map").write_text(f"{NOBODY} {gid} 1")
        except OSError:
            return False
    if LIBC.mount(None, b"/", None, _PRIVATE | _RECURSIVE, None) != 0 or not _mount(ABOVE, "size=4k,mode=755"):
        return False
    os.mkdir(PLACE)
    return LIBC.mount(None, ABOVE.encode(), None, _REMOUNT | _READ_ONLY | _NO_SUID | _NO_DEV | _NO_EXEC, None) == 0


def system_places() -> list[str]:
    """The libraries that an interpreter needs, of the system and its own, and nothing of the user's."""
    places = ["/usr", "/lib", "/lib64", "/lib32", "/etc/ld.so.cache", sys.base_prefix, sys.base_exec_prefix]
    return [place for place in dict.fromkeys(places) if os.path.lexists(place)]


def own_root() -> bool:
    """Leave all files behind but ``system_places`` and two devices: of the others not even the names can be seen.

    Those are mounted again, read-only, in a file system in memory that becomes the root. After ``separate``.
    """
    if not _mount(ABOVE, "size=64k,mode=755"):
        return False
    if all(map(_shown, (*system_places(), "/dev/null", "/dev/urandom"))):
        os.makedirs(f"{ABOVE}{PLACE}")
        os.chdir(ABOVE)
        flags = _REMOUNT | _READ_ONLY | _NO_SUID | _NO_DEV | _NO_EXEC
        if LIBC.mount(None, ABOVE.encode(), None, flags, None) == 0 and LIBC.mount(b".", b"/", None, _MOVE, None) == 0:
            os.chroot(".")
            os.chdir("/")
            return True
        os.chdir("/")
    LIBC.umount2(ABOVE.encode(), _DETACH)
    return False


def _shown(place: str) -> bool:
    """Show a folder, a file or a link of the old root in the new one."""
    target = f"{ABOVE}{place}"
    if os.path.lexists(target):
        return True  # within one that is there
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(place):
        os.symlink(os.readlink(place), target)
        return True
    if os.path.isdir(place):
        os.mkdir(target)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
    if LIBC.mount(place.encode(), target.encode(), None, _BIND | _RECURSIVE, None) != 0:
        return False
    kept = os.statvfs(target).f_flag & (_NO_SUID | _NO_DEV | _NO_EXEC)
    return LIBC.mount(None, target.encode(), None, _REMOUNT | _BIND | _READ_ONLY | kept, None) == 0


def _mount(place: str, options: str) -> bool:
    flags = _NO_SUID | _NO_DEV | _NO_EXEC
    return LIBC.mount(b"tmpfs", place.encode(), b"tmpfs", flags, options.encode()) == 0


def own_folder(megabytes: int) -> bool:
    """An empty file system of that size over ``PLACE``, in a view of mounts that is this process's alone."""
    if not LINUX or LIBC.unshare(NEW_NS) != 0:
        return False
    return _mount(PLACE, f"size={megabytes}m,nr_inodes=4096,mode=777")


def die_with_parent() -> None:
    """Be killed when the process that forked this one ends."""
    if LINUX:
        LIBC.prctl(_PDEATHSIG, 9, 0, 0, 0)


def limit(*, cpu_seconds: int, memory_mb: int, file_mb: int, processes: int | None) -> None:
    """Bound CPU seconds, address space, file sizes, open files and, for a user that is not root, processes.

    Address space is what macOS refuses to bound.
    """
    for name, soft, hard in (
        ("RLIMIT_CPU", cpu_seconds, cpu_seconds + 1),
        ("RLIMIT_AS", memory_mb << 20, memory_mb << 20),
        ("RLIMIT_FSIZE", file_mb << 20, file_mb << 20),
        ("RLIMIT_NOFILE", 64, 64),
        ("RLIMIT_CORE", 0, 0),
        ("RLIMIT_MSGQUEUE", 0, 0),
        ("RLIMIT_MEMLOCK", 0, 0),
        ("RLIMIT_NPROC", processes, processes),
    ):
        which = getattr(resource, name, None)
        if which is None or soft is None or hard is None:
            continue
        most = resource.getrlimit(which)[1]
        bound = hard if most == resource.RLIM_INFINITY else min(hard, most)
        try:
            resource.setrlimit(which, (min(soft, bound), bound))
        except (ValueError, OSError):
            continue


def become_nobody() -> bool:
    """Root becomes the user nobody; False for any other user, which stays."""
    if os.getuid() != 0:
        return False
    try:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    except OSError:
        return False
    return True


def library_is_public() -> bool:
    """True if every user of the machine can reach Python's own library."""
    library = Path(sysconfig.get_path("stdlib")).resolve()
    return all(place.stat().st_mode & 0o001 for place in (library, *library.parents[:-1]))


def drop_privileges() -> bool:
    """No capability, no way to gain one, and no other process of this user may look in."""
    if not LINUX:
        return False
    header, none = struct.pack("=Ii", 0x20080522, 0), bytes(24)
    dropped = LIBC.capset(header, none) == 0
    LIBC.prctl(_DUMPABLE, 0, 0, 0, 0)
    return dropped and LIBC.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) == 0


def readable() -> Iterator[str]:
    """What a program may read: the standard library without installed packages, and shared libraries."""
    library = os.path.realpath(sysconfig.get_path("stdlib"))
    for name in os.listdir(library):
        if name not in ("site-packages", "dist-packages", "test"):
            yield os.path.join(library, name)
    triplet = sysconfig.get_config_var("MULTIARCH") or "."
    roots = (f"/lib/{triplet}", f"/usr/lib/{triplet}", "/lib64", "/usr/lib64", os.path.join(sys.base_prefix, "lib"))
    for root in dict.fromkeys(os.path.realpath(root) for root in roots if os.path.isdir(root)):
        yield from (os.path.join(root, name) for name in os.listdir(root) if ".so" in name)
    yield from ("/etc/ld.so.cache", "/usr/share/zoneinfo", "/dev/null", "/dev/urandom")


def landlock_abi() -> int:
    """The version of Landlock in the kernel, 0 where there is none."""
    return max(0, LIBC.syscall(444, None, ctypes.c_size_t(0), 1)) if LINUX else 0


def file_rules(writable: bool) -> int:
    """Landlock's rules, for ``confine_files``: what is ``readable``, and ``PLACE`` for writing if it is ``writable``.

    Where the kernel can, TCP, abstract sockets and signals to processes outside are refused too. -1 without Landlock.
    """
    abi = landlock_abi()
    if abi < _LEAST_ABI:
        return -1
    every = (1 << (16 if abi >= 5 else 15)) - 1
    rights = struct.pack("=QQQ", every, 3, 3)[: 24 if abi >= 6 else 16 if abi >= 4 else 8]
    rules = LIBC.syscall(444, rights, ctypes.c_size_t(len(rights)), 0)
    if rules < 0:
        return -1
    for path in readable():
        _allow(rules, path, _READ_FILE | _READ_DIR)
    _allow(rules, "/dev/null", _READ_FILE | _WRITE_FILE)
    if writable:  # a file system mounted there belongs to what is above it, which is read-only by itself
        _allow(rules, ABOVE, every & ~1)
    return rules


def confine_files(rules: int) -> bool:
    """From now on only what the rules allow."""
    return rules >= 0 and LIBC.syscall(446, rules, 0) == 0


def _allow(rules: int, path: str, access: int) -> None:
    """Add a rule for everything below a folder, or for one file, without the rights that only folders have."""
    try:
        place = os.open(path, getattr(os, "O_PATH", 0) | os.O_CLOEXEC)
    except OSError:
        return
    if not os.path.isdir(path):
        access &= _READ_FILE | _WRITE_FILE
    LIBC.syscall(445, rules, 1, struct.pack("=Qi", access, place), 0)
    os.close(place)


def filter_calls() -> bool:
    """From now on only the system calls of ``syscalls``, in this thread and all it starts."""
    machine = platform.machine()
    if not LINUX or machine not in ARCHITECTURES:
        return False
    code = bpf_program(machine, os.getpid())
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer))
    return LIBC.prctl(_SECCOMP, 2, program, 0, 0) == 0
