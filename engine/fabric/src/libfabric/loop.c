/*
 * libfabric on its own, to measure beside: messages of 64 bytes and transfers of 1 MiB that the client drives, by a thread that
 * polls without pause: who measures it by turns with others stops the server's process meanwhile. Nothing here is used by endpoints.
 * Both sides trust each other.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

/* The interface version that this code is written against. */
#define LOOP_API FI_VERSION(2, 0)

/* Bytes of a message and of a transfer, as in the benchmark. */
#define SMALL 64
#define LARGE ((size_t)1 << 20)

/* Most messages in flight that are echoed, and most transfers under way. */
#define WIDTH_MAX 64
#define TRANSFERS_MAX 4

/* One-way messages under way: those of eight answers, each of which stands for so many. */
#define STREAM_WINDOW 512
#define STREAM_EACH 64

/* Memory of a side: what is read, what is written, and what messages arrive in. */
#define READ_AT ((size_t)0)
#define WRITE_AT (TRANSFERS_MAX * LARGE)
#define SLAB_AT (2 * TRANSFERS_MAX * LARGE)
#define SLAB ((size_t)256 << 10)
#define SLABS 2
#define MEMORY (SLAB_AT + SLABS * SLAB)
#define HUGE_PAGE ((size_t)2 << 20)

/* Receives where one takes one message only. */
#define SINGLES 256

/* Completions that are taken at once. */
#define BATCH 32

/* A client that has heard nothing for so long gives up. */
#define PATIENCE_NS 10000000000u

/* Polls in vain between looks at the clock. */
#define CLOCK_EACH 1024

enum kind { HELLO, QUIT, ECHO, ONE_WAY, ANSWER };

enum load { LOAD_ECHO, LOAD_STREAM, LOAD_READ, LOAD_WRITE, LOAD_WRITE_ARRIVED, LOADS };

struct message {
	uint16_t kind;
	/* Of HELLO: the sender's address. */
	uint16_t len;
	uint8_t address[SMALL - 4];
};

_Static_assert(sizeof(struct message) == SMALL, "a message's size");

/* An operation: what libfabric calls its context, and the memory of a receive, or whether a transfer is over. */
struct slot {
	struct fi_context2 context;
	uint8_t *memory;
	size_t len;
	bool is_idle;
};

struct weir_loop {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_ep *ep;
	struct fid_mr *mr;
	uint8_t *memory;
	void *desc;
	bool multi_recv;
	/* What says that a write has to have arrived. */
	uint64_t arrives;
	struct slot receives[SINGLES];
	struct slot transfers[TRANSFERS_MAX];
	/* The other side: of a server its one client. */
	fi_addr_t peer;
	uint64_t remote;
	uint64_t remote_key;
	/* What a server owes, and what it was told. */
	uint64_t echoes;
	uint64_t answers;
	uint64_t streamed;
	bool quits;
	/* What has come back to a client, and transfers that are over. */
	uint64_t arrived;
	uint64_t moved;
};

/* Where something failed. */
struct weir_loop_error {
	const char *call;
	int64_t code;
};

static int64_t failed(struct weir_loop_error *error, const char *call, int64_t code)
{
	error->call = call;
	error->code = code;
	return code;
}

