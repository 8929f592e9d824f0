"""Rows of 002 and 003 that no table of the code holds: functions and interfaces of modules, and where each is tested.

What the code has as a table (requests, layouts, key fields, machines) is not repeated here: see ``gen_ctxmgt.py``.
"""

from __future__ import annotations

from typing import NamedTuple

MSG, CTX = "tests/unit/context/test_messages.py", "tests/unit/context/test_ctxmgt.py"
LENT = "tests/verbs/test_lent_pages.py"
EVICT = "tests/unit/device/test_eviction.py"
ADMIT = "tests/unit/device/test_admission.py"
STREAM, DEVICE = "tests/unit/context/test_streams.py", "tests/unit/device/test_context_memory.py"
LAYOUT, LOOK = "tests/unit/test_layout_tables.py", "tests/cli/test_inspect.py"
MMU, THREAD = "tests/unit/coyote/test_mmu.py", "tests/unit/coyote/test_thread.py"
TCP, IBVQ = "tests/unit/coyote/test_tcp.py", "tests/unit/coyote/test_ibvq.py"
RINGS, FRONT, BEATS = (
    "tests/unit/rings/test_coyote.py",
    "tests/unit/coyote/test_stack.py",
    "tests/unit/link/test_beats.py",
)


class Row(NamedTuple):
    """One row: section of the document, what it says, where it is (below ``src/rnic``), its tests (``file::test``)."""

    section: str
    text: str
    where: str
    tests: tuple[str, ...]


def _row(section: str, text: str, where: str, *tests: str) -> Row:
    return Row(section, text, where, tests)


_PARSER, _CONTROL, _DATA = "context/ceu_parser.py", "context/request_controller.py", "context/ctxmdata.py"
_KEY, _READ, _WRITE, _MGR = "context/key_qpc_data.py", "context/readctx.py", "context/writectx.py", "context/ctxmgt.py"
_TURN, _HELD = f"{CTX}::test_ceu_goes_first_and_engines_in_turn", f"{CTX}::test_selected_channel_holds_until_received"
_DRAWN, _READY = f"{CTX}::test_drawn_responses", f"{FRONT}::test_connecting_brings_both_to_ready_send"
_MODULES = "doorbell processing, WQE parser, requester trans control, requester recv control, execution engine"

