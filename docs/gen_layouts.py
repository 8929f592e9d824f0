"""Writes one page for each group of layouts, from the tables that the code itself uses.

    python docs/gen_layouts.py [DIRECTORY]

The pages go to ``docs/layouts`` unless a directory is named. The same tables give the same bytes.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

from drawing import INLINE_STYLE, layout_picture

from rnic.context import modify
from rnic.device.hcr import OUTBOX_BYTES, inbox_bytes
from rnic.spec import commands, engine_net_regs, engine_regs, events, states
from rnic.spec.layout import Layout
from rnic.wire.opcode import OPCODES

HERE = Path(__file__).resolve().parent

# file name, title, what the page says first, modules in the order of the page
GROUPS: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    (
        "entries",
        "Descriptors and queue entries",
        "What software writes into send and receive rings, and what the NIC writes into completion and event rings. A "
        "receive entry, of an RQ or SRQ, has no header: it is a fixed stride of scatter entries, and an entry whose "
        "length and key are both 0 ends it early. The entries of an SRQ complete out of turn, so they are slots of a "
        "free list, and behind them lies a ring of as many 32-bit slot numbers in the order of posting.",
        ("rnic.rings.sqe", "rnic.rings.cqe", "rnic.rings.eqe"),
    ),
    (
        "process-boundary",
        "Process boundary",
        "What a program and its user's NIC process say to each other over a local socket, and the window of registers "
        "that they share. The layouts and this page come from one table, as does the header for C. A program of "
        "another user is hung up on. Of the registers the window holds the queue blocks; the global block is shown by "
        "`rnic regs`, and the command register's work is done by COMMAND messages.",
        ("rnic.spec.attach",),
    ),
    (
        "registers",
        "Global registers",
        "The first 256 bytes of a driver's window. A register of several values has a row for each. Offsets that have "
        "no row are reserved: they read 0 and take no store, as do misaligned ones; a store to a read-only register "
        "changes nothing. All registers are 0 after reset but DEVICE_ID (524Eh) and REVISION (1).",
        ("rnic.spec.registers",),
    ),
    (
        "queue-block",
        "Queue block",
        "The registers that each queue has. Offsets count from the start of the queue's own block.",
        ("rnic.rings.queue_block",),
    ),
    (
        "contexts",
        "Contexts",
        "What a queue is, as the NIC stores it in host memory. The first 192 bytes of a QPC are 002's, the rest ours.",
        ("rnic.context.qpc", "rnic.context.cqc", "rnic.context.eqc"),
    ),
    (
        "state",
        "State of the data path",
        "What the data path keeps of each memory key, queue pair, CQ and EQ in one arena of flat memory: a record of "
        "64-bit words, and slots behind a queue pair's. Send slot *i* belongs to SQ entry *i*; a message is its send "
        "entry. Words are in the host's byte order. Instead of an access each row names its owner, the one class that "
        "writes it.",
        (
            "rnic.state.device",
            "rnic.state.queue_pair",
            "rnic.state.queues",
            "rnic.state.memory",
            "rnic.state.paths",
            "rnic.state.scheduler",
        ),
    ),
    (
        "budget",
        "Budget of a device",
        "The page of what a device's programs and its NIC process have in flight together: a header, then for each of "
        "256 entries (0 the NIC as a whole, the others peers') a share for each of 256 slots. Whose each word is says "
        "the access.",
        ("rnic.state.budget",),
    ),
    (
        "cm",
        "Connection manager messages",
        "The bodies of the CM's MADs, and the header of the RDMA IP CM service in their private data.",
        ("rnic.wire.cm",),
    ),
    (
        "coyote",
        "Coyote's shell interfaces",
        "The structures of document 003, each of them one number.",
        ("rnic.rings.coyote",),
    ),
    (
        "ctxmgt",
        "Context manager messages",
        "What the context manager (002) and its neighbours say to each other: request headers, inner interfaces and the"
        " payloads of the six engine channels.",
        ("rnic.context.messages",),
    ),
    ("mpt", "Memory protection table", "One entry for each memory region or window.", ("rnic.mem.mpt",)),
    (
        "mailboxes",
        "Command mailboxes",
        "Mailboxes of commands that carry no context.",
        ("rnic.device.mailboxes",),
    ),
    (
        "wire",
        "Headers on the wire",
        "In the order in which they follow each other. The four bytes after the payload are the ICRC, little-endian.",
        (
            "rnic.wire.ethernet",
            "rnic.wire.ip",
            "rnic.wire.tunnels",
            "rnic.wire.infiniband",
            "rnic.wire.bth",
            "rnic.wire.deth",
            "rnic.wire.feth",
            "rnic.wire.xrceth",
            "rnic.wire.reth",
            "rnic.wire.atomiceth",
            "rnic.wire.aeth",
            "rnic.wire.immdt",
            "rnic.wire.ieth",
            "rnic.wire.cnp",
            "rnic.wire.mad",
        ),
    ),
    (
        "rclink",
        "RC Link",
        "The header of RC Link, the descriptor of its TYPE3, and its registers, which are 64 bits wide. What the "
        "documents do not say is marked on the [RC Link page](../rclink.md).",
        ("rnic.rclink.header", "rnic.rclink.registers"),
    ),
    (
        "paxi",
        "PAXI registers",
        "The register block of a PAXI window, 4 KB of 32-bit registers; a register of several values has a layout of "
        "its own. What has no row reads 0. What PAXI's documents do not say is a choice of ours, and marked so.",
        ("rnic.paxi.registers",),
    ),
    (
        "engine-header",
        "Seven-beat header",
        "The header of the descriptor engine, one 32-bit word a beat.",
        ("rnic.wire.engine_header",),
    ),
)
HOW_TO_READ = """\
Each structure of rnic is one table in the code, and these pages are made from those tables at every build.

