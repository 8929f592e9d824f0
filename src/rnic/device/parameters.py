"""Parameter sets: a NIC described by the parameters of a modeled core (004 7.4, 7.5).

The ranges are from the document. Parameters for a width or latency of the hardware are checked, stored and shown, but
do not change the speed of a software NIC; ``effect`` names the setting for each other parameter. RQ_ALMOST_FULL is not
in the document's table: it is the threshold of the check of that name (004 7.3), which the document does not specify.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rnic.cc.settings import CongestionSettings
from rnic.spec.errors import VerbsError


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter: ``low`` to ``high``, only powers of two if ``power`` is true, or only one of ``choices``."""

    name: str
    low: int
    high: int
    default: int
    power: bool
    effect: str
    doc: str
    choices: tuple[int, ...] = ()

    def check(self, value: int) -> None:
        """Raise ``VerbsError`` (EINVAL) for an invalid value."""
        if self.choices:
            if value not in self.choices:
                raise VerbsError(errno.EINVAL, f"{self.name}={value}: use {' or '.join(map(str, self.choices))}")
        elif not self.low <= value <= self.high or (self.power and value & value - 1):
            kind = "a power of two from " if self.power else ""
            raise VerbsError(errno.EINVAL, f"{self.name}={value}: use {kind}{self.low} to {self.high}")


UNIVISTA: tuple[Parameter, ...] = (
    Parameter("QP_NUM", 256, 4096, 4096, True, "log_max_qps", "queue pairs"),
    Parameter("MR_NUM", 256, 16384, 16384, True, "max_mrs", "memory regions"),
    Parameter("OSQ_PER_QP", 1, 16, 16, False, "window_packets", "outstanding packets of a queue pair"),
    Parameter("RX_BUF_AW", 5, 13, 13, False, "window_bytes", "receive buffer of 2^RX_BUF_AW words of 128 bytes"),
    Parameter("RQ_ALMOST_FULL", 1, 16, 1, False, "rq_almost_full", "receive entries kept back: with no more, RNR"),
    Parameter("RAM_RD_LATENCY", 1, 3, 1, False, "", "cycles of a memory read"),
    Parameter("QPM_AXI_DW", 64, 512, 512, True, "", "bits of the descriptor bus"),
    Parameter("MAC_DW", 512, 1024, 1024, False, "", "bits of the MAC interface, 200G or 400G", (512, 1024)),
)


def univista(**chosen: int) -> dict[str, Any]:
    """Return settings of :class:`~rnic.device.config.NicConfig` for these parameters, with defaults for the others.

    Raises:
        VerbsError: EINVAL for a value out of range, or a parameter that does not exist.
    """
    table = {parameter.name: parameter for parameter in UNIVISTA}
    for name, value in chosen.items():
        if name not in table:
            raise VerbsError(errno.EINVAL, f"{name} is not a parameter: use {', '.join(table)}")
        table[name].check(value)
    values = {name: chosen.get(name, parameter.default) for name, parameter in table.items()}
    return {
        "log_max_qps": values["QP_NUM"].bit_length() - 1,
        "max_mrs": values["MR_NUM"],
        "window_packets": values["OSQ_PER_QP"],
        "window_bytes": 128 << values["RX_BUF_AW"],
        "congestion": CongestionSettings("limit"),
        "rq_almost_full": values["RQ_ALMOST_FULL"],
        "fault_events": True,
        "profile": "univista",
        "parameters": values,
    }


PROFILES: dict[str, Callable[..., dict[str, Any]]] = {"univista": univista}
"""Parameter sets by name."""


def profile_settings(profile: str | None, parameters: Mapping[str, int]) -> dict[str, Any]:
    """Return the settings of a profile with the given parameters; empty without a profile.

    Raises:
        VerbsError: EINVAL for an unknown profile or parameter, a value out of range, or parameters without a profile.
    """
    if not profile:
        if parameters:
            raise VerbsError(errno.EINVAL, f"{', '.join(parameters)}: parameters require a profile; give one, too")
        return {}
    if profile not in PROFILES:
        raise VerbsError(errno.EINVAL, f"profile={profile!r} does not exist: use {', '.join(PROFILES)}")
    return PROFILES[profile](**parameters)
