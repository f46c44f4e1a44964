/*
 * A flat face on libfabric for Rust.
 *
 * The library's calls are inline functions that go through tables in its objects, and its attributes are nested
 * structures that grow from release to release. Both stay on this side: Rust sees opaque pointers, plain numbers
 * and the structures below, whose layout is repeated in sys.rs.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_ext.h>
#include <rdma/fi_cxi_ext.h>

#include "api.h"
#include "fabric.h"
#include "queue.h"
#include "verbs.h"

#if FI_VERSION_LT(FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION), FI_VERSION(2, 1))
#error "Weir needs libfabric 2.1 or newer: run 'make setup', or point WEIR_LIBFABRIC=system at a newer library"
#endif

/*
 * The tcp provider's room behind each of the thousand operations that it takes memory for with every endpoint: 16 KiB for a
 * tagged message that nobody waits for, 17 MB together, all of it touched. Weir's messages have no tags, and tagged ones that
 * don't fit are put elsewhere. What is left is more than the largest message that is injected. FI_TCP_MAX_RX_SIZE goes before,
 * since the library looks at it later. A library that is linked dynamically doesn't show the variable.
 */
extern size_t xnet_buf_size __attribute__((weak));

enum { TCP_ROOM = 256 };

__attribute__((constructor)) static void spare_memory(void)
{
	if (&xnet_buf_size)
		xnet_buf_size = TCP_ROOM;
}

/* What addresses are: hosts and ports, names, or something of the provider's own. */
enum { WEIR_SOCKETS, WEIR_NAMES, WEIR_FOREIGN };

struct weir_caps {
	char provider[64];
	uint32_t library;
	uint32_t provider_version;
	uint32_t mr_mode;
	uint32_t address_form;
	uint32_t address_format;
	uint64_t abilities;
	uint64_t domain;
	uint64_t inject_size;
	uint64_t max_message;
	uint64_t mr_key_size;
	uint64_t max_auth_keys;
	uint64_t ordered_writes;
	uint64_t mr_accounting;
	uint64_t shared_queue;
};

/* A key as the cxi provider takes it: its public header calls it struct cxi_auth_key. */
struct weir_auth_key {
	uint32_t service;
	uint16_t vni;
};

/* What an offer must have; see make_hints. `keys` are the endpoint's, one of a client or several of a server. */
struct weir_needs {
	uint64_t caps;
	uint64_t domain_caps;
	uint32_t mr_mode;
	uint32_t auth_keys;
	const struct weir_auth_key *keys;
	uint64_t key_count;
	/* Flags that operations must be able to have. */
	uint64_t op_flags;
	/* The receiver-not-ready protocol of cxi in the place of the provider's own choice. */
	uint64_t receiver_not_ready;
	/* The NIC, by the name of its domain; NULL leaves it to the provider. */
	const char *device;
};

/* How the cxi provider is to register memory. */
struct weir_mr_settings {
	int match_events;
	int optimized;
	int key_cache;
};

struct weir_error {
	const char *call;
	int64_t code;
};

/* What shm puts into the peer's queue, and calls done then; what is longer has been copied when it is done. */
#define SHM_QUEUED_MAX 4096

struct weir_completion {
	void *context;
	uint64_t flags;
	uint64_t len;
	void *buf;
	uint64_t data;
};

struct weir_failure {
	void *context;
	uint64_t flags;
	uint64_t len;
	void *buf;
	int32_t code;
	int32_t provider_code;
	uint64_t source;
	uint8_t address[128];
	uint64_t address_len;
};

_Static_assert(sizeof(struct weir_completion) == sizeof(struct fi_cq_data_entry), "completion layout");

static int64_t failed(struct weir_error *error, const char *call, int64_t code)
{
	error->call = call;
	error->code = code;
	return code;
}

static uint32_t address_form(uint32_t format)
{
	if (format == FI_ADDR_STR)
		return WEIR_NAMES;
	return format <= FI_SOCKADDR_IN6 ? WEIR_SOCKETS : WEIR_FOREIGN;
}

