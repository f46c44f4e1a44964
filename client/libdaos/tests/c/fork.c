/* SPDX-License-Identifier: Apache-2.0 */
/* What forked children do leaves their parent undisturbed, whose threads and queues are busy meanwhile. */
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define ROUNDS 50
/* Longest life of a child, in seconds: one that hangs ends by the signal. */
#define CHILD_LIMIT 60

static const char *pool;
static daos_handle_t poh, coh, kv, eq;
static daos_event_t event;

static int
put(daos_handle_t into, const char *value)
{
	return daos_kv_put(into, DAOS_TX_NONE, 0, "k", strlen(value), value, NULL);
}

/* Ends without a word, as most children do: by exit, which runs what was left for the end of the process. */
static void
leaves(void)
{
	exit(0);
}

static void
finishes(void)
{
	CHECK_RC(daos_fini(), -DER_UNINIT);
	exit(0);
}

static void
replaces(void)
{
	execl("/bin/true", "true", NULL);
	_exit(1);
}

/* Uses what was its parent's: each call says that the library isn't started. */
static void
uses(void)
{
	daos_handle_t other;
	daos_event_t *done;
	bool complete;
	uint64_t first;

	CHECK_RC(put(kv, "child"), -DER_UNINIT);
	CHECK_RC(daos_pool_connect(pool, NULL, DAOS_PC_RW, &other, NULL, NULL), -DER_UNINIT);
	CHECK_RC(daos_cont_alloc_oids(poh, 1, &first, NULL), -DER_UNINIT);
	CHECK_RC(daos_eq_create(&other), -DER_UNINIT);
	CHECK_RC(daos_eq_poll(eq, 0, DAOS_EQ_NOWAIT, 1, &done), -DER_UNINIT);
	CHECK_RC(daos_event_test(&event, DAOS_EQ_NOWAIT, &complete), -DER_UNINIT);
	CHECK_RC(daos_event_fini(&event), -DER_UNINIT);
	CHECK_RC(daos_kv_close(kv, NULL), -DER_UNINIT);
	CHECK_RC(daos_pool_disconnect(poh, NULL), -DER_UNINIT);
	exit(0);
}

/* Starts the library anew, and works with its parent's handles where they are `kept`, with what it opens itself, and in a child of
 * its own. */
static void
works(int (*begin)(void), const char *label, bool kept)
{
	daos_handle_t own_pool, container, own;
	daos_obj_id_t oid = {.lo = 77};
	uuid_t uuid;
	daos_event_t *done;
	pid_t grandchild;
	int status;

	OK(begin());
	CHECK_RC(put(kv, "child"), kept ? 0 : -DER_NO_HDL);
	CHECK_RC(daos_eq_poll(eq, 0, DAOS_EQ_NOWAIT, 1, &done), -DER_NO_HDL);
	CHECK_RC(daos_event_fini(&event), -DER_INVAL);
	OK(daos_pool_connect(pool, NULL, DAOS_PC_RW, &own_pool, NULL, NULL));
	OK(daos_cont_create_with_label(own_pool, label, NULL, &uuid, NULL));
	OK(daos_cont_open(own_pool, label, DAOS_COO_RW, &container, NULL, NULL));
	OK(daos_obj_generate_oid(container, &oid, DAOS_OT_KV_HASHED, OC_SX, 0, 0));
	OK(daos_kv_open(container, oid, DAOS_OO_RW, &own, NULL));
	OK(put(own, "child"));
	grandchild = fork();
	CHECK(grandchild >= 0);
	if (grandchild == 0)
		exit(put(own, "grandchild") == -DER_UNINIT ? 0 : 1);
	CHECK(waitpid(grandchild, &status, 0) == grandchild && status == 0);
	OK(put(own, "child"));
	if (kept) {
		/* The child's end of them is none for its parent. */
		CHECK_RC(daos_pool_disconnect(poh, NULL), -DER_BUSY);
		OK(daos_kv_close(kv, NULL));
		OK(daos_cont_close(coh, NULL));
		OK(daos_pool_disconnect(poh, NULL));
	}
	OK(daos_kv_close(own, NULL));
	OK(daos_cont_close(container, NULL));
	OK(daos_cont_destroy(own_pool, label, 0, NULL));
	OK(daos_pool_disconnect(own_pool, NULL));
	OK(daos_fini());
	exit(0);
}

static void
starts_again(void)
{
	works(daos_reinit, "c-fork-reinit", true);
}

static void
starts(void)
{
	works(daos_init, "c-fork-init", false);
}

/* Forks while an operation of the queue is under way, and goes on. */
static void
disturbed_by(void (*what)(void))
{
	daos_event_t *done;
	pid_t child;
	int status;

	OK(daos_event_init(&event, eq, NULL));
	OK(daos_kv_put(kv, DAOS_TX_NONE, 0, "queued", 5, "value", &event));
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		alarm(CHILD_LIMIT);
		what();
	}
	for (int i = 0; i < ROUNDS; i++)
		OK(put(kv, "parent"));
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	for (int i = 0; i < ROUNDS; i++)
		OK(put(kv, "parent"));
	CHECK(daos_eq_poll(eq, 1, DAOS_EQ_WAIT, 1, &done) == 1 && done == &event);
	OK(event.ev_error);
	OK(daos_event_fini(&event));
}

int
main(int argc, char **argv)
{
	daos_obj_id_t oid = {.lo = 3};

	CHECK(argc == 2);
	pool = argv[1];
	start(argv, "c-fork", &poh, &coh);
	OK(daos_reinit());
	OK(daos_obj_generate_oid(coh, &oid, DAOS_OT_KV_HASHED, OC_SX, 0, 0));
	OK(daos_kv_open(coh, oid, DAOS_OO_RW, &kv, NULL));
	OK(daos_eq_create(&eq));
	OK(put(kv, "parent"));
	disturbed_by(leaves);
	disturbed_by(finishes);
	disturbed_by(replaces);
	disturbed_by(uses);
	disturbed_by(starts);
	disturbed_by(starts_again);
	OK(daos_eq_destroy(eq, 0));
	OK(daos_kv_close(kv, NULL));
	return finish("c-fork", poh, coh);
}
