"""The common path in C11, on the same ``state`` as :mod:`rnic.transport`, sans I/O (``design.md``).

``*.c`` and ``*.h`` are a plain static library without Python: ``engine.h`` is its interface, ``memory.h`` its access to
registered memory. :mod:`rnic.engine.header` generates ``state.h`` from the tables.
"""
