"""Black-box conformance of a RoCEv2 peer: packet scripts, played against it and judged (``rnic conform``).

A script is text that can be read (:mod:`rnic.conform.script`): what is sent, what must come back, what the peer's
software does. It is played against a peer (:mod:`rnic.conform.runner`) and written as test vectors
(:mod:`rnic.conform.vectors`), so that each rule stands once.
"""
