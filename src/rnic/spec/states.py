"""Queue pair states and service types with the codes that QPC bytes carry (``hardware.md`` 2a)."""

RESET = 0
INIT = 1
RTR = 2
RTS = 3
SQE = 4
SQD = 5
ERR = 6

STATE_NAMES = {RESET: "RESET", INIT: "INIT", RTR: "RTR", RTS: "RTS", SQE: "SQE", SQD: "SQD", ERR: "ERR"}


def state_name(state: int) -> str:
    """Return the name of a context's state field; any value is accepted, since programs can write it."""
    return STATE_NAMES.get(state, f"state {state}")


ST_RC = 0
ST_UC = 1
ST_UD = 3
ST_XRC_INI = 5
"""XRC queue pair that sends requests (IBA annex A14, "XRC INI QP")."""
ST_XRC_TGT = 6
"""XRC queue pair that receives requests; each packet names the shared receive queue."""

SERVICE_NAMES = {ST_RC: "RC", ST_UC: "UC", ST_UD: "UD", ST_XRC_INI: "XRC INI", ST_XRC_TGT: "XRC TGT"}
RELIABLE = frozenset({ST_RC, ST_XRC_INI, ST_XRC_TGT})
"""Service types with acknowledgements."""
