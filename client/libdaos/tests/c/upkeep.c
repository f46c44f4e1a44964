/* SPDX-License-Identifier: Apache-2.0 */
/* Objects of a snapshot, attributes, properties, access control lists, queries, callbacks of events. */
#include <daos_security.h>

#include "check.h"

#define OBJECTS 40

static daos_handle_t
object(daos_handle_t coh, uint64_t lo, enum daos_otype_t type, daos_oclass_id_t class)
{
	daos_obj_id_t oid = {.lo = lo};
	daos_handle_t oh;

	OK(daos_obj_generate_oid(coh, &oid, type, class, 0, 0));
	OK(daos_obj_open(coh, oid, DAOS_OO_RW, &oh, NULL));
	return oh;
}

static void
put(daos_handle_t oh, void *key, size_t len)
{
	daos_key_t dkey;
	daos_iod_t iod = {.iod_type = DAOS_IOD_SINGLE, .iod_size = 1, .iod_nr = 1};
	d_iov_t iov;
	d_sg_list_t sgl = {.sg_nr = 1, .sg_iovs = &iov};

	d_iov_set(&dkey, key, len);
	d_iov_set(&iod.iod_name, "a", 1);
	d_iov_set(&iov, "v", 1);
	OK(daos_obj_update(oh, DAOS_TX_NONE, 0, &dkey, 1, &iod, &sgl, NULL));
}

static int
only_even(daos_obj_id_t oid, d_iov_t *marker)
{
	return marker == NULL && oid.lo % 2 == 0;
}

static void
objects(daos_handle_t coh)
{
	daos_epoch_t epoch, epochs[4];
	daos_handle_t list;
	daos_obj_id_t oids[16];
	daos_anchor_t anchor = {0};
	d_iov_t mark;
	uint32_t nr;
	int total = 0, snapshots = 4;
	struct timespec time;

	for (uint64_t i = 1; i <= OBJECTS; i++) {
		daos_handle_t oh = object(coh, i, DAOS_OT_MULTI_HASHED, i % 3 ? OC_SX : OC_S1);

		put(oh, "d", 1);
		put(oh, "e", 1);
		OK(daos_obj_close(oh, NULL));
	}
	OK(daos_cont_create_snap_opt(coh, &epoch, NULL, DAOS_SNAP_OPT_CR | DAOS_SNAP_OPT_OIT, NULL));
	OK(daos_hlc2timespec(epoch, &time));
	CHECK(time.tv_sec > 1500000000);
	OK(daos_cont_list_snap(coh, &snapshots, epochs, NULL, NULL, NULL));
	CHECK(snapshots == 1 && epochs[0] == epoch);
	CHECK_RC(daos_oit_open(coh, epoch + 1, &list, NULL), -DER_NONEXIST);
	{
		daos_handle_t later = object(coh, 1000, DAOS_OT_MULTI_HASHED, OC_S1);

		put(later, "d", 1);
		OK(daos_obj_close(later, NULL));
	}
	OK(daos_oit_open(coh, epoch, &list, NULL));
	while (!daos_anchor_is_eof(&anchor)) {
		nr = 16;
		OK(daos_oit_list(list, oids, &nr, &anchor, NULL));
		for (uint32_t i = 0; i < nr; i++)
			CHECK(oids[i].lo >= 1 && oids[i].lo <= OBJECTS);
		total += (int)nr;
	}
	CHECK(total == OBJECTS);
	d_iov_set(&mark, "seen", 4);
	OK(daos_oit_mark(list, oids[0], &mark, NULL));
	CHECK_RC(daos_oit_mark(list, (daos_obj_id_t){.lo = 77777}, &mark, NULL), -DER_NONEXIST);
	memset(&anchor, 0, sizeof(anchor));
	for (total = 0; !daos_anchor_is_eof(&anchor); total += (int)nr) {
		nr = 16;
		OK(daos_oit_list_unmarked(list, oids, &nr, &anchor, NULL));
	}
	CHECK(total == OBJECTS - 1);
	memset(&anchor, 0, sizeof(anchor));
	for (total = 0; !daos_anchor_is_eof(&anchor); total += (int)nr) {
		nr = 16;
		OK(daos_oit_list_filter(list, oids, &nr, &anchor, only_even, NULL));
	}
	CHECK(total == OBJECTS / 2 || total == OBJECTS / 2 - 1);
	CHECK_RC(daos_cont_close(coh, NULL), -DER_BUSY);
	OK(daos_oit_close(list, NULL));
	CHECK_RC(daos_oit_close(list, NULL), -DER_NO_HDL);
	OK(daos_cont_destroy_snap(coh, (daos_epoch_range_t){epoch, epoch}, NULL));
}

