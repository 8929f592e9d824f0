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
    """Return the name of what a context has for a state: a program may have written anything there."""
    return STATE_NAMES.get(state, f"state {state}")


ST_RC = 0
ST_UC = 1
ST_UD = 3

SERVICE_NAMES = {ST_RC: "RC", ST_UC: "UC", ST_UD: "UD"}