static void describe(const struct fi_info *info, struct weir_caps *caps)
{
	memset(caps, 0, sizeof *caps);
	snprintf(caps->provider, sizeof caps->provider, "%s", info->fabric_attr->prov_name);
	caps->library = fi_version();
	caps->provider_version = info->fabric_attr->prov_version;
	caps->address_form = address_form(info->addr_format);
	caps->address_format = info->addr_format;
	caps->mr_mode = (uint32_t)info->domain_attr->mr_mode;
	caps->abilities = info->caps;
	caps->domain = info->domain_attr->caps;
	caps->inject_size = info->tx_attr->inject_size;
	caps->max_message = info->ep_attr->max_msg_size;
	caps->mr_key_size = info->domain_attr->mr_key_size;
	caps->max_auth_keys = info->domain_attr->max_ep_auth_key;
	caps->ordered_writes = (info->tx_attr->msg_order & FI_ORDER_SAW) != 0;
	/*
	 * Closing a registration of cxi ends every access: with match events it waits for those that are counted, else the
	 * kernel invalidates it. The software providers go on with what has begun.
	 */
	caps->mr_accounting = !strcmp(caps->provider, "cxi");
	/*
	 * Senders of shm take their places in the receiver's queue and fill them themselves: one that ends in between blocks
	 * all that come after it. So does one that ends with the lock of the receiver's buffers.
	 */
	caps->shared_queue = !strcmp(caps->provider, "shm");
}

static int set_key(uint8_t **copy, size_t *size, const struct weir_auth_key *key)
{
	*copy = malloc(sizeof *key);
	if (!*copy)
		return -FI_ENOMEM;
	memcpy(*copy, key, sizeof *key);
	*size = sizeof *key;
	return 0;
}

/*
 * Hints for an offer. `caps` are abilities of the endpoint, `domain_caps` those of the domain, `auth_keys` asks for an
 * endpoint that serves that many keys (0: the provider's own single one).
 */
static struct fi_info *make_hints(const char *provider, const struct weir_needs *needs)
{
	struct fi_info *hints = fi_allocinfo();

	if (!hints)
		return NULL;
	hints->caps = needs->caps;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->ep_attr->type = FI_EP_RDM;
	hints->tx_attr->op_flags = needs->op_flags;
	if (needs->receiver_not_ready)
		hints->ep_attr->protocol = FI_PROTO_CXI_RNR;
	hints->domain_attr->caps = needs->domain_caps;
	hints->domain_attr->mr_mode = (int)needs->mr_mode;
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
	hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
	hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
	if (needs->auth_keys) {
		/* The size stands for "the keys are entries of the address vector" (fi_av(3)). */
		hints->domain_attr->max_ep_auth_key = needs->auth_keys;
		hints->domain_attr->auth_key_size = FI_AV_AUTH_KEY;
	}
	if (needs->key_count == 1 && (set_key(&hints->domain_attr->auth_key, &hints->domain_attr->auth_key_size, needs->keys) ||
				      set_key(&hints->ep_attr->auth_key, &hints->ep_attr->auth_key_size, needs->keys))) {
		fi_freeinfo(hints);
		return NULL;
	}
	hints->fabric_attr->prov_name = strdup(provider);
	if (needs->device)
		hints->domain_attr->name = strdup(needs->device);
	if (!hints->fabric_attr->prov_name || (needs->device && !hints->domain_attr->name)) {
		fi_freeinfo(hints);
		return NULL;
	}
	return hints;
}

/*
 * The first offer of exactly this provider, alone; utility providers stacked on it don't count. Nor do addresses of InfiniBand's
 * own, which verbs offers beside those of the network interface.
 */
static int64_t find(const char *provider, const char *node, const char *service, const struct weir_needs *needs,
		    struct fi_info **found)
{
	struct fi_info *hints = make_hints(provider, needs), *list = NULL, *info;
	uint64_t flags = node || service ? FI_SOURCE : 0;
	int ret;

	*found = NULL;
	if (!hints)
		return -FI_ENOMEM;
	ret = fi_getinfo(WEIR_API, node, service, flags, hints, &list);
	fi_freeinfo(hints);
	if (ret)
		return ret;
	for (info = list; info && !*found; info = info->next) {
		if (!strcmp(info->fabric_attr->prov_name, provider) && info->addr_format != FI_SOCKADDR_IB)
			*found = fi_dupinfo(info);
	}
	fi_freeinfo(list);
	return *found ? 0 : -FI_ENODATA;
}

