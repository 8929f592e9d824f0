"""Contexts: QPC, CQC, EQC and SRQC bytes, and the typed view that the data path works on (002)."""
