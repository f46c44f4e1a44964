/*
 * Endpoints: how they come to be, and who they are.
 */
#include "endpoint.h"

#include <stdlib.h>
#include <string.h>

struct endpoint *endpoint_at(uint32_t place, uint16_t vni)
{
	struct endpoint *ep;
	size_t at;

	for (ep = endpoints; ep; ep = ep->next) {
		for (at = 0; ep->is_enabled && ep->at.place == place && at < ep->vni_count; at++) {
			if (ep->vnis[at] == vni)
				return ep;
		}
	}
	return NULL;
}

/* Whether none of an endpoint's networks has this process yet: in each they are counted anew. */
static bool is_free(const struct endpoint *ep, uint32_t place)
{
	size_t at;

	for (at = 0; at < ep->vni_count; at++) {
		if (endpoint_at(place, ep->vnis[at]))
			return false;
	}
	return true;
}

static int find_place(struct endpoint *ep)
{
	uint32_t nic = ep->domain->nic << PID_BITS, wanted = ep->at.place & PID_ANY, pid;

	for (pid = wanted == PID_ANY ? 0 : wanted; pid < PID_ANY; pid++) {
		if (is_free(ep, nic | pid)) {
			ep->at.place = nic | pid;
			return 0;
		}
		if (wanted != PID_ANY)
			break;
	}
	return refuse(FI_EADDRINUSE, "a process id that is in use");
}

static int enable(struct endpoint *ep)
{
	struct vector *vector = ep->vector;
	int ret;

	if (ep->is_enabled)
		return refuse(FI_EOPBADSTATE, "to enable an endpoint twice");
	if (!vector)
		return refuse(FI_ENOAV, "to enable an endpoint without a vector");
	if (!ep->sends || !ep->receives)
		return refuse(FI_ENOCQ, "to enable an endpoint without queues");
	if (ep->has_key) {
		ep->vnis[0] = ep->domain->key.vni;
		ep->vni_count = 1;
	} else {
		memcpy(ep->vnis, vector->keys, sizeof ep->vnis);
		ep->vni_count = vector->key_count;
	}
	if (!ep->vni_count)
		return refuse(FI_EINVAL, "to enable an endpoint before its keys are there");
	ret = find_place(ep);
	if (ret)
		return ret;
	vector->enabled++;
	ep->is_enabled = true;
	return 0;
}

static int control_endpoint(struct fid *fid, int command, void *value)
{
	int ret;

	(void)value;
	if (command != FI_ENABLE)
		return refuse(FI_ENOSYS, "an unknown setting of an endpoint");
	pthread_mutex_lock(&all);
	ret = enable((struct endpoint *)fid);
	pthread_mutex_unlock(&all);
	return ret;
}

static int bind_endpoint(struct fid *fid, struct fid *to, uint64_t flags)
{
	struct endpoint *ep = (struct endpoint *)fid;

	if (ep->is_enabled)
		return refuse(FI_EOPBADSTATE, "to bind an endpoint that is enabled");
	if (to->fclass == FI_CLASS_AV) {
		struct vector *vector = (struct vector *)to;

		if (ep->vector || vector->domain != ep->domain)
			return refuse(FI_EINVAL, "a second vector, or one of another domain");
		ep->vector = vector;
		vector->users++;
		return 0;
	}
	if (to->fclass == FI_CLASS_CQ) {
		struct queue *queue = (struct queue *)to;

		/* Without a flag that leaves it to the operation each has a completion, but for those that can't. */
		if (flags != (FI_TRANSMIT | FI_RECV) || ep->sends || queue->domain != ep->domain)
			return refuse(FI_EINVAL, "a second queue, one of another domain, or half a queue");
		ep->sends = ep->receives = queue;
		queue->users++;
		return 0;
	}
	return refuse(FI_EINVAL, "to bind an endpoint to what is neither vector nor queue");
}

