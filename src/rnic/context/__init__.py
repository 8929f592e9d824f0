"""Contexts: QPC, CQC, EQC and SRQC as bytes, and typed views for the data path (002)."""
