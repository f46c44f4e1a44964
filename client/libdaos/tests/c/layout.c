/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes and places that programs for DAOS were compiled with. Checked by the compiler; nothing runs against engines. */
#include <stddef.h>

#include <daos/tse.h>
#include <daos_fs.h>
#include <daos_security.h>
#include <daos_task.h>
#include <daos_uns.h>
#include <gurt/list.h>

#include "check.h"

#define SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type)
#define OFFSET(type, member, bytes) _Static_assert(offsetof(type, member) == (bytes), #type "." #member)

SIZE(daos_handle_t, 8);
SIZE(d_iov_t, 24);
SIZE(d_sg_list_t, 16);
SIZE(d_rank_list_t, 16);
SIZE(daos_obj_id_t, 16);
SIZE(daos_anchor_t, 120);
SIZE(daos_event_t, 176);
SIZE(daos_iod_t, 64);
SIZE(daos_recx_t, 16);
SIZE(daos_key_desc_t, 16);
SIZE(daos_iom_t, 64);
SIZE(daos_pool_info_t, 192);
SIZE(struct daos_pool_space, 88);
SIZE(struct daos_space, 32);
SIZE(struct daos_rebuild_status, 56);
SIZE(daos_cont_info_t, 48);
SIZE(struct daos_pool_cont_info, 144);
SIZE(daos_prop_t, 16);
SIZE(struct daos_prop_entry, 16);
SIZE(daos_array_iod_t, 32);
SIZE(daos_range_t, 16);
SIZE(daos_array_stbuf_t, 16);
SIZE(daos_epoch_range_t, 16);
SIZE(daos_target_info_t, 48);
SIZE(struct daos_prop_co_roots, 64);
SIZE(struct daos_co_status, 8);
SIZE(dfs_attr_t, 176);
SIZE(dfs_iod_t, 16);
SIZE(dfs_obj_info_t, 40);
SIZE(duns_attr_t, 480);
SIZE(struct daos_acl, 8);
SIZE(struct daos_ace, 32);
SIZE(d_list_t, 16);
SIZE(tse_task_t, TSE_TASK_SIZE);
SIZE(tse_sched_t, 400);
SIZE(struct d_uuid, 16);

OFFSET(d_iov_t, iov_buf_len, 8);
OFFSET(d_iov_t, iov_len, 16);
OFFSET(d_sg_list_t, sg_nr_out, 4);
OFFSET(d_sg_list_t, sg_iovs, 8);
OFFSET(daos_anchor_t, da_sub_anchors, 8);
OFFSET(daos_anchor_t, da_buf, 16);
OFFSET(daos_event_t, ev_private, 8);
OFFSET(daos_iod_t, iod_type, 24);
OFFSET(daos_iod_t, iod_size, 32);
OFFSET(daos_iod_t, iod_flags, 40);
OFFSET(daos_iod_t, iod_nr, 48);
OFFSET(daos_iod_t, iod_recxs, 56);
OFFSET(daos_pool_info_t, pi_bits, 40);
OFFSET(daos_pool_info_t, pi_space, 48);
OFFSET(daos_pool_info_t, pi_rebuild_st, 136);
OFFSET(daos_cont_info_t, ci_md_mtime, 40);
OFFSET(struct daos_prop_entry, dpe_val, 8);
OFFSET(daos_target_info_t, ta_space, 16);
OFFSET(dfs_attr_t, da_props, 24);
OFFSET(dfs_attr_t, da_hints, 44);
OFFSET(dfs_obj_info_t, doi_oid, 24);
OFFSET(duns_attr_t, da_pool, 28);
OFFSET(duns_attr_t, da_cont, 156);
OFFSET(duns_attr_t, da_rel_path, 296);
OFFSET(duns_attr_t, da_hints, 348);
OFFSET(struct daos_ace, dae_allow_perms, 8);
OFFSET(struct daos_ace, dae_principal, 32);
OFFSET(tse_task_t, dt_private, 8);
OFFSET(tse_sched_t, ds_udata, 8);
OFFSET(daos_obj_rw_t, iods, 40);
OFFSET(daos_obj_list_t, sgl, 48);

_Static_assert(OC_S1 == 16777217 && OC_SX == 16842751, "classes without redundancy");
_Static_assert(OC_RP_2G1 == 134217729 && OC_RP_3GX == 151060479, "replication");
_Static_assert(OC_EC_2P1G1 == 536870913 && OC_EC_4P2GX == 587268095, "erasure coding");
_Static_assert(OC_EC_8P2G8 == 620757000 && OC_EC_16P2GX == 654376959, "erasure coding");
_Static_assert(OC_TINY == 51 && OC_MAX == 54 && OC_RP_XSF == 80 && OC_EC_MAX == 103, "small numbers");
_Static_assert(OC_RESERVED == 1 << 30 && (OC_EC_16P3GX >> OC_REDUN_SHIFT) == OR_RS_16P3, "limits of classes");
_Static_assert(PCF_FUNC_MAX == 6 && PCF_KEY_MAX == 4 && PCF_COMBINE_LOGICAL_OR == 1, "filters");

_Static_assert(offsetof(struct daos_rebuild_status, rs_max_supported_layout_ver) == 16, "rebuild");
_Static_assert(offsetof(struct daos_rebuild_status, rs_flags) == 18, "rebuild");
_Static_assert(offsetof(struct daos_rebuild_status, rs_fail_rank) == 20, "rebuild");

int
main(void)
{
	printf("ok\n");
	return 0;
}