void weir_fabric_close(struct weir_fabric *f);

/* Settings of the cxi provider's domain, before its first registration (fi_cxi(7)). */
static int64_t set_mr_method(struct weir_fabric *f, const struct weir_mr_settings *mr)
{
	bool match_events = mr->match_events, optimized = mr->optimized, key_cache = mr->key_cache;
	int ret;

	if (strcmp(f->info->fabric_attr->prov_name, "cxi"))
		return 0;
	if ((ret = fi_control(&f->domain->fid, FI_OPT_CXI_SET_PROV_KEY_CACHE, &key_cache)))
		return ret;
	if ((ret = fi_control(&f->domain->fid, FI_OPT_CXI_SET_OPTIMIZED_MRS, &optimized)))
		return ret;
	return fi_control(&f->domain->fid, FI_OPT_CXI_SET_MR_MATCH_EVENTS, &match_events);
}

static int64_t open_domain(struct weir_fabric *f, const struct weir_mr_settings *mr, struct weir_error *error)
{
	int ret;

	/*
	 * One thread does everything with a domain. The library's offers don't say so, and it takes a lock for each look at
	 * the queue, which on shm is a quarter of the look. With tcp, requests have stalled for want of these locks.
	 */
	if (!strcmp(f->info->fabric_attr->prov_name, "shm"))
		f->info->domain_attr->control_progress = FI_PROGRESS_CONTROL_UNIFIED;
	if ((ret = fi_fabric(f->info->fabric_attr, &f->fabric, NULL)))
		return failed(error, "fi_fabric", ret);
	if ((ret = fi_domain(f->fabric, f->info, &f->domain, NULL)))
		return failed(error, "fi_domain", ret);
	if ((ret = weir_verbs_check(f->info, f->domain)))
		return failed(error, WEIR_KEEPS_REGISTRATIONS, ret);
	if ((ret = set_mr_method(f, mr)))
		return failed(error, "fi_control(FI_OPT_CXI_SET_*)", ret);
	return 0;
}

/* Address vector, completion queue and endpoint: what the domain's registrations outlive. */
static int64_t open_endpoint(struct weir_fabric *f, const struct weir_needs *needs, uint64_t *key_ids,
			     struct weir_error *error)
{
	struct fi_av_attr av = { .type = FI_AV_TABLE };
	uint64_t at;
	int ret;

	if ((ret = fi_av_open(f->domain, &av, &f->av, NULL)))
		return failed(error, "fi_av_open", ret);
	/* All keys of the endpoint have to be there before it is enabled; each is an entry that senders are named by. */
	for (at = 0; needs->key_count > 1 && at < needs->key_count; at++) {
		fi_addr_t id = at;

		ret = fi_av_insert_auth_key(f->av, &needs->keys[at], sizeof needs->keys[at], &id, 0);
		if (ret)
			return failed(error, "fi_av_insert_auth_key", ret);
		key_ids[at] = id;
	}
	if ((ret = weir_queue_open(f->domain, f->wait, f->queue, &f->cq)))
		return failed(error, "fi_cq_open", ret);
	if ((ret = fi_endpoint(f->domain, f->info, &f->ep, NULL)))
		return failed(error, "fi_endpoint", ret);
	if ((ret = fi_ep_bind(f->ep, &f->av->fid, 0)))
		return failed(error, "fi_ep_bind(av)", ret);
	if ((ret = fi_ep_bind(f->ep, &f->cq->fid, FI_TRANSMIT | FI_RECV)))
		return failed(error, "fi_ep_bind(cq)", ret);
	/* 0: no posted buffer takes more than one message. */
	if (f->min_multi_recv &&
	    (ret = fi_setopt(&f->ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &f->min_multi_recv,
			     sizeof f->min_multi_recv)))
		return failed(error, "fi_setopt(FI_OPT_MIN_MULTI_RECV)", ret);
	if ((ret = fi_enable(f->ep)))
		return failed(error, "fi_enable", ret);
	return 0;
}

