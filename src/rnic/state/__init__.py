"""Every datum of the data path as a field of a layout table, in one arena of flat memory (``design.md``, "state")."""
