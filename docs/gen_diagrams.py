"""Draws the pictures of the pages on the source documents; they are kept beside those pages.

    python docs/gen_diagrams.py [DIRECTORY]

State names, state machines and layouts come from the code's own tables. A test holds the kept files equal to these.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from drawing import Drawing, layout_picture, machine, sequence

from rnic.context import machines
from rnic.rings import coyote
from rnic.rings.cqe import CQ_ENTRY
from rnic.rings.sqe import SQ_ENTRY
from rnic.spec import engine_regs as regs
from rnic.spec.layout import Layout
from rnic.wire.engine_header import ENGINE_HEADER

HERE = Path(__file__).resolve().parent
DOCUMENTED_SQE_BYTES = 28
"""001 leaves the rest of the 64 bytes reserved."""


def chain(label: str, names: tuple[str, ...], docs: dict[str, str], edges: list[tuple[str, str, str]]) -> Drawing:
    """Draw a machine whose states are a table of the code; each must be explained."""
    assert set(docs) == set(names), set(docs) ^ set(names)
    return machine(label, [(name, docs[name]) for name in names], edges)


# ---------------------------------------------------------------------------------- descriptor engine


def engine_blocks() -> Drawing:
    """001 3.1."""
    d = Drawing("The blocks of the descriptor engine: controller, streamers, DataMovers, Ethernet path and loopback")
    d.box(8, 8, 180, 44, "software", "sw", "doorbells, polling")
    d.box(452, 8, 180, 116, "DDR memory", "mem", "SQ and CQ rings, payload, destination")
    d.box(8, 80, 180, 62, "RDMA controller", "hw", "owns SQ_HEAD and CQ_TAIL; one descriptor at a time")
    d.arrow([(98, 52), (98, 80)], "AXI-Lite", (104, 70), "start")
    d.box(250, 80, 150, 44, "DataMover 1", "hw", "control")
    d.arrow([(188, 94), (250, 94)], "fetch", (219, 90), both=True)
    d.arrow([(188, 114), (250, 114)], "CQ entry", (219, 130))
    d.arrow([(400, 102), (452, 102)], both=True)
    d.box(8, 178, 180, 46, "TX streamer", "hw", "fragments, DMA commands")
    d.arrow([(98, 142), (98, 178)], "tx_cmd", (104, 164), "start")
    d.box(8, 256, 180, 46, "TX header inserter", "hw", "7 beats, then the payload")
    d.arrow([(98, 224), (98, 256)], "header fields", (104, 244), "start")
    d.box(250, 178, 150, 124, "DataMover 2", "hw", "data: payload out, payload in")
    d.arrow([(188, 201), (250, 201)], "cmd", (219, 197))
    d.arrow([(250, 279), (188, 279)], "payload", (219, 275))
    d.arrow([(400, 190), (542, 190), (542, 124)], both=True)
    d.box(8, 336, 180, 46, "IP encapsulator", "hw", "Ethernet, IP, UDP")
    d.arrow([(98, 302), (98, 336)])
    d.box(8, 416, 180, 46, "Ethernet MAC, transmit", "net")
    d.arrow([(98, 382), (98, 416)])
    d.box(8, 496, 624, 32, "network, or another board", "net")
    d.arrow([(98, 462), (98, 496)])
    d.box(452, 416, 180, 46, "Ethernet MAC, receive", "net")
    d.arrow([(542, 496), (542, 462)])
    d.box(452, 336, 180, 46, "IP decapsulator", "hw", "checks, strips headers")
    d.arrow([(542, 416), (542, 382)])
    d.box(452, 256, 180, 46, "RX header parser", "hw", "7 beats taken off")
    d.arrow([(542, 336), (542, 302)])
    d.box(452, 206, 180, 38, "RX streamer", "hw")
    d.arrow([(560, 256), (560, 244)])
    d.arrow([(452, 225), (400, 225)], "cmd", (426, 220))
    d.arrow([(452, 264), (400, 264)], "payload", (426, 260))
    d.box(232, 336, 176, 46, "loopback FIFO", "rsv", "for validation")
    d.arrow([(188, 292), (212, 292), (212, 359), (232, 359)], dashed=True)
    d.arrow([(408, 359), (430, 359), (430, 292), (452, 292)], dashed=True)
    return d


def rings() -> Drawing:
    """001 3.2."""
    d = Drawing("A ring in memory: software moves SQ_TAIL, hardware SQ_HEAD; of the CQ it is the other way round", 600)
    for top, name, size, head, tail, full in (
        (30, "SQ", 64, "SQ_HEAD: hardware", "SQ_TAIL: software", range(2, 5)),
        (150, "CQ", 32, "CQ_HEAD: software", "CQ_TAIL: hardware", range(1, 5)),
    ):
        d.text(10, top + 25, name, "start")
        for slot in range(8):
            d.box(60 + 64 * slot, top, 64, 40, str(slot), "mem" if slot in full else "sw")
        first, last = full[0], full[-1] + 1
        d.arrow([(92 + 64 * first, top + 66), (92 + 64 * first, top + 42)], head, (92 + 64 * first, top + 80))
        d.arrow([(92 + 64 * last, top + 66), (92 + 64 * last, top + 42)], tail, (92 + 64 * last, top + 80))
        d.text(330, top - 10, f"green: entries in use, {size} bytes each; after slot 7 comes slot 0", size=11)
    return d


def movers() -> Drawing:
    """001 3.6."""
    d = Drawing("Each channel of the two DataMovers has one owner", 600)
    for row, (owner, channel, mover) in enumerate(
        (
            ("RDMA controller: descriptor fetch", "MM2S", 0),
            ("RDMA controller: CQ entry", "S2MM", 0),
            ("TX streamer: payload read", "MM2S", 1),
            ("RX streamer: payload write", "S2MM", 1),
        )
    ):
        y = 8 + 46 * row + 14 * mover
        d.box(8, y, 250, 34, owner)
        d.arrow([(258, y + 17), (400, y + 17)], channel)
    d.box(400, 8, 192, 80, "DataMover 1", "mem", "control")
    d.box(400, 114, 192, 80, "DataMover 2", "mem", "data")
    return d


def lifecycle() -> Drawing:
    """001 3.3, 000 5.8."""
    sw, regs_, ctl, tx, rx, mem = "software", "registers", "controller", "TX path", "RX path", "memory"
    return sequence(
        "One WRITE of the descriptor engine from doorbell to completion",
        [(sw, "sw"), (regs_, "hw"), (ctl, "hw"), (tx, "hw"), (rx, "hw"), (mem, "mem")],
        [
            "1. Submission",
            (sw, mem, "descriptor at SQ_BASE + 64 · SQ_TAIL, payload; caches flushed"),
            (sw, regs_, "new SQ_TAIL"),
            (regs_, ctl, "doorbell"),
            "2. Fetch",
            (ctl, mem, "MM2S, 64 bytes at SQ_BASE + 64 · SQ_HEAD"),
            (mem, ctl, "16 words; parsed and latched"),
            "3. Transmission",
            (ctl, tx, "tx_cmd"),
            (tx, mem, "MM2S, one fragment"),
            (mem, tx, "payload, behind 7 header beats"),
            (tx, rx, "packet; TLAST ends it"),
            "4. Reception, which tells the controller nothing",
            (rx, mem, "S2MM at remote_addr + fragment_offset"),
            "5. Completion",
            (tx, ctl, "tx_cpl: status, bytes"),
            (ctl, mem, "S2MM, 32 bytes at CQ_BASE + 32 · CQ_TAIL"),
            (ctl, regs_, "SQ_HEAD and CQ_TAIL move together"),
            "6. Consumption",
            (sw, regs_, "polls CQ_TAIL"),
            (mem, sw, "CQ entry; cache invalidated before"),
            (sw, regs_, "new CQ_HEAD"),
        ],
    )


def controller() -> Drawing:
    """000 5.2 to 5.6."""
    docs = {
        "S_IDLE": "waits for enable and work",
        "S_PREPARE_READ": "address of the descriptor, 64 bytes",
        "S_READ_CMD": "starts the command",
        "S_WAIT_READ_DONE": "parser fills the fields",
        "S_IS_STREAM_BUSY": "fields latched; is the streamer free?",
        "S_SEND_TX_CMD": "hands over the command",
        "S_WAIT_TX_CPL": "all fragments go out",
        "S_PREPARE_WRITE": "CQ entry and its address",
        "S_WRITE_CMD": "starts the command, 32 bytes",
        "S_START_STREAM": "eight words to the DataMover",
        "S_WAIT_WRITE_DONE": "entry on its way",
    }
    names = regs.RDMA_STATES
    why = ["SQ_HEAD ≠ SQ_TAIL", "", "command accepted", "read done and entry valid", "streamer idle", "tx_cmd taken"]
    why += ["tx_cpl_valid", "", "command accepted", ""]
    edges = [(a, text, b) for a, text, b in zip(names, why, names[1:], strict=False)]
    edges.append((names[-1], "write done: both pointers move", names[0]))
    return chain("States of the RDMA controller", names, docs, edges)


def tx_streamer() -> Drawing:
    """000 5.3.5, 5.4.4."""
    docs = {
        "IDLE": "latches the command",
        "INIT_FRAGMENT": "length of the first fragment",
        "PROGRAM_HEADER": "fields to the header inserter",
        "START_HEADER": "pulse: seven beats leave",
        "ISSUE_DM_CMD": "MM2S for this fragment",
        "WAIT_DM_STS": "payload is read",
        "WAIT_HDR_DONE": "packet is out",
        "UPDATE_STATE": "address and offset move on",
        "SEND_CPL": "status and bytes to the controller",
    }
    names = regs.TX_STATES
    why = ["tx_cmd", "", "", "", "command taken", "read complete", "hdr_tx_done", "nothing remains"]
    edges = [(a, text, b) for a, text, b in zip(names, why, names[1:], strict=False)]
    edges += [("UPDATE_STATE", "bytes remain", "PROGRAM_HEADER"), ("SEND_CPL", "taken", "IDLE")]
    return chain("States of the TX streamer", names, docs, edges)


def inserter() -> Drawing:
    """000 5.3.4."""
    docs = {
        "IDLE": "latches the fields",
        "SEND_HEADER": "seven beats; payload is held",
        "SEND_DATA": "payload passes; TREADY goes upstream",
    }
    names = regs.INSERTER_STATES
    return chain(
        "States of the TX header inserter",
        names,
        docs,
        [
            (names[0], "start_tx", names[1]),
            (names[1], "beat 6 taken", names[2]),
            (names[2], "TLAST taken: tx_done", names[0]),
        ],
    )


def rx_machines() -> Drawing:
    """000 5.5.6."""
    docs = {
        "IDLE": "waits for a header",
        "CHECK_OPCODE": "is it a WRITE?",
        "PREPARE_CMD": "remote_addr + fragment_offset",
        "ISSUE_DM_CMD": "S2MM, length of the header",
        "WAIT_COMPLETE": "payload is written",
    }
    names = regs.RX_STATES
    why = ["header_valid", "01h, 06h, 07h, 08h, 0Ah", "", "command taken"]
    edges = [(a, text, b) for a, text, b in zip(names, why, names[1:], strict=False)]
    edges += [("CHECK_OPCODE", "no WRITE: payload discarded", "IDLE"), ("WAIT_COMPLETE", "write done", "IDLE")]
    return chain("States of the RX streamer", names, docs, edges)


def rx_parser() -> Drawing:
    """000 5.5.2."""
    names = regs.HEADER_PARSER_STATES
    docs = dict(
        zip(names, ("waits for a packet", "collects seven beats", "payload passes to the DataMover"), strict=True)
    )
    return chain(
        "States of the RX header parser",
        names,
        docs,
        [
            (names[0], "TVALID", names[1]),
            (names[1], "beat 6: header_valid", names[2]),
            (names[2], "TLAST taken", names[0]),
        ],
    )


def command_master() -> Drawing:
    """000 5.4.1."""
    names = regs.CMD_STATES
    docs = dict(
        zip(
            names,
            ("waits for start", "72-bit command to its channel", "memory is read", "memory is written"),
            strict=True,
        )
    )
    idle, send, read, write = names
    return chain(
        "States of the command controller",
        names,
        docs,
        [
            (idle, "start", send),
            (send, "is_read", read),
            (send, "not is_read", write),
            (read, "read complete", idle),
            (write, "write complete", idle),
        ],
    )


def documented_descriptor() -> Drawing:
    """001 3.2."""
    fields = tuple(field for field in SQ_ENTRY.fields if field.byte < DOCUMENTED_SQE_BYTES)
    return layout_picture(Layout("SQ descriptor of 001", DOCUMENTED_SQE_BYTES, "little", "001 3.2", fields))


# --------------------------------------------------------------------------------------------- CtxMgt


def ctxmgt_blocks() -> Drawing:
    """002 4.3, 4.4."""
    d = Drawing("The six modules of CtxMgt between the command unit, the RDMA engine and the DMA engine")
    d.box(8, 40, 96, 76, "CEU", "sw", "the command unit")
    d.frame(128, 8, 376, 344, "CtxMgt")
    d.box(140, 40, 130, 76, "ceu_parser", "hw", "takes requests apart")
    d.arrow([(104, 64), (140, 64)], "1", (122, 60))
    d.box(340, 40, 150, 60, "ctxmdata", "hw", "number to physical page")
    d.arrow([(270, 70), (340, 70)], "contexts,\nmetadata", (305, 50))
    d.box(340, 138, 70, 44, "readctx", "hw")
    d.box(420, 138, 74, 44, "writectx", "hw")
    d.arrow([(375, 100), (375, 138)])
    d.arrow([(457, 100), (457, 138)])
    d.box(530, 40, 102, 226, "DMA engine", "sw", "host memory: QPC, CQC, EQC")
    d.arrow([(375, 182), (375, 204), (530, 204)], "6", (516, 200), both=True)
    d.arrow([(494, 160), (530, 160)], "7", (512, 156))
    d.arrow([(340, 172), (312, 172), (312, 196), (56, 196), (56, 116)], "2: a whole QPC", (180, 190), "middle")
    d.box(140, 216, 130, 56, "request controller", "hw", "CEU first, others in turn")
    d.arrow([(160, 116), (160, 216)], "request", (166, 150), "start")
    d.box(340, 226, 150, 112, "key_qpc_data", "hw", "the cache: what the data path reads and writes")
    d.arrow([(270, 244), (340, 244)], "selected", (305, 240))
    d.arrow([(250, 116), (250, 132), (324, 132), (324, 262), (340, 262)], "data", (256, 128), "start")
    d.arrow([(500, 282), (500, 70), (490, 70)], "write back", (496, 120), "end")
    d.parts.append('<path class="line" d="M490 282 H500"/>')
    d.box(8, 376, 624, 58, "RDMA engine", "sw", "six channels, each with the FIFOs cmd, resp and ctx")
    d.arrow([(205, 376), (205, 272)], "3: requests", (211, 366), "start")
    d.arrow([(370, 376), (370, 338)], "4", (360, 366))
    d.arrow([(440, 338), (440, 376)], "5: responses", (446, 366), "start")
    d.text(320, 452, "1 to 7: the paths of 4.4", size=11)
    return d


def ctxmgt_machine(name: str) -> Drawing:
    """5.1.4, 5.3.4, 5.4.4, 5.6.3, from the table that runs."""
    table = machines.MACHINES[name]
    docs = {
        "PARSE_REQ": "takes a request",
        "TRANS_REQ_DATA": "rewrites it for its module",
        "RCV_REQ": "CEU first, then key_qpc_data",
        "MDT_PROC": "table of pages read or written",
        "DMA_PROC": "asks readctx or writectx",
        "RD_REQ": "takes the selected request",
        "DATA_WR": "key data written",
        "RESP_OUT": "answer, or write-back",
        "REQ_OUT": "DMA write request",
    }
    states = list(dict.fromkeys(state for state, _ in table))
    edges = [(state, why.replace("_", " "), target) for (state, why), target in table.items()]
    return machine(f"States of {name}", [(state, docs[state]) for state in states], edges)


def translation() -> Drawing:
    """002 5.3.3."""
    d = Drawing("How a queue pair's number becomes an address in host memory", 600)
    d.box(8, 8, 584, 34, "QPN, shifted left by 8 (a QPC has 256 bytes)", "sw")
    d.box(8, 76, 190, 40, "bits 21:12", "hw", "which page")
    d.box(402, 76, 190, 40, "bits 11:0", "hw", "where in the page")
    d.arrow([(103, 42), (103, 76)])
    d.arrow([(497, 42), (497, 76)])
    d.box(8, 150, 260, 58, "qpctxmdata: 1,024 entries", "mem", "52-bit page address, valid bit")
    d.arrow([(103, 116), (103, 150)])
    d.box(8, 244, 584, 34, "physical address: page address · 4096 + place in the page", "mem")
    d.arrow([(103, 208), (103, 244)], "valid", (109, 230), "start")
    d.arrow([(497, 116), (497, 244)])
    return d


# ------------------------------------------------------------------------------------------- Coyote


def coyote_stack() -> Drawing:
    """003."""
    d = Drawing("Coyote's RoCEv2 stack between the network, host memory and the shell")
    d.box(8, 8, 130, 50, "host software", "sw", "exchange over TCP")
    d.box(200, 8, 260, 50, "shell and user logic", "sw")
    d.frame(150, 92, 360, 228, "roce_stack")
    d.box(168, 118, 150, 48, "flow control", "hw", "RDMA commands, ACKs")
    d.box(340, 118, 150, 48, "QP state", "hw", "PSNs, keys, peers")
    d.arrow([(243, 58), (243, 118)], "s_rdma_sq", (237, 84), "end")
    d.arrow([(290, 118), (290, 58)], "m_rdma_ack", (296, 74), "start")
    d.arrow([(138, 33), (152, 33), (152, 78), (415, 78), (415, 118)], "qp, qp_conn", (440, 74), "start")
    d.box(168, 192, 322, 46, "roce_v2_ip", "hw", "InfiniBand, UDP and IPv4 headers, one module each")
    d.arrow([(243, 166), (243, 192)], both=True)
    d.arrow([(415, 166), (415, 192)], both=True)
    d.box(168, 264, 322, 40, "ICRC", "hw")
    d.arrow([(329, 238), (329, 264)], both=True)
    d.box(536, 118, 96, 186, "host memory", "mem", "by the QDMA core: rd_req, wr_req, data")
    d.arrow([(490, 215), (536, 215)], both=True)
    d.box(168, 346, 322, 40, "network data path, 512 bits", "net", "Ethernet is off before")
    d.arrow([(240, 346), (240, 304)], "s_axis_rx", (234, 338), "end")
    d.arrow([(420, 304), (420, 346)], "m_axis_tx", (426, 338), "start")
    return d


def coyote_write() -> Drawing:
    """003, the WRITE flow."""
    host, stack, net, memory = "remote node's NIC", "RDMA stack", "shell", "host memory"
    return sequence(
        "RDMA WRITEs between a node with a card and a node with Coyote, both ways",
        [(host, "net"), (stack, "hw"), (net, "sw"), (memory, "mem")],
        [
            "Before: both hosts exchange QP numbers, PSNs, keys and addresses over TCP",
            (net, stack, "qp_interface, qp_conn_interface"),
            "The remote node writes here",
            (host, stack, "WRITE first … last"),
            (stack, net, "m_rdma_wr_req, then the data"),
            (net, memory, "DMA write"),
            (stack, host, "ACK"),
            "This node writes there",
            (net, stack, "s_rdma_sq: WRITE"),
            (stack, net, "m_rdma_rd_req"),
            (memory, net, "DMA read"),
            (net, stack, "payload"),
            (stack, host, "WRITE first … last"),
            (host, stack, "ACK"),
            (stack, net, "m_rdma_ack"),
        ],
        560,
    )


# ------------------------------------------------------------------------------------ UniVista's engine


def univista_blocks() -> Drawing:
    """004 7.3, 7.6."""
    d = Drawing("The modules of the UniVista RDMA engine and what passes between them")
    d.box(8, 8, 190, 50, "processor", "sw", "registers by AXI-Lite: sq_head")
    d.box(8, 96, 190, 60, "QP manager", "hw", "whose turn, retransmission, faults")
    d.arrow([(98, 58), (98, 96)], "configuration", (104, 82), "start")
    d.box(8, 200, 190, 66, "WQE process unit", "hw", "headers, DMA reads, packets")
    d.arrow([(98, 156), (98, 200)], "WQE, CNP tag", (104, 182), "start")
    d.box(420, 8, 212, 56, "DDR memory", "mem", "WQEs, payload, completions")
    d.arrow([(198, 210), (226, 210), (226, 30), (420, 30)], "WQE and payload reads", (323, 26))
    d.box(260, 96, 136, 70, "MR table", "hw", "R_Key to PD, range, physical address")
    d.box(430, 200, 202, 66, "RX packet process unit", "hw", "ICRC, RC_CHK, RDMA or not")
    d.arrow([(530, 200), (530, 64)], "payload", (524, 130), "end")
    d.arrow([(460, 200), (460, 131), (396, 131)], "R_Key?", (428, 124), both=True)
    d.arrow([(430, 250), (198, 250)], "ACK to send", (314, 244))
    d.box(260, 300, 150, 66, "response unit", "hw", "outstanding slots, retry, completions")
    d.arrow([(500, 266), (500, 320), (410, 320)], "ACK, NAK", (455, 314))
    d.arrow([(410, 350), (560, 350), (560, 282), (638, 282), (638, 36), (632, 36)], "completions", (484, 364))
    d.arrow([(260, 333), (240, 333), (240, 126), (198, 126)], "retry", (234, 346), "end")
    d.box(8, 400, 624, 34, "Ethernet MAC, 512 bits at 200G, 1024 at 400G", "net")
    d.arrow([(98, 266), (98, 400)], "TX", (104, 384), "start")
    d.arrow([(600, 400), (600, 266)], "RX", (594, 384), "end")
    return d


def rc_chk() -> Drawing:
    """004 7.3, in the order in which rnic and the standard check."""
    d = Drawing("The checks on a received RC packet, in the order in which rnic makes them", 600)
    rows = (
        ("ICRC and length", "drop"),
        ("P_Key", "drop"),
        ("destination QP enabled, above 1", "drop"),
        ("PSN is the expected one", "repeated: answer again; gap: NAK, sequence error"),
        ("opcode, and its place in the message", "fatal: invalid request"),
        ("a receive is posted (SEND)", "RNR NAK"),
        ("length: PMTU, receive buffer", "fatal: invalid request"),
        ("R_Key, PD, range (WRITE)", "NAK, remote access error"),
        ("memory took the bytes", "fatal: bus error"),
        ("CQ has room", "fatal: CQ overflow"),
    )
    y = 8.0
    for check, answer in rows:
        d.box(8, y, 264, 30, check)
        d.arrow([(272, y + 15), (300, y + 15)])
        d.text(306, y + 19, answer, "start", 11)
        d.arrow([(140, y + 30), (140, y + 44)])
        y += 44
    d.box(8, y, 264, 40, "payload stored, PSN moves on", "mem", "ACK, at once if asked for")
    return d


def cnp() -> Drawing:
    """004 7.4."""
    d = Drawing("The outstanding limit of a queue pair after a congestion notification, over time", 600)
    d.arrow([(60, 180), (60, 20)], "outstanding", (66, 18), "start")
    d.arrow([(60, 180), (590, 180)])
    d.text(585, 198, "time", "end", 11)
    for limit, y in ((16, 60), (8, 120)):
        d.text(52, y + 4, str(limit), "end")
    d.parts.append('<path class="line" stroke-width="3" d="M60 60 H220 V120 H440 V60 H580"/>')
    d.parts.append('<path class="line dash" d="M220 120 V180 M440 60 V180"/>')
    d.text(220, 198, "CNP: interrupt, timer starts", size=11)
    d.text(440, 198, "CNP_TIMER_THRD", size=11)
    return d


def paxi_bridge() -> Drawing:
    """004 7.8."""
    d = Drawing("PAXI: an AXI master's transactions become RDMA on another machine's memory")
    d.box(8, 30, 110, 60, "AXI master", "sw", "Python, cocotb, gateware")
    d.box(196, 30, 170, 60, "bridge", "hw", "slots; splits at 4 KB, PMTU and window")
    d.arrow([(118, 46), (196, 46)], "AW, W, AR", (157, 40))
    d.arrow([(196, 74), (118, 74)], "B, R", (157, 88))
    d.box(446, 30, 186, 60, "NIC of the target", "hw", "key, rights, range of the region")
    d.arrow([(366, 46), (446, 46)], "WRITE,\nREAD", (406, 26))
    d.arrow([(446, 74), (366, 74)], "ACK, data", (406, 90))
    d.box(446, 140, 186, 40, "memory", "mem")
    d.arrow([(539, 90), (539, 140)], both=True)
    d.box(196, 140, 170, 40, "register block", "hw", "4 KB")
    d.arrow([(281, 90), (281, 140)], both=True)
    d.text(406, 124, "RoCEv2 over UDP; exchange over TCP", size=11, cls="say")
    return d


PICTURES: dict[str, Callable[[], Drawing]] = {
    "engine-blocks": engine_blocks,
    "engine-rings": rings,
    "engine-movers": movers,
    "engine-lifecycle": lifecycle,
    "engine-controller": controller,
    "engine-tx-streamer": tx_streamer,
    "engine-inserter": inserter,
    "engine-rx-parser": rx_parser,
    "engine-rx-streamer": rx_machines,
    "engine-command-master": command_master,
    "engine-descriptor": documented_descriptor,
    "engine-completion": lambda: layout_picture(CQ_ENTRY),
    "engine-header": lambda: layout_picture(ENGINE_HEADER),
    "engine-dm-command": lambda: layout_picture(regs.DM_COMMAND),
    "ctxmgt-blocks": ctxmgt_blocks,
    "ctxmgt-translation": translation,
    **{f"ctxmgt-{name.replace('_', '-')}": partial(ctxmgt_machine, name) for name in machines.MACHINES},
    "coyote-stack": coyote_stack,
    "coyote-write": coyote_write,
    "coyote-sq": lambda: layout_picture(coyote.RDMA_SQ),
    "univista-blocks": univista_blocks,
    "univista-rc-chk": rc_chk,
    "univista-cnp": cnp,
    "paxi-bridge": paxi_bridge,
}


def pictures() -> dict[str, str]:
    """Return each picture by file name."""
    return {f"{name}.svg": draw().svg() for name, draw in PICTURES.items()}


def main() -> None:
    """Write all."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "documents"
    target.mkdir(parents=True, exist_ok=True)
    for name, text in pictures().items():
        (target / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
