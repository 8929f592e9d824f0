"""The rows of ``./dev programs``: programs, options and ways to run them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import suite
import ucx_tests

PINGPONG = ("-g", "0", "-n", "200", "-c")
PERFTEST = ("-x", "0", "-F")
LEFT_OUT = "left out"
HERE = Path(__file__).resolve().parent
OWN_FILE = str(HERE / "rows.py")
"""File to copy."""
MPI_ENV = {
    "UCX_TLS": "rc_v,ud_v,self",
    "UCX_RC_TIMEOUT": "100ms",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}
"""Without these, ranks of one machine would use shared memory. Open MPI's RMA destroys its endpoints without waiting
for other ranks: a rank that flushes later waits until its retries are exhausted, 30 s with UCX's timeout of 1 s."""
ROOT_MPI = {name: value for name, value in MPI_ENV.items() if name.startswith("OMPI")}
RECIPES = (
    *("perftest", "mpi", "ucx", "libfabric", "mooncake", "nixl", "nvmeof", "rsockets"),
    *("valkey", "rust-ibverbs", "mooncake-store"),
)
"""Jobs of ``docs/ci/recipes.yml``."""
_RANKS = ("--oversubscribe", "--bind-to", "none")
OPEN_MPI = (*_RANKS, "--mca", "pml", "ucx", "--mca", "osc", "ucx")
_OVER_VERBS = ("--mca", "mtl_ofi_provider_include", "verbs;ofi_rxm")
MTL_OFI = (*_RANKS, "--mca", "pml", "cm", "--mca", "mtl", "ofi", *_OVER_VERBS, "--mca", "osc", "^ucx")

_NO_RINGS = ("ibv_uc_pingpong", "ibv_ud_pingpong", "udaddy", "ibping", "mckey", "udpong", "cmtime", "rdma_server")
"""Programs with UC or UD, or whose connections carry almost no data."""
LOSS = '[{"every": 61, "action": "drop"}]'
SEND_LOSS = '[{"match": {"opcode": "RC_SEND*"}, "every": 61, "action": "drop"}]'
"""For programs that exit once their last message is acknowledged, so that their own last ACK must not be lost."""
CM_LOSS = '[{"every": 7, "action": "drop"}]'


@dataclass
class Row:
    """A program with its options.

    ``kind`` is the way to run it, ``peer`` the command of the other end if that is another program. ``refused`` is the
    required text of a refusal, ``said`` the required output of a program that runs alone, ``env`` extra environment.
    ``ends`` has further arguments of server and client of a ``cm`` row; ``SERVER`` and ``CLIENT`` are the addresses.
    A server that ``stays`` is terminated after its client has exited; with ``sockets`` its TCP sockets are rsockets.
    With ``tap`` the devices are on an interface other than loopback. Rows that are not ``short`` move much data or take
    long, and CI leaves them out; rows that are ``full`` run only on request.
    """

    program: str
    options: tuple[str, ...] = ()
    kind: str = "pair"
    short: bool = True
    full: bool = False
    refused: str = ""
    said: str = "rnic0"
    peer: tuple[str, ...] = ()
    hosts: tuple[str, str] = ("", "")
    env: dict[str, str] = field(default_factory=dict)
    preload: bool = False
    sockets: bool = False
    tap: bool = False
    ends: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    stays: bool = False
    faults: str = ""
    note: str = ""
    result: str = ""
    seconds: float = 0.0
    packets: int = 0
    notes: list[str] = field(default_factory=list)
    report: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        """Command line, and the note."""
        return " ".join((self.program, *self.options)) + (f" ({self.note})" if self.note else "")

    @property
    def alone(self) -> bool:
        """True if it uses an address that exists only once (``::1``)."""
        return any(":" in host for host in self.hosts)

    @property
    def rings(self) -> bool:
        """True if messages use shared-memory rings when both ends are programs of one device, as with RC."""
        words = (*self.options, self.note, *self.env.values())
        datagrams = self.program in _NO_RINGS or any(word in ("UC", "UD", "dgram", "ud_v") for word in words)
        return self.kind in ("pair", "cm", "mpi") and not (self.peer or self.faults or self.tap or datagrams)

    @property
    def good(self) -> bool:
        """True if it passed or was left out."""
        return self.result == "ok" or self.result.startswith(LEFT_OUT)