/* The name that the next endpoint has, in the provider's format, in the place of what node and service resolve to. */
static void set_name(struct weir_fabric *f, const char *name)
{
	free(f->info->src_addr);
	f->info->src_addr = strdup(name);
	f->info->src_addrlen = strlen(name) + 1;
}

/*
 * Opens fabric, domain, address vector, completion queue and endpoint. `address`, if given, is the endpoint's own name. With `delivery` a write has ended only
 * when it has arrived.
 */
int64_t weir_fabric_open(const char *provider, const char *node, const char *service, const char *address,
			 const struct weir_needs *needs, uint64_t *key_ids, int wait, int delivery,
			 uint64_t queue, uint64_t min_multi_recv, const struct weir_mr_settings *mr, struct weir_fabric **out, struct weir_caps *caps, struct weir_error *error)
{
	struct weir_fabric *f = calloc(1, sizeof *f);
	int64_t ret;

	*out = NULL;
	if (!f)
		return failed(error, "calloc", -FI_ENOMEM);
	if ((ret = find(provider, node, service, needs, &f->info))) {
		free(f);
		return failed(error, "fi_getinfo", ret);
	}
	if (address)
		set_name(f, address);
	weir_verbs_set_port(f->info, service);
	f->wait = wait;
	f->queue = queue;
	f->min_multi_recv = min_multi_recv;
	describe(f->info, caps);
	/* Nor may a later message overtake a write: not even one that does not go through the provider. */
	if (delivery || !caps->ordered_writes)
		f->transfer_flags = FI_DELIVERY_COMPLETE;
	f->flagged_max = strcmp(caps->provider, "shm") ? UINT64_MAX : SHM_QUEUED_MAX;
	ret = open_domain(f, mr, error);
	if (!ret)
		ret = open_endpoint(f, needs, key_ids, error);
	if (ret) {
		weir_fabric_close(f);
		return ret;
	}
	*out = f;
	return 0;
}

static void close_endpoint(struct fid_ep *ep, struct fid_cq *cq, struct fid_av *av)
{
	if (ep)
		fi_close(&ep->fid);
	if (cq)
		fi_close(&cq->fid);
	if (av)
		fi_close(&av->fid);
}

/* Closes the endpoints that others have taken the place of, but for the last ones. */
void weir_fabric_bury(struct weir_fabric *f, uint64_t but)
{
	struct weir_retired **at = &f->retired;

	for (; *at && but; but--)
		at = &(*at)->next;
	while (*at) {
		struct weir_retired *retired = *at;

		*at = retired->next;
		close_endpoint(retired->ep, retired->cq, retired->av);
		free(retired);
	}
}

static void close_current(struct weir_fabric *f)
{
	weir_end_bound(f);
	close_endpoint(f->ep, f->cq, f->av);
	f->ep = NULL;
	f->cq = NULL;
	f->av = NULL;
}

/* Closes the endpoint and its queues: from here on nothing touches posted memory. */
void weir_fabric_stop(struct weir_fabric *f)
{
	close_current(f);
	weir_fabric_bury(f, 0);
}

/* Closes an endpoint that took another's place and that nobody knows yet; those before it stay as they are. */
void weir_fabric_abandon(struct weir_fabric *f)
{
	close_current(f);
}

/*
 * Opens another endpoint of this name in the place of the one that there is; it knows nobody. Registrations stay. The old one
 * does nothing any more, but its shared memory stays until it is buried: other threads of this process may just be writing
 * there. Where that fails there is no endpoint, and it can be tried again with another name: the library knows each of a
 * process for good.
 */
int64_t weir_fabric_reopen(struct weir_fabric *f, const char *name, struct weir_error *error)
{
	const struct weir_needs needs = { 0 };
	struct weir_retired *retired;
	int64_t ret;

	if (f->ep) {
		retired = malloc(sizeof *retired);
		if (!retired)
			return failed(error, "malloc", -FI_ENOMEM);
		*retired = (struct weir_retired){ f->av, f->cq, f->ep, f->retired };
		f->retired = retired;
		f->ep = NULL;
		f->cq = NULL;
		f->av = NULL;
	}
	set_name(f, name);
	ret = open_endpoint(f, &needs, NULL, error);
	if (ret)
		close_current(f);
	return ret;
}