An *offset* is where an integer of so many *bytes* begins, in hexadecimal; *bits* count within that integer, 0 the least
significant. In the pictures each row is a 32-bit word with bit 31 at the left. A letter stands for a name that does not
fit, explained below the picture; rows of reserved words are left out.
"""
EXTENDED_HEADERS = ("xrceth", "deth", "feth", "reth", "aeth", "atomiceth", "atomicacketh", "immdt", "ieth")


def layouts_of(module: str) -> list[Layout]:
    """Return the layouts that a module defines, in its order; one that it only imports is on another page."""
    found: list[Layout] = []
    for value in vars(importlib.import_module(module)).values():
        if isinstance(value, Layout) and value not in found:
            found.append(value)
    return found


def escape(text: str) -> str:
    """Escape prose for Markdown."""
    return "".join("\\" + letter if letter in "*|<[" else letter for letter in text)


# --------------------------------------------------------------------------------------------- pages


def section(layout: Layout) -> Iterator[str]:
    """Return the text of a layout: heading, picture, table of fields."""
    yield f"## {layout.name[0].upper()}{layout.name[1:]}"
    yield ""
    yield f"{layout.size} bytes, {layout.endian}-endian. Source: {escape(layout.source)}."
    yield ""
    yield "```{raw} html"
    yield layout_picture(layout).svg(inline=True)
    yield "```"
    yield ""
    yield "| offset | bytes | bits | name | access | meaning |"
    yield "|---:|---:|---:|---|---|---|"
    for field in layout.fields:
        bits = str(field.msb) if field.msb == field.lsb else f"{field.msb}:{field.lsb}"
        yield (f"| {field.byte:02X}h | {field.unit} | {bits} | `{field.name}` | {field.access} | {escape(field.doc)} |")
    yield ""


def opcode_page() -> Iterator[str]:
    """Return the opcode table, one row for each opcode that rnic speaks."""
    yield "# Opcodes"
    yield ""
    yield "What follows the BTH under each opcode, in order. *Takes a receive* says that the last packet of the message"
    yield "uses up a receive entry."
    yield ""
    yield "| opcode | name | headers after the BTH | header bytes | payload | takes a receive |"
    yield "|---:|---|---|---:|---|---|"
    for row in OPCODES:
        if row is not None:
            headers = " ".join(f"`{name}`" for name in EXTENDED_HEADERS if getattr(row, name))
            payload, receive = ("yes" if flag else "" for flag in (row.payload, row.takes_receive))
            yield f"| {row.opcode:02X}h | `{row.name}` | {headers} | {row.header_bytes} | {payload} | {receive} |"


def command_page() -> Iterator[str]:
    """Return the device's commands, what they say when they fail, and the transitions of queue pairs."""
    yield "# Commands"
    yield ""
    yield "By the command register (HCR) or, from another process, by COMMAND messages: the same numbers and mailboxes."
    yield "Mailboxes are big-endian. A command that fails changes nothing. Bytes marked *n* depend on the modifier."
    yield ""
    yield "| opcode | name | in_modifier | op_modifier | inbox | outbox | what it does |"
    yield "|---:|---|---|---|---:|---:|---|"
    for op, name in sorted(commands.COMMAND_NAMES.items()):
        given, modifier, text = commands.COMMAND_DOCS[op]
        one, two = inbox_bytes(op, 1), inbox_bytes(op, 2)
        inbox = "*n*" if one != two else str(one or "")
        outbox = OUTBOX_BYTES.get(op, "")
        yield f"| {op:03X}h | `{name}` | {escape(given)} | {modifier} | {inbox} | {outbox} | {escape(text)} |"
    yield ""
    yield "## Status"
    yield ""
    yield "| status | name | meaning |"
    yield "|---:|---|---|"
    for status, name in commands.STATUS_NAMES.items():
        yield f"| {status:02X}h | `{name}` | {commands.STATUS_DOCS[status]} |"
    yield ""
    yield "## States of a queue pair"
    yield ""
    yield "What each transition needs, by service, of the attributes in `opt_param_mask`; in brackets what it may bring"
    yield "besides. A service without a row does not have the transition, and whatever is not here is refused."
    yield ""
    yield "| command | from | to | service | attributes |"
    yield "|---|---|---|---|---|"
    for op, transition in modify.TRANSITIONS.items():
        sources = " ".join(states.STATE_NAMES[state] for state in sorted(transition.sources))
        target = states.STATE_NAMES[transition.target]
        for service, (required, optional) in transition.attributes.items():
            needs, more = attribute_names(required), attribute_names(optional)
            text = " ".join([*needs, f"[{' '.join(more)}]"] if more else needs)
            row = (commands.COMMAND_NAMES[op], sources, target, states.SERVICE_NAMES[service], escape(text))
            yield "| " + " | ".join(row) + " |"
    yield ""
    yield "## Events"
    yield ""
    yield "Types of EQ entries, the bits of MAP_EQ's mask: " + ", ".join(
        f"{number:02X}h `{name}`" for number, name in events.EVENT_NAMES.items()
    ) + "."  # fmt: skip


