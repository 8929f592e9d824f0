"""The rules of the transport: where each is written, what it says, and which tests hold it.

Sections of the InfiniBand Architecture Specification, volume 1 ("IBA"), are given by number where a public text
confirms the number, else by chapter. "004" is the RDMA engine's document, "design" this project's own.
"""

from __future__ import annotations

from typing import NamedTuple

SCRIPTS = "tests/scripts"


class Rule(NamedTuple):
    """``tests`` are ``file::test``, below ``tests/scripts`` where no folder is named."""

    source: str
    rule: str
    tests: tuple[str, ...]


def _rule(source: str, rule: str, *tests: str) -> Rule:
    return Rule(source, rule, tuple(test if "/" in test else f"{SCRIPTS}/{test}" for test in tests))


REQ, REC, READ, RSP = "test_requester.py", "test_recovery.py", "test_reads.py", "test_responder.py"
CPL, BST, FAR, HST = "test_completions.py", "test_burst.py", "test_far_memory.py", "test_hostile.py"
NIC, MOD, WALK = "tests/unit/device/test_nic.py", "tests/unit/context/test_modify.py", "tests/verbs/test_walk.py"
ICRC, QUEUES, STATES = "tests/unit/device/test_icrc.py", "tests/verbs/test_queues.py", "tests/verbs/test_states.py"
MATRIX = "tests/netsim/test_matrix.py"

