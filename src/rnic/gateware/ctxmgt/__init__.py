"""CtxMgt (002) as gateware: the modules of the document under their names, and models of it that run in process."""
