/*
 * Messages, and access to peers' memory.
 */
#include "endpoint.h"

#include <stdlib.h>
#include <string.h>

/* Ends an operation of an endpoint. Those without a completion only tell of errors, without a context. */
static void end(struct endpoint *ep, void *context, uint64_t flags, size_t len, int error)
{
	struct event event = {
		.entry = { .op_context = context, .flags = flags, .len = error ? 0 : len },
		.error = error,
		.source = FI_ADDR_UNSPEC,
	};

	(void)queue_put(ep->sends, &event);
}

/* Where an entry of the vector leads to. What is wrong with the call itself is refused. */
static int route(struct endpoint *ep, fi_addr_t peer, struct address *to)
{
	struct entry *entry;
	size_t at;

	if (!ep->is_enabled)
		return refuse(FI_EOPBADSTATE, "an operation of an endpoint that is not enabled");
	entry = vector_entry(ep->vector, peer);
	if (!entry)
		return refuse(FI_EINVAL, "an operation to a peer that was not inserted");
	*to = entry->at;
	if (ep->has_key)
		to->vni = ep->vnis[0];
	for (at = 0; at < ep->vni_count; at++) {
		if (ep->vnis[at] == to->vni)
			return 0;
	}
	return refuse(FI_EINVAL, "an operation under a key that the endpoint was not enabled with");
}

/* Why nobody is there: the NIC has no such network, or the network has no such process. */
static int absence(struct address to)
{
	struct endpoint *ep;
	size_t at;

	for (ep = endpoints; ep; ep = ep->next) {
		for (at = 0; ep->is_enabled && ep->at.place >> PID_BITS == to.place >> PID_BITS && at < ep->vni_count; at++) {
			if (ep->vnis[at] == to.vni)
				return FI_EIO;
		}
	}
	return FI_ENOTCONN;
}

/* Puts a message into the first memory that is posted. */
static int take_in(struct endpoint *ep, struct address sender, const void *bytes, size_t len)
{
	struct posted *posted = ep->posted;
	size_t room = posted->len - posted->used;
	struct event event = {
		.entry = { .op_context = posted->context, .flags = FI_RECV | FI_MSG, .buf = posted->buf + posted->used },
		.source = FI_ADDR_NOTAVAIL,
		.at = ep,
		.sender = sender,
	};
	int ret;

	event.entry.len = len < room ? len : room;
	event.error = len > room ? FI_ETRUNC : 0;
	memcpy(event.entry.buf, bytes, event.entry.len);
	posted->used += event.entry.len;
	if (!posted->is_multi || posted->len - posted->used < ep->min_multi) {
		event.entry.flags |= posted->is_multi ? FI_MULTI_RECV : 0;
		ep->posted = posted->next;
		if (!ep->posted)
			ep->posted_last = &ep->posted;
		free(posted);
	}
	ret = queue_put(ep->receives, &event);
	return ret ? FI_EIO : 0;
}

/* Has a message wait for memory. */
static int hold(struct endpoint *ep, struct address sender, const void *bytes, size_t len)
{
	struct held *held = malloc(sizeof *held + len);

	if (!held)
		return FI_EIO;
	held->next = NULL;
	held->sender = sender;
	held->len = len;
	memcpy(held->bytes, bytes, len);
	*ep->held_last = held;
	ep->held_last = &held->next;
	return 0;
}

/* Brings a message to where it is to go. Returns what its sender is told: an error number, or 0. */
static int deliver(struct endpoint *ep, struct address to, const void *bytes, size_t len)
{
	struct endpoint *receiver = endpoint_at(to.place, to.vni);
	struct address sender = { .place = ep->at.place, .vni = to.vni };

	if (!receiver)
		return absence(to);
	if (receiver->posted && !receiver->held)
		return take_in(receiver, sender, bytes, len);
	/* As with FI_CXI_RNR_MAX_TIMEOUT_US=0: nothing is sent again. */
	return receiver->turns_away ? FI_EIO : hold(receiver, sender, bytes, len);
}

static ssize_t post(struct endpoint *ep, void *buf, size_t len, fi_addr_t source, void *context, bool is_multi)
{
	struct posted *posted;
	struct held *held;

	if (!ep->is_enabled)
		return refuse(FI_EOPBADSTATE, "memory for an endpoint that is not enabled");
	if (source != FI_ADDR_UNSPEC || (is_multi && !(ep->caps & FI_MULTI_RECV)))
		return refuse(FI_EINVAL, "memory for a certain peer, or for many messages where each has its own");
	posted = calloc(1, sizeof *posted);
	if (!posted)
		return -FI_EAGAIN;
	*posted = (struct posted){ .buf = buf, .len = len, .context = context, .is_multi = is_multi };
	pthread_mutex_lock(&all);
	*ep->posted_last = posted;
	ep->posted_last = &posted->next;
	while ((held = ep->held) && ep->posted) {
		(void)take_in(ep, held->sender, held->bytes, held->len);
		ep->held = held->next;
		if (!ep->held)
			ep->held_last = &ep->held;
		free(held);
	}
	pthread_mutex_unlock(&all);
	return 0;
}

