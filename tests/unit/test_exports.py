"""The public API: what ``import rnic`` offers, and nothing else without somebody's saying so."""

from __future__ import annotations

import subprocess
import sys

import pytest

import rnic

OBJECTS = "AH CQ DM DMMR GID MR MW PD QP SGE SRQ WC XRCD CompChannel Context"
ATTRIBUTES = (
    "AHAttr AllocDmAttr AsyncEvent BindInfo Device DeviceAttr GlobalRoute PortAttr QPAttr QPCap QPInitAttr RecvWR "
    "SendWR SrqAttr SrqInitAttr XRCDInitAttr"
)
SHORT = "AsyncListener Batch BufferInfo Connection Listener Pending RemoteArray aconnect alisten connect listen"
BY_CM = (
    "CMID AddrInfo CMEvent CMEventChannel ConnParam JoinMCAttrEx UDParam CmConnection CmListener CmRequest acm_connect "
    "cm_connect cm_listen"
)
ERRORS = (
    "CmConnectError CmRejectedError CmTimeoutError ExchangeError LinkError PeerClosedError RnicError VerbsError "
    "WorkCompletionError"
)
REST = "__version__ enums get_device_list"
"""``rnic.open`` is there too; ``import *`` leaves the builtin alone."""


def test_exports() -> None:
    assert sorted(rnic.__all__) == sorted(" ".join((OBJECTS, ATTRIBUTES, SHORT, BY_CM, ERRORS, REST)).split())
    for name in rnic.__all__:
        assert getattr(rnic, name).__doc__ or name == "__version__", name


def test_errors_have_one_base() -> None:
    for name in ERRORS.split():
        assert issubclass(getattr(rnic, name), rnic.RnicError)
    assert issubclass(rnic.VerbsError, OSError)
    error = rnic.VerbsError(22, "size=-1: use 1 to 5")
    assert (error.errno, error.error_code, str(error)) == (22, 22, "size=-1: use 1 to 5 (Invalid argument)")


def test_names_that_are_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'rnic' has no attribute 'queue_pair'"):
        rnic.queue_pair  # noqa: B018
    assert {*rnic.__all__, "open"} <= {*dir(rnic)}


@pytest.mark.slow
def test_names_are_loaded_when_they_are_used_first() -> None:
    code = "import sys, rnic; assert not {'asyncio', 'rnic.verbs', 'rnic.device'} & {*sys.modules}; rnic.aconnect"
    subprocess.run([sys.executable, "-c", f"{code}; assert 'asyncio' in sys.modules"], check=True)


@pytest.mark.slow
def test_importing_needs_no_numpy() -> None:
    code = "import sys; sys.modules['numpy'] = None; from rnic import *; import rnic.testing"
    subprocess.run([sys.executable, "-W", "error", "-c", f"{code}; assert 'matplotlib' not in sys.modules"], check=True)


def test_the_numbers_are_a_module_as_pyverbs_has_them() -> None:
    code = "import rnic.enums as e; from rnic.enums import IBV_QPS_RTS; import rnic.verbs.enums as v; "
    code += "assert {n for n in vars(v) if n.startswith('IBV_')} <= set(vars(e)); print(e.IBV_QPS_RTS == IBV_QPS_RTS)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_running_a_program_loads_no_device() -> None:
    """``rnic exec`` starts before every C program, and asks the NIC process for all else."""
    heavy = ("rnic.device", "rnic.transport", "rnic.verbs", "rnic.wire", "rnic.link.base", "numpy", "rich")
    said = f"import sys, rnic.cli.exec; print([name for name in sys.modules if name.startswith({heavy})])"
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
