"""Arrays between processes: ``rnic.listen`` and ``rnic.connect``, one-sided access to NumPy arrays, asyncio."""
