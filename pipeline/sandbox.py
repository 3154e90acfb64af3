"""What a process that reads strangers' files gives up before it reads the first byte.

Everything is best effort by kernel, and `enter` says what took hold:

- limits: address space, CPU time, file size, open files, no core dumps. Always.
- no_new_privs: nothing it could execute would gain rights. Always.
- landlock: files outside the given folders cannot be opened. Linux 5.13+ with Landlock enabled; the usual
  container profiles allow it. Without it the process reads what its user reads.
- seccomp: no new processes, no programs, no sockets, no signals to others, no reading of other processes.
  x86-64 and aarch64, in containers too. Without it the process group is still killed when the work ends.

Works in a single-threaded process only, and imports nothing outside the standard library.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import signal
import struct
from collections.abc import Iterable
from pathlib import Path

MAX_FILE_BYTES = 2 * 1024**3
MAX_OPEN_FILES = 64

PR_SET_PDEATHSIG = 1
PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38
SECCOMP_MODE_FILTER = 2

_libc = ctypes.CDLL(None, use_errno=True)
_UNUSED = (ctypes.c_ulong(0),) * 3


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent, the process `parent`, dies; at once if it is dead already."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def enter(*, writable: Path, readable: Iterable[Path], seconds: float, memory_bytes: int) -> list[str]:
    """Give up everything but `writable` (a folder) and `readable` (files or folders); returns what took hold."""
    _limit(seconds=seconds, memory_bytes=memory_bytes)
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    holds = ["limits", "no_new_privs"]
    if _restrict_files(writable, readable):
        holds.append("landlock")
    if _restrict_calls():
        holds.append("seccomp")
    return holds


def _limit(*, seconds: float, memory_bytes: int) -> None:
    # A second fence behind the wall clock: it holds even if whoever watches the clock is stopped.
    cpu = int(seconds) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
    for which, limit in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_FSIZE, MAX_FILE_BYTES),
        (resource.RLIMIT_NOFILE, MAX_OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(which)[1]
        lowest = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(which, (lowest, lowest))


# --- Landlock: see linux/landlock.h -----------------------------------------------------------------

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_RULE_PATH_BENEATH = 1
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
#: Rights that each version of Landlock knows: 13 at first, then also moving between folders, then truncating.
_KNOWN_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1}


def _restrict_files(writable: Path, readable: Iterable[Path]) -> bool:
    version = _libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION_FLAG)
    if version < 1:
        return False
    everything = _KNOWN_RIGHTS[min(version, 3)]
    attributes = struct.pack("=Q", everything)
    ruleset = _checked(_libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0))
    _allow(ruleset, writable, everything)
    for path in readable:
        _allow(ruleset, path, _READ_FILE | _READ_DIR if path.is_dir() else _READ_FILE)
    _checked(_libc.syscall(_RESTRICT_SELF, ruleset, 0))
    os.close(ruleset)
    return True


def _allow(ruleset: int, path: Path, rights: int) -> None:
    parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("=Qi", rights, parent)
        _checked(_libc.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0))
    finally:
        os.close(parent)


# --- seccomp: see linux/seccomp.h and linux/filter.h ------------------------------------------------

#: System calls that decoding never needs, by number on (x86-64, aarch64); None where there is no such call.
_DENIED: dict[str, tuple[int, int | None]] = {
    # new programs and processes (threads are told apart below)
    "execve": (59, 221),
    "execveat": (322, 281),
    "fork": (57, None),
    "vfork": (58, None),
    # the network; io_uring would be a way round this list
    "socket": (41, 198),
    "io_uring_setup": (425, 425),
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pidfd_getfd": (438, 438),
    # the kernel's wider surface, for when the worker runs as root
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "chroot": (161, 51),
    "pivot_root": (155, 41),
    "open_by_handle_at": (304, 265),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "reboot": (169, 142),
}
#: Allowed only towards this very process (prlimit64 also as 0, "myself"): abort() needs tgkill.
_ONLY_SELF = {"kill": (62, 129), "tgkill": (234, 131), "prlimit64": (302, 261)}
_CLONE, _CLONE3 = (56, 220), (435, 435)
_CLONE_THREAD = 0x00010000

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_LOAD, _EQUAL, _HAS_BITS, _AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_KILL, _ALLOWED = 0x80000000, 0x7FFF0000
_REFUSED = 0x00050000 | errno.EPERM
_UNKNOWN = 0x00050000 | errno.ENOSYS
#: x86-64 numbers from here on are the x32 ABI's second names of the same calls.
_X32 = 0x40000000


def _restrict_calls() -> bool:
    if platform.machine() not in _ARCHITECTURES:
        return False
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in _program())
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer))
    return bool(_libc.prctl(PR_SET_SECCOMP, ctypes.c_ulong(SECCOMP_MODE_FILTER), program, *_UNUSED[1:]) == 0)


def _program() -> list[tuple[int, int, int, int]]:
    """The filter: instructions as (code, skip if true, skip if false, operand)."""
    column, architecture = _ARCHITECTURES[platform.machine()]
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _REFUSED),
        # An unknown clone3 makes the C library fall back to clone, whose flags a filter can see.
        (_EQUAL, 0, 1, _CLONE3[column]),
        (_RETURN, 0, 0, _UNKNOWN),
    ]
    for numbers in _DENIED.values():
        if (number := numbers[column]) is not None:
            program += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSED)]
    for call, numbers in _ONLY_SELF.items():
        also = 0 if call == "prlimit64" else os.getpid()
        program += [
            (_EQUAL, 0, 5, numbers[column]),
            (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
            (_EQUAL, 2, 0, os.getpid()),
            (_EQUAL, 1, 0, also),
            (_RETURN, 0, 0, _REFUSED),
            (_RETURN, 0, 0, _ALLOWED),
        ]
    return [
        *program,
        (_EQUAL, 0, 3, _CLONE[column]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
        (_HAS_BITS, 1, 0, _CLONE_THREAD),
        (_RETURN, 0, 0, _REFUSED),
        (_RETURN, 0, 0, _ALLOWED),
    ]


def _prctl(option: int, value: int) -> None:
    _checked(_libc.prctl(option, ctypes.c_ulong(value), *_UNUSED))


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
