"""Exports of the two libraries: names, versions, and return values of names without an implementation.

Names are append-only in every release of the libraries, so this superset serves all distributions' programs.
``VERBS`` holds each version's names, :data:`VERBS_PRIVATE` those that other vendors' providers import (they are
loaded with most programs, and a missing name keeps the program from starting). Names of version 1.1 that existed
before 2008 with another meaning are also exported as 1.0, only for the loader.
"""

from __future__ import annotations


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


VERBS: dict[str, tuple[str, ...]] = {
    "1.0": _names("""
        ibv_copy_path_rec_from_kern ibv_copy_path_rec_to_kern ibv_copy_qp_attr_from_kern ibv_create_comp_channel
        ibv_destroy_comp_channel ibv_get_sysfs_path ibv_rate_to_mult ibv_read_sysfs_file mult_to_ibv_rate
    """),
    "1.1": _names("""
        ibv_ack_async_event ibv_ack_cq_events ibv_alloc_pd ibv_attach_mcast ibv_close_device ibv_copy_ah_attr_from_kern
        ibv_create_ah ibv_create_ah_from_wc ibv_create_cq ibv_create_qp ibv_create_srq ibv_dealloc_pd ibv_dereg_mr
        ibv_destroy_ah ibv_destroy_cq ibv_destroy_qp ibv_destroy_srq ibv_detach_mcast ibv_dofork_range
        ibv_dontfork_range ibv_event_type_str ibv_fork_init ibv_free_device_list ibv_get_async_event ibv_get_cq_event
        ibv_get_device_guid ibv_get_device_list ibv_get_device_name ibv_init_ah_from_wc ibv_modify_qp ibv_modify_srq
        ibv_node_type_str ibv_open_device ibv_port_state_str ibv_query_device ibv_query_gid ibv_query_pkey
        ibv_query_port ibv_query_qp ibv_query_srq ibv_rate_to_mbps ibv_reg_mr ibv_register_driver ibv_rereg_mr
        ibv_resize_cq ibv_resolve_eth_l2_from_gid ibv_wc_status_str mbps_to_ibv_rate
    """),
    "1.5": ("ibv_get_pkey_index",),
    "1.6": ("ibv_qp_to_qp_ex",),
    "1.7": ("ibv_reg_mr_iova",),
    "1.8": ("ibv_reg_mr_iova2",),
    "1.9": ("ibv_get_device_index",),
    "1.10": _names("""
        ibv_import_device ibv_import_mr ibv_import_pd ibv_query_ece ibv_set_ece ibv_unimport_mr ibv_unimport_pd
    """),
    "1.11": ("_ibv_query_gid_ex", "_ibv_query_gid_table"),
    "1.12": ("ibv_reg_dmabuf_mr",),
    "1.13": ("ibv_import_dm", "ibv_is_fork_initialized", "ibv_unimport_dm"),
    "1.14": ("ibv_query_qp_data_in_order",),
    "1.15": ("ibv_alloc_dmah", "ibv_dealloc_dmah", "ibv_reg_mr_ex"),
    "1.16": ("ibv_dm_export_dmabuf_fd", "ibv_query_port_speed"),
    "1.17": ("ibv_alloc_buf", "ibv_free_buf", "ibv_reg_buf_mr"),
    "1.18": _names("""
        _ibv_query_comp_cntr_caps ibv_create_comp_cntr ibv_destroy_comp_cntr ibv_export_buf_dmabuf_fd ibv_inc_comp_cntr
        ibv_inc_err_comp_cntr ibv_qp_attach_comp_cntr ibv_read_comp_cntr ibv_read_err_comp_cntr ibv_set_comp_cntr
        ibv_set_err_comp_cntr
    """),
}

