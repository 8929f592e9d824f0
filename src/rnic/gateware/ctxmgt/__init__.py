"""CtxMgt (002) as gateware: the document's modules under their names, and models of them that run in process."""