INTERFACES: tuple[Row, ...] = (
    # ------------------------------------------------------------------------------------------- 3
    _row("3.1", "AXIS slave: header in tuser, 128 bits; payload in tdata", _MGR, f"{MSG}::test_ceu_request"),
    _row("3.1", "AXIS master: the answer to RD_QP_ALL alone", _READ, f"{MSG}::test_ceu_request"),
    _row("3.1", "MAP_ICM payload: chunks of 64 bits virtual and 64 bits page address with the page count, at most 64",
         _DATA, f"{MSG}::test_64_chunks_and_no_more", f"{MSG}::test_vector"),
    _row("3.1", "WR_EQ_FUNC: bit 31 of the address takes the event function away; mask in the low 32 bits of the data",
         _KEY, f"{CTX}::test_the_event_mask_is_merged_in_memory_as_in_the_cache",
         f"{CTX}::test_the_event_function_of_an_eq_never_written_is_refused",
         f"{CTX}::test_bit_31_of_an_address_counts", f"{DEVICE}::test_a_disabled_eq_counts_and_says_nothing"),
    _row("3.2", "a request is answered by its own 128 bits on the response FIFO, with the payload beside it", _KEY,
         f"{MSG}::test_engine_request"),
    _row("3.2", "InfiniBand mode: flag 1, SLID and DLID for the MAC addresses, RLID; codecs alone, the wire is RoCE",
         _KEY, f"{CTX}::test_infiniband_mode_of_frame_encap"),
    _row("3.3", "dma_cm_rd_req: request in tuser", _READ, f"{MSG}::test_read_request"),
    _row("3.3", "dma_cm_rd_rsp: context in tdata", _READ, f"{CTX}::test_dma_interface"),
    _row("3.3", "dma_cm_wr_req: request in tuser", _WRITE, f"{MSG}::test_write_request"),
    _row("3.3", "dma_cm_wr_req: data in tdata, 256 bits a beat", _WRITE, f"{MSG}::test_beats_of_a_context"),
    # ------------------------------------------------------------------------------------------- 4
    _row("4.1", "whole contexts in host memory, what the data path needs in the cache", _MGR,
         f"{DEVICE}::test_contexts_lie_in_the_pages_of_the_driver",
         f"{LENT}::test_contexts_are_in_the_programs_own_memory",
         f"{DEVICE}::test_an_edited_cache_changes_the_next_packet"),
    _row("4.1", "contexts that the data path cannot run on are refused, however they come", "device/admission.py",
         f"{ADMIT}::test_a_bad_queue_pair_context_is_refused", f"{ADMIT}::test_random_contexts_raise_nothing",
         f"{ADMIT}::test_event_queue_of_a_cq_and_protection_domains"),
    _row("4.2.1", "the key data of every context on the NIC, and nothing but it is what runs", "context/cache.py",
         f"{EVICT}::test_a_queue_pair_stalls_until_it_is_loaded", f"{EVICT}::test_a_load_brings_equal_bytes_back",
         f"{EVICT}::test_a_context_of_the_documented_table_alone_works"),
    _row("4.2.1", "82 bytes of key data for each queue pair", "context/messages.py",
         f"{CTX}::test_82_bytes_of_key_data"),
    _row("4.2.2", "13 bytes of key data for each CQ", _KEY, _DRAWN),
    _row("4.2.3", "11 bytes of key data for each EQ", _KEY, _DRAWN),
    _row("4.3", "no queue pair reaches RTS but through ceu_parser", _MGR,
         f"{DEVICE}::test_every_transition_is_a_request_of_the_ceu",
         f"{DEVICE}::test_no_way_to_rts_past_the_context_manager"),
    _row("4.4", "channels of the six modules, as a trace shows them", "cli/trace.py",
         f"{LOOK}::test_trace_has_every_stage_in_its_lane"),
    # ------------------------------------------------------------------------------------------- 5.1
    _row("5.1.1", "reads go to ctxmdata; writes and invalidations there and, with the data, to key_qpc_data", _PARSER,
         f"{MSG}::test_ceu_request", f"{STREAM}::test_cache_and_memory_agree_after_a_flush"),
    _row("5.1.1", "invalidating writes zeros", _WRITE, f"{CTX}::test_invalidating_writes_zeros"),
    _row("5.1.2", "to request controller: req fifo.empty", _PARSER, _TURN),
    _row("5.1.2", "to key qpc data: req fifo, 35 bits {type 4, opcode 4, source 3, QPN 24}", _PARSER,
         f"{MSG}::test_parser_request"),
    _row("5.1.2", "to ctxmdata: req fifo, 128 bits as in 3.1", _PARSER, f"{MSG}::test_ceu_request"),
    _row("5.1.2", "to ctxmdata: mdata fifo, 256 bits", _PARSER, f"{MSG}::test_ceu_request"),
    _row("5.1.2", "to writectx: ctxdata fifo, 256 bits", _PARSER, f"{MSG}::test_beats_of_a_context"),
    _row("5.1.2", "to key qpc data: data fifo, 384 bits", _PARSER, f"{MSG}::test_parser_request"),
    _row("5.1.2", "from CEU: axis, tuser 128, tdata 256", _PARSER, f"{MSG}::test_ceu_request"),
    _row("5.1.3", "QPC six beats, CQC two, EQC two; 256 bytes, 64 and 64 a slot", _WRITE,
         f"{MSG}::test_beats_of_a_context"),
    # ------------------------------------------------------------------------------------------- 5.2
    _row("5.2.1", "the CEU first, the engine's channels in turn", _CONTROL,
         _TURN,
         f"{CTX}::test_no_channel_starves_and_the_ceu_waits_for_one_request",
         f"{MSG}::test_a_command_takes_few_rounds_under_full_load"),
    _row("5.2.2", "ceu_parser: req fifo empty, 1 bit in", _CONTROL, _TURN),
    _row("5.2.2", f"{_MODULES}, frame encap: cmd fifo.empty, 1 bit in each", _CONTROL,
         _TURN),
    _row("5.2.2", "selected_channel, 8 bits out", _CONTROL, _HELD),
    _row("5.2.2", "receive_req, 1 bit in: clears Valid", _CONTROL, _HELD),
    # ------------------------------------------------------------------------------------------- 5.3
    _row("5.3.1", "ceu_parser's requests before key_qpc_data's", _DATA, f"{CTX}::test_dma_interface"),
    _row("5.3.2", "from ceu_parser: req fifo, 128 bits", _DATA, f"{MSG}::test_ceu_request"),
    _row("5.3.2", "from ceu_parser: mdata fifo, 256 bits", _DATA, f"{MSG}::test_ceu_request"),
    _row("5.3.2", "to writectx: req_ctx fifo, 128 bits {type 4, opcode 4, source 3, R 21, data 32, addr 64}", _DATA,
         f"{MSG}::test_write_request"),
    _row("5.3.2", "to readctx: req fifo, 108 bits {addr 64, len 12, QPN 32}", _DATA, f"{MSG}::test_read_request"),
    _row("5.3.2", "from key_qpc_data: req_ctx fifo, 128 bits {type 4, opcode 4, R 24, QPN 32, data 64}", _DATA,
         f"{MSG}::test_write_request"),
    _row("5.3.3", "an entry: page base 52 bits, valid 1", _DATA, f"{MSG}::test_64_chunks_and_no_more"),
    _row("5.3.3.1", "qpctxmdata: 1024 entries; bits 21:12 of the address less qpc_base, or of QPN << 8", _DATA,
         f"{MSG}::test_places_of_the_largest_tables", f"{CTX}::test_pages_are_found_by_the_bits_of_the_number"),
    _row("5.3.3.2", "cqctxmdata: 256 entries; bits 19:12 of the address less cqc_base, or of CQN << 6", _DATA,
         f"{MSG}::test_places_of_the_largest_tables"),
    _row("5.3.3.3", "eqctxmdata: one entry for 32 EQs", _DATA, f"{MSG}::test_places_of_the_largest_tables",
         f"{MSG}::test_event_queues_are_a_parameter"),
    _row("5.3.3", "tables are made, dropped, filled and emptied; bases from WR_ICMMAP_EN", _DATA,
         f"{CTX}::test_tables_reset_and_sizes", f"{DEVICE}::test_pages_wait_for_init_hca_again_after_close_hca"),
    # ------------------------------------------------------------------------------------------- 5.4
    _row("5.4.1", "no response to the writes of RTC, RRC and EE", _KEY, f"{MSG}::test_engine_request"),
    _row("5.4.1", "an engine's write makes a request to ctxmdata, and goes to host memory", _KEY,
         f"{CTX}::test_write_back_touches_only_its_bytes"),
    _row("5.4.1", "WR_QP_NPST on a live queue pair: retries end it, as any loss does", "transport/requester.py",
         f"{ADMIT}::test_retries_end_a_queue_pair_whose_next_psn_was_written",
         f"{ADMIT}::test_a_psn_that_the_peer_has_seen_is_a_duplicate_to_it"),
    _row("5.4.3", "from request controller: selected_channel, 8 bits", _KEY,
         _HELD),
    _row("5.4.3", "to request controller: receive_req", _KEY, _HELD),
    _row("5.4.3", "from ceu_parser: extdata fifo1, 384 bits", _KEY, f"{CTX}::test_82_bytes_of_key_data"),
    _row("5.4.3", "from ceu_parser: extdata fifo2, 384 bits", _KEY, f"{CTX}::test_82_bytes_of_key_data"),
    _row("5.4.3", "from ceu_parser: cmd fifo, 35 bits", _KEY, f"{MSG}::test_parser_request"),
    _row("5.4.3", f"from {_MODULES}, frame encap: cmd fifo, 128 bits", _KEY, f"{MSG}::test_engine_request"),
    _row("5.4.3", f"to {_MODULES}, frame encap: resp fifo, 128 bits", _KEY, f"{MSG}::test_engine_request"),
    _row("5.4.3", "from requester trans control, requester recv control, execution engine: cxt fifo, 128 bits", _KEY,
         f"{MSG}::test_engine_request", f"{CTX}::test_bad_engine_requests"),
    _row("5.4.3", "to doorbell processing: cxt fifo, 256 bits", _KEY, _DRAWN),
    _row("5.4.3", "to WQE parser: cxt fifo, 128 bits", _KEY, _DRAWN),
    _row("5.4.3", "to requester trans control: cxt fifo, 192 bits; 256 as 3.2 says", _KEY, _DRAWN),
    _row("5.4.3", "to requester recv control: cxt fifo, 256 bits", _KEY, f"{CTX}::test_recv_control_response"),
    _row("5.4.3", "to execution engine: cxt fifo, 320 bits", _KEY, f"{CTX}::test_execution_engine_response"),
    _row("5.4.3", "to frame encap: cxt fifo, 256 bits", _KEY, _DRAWN),
    _row("5.4.3", "to ctxmdata: req_ctx fifo, 128 bits", _KEY, f"{MSG}::test_write_request"),
    # ------------------------------------------------------------------------------------- 5.5, 5.6
    _row("5.5.2", "from ctxmdata: req fifo, 108 bits {addr 64, len 12, QPN 32}", _READ, f"{MSG}::test_read_request"),
    _row("5.5.2", "to CEU: axis ceu_rsp, tuser 128, tdata 256", _READ, f"{MSG}::test_ceu_request"),
    _row("5.5.2", "to DMA engine: axis dma_cm_rd_req {0, addr 64, 0, length 12}", _READ, f"{MSG}::test_read_request"),
    _row("5.5.2", "from DMA engine: axis dma_cm_rd_rsp, context data", _READ, f"{CTX}::test_dma_interface"),
    _row("5.5.3", "a queue of pending request metadata {type, opcode, QPN} instead of a machine", _READ,
         f"{MSG}::test_read_request"),
    _row("5.6.2", "from ctxmdata: req_ctx fifo, 128 bits", _WRITE, f"{MSG}::test_write_request"),
    _row("5.6.2", "from ceu_parser: ctxdata fifo, 256 bits", _WRITE, f"{MSG}::test_beats_of_a_context"),
    _row("5.6.2", "to DMA engine: axis dma_cm_wr_req {0, addr 64, 0, length 12}, context data", _WRITE,
         f"{MSG}::test_write_request"),
)  # fmt: skip

