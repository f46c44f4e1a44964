#include "queue.h"

#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>

/* Whether a descriptor is an epoll set. */
static bool is_epoll(int fd)
{
	char path[40], kind[64];
	ssize_t len;

	snprintf(path, sizeof path, "/proc/thread-self/fd/%d", fd);
	len = readlink(path, kind, sizeof kind - 1);
	if (len < 0)
		return false;
	kind[len] = 0;
	return !strcmp(kind, "anon_inode:[eventpoll]");
}

int64_t weir_queue_wait_fds(struct fid_cq *cq, struct weir_wait_fd *fds)
{
	struct pollfd list[WAIT_FDS_MAX];
	struct fi_wait_pollfd set = { .nfds = WAIT_FDS_MAX, .fd = list };
	uint64_t at;
	int ret = fi_control(&cq->fid, FI_GETWAIT, &set);

	if (ret)
		return ret;
	for (at = 0; at < set.nfds; at++) {
		fds[at].fd = list[at].fd;
		fds[at].nested = is_epoll(list[at].fd);
	}
	return (int64_t)set.nfds;
}

/* Longest wait for the library to complete its list, in milliseconds: of a thread that the system lets run now and then. */
#define SETTLE_MAX_MS 512

/*
 * Has the library complete its list of descriptors, which it does when the queue is waited for the first time, if the time for
 * that has not passed before the wait begins. It always has with the first one here, so that what is done about it is tried in
 * every run and not once in some hundreds on a busy machine.
 */
static int settle(struct fid_cq *cq)
{
	struct weir_wait_fd fds[WAIT_FDS_MAX];
	struct fi_cq_data_entry entry;
	int64_t count, at;
	int wait;

	for (wait = 0; wait <= SETTLE_MAX_MS; wait = wait ? 2 * wait : 1) {
		(void)fi_cq_sread(cq, &entry, 1, NULL, wait);
		count = weir_queue_wait_fds(cq, fds);
		if (count < 0)
			return (int)count;
		for (at = 0; at < count; at++) {
			if (fds[at].nested)
				return 0;
		}
	}
	return -FI_ENODATA;
}

int weir_queue_open(struct fid_domain *domain, int wait, uint64_t size, struct fid_cq **cq)
{
	static const enum fi_wait_obj objects[] = { FI_WAIT_NONE, FI_WAIT_FD, FI_WAIT_POLLFD };
	struct fi_cq_attr attr = { .format = FI_CQ_FORMAT_DATA, .size = size, .wait_obj = objects[wait] };
	int ret = fi_cq_open(domain, &attr, cq, NULL);

	return ret || wait != WEIR_WAIT_SET ? ret : settle(*cq);
}
