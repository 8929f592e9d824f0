"""All data path state, as fields of layout tables in one arena of flat memory (``design.md``, "state")."""
