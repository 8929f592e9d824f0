/* Generated from the tables: run python -m rnic.engine.header. */
#ifndef RNIC_ENGINE_STATE_H
#define RNIC_ENGINE_STATE_H

#include <stdint.h>

#define STATE_LAYOUT_HASH 0x2a1632425097630aull

#define NONE 0xffffffffffffffffull
#define BTH_SEND_FIRST 0x0u
#define BTH_SEND_MIDDLE 0x1u
#define BTH_SEND_LAST 0x2u
#define BTH_SEND_LAST_IMM 0x3u
#define BTH_SEND_ONLY 0x4u
#define BTH_SEND_ONLY_IMM 0x5u
#define BTH_WRITE_FIRST 0x6u
#define BTH_WRITE_MIDDLE 0x7u
#define BTH_WRITE_LAST 0x8u
#define BTH_WRITE_LAST_IMM 0x9u
#define BTH_WRITE_ONLY 0xau
#define BTH_WRITE_ONLY_IMM 0xbu
#define BTH_READ_REQUEST 0xcu
#define BTH_READ_RESPONSE_FIRST 0xdu
#define BTH_READ_RESPONSE_MIDDLE 0xeu
#define BTH_READ_RESPONSE_LAST 0xfu
#define BTH_READ_RESPONSE_ONLY 0x10u
#define BTH_ACKNOWLEDGE 0x11u
#define BTH_ATOMIC_ACKNOWLEDGE 0x12u
#define BTH_COMPARE_SWAP 0x13u
#define BTH_FETCH_ADD 0x14u
#define BTH_SEND_LAST_INV 0x16u
#define BTH_SEND_ONLY_INV 0x17u
#define BTH_FLUSH 0x1cu
#define BTH_ATOMIC_WRITE 0x1du
#define BTH_CNP 0x81u
#define SERVICE_RC 0x0u
#define SERVICE_UC 0x20u
#define SERVICE_UD 0x60u
#define BTH_SERVICE_MASK 0xe0u
#define BTH_OPERATION_MASK 0x1fu
#define WR_SEND 0x4u
#define WR_SEND_IMM 0x5u
#define WR_WRITE 0xau
#define WR_WRITE_IMM 0xbu
#define WR_READ 0xcu
#define WR_CMP_SWAP 0x13u
#define WR_FETCH_ADD 0x14u
#define WR_SEND_INV 0x17u
#define WR_FLUSH 0x1cu
#define WR_ATOMIC_WRITE 0x1du
#define WR_BIND_MW 0xf0u
#define WR_LOCAL_INV 0xf1u
#define WR_NOP 0xffu
#define QP_STATE_RESET 0x0u
#define QP_STATE_INIT 0x1u
#define QP_STATE_RTR 0x2u
#define QP_STATE_RTS 0x3u
#define QP_STATE_SQE 0x4u
#define QP_STATE_SQD 0x5u
#define QP_STATE_ERR 0x6u
#define ST_RC 0x0u
#define ST_UC 0x1u
#define ST_UD 0x3u
#define ST_XRC_INI 0x5u
#define ST_XRC_TGT 0x6u
#define SYN_SUCCESS 0x0u
#define SYN_LOC_LEN_ERR 0x1u
#define SYN_LOC_QP_OP_ERR 0x2u
#define SYN_LOC_PROT_ERR 0x4u
#define SYN_WR_FLUSH_ERR 0x5u
#define SYN_MW_BIND_ERR 0x6u
#define SYN_BAD_RESP_ERR 0x10u
#define SYN_LOC_ACCESS_ERR 0x11u
#define SYN_REM_INV_REQ_ERR 0x12u
#define SYN_REM_ACCESS_ERR 0x13u
#define SYN_REM_OP_ERR 0x14u
#define SYN_RETRY_EXC_ERR 0x15u
#define SYN_RNR_RETRY_EXC_ERR 0x16u
#define SYN_REM_ABORT_ERR 0x22u
#define SYN_ENGINE_SUCCESS 0x0u
#define SYN_ENGINE_LOCAL_ACCESS 0x1u
#define SYN_ENGINE_REMOTE_ACCESS 0x2u
#define SYN_ENGINE_LENGTH_MISMATCH 0x3u
#define SYN_ENGINE_TIMEOUT 0x4u
#define AETH_TYPE_MASK 0x60u
#define AETH_VALUE_MASK 0x1fu
#define AETH_ACK 0x0u
#define AETH_RNR_NAK 0x20u
#define AETH_RESERVED 0x40u
#define AETH_NAK 0x60u
#define CREDITS_INVALID 0x1fu
#define NAK_PSN_SEQUENCE 0x60u
#define NAK_INVALID_REQUEST 0x61u
#define NAK_REMOTE_ACCESS 0x62u
#define NAK_REMOTE_OPERATION 0x63u
#define NAK_INVALID_RD_REQUEST 0x64u
#define RNR_RETRY_FOREVER 0x7u
#define PSN_BITS 0x18u
#define PSN_MASK 0xffffffu
#define PSN_WINDOW 0x7fffffu
#define PSN_FAR 0x1000u
#define ROCE_UDP_PORT 0x12b7u
#define DEFAULT_PKEY 0xffffu
#define MAX_PATH_MTU 0x1000u
#define BTH_BYTES 0xcu
#define ICRC_BYTES 0x4u
#define MAX_TRANSPORT_HEADERS 0x20u
#define MAX_UDP_PAYLOAD 0x1028u
#define MAX_MSG_BYTES 0x80000000u
#define MAX_QP_WR 0x8000u
#define MAX_SGE 0x20u
#define MAX_INLINE 0x200u
#define LOG_MAX_CQ 0x16u
#define MAX_CQE 0x3fffffu
#define MAX_RD_ATOMIC 0x80u
#define LOG_MAX_QPS 0xeu
#define LOG_DEFAULT_QPS 0xdu
#define MAX_EQS 0x400u
#define MAX_MRS 0x8000u
#define FIRST_QPN 0x10u
#define GRH_BYTES 0x28u
#define NEVER 0x8000000000000000ull
#define POLL_BUDGET 0x100u
#define POLL_NEWCOMER_PART 0x8u
#define POLL_RECEIVE_LIMIT 0x4u
#define POLL_BUFFER_BYTES 0x10000u
#define POLL_REPLIES_AT_LEAST_EVERY 0x2u
#define POLL_TIMERS_AT_LEAST_EVERY 0x100u
#define POLL_PARTIAL_ROUND 0x10u
#define POLL_TIMERS_PER_CALL 0x400u
#define POLL_WRITE_BACK_NS 0x989680u
#define POLL_GATHER_MAX 0x10u
#define POLL_GATHER_BYTES 0x200u
#define POLL_GATHER_MIN 0x2u
#define POLL_GATHER_STEADY 0x4u
#define POLL_GATHER_ONE_IN 0x4u
#define POLL_GATHER_AFTER 0x20u
#define POLL_GATHER_PAUSE_NS 0x4e20u
#define POLL_GATHER_SETBACK 0x8u
#define POLL_SOCKET_CHECKS 0x6u
#define POLL_PARK_NS 0x1e8480u
#define POLL_PARK_MAX 0x10u
#define POLL_IDLE_BEFORE_YIELD 0x20u
#define EVENT_COMP 0x0u
#define SLOT_BUFFERS_AT 0x1000u
#define ATTACH_MSG_PUNT 0xdu
#define ATTACH_MSG_SHM_RING 0xeu
#define ATTACH_MSG_SOURCE_PORT 0x13u
#define ATTACH_MAX_MESSAGE 0x10000u
#define ATTACH_MAX_SOURCE_PORTS 0x100u
#define ATTACH_PUNT_PACKET 0x1u
#define ATTACH_PUNT_TURN 0x2u
#define ATTACH_PUNT_NOTIFY 0x3u
#define ATTACH_PUNT_DOORBELL 0x4u
#define ATTACH_PUNT_TIMER 0x5u
#define ATTACH_PUNT_NOTIFY_SEND 0x4u
#define ATTACH_PUNT_NOTIFY_RECV 0x8u
#define ATTACH_PUNT_SENDER_AT 0x54u
#define ATTACH_PUNT_SENDER_MAX 0x1cu
#define SHM_LOG_RING_BYTES 0x14u
#define SHM_RING_BYTES 0x100000u
#define SHM_BYTES_AT 0x1000u
#define SHM_RING_ALL 0x101000u
#define SHM_EPOCHS_AT 0xc0u
#define SHM_EPOCHS 0x40u
#define SHM_RECORD_BYTES 0x40u
#define SHM_CACHE_LINE 0x8u
#define SHM_COOKIE_BYTES 0x10u
#define SHM_CONSUMER_AT 0x40u
#define SHM_CONTROL_AT 0x80u
#define BUDGET_SLOTS 0x100u
#define BUDGET_ENTRIES 0x100u
#define BUDGET_NIC_ENTRY 0x0u
#define BUDGET_BYTES 0x100040u
#define FAULT_RULES 0x80u
#define FAULT_COUNTS 0x1000u
#define FAULT_COUNT_PROBES 0x10u
#define FAULT_MAX_HELD 0x4000u
#define FAULT_DROP 0x0u
#define FAULT_CORRUPT 0x1u
#define FAULT_DUPLICATE 0x2u
#define FAULT_DELAY 0x3u
#define FAULT_REORDER 0x4u
#define FAULT_MARK 0x5u
#define FAULT_TRUNCATE 0x6u
#define FAULT_ACTIONS 0x7u
#define FAULT_NAMES_DIRECTION 0x1u
#define FAULT_HAS_PSN 0x2u
#define FAULT_HAS_ACKREQ 0x4u
#define FAULT_ACKREQ 0x8u
#define FAULT_HAS_SYNDROME 0x10u
#define FAULT_HAS_PROBABILITY 0x20u
#define FAULT_HAS_BYTE 0x40u
#define FAULT_TX 0x0u
#define FAULT_RX 0x1u
#define FAULT_RULES_AT 0x40u
#define FAULT_TABLE_BYTES 0x8c40u
#define FAULT_COUNT_BYTES 0x18000u
#define CAPTURE_BYTES 0x800000u
#define CAPTURE_AT 0x1000u
#define CAPTURE_ALL 0x801000u
#define CAPTURE_WAIT_NS 0x3b9aca00u
#define CAPTURE_PADDING 0x0u
#define CAPTURE_SENT 0x1u
#define CAPTURE_RECEIVED 0x2u
#define BUDGET_LEAST 0x4u
#define ACCESS_LOCAL_WRITE 0x1u
#define ACCESS_REMOTE_WRITE 0x2u
#define ACCESS_REMOTE_READ 0x4u
#define ACCESS_REMOTE_ATOMIC 0x8u
#define ACCESS_MW_BIND 0x10u
#define ACCESS_ZERO_BASED 0x20u
#define ACCESS_ON_DEMAND 0x40u
#define ACCESS_HUGETLB 0x80u
#define ACCESS_FLUSH_GLOBAL 0x100u
#define ACCESS_FLUSH_PERSISTENT 0x200u
#define ACCESS_RELAXED_ORDERING 0x100000u
#define ACCESS_SUPPORTED 0x17fu
#define ACCESS_QP_RIGHTS 0x30fu
#define ACCESS_NEED_LOCAL_WRITE 0xau
#define OPT_GSO 0x1u
#define OPT_NO_PROBE 0x2u
#define OPT_SQ_SIG_ALL 0x4u
#define OPT_CREDITS 0x8u
#define OPT_SELECTIVE_REPEAT 0x10u
#define SRQ_VALID 0x80000000u
#define SQE_BYTES 0x40u
#define SQE_SHIFT 0x6u
#define SGE_BYTES 0x10u
#define FLAG_SIGNALED 0x1u
#define FLAG_SOLICITED 0x2u
#define FLAG_FENCE 0x4u
#define FLAG_INLINE 0x8u
#define FLAG_LIST 0x10u
#define SRQ_ORDER_BYTES 0x4u
#define CQE_BYTES 0x20u
#define CQE_SHIFT 0x5u
#define CQE_RECEIVE 0x100u
#define CQE_IMM 0x200u
#define CQE_INV 0x400u
#define CQE_GRH 0x800u
#define CQE_SOLICITED 0x1000u
#define CQE_SRQ 0x2000u
#define CQE_PHASE 0x80000000u
#define CQ_STAMPED 0x80000u
#define REG_QUEUE_NUMBER 0x0u
#define REG_QUEUE_STATE 0x4u
#define REG_SQ_BASE_LO 0x20u
#define REG_SQ_BASE_HI 0x24u
#define REG_SQ_SIZE 0x28u
#define REG_SQ_HEAD 0x2cu
#define REG_SQ_TAIL 0x30u
#define REG_SQ_DOORBELL 0x34u
#define REG_SQ_FLAGS 0x38u
#define REG_SQ_STRIDE 0x3cu
#define REG_CQ_BASE_LO 0x40u
#define REG_CQ_BASE_HI 0x44u
#define REG_CQ_SIZE 0x48u
#define REG_CQ_HEAD 0x4cu
#define REG_CQ_TAIL 0x50u
#define REG_CQ_DOORBELL 0x54u
#define REG_CQ_FLAGS 0x58u
#define REG_RQ_BASE_LO 0x60u
#define REG_RQ_BASE_HI 0x64u
#define REG_RQ_SIZE 0x68u
#define REG_RQ_HEAD 0x6cu
#define REG_RQ_TAIL 0x70u
#define REG_RQ_STRIDE 0x74u
#define REG_SRQ_LIMIT 0x78u
#define BLOCK_BYTES 0x80u
#define BLOCK_SHIFT 0x7u
#define ARM_NEXT 0x1u
#define ARM_SOLICITED 0x2u
#define QP_PIECES 0x82u
#define QP_REPLIES 0x140u
#define QP_RESOURCES 0x80u
#define QP_SCATTERS 0x20u
#define REPLY_ACKNOWLEDGE 0x11u
#define REPLY_ATOMIC_ACKNOWLEDGE 0x12u
#define REPLY_READ_RESPONSE_FIRST 0xdu
#define REPLY_READ_RESPONSE_LAST 0xfu
#define REPLY_READ_RESPONSE_MIDDLE 0xeu
#define REPLY_READ_RESPONSE_ONLY 0x10u
#define REPLY_ACK 0x0u
#define REPLY_READ 0x1u
#define REPLY_ATOMIC 0x2u
#define INFLIGHT_FRACTION_BITS 0x10u
#define INFLIGHT_LOSSY 0x20u
#define INFLIGHT_CROWDED 0x40u
#define INFLIGHT_LEAST 0x4u
#define INFLIGHT_STEP 0x4u
#define INFLIGHT_QUANTUM 0x40u
#define INFLIGHT_SMALL_QUANTUM 0x10u
#define INFLIGHT_OVERTAKE 0x10u
#define INFLIGHT_QUEUE_NS 0x16e360u
#define INFLIGHT_SAMPLES 0x8u
#define INFLIGHT_LOW_NS 0x5f5e100u
#define INFLIGHT_ACKS_A_WINDOW 0x4u
#define INFLIGHT_NARROWEST 0x20u
#define INFLIGHT_MENDED_PART 0x4u
#define INFLIGHT_WIDEN_AFTER 0x4u
#define TIMER_REPEAT_NS 0x186a0u
#define TIMER_REPEAT_MIN_NS 0xf4240u
#define TIMER_REPEAT_ALONE_NS 0x3d090u
#define TIMER_SILENT_PROBES 0x3u
#define TIMER_PROBE_MAX_SHIFT 0xau
#define TIMER_BACKOFF_MOST 0x2u
#define TIMER_ACK_EACH_AFTER_PROBE 0x20u
#define PROBE_MENDS 0x2u
#define GO_BACK_PENALTY_MAX 0x40u
#define OPEN_NOTHING 0x0u
#define OPEN_SEND 0x1u
#define OPEN_WRITE 0x2u
#define REPLY_OWED_NS 0x186a0u
#define PACE_WINDOW_NS 0x400u
#define PACE_RATE_TIME_BITS 0x14u
#define PACE_BURST_PACKETS 0x4u
#define CONTROL_NONE 0x0u
#define CONTROL_LIMIT 0x1u
#define CONTROL_DCQCN 0x2u
#define CONTROL_FIXED 0x3u
#define CONTROL_OTHER 0x4u
#define DCQCN_ALPHA_BITS 0x14u
#define DCQCN_ALPHA_ONE 0x100000u
#define DCQCN_RATE_BITS 0x10u
#define DCQCN_MOST_ROUNDS 0x10000u
#define WR_TAKES_RECEIVE 0x800830ull /* a bit for each opcode */
static const uint16_t mtu_bytes[8] = { 0, 256, 512, 1024, 2048, 4096, 0, 0 };
static const uint32_t rnr_timer_us[32] = { 655360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1280, 1920, 2560, 3840, 5120, 7680, 10240, 15360, 20480, 30720, 40960, 61440, 81920, 122880, 163840, 245760, 327680, 491520 };
static const uint16_t credit_counts[31] = { 0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768 };