static ssize_t receive(struct fid_ep *fid, void *buf, size_t len, void *desc, fi_addr_t source, void *context)
{
	(void)desc;
	return post((struct endpoint *)fid, buf, len, source, context, false);
}

static ssize_t receive_message(struct fid_ep *fid, const struct fi_msg *msg, uint64_t flags)
{
	if (msg->iov_count != 1 || flags & ~(FI_MULTI_RECV | FI_COMPLETION))
		return refuse(FI_EINVAL, "memory in several pieces, or with flags that are none");
	return post((struct endpoint *)fid, msg->msg_iov->iov_base, msg->msg_iov->iov_len, msg->addr, msg->context,
		    flags & FI_MULTI_RECV);
}

static ssize_t send_message(struct fid_ep *fid, const void *buf, size_t len, void *desc, fi_addr_t peer, void *context)
{
	struct endpoint *ep = (struct endpoint *)fid;
	struct address to;
	int ret;

	(void)desc;
	if (len > MESSAGE_MAX)
		return refuse(FI_EMSGSIZE, "a message that is too long");
	pthread_mutex_lock(&all);
	ret = route(ep, peer, &to);
	if (!ret)
		end(ep, context, FI_SEND | FI_MSG, len, deliver(ep, to, buf, len));
	pthread_mutex_unlock(&all);
	return ret;
}

static ssize_t inject(struct fid_ep *fid, const void *buf, size_t len, fi_addr_t peer)
{
	struct endpoint *ep = (struct endpoint *)fid;
	struct address to;
	int ret, error;

	/* The protocol that sends again needs a completion to do so. */
	if (ep->turns_away || len > INJECT_MAX)
		return refuse(FI_EINVAL, "to inject what can't be injected");
	pthread_mutex_lock(&all);
	ret = route(ep, peer, &to);
	error = ret ? 0 : deliver(ep, to, buf, len);
	if (error)
		end(ep, NULL, FI_SEND | FI_MSG, len, error);
	pthread_mutex_unlock(&all);
	return ret;
}

/* The memory that a peer has under a key, where it gives this access to all of it. */
static char *reach(struct address to, uint64_t at, size_t len, uint64_t key, uint64_t access)
{
	struct endpoint *ep = endpoint_at(to.place, to.vni);
	struct region *region;

	for (region = ep ? ep->regions : NULL; region; region = region->next) {
		if (region->fid.key == key && region->access & access && at <= region->len && len <= region->len - at)
			return region->buf + at;
	}
	return NULL;
}

static ssize_t move(struct endpoint *ep, char *local, size_t len, fi_addr_t peer, uint64_t at, uint64_t key, void *context,
		    bool is_read)
{
	uint64_t flags = FI_RMA | (is_read ? FI_READ : FI_WRITE);
	struct address to;
	char *remote;
	int ret;

	pthread_mutex_lock(&all);
	ret = route(ep, peer, &to);
	if (!ret) {
		remote = reach(to, at, len, key, is_read ? FI_REMOTE_READ : FI_REMOTE_WRITE);
		if (remote && is_read)
			memcpy(local, remote, len);
		else if (remote)
			memcpy(remote, local, len);
		end(ep, context, flags, len, remote ? 0 : endpoint_at(to.place, to.vni) ? FI_EIO : absence(to));
	}
	pthread_mutex_unlock(&all);
	return ret;
}

static ssize_t read_memory(struct fid_ep *fid, void *buf, size_t len, void *desc, fi_addr_t peer, uint64_t at, uint64_t key,
			   void *context)
{
	(void)desc;
	return move((struct endpoint *)fid, buf, len, peer, at, key, context, true);
}

static ssize_t write_memory(struct fid_ep *fid, const void *buf, size_t len, void *desc, fi_addr_t peer, uint64_t at,
			    uint64_t key, void *context)
{
	(void)desc;
	return move((struct endpoint *)fid, (char *)buf, len, peer, at, key, context, false);
}

static ssize_t write_message(struct fid_ep *fid, const struct fi_msg_rma *msg, uint64_t flags)
{
	const struct fi_rma_iov *to = msg->rma_iov;

	if (msg->iov_count != 1 || msg->rma_iov_count != 1 || to->len != msg->msg_iov->iov_len)
		return refuse(FI_EINVAL, "a write in several pieces");
	/* Without it there would be no completion. */
	if (!(flags & FI_COMPLETION) || flags & ~(FI_COMPLETION | FI_DELIVERY_COMPLETE))
		return refuse(FI_EINVAL, "a write without a completion, or with flags that are none");
	return move((struct endpoint *)fid, msg->msg_iov->iov_base, msg->msg_iov->iov_len, msg->addr, to->addr, to->key,
		    msg->context, false);
}

struct fi_ops_msg message_ops = {
	.size = sizeof message_ops, .recv = receive, .recvmsg = receive_message, .send = send_message, .inject = inject,
};
struct fi_ops_rma transfer_ops = {
	.size = sizeof transfer_ops, .read = read_memory, .write = write_memory, .writemsg = write_message,
};
