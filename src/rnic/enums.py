"""The ``IBV_*`` numbers, as a module of their own: ``import pyverbs.enums`` becomes ``import rnic.enums``."""

from rnic.verbs.enums import *  # noqa: F403
