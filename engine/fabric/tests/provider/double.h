/*
 * A test double of libfabric's cxi provider: what Slingshot has and no provider does that runs without a NIC.
 *
 * It is an external provider of that name, which the library loads from FI_PROVIDER_PATH, so that the code that is tested takes
 * the very paths that it takes on Slingshot. Its network is this process: NICs, services and virtual networks are the tables in
 * offers.c, and whoever sends puts a message into the receiver's posted memory, as a NIC does. What it takes and what it refuses
 * is what fi_cxi(7), fi_av(3) and fi_cq(3) say, and where these leave it open what the provider of libfabric 2.1 does. Where it
 * is stricter, because a call that comes too late is taken there and has no effect, it says so. It is never shipped.
 */
#ifndef WEIR_TEST_DOUBLE_H
#define WEIR_TEST_DOUBLE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_ext.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_cxi_ext.h>

/* VNIs of one service, and so keys of one endpoint. */
#define KEYS_MAX 4
/* Largest message that is sent without a completion. */
#define INJECT_MAX 192
#define MESSAGE_MAX ((size_t)1 << 30)
/* Process ids are from 0 to 510; this one has the provider choose. */
#define PID_BITS 9
#define PID_ANY ((1u << PID_BITS) - 1)

/* An address: a process id, and above it the number of a NIC. The VNI is none of what users see of it. */
struct address {
	uint32_t place;
	uint16_t vni;
	uint16_t zero;
};

struct fabric {
	struct fid_fabric fid;
	unsigned users;
};

struct domain {
	struct fid_domain fid;
	struct fabric *fabric;
	uint32_t nic;
	/* The one key, where keys are no entries of address vectors. */
	struct cxi_auth_key key;
	bool keys_in_vector;
	size_t keys_max;
	bool has_registered;
	bool match_events, optimized, key_cache;
	uint64_t regions;
	unsigned users;
};

/* A peer under a key; under none (VNI 0) where the domain has one. */
struct entry {
	struct address at;
	unsigned uses;
	/* What completions name it by. */
	fi_addr_t told;
};

struct vector {
	struct fid_av fid;
	struct domain *domain;
	struct entry *entries;
	size_t count;
	uint16_t keys[KEYS_MAX];
	size_t key_count;
	unsigned enabled;
	unsigned users;
};

/* Something that has ended. */
struct event {
	struct event *next;
	struct fi_cq_data_entry entry;
	int error;
	fi_addr_t source;
	/* The endpoint that a message came to. Who sent it is looked up when the queue is read. */
	struct endpoint *at;
	struct address sender;
	bool is_resolved;
};

struct queue {
	struct fid_cq fid;
	struct domain *domain;
	struct event *first, **last;
	/* Readable when something has come since it was last found empty; -1: nobody waits for it. */
	int fd;
	unsigned users;
};

/* Memory to receive into. */
struct posted {
	struct posted *next;
	char *buf;
	size_t len, used;
	void *context;
	bool is_multi;
};

/* A message that found no memory. */
struct held {
	struct held *next;
	struct address sender;
	size_t len;
	char bytes[];
};

struct region {
	struct fid_mr fid;
	struct domain *domain;
	struct endpoint *ep;
	struct region *next;
	char *buf;
	size_t len;
	uint64_t access;
};

struct endpoint {
	struct fid_ep fid;
	struct endpoint *next;
	struct domain *domain;
	struct vector *vector;
	struct queue *sends, *receives;
	struct address at;
	uint16_t vnis[KEYS_MAX];
	size_t vni_count;
	bool is_enabled;
	bool has_key;
	uint64_t caps;
	/* Messages that find no memory are turned away: FI_PROTO_CXI_RNR. */
	bool turns_away;
	size_t min_multi;
	struct posted *posted, **posted_last;
	struct held *held, **held_last;
	struct region *regions;
	unsigned users;
};

/* Guards everything: endpoints of all threads reach into each other. */
extern pthread_mutex_t all;
extern struct endpoint *endpoints;

/* Objects that are open, and those that someone tried to close while others used them. Neither may be left at the end. */
extern unsigned open_objects, closed_in_use;

/* Says what was refused, on the standard error output, and returns the negative number. */
int refuse(int code, const char *what);
/* The same for closing something that others still use. */
int refuse_to_close(const char *what);

/* Whether a NIC's service has this VNI. */
bool has_service(uint32_t nic, uint32_t service, uint16_t vni);
/* Whether there is a service for who names none, which sites turn off. */
bool has_default_service(void);
extern const struct cxi_auth_key default_key;

int open_domain(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **out, void *context);
int open_vector(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **out, void *context);
int open_queue(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **out, void *context);
int open_endpoint(struct fid_domain *domain, struct fi_info *info, struct fid_ep **out, void *context);
int try_wait(struct fid_fabric *fabric, struct fid **fids, int count);
extern struct fi_ops_mr region_ops;

/* What this vector's user calls whoever is at an address; FI_ADDR_NOTAVAIL: it was not inserted. */
fi_addr_t vector_source(struct vector *vector, struct address at);
/* The entry of a key; FI_ADDR_NOTAVAIL where keys are no entries. */
fi_addr_t vector_key(struct vector *vector, uint16_t vni);
/* The entry of a number, or NULL. */
struct entry *vector_entry(struct vector *vector, fi_addr_t number);

/* Puts a copy of an event into a queue, and wakes who waits. */
int queue_put(struct queue *queue, const struct event *event);
/* Drops what an endpoint that is closed has in a queue. */
void queue_forget(struct queue *queue, const struct endpoint *ep);

#endif
