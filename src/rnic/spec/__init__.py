"""Constants from the standards: opcodes, syndromes, status and timer codes, limits, PSN arithmetic.

The lowest room: it imports nothing from other rooms.
"""