struct queue_pair {
	uint64_t una; /* oldest unacknowledged PSN */
	uint64_t sent_psn; /* last PSN ever sent, plus 1 */
	uint64_t sq_head; /* SQ index of the oldest entry that has not completed */
	uint64_t send_index; /* SQ index of the first message with packets to send or retransmit */
	uint64_t fetch_index; /* SQ index of the next entry to fetch */
	uint64_t tail; /* SQ_TAIL as software last stored it */
	uint64_t read_index; /* SQ index of the oldest started READ or atomic that lacks responses, or none */
	uint64_t piece_first; /* slot of the oldest READ or atomic request that waits for responses */
	uint64_t piece_count; /* number of such requests */
	uint64_t inflight; /* packets in flight, including expected READ responses */
	uint64_t window; /* packets that may be in flight */
	uint64_t widest; /* upper bound of the window: the outstanding limit of 004 7.4 */
	uint64_t most; /* the outstanding limit without congestion */
	uint64_t uncounted; /* acknowledged packets that have not widened the window yet */
	uint64_t ack_every; /* request an ACK if the PSN is a multiple of this */
	uint64_t ack_timeout; /* local ACK timeout, 0 for never */
	uint64_t retry_left; /* retries before the queue pair fails */
	uint64_t rnr_left; /* RNR retries before the queue pair fails */
	uint64_t backoff; /* consecutive expired ACK timeouts */
	uint64_t rtt_psn; /* PSN whose round trip is being measured, or none */
	uint64_t rtt_at; /* when it was sent */
	uint64_t probe_shift; /* consecutive unanswered probes */
	uint64_t probe_due; /* 1: start the next turn with a tail-loss probe */
	uint64_t ack_deadline; /* end of the local ACK timeout, or NEVER */
	uint64_t probe_deadline; /* time of the next tail-loss probe, or NEVER */
	uint64_t rnr_until; /* end of the RNR wait, or NEVER */
	uint64_t control_ns; /* time of the next congestion control timer, or NEVER */
	uint64_t ack_each; /* messages left that each request an ACK, after a probe */
	uint64_t single_resend_psn; /* PSN named by a NAK and retransmitted alone, or none */
	uint64_t go_back_penalty; /* losses for which to use Go-Back-N after resending a single packet failed */
	uint64_t go_back_left; /* remaining losses of that kind */
	uint64_t parked; /* 1: it waits in line for room in flight */
	uint64_t admitted; /* packets granted to its turn and not sent yet */
	uint64_t peer_record; /* offset of its peer's account, or 0 */
	uint64_t line; /* offset of the line in which it waits for room in flight, or 0 */
	uint64_t next_waiting; /* next queue pair of that line, or 0 */
	uint64_t previous_waiting; /* previous queue pair of that line, or 0 */
	uint64_t ssn; /* sequence number of the last message fetched */
	uint64_t lsn; /* last SSN for which the peer has a receive entry, or none without credits */
	uint64_t more; /* 1: only the budget ended the last turn */
	uint64_t head; /* first eight bytes of a BTH, without opcode, pad and destination */
	uint64_t mtu; /* path MTU in bytes */
	uint64_t read_chunk; /* most response packets per READ request */
	uint64_t service; /* service bits of the BTH opcode: 0 for RC, 0x20 for UC, 0x60 for UD */
	uint64_t batch_limit; /* packets in one burst: 1 without segmentation offload */
	uint64_t asked_psn; /* PSN of the last response that a probe requested alone, or none */
	uint64_t implied_psn; /* PSN of the last implied NAK, or none */
	uint64_t implied_at; /* time of the last implied NAK */
	uint64_t open; /* kind of the open message: none 0, SEND 1, WRITE 2 */
	uint64_t offset; /* bytes of the open message already placed */
	uint64_t write_length; /* length of the open WRITE, from its RETH */
	uint64_t write_va; /* remote address of the open WRITE */
	uint64_t write_rkey; /* its key */
	uint64_t write_binding; /* binding of the key when the WRITE started; for R_Key 0 also the region's key */
	uint64_t receive_index; /* RQ index of the receive entry in use, or none */
	uint64_t receive_sges; /* scatter entries of that receive entry */
	uint64_t receive_bytes; /* total length of that receive entry */
	uint64_t owed_ns; /* time of the delayed ACK for messages without AckReq, or NEVER */
	uint64_t nak_sent; /* 1: a NAK was sent, drop packets beyond the expected PSN silently */
	uint64_t established; /* 1: a request arrived since RTR */
	uint64_t generation; /* incremented at each RESET, to discard packets held back before it */
	uint64_t msn; /* messages completed */
	uint64_t resource_first; /* slot of the oldest saved READ or atomic */
	uint64_t resource_count; /* number of saved READs and atomics */
	uint64_t reply_first; /* slot of the oldest waiting reply */
	uint64_t reply_count; /* number of waiting replies */
	uint64_t pending_reads; /* waiting READ and atomic replies, except those to duplicates */
	uint64_t pieces; /* offset of its READ pieces in the arena */
	uint64_t replies; /* offset of its replies in the arena */
	uint64_t resources; /* offset of its executed READs and atomics in the arena */
	uint64_t scatters; /* offset of its receive scatter entries in the arena */
	uint64_t sends; /* offset of its send WQEs in the arena */
	uint64_t path; /* offset of its flow's record in the arena, or 0 */
	uint64_t program; /* number of its program, for fair sharing of the in-flight budget */
	uint64_t signal_all; /* 1: every send request generates a completion (sq_sig_all) */
	uint64_t uses_srq; /* 1: it receives from a shared receive queue */
	uint64_t cnp_tag; /* 1: start the next turn with a CNP (004 7.3, WQE process unit) */
	uint64_t masked; /* 1: exclude the send queue from arbitration */
	uint64_t paced; /* 1: its requests are rate-limited */
	uint64_t pace_ns; /* time at which the rate allows the next request, or NEVER */
	uint64_t control; /* its congestion control: none 0, limit 1, DCQCN 2, a fixed rate 3, one in Python 4 */
	uint64_t pace_rate; /* bytes that may leave in 2^20 ns */
	uint64_t pace_credit; /* bytes that may leave now, times 2^20, signed, as two's complement */
	uint64_t pace_most; /* upper bound of the credit */
	uint64_t pace_since_ns; /* time of the last update of the credit */
	uint64_t dcqcn_rate; /* current rate, in bytes per 2^10 ns with 16 fractional bits */
	uint64_t dcqcn_target; /* target rate, in the same unit */
	uint64_t dcqcn_alpha; /* alpha with 20 fractional bits */
	uint64_t dcqcn_counted; /* bytes sent in this period of the byte counter */
	uint64_t dcqcn_counter_rounds; /* periods of the byte counter since the last CNP */
	uint64_t dcqcn_timer_rounds; /* periods of the timer since the last CNP */
	uint64_t dcqcn_alpha_at; /* time of the next decrease of alpha */
	uint64_t dcqcn_timer_at; /* end of the current timer period */
	uint64_t armed_ns; /* time for which its timer is armed, or NEVER */
	uint64_t timer_place; /* its index in the timer heap, 0 for none */
	uint64_t scheduled; /* 1: it waits for a turn, or requested one while held */
	uint64_t next_ready; /* next ready queue pair of its program, or 0 */
	uint64_t previous_ready; /* previous ready queue pair of its program, or 0 */
	uint64_t program_record; /* offset of its program's record */
	uint64_t turn; /* quantum: bytes that it may send before other queue pairs of its program */
	uint64_t deficit; /* deficit counter: bytes that it may still send, signed, as two's complement */
	uint64_t sq_base; /* virtual address of entry 0; the slab follows the last entry */
	uint64_t sq_entries; /* entries in the ring */
	uint64_t sq_slab_bytes; /* bytes of one slab slot, 0 for a ring without a slab */
	uint64_t sq_shift; /* log2 of the bytes from one entry to the next */
	uint64_t rq_base; /* virtual address of slot 0 */
	uint64_t rq_entries; /* slots in the ring */
	uint64_t rq_stride; /* bytes from one slot to the next */
	uint64_t rq_head; /* index of the next entry to take */
	uint64_t number; /* its QPN */
	uint64_t context; /* offset of its QPC in the arena */
	uint64_t srq_record; /* offset of its shared receive queue's record, or 0 */
	uint64_t block; /* number of its queue block */
	uint64_t driver; /* number of the driver context whose memory and window it uses */
	uint64_t opcodes; /* service bits of the BTH opcodes that it accepts */
	uint64_t pkey; /* P_Key in use */
	uint64_t replies_deferred; /* 1: replies were deferred behind new messages, the next turn sends them */
	uint64_t notify_drained; /* 1: an SQ_DRAINED event was requested */
	uint64_t cnp_merge_ns; /* time until which marks cause no further CNP */
	uint64_t rate; /* its rate register */
	uint64_t sent_bytes; /* bytes sent, counted from the BTH */
	uint64_t came_bytes; /* bytes received, counted from the BTH */
	uint64_t shown_head; /* value of SQ_HEAD in its queue block */
	uint64_t shown_state; /* value of QUEUE_STATE in its queue block */
	uint64_t held; /* 1: a required context is not cached, so nothing is sent and received packets are dropped */
	uint64_t explains; /* number of failures still to be explained to the program; the engine punts these */
};
_Static_assert(sizeof(struct queue_pair) == 1008, "queue pair");

