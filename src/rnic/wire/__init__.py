"""Wire format: one file per header, the opcode table, the ICRC, and the pretty printer. Bytes in, records out."""