/* Closes what is left, once every registration is closed, and frees the object. */
void weir_fabric_close(struct weir_fabric *f)
{
	weir_fabric_stop(f);
	if (f->domain)
		fi_close(&f->domain->fid);
	if (f->fabric)
		fi_close(&f->fabric->fid);
	fi_freeinfo(f->info);
	free(f);
}

/* Tries one offer of a provider without opening it. */
int64_t weir_probe(const char *provider, const struct weir_needs *needs, struct weir_caps *caps)
{
	struct fi_info *info;
	int64_t ret = find(provider, NULL, NULL, needs, &info);

	if (ret)
		return ret;
	describe(info, caps);
	fi_freeinfo(info);
	return 0;
}

/* Whether completion queues of an offer can be waited for in this way: 0, or why not, and what said so. Only opening one tells. */
int64_t weir_probe_wait(const char *provider, const struct weir_needs *needs, int wait, struct weir_error *error)
{
	struct weir_fabric f = { 0 };
	int64_t ret = find(provider, NULL, NULL, needs, &f.info);

	if (ret)
		return failed(error, "fi_getinfo", ret);
	if ((ret = fi_fabric(f.info->fabric_attr, &f.fabric, NULL)))
		failed(error, "fi_fabric", ret);
	else if ((ret = fi_domain(f.fabric, f.info, &f.domain, NULL)))
		failed(error, "fi_domain", ret);
	else if ((ret = weir_queue_open(f.domain, wait, 16, &f.cq)))
		failed(error, "fi_cq_open", ret);
	if (f.cq)
		fi_close(&f.cq->fid);
	if (f.domain)
		fi_close(&f.domain->fid);
	if (f.fabric)
		fi_close(&f.fabric->fid);
	fi_freeinfo(f.info);
	return ret;
}

int64_t weir_getname(struct weir_fabric *f, void *address, uint64_t *len)
{
	size_t size = *len;
	int ret = fi_getname(&f->ep->fid, address, &size);

	*len = size;
	return ret;
}

/* An address of the provider's own form, in the provider's spelling. Returns its length with the terminating zero. */
int64_t weir_straddr(struct weir_fabric *f, const void *address, char *text, uint64_t len)
{
	size_t size = len;

	return fi_av_straddr(f->av, address, text, &size) ? (int64_t)size : -FI_ENOSYS;
}

int64_t weir_wait_fd(struct weir_fabric *f, int *fd)
{
	return fi_control(&f->cq->fid, FI_GETWAIT, fd);
}

/* The descriptors of a queue that has several, into room for WAIT_FDS_MAX. Returns how many there are. */
int64_t weir_wait_fds(struct weir_fabric *f, struct weir_wait_fd *fds)
{
	return weir_queue_wait_fds(f->cq, fds);
}

int64_t weir_trywait(struct weir_fabric *f)
{
	struct fid *fids[1] = { &f->cq->fid };

	return fi_trywait(f->fabric, fids, 1);
}

/*
 * Inserts an address. `number` says what `*peer` is on the way in: nothing (0), the number that completions of this peer
 * are to name (1), or the entry of the auth key that the peer is met under (2).
 */
int64_t weir_av_insert(struct weir_fabric *f, const void *address, int number, uint64_t *peer)
{
	const uint64_t flags[] = { 0, FI_AV_USER_ID, FI_AUTH_KEY };
	fi_addr_t inserted = number ? *peer : FI_ADDR_NOTAVAIL;
	int ret = fi_av_insert(f->av, address, 1, &inserted, flags[number], NULL);

	*peer = inserted;
	return ret == 1 ? 0 : ret < 0 ? ret : -FI_EADDRNOTAVAIL;
}

int64_t weir_av_remove(struct weir_fabric *f, uint64_t peer)
{
	fi_addr_t removed = peer;

	return fi_av_remove(f->av, &removed, 1, 0);
}

int64_t weir_post_slab(struct weir_fabric *f, void *buf, uint64_t len, void *desc, void *context)
{
	struct iovec iov = { .iov_base = buf, .iov_len = len };
	struct fi_msg msg = { .msg_iov = &iov, .desc = desc ? &desc : NULL, .iov_count = 1,
			      .addr = FI_ADDR_UNSPEC, .context = context };

	return fi_recvmsg(f->ep, &msg, FI_MULTI_RECV);
}