static void
attributes(daos_handle_t coh)
{
	const char *names[] = {"first", "second"}, *missing[] = {"first", "none"};
	const void *values[] = {"one", "twenty"};
	size_t sizes[] = {3, 6}, size = 64;
	char one[8], two[4], list[64];
	void *buffers[] = {one, two};

	OK(daos_cont_set_attr(coh, 2, names, values, sizes, NULL));
	sizes[0] = sizeof(one);
	sizes[1] = sizeof(two);
	CHECK_RC(daos_cont_get_attr(coh, 2, names, buffers, sizes, NULL), -DER_TRUNC);
	CHECK(sizes[0] == 3 && memcmp(one, "one", 3) == 0 && sizes[1] == 6);
	OK(daos_cont_get_attr(coh, 2, names, NULL, sizes, NULL));
	CHECK_RC(daos_cont_get_attr(coh, 2, missing, NULL, sizes, NULL), -DER_NONEXIST);
	CHECK_RC(daos_cont_set_attr(coh, 0, names, values, sizes, NULL), -DER_INVAL);
	OK(daos_cont_list_attr(coh, list, &size, NULL));
	CHECK(size == 13 && strcmp(list, "first") == 0 && strcmp(list + 6, "second") == 0);
	OK(daos_cont_del_attr(coh, 1, names, NULL));
	size = 0;
	OK(daos_cont_list_attr(coh, NULL, &size, NULL));
	CHECK(size == 7);
}