struct send_wqe {
	uint64_t entry_0; /* fetched SQ entry: WQE ID, opcode, flags */
	uint64_t entry_1; /* local address */
	uint64_t entry_2; /* remote address */
	uint64_t entry_3; /* length, L_Key */
	uint64_t entry_4; /* R_Key, immediate */
	uint64_t entry_5; /* operand, or destination GID */
	uint64_t entry_6; /* operand, or destination GID */
	uint64_t entry_7; /* destination QPN, Q_Key */
	uint64_t first_psn; /* first PSN that it uses */
	uint64_t packets; /* PSNs that it uses; for a READ those of its responses; 0 for a local operation */
	uint64_t sent; /* packets sent since the last rewind */
	uint64_t received; /* response packets of a READ that have been placed */
	uint64_t ssn; /* its SSN */
	uint64_t status; /* completion status, reported once everything before it has completed */
	uint64_t begun; /* 1: a packet of it was sent at some time */
	uint64_t executed; /* 1: a local operation has been executed */
};
_Static_assert(sizeof(struct send_wqe) == 128, "send WQE");

struct read_piece {
	uint64_t index; /* SQ index of its message */
	uint64_t first_psn; /* PSN of its first response */
	uint64_t offset; /* offset in the message, in bytes */
	uint64_t packets; /* response packets that it requests */
	uint64_t got; /* response packets received, in order */
	uint64_t asked; /* 1: its one response was split off a longer request and requested again alone */
};
_Static_assert(sizeof(struct read_piece) == 48, "READ piece");