VERBS_OWN = ("rnic_modify_qp_twice", "rnic_own_gid_index")
"""Functions of rnic's libibverbs that its librdmacm calls in addition to verbs."""
VERBS_PRIVATE: tuple[str, ...] = _names("""
    __ioctl_final_num_attrs __verbs_log _verbs_init_and_alloc_context execute_ioctl ibv_cmd_advise_mr ibv_cmd_alloc_dm
    ibv_cmd_alloc_dmah ibv_cmd_alloc_mw ibv_cmd_alloc_pd ibv_cmd_attach_mcast ibv_cmd_close_xrcd ibv_cmd_create_ah
    ibv_cmd_create_comp_cntr ibv_cmd_create_counters ibv_cmd_create_cq ibv_cmd_create_cq_ex ibv_cmd_create_cq_ex2
    ibv_cmd_create_flow ibv_cmd_create_flow_action_esp ibv_cmd_create_qp ibv_cmd_create_qp_ex ibv_cmd_create_qp_ex2
    ibv_cmd_create_rwq_ind_table ibv_cmd_create_srq ibv_cmd_create_srq_ex ibv_cmd_create_wq ibv_cmd_dealloc_mw
    ibv_cmd_dealloc_pd ibv_cmd_dereg_mr ibv_cmd_destroy_ah ibv_cmd_destroy_comp_cntr ibv_cmd_destroy_counters
    ibv_cmd_destroy_cq ibv_cmd_destroy_flow ibv_cmd_destroy_flow_action ibv_cmd_destroy_qp ibv_cmd_destroy_rwq_ind_table
    ibv_cmd_destroy_srq ibv_cmd_destroy_wq ibv_cmd_detach_mcast ibv_cmd_export_dmabuf_fd ibv_cmd_free_dm
    ibv_cmd_free_dmah ibv_cmd_get_context ibv_cmd_inc_comp_cntr ibv_cmd_inc_err_comp_cntr ibv_cmd_modify_cq
    ibv_cmd_modify_flow_action_esp ibv_cmd_modify_qp ibv_cmd_modify_qp_ex ibv_cmd_modify_srq ibv_cmd_modify_wq
    ibv_cmd_open_qp ibv_cmd_open_xrcd ibv_cmd_poll_cq ibv_cmd_post_recv ibv_cmd_post_send ibv_cmd_post_srq_recv
    ibv_cmd_qp_attach_comp_cntr ibv_cmd_query_comp_cntr_caps ibv_cmd_query_context ibv_cmd_query_device_any
    ibv_cmd_query_mr ibv_cmd_query_port ibv_cmd_query_port_speed ibv_cmd_query_qp ibv_cmd_query_srq
    ibv_cmd_read_comp_cntr ibv_cmd_read_counters ibv_cmd_read_err_comp_cntr ibv_cmd_reg_dm_mr ibv_cmd_reg_dmabuf_mr
    ibv_cmd_reg_mr ibv_cmd_reg_mr_ex ibv_cmd_req_notify_cq ibv_cmd_rereg_mr ibv_cmd_resize_cq ibv_cmd_set_comp_cntr
    ibv_cmd_set_err_comp_cntr ibv_dmabuf_heap_alloc ibv_dmabuf_heap_cc_shared_init ibv_dmabuf_heap_destroy
    ibv_dmabuf_heap_free ibv_query_gid_type ibv_read_ibdev_sysfs_file ibv_wr_opcode_str verbs_allow_disassociate_destroy
    verbs_init_cq verbs_open_device verbs_set_ops verbs_uninit_context
""")
"""Exported in each version of :data:`PRIVATE_VERSIONS`."""
PRIVATE_VERSIONS: dict[str, tuple[str, ...]] = {
    "34": ("verbs_register_driver_34",),
    "33": ("verbs_register_driver_33",),
    "65": ("verbs_register_driver_65",),
}
"""Numbers of the private versions, and the names that only one has: Debian 11 has 33, Debian 12 and 13 have 34,
rdma-core 65 has 65.

The common names of all but the first are separate symbols, such as ``private_65_NAME``.
"""

VERBS_BEFORE_2008: tuple[str, ...] = _names("""
    ibv_ack_async_event ibv_ack_cq_events ibv_alloc_pd ibv_attach_mcast ibv_close_device ibv_create_ah ibv_create_cq
    ibv_create_qp ibv_create_srq ibv_dealloc_pd ibv_dereg_mr ibv_destroy_ah ibv_destroy_cq ibv_destroy_qp
    ibv_destroy_srq ibv_detach_mcast ibv_free_device_list ibv_get_async_event ibv_get_cq_event ibv_get_device_guid
    ibv_get_device_list ibv_get_device_name ibv_modify_qp ibv_modify_srq ibv_open_device ibv_query_device ibv_query_gid
    ibv_query_pkey ibv_query_port ibv_query_qp ibv_query_srq ibv_reg_mr ibv_resize_cq
""")