def attribute_names(mask: int) -> list[str]:
    """Return the names of the attributes in a mask."""
    return [modify.ATTRIBUTE_NAMES[1 << bit] for bit in range(mask.bit_length()) if mask >> bit & 1]


def engine_registers_page() -> Iterator[str]:
    """Return the registers of the descriptor engine, block by block, bit by bit."""
    blocks = (
        ("Core", engine_regs.ENGINE_BASE, engine_regs.REGISTERS),
        ("Core with more than 32 address bits", engine_regs.ENGINE_BASE, engine_regs.WIDE_REGISTERS),
        ("Encapsulator", engine_regs.ENCAP_BASE, engine_net_regs.ENCAP_REGISTERS),
        ("Decapsulator", engine_regs.DECAP_BASE, engine_net_regs.DECAP_REGISTERS),
    )
    yield "# Registers of the descriptor engine"
    yield ""
    yield "What the AXI4-Lite slave of the [gateware](../gateware.md) answers, 16 KiB of 32-bit registers; `rnic"
    yield "gateware package` writes the same as a C header and in IP-XACT. An address without a row is answered SLVERR,"
    yield "and reads 0. A bit without a row reads 0 and is not stored. An engine without network has the core alone."
    yield "WATCHDOG is what the engine was built with after a reset."
    yield ""
    yield from ("```{raw} html", INLINE_STYLE, "```", "")
    for title, base, registers in blocks:
        yield f"## {title}"
        yield ""
        yield "| offset | name | access | after reset | meaning |"
        yield "|---:|---|---|---:|---|"
        for register in registers:
            named = f"`{register.name}`"
            cells = (f"{base + register.offset:03X}h", named, register.access, f"{register.reset:X}h", register.doc)
            yield "| " + " | ".join(escape(cell) for cell in cells) + " |"
        yield ""
        for register in registers:
            if not register.fields:
                continue
            yield f"### {title}: {register.name}"
            yield ""
            layout = Layout(f"{title} {register.name}", 4, "little", register.source, register.fields)
            yield from ("```{raw} html", layout_picture(layout).svg(inline=True), "```", "")
            yield "| bits | name | access | after reset | meaning |"
            yield "|---:|---|---|---:|---|"
            for field in register.fields:
                bits = str(field.msb) if field.msb == field.lsb else f"{field.msb}:{field.lsb}"
                reset = register.reset >> field.lsb & field.mask
                yield f"| {bits} | `{field.name}` | {field.access} | {reset:X}h | {escape(field.doc)} |"
            yield ""
    entry = engine_net_regs.ENDPOINT_ENTRY
    yield "## Endpoint table"
    yield ""
    yield f"{engine_net_regs.ENDPOINT_ENTRIES} entries of {entry.size} bytes from {engine_regs.LOOKUP_BASE:04X}h."
    yield ""
    yield from ("```{raw} html", layout_picture(entry).svg(inline=True), "```", "")
    yield "| offset | bits | name | access | meaning |"
    yield "|---:|---:|---|---|---|"
    for field in entry.fields:
        bits = str(field.msb) if field.msb == field.lsb else f"{field.msb}:{field.lsb}"
        yield f"| {field.byte:02X}h | {bits} | `{field.name}` | {field.access} | {escape(field.doc)} |"
    yield ""
    yield "## Errors"
    yield ""
    yield "HW_STATUS's last error, and the vendor error of a CQ entry."
    yield ""
    yield "| code | meaning |"
    yield "|---:|---|"
    for code, meaning in engine_regs.ENGINE_ERROR_NAMES.items():
        yield f"| {code} | {escape(meaning)} |"


