"""Check captured packets against the rules of RoCEv2 (``rnic check``).

Sans I/O: packets in, findings out. The judge relies only on the packets themselves, learns of a queue pair from its
first packet, and keeps a bounded amount of state for each.
"""

from rnic.judge.findings import Facts, Finding
from rnic.judge.judge import Judge
from rnic.judge.rules import RULES, Rule

__all__ = ["RULES", "Facts", "Finding", "Judge", "Rule"]