RDMACM: dict[str, tuple[str, ...]] = {
    "1.0": _names("""
        raccept rbind rclose rconnect rdma_accept rdma_ack_cm_event rdma_bind_addr rdma_connect rdma_create_ep
        rdma_create_event_channel rdma_create_id rdma_create_qp rdma_create_qp_ex rdma_create_srq rdma_create_srq_ex
        rdma_destroy_ep rdma_destroy_event_channel rdma_destroy_id rdma_destroy_qp rdma_destroy_srq rdma_disconnect
        rdma_event_str rdma_free_devices rdma_freeaddrinfo rdma_get_cm_event rdma_get_devices rdma_get_dst_port
        rdma_get_request rdma_get_src_port rdma_getaddrinfo rdma_join_multicast rdma_leave_multicast rdma_listen
        rdma_migrate_id rdma_notify rdma_reject rdma_resolve_addr rdma_resolve_route rdma_set_option rfcntl rgetpeername
        rgetsockname rgetsockopt riomap riounmap riowrite rlisten rpoll rread rreadv rrecv rrecvfrom rrecvmsg rselect
        rsend rsendmsg rsendto rsetsockopt rshutdown rsocket rwrite rwritev
    """),
    "1.1": ("rdma_join_multicast_ex",),
    "1.2": ("rdma_establish", "rdma_init_qp_attr"),
    "1.3": ("rdma_get_remote_ece", "rdma_reject_ece", "rdma_set_local_ece"),
    "1.4": ("rdma_query_addrinfo", "rdma_resolve_addrinfo", "rdma_write_cm_event"),
    "1.5": ("repoll_create", "repoll_ctl", "repoll_wait"),
}

UMAD: dict[str, tuple[str, ...]] = {
    "1.0": _names("""
        umad_addr_dump umad_attribute_str umad_class_str umad_close_port umad_common_mad_status_str umad_debug umad_done
        umad_dump umad_get_ca umad_get_ca_portguids umad_get_cas_names umad_get_fd umad_get_issm_path umad_get_mad
        umad_get_mad_addr umad_get_pkey umad_get_port umad_init umad_method_str umad_open_port umad_poll umad_recv
        umad_register umad_register2 umad_register_oui umad_release_ca umad_release_port umad_sa_mad_status_str
        umad_send umad_set_addr umad_set_addr_net umad_set_grh umad_set_pkey umad_size umad_status umad_unregister
    """),
    "1.1": ("umad_free_ca_device_list", "umad_get_ca_device_list"),
    "1.2": ("umad_sort_ca_device_list",),
    "1.3": ("umad_open_smi_port",),
    "1.4": ("umad_get_smi_gsi_pair_by_ca_name", "umad_get_smi_gsi_pairs"),
}
"""Of the system's libibumad, which is not replaced: it works on the files of :mod:`rnic.nic_process.umad`."""

RETURN_POINTERS: frozenset[str] = frozenset(
    _names("""
    _verbs_init_and_alloc_context ibv_alloc_buf ibv_alloc_dmah ibv_alloc_pd ibv_create_ah ibv_create_comp_cntr
    ibv_create_cq ibv_create_qp ibv_create_srq ibv_dmabuf_heap_alloc ibv_dmabuf_heap_cc_shared_init ibv_get_device_list
    ibv_get_device_name ibv_import_device ibv_import_dm ibv_import_mr ibv_import_pd ibv_open_device ibv_reg_buf_mr
    ibv_reg_dmabuf_mr ibv_reg_mr ibv_reg_mr_ex ibv_wr_opcode_str verbs_open_device
""")
)
"""Functions that return a null pointer on failure."""

_NOTHING_OUT: tuple[str, ...] = _names("""
    ibv_alloc_dmah ibv_create_comp_cntr ibv_dealloc_dmah ibv_destroy_comp_cntr ibv_dm_export_dmabuf_fd
    ibv_import_device ibv_import_dm ibv_import_mr ibv_import_pd ibv_inc_comp_cntr
    ibv_inc_err_comp_cntr ibv_qp_attach_comp_cntr ibv_set_comp_cntr ibv_set_err_comp_cntr
    ibv_unimport_dm ibv_unimport_mr ibv_unimport_pd rdma_resolve_addrinfo rdma_write_cm_event repoll_create repoll_ctl
    repoll_wait before_2008_ibv_ack_async_event before_2008_ibv_ack_cq_events before_2008_ibv_alloc_pd
    before_2008_ibv_attach_mcast before_2008_ibv_close_device before_2008_ibv_create_ah before_2008_ibv_create_cq
    before_2008_ibv_create_qp before_2008_ibv_create_srq before_2008_ibv_dealloc_pd before_2008_ibv_dereg_mr
    before_2008_ibv_destroy_ah before_2008_ibv_destroy_cq before_2008_ibv_destroy_qp before_2008_ibv_destroy_srq
    before_2008_ibv_detach_mcast before_2008_ibv_free_device_list before_2008_ibv_get_device_guid
    before_2008_ibv_get_device_name before_2008_ibv_modify_qp before_2008_ibv_modify_srq before_2008_ibv_open_device
    before_2008_ibv_reg_mr before_2008_ibv_resize_cq
""")