static void
properties(daos_handle_t poh)
{
	daos_prop_t *prop, *found = daos_prop_alloc(0), *acl, *merged;
	struct daos_prop_entry *entry;
	struct daos_prop_co_roots roots = {{{1, 2}, {3, 4}, {5, 6}, {7, 8}}};
	const char *texts[] = {"A::OWNER@:rwdtTaAo", "A::ann@:rw", "A:G:GROUP@:r"};
	struct daos_acl *list, *other;
	struct daos_ace *ace = NULL;
	daos_cont_info_t info;
	daos_handle_t coh;
	uint64_t perms;
	char text[64], **shown;
	size_t nr;
	int count = 0;

	CHECK_RC(daos_prop_from_str("odd:1", 5, &prop), -DER_INVAL);
	OK(daos_prop_from_str("label:c-props;cksum:crc32", 64, &prop));
	OK(daos_cont_create(poh, NULL, prop, NULL));
	daos_prop_free(prop);
	OK(daos_cont_open(poh, "c-props", DAOS_COO_RW, &coh, NULL, NULL));
	OK(daos_cont_query(coh, &info, found, NULL));
	CHECK(found->dpp_nr == DAOS_PROP_CO_NUM);
	CHECK(strcmp(daos_prop_entry_get(found, DAOS_PROP_CO_LABEL)->dpe_str, "c-props") == 0);
	CHECK(daos_prop_entry_get(found, DAOS_PROP_CO_CSUM)->dpe_val == DAOS_PROP_CO_CSUM_CRC32);
	CHECK(strchr(daos_prop_entry_get(found, DAOS_PROP_CO_OWNER)->dpe_str, '@') != NULL);
	CHECK(daos_prop_has_ptr(daos_prop_entry_get(found, DAOS_PROP_CO_ROOTS)));

	prop = daos_prop_alloc(1);
	prop->dpp_entries[0].dpe_type = DAOS_PROP_CO_ROOTS;
	OK(daos_prop_set_ptr(prop, DAOS_PROP_CO_ROOTS, &roots, sizeof(roots)));
	CHECK_RC(daos_prop_set_ptr(prop, DAOS_PROP_CO_ACL, &roots, sizeof(roots)), -DER_NONEXIST);
	OK(daos_cont_set_prop(coh, prop, NULL));
	OK(daos_prop_merge2(found, prop, &merged));
	entry = daos_prop_entry_get(merged, DAOS_PROP_CO_ROOTS);
	CHECK(merged->dpp_nr == DAOS_PROP_CO_NUM && memcmp(entry->dpe_val_ptr, &roots, sizeof(roots)) == 0);
	daos_prop_free(merged);
	memset(prop->dpp_entries[0].dpe_val_ptr, 0, sizeof(roots));
	OK(daos_cont_query(coh, NULL, prop, NULL));
	CHECK(memcmp(prop->dpp_entries[0].dpe_val_ptr, &roots, sizeof(roots)) == 0);
	daos_prop_free(prop);
	daos_prop_free(found);

	OK(daos_acl_from_strs(texts, 3, &list));
	OK(daos_acl_validate(list));
	while ((ace = daos_acl_get_next_ace(list, ace)) != NULL) {
		CHECK(daos_ace_is_valid(ace));
		OK(daos_ace_to_str(ace, text, sizeof(text)));
		count++;
	}
	CHECK(count == 3);
	OK(daos_cont_overwrite_acl(coh, list, NULL));
	OK(daos_acl_remove_ace(&list, DAOS_ACL_USER, "ann@"));
	CHECK_RC(daos_acl_remove_ace(&list, DAOS_ACL_USER, "ann@"), -DER_NONEXIST);
	daos_acl_free(list);
	OK(daos_cont_get_acl(coh, &acl, NULL));
	other = daos_prop_entry_get(acl, DAOS_PROP_CO_ACL)->dpe_val_ptr;
	OK(daos_acl_get_ace_for_principal(other, DAOS_ACL_USER, "ann@", &ace));
	CHECK(ace->dae_allow_perms == (DAOS_ACL_PERM_READ | DAOS_ACL_PERM_WRITE));
	OK(daos_acl_to_strs(other, &shown, &nr));
	CHECK(nr == 3 && strcmp(shown[1], "A::ann@:rw") == 0);
	for (size_t i = 0; i < nr; i++)
		free(shown[i]);
	free(shown);
	OK(daos_cont_get_perms(acl, geteuid(), NULL, 0, &perms));
	CHECK(perms & DAOS_ACL_PERM_SET_OWNER);
	daos_prop_free(acl);
	OK(daos_cont_delete_acl(coh, DAOS_ACL_USER, "ann@", NULL));
	CHECK_RC(daos_cont_delete_acl(coh, DAOS_ACL_USER, "ann@", NULL), -DER_NONEXIST);
	OK(daos_cont_set_owner(coh, "ann@", NULL, NULL));
	CHECK_RC(daos_cont_set_owner(coh, "ann", NULL, NULL), -DER_INVAL);
	OK(daos_cont_get_acl(coh, &acl, NULL));
	CHECK(strcmp(daos_prop_entry_get(acl, DAOS_PROP_CO_OWNER)->dpe_str, "ann@") == 0);
	daos_prop_free(acl);
	OK(daos_cont_close(coh, NULL));
	OK(daos_cont_open(poh, "c-props", DAOS_COO_RO, &coh, NULL, NULL));
	CHECK_RC(daos_cont_set_owner(coh, "bob@", NULL, NULL), -DER_NO_PERM);
	OK(daos_cont_close(coh, NULL));
	OK(daos_cont_destroy(poh, "c-props", 0, NULL));
}

