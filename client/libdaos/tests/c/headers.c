/* SPDX-License-Identifier: Apache-2.0 */
/* Every header that programs for DAOS include, and what is defined in headers alone. Nothing runs against engines. */
#include <daos.h>

#include <daos/common.h>
#include <daos/dpar.h>
#include <daos/tests_lib.h>
#include <daos/tse.h>
#include <daos_fs.h>
#include <daos_fs_sys.h>
#include <daos_mgmt.h>
#include <daos_pipeline.h>
#include <daos_s3.h>
#include <daos_security.h>
#include <daos_task.h>
#include <daos_uns.h>
#include <dfuse_ioctl.h>
#include <gurt/atomic.h>
#include <gurt/common.h>
#include <gurt/debug.h>
#include <gurt/dlog.h>
#include <gurt/hash.h>
#include <gurt/list.h>
#include <gurt/types.h>

#include "check.h"

struct item {
	int number;
	d_list_t link;
};

static void
lists(void)
{
	D_LIST_HEAD(list);
	D_LIST_HEAD(other);
	struct item items[4], *item, *next;
	int sum = 0, at;

	CHECK(d_list_empty(&list));
	for (at = 0; at < 4; at++) {
		items[at].number = at;
		d_list_add_tail(&items[at].link, &list);
	}
	d_list_move(&items[3].link, &list);
	CHECK(d_list_entry(list.next, struct item, link) == &items[3]);
	d_list_move_tail(&items[0].link, &other);
	d_list_for_each_entry(item, &list, link)
		sum = sum * 10 + item->number;
	CHECK(sum == 312);
	d_list_splice_init(&list, &other);
	CHECK(d_list_empty(&list));
	sum = 0;
	d_list_for_each_entry_safe(item, next, &other, link) {
		sum = sum * 10 + item->number;
		d_list_del_init(&item->link);
		CHECK(d_list_empty(&item->link));
	}
	CHECK(sum == 3120 && d_list_empty(&other));
	d_list_add(&items[1].link, &list);
	CHECK(d_list_pop_entry(&list, struct item, link) == &items[1]);
	CHECK(d_list_pop_entry(&list, struct item, link) == NULL);
}

static void
objects(void)
{
	daos_obj_id_t oid = {.lo = 1, .hi = ((uint64_t)DAOS_OT_KV_UINT64 << OID_FMT_TYPE_SHIFT) |
					    ((uint64_t)OR_RP_2 << OID_FMT_CLASS_SHIFT) | (6ULL << OID_FMT_META_SHIFT)};

	CHECK(daos_is_kv(oid) && !daos_is_array(oid) && daos_is_dkey_uint64(oid) && !daos_is_akey_uint64(oid));
	CHECK(!daos_is_dkey_lexical(oid) && !daos_is_akey_lexical(oid));
	CHECK(daos_obj_id2class(oid) == OC_RP_2G6 && daos_obj_id2grp_nr(oid) == 6);
	CHECK(daos_is_array_type(DAOS_OT_ARRAY_BYTE) && daos_is_dkey_uint64_type(DAOS_OT_ARRAY_BYTE));
	CHECK(daos_otype_t_is_valid(DAOS_OT_MAX) && !daos_otype_t_is_valid((enum daos_otype_t)(DAOS_OT_MAX + 1)));
	CHECK(daos_pa_domain_is_valid(DAOS_PROP_CO_REDUN_NODE) && !daos_pa_domain_is_valid(3));
	CHECK_RC(daos_obj_register_class(DAOS_HDL_INVAL, 1, NULL, NULL), -DER_NOSYS);
	CHECK_RC(daos_obj_query_class(DAOS_HDL_INVAL, 1, NULL, NULL), -DER_NOSYS);
	CHECK_RC(daos_obj_list_class(DAOS_HDL_INVAL, NULL, NULL, NULL), -DER_NOSYS);
}