static int close_endpoint(struct fid *fid)
{
	struct endpoint *ep = (struct endpoint *)fid, **at;

	pthread_mutex_lock(&all);
	if (ep->users) {
		int ret = refuse_to_close("to close an endpoint that registrations are bound to");

		pthread_mutex_unlock(&all);
		return ret;
	}
	for (at = &endpoints; *at && *at != ep; at = &(*at)->next)
		;
	if (*at)
		*at = ep->next;
	while (ep->posted) {
		struct posted *gone = ep->posted;

		ep->posted = gone->next;
		free(gone);
	}
	while (ep->held) {
		struct held *gone = ep->held;

		ep->held = gone->next;
		free(gone);
	}
	if (ep->sends) {
		queue_forget(ep->sends, ep);
		ep->sends->users--;
	}
	if (ep->vector) {
		ep->vector->users--;
		ep->vector->enabled -= ep->is_enabled;
	}
	ep->domain->users--;
	open_objects--;
	pthread_mutex_unlock(&all);
	free(ep);
	return 0;
}

static int get_name(fid_t fid, void *name, size_t *len)
{
	struct endpoint *ep = (struct endpoint *)fid;
	struct address at = { .place = ep->at.place };
	size_t room = *len;

	if (!ep->is_enabled)
		return refuse(FI_EOPBADSTATE, "the name of an endpoint that is not enabled");
	*len = sizeof at;
	memcpy(name, &at, room < sizeof at ? room : sizeof at);
	return room < sizeof at ? -FI_ETOOSMALL : 0;
}

static int set_option(fid_t fid, int level, int option, const void *value, size_t len)
{
	struct endpoint *ep = (struct endpoint *)fid;

	if (level != FI_OPT_ENDPOINT || option != FI_OPT_MIN_MULTI_RECV || len != sizeof ep->min_multi)
		return refuse(FI_ENOPROTOOPT, "an unknown option of an endpoint");
	memcpy(&ep->min_multi, value, len);
	return 0;
}

/* Whether the offer that an endpoint is opened with has keys as its domain has them. */
static int check(const struct domain *domain, const struct fi_info *info)
{
	struct cxi_auth_key key;

	if (info->addr_format != FI_ADDR_CXI || (info->src_addr && info->src_addrlen != sizeof(struct address)))
		return refuse(FI_EINVAL, "an endpoint with addresses of another form");
	if (domain->keys_max > 1 && (info->caps | info->rx_attr->caps) & FI_DIRECTED_RECV)
		return refuse(FI_EINVAL, "an endpoint of several keys that receives from who it is told");
	if (!info->ep_attr->auth_key)
		return 0;
	if (domain->keys_in_vector)
		return refuse(FI_EINVAL, "an endpoint with a key of its own, where keys are in the vector");
	memcpy(&key, info->ep_attr->auth_key, sizeof key);
	/* The provider compares the services. Keys of other networks are of no use to what is registered. */
	if (key.svc_id != domain->key.svc_id || key.vni != domain->key.vni)
		return refuse(FI_EINVAL, "an endpoint with another key than its domain");
	return 0;
}

int open_endpoint(struct fid_domain *fid, struct fi_info *info, struct fid_ep **out, void *context)
{
	static struct fi_ops fid_ops = {
		.size = sizeof fid_ops, .close = close_endpoint, .bind = bind_endpoint, .control = control_endpoint,
	};
	static struct fi_ops_ep ops = { .size = sizeof ops, .setopt = set_option };
	static struct fi_ops_cm names = { .size = sizeof names, .getname = get_name };
	struct domain *domain = (struct domain *)fid;
	struct endpoint *ep;
	int ret = check(domain, info);

	if (ret)
		return ret;
	ep = calloc(1, sizeof *ep);
	if (!ep)
		return -FI_ENOMEM;
	ep->at.place = domain->nic << PID_BITS | PID_ANY;
	if (info->src_addr)
		memcpy(&ep->at, info->src_addr, sizeof ep->at);
	ep->domain = domain;
	ep->has_key = !domain->keys_in_vector;
	ep->caps = info->caps;
	ep->turns_away = info->ep_attr->protocol == FI_PROTO_CXI_RNR;
	ep->posted_last = &ep->posted;
	ep->held_last = &ep->held;
	ep->fid.fid = (struct fid){ .fclass = FI_CLASS_EP, .context = context, .ops = &fid_ops };
	ep->fid.ops = &ops;
	ep->fid.cm = &names;
	ep->fid.msg = &message_ops;
	ep->fid.rma = &transfer_ops;
	pthread_mutex_lock(&all);
	ep->next = endpoints;
	endpoints = ep;
	domain->users++;
	open_objects++;
	pthread_mutex_unlock(&all);
	*out = &ep->fid;
	return 0;
}