def pages() -> dict[str, str]:
    """Return the text of each page by file name."""
    out: dict[str, list[str]] = {}
    titles: dict[str, str] = {}
    seen: list[Layout] = []
    for name, title, text, modules in GROUPS:
        layouts = [layout for module in modules for layout in layouts_of(module)]
        layouts = [layout for layout in dict.fromkeys(layouts) if layout not in seen]
        seen += layouts
        titles[name] = title
        out[name] = [f"# {title}", "", text, "", "```{raw} html", INLINE_STYLE, "```", ""]
        for layout in layouts:
            out[name] += section(layout)
    titles["engine-registers"] = "Registers of the descriptor engine"
    out["engine-registers"] = list(engine_registers_page())
    titles["commands"] = "Commands"
    out["commands"] = list(command_page())
    titles["opcodes"] = "Opcodes"
    out["opcodes"] = list(opcode_page())
    index = ["# Layouts", "", HOW_TO_READ]
    index += [f"- [{title}]({name}.md)" for name, title in titles.items()]
    index += ["", "```{toctree}", ":hidden:", "", *titles, "```"]
    out["index"] = index
    return {f"{name}.md": "\n".join(lines).rstrip("\n") + "\n" for name, lines in out.items()}


def write(directory: Path) -> list[Path]:
    """Write all pages, and remove pages that an earlier run wrote and this one did not."""
    directory.mkdir(parents=True, exist_ok=True)
    made = pages()
    for stale in directory.glob("*.md"):
        if stale.name not in made:
            stale.unlink()
    for name, text in made.items():
        (directory / name).write_text(text, encoding="utf-8")
    return [directory / name for name in made]


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "layouts")
