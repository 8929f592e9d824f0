# Interface for other extension modules: the engine's C structures and functions, and the classes that own them.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from "state.h" nogil:
    struct memory_key:
        uint64_t key
    struct completion_queue:
        uint64_t logsize
    struct queue_pair:
        uint64_t batch_limit
        uint64_t inflight
        uint64_t window
    struct send_wqe:
        pass
    struct read_piece:
        pass
    struct reply:
        pass
    struct resource:
        pass
    struct shared_receive_queue:
        pass
    struct scatter:
        pass

cdef extern from "engine.h" nogil:
    ctypedef uint32_t (*engine_crc)(uint32_t state, const uint8_t *data, uint64_t length) noexcept nogil
    ctypedef uint32_t (*engine_crc_copy)(uint32_t state, uint8_t *to, const uint8_t *data, uint64_t length) noexcept nogil
    ctypedef uint32_t atomic_word "_Atomic uint32_t"
    struct engine_memory:
        pass
    struct engine_segment:
        const engine_memory *memory
        void *self
    struct engine_mapping:
        uint8_t *bytes
        const engine_segment *segment
    struct engine_congestion:
        uint64_t control, merge_ns, hold_ns
        uint64_t line_rate, least_rate, g_shift, alpha_ns, timer_ns, counter_bytes, recovery_rounds, additive_rate
        uint64_t hyper_rate
    struct engine_ack:
        uint64_t now, psn, next_psn, packets, rtt_ns
    struct engine_control_calls:
        void (*on_ack)(void *self, queue_pair *record, const engine_ack *ack) noexcept
        void (*on_cnp)(void *self, queue_pair *record, uint64_t now) noexcept
        void (*on_loss)(void *self, queue_pair *record, uint64_t now) noexcept
        void (*on_timer)(void *self, queue_pair *record, uint64_t now) noexcept
        void (*on_sent)(void *self, queue_pair *record, uint64_t bytes) noexcept
        void *self
    struct engine_shared:
        const memory_key *keys
        const engine_mapping *reach
        uint64_t key_count
        engine_crc crc
        uint64_t ack_every
        uint64_t probe
        uint64_t rq_almost_full
        engine_crc_copy crc_copy
        uint64_t bare
        engine_congestion congestion
        const engine_control_calls *control_calls
        engine_prefetch *prefetch
        engine_icrc_cache *icrc_cache
    struct engine_prefetch:
        uint8_t *staging
    struct engine_icrc_cache:
        pass
    enum:
        ENGINE_PREFETCH
        ENGINE_PREFETCH_BYTES
        ENGINE_ICRC_CACHE
    struct engine_cq:
        completion_queue *record
        uint8_t *ring
        uint64_t entries
        atomic_word *block
    struct engine_flow:
        uint8_t source[16]
        uint8_t destination[16]
        uint16_t source_port
        uint16_t destination_port
        uint16_t address_bytes
    struct engine_destination:
        uint64_t path
        uint64_t gid[2]
        uint64_t hop_limit
        uint64_t found
        engine_flow flow
        const void *route
        uint64_t max_segments
    uint64_t engine_destination_place(uint64_t path, const uint64_t *gid)
    struct engine_translation:
        uint64_t *words
        uint64_t number
        uint64_t *tlb
        uint64_t tlb_sets, tlb_ways
        uint64_t handles
    struct engine_qp:
        uint8_t *qpc
        queue_pair *record
        send_wqe *sends
        read_piece *pieces
        reply *replies
        resource *resources
        scatter *scatters
        uint64_t send_wqes
        const uint8_t *sq
        uint64_t sq_bytes
        const uint8_t *rq
        uint64_t rq_bytes
        shared_receive_queue *srq
        atomic_word *srq_block
        atomic_word *block
        engine_cq *send_cq
        engine_cq *recv_cq
        uint32_t send_cqn
        uint32_t recv_cqn
        uint64_t signal_all
        engine_flow flow
        uint64_t found
        const void *route
        engine_destination *destinations
        const engine_translation *translation
        uint64_t guarded
    struct engine_inflight:
        uint64_t peer_limit, peer_inflight, peer_promised, peer_waiting
        uint64_t nic_limit, nic_inflight, nic_promised, nic_queued, nic_overtaken
        uint64_t others
        uint64_t srtt, rttvar, alone
    struct engine_meta:
        engine_flow flow
        uint32_t ident
        uint32_t frag
        uint32_t known_mask, known_bits
        uint32_t flow_label
        uint8_t tclass, hop_limit
    struct engine_effects:
        uint32_t effects
        uint32_t end
        uint64_t packets, acknowledged, inflight_acked, inflight_sent, admitted, sample, inflight_resend
        uint32_t counts[32]
    struct engine_burst:
        uint64_t offset
        uint64_t length
        uint32_t segment
        uint32_t count
        const void *route
    struct engine_out:
        uint8_t *bytes
        uint64_t room
        uint64_t used
        uint64_t max_segments
        const void *route
        uint32_t open
        uint32_t count
        void (*carry)(engine_out *out) noexcept nogil
        void (*turned)(engine_out *out, const engine_qp *qp) noexcept nogil
        uint64_t carried
        engine_burst bursts[288]
    enum:
        ENGINE_BURSTS
        ENGINE_DESTINATIONS
        ENGINE_DONE
        ENGINE_AGAIN
        ENGINE_ATTENTION
        IDENT_UNSEEN
        EFFECT_SCHEDULE
        EFFECT_ACKNOWLEDGED
        EFFECT_NOTIFY_SEND
        EFFECT_NOTIFY_RECV
        EFFECT_NO_ROOM
        EFFECT_ARM
        EFFECT_GO_ON
        EFFECT_LOST
        EFFECT_SILENT
        EFFECT_FIRST
        EFFECT_BEGUN
        ENGINE_COUNTS
        MAX_PATH_MTU
        MAX_TRANSPORT_HEADERS
        ICRC_BYTES
        NO_SUCH "NONE"
    uint64_t engine_layout_hash()
    size_t engine_receive(const engine_shared *port, engine_qp *qp, const uint8_t *buffer, size_t length, size_t segment,
                          size_t start, const engine_meta *meta, const engine_inflight *flight, uint64_t now,
                          engine_effects *effects)
    uint64_t engine_send(const engine_shared *port, engine_qp *qp, uint64_t now, uint64_t budget, engine_inflight *flight,
                         engine_out *out, engine_effects *effects)
    void engine_timeout(const engine_shared *port, engine_qp *qp, const engine_inflight *flight, uint64_t now,
                        engine_effects *effects)
    uint64_t engine_reply(const engine_shared *port, engine_qp *qp, uint64_t budget, engine_out *out,
                          engine_effects *effects)