def _pingpong(name: str, *options: str, **more: object) -> Row:
    return Row(f"ibv_{name}_pingpong", (*PINGPONG, *options), **more)  # type: ignore[arg-type]


def _perftest(name: str, *options: str, **more: object) -> Row:
    return Row(f"ib_{name}", (*PERFTEST, *options), **more)  # type: ignore[arg-type]


def _python(service: str, *options: str) -> tuple[str, ...]:
    shared = ("--srq", "-q", "16") if service == "srq" else ("--connection", service.upper())
    return ("pingpong", "--compat", "ibv", *shared, "-n", "200", "-c", *options)


def rows() -> Iterator[Row]:
    """Yield all rows, in the order of the runs."""
    yield Row("ibv_devices", kind="alone")
    yield Row("ibv_devinfo", ("-v",), kind="alone")
    yield Row("ibv_asyncwatch", kind="watch")
    yield from _pingpongs()
    yield Row("ibv_xsrq_pingpong", ("-g", "0"))
    yield from _perftests()
    yield Row("ibstat", kind="alone")
    yield Row("ibstatus", kind="alone")
    yield Row("perfquery", kind="alone", said="PortXmitData:")
    yield Row("smpquery", ("nodeinfo", "1"), kind="refused", refused="Protocol not supported")
    ping = (("-S",), ("-c", "5", "-f", "-G", "SERVER:GUID"))
    yield _cm("ibping", ends=ping, stays=True, note="by GUID")
    yield Row("rdma", ("link",), kind="alone", said="state ACTIVE physical_state LINK_UP")
    yield Row("rdma", ("resource",), kind="alone", said="qp 0")
    yield from _ucx()
    yield from _mpi()
    yield from _shmem()
    yield from _connection_manager()
    yield from _rsockets()
    yield from _storage()
    yield from _libfabric()
    yield Row("ib_write_bw", ("--use_cuda=0",), kind="refused", refused="use_cuda")
    for what in ("timestamps", "null_mr", "groups", "dmabuf", "state"):
        yield Row("verbs_check", (what,), kind="built", note="C, against rdma-core's own header")
    yield Row("pyverbs", ("tests/run_tests.py", "-v"), kind="pyverbs", note="Debian's own test suite")
    rdmacm = ("tests/run_tests.py", "-v", *suite.CONNECTIONS)
    yield Row("pyverbs", rdmacm, kind="pyverbs", note="its CMID and AddrInfo, by librdmacm")
    yield Row("pypi_ibverbs.py", kind="consumer", note="PyPI's ibverbs")
    yield Row("pypi_mooncake.py", kind="consumer", note="PyPI's mooncake-transfer-engine")
    ucx = {"UCX_TLS": "rc_v,ud_v"}
    yield Row("pypi_nixl.py", kind="consumer", env=ucx, preload=True, note="PyPI's nixl, with the UCX of its wheel")
    yield Row("pypi_ibverbs.py", ("HOST", "PORT"), kind="consumer-pair", note="against ibv_rc_pingpong")
    for name in ucx_tests.LEAST:
        yield Row("gtest", (name,), kind="ucx", short=False, full=True, note="UCX's own tests, built from its source")
    for job in RECIPES:
        yield Row("recipe", (job,), kind="recipe", env=ROOT_MPI, short=False, note="the job's own commands")


def _libfabric() -> Iterator[Row]:
    """Yield libfabric's programs; its verbs provider ignores loopback interfaces."""
    yield Row("fi_info", ("-p", "verbs"), kind="alone")
    for provider, kind, size in (
        ("verbs", "msg", "all"),
        ("verbs;ofi_rxm", "rdm", "all"),
        ("verbs;ofi_rxd", "rdm", "4096"),
        ("verbs", "dgram", "all"),
    ):
        options = ("-p", provider, "-e", kind, "-S", size, "-c", "-I", "5")
        yield Row("fi_pingpong", options, kind="namespace", short=kind != "dgram" and not provider.endswith("rxd"))


