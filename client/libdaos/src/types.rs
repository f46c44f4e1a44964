//! The structures that C programs allocate, with the sizes they have on x86-64 and aarch64 (daos-api §1.3).
#![expect(clippy::struct_field_names, reason = "the C headers have these names")]

use core::ffi::{c_char, c_int, c_void};

#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct daos_handle_t {
    pub cookie: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct d_iov_t {
    pub iov_buf: *mut c_void,
    pub iov_buf_len: usize,
    pub iov_len: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct d_sg_list_t {
    pub sg_nr: u32,
    pub sg_nr_out: u32,
    pub sg_iovs: *mut d_iov_t,
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct daos_obj_id_t {
    pub lo: u64,
    pub hi: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct daos_anchor_t {
    pub da_type: u16,
    pub da_shard: u16,
    pub da_flags: u32,
    pub da_sub_anchors: u64,
    pub da_buf: [u8; 104],
}

impl Default for daos_anchor_t {
    fn default() -> Self {
        Self { da_type: 0, da_shard: 0, da_flags: 0, da_sub_anchors: 0, da_buf: [0; 104] }
    }
}

#[repr(C)]
#[derive(Debug)]
pub struct daos_event_t {
    pub ev_error: c_int,
    pub ev_private: [u64; 20],
    pub ev_debug: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct daos_recx_t {
    pub rx_idx: u64,
    pub rx_nr: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct daos_iod_t {
    pub iod_name: d_iov_t,
    pub iod_type: c_int,
    pub iod_size: u64,
    pub iod_flags: u64,
    pub iod_nr: u32,
    pub iod_recxs: *mut daos_recx_t,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct daos_iom_t {
    pub iom_type: c_int,
    pub iom_nr: u32,
    pub iom_nr_out: u32,
    pub iom_flags: u32,
    pub iom_size: u64,
    pub iom_recx_lo: daos_recx_t,
    pub iom_recx_hi: daos_recx_t,
    pub iom_recxs: *mut daos_recx_t,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct daos_key_desc_t {
    pub kd_key_len: u64,
    pub kd_val_type: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct daos_range_t {
    pub rg_idx: u64,
    pub rg_len: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct daos_array_iod_t {
    pub arr_nr: u64,
    pub arr_rgs: *mut daos_range_t,
    pub arr_nr_short_read: u64,
    pub arr_nr_read: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct daos_array_stbuf_t {
    pub st_size: u64,
    pub st_max_epoch: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct daos_pool_space {
    pub s_total: [u64; 2],
    pub s_free: [u64; 2],
    pub ps_free_min: [u64; 2],
    pub ps_free_max: [u64; 2],
    pub ps_free_mean: [u64; 2],
    pub ps_ntargets: u32,
    pub ps_padding: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct daos_rebuild_status {
    pub rs_version: u32,
    pub rs_seconds: u32,
    pub rs_errno: i32,
    pub rs_state: i32,
    pub rs_max_supported_layout_ver: u16,
    pub rs_flags: u16,
    pub rs_fail_rank: i32,
    pub rs_toberb_obj_nr: u64,
    pub rs_obj_nr: u64,
    pub rs_rec_nr: u64,
    pub rs_size: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct daos_pool_info_t {
    pub pi_uuid: [u8; 16],
    pub pi_ntargets: u32,
    pub pi_nnodes: u32,
    pub pi_ndisabled: u32,
    pub pi_map_ver: u32,
    pub pi_leader: u32,
    pub pi_bits: u64,
    pub pi_space: daos_pool_space,
    pub pi_rebuild_st: daos_rebuild_status,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct daos_pool_cont_info {
    pub pci_uuid: [u8; 16],
    pub pci_label: [c_char; 128],
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct daos_cont_info_t {
    pub ci_uuid: [u8; 16],
    pub ci_lsnapshot: u64,
    pub ci_nhandles: u32,
    pub ci_nsnapshots: u32,
    pub ci_md_otime: u64,
    pub ci_md_mtime: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct daos_epoch_range_t {
    pub epr_lo: u64,
    pub epr_hi: u64,
}

/// The union of C is one word: a number, a string or another pointer.
#[repr(C)]
#[derive(Clone, Copy)]
pub union daos_prop_value {
    pub dpe_val: u64,
    pub dpe_str: *mut c_char,
    pub dpe_val_ptr: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct daos_prop_entry {
    pub dpe_type: u32,
    pub dpe_flags: u16,
    pub dpe_reserv: u16,
    pub value: daos_prop_value,
}

#[repr(C)]
#[derive(Debug)]
pub struct daos_prop_t {
    pub dpp_nr: u32,
    pub dpp_reserv: u32,
    pub dpp_entries: *mut daos_prop_entry,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct dfs_attr_t {
    pub da_id: u64,
    pub da_chunk_size: u64,
    pub da_oclass_id: u32,
    pub da_props: *mut daos_prop_t,
    pub da_mode: u32,
    pub da_dir_oclass_id: u32,
    pub da_file_oclass_id: u32,
    pub da_hints: [c_char; 128],
}

impl Default for dfs_attr_t {
    fn default() -> Self {
        Self {
            da_id: 0,
            da_chunk_size: 0,
            da_oclass_id: 0,
            da_props: core::ptr::null_mut(),
            da_mode: 0,
            da_dir_oclass_id: 0,
            da_file_oclass_id: 0,
            da_hints: [0; 128],
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct dfs_iod_t {
    pub iod_nr: u64,
    pub iod_rgs: *mut daos_range_t,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct dfs_obj_info_t {
    pub doi_oclass_id: u32,
    pub doi_chunk_size: u64,
    pub doi_dir_oclass_id: u32,
    pub doi_file_oclass_id: u32,
    pub doi_oid: daos_obj_id_t,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct dfs_predicate_t {
    pub dp_name: [c_char; 255],
    pub dp_newer: i64,
    pub dp_size: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct duns_attr_t {
    pub da_type: c_int,
    pub da_oclass_id: u32,
    pub da_chunk_size: u64,
    pub da_props: *mut daos_prop_t,
    pub da_flags: u32,
    pub da_pool: [c_char; 128],
    pub da_cont: [c_char; 128],
    pub da_sys: *mut c_char,
    pub da_rel_path: *mut c_char,
    pub da_on_lustre: bool,
    pub da_no_prefix: bool,
    pub da_puuid: [u8; 16],
    pub da_cuuid: [u8; 16],
    pub da_dir_oclass_id: u32,
    pub da_file_oclass_id: u32,
    pub da_hints: [c_char; 128],
}

const _: () = {
    assert!(size_of::<dfs_attr_t>() == 176);
    assert!(size_of::<dfs_iod_t>() == 16);
    assert!(size_of::<dfs_obj_info_t>() == 40);
    assert!(size_of::<duns_attr_t>() == 480);
    assert!(size_of::<daos_handle_t>() == 8);
    assert!(size_of::<d_iov_t>() == 24);
    assert!(size_of::<d_sg_list_t>() == 16);
    assert!(size_of::<daos_obj_id_t>() == 16);
    assert!(size_of::<daos_anchor_t>() == 120);
    assert!(size_of::<daos_event_t>() == 176);
    assert!(size_of::<daos_iod_t>() == 64);
    assert!(size_of::<daos_recx_t>() == 16);
    assert!(size_of::<daos_key_desc_t>() == 16);
    assert!(size_of::<daos_iom_t>() == 64);
    assert!(size_of::<daos_pool_info_t>() == 192);
    assert!(size_of::<daos_pool_space>() == 88);
    assert!(size_of::<daos_rebuild_status>() == 56);
    assert!(size_of::<daos_cont_info_t>() == 48);
    assert!(size_of::<daos_pool_cont_info>() == 144);
    assert!(size_of::<daos_prop_t>() == 16);
    assert!(size_of::<daos_prop_entry>() == 16);
    assert!(size_of::<daos_array_iod_t>() == 32);
    assert!(size_of::<daos_range_t>() == 16);
    assert!(size_of::<daos_array_stbuf_t>() == 16);
    assert!(size_of::<daos_epoch_range_t>() == 16);
};