struct reply {
	uint64_t kind; /* ACK or NAK 0, READ responses 1, atomic acknowledge 2 */
	uint64_t psn; /* PSN of its first packet */
	uint64_t packets; /* number of its packets */
	uint64_t sent; /* packets sent */
	uint64_t syndrome; /* AETH syndrome */
	uint64_t msn; /* AETH message sequence number */
	uint64_t again; /* 1: it answers a duplicate */
	uint64_t orig; /* original value of an atomic */
	uint64_t va; /* address of a READ's data */
	uint64_t total; /* length of a READ's data */
	uint64_t rkey; /* R_Key of a READ's data */
	uint64_t binding; /* binding of the key when the READ arrived; for R_Key 0 also the region's key */
};
_Static_assert(sizeof(struct reply) == 96, "reply");

struct resource {
	uint64_t psn; /* PSN of the request */
	uint64_t packets; /* PSNs that it uses */
	uint64_t opcode; /* its BTH opcode */
	uint64_t atomic; /* 1: it is an atomic */
	uint64_t va; /* its remote address */
	uint64_t rkey; /* its key */
	uint64_t length; /* length of a READ */
	uint64_t swap_add; /* an atomic's operand */
	uint64_t compare; /* compare value of a compare-and-swap */
	uint64_t orig; /* original value of an atomic */
};
_Static_assert(sizeof(struct resource) == 80, "resource");

struct scatter {
	uint64_t va; /* virtual address */
	uint64_t size_key; /* length in the low half, L_Key in the high */
};
_Static_assert(sizeof(struct scatter) == 16, "receive scatter entry");

struct completion_queue {
	uint64_t flags; /* CQ flags as software wrote them */
	uint64_t start; /* virtual address of the ring; 0 with a key is the start of its region */
	uint64_t logsize; /* log2 of the number of entries */
	uint64_t usrpage; /* number of the queue block */
	uint64_t comp_eqn; /* EQ of completion events */
	uint64_t pd; /* protection domain */
	uint64_t lkey; /* key of the ring; 0 for memory of the driver that created the queue */
	uint64_t cqn; /* its number as software wrote it */
	uint64_t ci_db; /* consumer index record */
	uint64_t state_db; /* arm state record */
	uint64_t tail; /* index of the next entry to store */
	uint64_t phase; /* phase bit of this pass over the ring, as in word 3 */
	uint64_t room; /* known number of free entries */
	uint64_t failed; /* 1: it accepts no more entries */
	uint64_t driver; /* number of its driver context */
	uint64_t last_notified; /* producer index at the last event */
	uint64_t solicited_index; /* producer index after the last solicited entry */
	uint64_t due; /* 1: a completion event is pending because its EQ is full */
	uint64_t notified; /* 1: it was armed when an entry arrived: its owner sleeps on completion events */
};
_Static_assert(sizeof(struct completion_queue) == 152, "completion queue");

struct event_queue {
	uint64_t flags; /* EQ flags as software wrote them */
	uint64_t start; /* virtual address of the ring; 0 with a key is the start of its region */
	uint64_t logsize; /* log2 of the number of entries */
	uint64_t usrpage; /* number of the queue block */
	uint64_t event_mask; /* event types that go to this EQ (WR_EQ_FUNC) */
	uint64_t msix_vector; /* interrupt vector */
	uint64_t pd; /* protection domain */
	uint64_t lkey; /* key of the ring; 0 for memory of the driver that created the queue */
	uint64_t tail; /* index of the next entry to store */
	uint64_t phase; /* phase bit of this pass over the ring, as in word 3 */
	uint64_t room; /* known number of free entries */
	uint64_t failed; /* 1: it accepts no more entries */
	uint64_t driver; /* number of its driver context */
	uint64_t enabled; /* 1: its event function is enabled */
	uint64_t pending; /* 1: its interrupt is pending */
	uint64_t reserved[1];
};
_Static_assert(sizeof(struct event_queue) == 128, "event queue");

struct memory_key {
	uint64_t key; /* L_Key and R_Key: index in bits 31:8, tag in 7:0 */
	uint64_t valid; /* 1 while the key is valid */
	uint64_t window; /* 0 for a region, 1 or 2 for a window of that type */
	uint64_t pd; /* protection domain */
	uint64_t access; /* IBV_ACCESS_* bits */
	uint64_t start; /* first address that the key covers */
	uint64_t end; /* end address, exclusive */
	uint64_t base; /* virtual address of the first byte in its process */
	uint64_t qpn; /* queue pair of a bound type 2 window, else 0 */
	uint64_t bound; /* windows bound to a region */
	uint64_t binding; /* incremented whenever the entry becomes invalid */
	uint64_t reserved[5];
};
_Static_assert(sizeof(struct memory_key) == 128, "memory key");

struct shared_receive_queue {
	uint64_t base; /* virtual address of slot 0 */
	uint64_t entries; /* slots in the ring */
	uint64_t stride; /* bytes from one slot to the next */
	uint64_t head; /* index of the next entry to take */
	uint64_t number; /* its number */
	uint64_t pd; /* protection domain of its entries */
	uint64_t block; /* number of its queue block */
	uint64_t driver; /* number of its driver context */
	uint64_t limit; /* raise the limit event below this number of entries; 0 for never */
	uint64_t taken; /* entries taken, less those returned */
	uint64_t returned; /* entries returned and not taken again; these are taken first */
	uint64_t failed; /* 1: it accepts no new queue pairs */
	uint64_t reserved[4];
};
_Static_assert(sizeof(struct shared_receive_queue) == 128, "shared receive queue");

struct device {
	uint64_t keys; /* offset of the memory table */
	uint64_t max_keys; /* records in it */
	uint64_t log_qps; /* log2 of the slots for queue pairs and CQs; the low bits of a number are its slot */
	uint64_t log_eqs; /* log2 of the slots for EQs */
	uint64_t qp_contexts; /* offset of the cached QPCs */
	uint64_t cqs; /* offset of the CQ records */
	uint64_t eqs; /* offset of the EQ records */
	uint64_t directory; /* offset of the directory: for each slot, the offset of its queue pair's record, 0 for none */
	uint64_t timers; /* offset of the timer record */
	uint64_t scheduler; /* offset of the scheduler record */
	uint64_t inflight; /* offset of the in-flight record */
	uint64_t reserved[21];
};
_Static_assert(sizeof(struct device) == 256, "device");

struct flow {
	uint64_t family; /* 4 or 6: the IP version */
	uint64_t src_0; /* sender's address, bytes 0 to 7: in network byte order; IPv4 uses only the first four */
	uint64_t src_1; /* bytes 8 to 15 */
	uint64_t dst_0; /* receiver's address, bytes 0 to 7: in network byte order; IPv4 uses only the first four */
	uint64_t dst_1; /* bytes 8 to 15 */
	uint64_t sport; /* sender's UDP port */
	uint64_t dport; /* receiver's UDP port */
	uint64_t tclass; /* type of service or traffic class */
	uint64_t hop_limit; /* time to live or hop limit */
	uint64_t flow_label; /* IPv6 flow label */
	uint64_t sl; /* service level: the priority in the sender's queues */
	uint64_t smac; /* sender's MAC address, 0 where the link makes one up */
	uint64_t dmac; /* receiver's MAC address, 0 where the link makes one up */
	uint64_t users; /* number of queue pairs that use the path */
	uint64_t seed; /* CRC-32 of the header below with lengths and ident zero; XOR their effect in */
	uint64_t header_bytes; /* length of the header below, 36 or 56 */
	uint64_t header_0; /* ones, IP and UDP header, masked for the ICRC, bytes 0 to 7 */
	uint64_t header_1; /* ones, IP and UDP header, masked for the ICRC, bytes 8 to 15 */
	uint64_t header_2; /* ones, IP and UDP header, masked for the ICRC, bytes 16 to 23 */
	uint64_t header_3; /* ones, IP and UDP header, masked for the ICRC, bytes 24 to 31 */
	uint64_t header_4; /* ones, IP and UDP header, masked for the ICRC, bytes 32 to 39 */
	uint64_t header_5; /* ones, IP and UDP header, masked for the ICRC, bytes 40 to 47 */
	uint64_t header_6; /* ones, IP and UDP header, masked for the ICRC, bytes 48 to 55 */
};
_Static_assert(sizeof(struct flow) == 184, "flow");