COYOTE: tuple[Row, ...] = (
    _row("003", "`s_axis_rx`, `m_axis_tx`: 512-bit beats, IP header first", "link/beats.py",
         f"{BEATS}::test_beats_hold_the_packet",
         f"{BEATS}::test_packets_cross_with_all_that_the_header_says"),
    _row("003", "`qpState`: RESET to ERROR", "rings/coyote.py",
         f"{RINGS}::test_states_are_numbered_in_the_documents_order", f"{FRONT}::test_error_state_flushes",
         f"{FRONT}::test_reset_gives_the_queue_pair_back"),
    _row("003", "`s_axis_qp_interface`: `qpContext`", "coyote/stack.py", _READY,
         f"{FRONT}::test_bad_contexts_change_nothing"),
    _row("003", "`s_axis_qp_conn_interface`: `ifConnReq`", "coyote/stack.py",
         f"{FRONT}::test_the_order_of_the_two_structures_does_not_count",
         f"{FRONT}::test_bad_connections_change_nothing"),
    _row("003", "`s_rdma_sq`: WRITE, READ, SEND", "coyote/stack.py", f"{FRONT}::test_write", f"{FRONT}::test_read",
         f"{FRONT}::test_send_arrives_as_a_stream", f"{FRONT}::test_bad_commands_fail_alone"),
    _row("003", "`s_rdma_sq` exerts back-pressure, and commands are answered in their order", "coyote/pair.py",
         f"{FRONT}::test_s_rdma_sq_exerts_back_pressure", f"{FRONT}::test_a_bad_command_is_answered_in_its_turn",
         f"{FRONT}::test_card_memory_is_bounded"),
    _row("003", "`m_rdma_ack`", "coyote/stack.py", f"{FRONT}::test_write",
         f"{FRONT}::test_without_cmplt_nothing_is_acknowledged"),
    _row("003", "`m_rdma_rd_req`, `s_axis_rdma_rd`", "coyote/stack.py", f"{FRONT}::test_write",
         f"{FRONT}::test_host_0_takes_and_gives_streams"),
    _row("003", "`m_rdma_wr_req`, `m_axis_rdma_wr`", "coyote/stack.py", f"{FRONT}::test_write",
         f"{FRONT}::test_data_of_the_wrong_length_are_an_error"),
    _row("003", "`ctl` marks the last request of a message; incoming WRITEs are signalled so", "coyote/pair.py",
         f"{FRONT}::test_incoming_messages_are_signalled_and_can_be_counted",
         f"{FRONT}::test_signals_are_exact_under_loss"),
    _row("003", "Shared Virtual Memory: TLB, faults, prefetch, invalidation, addresses of others", "coyote/mmu.py",
         f"{MMU}::test_a_tlb_miss_faults_and_the_access_is_repeated",
         f"{MMU}::test_an_address_that_is_not_the_processs_is_refused", f"{MMU}::test_prefetched_pages_do_not_fault",
         f"{MMU}::test_memory_that_goes_away_is_forgotten", f"{THREAD}::test_faults_show_in_the_trace",
         f"{THREAD}::test_the_peer_does_not_reach_other_memory_of_the_process"),
    _row("003", "Network Services, TCP/IP: listen, open, close, notify, read, send", "coyote/tcp.py",
         f"{TCP}::test_echo_to_an_ordinary_client", f"{TCP}::test_opening_to_an_ordinary_server",
         f"{TCP}::test_notifications_of_a_session", f"{TCP}::test_a_shell_that_reads_nothing_stops_the_peer"),
    _row("003", "queue pairs are exchanged by the hosts over TCP: `ibvQ`, R_Key 0", "coyote/ibvq.py",
         f"{IBVQ}::test_golden_bytes", f"{IBVQ}::test_a_verbs_program_of_another_make",
         f"{FRONT}::test_r_key_0_opens_what_the_process_admits"),
    _row("003", "short keys and QPNs by the alias table", "mem/aliases.py",
         f"{RINGS}::test_short_numbers_split_as_requests_name_them", _READY),
)  # fmt: skip
