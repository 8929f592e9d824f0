"""The C libraries: exports and versions, structure layouts, and programs on them."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from rnic.abi.build import SOURCES, BuildError, build, find_compiler, implemented, verbs_stubs
from rnic.abi.exports import (
    OUT_PARAMETERS,
    PRIVATE_VERSIONS,
    RDMACM,
    RETURN_MINUS_ONE,
    RETURN_POINTERS,
    VERBS,
    VERBS_BEFORE_2008,
    VERBS_OWN,
    VERBS_PRIVATE,
)
from rnic.spec.attach import SOCKET_NAME
from rnic.testing import own_network

NET = own_network()
"""Addresses that no other run of these tests uses at the same time."""

SYSTEM = Path("/usr/lib/x86_64-linux-gnu")
ADDRESS = f"{NET}.1"


def exec_command(*program: str, address: str = ADDRESS) -> list[str]:
    """The command line of ``rnic exec``."""
    return [sys.executable, "-m", "rnic.cli", "exec", "--addr", address, "--", *program]


def exported(path: Path) -> set[str]:
    """Names with versions that a library exports."""
    out = subprocess.run(["readelf", "-W", "--dyn-syms", str(path)], capture_output=True, text=True, check=True).stdout
    names = set()
    for line in out.splitlines():
        words = line.split()
        if len(words) >= 8 and words[6] != "UND" and "@" in words[7]:
            names.add(words[7].replace("@@", "@"))
    return names


def test_exports_are_those_of_the_tables(libraries: Path) -> None:
    wanted = {f"{name}@IBVERBS_{version}" for version, names in VERBS.items() for name in names}
    for version, own in PRIVATE_VERSIONS.items():
        wanted |= {f"{name}@IBVERBS_PRIVATE_{version}" for name in VERBS_PRIVATE + own}
    wanted |= {f"{name}@IBVERBS_1.0" for name in VERBS_BEFORE_2008}
    wanted |= {f"{name}@RNIC_1" for name in VERBS_OWN}
    assert exported(libraries / "libibverbs.so.1") == wanted
    cm = {f"{name}@RDMACM_{version}" for version, names in RDMACM.items() for name in names}
    assert exported(libraries / "librdmacm.so.1") == cm


def test_tables_hold_what_each_release_exports() -> None:
    """Counted in the libraries of the releases: 44 has 180 versioned names, 59 has 188; later ones only add."""
    old = [names for version, names in VERBS.items() if int(version.split(".")[1]) <= 14]
    public = {name for names in old for name in names}
    assert len(public) == 76
    assert len(VERBS_BEFORE_2008) == 33
    later = [name for names in VERBS.values() if names not in old for name in names]
    assert len(later) == 19
    newer_private = 21
    assert len(VERBS_PRIVATE) + len(PRIVATE_VERSIONS["34"]) == 71 + newer_private
    assert len(public) + len(VERBS_BEFORE_2008) + 71 == 180
    assert [len(RDMACM[version]) for version in ("1.0", "1.1", "1.2", "1.3")] == [62, 1, 2, 3]
    for names in (*VERBS.values(), *RDMACM.values(), VERBS_PRIVATE, VERBS_BEFORE_2008):
        assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", ["libibverbs.so.1", "librdmacm.so.1"])
def test_everything_that_the_system_library_exports_is_there(libraries: Path, name: str) -> None:
    if not (SYSTEM / name).exists():
        pytest.skip(f"{SYSTEM / name} is not installed")
    assert exported(SYSTEM / name) <= exported(libraries / name)


def test_libraries_need_each_other_and_libc_alone(libraries: Path) -> None:
    for name in ("libibverbs.so.1", "librdmacm.so.1"):
        out = subprocess.run(
            ["readelf", "-d", str(libraries / name)], capture_output=True, text=True, check=True
        ).stdout
        needed = re.findall(r"NEEDED.*\[(.*)\]", out)
        ours = ["libibverbs.so.1"] if name.startswith("librdmacm") else []
        assert needed in ([*ours, "libc.so.6"], [*ours, "libpthread.so.0", "libc.so.6"])


PLACES = {
    "ibv_device": "node_type transport_type name dev_name dev_path ibdev_path",
    "ibv_device_attr": "node_guid max_mr_size vendor_id max_qp atomic_cap max_srq_sge max_pkeys phys_port_cnt",
    "ibv_device_attr_ex": "comp_mask odp_caps completion_timestamp_mask tso_caps rss_caps max_wq_type_rq"
    " packet_pacing_caps raw_packet_caps tm_caps cq_mod_caps max_dm_size pci_atomic_caps phys_port_cnt_ex",
    "ibv_port_attr": "state gid_tbl_len max_msg_sz pkey_tbl_len lmc phys_state link_layer flags port_cap_flags2",
    "ibv_gid_entry": "gid gid_index port_num gid_type ndev_ifindex",
    "ibv_pd": "context handle",
    "ibv_mr": "context pd addr length handle lkey rkey",
    "ibv_dm": "context memcpy_to_dm memcpy_from_dm comp_mask handle",
    "ibv_alloc_dm_attr": "length log_align_req comp_mask",
    "ibv_mw": "context pd rkey handle type",
    "ibv_mw_bind": "wr_id send_flags bind_info",
    "ibv_ah_attr": "grh dlid sl is_global port_num",
    "ibv_grh": "version_tclass_flow hop_limit sgid dgid",
    "ibv_comp_channel": "context fd refcnt",
    "ibv_cq": "channel cq_context handle cqe mutex cond comp_events_completed async_events_completed",
    "ibv_cq_ex": "comp_mask status wr_id start_poll next_poll end_poll read_opcode read_imm_data"
    " read_completion_wallclock_ns",
    "ibv_cq_init_attr_ex": "cqe cq_context channel comp_vector wc_flags comp_mask flags parent_domain",
    "ibv_wc": "wr_id status opcode vendor_err byte_len imm_data qp_num src_qp wc_flags pkey_index slid sl",
    "ibv_srq": "srq_context pd handle mutex events_completed",
    "ibv_srq_init_attr_ex": "attr comp_mask srq_type pd xrcd cq tm_cap",
    "ibv_qp": "qp_context pd send_cq recv_cq srq handle qp_num state qp_type mutex cond events_completed",
    "ibv_qp_init_attr": "qp_context send_cq recv_cq srq cap qp_type sq_sig_all",
    "ibv_qp_init_attr_ex": "cap comp_mask pd xrcd create_flags max_tso_header rwq_ind_tbl rx_hash_conf source_qpn"
    " send_ops_flags",
    "ibv_qp_attr": "qp_state path_mtu qkey rq_psn sq_psn dest_qp_num qp_access_flags cap ah_attr alt_ah_attr"
    " pkey_index sq_draining min_rnr_timer port_num timeout rnr_retry alt_timeout rate_limit",
    "ibv_send_wr": "wr_id next sg_list num_sge opcode send_flags imm_data wr.rdma.rkey wr.atomic.rkey wr.ud.remote_qkey"
    " bind_mw.mw bind_mw.rkey bind_mw.bind_info tso.mss",
    "ibv_recv_wr": "wr_id next sg_list num_sge",
    "ibv_qp_ex": "comp_mask wr_id wr_flags wr_atomic_cmp_swp wr_bind_mw wr_rdma_write_imm wr_send wr_send_tso"
    " wr_set_ud_addr wr_set_inline_data wr_set_sge_list wr_start wr_complete wr_abort",
    "ibv_async_event": "element event_type",
    "ibv_context": "device ops cmd_fd async_fd num_comp_vectors mutex abi_compat",
    "ibv_context_ops": "alloc_mw bind_mw dealloc_mw poll_cq req_notify_cq post_srq_recv post_send post_recv",
    "verbs_context": "query_port reg_dm_mr alloc_dm free_dm alloc_parent_domain dealloc_td alloc_td create_cq_ex"
    " query_device_ex create_qp_ex"
    " get_srq_num create_srq_ex sz context",
}


CM_PLACES = {
    "ibv_sa_path_rec": "dgid sgid dlid raw_traffic flow_label hop_limit reversible numb_path pkey sl mtu rate"
    " packet_life_time preference",
    "rdma_route": "addr path_rec num_paths",
    "rdma_addr": "src_addr dst_addr addr.ibaddr.sgid addr.ibaddr.dgid addr.ibaddr.pkey",
    "rdma_event_channel": "fd",
    "rdma_cm_id": "verbs channel context qp route ps port_num event send_cq_channel send_cq recv_cq_channel recv_cq srq"
    " pd qp_type",
    "rdma_conn_param": "private_data private_data_len responder_resources initiator_depth flow_control retry_count"
    " rnr_retry_count srq qp_num",
    "rdma_ud_param": "private_data private_data_len ah_attr qp_num qkey",
    "rdma_cm_event": "id listen_id event status param.conn param.ud",
    "rdma_addrinfo": "ai_flags ai_family ai_qp_type ai_port_space ai_src_len ai_dst_len ai_src_addr ai_dst_addr"
    " ai_src_canonname ai_dst_canonname ai_route_len ai_route ai_connect_len ai_connect ai_next",
    "rdma_cm_join_mc_attr_ex": "comp_mask join_flags addr",
}


def _layout(tmp_path: Path, header: str, name: str, places: dict[str, str] = PLACES) -> str:
    lines = [f'printf("{struct} %zu\\n", sizeof(struct {struct}));' for struct in places]
    lines += [
        f'printf("{struct}.{member} %zu\\n", offsetof(struct {struct}, {member}));'
        for struct, members in places.items()
        for member in members.split()
    ]
    source = tmp_path / f"{name}.c"
    source.write_text(
        f"#include <stddef.h>\n#include <stdio.h>\n#include {header}\nint main(void) {{\n" + "\n".join(lines) + "\n}\n"
    )
    compiler = find_compiler()
    assert compiler is not None
    subprocess.run([compiler, f"-I{SOURCES}", str(source), "-o", str(tmp_path / name)], check=True)
    return subprocess.run([str(tmp_path / name)], capture_output=True, text=True, check=True).stdout


def test_structures_are_laid_out_as_the_system_header_says(libraries: Path, tmp_path: Path) -> None:
    if not Path("/usr/include/infiniband/verbs.h").exists():
        pytest.skip("libibverbs-dev is not installed")
    assert _layout(tmp_path, '"verbs_abi.h"', "ours") == _layout(tmp_path, "<infiniband/verbs.h>", "theirs")


def test_structures_of_the_connection_manager_too(libraries: Path, tmp_path: Path) -> None:
    if not Path("/usr/include/rdma/rdma_cma.h").exists():
        pytest.skip("librdmacm-dev is not installed")
    ours = _layout(tmp_path, '"rdmacm_abi.h"', "ours", CM_PLACES)
    assert ours == _layout(tmp_path, "<rdma/rdma_cma.h>", "theirs", CM_PLACES)


def _finish(command: list[str], env: dict[str, str], timeout: float = 60) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.slow
def test_program(plain: Path, mode: dict[str, str]) -> None:
    """By itself: as fast as programs are, which under a tool none is, and where there is no tool."""
    done = _finish(exec_command(str(plain), address=f"{NET}.3"), mode)
    assert "all as it should be" in done.stdout
    assert done.stderr == ""


@pytest.mark.slow
@pytest.mark.timeout(180)  # compilers are slow with sanitizers
def test_program_under_sanitizers(sanitized: Path, mode: dict[str, str]) -> None:
    done = _finish(exec_command(str(sanitized)), mode)
    assert "all as it should be" in done.stdout
    assert "ERROR" not in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_program_under_valgrind(plain: Path, mode: dict[str, str]) -> None:
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed")
    leaks = ["--leak-check=full", "--show-leak-kinds=definite", "--errors-for-leak-kinds=definite"]
    options = ["--error-exitcode=9", *leaks, "-q"]
    done = _finish(exec_command("valgrind", *options, str(plain), address=f"{NET}.2"), mode, 150)
    assert "all as it should be" in done.stdout
    found = [line for line in done.stderr.splitlines() if line.startswith("==")]  # in the child process too
    assert found == []


@pytest.mark.slow
def test_load_and_unload_again_and_again(libraries: Path, env: dict[str, str]) -> None:
    code = (
        "import ctypes, _ctypes, sys\n"
        "for _ in range(50):\n"
        "    lib = ctypes.CDLL(sys.argv[1]); n = ctypes.c_int()\n"
        "    lib.ibv_get_device_list.restype = ctypes.c_void_p\n"
        "    assert lib.ibv_get_device_list(ctypes.byref(n)) and n.value == 1\n"
        "    _ctypes.dlclose(lib._handle)\n"
    )
    _finish(exec_command(sys.executable, "-c", code, str(libraries / "libibverbs.so.1"), address=f"{NET}.4"), env)


def test_without_a_nic_process_the_library_says_what_to_do(libraries: Path, env: dict[str, str]) -> None:
    code = (
        "import ctypes, errno, sys; lib = ctypes.CDLL(sys.argv[1], use_errno=True); n = ctypes.c_int(7)\n"
        "lib.ibv_get_device_list.restype = ctypes.c_void_p\n"
        "assert lib.ibv_get_device_list(ctypes.byref(n)) is None and n.value == 0\n"
        "assert ctypes.get_errno() == errno.ENOSYS"
    )
    done = _finish([sys.executable, "-c", code, str(libraries / "libibverbs.so.1")], env)
    assert re.fullmatch(
        r"rnic: no NIC process answers at .*/nic\.sock \(.*\): start .* `rnic exec -- PROGRAM`\n", done.stderr
    )


def test_a_nic_process_that_ends_before_it_greets_is_named(libraries: Path, env: dict[str, str]) -> None:
    """And not by what a new piece of memory had in it, as where an answer is looked at that never came."""
    code = (
        "import ctypes, sys; lib = ctypes.CDLL(sys.argv[1]); n = ctypes.c_int(7)\n"
        "lib.ibv_get_device_list.restype = ctypes.c_void_p\n"
        "assert lib.ibv_get_device_list(ctypes.byref(n)) is None and n.value == 0\n"
    )
    path = Path(env["RNIC_RUNTIME_DIR"], SOCKET_NAME)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as ends:
        ends.bind(str(path))
        ends.listen()

        def end_each() -> None:
            with contextlib.suppress(OSError):  # when the test is over
                while True:
                    ends.accept()[0].close()

        thread = threading.Thread(target=end_each)
        thread.start()
        command = [sys.executable, "-c", code, str(libraries / "libibverbs.so.1")]
        try:
            done = _finish(command, {**env, "MALLOC_PERTURB_": "85"})
        finally:
            ends.shutdown(socket.SHUT_RDWR)
            thread.join()
    assert set(done.stderr.splitlines()) == {f"rnic: the NIC process at {path} closed the connection"}


def test_what_the_connection_manager_lacks_is_refused_in_words(libraries: Path, env: dict[str, str]) -> None:
    code = (
        "import ctypes, errno, sys; lib = ctypes.CDLL(sys.argv[1], use_errno=True)\n"
        "assert lib.repoll_create(0) == -1 and ctypes.get_errno() == errno.ENOSYS"
    )
    command = [sys.executable, "-c", code, str(libraries / "librdmacm.so.1")]
    done = _finish(command, {**env, "LD_LIBRARY_PATH": str(libraries)})
    assert done.stderr == "rnic: rnic's librdmacm does not support this function: Function not implemented\n"


ROOM = 256
UNTOUCHED = b"\xaa" * ROOM


@pytest.mark.parametrize("symbol", OUT_PARAMETERS)
def test_a_function_that_refuses_leaves_no_argument_unset(libraries: Path, symbol: str) -> None:
    """Whoever looks there whatever the status says finds nothing, and no byte beside it is touched."""
    name, cleared = symbol.removeprefix("before_2008_"), OUT_PARAMETERS[symbol]
    cm = name.startswith(("rdma", "repoll"))
    library = ctypes.CDLL(str(libraries / ("librdmacm.so.1" if cm else "libibverbs.so.1")), use_errno=True)
    function = getattr(library, name)
    if symbol != name:
        versioned = ctypes.CDLL(None).dlvsym
        versioned.restype, versioned.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
        at = versioned(library._handle, name.encode(), b"IBVERBS_1.0")
        function = ctypes.CFUNCTYPE(ctypes.c_void_p, use_errno=True)(at)
    function.restype = ctypes.c_void_p
    buffers = [ctypes.create_string_buffer(UNTOUCHED, ROOM) for _ in range(6)]
    arguments = [ctypes.c_void_p(ctypes.addressof(buffer)) for buffer in buffers]
    wanted = [UNTOUCHED] * len(buffers)
    for argument, size in cleared:
        if size < 0:
            arguments[-size] = ctypes.c_void_p(24)
            size = 24
        wanted[argument] = bytes(size) + UNTOUCHED[size:]
    ctypes.set_errno(0)
    said = function(*arguments)
    assert [buffer.raw for buffer in buffers] == wanted
    error = errno.ENOSYS if cm or symbol != name else errno.EOPNOTSUPP
    assert ctypes.get_errno() == error
    if name in RETURN_POINTERS:
        assert said is None
    else:
        assert ctypes.c_int(said).value == (-1 if name in RETURN_MINUS_ONE else error)
    function(*[None] * 6)


def test_the_table_names_every_public_function_that_only_refuses_and_no_other() -> None:
    done = implemented(sorted(SOURCES.glob("*.c")))
    public = {name for names in (*VERBS.values(), *RDMACM.values()) for name in names}
    assert OUT_PARAMETERS.keys() == (public - done) | {f"before_2008_{name}" for name in VERBS_BEFORE_2008}


def test_a_function_that_only_refuses_and_is_not_in_the_table_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(OUT_PARAMETERS, "ibv_query_port_speed")
    with pytest.raises(BuildError, match="ibv_query_port_speed only refuses: say in OUT_PARAMETERS"):
        verbs_stubs(implemented(sorted(SOURCES.glob("*.c"))))


def test_without_a_nic_process_the_connection_manager_says_what_to_do(libraries: Path, env: dict[str, str]) -> None:
    code = (
        "import ctypes, errno, sys; lib = ctypes.CDLL(sys.argv[1], use_errno=True)\n"
        "lib.rdma_create_event_channel.restype = ctypes.c_void_p\n"
        "assert lib.rdma_create_event_channel() is None and ctypes.get_errno() == errno.ENODEV"
    )
    command = [sys.executable, "-c", code, str(libraries / "librdmacm.so.1")]
    done = _finish(command, {**env, "LD_LIBRARY_PATH": str(libraries)})
    assert "start the program with `rnic exec -- PROGRAM`" in done.stderr


def test_without_a_compiler_the_build_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match="no C compiler was found: install one"):
        build(tmp_path / "out")


def test_exec_without_libraries_says_what_is_missing(env: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        exec_command("true"), env={**env, "RNIC_LIBRARIES": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "libibverbs.so.1 is missing, since rnic was installed without a C compiler" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_script_without_an_interpreter_is_the_shells(env: dict[str, str], tmp_path: Path) -> None:
    """As in a shell and under sudo; Valkey's ``runtest-rdma`` is one."""
    (script := tmp_path / "script").write_text('echo "$1 $#"\n')
    script.chmod(0o755)
    assert _finish(exec_command(str(script), "a b", address=f"{NET}.5"), env).stdout == "a b 1\n"


def test_runtime_directory_that_others_may_enter_is_refused(libraries: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        env = {**os.environ, "RNIC_RUNTIME_DIR": name, "RNIC_LIBRARIES": str(libraries)}
        done = subprocess.run(exec_command("true"), env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        f"rnic: runtime directory {name} is open to other users: set RNIC_RUNTIME_DIR to one of your own\n"
    )
