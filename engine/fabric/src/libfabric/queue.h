/*
 * Completion queues: how they are opened and waited for.
 */
#ifndef WEIR_QUEUE_H
#define WEIR_QUEUE_H

#include <stdint.h>

struct fid_cq;
struct fid_domain;

/* How a completion queue is waited for: see sys.rs. */
enum weir_wait { WEIR_WAIT_NONE, WEIR_WAIT_FD, WEIR_WAIT_SET };

/* A descriptor of a queue's wait object: see sys.rs. */
struct weir_wait_fd {
	int32_t fd;
	int32_t nested;
};

/* Most descriptors of one queue. The tcp provider has three. */
#define WAIT_FDS_MAX 8

/*
 * Opens a completion queue that is waited for in this way. Of several descriptors one has to be what the provider itself polls, an
 * epoll set: that one is worth leaving alone while awake.
 */
int weir_queue_open(struct fid_domain *domain, int wait, uint64_t size, struct fid_cq **cq);

/* The descriptors of a queue that has several, into room for WAIT_FDS_MAX. Returns how many there are. */
int64_t weir_queue_wait_fds(struct fid_cq *cq, struct weir_wait_fd *fds);

#endif
