"""RC Link (SUE2.0): a second transport beside RoCEv2, over the same links and on its own UDP port."""

from rnic.rclink.config import RcLinkConfig
from rnic.rclink.driver import Path, Recovery, disable, expect, set_up
from rnic.rclink.endpoint import RcLinkEndpoint
from rnic.rclink.numbers import RcLinkError
from rnic.rclink.port import RcLinkPort

__all__ = [
    "Path",
    "RcLinkConfig",
    "RcLinkEndpoint",
    "RcLinkError",
    "RcLinkPort",
    "Recovery",
    "disable",
    "expect",
    "set_up",
]