def _pingpongs() -> Iterator[Row]:
    yield _pingpong("rc")
    yield _pingpong("rc", "-e")
    yield _pingpong("rc", "-s", "1")
    yield _pingpong("rc", "-s", "65536", "-m", "4096")
    yield _pingpong("rc", "-s", "1048576", "-n", "10", "-m", "256", short=False)
    yield _pingpong("rc", hosts=("same", "same"), note="both on one device")
    yield _pingpong("rc", hosts=("::1", "::1"), note="IPv6")
    yield _pingpong("rc", faults=SEND_LOSS, note="every 61st SEND lost")
    yield _pingpong("uc")
    yield _pingpong("uc", "-e", "-s", "16384")
    yield _pingpong("ud", "-s", "1024")
    yield _pingpong("ud", "-s", "2048", "-e")
    yield _pingpong("ud", "-s", "1024", hosts=("::1", "::1"), note="IPv6")
    yield _pingpong("srq")
    yield _pingpong("srq", "-e", "-q", "4", "-s", "65536")
    for name in ("rc", "uc", "ud", "srq"):
        small = ("-s", "1024") if name == "ud" else ()
        yield _pingpong(name, *small, peer=_python(name, *small), note="against rnic in Python")
    yield _pingpong("rc", "-e", peer=_python("rc", "-e"), kind="python-first", note="Python serves")


def _perftests() -> Iterator[Row]:
    for verb in ("write", "read", "send", "atomic"):
        yield _perftest(f"{verb}_bw", "-n", "200")
        yield _perftest(f"{verb}_lat", "-n", "200")
        yield _perftest(f"{verb}_bw", "-n", "100", "-q", "4", short=verb == "write")
        yield _perftest(f"{verb}_bw", "-n", "100", "-b", short=verb == "send")
        yield _perftest(f"{verb}_bw", "-n", "100", "--use_old_post_send", short=verb in ("write", "atomic"))
        yield _perftest(f"{verb}_lat", "-n", "100", "--use_old_post_send", short=verb in ("read", "send"))
        if verb != "atomic":
            yield _perftest(f"{verb}_bw", "-n", "5", "-a", short=False)
            yield _perftest(f"{verb}_lat", "-n", "5", "-a", short=False)
        if verb != "write":
            yield _perftest(f"{verb}_bw", "-n", "200", "-e", short=verb == "read")
            yield _perftest(f"{verb}_lat", "-n", "200", "-e", short=verb == "send")
    yield _perftest("atomic_bw", "-n", "200", "-A", "CMP_AND_SWAP")
    for verb in ("write", "send"):
        yield _perftest(f"{verb}_bw", "-n", "100", "-c", "UC", short=verb == "write")
        yield _perftest(f"{verb}_lat", "-n", "100", "-c", "UC", short=verb == "send")
    for verb in ("send", "write", "read", "atomic"):
        yield _perftest(f"{verb}_bw", "-n", "200", "-c", "XRC", short=verb == "write")
    for verb in ("write", "read", "atomic"):
        yield _perftest(f"{verb}_lat", "-n", "200", "-c", "XRC", short=False)
    yield _perftest("send_bw", "-n", "200", "-c", "UD")
    yield _perftest("send_lat", "-n", "200", "-c", "UD", "-e")
    yield _perftest("send_bw", "-n", "200", "-c", "UD", "-q", "4", short=False)
    yield _perftest("send_bw", "-n", "200", "-r", "64", "--use-srq")
    yield _perftest("write_lat", "-n", "200", "-s", "64", "-I", "128")
    yield _perftest("write_bw", "-n", "96", "-m", "1024", "-l", "8")
    yield _perftest("send_bw", "-n", "50", "-s", "1048576", "-b", short=False)
    yield _perftest("write_bw", "-n", "100", faults=LOSS, note="every 61st packet lost")
    yield _perftest("read_bw", "-n", "100", faults=LOSS, note="every 61st packet lost")


