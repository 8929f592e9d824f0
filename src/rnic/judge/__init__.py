"""Judging packets that others sent: which rules of RoCEv2 they keep, and which they break (``rnic check``).

Sans I/O: packets in, findings out. It believes nothing but what it sees, knows no queue pair before its first
packet, and holds bounded memory for each.
"""

from rnic.judge.findings import Facts, Finding
from rnic.judge.judge import Judge
from rnic.judge.rules import RULES, Rule

__all__ = ["RULES", "Facts", "Finding", "Judge", "Rule"]
