"""``python -m rnic.cli`` is the ``rnic`` command."""

from rnic.cli import main

main()
