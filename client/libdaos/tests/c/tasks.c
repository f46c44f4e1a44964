/* SPDX-License-Identifier: Apache-2.0 */
/* Tasks that depend on each other, as HDF5's connector makes them, and hash tables, as IOR and ROMIO keep them. */
#include <daos/tse.h>
#include <daos_task.h>
#include <gurt/common.h>
#include <gurt/hash.h>

#include "check.h"

static int order[16], steps;

static int
note(tse_task_t *task)
{
	CHECK(steps < 16);
	order[steps++] = (int)(intptr_t)tse_task_get_priv(task);
	tse_task_complete(task, order[steps - 1] == 9 ? -DER_IO : 0);
	return 0;
}

static int
note_callback(tse_task_t *task, void *arg)
{
	(void)task;
	CHECK(steps < 16);
	order[steps++] = *(int *)arg;
	return 0;
}

static int again;

static int
start_again(tse_task_t *task, void *arg)
{
	(void)arg;
	if (++again < 3) {
		OK(tse_task_register_comp_cb(task, start_again, NULL, 0));
		OK(tse_task_reinit(task));
	}
	return 0;
}

static int
told(void *arg, int rc)
{
	*(int *)arg = rc;
	return 0;
}

static void
bodies(void)
{
	tse_sched_t sched;
	tse_task_t *first, *second, *barrier, *bad, *other;
	int rc = 1, before = 20, after[2] = {30, 31};
	bool empty;

	OK(tse_sched_init(&sched, told, &rc));
	OK(tse_task_create(note, &sched, (void *)1, &first));
	OK(tse_task_create(note, &sched, (void *)2, &second));
	OK(tse_task_create(NULL, &sched, NULL, &barrier));
	OK(tse_task_register_deps(second, 1, &first));
	OK(tse_task_register_deps(barrier, 1, &second));
	OK(tse_task_register_cbs(second, note_callback, &before, sizeof(int), note_callback, &after[0], sizeof(int)));
	OK(tse_task_register_comp_cb(second, note_callback, &after[1], sizeof(int)));
	before = after[0] = after[1] = 0;
	OK(tse_task_schedule(second, false));
	OK(tse_task_schedule(barrier, false));
	tse_sched_progress(&sched);
	CHECK(steps == 0 && !tse_sched_check_complete(&sched));
	tse_task_addref(barrier);
	OK(tse_task_schedule(first, true));
	CHECK(steps == 1);
	tse_sched_progress(&sched);
	CHECK(steps == 5 && order[1] == 20 && order[2] == 2 && order[3] == 31 && order[4] == 30);
	/* Without a body, it is the program that completes it. */
	CHECK(!tse_sched_check_complete(&sched));
	tse_task_complete(barrier, 0);
	CHECK(tse_sched_check_complete(&sched));
	tse_task_decref(barrier);

	steps = 0;
	OK(tse_task_create(note, &sched, (void *)7, &other));
	OK(tse_task_register_comp_cb(other, start_again, NULL, 0));
	again = 0;
	OK(tse_task_schedule(other, false));
	tse_sched_progress(&sched);
	CHECK(again == 3 && steps == 3);

	/* A failure goes to what depends on it. */
	steps = 0;
	OK(tse_task_create(note, &sched, (void *)9, &bad));
	OK(tse_task_create(note, &sched, (void *)10, &other));
	tse_task_addref(other);
	OK(tse_task_register_deps(other, 1, &bad));
	OK(tse_task_schedule(other, false));
	OK(tse_task_schedule_with_delay(bad, false, 2000));
	CHECK_RC(daos_progress(&sched, 0, &empty), -DER_TIMEDOUT);
	while (steps < 2)
		(void)daos_progress(&sched, 1000, &empty);
	CHECK(other->dt_result == -DER_IO);
	CHECK_RC(tse_task_register_comp_cb(other, start_again, NULL, 0), -DER_NO_PERM);
	tse_task_decref(other);
	tse_sched_complete(&sched, 0, true);
	CHECK(rc == -DER_IO);
}

