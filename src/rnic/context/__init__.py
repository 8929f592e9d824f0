"""Contexts: bytes of QPC, CQC, EQC and SRQC, and the typed views that the data path uses (002)."""
