/*
 * Domains, and the memory that is registered with them.
 */
#include "double.h"

#include <stdlib.h>
#include <string.h>

static int close_domain(struct fid *fid)
{
	struct domain *domain = (struct domain *)fid;
	int ret = 0;

	pthread_mutex_lock(&all);
	if (domain->users) {
		ret = refuse_to_close("to close a domain that is in use");
	} else {
		domain->fabric->users--;
		open_objects--;
		free(domain);
	}
	pthread_mutex_unlock(&all);
	return ret;
}

/* How memory is registered. Later than the first registration it is taken by the provider, and half of what follows has it. */
static int control_domain(struct fid *fid, int command, void *value)
{
	struct domain *domain = (struct domain *)fid;
	bool *const settings[] = { &domain->match_events, &domain->optimized, &domain->key_cache };
	const int commands[] = { FI_OPT_CXI_SET_MR_MATCH_EVENTS, FI_OPT_CXI_SET_OPTIMIZED_MRS, FI_OPT_CXI_SET_PROV_KEY_CACHE };
	size_t at;

	for (at = 0; at < sizeof commands / sizeof *commands; at++) {
		if (command != commands[at])
			continue;
		if (!value)
			return refuse(FI_EINVAL, "a setting without a value");
		if (domain->has_registered)
			return refuse(FI_EOPBADSTATE, "a setting after the first registration");
		*settings[at] = *(bool *)value;
		return 0;
	}
	return refuse(FI_EINVAL, "an unknown setting of a domain");
}

int open_domain(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **out, void *context)
{
	static struct fi_ops fid_ops = { .size = sizeof fid_ops, .close = close_domain, .control = control_domain };
	static struct fi_ops_domain ops = {
		.size = sizeof ops, .av_open = open_vector, .cq_open = open_queue, .endpoint = open_endpoint,
	};
	const struct fi_domain_attr *attr = info->domain_attr;
	struct domain *domain;
	struct address at;

	if (!info->src_addr || info->src_addrlen != sizeof at)
		return refuse(FI_EINVAL, "a domain without the address of a NIC");
	memcpy(&at, info->src_addr, sizeof at);
	domain = calloc(1, sizeof *domain);
	if (!domain)
		return -FI_ENOMEM;
	domain->nic = at.place >> PID_BITS;
	domain->keys_in_vector = attr->auth_key_size == FI_AV_AUTH_KEY;
	domain->keys_max = attr->max_ep_auth_key;
	domain->key = default_key;
	if (attr->auth_key)
		memcpy(&domain->key, attr->auth_key, sizeof domain->key);
	if (!attr->auth_key && !has_default_service()) {
		free(domain);
		return refuse(FI_ENOSYS, "a domain without a key, where there is no service for all");
	}
	/* What the provider does by itself. */
	domain->optimized = domain->key_cache = true;
	domain->fid.fid = (struct fid){ .fclass = FI_CLASS_DOMAIN, .context = context, .ops = &fid_ops };
	domain->fid.ops = &ops;
	domain->fid.mr = &region_ops;
	domain->fabric = (struct fabric *)fabric;
	pthread_mutex_lock(&all);
	domain->fabric->users++;
	open_objects++;
	pthread_mutex_unlock(&all);
	*out = &domain->fid;
	return 0;
}

static int close_region(struct fid *fid)
{
	struct region *region = (struct region *)fid, **at;

	pthread_mutex_lock(&all);
	if (region->ep) {
		for (at = &region->ep->regions; *at && *at != region; at = &(*at)->next)
			;
		if (*at)
			*at = region->next;
		region->ep->users--;
	}
	region->domain->users--;
	open_objects--;
	pthread_mutex_unlock(&all);
	free(region);
	return 0;
}

static int bind_region(struct fid *fid, struct fid *to, uint64_t flags)
{
	struct region *region = (struct region *)fid;
	struct endpoint *ep = (struct endpoint *)to;

	if (to->fclass != FI_CLASS_EP || flags)
		return refuse(FI_EINVAL, "to bind a registration to anything but an endpoint");
	if (region->ep || ep->domain != region->domain)
		return refuse(FI_EINVAL, "to bind a registration twice, or to an endpoint of another domain");
	if (!ep->is_enabled)
		return refuse(FI_EINVAL, "to bind a registration to an endpoint that is not enabled");
	pthread_mutex_lock(&all);
	region->ep = ep;
	ep->users++;
	pthread_mutex_unlock(&all);
	return 0;
}

/* Keys of the provider's tell how the registration is made (struct cxip_mr_key of the provider). */
static uint64_t draw_key(struct domain *domain)
{
	uint64_t number = ++domain->regions * 0x9e3779b97f4a7c15;
	uint64_t key = 1ull << 63 | (number >> 8 & ((1ull << 44) - 1)) << 16 | (domain->regions & 0xffff);

	key |= (uint64_t)domain->match_events << 60;
	key |= (uint64_t)domain->optimized << 61;
	return key | (uint64_t)domain->key_cache << 62;
}

static int control_region(struct fid *fid, int command, void *value)
{
	struct region *region = (struct region *)fid;

	(void)value;
	if (command != FI_ENABLE)
		return refuse(FI_EINVAL, "an unknown setting of a registration");
	if (!region->ep)
		return refuse(FI_EINVAL, "to enable a registration that is bound to no endpoint");
	if (region->fid.key != FI_KEY_NOTAVAIL || !(region->access & (FI_REMOTE_READ | FI_REMOTE_WRITE)))
		return 0;
	pthread_mutex_lock(&all);
	region->fid.key = draw_key(region->domain);
	region->next = region->ep->regions;
	region->ep->regions = region;
	pthread_mutex_unlock(&all);
	return 0;
}

static int register_memory(struct fid *fid, const void *buf, size_t len, uint64_t access, uint64_t offset, uint64_t key,
			   uint64_t flags, struct fid_mr **out, void *context)
{
	static struct fi_ops fid_ops = {
		.size = sizeof fid_ops, .close = close_region, .bind = bind_region, .control = control_region,
	};
	struct region *region;

	/* The provider chooses. */
	(void)key;
	if (offset || flags)
		return refuse(FI_EINVAL, "a registration with an offset or flags");
	region = calloc(1, sizeof *region);
	if (!region)
		return -FI_ENOMEM;
	region->fid.fid = (struct fid){ .fclass = FI_CLASS_MR, .context = context, .ops = &fid_ops };
	region->fid.key = FI_KEY_NOTAVAIL;
	region->fid.mem_desc = region;
	region->domain = (struct domain *)fid;
	region->buf = (char *)buf;
	region->len = len;
	region->access = access;
	pthread_mutex_lock(&all);
	region->domain->has_registered = true;
	region->domain->users++;
	open_objects++;
	pthread_mutex_unlock(&all);
	*out = &region->fid;
	return 0;
}

struct fi_ops_mr region_ops = { .size = sizeof region_ops, .reg = register_memory };