/* A callback that calls the library, and waits. */
static int
look(tse_task_t *task, void *arg)
{
	daos_handle_t kv;
	daos_obj_id_t oid = {.lo = 77};

	CHECK(task->dt_result == 0);
	OK(daos_obj_generate_oid(**(daos_handle_t **)arg, &oid, DAOS_OT_KV_HASHED, OC_S1, 0, 0));
	OK(daos_kv_open(**(daos_handle_t **)arg, oid, DAOS_OO_RW, &kv, NULL));
	OK(daos_kv_put(kv, DAOS_TX_NONE, 0, "from a callback", 1, "v", NULL));
	OK(daos_kv_close(kv, NULL));
	return 0;
}

static void
operations(daos_handle_t poh)
{
	tse_sched_t sched;
	tse_task_t *create, *open, *object, *update, *fetch, *none;
	daos_handle_t coh, oh, *where = &coh;
	daos_obj_id_t oid = {.lo = 5};
	daos_prop_t *prop = daos_prop_alloc(1);
	uuid_t uuid;
	daos_key_t dkey;
	daos_iod_t iod = {.iod_type = DAOS_IOD_SINGLE, .iod_size = 5, .iod_nr = 1};
	char found[8] = {0};
	d_iov_t out, in;
	d_sg_list_t sgl_out = {.sg_nr = 1, .sg_iovs = &out}, sgl_in = {.sg_nr = 1, .sg_iovs = &in};
	bool empty = false;

	prop->dpp_entries[0].dpe_type = DAOS_PROP_CO_LABEL;
	OK(daos_prop_set_str(prop, DAOS_PROP_CO_LABEL, "c-task", 6));
	OK(tse_sched_init(&sched, NULL, NULL));
	CHECK_RC(daos_task_create(DAOS_OPC_POOL_EXCLUDE, &sched, 0, NULL, &none), -DER_NOSYS);
	CHECK_RC(daos_task_create(DAOS_OPC_CONT_OPEN, NULL, 0, NULL, &none), -DER_INVAL);
	OK(daos_task_create(DAOS_OPC_CONT_CREATE, &sched, 0, NULL, &create));
	*(daos_cont_create_t *)daos_task_get_args(create) = (daos_cont_create_t){.poh = poh, .prop = prop, .cuuid = &uuid};
	OK(daos_task_create(DAOS_OPC_CONT_OPEN, &sched, 1, &create, &open));
	*(daos_cont_open_t *)daos_task_get_args(open) =
	    (daos_cont_open_t){.poh = poh, .cont = "c-task", .flags = DAOS_COO_RW, .coh = &coh};
	OK(tse_task_register_comp_cb(open, look, &where, sizeof(where)));
	OK(tse_task_schedule(create, true));
	OK(tse_task_schedule(open, false));
	OK(daos_progress(&sched, DAOS_EQ_WAIT, &empty));
	CHECK(empty);

	OK(daos_obj_generate_oid(coh, &oid, DAOS_OT_MULTI_HASHED, OC_S1, 0, 0));
	OK(daos_task_create(DAOS_OPC_OBJ_OPEN, &sched, 0, NULL, &object));
	*(daos_obj_open_t *)daos_task_get_args(object) =
	    (daos_obj_open_t){.coh = coh, .oid = oid, .mode = DAOS_OO_RW, .oh = &oh};
	OK(tse_task_schedule(object, false));
	OK(daos_progress(&sched, DAOS_EQ_WAIT, &empty));
	d_iov_set(&dkey, "d", 1);
	d_iov_set(&iod.iod_name, "a", 1);
	d_iov_set(&out, "value", 5);
	d_iov_set(&in, found, sizeof(found));
	OK(daos_task_create(DAOS_OPC_OBJ_UPDATE, &sched, 0, NULL, &update));
	*(daos_obj_update_t *)daos_task_get_args(update) =
	    (daos_obj_update_t){.oh = oh, .dkey = &dkey, .nr = 1, .iods = &iod, .sgls = &sgl_out};
	OK(daos_task_create(DAOS_OPC_OBJ_FETCH, &sched, 1, &update, &fetch));
	*(daos_obj_fetch_t *)daos_task_get_args(fetch) =
	    (daos_obj_fetch_t){.oh = oh, .dkey = &dkey, .nr = 1, .iods = &iod, .sgls = &sgl_in};
	OK(tse_task_schedule(fetch, false));
	OK(tse_task_schedule(update, false));
	OK(daos_progress(&sched, DAOS_EQ_WAIT, &empty));
	CHECK(sched.ds_result == 0 && memcmp(found, "value", 5) == 0);
	/* Wrong arguments end the task. */
	OK(daos_task_create(DAOS_OPC_OBJ_FETCH, &sched, 0, NULL, &fetch));
	OK(tse_task_schedule(fetch, false));
	OK(daos_progress(&sched, DAOS_EQ_WAIT, &empty));
	CHECK(sched.ds_result == -DER_NO_HDL);
	tse_sched_fini(&sched);
	daos_prop_free(prop);
	OK(daos_obj_close(oh, NULL));
	OK(daos_cont_close(coh, NULL));
	OK(daos_cont_destroy(poh, "c-task", 0, NULL));
}