def _ucx() -> Iterator[Row]:
    """Yield tests of UCX's protocol layer over both of its verbs transports."""
    yield Row("ucx_info", ("-d",), kind="alone", said="rc_verbs")
    few = {"rc_v": ("tag_lat", "ucp_put_bw", "ucp_get", "ucp_am_bw", "stream_bw", "ucp_cswap"), "ud_v": ("tag_bw",)}
    every = [f"tag_{way}" for way in ("lat", "bw", "sync_lat", "sync_bw")]
    every += [f"ucp_{name}" for name in ("put_lat", "put_bw", "get", "am_lat", "am_bw")]
    every += ["stream_lat", "stream_bw", *(f"ucp_{name}" for name in ("add", "fadd", "swap", "cswap"))]
    for transport, short in few.items():
        for test in every:
            options = ("-t", test, "-n", "100", "-w", "10")
            env = {"UCX_TLS": transport}
            yield Row("ucx_perftest", options, env=env, note=f"UCX_TLS={transport}", short=test in short)
        much = ("-t", "tag_bw", "-n", "20", "-w", "2", "-s", "1000000")
        yield Row("ucx_perftest", much, env=env, note=f"UCX_TLS={transport}", short=False)


def _mpi() -> Iterator[Row]:
    """Yield ring, all-reduce and RMA with checked data; the devices' counters must confirm the traffic."""
    for ranks in ("2", "4"):
        short = ranks == "2"
        yield Row("mpirun.mpich", ("-np", ranks), kind="mpi", env=MPI_ENV, note="MPICH over UCX", short=short)
        yield Row("mpirun.openmpi", (*OPEN_MPI, "-np", ranks), kind="mpi", env=MPI_ENV, short=short)
        yield Row("mpirun.openmpi", (*MTL_OFI, "-np", ranks), kind="mpi", env=MPI_ENV, tap=True, short=short)


def _shmem() -> Iterator[Row]:
    """Yield OpenSHMEM, with checked data and counters as for MPI."""
    words = (*_RANKS, "--mca", "spml", "ucx", "--mca", "osc", "ucx", "-np", "2")
    yield Row("oshrun", words, kind="mpi", env=MPI_ENV, note="OpenSHMEM over UCX", short=False)


def _cm(program: str, *options: str, ends: tuple[tuple[str, ...], tuple[str, ...]], **more: object) -> Row:
    return Row(program, options, kind="cm", ends=ends, **more)  # type: ignore[arg-type]


def _connection_manager() -> Iterator[Row]:
    """Yield programs that connect with librdmacm."""
    by_option = ((), ("-s", "SERVER"))
    by_name = ((), ("SERVER",))
    rping = (("-s", "-a", "SERVER"), ("-c", "-a", "SERVER"))
    groups = (("-b", "SERVER"), ("-b", "CLIENT", "-s"))
    yield _cm("rping", "-V", "-C", "20", ends=rping)
    yield _cm("rping", "-V", "-C", "5", "-S", "16384", ends=rping)
    yield _cm("rping", "-V", "-C", "20", ends=rping, hosts=("::1", "::1"), note="IPv6")
    yield _cm("rping", "-V", "-C", "20", ends=rping, faults=CM_LOSS, note="every 7th packet lost")
    yield _cm("ucmatose", "-c", "8", "-C", "10", ends=by_option)
    yield _cm(
        "ucmatose", "-c", "2", "-C", "10", ends=(("-b", "SERVER"), ("-s", "SERVER")), hosts=("::1", "::1"), note="IPv6"
    )
    yield _cm("udaddy", "-c", "4", "-C", "8", ends=by_option)
    yield _cm("mckey", "-m", "239.1.2.3", "-C", "8", ends=groups)
    yield _cm("cmtime", "-c", "100", ends=by_option, stays=True)
    yield _cm("rdma_server", ends=by_option, peer=("rdma_client",))
    for name in ("write_bw", "read_lat", "send_bw", "atomic_bw"):
        yield _cm(f"ib_{name}", "-R", "-F", "-n", "200", ends=by_name)
    yield _cm("ib_read_bw", "-R", "-F", "-n", "100", "-q", "4", ends=by_name)
    yield _cm("ib_send_lat", "-R", "-F", "-n", "100", "-c", "UD", ends=by_name)
    yield _cm("qperf", ends=((), ("-t", "1", "-cm", "1", "SERVER", "rc_lat", "rc_bw")), stays=True)