static void
properties(void)
{
	struct daos_co_status status = {.dcs_status = DAOS_PROP_CO_UNCLEAN, .dcs_flags = 2, .dcs_pm_ver = 7}, read;
	struct daos_prop_entry entry = {.dpe_flags = DAOS_PROP_ENTRY_NOT_SET};
	char label[DAOS_PROP_LABEL_MAX_LEN + 2];

	CHECK(daos_prop_co_status_2_val(&status) == 0x0002000100000007ULL);
	daos_prop_val_2_co_status(daos_prop_co_status_2_val(&status), &read);
	CHECK(read.dcs_status == 1 && read.dcs_flags == 2 && read.dcs_pm_ver == 7);
	CHECK(!daos_prop_is_set(&entry));
	CHECK(daos_label_is_valid("a.b_c:d-9") && !daos_label_is_valid("") && !daos_label_is_valid("a b"));
	CHECK(!daos_label_is_valid(NULL) && !daos_label_is_valid("01234567-89ab-cdef-0123-456789abcdef"));
	memset(label, 'x', sizeof(label));
	label[DAOS_PROP_LABEL_MAX_LEN + 1] = 0;
	CHECK(!daos_label_is_valid(label));
	label[DAOS_PROP_LABEL_MAX_LEN] = 0;
	CHECK(daos_label_is_valid(label) && daos_perf_domain_is_valid(label));
	CHECK(daos_rf_is_valid(4) && !daos_rf_is_valid(5) && daos_svc_rf_is_valid(4) && !daos_svc_rf_is_valid(5));
}

static void
smaller_ones(void)
{
	ATOMIC int counter = 0;
	daos_key_t key;
	d_rank_list_t *ranks;
	int *numbers, *more;
	char *text;

	atomic_store_relaxed(&counter, 1);
	CHECK(atomic_fetch_add_relaxed(&counter, 2) == 1 && atomic_load_relaxed(&counter) == 3);
	d_iov_set(&key, NULL, 0);
	CHECK(daos_key_is_null(key));
	CHECK(daos_is_valid_uuid_string("01234567-89ab-CDEF-0123-456789abcdef"));
	CHECK(!daos_is_valid_uuid_string("01234567-89ab-cdef-0123-456789abcdef0"));
	CHECK(!daos_is_valid_uuid_string("0123456789ab-cdef-0123--456789abcdef"));
	CHECK(strcmp(daos_pool_cont_filter_func_str(PCF_FUNC_GE), ">=") == 0);
	CHECK(strcmp(daos_pool_cont_filter_key_str(PCF_KEY_MAX), "UNKNOWN") == 0);
	ranks = daos_rank_list_parse("0:3:12", ":");
	CHECK(ranks != NULL && ranks->rl_nr == 3 && ranks->rl_ranks[2] == 12);
	d_rank_list_free(ranks);
	d_rank_list_free(NULL);
	CHECK(daos_rank_list_parse("a", ":") == NULL && daos_rank_list_parse(NULL, ":") == NULL);
	D_ALLOC_ARRAY(numbers, 2);
	D_ASSERT(numbers != NULL);
	numbers[1] = 5;
	D_REALLOC_ARRAY(more, numbers, 2, 4);
	CHECK(more != NULL && more[1] == 5 && more[3] == 0);
	D_FREE(more);
	D_STRNDUP_S(text, "text");
	CHECK(strcmp(text, "text") == 0);
	D_FREE(text);
}

static int
leave(void)
{
	int rc = 0;

	D_DEBUG(DB_ALL, "not seen: %d\n", rc);
	DL_INFO(-DER_NOMEM, "not seen either");
	D_GOTO(out, rc = -DER_NOMEM);
out:
	return rc;
}

int
main(void)
{
	lists();
	objects();
	properties();
	smaller_ones();
	CHECK_RC(leave(), -DER_NOMEM);
	printf("ok\n");
	return 0;
}
