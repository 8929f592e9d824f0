"""The common path once, in C11, over the same ``state`` as :mod:`rnic.transport`, sans I/O (``design.md``).

``*.c`` and ``*.h`` are a plain static library without Python in it: ``engine.h`` is what it offers, ``memory.h`` how it
reaches registered memory, ``state.h`` is made from the tables by :mod:`rnic.engine.header`.
"""
