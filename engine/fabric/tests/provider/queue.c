/*
 * Completion queues.
 */
#include "double.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

int queue_put(struct queue *queue, const struct event *event)
{
	struct event *copy = malloc(sizeof *copy);
	uint64_t one = 1;

	if (!copy)
		return -FI_ENOMEM;
	*copy = *event;
	copy->next = NULL;
	*queue->last = copy;
	queue->last = &copy->next;
	/* It can only fail when it is readable anyway. */
	if (queue->fd >= 0 && write(queue->fd, &one, sizeof one) < 0 && errno != EAGAIN)
		return -errno;
	return 0;
}

void queue_forget(struct queue *queue, const struct endpoint *ep)
{
	struct event **at = &queue->first, *gone;

	while ((gone = *at)) {
		if (gone->at != ep) {
			at = &gone->next;
			continue;
		}
		*at = gone->next;
		free(gone);
	}
	queue->last = at;
}

/* Finds out who sent what has come. Everything that is there is looked at, before anything is handed out. */
static void resolve(struct queue *queue)
{
	struct event *event;

	for (event = queue->first; event; event = event->next) {
		if (!event->at || event->is_resolved)
			continue;
		event->is_resolved = true;
		if (!(event->at->caps & FI_SOURCE))
			continue;
		event->source = vector_source(event->at->vector, event->sender);
		if (event->error || event->source != FI_ADDR_NOTAVAIL || !(event->at->caps & FI_SOURCE_ERR))
			continue;
		event->error = FI_EADDRNOTAVAIL;
		event->source = vector_key(event->at->vector, event->sender.vni);
	}
}

static void drop_first(struct queue *queue)
{
	struct event *gone = queue->first;

	queue->first = gone->next;
	if (!queue->first)
		queue->last = &queue->first;
	free(gone);
}

static ssize_t read_from(struct fid_cq *fid, void *entries, size_t count, fi_addr_t *sources)
{
	struct queue *queue = (struct queue *)fid;
	struct fi_cq_data_entry *entry = entries;
	size_t taken;

	pthread_mutex_lock(&all);
	resolve(queue);
	for (taken = 0; taken < count && queue->first && !queue->first->error; taken++) {
		entry[taken] = queue->first->entry;
		if (sources)
			sources[taken] = queue->first->source;
		drop_first(queue);
	}
	if (!taken)
		taken = (size_t)(queue->first ? -FI_EAVAIL : -FI_EAGAIN);
	pthread_mutex_unlock(&all);
	return (ssize_t)taken;
}

static ssize_t read_all(struct fid_cq *fid, void *entries, size_t count)
{
	return read_from(fid, entries, count, NULL);
}

static ssize_t read_error(struct fid_cq *fid, struct fi_cq_err_entry *out, uint64_t flags)
{
	struct queue *queue = (struct queue *)fid;
	struct address sender;
	void *room = out->err_data;
	size_t size = out->err_data_size;
	ssize_t ret = -FI_EAGAIN;

	if (flags)
		return refuse(FI_EINVAL, "to read an error with flags");
	pthread_mutex_lock(&all);
	resolve(queue);
	if (queue->first && queue->first->error) {
		const struct event *event = queue->first;

		*out = (struct fi_cq_err_entry){
			.op_context = event->entry.op_context, .flags = event->entry.flags, .len = event->entry.len,
			.buf = event->entry.buf, .err = event->error, .src_addr = event->source, .err_data = room,
		};
		if (event->error == FI_EADDRNOTAVAIL) {
			/* An address has no key in it: that is what the source says. */
			sender = (struct address){ .place = event->sender.place };
			out->err_data_size = size < sizeof sender ? size : sizeof sender;
			memcpy(room, &sender, out->err_data_size);
		}
		drop_first(queue);
		ret = 1;
	}
	pthread_mutex_unlock(&all);
	return ret;
}

/* Whether a thread may sleep on the descriptor now. */
int try_wait(struct fid_fabric *fabric, struct fid **fids, int count)
{
	uint64_t events;
	int at, ret = 0;

	(void)fabric;
	pthread_mutex_lock(&all);
	for (at = 0; at < count; at++) {
		struct queue *queue = (struct queue *)fids[at];

		if (fids[at]->fclass != FI_CLASS_CQ || queue->fd < 0)
			ret = refuse(FI_EINVAL, "to wait for what can't be waited for");
		else if (queue->first)
			ret = -FI_EAGAIN;
		else if (read(queue->fd, &events, sizeof events) < 0 && errno != EAGAIN)
			ret = -errno;
	}
	pthread_mutex_unlock(&all);
	return ret;
}

static int control_queue(struct fid *fid, int command, void *value)
{
	struct queue *queue = (struct queue *)fid;

	if (command != FI_GETWAIT || queue->fd < 0)
		return -FI_ENOSYS;
	*(int *)value = queue->fd;
	return 0;
}

static int close_queue(struct fid *fid)
{
	struct queue *queue = (struct queue *)fid;
	int ret = 0;

	pthread_mutex_lock(&all);
	if (queue->users) {
		ret = refuse_to_close("to close a queue that has endpoints");
	} else {
		while (queue->first)
			drop_first(queue);
		if (queue->fd >= 0)
			close(queue->fd);
		queue->domain->users--;
		open_objects--;
		free(queue);
	}
	pthread_mutex_unlock(&all);
	return ret;
}

int open_queue(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **out, void *context)
{
	static struct fi_ops fid_ops = { .size = sizeof fid_ops, .close = close_queue, .control = control_queue };
	static struct fi_ops_cq ops = { .size = sizeof ops, .read = read_all, .readfrom = read_from, .readerr = read_error };
	struct queue *queue;

	if (attr->format != FI_CQ_FORMAT_DATA)
		return refuse(FI_ENOSYS, "a queue of another format than is used here");
	if (attr->wait_obj != FI_WAIT_NONE && attr->wait_obj != FI_WAIT_FD)
		return -FI_ENOSYS;
	queue = calloc(1, sizeof *queue);
	if (!queue)
		return -FI_ENOMEM;
	queue->fd = attr->wait_obj == FI_WAIT_FD ? eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC) : -1;
	if (attr->wait_obj == FI_WAIT_FD && queue->fd < 0) {
		free(queue);
		return -errno;
	}
	queue->fid.fid = (struct fid){ .fclass = FI_CLASS_CQ, .context = context, .ops = &fid_ops };
	queue->fid.ops = &ops;
	queue->domain = (struct domain *)domain;
	queue->last = &queue->first;
	pthread_mutex_lock(&all);
	queue->domain->users++;
	open_objects++;
	pthread_mutex_unlock(&all);
	*out = &queue->fid;
	return 0;
}