RULES: tuple[Rule, ...] = (
    # ------------------------------------------------------------------------------- requests
    _rule("IBA ch. 9", "A message is FIRST, MIDDLE … LAST, or ONLY; each packet has the next PSN",
          f"{REQ}::test_segmentation", f"{REQ}::test_psn_wraps", f"{REQ}::test_ud_sends_one_packet"),
    _rule("IBA ch. 9", "A message of no bytes takes one PSN, and needs no key",
          f"{REQ}::test_zero_length_takes_one_psn", f"{RSP}::test_zero_length_needs_no_key"),
    _rule("IBA ch. 9", "The solicited bit is on the last packet", f"{REQ}::test_solicited_goes_on_the_last_packet"),
    _rule("design", "A window of packets and of bytes bounds what is outstanding",
          f"{REQ}::test_window_bounds_what_is_outstanding", f"{REQ}::test_window_bounds_bytes_as_well",
          f"{REQ}::test_bursts_are_long_only_where_the_peer_agreed"),
    _rule("IBA ch. 9", "Requests ask for an ACK at least every so often; UC never asks",
          f"{REQ}::test_ack_is_asked_for_regularly", f"{REQ}::test_uc_never_asks_for_an_ack"),
    _rule("001, IBA 10.6.3", "Payloads come from one buffer, a list or the descriptor itself",
          f"{REQ}::test_inline_and_scatter_lists", f"{FAR}::test_lists_with_bytes_on_both_sides_of_a_packet",
          f"{FAR}::test_large_and_padded_frames"),
    _rule("design", "Memory of another process serves as well, and may vanish",
          f"{FAR}::test_send_lists_and_inline", f"{FAR}::test_receive_into_it", f"{FAR}::test_send_from_lost_memory",
          f"{FAR}::test_ud_from_lost_memory", f"{FAR}::test_the_peer_is_told"),
    _rule("IBA ch. 10", "A fenced request waits for the READs and atomics before it",
          f"{READ}::test_fence", f"{READ}::test_fenced_local_request_waits_and_completes"),
    _rule("IBA ch. 9", "No more READs and atomics are outstanding than both ends agreed on",
          f"{READ}::test_max_rd_atomic", f"{REQ}::test_read_without_max_rd_atomic", f"{RSP}::test_too_many_reads"),
    # ------------------------------------------------------------------------------ responses
    _rule("IBA 9.7.5.1.2", "An ACK covers all requests before it; responders may leave ACKs out",
          f"{REQ}::test_ack_is_cumulative", f"{RSP}::test_ack_coalescing",
          f"{RSP}::test_write_is_stored_and_acknowledged", f"{RSP}::test_no_ack_where_none_is_asked_for"),
    _rule("IBA 9.7.6", "Responses come in order: what a later one passes over was lost (implied NAK)",
          f"{READ}::test_implied_nak_of_a_lost_response", f"{READ}::test_a_response_acknowledges_what_was_before_it",
          f"{READ}::test_acks_behind_a_rewound_read_do_not_complete_it"),
    _rule("IBA 9.7.6", "Responses that nobody waits for are dropped",
          f"{READ}::test_a_response_to_what_asks_for_none_is_stale", f"{REC}::test_reserved_syndromes_are_dropped"),
    _rule("IBA 9.4.4", "READ responses go where the request says; a READ may be repeated from the middle",
          f"{READ}::test_read_places_responses",
          f"{READ}::test_long_read_goes_in_pieces_and_is_repeated_from_the_middle",
          f"{READ}::test_late_answers_to_the_first_request_serve_after_a_retry"),
    _rule("IBA ch. 9", "A response of the wrong kind, size or order fails the queue pair",
          f"{READ}::test_wrong_response_opcode", f"{READ}::test_an_atomic_answer_to_a_read_is_bad"),
    _rule("IBA ch. 9", "Atomics return the value from before", f"{READ}::test_atomic",
          f"{RSP}::test_read_and_atomics", f"{RSP}::test_the_last_word_of_a_region_can_be_changed"),
    _rule("IBA ch. 10", "Unsignaled requests complete with the next signaled one", f"{REQ}::test_unsignaled"),
    _rule("design", "Completion entries say what, how much, from whom", f"{CPL}::test_sends", f"{CPL}::test_receives",
          f"{CPL}::test_a_datagram_names_its_sender", f"{CPL}::test_unreliable_sends_complete_when_they_are_sent",
          f"{RSP}::test_receive_completion"),
    # ------------------------------------------------------------------------------- recovery
    _rule("004 7.3, 7.7", "Go-Back-N from any packet of a message",
          f"{REC}::test_sequence_nak_goes_back_into_the_message", f"{MATRIX}::test_whole_cell"),
    _rule("IBA 9.7.6.1.3", "Local ACK timeout: 4.096 us x 2^n; 0 is never; the same for each retry",
          f"{REC}::test_local_ack_timeout", f"{REC}::test_timeout_zero_is_never",
          f"{REC}::test_an_ack_starts_the_timer_anew"),
    _rule("IBA 9.9.2", "The retry count ends it; progress restores the count", f"{REC}::test_retry_count",
          f"{REC}::test_progress_restores_the_retry_count"),
    _rule("IBA 9.7.5.2.8", "RNR NAK: wait for its time, as often as the RNR retry count says, 7 for ever",
          f"{REC}::test_rnr_limit", f"{REC}::test_rnr_timer_and_forever", f"{REC}::test_rnr_inside_a_sequence_retry",
          f"{RSP}::test_rnr"),
    _rule("IBA 9.9.2", "Every other NAK fails the request with the status it names", f"{REC}::test_fatal_naks",
          f"{CPL}::test_a_fatal_nak_is_the_vendor_error"),
    _rule("IBA 9.7.5.2", "One sequence NAK for a gap, then silence until the gap is closed",
          f"{RSP}::test_one_sequence_nak_a_gap", f"{BST}::test_a_run_behind_a_naked_gap_is_dropped_at_once"),
    _rule("IBA C9-105", "Duplicate SENDs and WRITEs are acknowledged and not carried out",
          f"{RSP}::test_duplicate_send_and_write"),
    _rule("IBA ch. 9", "Duplicate READs are answered again, duplicate atomics from the saved result",
          f"{RSP}::test_duplicate_read_whole_and_from_the_middle",
          f"{RSP}::test_duplicate_atomic_is_replayed_not_repeated",
          f"{RSP}::test_the_second_of_two_saved_requests_is_found"),
    _rule("design", "What peers repeat costs a bounded amount, and no healthy queue pair",
          f"{RSP}::test_replies_are_bounded", f"{RSP}::test_repeated_reads_are_bounded",
          f"{RSP}::test_replies_keep_to_the_budget",
          f"{RSP}::test_answers_to_duplicates_do_not_count_against_the_limit",
          f"{RSP}::test_a_repeated_read_leaves_room_for_new_ones",
          f"{RSP}::test_a_stale_read_whose_memory_is_gone_harms_nobody"),
    _rule("design", "A loss halves the packets in flight, acknowledgements open the window again",
          f"{REC}::test_a_loss_halves_what_is_in_flight", f"{REC}::test_an_rnr_nak_is_no_loss",
          f"{REC}::test_the_window_opens_as_far_as_it_was_and_no_further",
          f"{REC}::test_a_narrow_window_asks_for_acks_more_often"),
    _rule("design", "Tail-loss probe: the oldest and the last packet again after two round trips, at least 1 ms",
          f"{REC}::test_probe_repeats_both_ends_and_backs_off", f"{REC}::test_the_probe_waits_two_round_trips",
          f"{REC}::test_a_repeated_packet_measures_no_round_trip", f"{REC}::test_one_round_trip_is_measured_at_a_time",
          f"{REC}::test_a_round_trip_ends_with_the_last_packet_of_what_was_sent",
          f"{REC}::test_a_lost_nak_costs_one_probe",
          f"{REC}::test_an_answered_probe_is_followed_by_another_at_once", f"{REC}::test_probe_off",
          f"{REC}::test_no_probe_while_a_read_is_outstanding"),
    _rule("design", "A READ response that is lost again is asked for again, without the local ACK timeout",
          f"{READ}::test_a_response_lost_twice_is_asked_for_again",
          f"{READ}::test_the_wait_for_a_lost_response_ends_with_any_progress",
          f"{READ}::test_a_response_lost_for_ever_uses_up_the_retries"),
    _rule("IBA 9.7.7.2", "End-to-end credits: without one, one packet asks", f"{REQ}::test_credits",
          f"{REQ}::test_one_credit_is_good_for_one_message", f"{REQ}::test_an_unsolicited_ack_grants_credits",
          f"{REQ}::test_read_responses_carry_no_credits", f"{RSP}::test_credits_count_the_entry_of_an_open_message"),
    # ------------------------------------------------------------------------- receive checks
    _rule("004 7.3 RX 1", "ICRC and length before all else; what fails is dropped and counted",
          f"{ICRC}::test_any_flipped_bit_is_seen", f"{NIC}::test_short_and_odd_bursts", f"{NIC}::test_drops"),
    _rule("004 7.3 RX 2", "What is not RDMA is nobody's", f"{NIC}::test_what_no_parser_takes"),
    _rule("004 7.3 DestQP", "The queue pair exists and may receive", f"{NIC}::test_drops",
          f"{NIC}::test_queue_pair_that_cannot_receive", f"{HST}::test_every_packet_in_every_state"),
    _rule("004 7.3 PKEY, IBA C9-43", "Same partition, and not two limited members",
          f"{NIC}::test_drops", f"{NIC}::test_limited_members_hear_full_ones"),
    _rule("004 7.3 PSN", "Expected, duplicate, or beyond a gap; then the checks that follow",
          f"{RSP}::test_one_sequence_nak_a_gap", f"{RSP}::test_duplicate_send_and_write"),
    _rule("IBA ch. 9", "FIRST, MIDDLE, LAST and ONLY in a legal order, else invalid request", f"{RSP}::test_sequence"),
    _rule("004 7.3 OPCODE", "Operations that the queue pair allows; aligned atomics; else invalid request",
          f"{RSP}::test_access_flags_of_the_qp", f"{RSP}::test_refusals"),
    _rule("004 7.3 RQ almost full", "No receive entry: RNR NAK", f"{RSP}::test_rnr"),
    _rule("004 7.3 Length, IBA C9-92", "Full packets but at the end, within the entry, at most 2 GiB (C9-94)",
          f"{RSP}::test_refusals", f"{RSP}::test_send_too_long", f"{RSP}::test_no_message_is_longer_than_2_gib"),
    _rule("004 7.3 WRITE MRT, MR table", "R_Key tag, PD, range and rights, else remote access error",
          f"{RSP}::test_refusals", f"{RSP}::test_rights_and_pd", f"{RSP}::test_receive_entry_with_a_bad_key"),
    _rule("IBA 10.6.7", "A region or window that changes under an open message stops it",
          f"{RSP}::test_region_vanishes_under_an_open_write_or_read",
          f"{RSP}::test_window_bound_elsewhere_under_an_open_write",
          f"{REQ}::test_region_vanishes_under_a_message", f"{REQ}::test_region_vanishes_under_a_read"),
    _rule("IBA 10.6.7", "SEND with invalidate and local invalidate unbind a window of the queue pair's own",
          f"{CPL}::test_a_send_with_invalidate_names_the_key", f"{RSP}::test_send_with_invalidate_of_nothing_fails",
          f"{REQ}::test_bind_refused", f"{QUEUES}::test_a_type_2_window_is_bound_and_invalidated_by_work_requests",
          f"{QUEUES}::test_a_peer_invalidates_a_type_2_window"),
    _rule("004 7.3 CQ", "A CQ that overflows fails with its queue pairs",
          f"{QUEUES}::test_an_overrun_cq_fails_with_its_queue_pairs"),
    _rule("004 7.3 RX Push Bresp", "Memory that cannot be written is a local fault, told to the peer",
          f"{FAR}::test_the_peer_is_told"),
    _rule("004 7.3 success 1, 2", "SEND to the receive queue, WRITE to the region, an ACK where one is asked for",
          f"{RSP}::test_write_is_stored_and_acknowledged", f"{RSP}::test_receive_completion"),
    _rule("004 7.3 success 3 to 5", "ACK frees, NAK repeats, a fatal NAK stops the queue pair",
          f"{REQ}::test_ack_is_cumulative", f"{REC}::test_sequence_nak_goes_back_into_the_message",
          f"{REC}::test_fatal_naks"),
    _rule("004 7.3 QP manager 1 to 4", "Doorbells start a queue pair, which has turns until its ring is empty",
          f"{NIC}::test_turns_are_fair_and_bounded", f"{NIC}::test_rings_without_news_cost_no_turn"),
    _rule("004 7.3 QP manager 5", "An invalid descriptor fails its own queue pair alone, behind what was before it",
          f"{REQ}::test_local_errors_come_in_order", f"{NIC}::test_tail_beyond_the_ring_fails_that_queue_pair_alone",
          f"{CPL}::test_a_descriptor_that_cannot_be_read"),
    # --------------------------------------------------------------------- unreliable services
    _rule("IBA 9.8", "UC: a gap drops the message and keeps its receive entry; the next message is taken",
          f"{RSP}::test_uc_gap_drops_the_message_and_keeps_its_receive_entry", f"{RSP}::test_uc_sequence",
          f"{RSP}::test_uc_forgets_the_open_message_at_a_gap", f"{RSP}::test_uc_goes_on_behind_what_it_refused"),
    _rule("IBA 9.8", "UC: no answers; without a receive entry or rights the message is dropped",
          f"{RSP}::test_uc_without_receive_or_rights", f"{RSP}::test_uc_receive_entry_with_a_bad_key_fails_the_qp"),
    _rule("IBA 9.8, 3.5.3", "UD: Q_Key, header space, source queue pair; errors fail the queue pair without an event",
          f"{RSP}::test_ud_receive", f"{RSP}::test_ud_receive_errors", f"{REQ}::test_ud_sends_one_packet"),
    _rule("IBA ch. 10", "UD: multicast reaches every member", f"{NIC}::test_multicast_reaches_every_member",
          f"{NIC}::test_multicast_drops"),
    # --------------------------------------------------------------------- states and failures
    _rule("IBA 10.3.1", "Queue pair states: what the table does not list is refused and changes nothing",
          f"{MOD}::test_every_state_and_attribute", f"{MOD}::test_command_for_each_pair_of_states",
          f"{STATES}::test_missing_and_extra_attributes_change_nothing",
          f"{STATES}::test_every_state_towards_every_other"),
    _rule("IBA 10.3.1", "SQD: what was begun completes, then one event", f"{REQ}::test_sqd_drains_once",
          f"{REQ}::test_sqd_of_an_idle_queue_drains_at_once"),
    _rule("IBA 10.3.1", "ERR: all work is flushed, in order; what software stops says nothing more",
          f"{REQ}::test_err_flushes_in_order", f"{CPL}::test_flushes",
          f"{CPL}::test_flushing_descriptors_that_cannot_be_read",
          f"{CPL}::test_a_refused_request_takes_its_receive_entry_along",
          f"{RSP}::test_software_stops_it_and_nothing_more_leaves"),
    _rule("IBA 10.3.1", "SQE: unreliable services fail their send queue alone",
          f"{REQ}::test_sqe_of_unreliable_services"),
    _rule("IBA 10.3.1", "RESET forgets", f"{REQ}::test_reset_forgets", f"{CPL}::test_reset_forgets_both_halves",
          f"{CPL}::test_a_reset_queue_pair_starts_at_its_new_numbers"),
    _rule("IBA ch. 11", "Events: communication established, last WQE of an SRQ, SRQ limit",
          f"{RSP}::test_comm_est_and_replies_in_rtr", f"{RSP}::test_last_wqe_event_of_an_srq_comes_once",
          f"{QUEUES}::test_the_limit_event_comes_once"),
    _rule("004 7.7", "One queue pair's error disturbs no other", f"{NIC}::test_access_error_reaches_the_owner_only",
          f"{STATES}::test_one_queue_pairs_error_disturbs_no_other", f"{WALK}::test_walk"),
    # --------------------------------------------------------------------------------- hostile
    _rule("design", "Nothing that the wire can send raises, grows without bound or leaves its region",
          f"{HST}::test_every_packet_in_every_state", f"{HST}::test_hostile_packets",
          f"{HST}::test_random_bytes_behind_an_opcode", f"{NIC}::test_random_bytes_and_mangled_packets"),
    _rule("design", "Bursts do what their packets would one by one",
          f"{BST}::test_segment_run_equals_packets", f"{BST}::test_receive_burst_equals_packet_by_packet",
          f"{BST}::test_receive_burst_leaves_strangers_to_the_full_path"),
    _rule("design", "An idle queue pair is small", f"{BST}::test_an_idle_queue_pair_is_small"),
    _rule("004 7.4", "A CNP is counted; it slows nothing down yet", f"{NIC}::test_congestion_notification"),
)  # fmt: skip