static uint64_t now_ns(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* An offer of exactly this provider: on loopback, if it is one whose addresses are the network's. */
static int find(const char *provider, const char *node, uint64_t more, struct fi_info **found)
{
	struct fi_info *hints = fi_allocinfo(), *list = NULL, *info;
	int ret;

	if (!hints)
		return -FI_ENOMEM;
	hints->caps = FI_MSG | FI_RMA | more;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->ep_attr->type = FI_EP_RDM;
	hints->tx_attr->inject_size = SMALL;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
	hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
	hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
	hints->fabric_attr->prov_name = strdup(provider);
	ret = fi_getinfo(LOOP_API, node, NULL, node ? FI_SOURCE : 0, hints, &list);
	fi_freeinfo(hints);
	if (ret)
		return ret;
	for (info = list; info && !*found; info = info->next) {
		if (!strcmp(info->fabric_attr->prov_name, provider))
			*found = fi_dupinfo(info);
	}
	fi_freeinfo(list);
	return *found ? 0 : -FI_ENODATA;
}

/* The same, with receives for many messages where the provider has them. */
static int find_best(struct weir_loop *loop, const char *provider)
{
	const uint64_t more[] = { FI_MULTI_RECV, 0 };
	int at, ret = -FI_ENODATA;

	for (at = 0; at < 2 && !loop->info; at++) {
		ret = find(provider, "127.0.0.1", more[at], &loop->info);
		if (!ret && loop->info->addr_format == FI_ADDR_STR) {
			/* It takes a node for the endpoint's whole name, of which there can be one only. */
			fi_freeinfo(loop->info);
			loop->info = NULL;
			ret = find(provider, NULL, more[at], &loop->info);
		}
		loop->multi_recv = more[at] != 0;
	}
	return loop->info ? 0 : ret;
}

static int open_endpoint(struct weir_loop *loop, struct weir_loop_error *error)
{
	struct fi_av_attr av = { .type = FI_AV_TABLE };
	struct fi_cq_attr cq = { .format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_NONE };
	size_t room = SMALL;
	int ret;

	/* As endpoints have it: shm takes a lock for each look at the queue otherwise, and has copied a large write when it is done. */
	if (!strcmp(loop->info->fabric_attr->prov_name, "shm"))
		loop->info->domain_attr->control_progress = FI_PROGRESS_CONTROL_UNIFIED;
	else
		loop->arrives = FI_DELIVERY_COMPLETE;
	if ((ret = fi_fabric(loop->info->fabric_attr, &loop->fabric, NULL)))
		return (int)failed(error, "fi_fabric", ret);
	if ((ret = fi_domain(loop->fabric, loop->info, &loop->domain, NULL)))
		return (int)failed(error, "fi_domain", ret);
	if ((ret = fi_av_open(loop->domain, &av, &loop->av, NULL)))
		return (int)failed(error, "fi_av_open", ret);
	if ((ret = fi_cq_open(loop->domain, &cq, &loop->cq, NULL)))
		return (int)failed(error, "fi_cq_open", ret);
	if ((ret = fi_endpoint(loop->domain, loop->info, &loop->ep, NULL)))
		return (int)failed(error, "fi_endpoint", ret);
	if ((ret = fi_ep_bind(loop->ep, &loop->av->fid, 0)))
		return (int)failed(error, "fi_ep_bind(av)", ret);
	if ((ret = fi_ep_bind(loop->ep, &loop->cq->fid, FI_TRANSMIT | FI_RECV)))
		return (int)failed(error, "fi_ep_bind(cq)", ret);
	if (loop->multi_recv &&
	    (ret = fi_setopt(&loop->ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &room, sizeof room)))
		return (int)failed(error, "fi_setopt(FI_OPT_MIN_MULTI_RECV)", ret);
	if ((ret = fi_enable(loop->ep)))
		return (int)failed(error, "fi_enable", ret);
	return 0;
}

/* Memory like that of endpoints: on huge pages, and touched. */
static int open_memory(struct weir_loop *loop, struct weir_loop_error *error)
{
	const uint64_t access = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
	int ret;

	loop->memory = aligned_alloc(HUGE_PAGE, (MEMORY + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
	if (!loop->memory)
		return (int)failed(error, "aligned_alloc", -FI_ENOMEM);
	(void)madvise(loop->memory, MEMORY, MADV_HUGEPAGE);
	memset(loop->memory, 7, MEMORY);
	if ((ret = fi_mr_reg(loop->domain, loop->memory, MEMORY, access, 0, 1, 0, &loop->mr, NULL)))
		return (int)failed(error, "fi_mr_reg", ret);
	loop->desc = fi_mr_desc(loop->mr);
	return 0;
}

static int post_receive(struct weir_loop *loop, struct slot *slot)
{
	struct iovec part = { slot->memory, slot->len };
	struct fi_msg msg = { .msg_iov = &part, .desc = &loop->desc, .iov_count = 1, .addr = FI_ADDR_UNSPEC,
			      .context = &slot->context };

	return (int)fi_recvmsg(loop->ep, &msg, loop->multi_recv ? FI_MULTI_RECV : 0);
}

static int post_receives(struct weir_loop *loop, struct weir_loop_error *error)
{
	size_t count = loop->multi_recv ? SLABS : SINGLES, len = loop->multi_recv ? SLAB : SMALL, at;
	int ret = 0;

	if (count > loop->info->rx_attr->size)
		count = loop->info->rx_attr->size;
	for (at = 0; at < count && !ret; at++) {
		loop->receives[at].memory = loop->memory + SLAB_AT + at * len;
		loop->receives[at].len = len;
		ret = post_receive(loop, &loop->receives[at]);
	}
	return ret ? (int)failed(error, "fi_recvmsg", ret) : 0;
}

void weir_loop_close(struct weir_loop *loop)
{
	if (loop->ep)
		(void)fi_close(&loop->ep->fid);
	if (loop->mr)
		(void)fi_close(&loop->mr->fid);
	if (loop->cq)
		(void)fi_close(&loop->cq->fid);
	if (loop->av)
		(void)fi_close(&loop->av->fid);
	if (loop->domain)
		(void)fi_close(&loop->domain->fid);
	if (loop->fabric)
		(void)fi_close(&loop->fabric->fid);
	if (loop->info)
		fi_freeinfo(loop->info);
	free(loop->memory);
	free(loop);
}

int64_t weir_loop_open(const char *provider, struct weir_loop **out, struct weir_loop_error *error)
{
	struct weir_loop *loop = calloc(1, sizeof *loop);
	int ret;

	*out = NULL;
	if (!loop)
		return failed(error, "calloc", -FI_ENOMEM);
	loop->peer = FI_ADDR_UNSPEC;
	ret = find_best(loop, provider);
	if (ret)
		(void)failed(error, "fi_getinfo", ret);
	if (!ret)
		ret = open_endpoint(loop, error);
	if (!ret)
		ret = open_memory(loop, error);
	if (!ret)
		ret = post_receives(loop, error);
	if (ret)
		weir_loop_close(loop);
	else
		*out = loop;
	return ret;
}

/* Where it is reached: its address, the begin of its memory and the key of that, as a line of text. */
int64_t weir_loop_name(struct weir_loop *loop, char *text, uint64_t room)
{
	uint8_t address[sizeof((struct message *)0)->address];
	size_t len = sizeof address, at;
	uint64_t begin = loop->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)loop->memory : 0;
	int ret = fi_getname(&loop->ep->fid, address, &len);

	if (ret)
		return ret;
	if (room < 2 * len + 40)
		return -FI_ETOOSMALL;
	for (at = 0; at < len; at++)
		text += sprintf(text, "%02x", address[at]);
	(void)sprintf(text, " %llx %llx", (unsigned long long)begin, (unsigned long long)fi_mr_key(loop->mr));
	return 0;
}

/* A server's part: notes what it owes, because nothing can be sent from here. */
static int take(struct weir_loop *loop, const struct message *message)
{
	switch (message->kind) {
	case HELLO:
		if (message->len > sizeof message->address ||
		    fi_av_insert(loop->av, message->address, 1, &loop->peer, 0, NULL) != 1)
			return -FI_EINVAL;
		loop->answers++;
		break;
	case QUIT:
		loop->quits = true;
		break;
	case ECHO:
		loop->echoes++;
		break;
	case ONE_WAY:
		if (++loop->streamed % STREAM_EACH == 0)
			loop->answers++;
		break;
	default:
		loop->arrived++;
	}
	return 0;
}

static int complete(struct weir_loop *loop, const struct fi_cq_data_entry *entry)
{
	struct slot *slot = entry->op_context;
	int ret = 0;

	/* A slab that is full may be given back without a message. */
	if (entry->flags & FI_RECV && entry->len == SMALL)
		ret = take(loop, loop->multi_recv ? entry->buf : (void *)slot->memory);
	else if (entry->flags & (FI_READ | FI_WRITE)) {
		slot->is_idle = true;
		loop->moved++;
	}
	if (!ret && entry->flags & (loop->multi_recv ? FI_MULTI_RECV : FI_RECV))
		ret = post_receive(loop, slot);
	return ret;
}

/* Takes what is over. Returns how much, or what went wrong. */
static int look(struct weir_loop *loop)
{
	struct fi_cq_data_entry entries[BATCH];
	struct fi_cq_err_entry trouble = { 0 };
	ssize_t count = fi_cq_read(loop->cq, entries, BATCH), at;
	int ret = 0;

	if (count == -FI_EAGAIN)
		return 0;
	if (count == -FI_EAVAIL && fi_cq_readerr(loop->cq, &trouble, 0) == 1)
		return -trouble.err;
	for (at = 0; at < count && !ret; at++)
		ret = complete(loop, &entries[at]);
	return ret ? ret : (int)count;
}

static int inject(struct weir_loop *loop, uint16_t kind)
{
	const struct message message = { .kind = kind };

	return (int)fi_inject(loop->ep, &message, sizeof message, loop->peer);
}

/* Sends what a server owes, as far as it can be sent. */
static int settle(struct weir_loop *loop)
{
	int ret = 0;

	while (loop->echoes > 0 && !(ret = inject(loop, ANSWER)))
		loop->echoes--;
	while (!ret && loop->answers > 0 && !(ret = inject(loop, ANSWER)))
		loop->answers--;
	return ret == -FI_EAGAIN ? 0 : ret;
}

/* Serves until it is told to end. */
int64_t weir_loop_serve(struct weir_loop *loop)
{
	int ret = 0;

	while (!loop->quits && ret >= 0) {
		ret = look(loop);
		if (ret >= 0 && (loop->echoes > 0 || loop->answers > 0))
			ret = settle(loop);
	}
	return ret < 0 ? ret : 0;
}

/* Polls until something is over. */
static int await(struct weir_loop *loop)
{
	uint64_t began = 0;
	uint32_t idle = 0;
	int ret;

	while (!(ret = look(loop))) {
		if (++idle % CLOCK_EACH)
			continue;
		if (!began)
			began = now_ns();
		else if (now_ns() - began > PATIENCE_NS)
			return -FI_ETIMEDOUT;
	}
	return ret < 0 ? ret : 0;
}

/* Sends a message, taking what is over while there is no room. */
static int say(struct weir_loop *loop, const struct message *message)
{
	uint64_t began = 0;
	ssize_t ret;

	while ((ret = fi_inject(loop->ep, message, sizeof *message, loop->peer)) == -FI_EAGAIN) {
		if (!began)
			began = now_ns();
		else if (now_ns() - began > PATIENCE_NS)
			return -FI_ETIMEDOUT;
		if ((ret = look(loop)) < 0)
			break;
	}
	return (int)ret;
}

/* Sends a message and waits for its answer. */
static int converse(struct weir_loop *loop, const struct message *message)
{
	uint64_t before = loop->arrived;
	int ret = say(loop, message);

	while (!ret && loop->arrived == before)
		ret = await(loop);
	return ret;
}

/* Makes the server at this address, which weir_loop_name gave, the one that is asked. */
int64_t weir_loop_connect(struct weir_loop *loop, const char *server)
{
	struct message hello = { .kind = HELLO };
	uint8_t address[sizeof hello.address] = { 0 };
	unsigned long long begin, key;
	size_t len = sizeof hello.address, used;
	int ret;

	for (used = 0; used < sizeof address && *server != ' ' && sscanf(server, "%2hhx", &address[used]) == 1; used++)
		server += 2;
	if (sscanf(server, " %llx %llx", &begin, &key) != 2)
		return -FI_EINVAL;
	loop->remote = begin;
	loop->remote_key = key;
	if (fi_av_insert(loop->av, address, 1, &loop->peer, 0, NULL) != 1)
		return -FI_EADDRNOTAVAIL;
	if ((ret = fi_getname(&loop->ep->fid, hello.address, &len)))
		return ret;
	hello.len = (uint16_t)len;
	return converse(loop, &hello);
}

/* Small messages that come back, so many in flight. */
static int echo(struct weir_loop *loop, uint32_t width, uint64_t until, uint64_t *done)
{
	const struct message message = { .kind = ECHO };
	uint64_t first = loop->arrived, sent = first;
	int ret = 0;

	while (!ret && now_ns() < until) {
		while (!ret && sent - loop->arrived < width) {
			ret = say(loop, &message);
			sent++;
		}
		if (!ret)
			ret = await(loop);
	}
	while (!ret && loop->arrived < sent)
		ret = await(loop);
	*done = loop->arrived - first;
	return ret;
}

/* Small messages that don't come back. Of so many the server says that they have arrived. */
static int stream(struct weir_loop *loop, uint64_t until, uint64_t *done)
{
	const struct message message = { .kind = ONE_WAY };
	uint64_t first = loop->arrived, sent = 0;
	int ret = 0;

	while (!ret && now_ns() < until) {
		while (!ret && sent - (loop->arrived - first) * STREAM_EACH < STREAM_WINDOW) {
			uint32_t at;

			for (at = 0; at < STREAM_EACH && !ret; at++)
				ret = say(loop, &message);
			sent += STREAM_EACH;
		}
		if (!ret)
			ret = await(loop);
	}
	while (!ret && (loop->arrived - first) * STREAM_EACH < sent)
		ret = await(loop);
	*done = sent;
	return ret;
}

static ssize_t post_transfer(struct weir_loop *loop, uint32_t load, uint32_t at)
{
	size_t offset = (load == LOAD_READ ? READ_AT : WRITE_AT) + at * LARGE;
	struct iovec part = { loop->memory + offset, LARGE };
	struct fi_rma_iov remote = { loop->remote + offset, LARGE, loop->remote_key };
	struct fi_msg_rma msg = { .msg_iov = &part, .desc = &loop->desc, .iov_count = 1, .addr = loop->peer,
				  .rma_iov = &remote, .rma_iov_count = 1, .context = &loop->transfers[at].context };

	if (load == LOAD_READ)
		return fi_readmsg(loop->ep, &msg, FI_COMPLETION);
	return fi_writemsg(loop->ep, &msg, FI_COMPLETION | (load == LOAD_WRITE_ARRIVED ? loop->arrives : 0));
}

/* Transfers, so many under way. Several are never of the same memory. */
static int transfer(struct weir_loop *loop, uint32_t load, uint32_t width, uint64_t until, uint64_t *done)
{
	uint64_t first = loop->moved, begun = first;
	ssize_t ret = 0;
	uint32_t at;

	for (at = 0; at < width; at++)
		loop->transfers[at].is_idle = true;
	while (!ret && now_ns() < until) {
		for (at = 0; at < width && !ret; at++) {
			if (!loop->transfers[at].is_idle)
				continue;
			ret = post_transfer(loop, load, at);
			loop->transfers[at].is_idle = ret != 0;
			begun += ret == 0;
		}
		if (!ret)
			ret = await(loop);
		else if (ret == -FI_EAGAIN && (ret = look(loop)) > 0)
			ret = 0;
	}
	while (!ret && loop->moved < begun)
		ret = await(loop);
	*done = loop->moved - first;
	return (int)ret;
}

/* Does something for a while, `width` at a time, and until what was begun is over. Gives the rate per second. */
int64_t weir_loop_ask(struct weir_loop *loop, uint32_t load, uint32_t width, uint64_t span_ns, double *rate)
{
	uint64_t began, done = 0;
	int ret;

	if (load >= LOADS || width == 0 || width > (load < LOAD_READ ? WIDTH_MAX : TRANSFERS_MAX))
		return -FI_EINVAL;
	began = now_ns();
	if (load == LOAD_ECHO)
		ret = echo(loop, width, began + span_ns, &done);
	else if (load == LOAD_STREAM)
		ret = stream(loop, began + span_ns, &done);
	else
		ret = transfer(loop, load, width, began + span_ns, &done);
	*rate = (double)done * 1e9 / (double)(now_ns() - began);
	return ret;
}

/* Tells the server to end. */
int64_t weir_loop_dismiss(struct weir_loop *loop)
{
	const struct message quit = { .kind = QUIT };

	return say(loop, &quit);
}