def _rsockets() -> Iterator[Row]:
    """Yield programs with rsockets: by librdmacm's calls, and in place of TCP sockets."""
    by_option, bound = ((), ("-s", "SERVER")), (("-b", "SERVER"), ("-s", "SERVER"))
    for way in ("b", "n", "a"):
        yield _cm("rstream", "-S", "4096", "-I", "10", "-C", "20", "-T", way, ends=by_option, short=way == "b")
    yield _cm("rstream", "-S", "300000", "-I", "5", "-C", "4", "-T", "b", "-T", "v", ends=by_option)
    yield _cm("rstream", "-S", "1000", "-I", "10", "-C", "20", ends=bound, hosts=("::1", "::1"), note="IPv6")
    yield _cm(
        "rstream", "-S", "20000", "-I", "5", "-C", "4", ends=by_option, faults=LOSS, note="every 61st packet lost"
    )
    yield _cm("riostream", "-S", "4096", "-I", "10", "-C", "20", ends=by_option)
    yield _cm("rcopy", ends=((), (OWN_FILE, "SERVER:COPY")), stays=True)
    yield _cm("udpong", "-S", "1024", "-C", "100", ends=bound, stays=True)
    serve = ("-m", "http.server", "--bind", "SERVER", "8123", "--directory", str(HERE))
    fetch = (str(HERE / "fetch.py"), "SERVER", "8123", OWN_FILE)
    yield _cm("python3", ends=(serve, fetch), stays=True, sockets=True, note="`http.server` and `urllib`, `--sockets`")
    get = ("-sS", "-o", "COPY", "http://SERVER:8123/rows.py")
    yield _cm("python3", ends=(serve, get), peer=("curl",), stays=True, sockets=True, note="and `curl`, `--sockets`")
    pipe = (("TCP-LISTEN:8124,bind=SERVER,reuseaddr", "OPEN:COPY,creat"), (f"FILE:{OWN_FILE}", "TCP:SERVER:8124"))
    yield _cm("socat", "-u", ends=pipe, sockets=True, note="`--sockets`")


def _storage() -> Iterator[Row]:
    """Yield programs that move blocks: fio's RDMA engine, and DAPL's own test.

    fio asks for no RNR retries: with SENDs its server needs more receives than the client has requests.
    """
    fio = ("--name=rnic", "--ioengine=rdma", "--hostname=SERVER", "--port=9555", "--bs=4k", "--size=1m")
    for verb, depth in (("write", 16), ("read", 16), ("send", 8)):
        ends = (("--rw=read", f"--iodepth={8 * depth}"), ("--rw=write", f"--iodepth={depth}"))
        yield _cm("fio", *fio, f"--verb={verb}", ends=ends, short=verb == "write")
    dat = {"DAT_OVERRIDE": str(HERE / "dat.conf"), "DAPL_SCM_NETDEV": "lo"}
    moves = ("client", "SR", "4096", "server", "SR", "4096", "client", "RW", "4096", "server", "RR", "4096")
    ask = ("-T", "T", "-s", "127.0.0.1", "-D", "rnic1", "-i", "20", "-t", "1", "-w", "1", "-V", *moves)
    yield _cm("dapltest", ends=(("-T", "S", "-D", "rnic0"), ask), stays=True, env=dat, short=False)
