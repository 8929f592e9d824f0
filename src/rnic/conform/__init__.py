"""Black-box conformance of a RoCEv2 peer: packet scripts, played against it and checked (``rnic conform``).

A script is readable text (:mod:`rnic.conform.script`): packets to send, packets that must come back, actions of the
peer's software. It is played against a peer (:mod:`rnic.conform.runner`) and written as test vectors
(:mod:`rnic.conform.vectors`), so that each rule is written once.
"""
