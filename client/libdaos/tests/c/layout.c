/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes and values that programs for DAOS were compiled with. Checked by the compiler; nothing runs against engines. */
#include <stddef.h>

#include "check.h"

#define SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type)

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

_Static_assert(OC_S1 == 16777217 && OC_SX == 16842751, "classes without redundancy");
_Static_assert(OC_RP_2G1 == 134217729 && OC_RP_3GX == 151060479, "replication");
_Static_assert(OC_EC_2P1G1 == 536870913 && OC_EC_4P2GX == 587268095, "erasure coding");
_Static_assert(OC_EC_8P2G8 == 620757000 && OC_EC_16P2GX == 654376959, "erasure coding");
_Static_assert(DAOS_OT_ARRAY_BYTE == 13 && DAOS_OT_KV_HASHED == 8, "object types");
_Static_assert(DAOS_PROP_CO_LABEL == 4097 && DAOS_PROP_PO_LABEL == 1, "properties");
_Static_assert(DER_NONEXIST == 1005 && DER_CONT_DESTROYING == 2051, "errors");
_Static_assert(DAOS_COND_KEY_GET == 8 && DAOS_COND_KEY_REMOVE == 1, "conditions");

_Static_assert(offsetof(struct daos_rebuild_status, rs_max_supported_layout_ver) == 16, "rebuild");
_Static_assert(offsetof(struct daos_rebuild_status, rs_flags) == 18, "rebuild");
_Static_assert(offsetof(struct daos_rebuild_status, rs_fail_rank) == 20, "rebuild");
_Static_assert(DAOS_HTYPE_EQ == 1 && DAOS_HTYPE_POOL == 3 && DAOS_HTYPE_CO == 5 && DAOS_HTYPE_OBJ == 7, "handles");
_Static_assert(DAOS_HTYPE_ARRAY == 9 && DAOS_HTYPE_TX == 11 && DAOS_HTYPE_KV == 13, "handles");
_Static_assert(DAOS_TS_UNKNOWN == 0 && DAOS_TS_DOWN_OUT == 1 && DAOS_TS_UP_IN == 4 && DAOS_TS_DRAIN == 6, "targets");
_Static_assert(DAOS_PROP_PO_NUM == 27 && DAOS_PROP_CO_NUM == 26, "numbers of properties");
_Static_assert(DAOS_OIT_MARKER_MAX_LEN == 32 && DAOS_POOL_CONT_FILTER_MAX_NPARTS == 8, "limits");
_Static_assert(DAOS_RSF_DEGRADED == 1 && DAOS_VERSION_PROTOCAL == 1, "others");

#define COUNT(name, value, text) +1
#define NAME(name, value, text) #name,

static const char *const names[] = {D_FOREACH_GURT_ERR(NAME) D_FOREACH_DAOS_ERR(NAME)};

int
main(void)
{
	CHECK(sizeof(names) / sizeof(names[0]) == 0 D_FOREACH_GURT_ERR(COUNT) D_FOREACH_DAOS_ERR(COUNT));
	printf("ok\n");
	return 0;
}