struct timers {
	uint64_t heap; /* offset of a binary heap of queue pair records by armed_ns; its first word is unused */
	uint64_t capacity; /* capacity in queue pairs */
	uint64_t count; /* queue pairs in it */
};
_Static_assert(sizeof(struct timers) == 24, "timers");

struct scheduler {
	uint64_t first; /* head of the rotation: offset of a program's record, 0 for none */
	uint64_t last; /* tail of the rotation */
	uint64_t count; /* queue pairs that wait */
	uint64_t quantum; /* bytes that a program may send per turn */
	uint64_t turn; /* program of the queue pair in service, 0 for none */
	uint64_t newest; /* last of the newcomers at the head of the rotation, 0 for none */
	uint64_t credit; /* bytes that newcomers may still send ahead of others, signed, as two's complement */
	uint64_t over; /* 1: a newcomer was served ahead of waiting queue pairs: transmit before the next turn */
};
_Static_assert(sizeof(struct scheduler) == 64, "scheduler");

struct program {
	uint64_t next; /* next program of the rotation, 0 for none */
	uint64_t previous; /* previous program of the rotation, 0 for none */
	uint64_t first; /* its first ready queue pair, 0 for none */
	uint64_t last; /* its last ready queue pair */
	uint64_t deficit; /* deficit counter: bytes that it may still send, signed, as two's complement */
	uint64_t listed; /* 1: it is in the rotation; 2: as a newcomer */
	uint64_t users; /* number of its queue pairs */
	uint64_t number; /* number of the program */
};
_Static_assert(sizeof(struct program) == 64, "program");

struct inflight {
	uint64_t limit; /* packets in flight from this NIC, READ responses to it included */
	uint64_t packets; /* packets in flight */
	uint64_t promised; /* packets granted to turns and not sent yet */
	uint64_t first_peer; /* first of the peers with waiting queue pairs */
	uint64_t last_peer; /* last of these peers */
	uint64_t waited_for; /* number of these peers */
	uint64_t overtaken; /* packets that overtook waiting queue pairs since one of these got a turn */
	uint64_t spare_line; /* first of the unused lines, linked by next; 0 for none */
};
_Static_assert(sizeof(struct inflight) == 64, "inflight");

struct peer {
	uint64_t inflight; /* packets in flight to it */
	uint64_t promised; /* packets granted to turns and not sent yet */
	uint64_t most; /* upper bound of the limit */
	uint64_t limit_16; /* packets that may be in flight to it, in 65,536ths */
	uint64_t srtt; /* mean round trip in nanoseconds, 0 before the first */
	uint64_t rttvar; /* mean deviation from it */
	uint64_t lossy; /* a packet was lost on the way */
	uint64_t cut_ns; /* time of the last cut of the limit */
	uint64_t low; /* shortest round trip in the current interval, 0 for none */
	uint64_t low_before; /* shortest round trip in the previous interval */
	uint64_t low_since; /* start of the current interval */
	uint64_t queue_ns; /* queuing delay of the last packet */
	uint64_t least; /* shortest of the consecutive long round trips */
	uint64_t samples; /* number of consecutive long round trips */
	uint64_t users; /* queue pairs whose path leads to it */
	uint64_t first_line; /* the line that has the next turn */
	uint64_t last_line; /* the last line */
	uint64_t waiting; /* queue pairs in its lines */
	uint64_t next_peer; /* next peer with waiting queue pairs */
	uint64_t previous_peer; /* previous peer with waiting queue pairs */
	uint64_t entry; /* its entry in the device's budget page, 0 for none */
};
_Static_assert(sizeof(struct peer) == 168, "peer");

struct line {
	uint64_t next; /* the peer's next line */
	uint64_t previous; /* the peer's previous line */
	uint64_t first; /* first waiting queue pair */
	uint64_t last; /* last waiting queue pair */
	uint64_t program; /* number of the program that owns the queue pairs */
};
_Static_assert(sizeof(struct line) == 40, "line");

struct slot {
	uint64_t layout; /* layout hash of the NIC process */
	uint64_t taken; /* 1 while one of its threads works on the arena or has lent it along with a message */
	uint64_t wanted; /* 1 while the NIC process works on the arena on its own initiative */
	uint64_t reference; /* 1: the NIC process handles all packets and doorbells, the program none */
	uint64_t changes; /* incremented when queues, rings or paths may have moved */
	uint64_t ack_every; /* request an ACK at least once in this many packets */
	uint64_t probe; /* 1: tail-loss probes are on */
	uint64_t rq_almost_full; /* receive entries to keep back */
	uint64_t rounds; /* counts its rounds */
	uint64_t rx_packets; /* packets taken */
	uint64_t tx_packets; /* packets made */
	uint64_t rx_bytes; /* bytes received */
	uint64_t tx_bytes; /* bytes sent */
	uint64_t rx_socket_error; /* receives that failed */
	uint64_t gso_refused; /* bursts for which the kernel refused UDP_SEGMENT */
	uint64_t drop_tx_too_long; /* packets that could not be sent */
	uint64_t drop_tx_unreachable; /* packets that could not be sent */
	uint64_t drop_tx_blocked; /* packets that could not be sent */
	uint64_t drop_tx_error; /* packets that could not be sent */
	uint64_t event_0; /* counter acks_received */
	uint64_t event_1; /* counter acks_coalesced */
	uint64_t event_2; /* counter retransmitted_packets */
	uint64_t event_3; /* counter retransmitted_requests */
	uint64_t event_4; /* counter drop_psn_gap */
	uint64_t event_5; /* counter drop_naked */
	uint64_t event_6; /* counter drop_duplicate */
	uint64_t event_7; /* counter drop_stale_response */
	uint64_t event_8; /* counter drop_ghost_response */
	uint64_t event_9; /* counter sequence_naks_sent */
	uint64_t event_10; /* counter rnr_naks_sent */
	uint64_t event_11; /* counter sequence_naks_received */
	uint64_t event_12; /* counter rnr_naks_received */
	uint64_t event_13; /* counter rewinds */
	uint64_t event_14; /* counter ack_timeouts */
	uint64_t event_15; /* counter probes */
	uint64_t event_16; /* counter drop_duplicate_unmatched */
	uint64_t event_17; /* counter duplicate_reads */
	uint64_t event_18; /* counter duplicate_atomics */
	uint64_t event_19; /* counter implied_naks */
	uint64_t event_20; /* counter drop_bad_sequence */
	uint64_t event_21; /* counter ecn_marked_packets */
	uint64_t event_22; /* counter cnps_merged */
	uint64_t event_23; /* counter cnps_sent */
	uint64_t event_24; /* counter cnps_received */
	uint64_t event_25; /* counter cnp_rate_cuts */
	uint64_t event_26; /* counter cnp_limits */
	uint64_t event_27; /* counter event_congestion */
	uint64_t punt_short; /* left to the reference: truncated packet */
	uint64_t punt_state; /* left to the reference: state of the queue pair */
	uint64_t punt_header; /* left to the reference: opcode, P_Key, queue pair, version, lengths */
	uint64_t punt_icrc; /* left to the reference: wrong ICRC, or an unexpected IP ID */
	uint64_t punt_psn; /* left to the reference: unexpected PSN */
	uint64_t punt_sequence; /* left to the reference: packet does not continue the open message */
	uint64_t punt_length; /* left to the reference: message length */
	uint64_t punt_key; /* left to the reference: no valid key for the access */
	uint64_t punt_memory; /* left to the reference: memory not accessible */
	uint64_t punt_reply; /* left to the reference: no room for a reply */
	uint64_t punt_ack; /* left to the reference: NAK that requests no retransmission, or retries exhausted */
	uint64_t punt_cq; /* left to the reference: CQ not accessible, or full */
	uint64_t punt_request; /* left to the reference: work request of a kind that the engine lacks */
	uint64_t punt_path; /* left to the reference: unknown destination */
	uint64_t punt_wait; /* left to the reference: wait that only the reference handles: rate limit or congestion */
	uint64_t punt_unknown; /* packets of senders that the reference has not validated yet */
	uint64_t punt_notify; /* completion events */
	uint64_t punt_doorbell; /* doorbells of queue pairs that the engine does not handle */
	uint64_t punt_timer; /* timers of queue pairs that the engine does not handle */
	uint64_t shm_packets; /* packets sent over rings to programs of the same device */
	uint64_t shm_bytes; /* bytes of messages that the receiver read from the sender's memory */
	uint64_t shm_wire; /* bursts sent over the network because a ring was full or its receiver did not read it */
	uint64_t shm_lost; /* by-reference packets lost because a ring had no room */
	uint64_t shm_refused; /* by-reference packets that the receiver asked for with their bytes */
	uint64_t fault_tx_drop; /* packets hit by fault rules */
	uint64_t fault_tx_corrupt; /* packets hit by fault rules */
	uint64_t fault_tx_duplicate; /* packets hit by fault rules */
	uint64_t fault_tx_delay; /* packets hit by fault rules */
	uint64_t fault_tx_reorder; /* packets hit by fault rules */
	uint64_t fault_tx_mark; /* packets hit by fault rules */
	uint64_t fault_tx_truncate; /* packets hit by fault rules */
	uint64_t fault_rx_drop; /* packets hit by fault rules */
	uint64_t fault_rx_corrupt; /* packets hit by fault rules */
	uint64_t fault_rx_duplicate; /* packets hit by fault rules */
	uint64_t fault_rx_delay; /* packets hit by fault rules */
	uint64_t fault_rx_reorder; /* packets hit by fault rules */
	uint64_t fault_rx_mark; /* packets hit by fault rules */
	uint64_t fault_rx_truncate; /* packets hit by fault rules */
	uint64_t fault_tx_full; /* packets hit by fault rules */
	uint64_t fault_rx_full; /* packets hit by fault rules */
	uint64_t fault_port_down; /* packets hit by fault rules */
	uint64_t reserved[40];
};
_Static_assert(sizeof(struct slot) == 1024, "slot");

