"""Access rights of regions, windows and queue pairs: the bits of ``ibv_access_flags``.

The MPT entry's own bit order (``hardware.md`` 2a) is made from these in :mod:`rnic.mem.mpt`.
"""

LOCAL_WRITE = 1 << 0
REMOTE_WRITE = 1 << 1
REMOTE_READ = 1 << 2
REMOTE_ATOMIC = 1 << 3
MW_BIND = 1 << 4
ZERO_BASED = 1 << 5
ON_DEMAND = 1 << 6
HUGETLB = 1 << 7
FLUSH_GLOBAL = 1 << 8
FLUSH_PERSISTENT = 1 << 9
RELAXED_ORDERING = 1 << 20

RIGHT_NAMES = {
    LOCAL_WRITE: "LOCAL_WRITE",
    REMOTE_WRITE: "REMOTE_WRITE",
    REMOTE_READ: "REMOTE_READ",
    REMOTE_ATOMIC: "REMOTE_ATOMIC",
    MW_BIND: "MW_BIND",
    FLUSH_GLOBAL: "FLUSH_GLOBAL",
    FLUSH_PERSISTENT: "FLUSH_PERSISTENT",
}
"""Names of the rights that an access can need, by bit."""
SUPPORTED = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC | MW_BIND | ZERO_BASED | ON_DEMAND | FLUSH_GLOBAL
"""Rights that a region may have. ``FLUSH_PERSISTENT`` is not one of them: registered memory is volatile, so a FLUSH
that promises persistence must fail."""
QP_RIGHTS = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC | FLUSH_GLOBAL | FLUSH_PERSISTENT
"""Rights that a queue pair may have; the region must grant them, too."""
NEED_LOCAL_WRITE = REMOTE_WRITE | REMOTE_ATOMIC
