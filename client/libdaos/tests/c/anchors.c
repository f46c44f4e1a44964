/* SPDX-License-Identifier: Apache-2.0 */
/* An enumeration that one process begins, and others go on with, whatever the length of its keys. */
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define KEYS 40
#define KEY_BYTES 600

static char *pool;

/* The key of a number: long, and the same as the others until its end. */
static void
name(char *key, int number)
{
	memset(key, 'k', KEY_BYTES - 1);
	snprintf(key + KEY_BYTES - 8, 8, "%07d", number);
}

/* Lists up to three keys and notes them. */
static void
step(daos_handle_t kv, daos_anchor_t *anchor, char *seen)
{
	char buf[3 * KEY_BYTES];
	daos_key_desc_t kds[3];
	d_iov_t iov;
	d_sg_list_t sgl = {.sg_nr = 1, .sg_iovs = &iov};
	uint32_t nr = 3;
	char *at = buf;

	d_iov_set(&iov, buf, sizeof(buf));
	OK(daos_kv_list(kv, DAOS_TX_NONE, &nr, kds, &sgl, anchor, NULL));
	for (uint32_t i = 0; i < nr; i++) {
		CHECK(kds[i].kd_key_len == KEY_BYTES - 1);
		int number = atoi(at + KEY_BYTES - 8);

		CHECK(number >= 0 && number < KEYS && !seen[number]);
		seen[number] = 1;
		at += kds[i].kd_key_len;
	}
}

/* One step in a process of its own, which knows the anchor only. */
static void
step_elsewhere(daos_obj_id_t oid, daos_anchor_t *anchor, char *seen)
{
	int ends[2], status;
	pid_t child;

	CHECK(pipe(ends) == 0);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		daos_handle_t poh, coh, kv;

		OK(daos_reinit());
		OK(daos_pool_connect(pool, NULL, DAOS_PC_RO, &poh, NULL, NULL));
		OK(daos_cont_open(poh, "c-anchors", DAOS_COO_RO, &coh, NULL, NULL));
		OK(daos_kv_open(coh, oid, DAOS_OO_RO, &kv, NULL));
		/* Other anchors, so that the process has others under the same numbers. */
		for (int i = 0; i < 20; i++) {
			daos_anchor_t other = {0};
			char ignored[KEYS] = {0};

			step(kv, &other, ignored);
		}
		step(kv, anchor, seen);
		CHECK(write(ends[1], anchor, sizeof(*anchor)) == sizeof(*anchor));
		CHECK(write(ends[1], seen, KEYS) == KEYS);
		OK(daos_kv_close(kv, NULL));
		OK(daos_cont_close(coh, NULL));
		OK(daos_pool_disconnect(poh, NULL));
		exit(0);
	}
	CHECK(read(ends[0], anchor, sizeof(*anchor)) == sizeof(*anchor));
	CHECK(read(ends[0], seen, KEYS) == KEYS);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	close(ends[0]);
	close(ends[1]);
}

int
main(int argc, char **argv)
{
	daos_handle_t poh, coh, kv;
	daos_obj_id_t oid = {.lo = 4};
	daos_anchor_t anchor = {0};
	char key[KEY_BYTES], seen[KEYS] = {0};

	CHECK(argc == 2);
	pool = argv[1];
	start(argv, "c-anchors", &poh, &coh);
	OK(daos_obj_generate_oid(coh, &oid, DAOS_OT_KV_HASHED, OC_SX, 0, 0));
	OK(daos_kv_open(coh, oid, DAOS_OO_RW, &kv, NULL));
	for (int i = 0; i < KEYS; i++) {
		name(key, i);
		OK(daos_kv_put(kv, DAOS_TX_NONE, 0, key, 1, "v", NULL));
	}
	for (int i = 0; !daos_anchor_is_eof(&anchor); i++) {
		if (i % 2 == 0)
			step(kv, &anchor, seen);
		else
			step_elsewhere(oid, &anchor, seen);
	}
	for (int i = 0; i < KEYS; i++)
		CHECK(seen[i]);
	OK(daos_kv_close(kv, NULL));
	return finish("c-anchors", poh, coh);
}