struct budget {
	uint32_t slots; /* highest slot number in use, plus 1 */
	uint32_t limit; /* packets that the whole NIC may have in flight */
	uint32_t reserved[14];
};
_Static_assert(sizeof(struct budget) == 64, "budget");

struct share {
	uint32_t held; /* packets in flight or granted to turns */
	uint32_t limit; /* packets that may be in flight, as learned by this slot */
	uint32_t waits; /* 1 while queue pairs wait for room */
	uint32_t reserved[1];
};
_Static_assert(sizeof(struct share) == 16, "share");

struct ring_producer {
	uint64_t tail; /* position behind the last record */
	uint64_t reserved[7];
};
_Static_assert(sizeof(struct ring_producer) == 64, "ring_producer");

struct ring_consumer {
	uint64_t head; /* position of the oldest unread record */
	uint64_t attached; /* 1 while the receiver reads records */
	uint64_t pulls; /* 1: the receiver may read the sender's memory */
	uint64_t asleep; /* 1: the receiver sleeps; the thread that clears this must wake it */
	uint64_t reserved[4];
};
_Static_assert(sizeof(struct ring_consumer) == 64, "ring_consumer");

struct ring_control {
	uint64_t held; /* 1 while the NIC process serves the receiver's slot: packets go over the network */
	uint64_t dead; /* 1: one of the two programs has ended */
	uint64_t keys; /* incremented when a key of the sender becomes invalid, since the program may reuse its memory */
	uint64_t reserved[5];
};
_Static_assert(sizeof(struct ring_control) == 64, "ring_control");

struct fault_table {
	uint64_t rules; /* number of rules that follow */
	uint64_t port_down; /* 1 while the port is held down: all packets are dropped */
	uint64_t reserved[6];
};
_Static_assert(sizeof(struct fault_table) == 64, "fault_table");

struct fault_rule {
	uint64_t flags; /* flags: what it matches by, and others */
	uint64_t directions; /* mask of directions to match, 1 tx, 2 rx */
	uint64_t opcodes_0; /* mask of opcodes to match */
	uint64_t opcodes_1; /* mask of opcodes to match */
	uint64_t opcodes_2; /* mask of opcodes to match */
	uint64_t opcodes_3; /* mask of opcodes to match */
	uint64_t syndromes_0; /* mask of AETH syndromes to match */
	uint64_t syndromes_1; /* mask of AETH syndromes to match */
	uint64_t syndromes_2; /* mask of AETH syndromes to match */
	uint64_t syndromes_3; /* mask of AETH syndromes to match */
	uint64_t opcode_any; /* 1: match any opcode, and packets too short for one */
	uint64_t psn_low; /* first PSN that matches */
	uint64_t psn_span; /* number of further PSNs that match */
	uint64_t dqpn_low; /* lowest destination queue pair */
	uint64_t dqpn_high; /* highest destination queue pair; all ones: match any, and packets too short for one */
	uint64_t length_low; /* fewest bytes of UDP payload */
	uint64_t length_high; /* most */
	uint64_t src_bytes; /* bytes of the source address, 0: any */
	uint64_t src_0; /* source address, in wire order */
	uint64_t src_1; /* source address, bytes 8 to 15 */
	uint64_t dst_bytes; /* bytes of the destination address, 0: any */
	uint64_t dst_0; /* destination address, in wire order */
	uint64_t dst_1; /* destination address, bytes 8 to 15 */
	uint64_t nth; /* number of the first matching packet that it applies to, 0: not set */
	uint64_t every; /* it applies to one matching packet in this many; 0: not set */
	uint64_t times; /* most times that it applies, 0: no limit */
	uint64_t below; /* it applies if the random draw is below */
	uint64_t seed; /* seed of draws and counts */
	uint64_t action; /* number of the action */
	uint64_t byte; /* of corrupt: byte index, negative from the end */
	uint64_t xor; /* of corrupt: value to XOR into it */
	uint64_t delay_ns; /* of delay and duplicate: delay */
	uint64_t behind; /* of reorder: packets that overtake it */
	uint64_t hold_ns; /* of reorder: longest wait for them */
	uint64_t bytes; /* of truncate: remaining bytes of UDP payload, at least 1 */
};
_Static_assert(sizeof(struct fault_rule) == 280, "fault_rule");

struct fault_count {
	uint64_t draw; /* generator state, keyed by rule, direction and queue pair; 0: free entry */
	uint64_t seen; /* packets that matched */
	uint64_t acted; /* matching packets that it applied to */
};
_Static_assert(sizeof(struct fault_count) == 24, "fault_count");

struct capture_ring {
	uint64_t head; /* position behind the last record */
	uint64_t dropped; /* packets not recorded because the ring was full */
	uint64_t reserved_0; /* padding of the cache line */
	uint64_t reserved_1; /* padding of the cache line */
	uint64_t reserved_2; /* padding of the cache line */
	uint64_t reserved_3; /* padding of the cache line */
	uint64_t reserved_4; /* padding of the cache line */
	uint64_t reserved_5; /* padding of the cache line */
	uint64_t tail; /* position of the oldest unread record */
	uint64_t records; /* 1: record packets */
	uint64_t waits; /* 1: wait if the ring is full */
	uint64_t snap; /* snap length: most bytes of a packet to record, from the BTH on */
};
_Static_assert(sizeof(struct capture_ring) == 96, "capture_ring");

struct capture_record {
	uint64_t bytes; /* bytes of packets that follow */
	uint64_t kind; /* PADDING, SENT, RECEIVED */
	uint64_t time_ns; /* nanoseconds since 1970 */
	uint64_t length; /* bytes of the burst */
	uint64_t segment; /* bytes of each packet except the last */
	uint64_t flow_label; /* of IPv6 */
	uint64_t tclass; /* traffic class, ECN bits included */
	uint64_t hop_limit; /* of the IP header */
	uint64_t name_bytes; /* bytes of the peer's socket address */
	uint64_t source_port; /* of SENT: UDP source port */
	uint64_t name_0; /* the peer's raw socket address */
	uint64_t name_1; /* the peer's raw socket address */
	uint64_t name_2; /* the peer's raw socket address */
	uint64_t name_3; /* the peer's raw socket address */
	uint64_t reserved[2];
};
_Static_assert(sizeof(struct capture_record) == 128, "capture_record");