struct record {
	d_list_t link;
	int key;
	int users;
};

static int freed;

static struct record *
record_of(d_list_t *link)
{
	return container_of(link, struct record, link);
}

static bool
is_it(struct d_hash_table *table, d_list_t *link, const void *key, unsigned int size)
{
	CHECK(table->ht_priv == &freed && size == sizeof(int));
	return record_of(link)->key == *(const int *)key;
}

static uint32_t
hash(struct d_hash_table *table, const void *key, unsigned int size)
{
	(void)table;
	return (uint32_t)d_hash_murmur64(key, size, 5);
}

static void
add(struct d_hash_table *table, d_list_t *link)
{
	(void)table;
	record_of(link)->users++;
}

static bool
drop(struct d_hash_table *table, d_list_t *link)
{
	(void)table;
	return --record_of(link)->users == 0;
}

static void
release(struct d_hash_table *table, d_list_t *link)
{
	(void)table;
	freed++;
	free(record_of(link));
}

static int
count(d_list_t *link, void *arg)
{
	(void)link;
	++*(int *)arg;
	return 0;
}

static void
tables(void)
{
	static d_hash_table_ops_t ops = {
	    .hop_key_cmp = is_it, .hop_key_hash = hash, .hop_rec_addref = add, .hop_rec_decref = drop, .hop_rec_free = release};
	struct d_hash_table *table;
	d_list_t *link;
	int number = 0, key = 500;

	CHECK_RC(d_hash_table_create(0, 4, NULL, NULL, &table), -DER_INVAL);
	OK(d_hash_table_create(D_HASH_FT_EPHEMERAL, 4, &freed, &ops, &table));
	for (int i = 0; i < 100; i++) {
		struct record *made = calloc(1, sizeof(*made));

		made->key = i;
		made->users = 1;
		OK(d_hash_rec_insert(table, &i, sizeof(i), &made->link, true));
		CHECK_RC(d_hash_rec_insert(table, &i, sizeof(i), &made->link, true), -DER_EXIST);
	}
	CHECK(d_hash_rec_find(table, &key, sizeof(key)) == NULL);
	key = 50;
	link = d_hash_rec_find(table, &key, sizeof(key));
	CHECK(link != NULL && record_of(link)->users == 2);
	d_hash_rec_decref(table, link);
	OK(d_hash_table_traverse(table, count, &number));
	CHECK(number == 100 && freed == 0);
	/* The last user is gone. */
	d_hash_rec_decref(table, link);
	CHECK(freed == 1 && d_hash_rec_find(table, &key, sizeof(key)) == NULL);
	CHECK_RC(d_hash_table_destroy(table, false), -DER_BUSY);
	while ((link = d_hash_rec_first(table)) != NULL) {
		CHECK(d_hash_rec_delete_at(table, link) && d_hash_rec_unlinked(link));
		free(record_of(link));
	}
	OK(d_hash_table_destroy(table, false));
}

int
main(int argc, char **argv)
{
	daos_handle_t poh, coh;
	bool value = false;

	CHECK(argc == 2);
	start(argv, "c-tasks", &poh, &coh);
	bodies();
	operations(poh);
	tables();
	CHECK_RC(d_getenv_bool("WEIR_NOT_SET_ANYWHERE", &value), -DER_NONEXIST);
	setenv("WEIR_TEST_TRUTH", "yes", 1);
	OK(d_getenv_bool("WEIR_TEST_TRUTH", &value));
	CHECK(value);
	return finish("c-tasks", poh, coh);
}
