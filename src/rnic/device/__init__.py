"""The device: registers, doorbells, command unit, events, and the assembled NIC, sans I/O."""

from rnic.device.commands import CommandResult
from rnic.device.config import NicConfig
from rnic.device.nic import Nic, Offload
from rnic.device.uar import Uar

__all__ = ["CommandResult", "Nic", "NicConfig", "Offload", "Uar"]