static void
queries(daos_handle_t coh)
{
	daos_handle_t oh = object(coh, 3000, DAOS_OT_DKEY_UINT64, OC_SX), many = object(coh, 3001, DAOS_OT_MULTI_HASHED, OC_SX);
	uint64_t number, found = 0;
	daos_key_t dkey;
	daos_anchor_t parts[8];
	daos_epoch_t epoch;
	uint32_t nr = 0;
	int listed = 0;

	for (number = 5; number < 50; number += 11)
		put(oh, &number, sizeof(number));
	d_iov_set(&dkey, &found, sizeof(found));
	OK(daos_obj_query_key(oh, DAOS_TX_NONE, DAOS_GET_MAX | DAOS_GET_DKEY, &dkey, NULL, NULL, NULL));
	CHECK(found == 49);
	OK(daos_obj_query_key(oh, DAOS_TX_NONE, DAOS_GET_MIN | DAOS_GET_DKEY, &dkey, NULL, NULL, NULL));
	CHECK(found == 5);
	CHECK_RC(daos_obj_query_key(oh, DAOS_TX_NONE, DAOS_GET_DKEY, &dkey, NULL, NULL, NULL), -DER_INVAL);
	OK(daos_obj_query_max_epoch(oh, DAOS_TX_NONE, &epoch, NULL));
	CHECK(epoch > 0);
	OK(daos_obj_close(oh, NULL));

	/* Each key is in one part. */
	for (number = 0; number < 60; number++) {
		char name[16];

		snprintf(name, sizeof(name), "key%d", (int)number);
		put(many, name, strlen(name));
	}
	OK(daos_obj_anchor_split(many, &nr, NULL));
	CHECK(nr >= 1 && nr <= 8);
	OK(daos_obj_anchor_split(many, &nr, parts));
	for (uint32_t part = 0; part < nr; part++) {
		daos_anchor_t again;

		OK(daos_obj_anchor_set(many, part, &again));
		CHECK(memcmp(&again, &parts[part], sizeof(again)) == 0);
		while (!daos_anchor_is_eof(&parts[part])) {
			char keys[64];
			daos_key_desc_t kds[4];
			d_iov_t iov;
			d_sg_list_t sgl = {.sg_nr = 1, .sg_iovs = &iov};
			uint32_t count = 4;

			d_iov_set(&iov, keys, sizeof(keys));
			OK(daos_obj_list_dkey(many, DAOS_TX_NONE, &count, kds, &sgl, &parts[part], NULL));
			listed += (int)count;
		}
	}
	CHECK(listed == 60);
	CHECK_RC(daos_obj_anchor_set(many, nr, &parts[0]), -DER_INVAL);
	OK(daos_obj_close(many, NULL));
}

static int
called(void *arg, daos_event_t *ev, int rc)
{
	daos_handle_t oh;

	CHECK(rc == 0 && ev->ev_error == 0);
	/* It may call the library. */
	oh = object(*(daos_handle_t *)arg, 4000, DAOS_OT_MULTI_HASHED, OC_S1);
	put(oh, "from a callback", 15);
	OK(daos_obj_close(oh, NULL));
	return -DER_MISC;
}

static void
callbacks(daos_handle_t coh)
{
	daos_event_t parent, children[2];
	daos_event_t *done;
	daos_handle_t eq;
	uint64_t first;

	OK(daos_eq_create(&eq));
	OK(daos_event_init(&parent, eq, NULL));
	OK(daos_event_register_comp_cb(&parent, called, &coh));
	CHECK_RC(daos_event_register_comp_cb(&parent, NULL, &coh), -DER_INVAL);
	OK(daos_cont_alloc_oids(coh, 1, &first, &parent));
	CHECK(daos_eq_poll(eq, 0, DAOS_EQ_WAIT, 1, &done) == 1);
	CHECK(done == &parent && parent.ev_error == -DER_MISC);
	OK(daos_event_init(&children[0], DAOS_HDL_INVAL, &parent));
	OK(daos_event_init(&children[1], DAOS_HDL_INVAL, &parent));
	CHECK(daos_event_next(&parent, NULL) == &children[0]);
	CHECK(daos_event_next(&parent, &children[0]) == &children[1]);
	CHECK(daos_event_next(&parent, &children[1]) == NULL);
	OK(daos_event_fini(&children[0]));
	CHECK(daos_event_next(&parent, NULL) == &children[1]);
	OK(daos_event_fini(&children[1]));
	OK(daos_event_fini(&parent));
	OK(daos_eq_destroy(eq, 0));
}

int
main(int argc, char **argv)
{
	daos_handle_t poh, coh;
	daos_version_t version;

	CHECK(argc == 2);
	start(argv, "c-upkeep", &poh, &coh);
	daos_version_pack(&version);
	CHECK(version.major == DAOS_VERSION_MAJOR && daos_version_get_protocol(&version) == DAOS_VERSION_PROTOCAL);
	CHECK(daos_oclass_nr(0) > 10 && daos_oclass_names_list(0, NULL) > 40);
	objects(coh);
	attributes(coh);
	properties(poh);
	queries(coh);
	callbacks(coh);
	return finish("c-upkeep", poh, coh);
}
