"""A stand-in for another system: run as a program, it hides what Linux alone has, and then runs pytest.

``python tests/other_system.py PYTEST-ARGUMENTS``. Modules that Windows lacks cannot be imported, and Linux's flags,
calls and socket options are gone. Nothing compiled is used. It proves nothing about another system, on which nothing
was tried: it shows what the code asks of one.
"""

from __future__ import annotations

import asyncio  # noqa: F401 - this and all that is not used here: made for the system as it is, and imported in time
import importlib
import importlib.abc
import mmap
import multiprocessing.connection  # noqa: F401
import os
import select
import signal
import socket
import sys
import sysconfig
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

MODULES = frozenset({"fcntl", "grp", "pwd", "resource", "syslog", "termios"})
HIDDEN: dict[ModuleType, tuple[str, ...]] = {
    mmap: ("MADV_", "MAP_", "PROT_"),
    os: (
        *(
            "eventfd",
            "EFD_",
            "fork",
            "forkpty",
            "memfd_create",
            "MFD_",
            "posix_fallocate",
            "posix_fadvise",
            "pidfd_open",
        ),
        *("sched_", "SCHED_", "setsid", "getxattr", "copy_file_range", "O_TMPFILE"),
        *("pipe2", "preadv", "pwritev", "splice", "register_at_fork"),
    ),
    select: ("epoll", "EPOLL", "poll", "POLL"),
    signal: ("SIGUSR", "pthread_sigmask"),
    socket: (
        *("AF_NETLINK", "AF_PACKET", "AF_UNIX", "AF_VSOCK", "CMSG_", "IP_", "IPV6_", "MSG_", "SCM_", "SO_", "send_fds"),
        *(
            "recv_fds",
            "if_nameindex",
            "if_nametoindex",
            "if_indextoname",
            "SOCK_CLOEXEC",
            "SOCK_NONBLOCK",
            "socketpair",
        ),
    ),
}
"""Names that are hidden, by module: each is the beginning of one."""
KEPT = frozenset(
    (
        *(
            "IP_ADD_MEMBERSHIP",
            "IP_DROP_MEMBERSHIP",
            "IP_MULTICAST_IF",
            "IP_MULTICAST_LOOP",
            "IP_MULTICAST_TTL",
            "IP_TOS",
        ),
        *("IP_TTL", "IPV6_JOIN_GROUP", "IPV6_LEAVE_GROUP", "IPV6_MULTICAST_HOPS", "IPV6_MULTICAST_IF"),
        *("IPV6_MULTICAST_LOOP", "IPV6_UNICAST_HOPS", "IPV6_V6ONLY", "MSG_OOB", "MSG_PEEK", "SO_BROADCAST", "SO_ERROR"),
        *("SO_KEEPALIVE", "SO_LINGER", "SO_RCVBUF", "SO_REUSEADDR", "SO_SNDBUF", "SO_TYPE"),
    )
)
"""Those that every system has."""
CALLS = ("sendmsg", "recvmsg", "recvmsg_into", "sendmsg_afalg")
"""Methods of sockets that Windows lacks."""


class Absent(importlib.abc.MetaPathFinder):
    """Finds no module of :data:`MODULES`, and keeps others from finding it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raise for a module that is hidden."""
        if fullname in MODULES:
            raise ModuleNotFoundError(f"No module named {fullname!r} on this system", name=fullname)
        return None


def hide() -> None:
    """Hide it all from what is imported from now on."""
    sysconfig.get_config_vars()  # which it reads from a module named for the system
    os.environ["RNIC_PLAIN"] = "1"
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, Absent())
    for module, beginnings in HIDDEN.items():
        for name in [each for each in vars(module) if each.startswith(beginnings) and each not in KEPT]:
            delattr(module, name)
    for name in CALLS:
        if hasattr(socket.socket, name):
            setattr(socket.socket, name, property(_absent))
    sys.platform = "other"


def _absent(_: object) -> None:
    raise AttributeError("not on this system")


class Hiding:
    """A plugin of pytest that hides it all before the first ``conftest.py``."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_load_initial_conftests(self) -> None:
        """Hide it, unless something of rnic is loaded already."""
        for name in ("hypothesis", "numpy"):
            importlib.import_module(name)
        loaded = sorted(name for name in sys.modules if name.partition(".")[0] == "rnic")
        assert not loaded, f"{loaded[0]} was imported before Linux was hidden"
        hide()


def main(arguments: list[str]) -> int:
    """Run pytest under it. The standard library and pytest's other plugins are those of the system as it is."""
    without = [word for name in ("rnic.testing.plugin", "xdist", "cacheprovider") for word in ("-p", f"no:{name}")]
    return int(pytest.main([*without, "-o", "addopts=", "--import-mode=importlib", *arguments], plugins=[Hiding()]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