cdef extern from "device/device.h" nogil:
    struct inflight:
        uint64_t spare_line
    struct scheduler:
        uint64_t count
    struct engine_sched:
        uint8_t *arena
        inflight *inflight
        scheduler *scheduler
        uint8_t *budget
        uint64_t slot
    struct engine_counts:
        uint64_t rx_packets, tx_packets
        uint64_t events[32]
    struct engine_device:
        const engine_shared *shared
        engine_sched sched
        engine_qp **qps
        uint64_t log_qps
        uint64_t changes
        uint64_t piggyback_acks
        engine_counts counts
    struct engine_stop_info:
        uint32_t stop
        uint32_t end
        uint64_t qp
        uint32_t effects
    struct engine_sending:
        uint64_t sent, qp, limit, count, bytes, room
        uint32_t step, deferred_count
        uint64_t deferred[288]
    enum:
        STOP_DONE
        STOP_PUNT_PACKET
        STOP_NOTIFY
        STOP_MAP_QP
        STOP_PUNT_TURN
        STOP_OUT_FULL
        ENGINE_MIN_REPLIES
    int engine_device_ring(engine_device *device, engine_qp *qp)
    void engine_device_find(engine_device *device, uint8_t *arena)
    size_t engine_device_receive(engine_device *device, const uint8_t *buffer, size_t length, size_t segment, size_t start,
                               const engine_meta *meta, uint64_t now, engine_stop_info *told)
    void engine_device_send(engine_device *device, uint64_t now, uint64_t budget, engine_out *out, engine_sending *sending,
                          engine_stop_info *told)
    void engine_device_sent(engine_device *device, engine_sending *sending)
    uint64_t engine_device_due(engine_device *device, uint64_t now, uint64_t *most)
    uint64_t engine_device_deadline(const engine_device *device)

cdef uint8_t *buffer_address(object view, Py_ssize_t *length) except? NULL
cdef int fill_flow(engine_flow *to, object flow) except -1


cdef class Shared:
    cdef engine_shared c_shared
    cdef engine_mapping *reach
    cdef object arena
    cdef uint8_t *base
    cdef object guards, translations
    cdef dict segments
    cdef engine_prefetch prefetch
    cdef engine_segment *prefetch_memory


cdef class CompletionQueue:
    cdef engine_cq c_cq
    cdef object queue, view


cdef extern from "io/reorder.h" nogil:
    struct reorder_buffer:
        pass

    size_t reorder_receive(reorder_buffer **reorder, uint64_t *releasing_qp, engine_device *device,
                           const uint8_t *buffer, size_t length, size_t segment, size_t start,
                           const engine_meta *meta, uint64_t now, engine_stop_info *told)
    bint reorder_resume(reorder_buffer *reorder, uint64_t *releasing_qp, engine_device *device, uint64_t now,
                        engine_stop_info *told)


cdef class Device:
    cdef Shared shared
    cdef engine_device c_device
    cdef reorder_buffer *reorder
    cdef uint64_t releasing_qp
    cdef public bint selective
    cdef engine_qp **qps
    cdef object nic, sending, counters, budget
    cdef dict paths, executors, by_block
    cdef object io_poll  # an IoPoll, or None
    cdef readonly int end

    cdef const void *path_of(self, flow) except? NULL
    cdef int handle_stop(self, engine_stop_info *told) except -1
    cdef object run_reference_turn(self, uint64_t now, engine_sending *sending, list out)
    cdef int flush_counters(self, uint64_t now) except -1