#define QPC_SIZE 256u
#define QPC_OPT_PARAM_MASK 0u, 4u, 0u, 32u
#define QPC_STATE 8u, 4u, 28u, 4u
#define QPC_FLAGS_27_24 8u, 4u, 24u, 4u
#define QPC_SERVTYPE 8u, 4u, 16u, 8u
#define QPC_FLAGS_15_13 8u, 4u, 13u, 3u
#define QPC_MIG_STATE 8u, 4u, 11u, 2u
#define QPC_FLAGS_10_0 8u, 4u, 0u, 11u
#define QPC_MTU 12u, 4u, 29u, 3u
#define QPC_MSGMAX 12u, 4u, 24u, 5u
#define QPC_RQ_ENTRY_SZ_LOG 12u, 4u, 16u, 8u
#define QPC_SQ_ENTRY_SZ_LOG 12u, 4u, 8u, 8u
#define QPC_RLKEY_ARBEL_SCHED_QUEUE 12u, 4u, 0u, 8u
#define QPC_USR_PAGE 16u, 4u, 0u, 32u
#define QPC_LOCAL_QPN 20u, 4u, 0u, 32u
#define QPC_REMOTE_QPN 24u, 4u, 0u, 32u
#define QPC_PORT 28u, 4u, 24u, 3u
#define QPC_PKEY_INDEX 28u, 4u, 0u, 7u
#define QPC_RNR_RETRY 32u, 4u, 24u, 8u
#define QPC_HAS_GRH 32u, 4u, 23u, 1u
#define QPC_MY_LMC 32u, 4u, 16u, 7u
#define QPC_ACKTO 36u, 1u, 0u, 8u
#define QPC_MGID_INDEX 37u, 1u, 0u, 8u
#define QPC_STATIC_RATE 38u, 1u, 0u, 8u
#define QPC_HOP_LIMIT 39u, 1u, 0u, 8u
#define QPC_SL 40u, 4u, 28u, 4u
#define QPC_TCLASS 40u, 4u, 20u, 8u
#define QPC_FLOW_LABEL 40u, 4u, 0u, 20u
#define QPC_DLID 60u, 2u, 0u, 16u
#define QPC_SLID 62u, 2u, 0u, 16u
#define QPC_SMAC_HI 64u, 4u, 0u, 32u
#define QPC_DMAC_HI 68u, 4u, 0u, 32u
#define QPC_SIP 72u, 4u, 0u, 32u
#define QPC_DIP 76u, 4u, 0u, 32u
#define QPC_PD 92u, 4u, 0u, 32u
#define QPC_WQE_BASE 96u, 4u, 0u, 32u
#define QPC_WQE_LKEY 100u, 4u, 0u, 32u
#define QPC_NEXT_SEND_PSN 108u, 4u, 0u, 32u
#define QPC_CQN_SND 112u, 4u, 0u, 32u
#define QPC_SND_WQE_BASE_LKEY 116u, 4u, 0u, 32u
#define QPC_SND_WQE_LENGTH 120u, 4u, 0u, 32u
#define QPC_LAST_ACKED_PSN 124u, 4u, 0u, 32u
#define QPC_SSN 128u, 4u, 0u, 32u
#define QPC_RNR_NAK_TIMER 132u, 4u, 24u, 8u
#define QPC_EXPECTED_PSN 132u, 4u, 0u, 24u
#define QPC_RA_BUFF_INDX 136u, 4u, 0u, 32u
#define QPC_CQN_RCV 140u, 4u, 0u, 32u
#define QPC_RCV_WQE_BASE_LKEY 144u, 4u, 0u, 32u
#define QPC_RCV_WQE_LENGTH 148u, 4u, 0u, 32u
#define QPC_QKEY 152u, 4u, 0u, 32u
#define QPC_RMSN 156u, 4u, 0u, 32u
#define QPC_RQ_WQE_COUNTER 188u, 4u, 16u, 16u
#define QPC_SQ_WQE_COUNTER 188u, 4u, 0u, 16u
#define QPC_SQ_BASE 208u, 8u, 0u, 64u
#define QPC_RQ_BASE 216u, 8u, 0u, 64u
#define QPC_RETRY_CNT 225u, 1u, 0u, 8u
#define QPC_OPTIONS 226u, 1u, 0u, 8u
#define QPC_SQ_DRAINING 227u, 1u, 0u, 8u
#define QPC_MAX_RD_ATOMIC 228u, 1u, 0u, 8u
#define QPC_MAX_DEST_RD_ATOMIC 229u, 1u, 0u, 8u
#define QPC_UDP_SPORT 230u, 2u, 0u, 16u
#define QPC_UDP_DPORT 232u, 2u, 0u, 16u
#define QPC_SQ_MAX_SGE 234u, 1u, 0u, 8u
#define QPC_RQ_MAX_SGE 235u, 1u, 0u, 8u
#define QPC_SRQN 236u, 4u, 0u, 32u
#define QPC_SQ_SLAB_BYTES 240u, 2u, 0u, 16u
#define QPC_WINDOW_PACKETS 242u, 2u, 0u, 16u
#define QPC_EXTENSION_VALID 244u, 4u, 31u, 1u
#define QPC_ACCESS_FLAGS 244u, 4u, 0u, 16u
#define QPC_XRCD 248u, 2u, 0u, 16u
#define SQE_WQE_ID 0u, 0u, 32u
#define SQE_OPCODE 0u, 32u, 16u
#define SQE_SIGNALED 0u, 48u, 1u
#define SQE_SOLICITED 0u, 49u, 1u
#define SQE_FENCE 0u, 50u, 1u
#define SQE_INLINE 0u, 51u, 1u
#define SQE_LIST 0u, 52u, 1u
#define SQE_LOCAL_ADDR 1u, 0u, 64u
#define SQE_REMOTE_ADDR 2u, 0u, 64u
#define SQE_LENGTH 3u, 0u, 32u
#define SQE_LKEY 3u, 32u, 32u
#define SQE_RKEY 4u, 0u, 32u
#define SQE_IMM 4u, 32u, 32u
#define SQE_UD_WQE_ID 0u, 0u, 32u
#define SQE_UD_OPCODE 0u, 32u, 16u
#define SQE_UD_SIGNALED 0u, 48u, 1u
#define SQE_UD_SOLICITED 0u, 49u, 1u
#define SQE_UD_FENCE 0u, 50u, 1u
#define SQE_UD_INLINE 0u, 51u, 1u
#define SQE_UD_LIST 0u, 52u, 1u
#define SQE_UD_LOCAL_ADDR 1u, 0u, 64u
#define SQE_UD_FLOW_LABEL 2u, 0u, 20u
#define SQE_UD_TCLASS 2u, 20u, 8u
#define SQE_UD_SL 2u, 28u, 4u
#define SQE_UD_UDP_DPORT 2u, 32u, 16u
#define SQE_UD_UDP_SPORT 2u, 48u, 16u
#define SQE_UD_LENGTH 3u, 0u, 32u
#define SQE_UD_LKEY 3u, 32u, 32u
#define SQE_UD_SGID_INDEX 4u, 0u, 32u
#define SQE_UD_IMM 4u, 32u, 32u
#define SQE_UD_DQPN 7u, 0u, 24u
#define SQE_UD_HOP_LIMIT 7u, 24u, 8u
#define SQE_UD_QKEY 7u, 32u, 32u
#define ATTACH_REPLY_HEADER_SIZE 12u
#define ATTACH_REPLY_HEADER_KIND_AT 0u
#define ATTACH_REPLY_HEADER_TOKEN_AT 4u
#define ATTACH_REPLY_HEADER_ERROR_AT 8u
#define ATTACH_OPEN_SLOT_SIZE 580u
#define ATTACH_OPEN_SLOT_LAYOUT_AT 0u
#define ATTACH_OPEN_SLOT_ARENA_BYTES_AT 8u
#define ATTACH_OPEN_SLOT_SHARED_BYTES_AT 16u
#define ATTACH_OPEN_SLOT_FIRST_QPN_AT 24u
#define ATTACH_OPEN_SLOT_SLOT_AT 28u
#define ATTACH_OPEN_SLOT_UDP_PORT_AT 32u
#define ATTACH_OPEN_SLOT_ADDRESS_BYTES_AT 36u
#define ATTACH_OPEN_SLOT_ADDRESS_AT 40u
#define ATTACH_OPEN_SLOT_BUDGET_BYTES_AT 56u
#define ATTACH_OPEN_SLOT_SOURCE_PORTS_AT 64u
#define ATTACH_OPEN_SLOT_SOURCE_PORT_LIST_AT 68u
#define ATTACH_PUNT_SIZE 112u
#define ATTACH_PUNT_KIND_AT 0u
#define ATTACH_PUNT_EFFECTS_AT 4u
#define ATTACH_PUNT_QP_AT 8u
#define ATTACH_PUNT_LIMIT_AT 16u
#define ATTACH_PUNT_COUNT_AT 24u
#define ATTACH_PUNT_BYTES_AT 32u
#define ATTACH_PUNT_ROOM_AT 40u
#define ATTACH_PUNT_STEP_AT 48u
#define ATTACH_PUNT_BUFFER_AT 52u
#define ATTACH_PUNT_LENGTH_AT 56u
#define ATTACH_PUNT_AT_AT 60u
#define ATTACH_PUNT_SEGMENT_AT 64u
#define ATTACH_PUNT_SENDER_BYTES_AT 68u
#define ATTACH_PUNT_TCLASS_AT 72u
#define ATTACH_PUNT_HOP_LIMIT_AT 76u
#define ATTACH_PUNT_FLOW_LABEL_AT 80u
#define ATTACH_PUNT_REPLY_SIZE 16u
#define ATTACH_PUNT_REPLY_COUNT_AT 0u
#define ATTACH_PUNT_REPLY_RESCHEDULE_AT 8u
#define ATTACH_PUNT_REPLY_SETTLED_AT 12u
#define ATTACH_SHM_RING_SIZE 16u
#define ATTACH_SHM_RING_QPN_AT 0u
#define ATTACH_SHM_RING_COOKIE_VA_AT 8u
#define ATTACH_SHM_RING_REPLY_SIZE 48u
#define ATTACH_SHM_RING_REPLY_NUMBERS_AT 0u
#define ATTACH_SHM_RING_REPLY_FIRST_QPN_AT 4u
#define ATTACH_SHM_RING_REPLY_PID_AT 8u
#define ATTACH_SHM_RING_REPLY_RING_AT 12u
#define ATTACH_SHM_RING_REPLY_BYTES_AT 16u
#define ATTACH_SHM_RING_REPLY_COOKIE_VA_AT 24u
#define ATTACH_SHM_RING_REPLY_COOKIE_AT 32u
#define ATTACH_SOURCE_PORT_SIZE 4u
#define ATTACH_SOURCE_PORT_PORT_AT 0u