int64_t weir_post_buffer(struct weir_fabric *f, void *buf, uint64_t len, void *desc, void *context)
{
	return fi_recv(f->ep, buf, len, desc, FI_ADDR_UNSPEC, context);
}

int64_t weir_send(struct weir_fabric *f, const void *buf, uint64_t len, void *desc, uint64_t peer, void *context)
{
	return fi_send(f->ep, buf, len, desc, peer, context);
}

int64_t weir_inject(struct weir_fabric *f, const void *buf, uint64_t len, uint64_t peer)
{
	return fi_inject(f->ep, buf, len, peer);
}

int64_t weir_read(struct weir_fabric *f, void *buf, uint64_t len, void *desc, uint64_t peer, uint64_t addr, uint64_t key,
		  void *context)
{
	return fi_read(f->ep, buf, len, desc, peer, addr, key, context);
}

int64_t weir_write(struct weir_fabric *f, const void *buf, uint64_t len, void *desc, uint64_t peer, uint64_t addr,
		   uint64_t key, void *context)
{
	struct iovec iov = { .iov_base = (void *)buf, .iov_len = len };
	struct fi_rma_iov remote = { .addr = addr, .len = len, .key = key };
	struct fi_msg_rma msg = { .msg_iov = &iov, .desc = desc ? &desc : NULL, .iov_count = 1, .addr = peer,
				  .rma_iov = &remote, .rma_iov_count = 1, .context = context };

	if (!f->transfer_flags || len > f->flagged_max)
		return fi_write(f->ep, buf, len, desc, peer, addr, key, context);
	return fi_writemsg(f->ep, &msg, f->transfer_flags | FI_COMPLETION);
}

int64_t weir_cq_read(struct weir_fabric *f, struct weir_completion *entries, uint64_t *sources, uint64_t count)
{
	return fi_cq_readfrom(f->cq, entries, count, sources);
}

int64_t weir_cq_failure(struct weir_fabric *f, struct weir_failure *failure)
{
	struct fi_cq_err_entry entry;
	ssize_t ret;

	memset(&entry, 0, sizeof entry);
	memset(failure, 0, sizeof *failure);
	entry.err_data = failure->address;
	entry.err_data_size = sizeof failure->address;
	ret = fi_cq_readerr(f->cq, &entry, 0);
	if (ret != 1)
		return ret ? ret : -FI_EAGAIN;
	failure->context = entry.op_context;
	failure->flags = entry.flags;
	failure->len = entry.len;
	failure->buf = entry.buf;
	failure->code = weir_verbs_failure(f->info, &entry);
	failure->provider_code = entry.prov_errno;
	failure->source = entry.src_addr;
	/* The size means something only where an unknown source is reported. */
	if (entry.err == FI_EADDRNOTAVAIL && entry.err_data_size <= sizeof failure->address)
		failure->address_len = entry.err_data_size;
	return 1;
}

const char *weir_strerror(int64_t code)
{
	return fi_strerror((int)(code < 0 ? -code : code));
}

uint32_t weir_library_version(void)
{
	return fi_version();
}

/* Bits of the library's headers, for a test that sys.rs has the same. */
uint64_t weir_constant(uint32_t which)
{
	const uint64_t constants[] = { FI_MULTI_RECV, FI_SOURCE, FI_SOURCE_ERR, FI_AV_USER_ID, FI_MSG, FI_RMA, FI_RECV,
				       FI_MR_LOCAL, FI_MR_VIRT_ADDR, FI_MR_ALLOCATED, FI_MR_PROV_KEY, FI_MR_ENDPOINT,
				       FI_EAGAIN, FI_EAVAIL, FI_EADDRNOTAVAIL, FI_ECANCELED, FI_ENOKEY,
				       FI_DELIVERY_COMPLETE, address_form(FI_SOCKADDR_IN),
				       address_form(FI_ADDR_STR), address_form(FI_ADDR_CXI) };

	return which < sizeof constants / sizeof *constants ? constants[which] : 0;
}
