"""Data path state: records of layout tables in one arena of flat memory (``design.md``, "state")."""