/* Counters of both executors, by number. */
enum engine_count {
	COUNT_ACKS_RECEIVED,
	COUNT_ACKS_COALESCED,
	COUNT_RETRANSMITTED_PACKETS,
	COUNT_RETRANSMITTED_REQUESTS,
	COUNT_DROP_PSN_GAP,
	COUNT_DROP_NAKED,
	COUNT_DROP_DUPLICATE,
	COUNT_DROP_STALE_RESPONSE,
	COUNT_DROP_GHOST_RESPONSE,
	COUNT_SEQUENCE_NAKS_SENT,
	COUNT_RNR_NAKS_SENT,
	COUNT_SEQUENCE_NAKS_RECEIVED,
	COUNT_RNR_NAKS_RECEIVED,
	COUNT_REWINDS,
	COUNT_ACK_TIMEOUTS,
	COUNT_PROBES,
	COUNT_DROP_DUPLICATE_UNMATCHED,
	COUNT_DUPLICATE_READS,
	COUNT_DUPLICATE_ATOMICS,
	COUNT_IMPLIED_NAKS,
	COUNT_DROP_BAD_SEQUENCE,
	COUNT_ECN_MARKED_PACKETS,
	COUNT_CNPS_MERGED,
	COUNT_CNPS_SENT,
	COUNT_CNPS_RECEIVED,
	COUNT_CNP_RATE_CUTS,
	COUNT_CNP_LIMITS,
	COUNT_EVENT_CONGESTION,
	ENGINE_COUNTS
};
/* Counter of a sent NAK, by bits 6:5 of its syndrome. */
static const uint8_t naks_sent[4] = {
	[1] = COUNT_RNR_NAKS_SENT,
	[3] = COUNT_SEQUENCE_NAKS_SENT,
};
/* Reasons for punts; see punt_* of struct slot. */
#define PUNT_REASONS PUNT_SHORT, PUNT_STATE, PUNT_HEADER, PUNT_ICRC, PUNT_PSN, PUNT_SEQUENCE, PUNT_LENGTH, PUNT_KEY, PUNT_MEMORY, PUNT_REPLY, PUNT_ACK, PUNT_CQ, PUNT_REQUEST, PUNT_PATH, PUNT_WAIT

#define ROW_START 0x1u
#define ROW_END 0x2u
#define ROW_PAYLOAD 0x4u
#define ROW_SEND 0x8u
#define ROW_WRITE 0x10u
#define ROW_READ_RESPONSE 0x20u
#define ROW_ATOMIC 0x40u
#define ROW_RESPONSE 0x80u
#define ROW_TAKES_RECEIVE 0x100u
#define ROW_FETH 0x200u
#define ROW_RETH 0x400u
#define ROW_IMMDT 0x800u
#define ROW_IETH 0x1000u
#define ROW_AETH 0x2000u
struct opcode_row {
	uint16_t header_bytes; /* BTH and extended headers; 0 for an unknown opcode */
	uint16_t flags; /* ROW_* bits */
};
static const struct opcode_row opcode_rows[256] = {
	[0x00] = { 12, 0x000d }, /* RC_SEND_FIRST */
	[0x01] = { 12, 0x000c }, /* RC_SEND_MIDDLE */
	[0x02] = { 12, 0x010e }, /* RC_SEND_LAST */
	[0x03] = { 16, 0x090e }, /* RC_SEND_LAST_IMM */
	[0x04] = { 12, 0x010f }, /* RC_SEND_ONLY */
	[0x05] = { 16, 0x090f }, /* RC_SEND_ONLY_IMM */
	[0x06] = { 28, 0x0415 }, /* RC_WRITE_FIRST */
	[0x07] = { 12, 0x0014 }, /* RC_WRITE_MIDDLE */
	[0x08] = { 12, 0x0016 }, /* RC_WRITE_LAST */
	[0x09] = { 16, 0x0916 }, /* RC_WRITE_LAST_IMM */
	[0x0a] = { 28, 0x0417 }, /* RC_WRITE_ONLY */
	[0x0b] = { 32, 0x0d17 }, /* RC_WRITE_ONLY_IMM */
	[0x0c] = { 28, 0x0403 }, /* RC_READ_REQUEST */
	[0x0d] = { 16, 0x20a5 }, /* RC_READ_RESPONSE_FIRST */
	[0x0e] = { 12, 0x00a4 }, /* RC_READ_RESPONSE_MIDDLE */
	[0x0f] = { 16, 0x20a6 }, /* RC_READ_RESPONSE_LAST */
	[0x10] = { 16, 0x20a7 }, /* RC_READ_RESPONSE_ONLY */
	[0x11] = { 16, 0x2083 }, /* RC_ACKNOWLEDGE */
	[0x12] = { 24, 0x2083 }, /* RC_ATOMIC_ACKNOWLEDGE */
	[0x13] = { 40, 0x0043 }, /* RC_COMPARE_SWAP */
	[0x14] = { 40, 0x0043 }, /* RC_FETCH_ADD */
	[0x16] = { 16, 0x110e }, /* RC_SEND_LAST_INV */
	[0x17] = { 16, 0x110f }, /* RC_SEND_ONLY_INV */
	[0x1c] = { 32, 0x0603 }, /* RC_FLUSH */
	[0x1d] = { 28, 0x0407 }, /* RC_ATOMIC_WRITE */
	[0x20] = { 12, 0x000d }, /* UC_SEND_FIRST */
	[0x21] = { 12, 0x000c }, /* UC_SEND_MIDDLE */
	[0x22] = { 12, 0x010e }, /* UC_SEND_LAST */
	[0x23] = { 16, 0x090e }, /* UC_SEND_LAST_IMM */
	[0x24] = { 12, 0x010f }, /* UC_SEND_ONLY */
	[0x25] = { 16, 0x090f }, /* UC_SEND_ONLY_IMM */
	[0x26] = { 28, 0x0415 }, /* UC_WRITE_FIRST */
	[0x27] = { 12, 0x0014 }, /* UC_WRITE_MIDDLE */
	[0x28] = { 12, 0x0016 }, /* UC_WRITE_LAST */
	[0x29] = { 16, 0x0916 }, /* UC_WRITE_LAST_IMM */
	[0x2a] = { 28, 0x0417 }, /* UC_WRITE_ONLY */
	[0x2b] = { 32, 0x0d17 }, /* UC_WRITE_ONLY_IMM */
	[0x64] = { 20, 0x010f }, /* UD_SEND_ONLY */
	[0x65] = { 24, 0x090f }, /* UD_SEND_ONLY_IMM */
	[0x81] = { 12, 0x0007 }, /* CNP */
	[0xa0] = { 16, 0x000d }, /* XRC_SEND_FIRST */
	[0xa1] = { 16, 0x000c }, /* XRC_SEND_MIDDLE */
	[0xa2] = { 16, 0x010e }, /* XRC_SEND_LAST */
	[0xa3] = { 20, 0x090e }, /* XRC_SEND_LAST_IMM */
	[0xa4] = { 16, 0x010f }, /* XRC_SEND_ONLY */
	[0xa5] = { 20, 0x090f }, /* XRC_SEND_ONLY_IMM */
	[0xa6] = { 32, 0x0415 }, /* XRC_WRITE_FIRST */
	[0xa7] = { 16, 0x0014 }, /* XRC_WRITE_MIDDLE */
	[0xa8] = { 16, 0x0016 }, /* XRC_WRITE_LAST */
	[0xa9] = { 20, 0x0916 }, /* XRC_WRITE_LAST_IMM */
	[0xaa] = { 32, 0x0417 }, /* XRC_WRITE_ONLY */
	[0xab] = { 36, 0x0d17 }, /* XRC_WRITE_ONLY_IMM */
	[0xac] = { 32, 0x0403 }, /* XRC_READ_REQUEST */
	[0xad] = { 16, 0x20a5 }, /* XRC_READ_RESPONSE_FIRST */
	[0xae] = { 12, 0x00a4 }, /* XRC_READ_RESPONSE_MIDDLE */
	[0xaf] = { 16, 0x20a6 }, /* XRC_READ_RESPONSE_LAST */
	[0xb0] = { 16, 0x20a7 }, /* XRC_READ_RESPONSE_ONLY */
	[0xb1] = { 16, 0x2083 }, /* XRC_ACKNOWLEDGE */
	[0xb2] = { 24, 0x2083 }, /* XRC_ATOMIC_ACKNOWLEDGE */
	[0xb3] = { 44, 0x0043 }, /* XRC_COMPARE_SWAP */
	[0xb4] = { 44, 0x0043 }, /* XRC_FETCH_ADD */
	[0xb6] = { 20, 0x110e }, /* XRC_SEND_LAST_INV */
	[0xb7] = { 20, 0x110f }, /* XRC_SEND_ONLY_INV */
	[0xbc] = { 36, 0x0603 }, /* XRC_FLUSH */
	[0xbd] = { 32, 0x0407 }, /* XRC_ATOMIC_WRITE */
};

#endif