OUT_PARAMETERS: dict[str, tuple[tuple[int, int], ...]] = {
    "_ibv_query_comp_cntr_caps": ((1, -2),),
    "ibv_copy_path_rec_from_kern": ((0, 64),),
    "ibv_copy_path_rec_to_kern": ((0, 64),),
    "ibv_query_port_speed": ((2, 8),),
    "ibv_read_comp_cntr": ((1, 8),),
    "ibv_read_err_comp_cntr": ((1, 8),),
    "ibv_resolve_eth_l2_from_gid": ((2, 6), (3, 2)),
    "rdma_query_addrinfo": ((1, 8),),
    "before_2008_ibv_get_async_event": ((1, 16),),
    "before_2008_ibv_get_cq_event": ((1, 8), (2, 8)),
    "before_2008_ibv_get_device_list": ((0, 4),),
    "before_2008_ibv_query_device": ((1, 232),),
    "before_2008_ibv_query_gid": ((3, 16),),
    "before_2008_ibv_query_pkey": ((3, 2),),
    "before_2008_ibv_query_port": ((2, 48),),
    "before_2008_ibv_query_qp": ((1, 128), (3, 56)),
    "before_2008_ibv_query_srq": ((1, 12),),
    **dict.fromkeys(_NOTHING_OUT, ()),
}
"""Output arguments of the unsupported public functions, which clear them: index from 0, and size in bytes.
A negative size is minus the index of the argument that holds the size, 64 at most.

Callers read them regardless of the status. The build fails if a function is not listed.
"""
RETURN_MINUS_ONE: frozenset[str] = frozenset(
    ["ibv_dm_export_dmabuf_fd"] + [name for names in RDMACM.values() for name in names if name not in RETURN_POINTERS]
)
"""Functions that return -1 with errno on failure; the others return the errno."""

_COUNTERS = "completion counters: only EFA has them; programs query the capability and do without"
_HANDLES = "DMA handles steer a hardware NIC's accesses to caches; this NIC is software"
_IMPORTED = "objects of another process: no other process can use a program's context"
_PATHS = "path records come from a subnet manager, which RoCE does not have"
_IN_BACKGROUND = "names resolved in the background or by a subnet administrator: use `rdma_getaddrinfo`"
_EPOLL = "epoll for rsockets: use `rpoll` or `rselect`"

REFUSED: dict[str, str] = {
    **dict.fromkeys(
        _names("""
        _ibv_query_comp_cntr_caps ibv_create_comp_cntr ibv_destroy_comp_cntr ibv_inc_comp_cntr ibv_inc_err_comp_cntr
        ibv_qp_attach_comp_cntr ibv_read_comp_cntr ibv_read_err_comp_cntr ibv_set_comp_cntr ibv_set_err_comp_cntr
        """),
        _COUNTERS,
    ),
    **dict.fromkeys(("ibv_alloc_dmah", "ibv_dealloc_dmah"), _HANDLES),
    **dict.fromkeys(
        _names("""
        ibv_import_device ibv_import_dm ibv_import_mr ibv_import_pd ibv_unimport_dm ibv_unimport_mr ibv_unimport_pd
        """),
        _IMPORTED,
    ),
    **dict.fromkeys(("ibv_copy_path_rec_from_kern", "ibv_copy_path_rec_to_kern"), _PATHS),
    "ibv_dm_export_dmabuf_fd": "device memory is memory of the program, not a dma-buf",
    "ibv_query_port_speed": "use `active_speed` and `active_width` of `ibv_query_port`",
    "ibv_resolve_eth_l2_from_gid": "the device sends IP packets: the kernel resolves MAC addresses",
    "ibv_query_ece": "there are no enhanced connection options, as with Soft-RoCE",
    "ibv_set_ece": "there are no enhanced connection options, as with Soft-RoCE",
    "rdma_query_addrinfo": _IN_BACKGROUND,
    "rdma_resolve_addrinfo": _IN_BACKGROUND,
    "rdma_write_cm_event": "events that a program creates: use a queue in the program",
    **dict.fromkeys(("repoll_create", "repoll_ctl", "repoll_wait"), _EPOLL),
    "umad_get_issm_path": "no issm file: a RoCE port has no subnet manager",
    "umad_open_smi_port": "subnet management wants QP0, which a RoCE port has not: EPROTONOSUPPORT at `umad_send`",
}
"""Unsupported public functions, and the reasons."""
