"""The C ABI drop-in for libibverbs and librdmacm: its build, its generated header, and its location."""
