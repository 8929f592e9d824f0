"""Try an installed wheel: compiled parts there or not, one array read, one WRITE, the C library loaded by a program.

Run as ``python try_wheel.py compiled|pure`` with the Python that it is installed in, anywhere but in the tree.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np

import rnic
from rnic.mem.order import COMPILED

LOAD = """
import ctypes
verbs = ctypes.CDLL("libibverbs.so.1")
versioned = ctypes.CDLL(None).dlvsym
versioned.restype = ctypes.c_void_p
versioned.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
for name, version in ((b"ibv_open_device", b"IBVERBS_1.0"), (b"ibv_query_gid_type", b"IBVERBS_PRIVATE_33")):
    assert versioned(verbs._handle, name, version), (name, version)  # not each compiler makes older versions
listed = verbs.ibv_get_device_list
listed.restype = ctypes.c_void_p
count = ctypes.c_int()
assert listed(ctypes.byref(count))
print("devices:", count.value)
"""


def main(kind: str) -> int:
    """Exit status 1 with a line where something is amiss."""
    if COMPILED is not (kind == "compiled"):
        print(f"try_wheel: COMPILED is {COMPILED} in the {kind} wheel", file=sys.stderr)
        return 1
    data = np.arange(100_000, dtype=np.int64)
    with rnic.listen(port=0) as listener:
        listener.share(data=data)
        with rnic.connect("127.0.0.1", listener.port) as peer:
            assert (peer.read("data") == data).all()
            peer.write("data", np.array([7, 8], dtype=np.int64), 10)
    assert data[10:12].tolist() == [7, 8]
    if kind == "compiled":
        command = [str(Path(sys.executable).parent / "rnic"), "exec", "--port", "0", "--", sys.executable, "-c", LOAD]
        said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        if said.returncode or not re.fullmatch(r"devices: [1-9]\d*\n", said.stdout):
            print(f"try_wheel: rnic exec: {said.stdout}{said.stderr}", file=sys.stderr)
            return 1
    print(f"try_wheel: the {kind} wheel of rnic {rnic.__version__} works")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
