/*
 * What is offered: the NICs, their services, and what fi_getinfo says of them.
 */
#include "double.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rdma/providers/fi_prov.h>

pthread_mutex_t all = PTHREAD_MUTEX_INITIALIZER;
struct endpoint *endpoints;
unsigned open_objects, closed_in_use;

static const struct nic {
	const char *name;
	uint32_t number;
} nics[] = { { "cxi0", 0x51 }, { "cxi1", 0x52 } };

/* What a job of these two networks was given on each NIC. The default service has all networks. */
static const struct service {
	uint32_t nic, id;
	uint16_t vnis[KEYS_MAX];
} services[] = { { 0x51, 5, { 1042, 1043 } }, { 0x52, 6, { 1042, 1043 } } };

const struct cxi_auth_key default_key = { .svc_id = 1, .vni = 10 };

#define COUNT(list) (sizeof(list) / sizeof *(list))

#define ENDPOINT_CAPS (FI_MSG | FI_RMA | FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE)
#define ASKED_CAPS (FI_SOURCE | FI_SOURCE_ERR | FI_DIRECTED_RECV)
#define DOMAIN_CAPS (FI_LOCAL_COMM | FI_REMOTE_COMM | FI_AV_USER_ID)
#define GIVEN_CAPS (DOMAIN_CAPS | FI_MULTI_RECV)
#define REGION_MODE (FI_MR_ENDPOINT | FI_MR_ALLOCATED | FI_MR_PROV_KEY)
#define SEND_FLAGS (FI_INJECT | FI_COMPLETION | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE)

int refuse(int code, const char *what)
{
	fprintf(stderr, "test double of cxi: refused: %s\n", what);
	return -code;
}

int refuse_to_close(const char *what)
{
	closed_in_use++;
	return refuse(FI_EBUSY, what);
}

bool has_default_service(void)
{
	return !getenv("WEIR_TEST_CXI_NO_DEFAULT_SERVICE");
}

bool has_service(uint32_t nic, uint32_t id, uint16_t vni)
{
	size_t at, key;

	if (id == default_key.svc_id)
		return vni && has_default_service();
	for (at = 0; at < COUNT(services); at++) {
		for (key = 0; key < KEYS_MAX; key++) {
			if (services[at].nic == nic && services[at].id == id && vni && services[at].vnis[key] == vni)
				return true;
		}
	}
	return false;
}

static void *copy_of(const void *bytes, size_t len)
{
	void *copy = malloc(len);

	return copy ? memcpy(copy, bytes, len) : NULL;
}

/* As fi_freeinfo does, which external providers can't call in a program that the library is linked into. */
static void free_offer(struct fi_info *info)
{
	if (info->domain_attr) {
		free(info->domain_attr->auth_key);
		free(info->domain_attr->name);
	}
	if (info->ep_attr)
		free(info->ep_attr->auth_key);
	if (info->fabric_attr)
		free(info->fabric_attr->name);
	free(info->src_addr);
	free(info->tx_attr);
	free(info->rx_attr);
	free(info->ep_attr);
	free(info->domain_attr);
	free(info->fabric_attr);
	free(info);
}

/* Keys are well-formed, and of a service that the NIC has. */
static bool takes_keys(const struct nic *nic, const struct fi_info *hints)
{
	const struct fi_domain_attr *domain = hints->domain_attr;
	const struct fi_ep_attr *ep = hints->ep_attr;
	const uint8_t *given[] = { domain ? domain->auth_key : NULL, ep ? ep->auth_key : NULL };
	const size_t sizes[] = { domain ? domain->auth_key_size : 0, ep ? ep->auth_key_size : 0 };
	struct cxi_auth_key key;
	size_t at;

	if (sizes[0] == FI_AV_AUTH_KEY)
		return !given[0] && !given[1] && !sizes[1] && domain->max_ep_auth_key <= KEYS_MAX;
	if (domain && domain->max_ep_auth_key > 1)
		return false;
	for (at = 0; at < COUNT(given); at++) {
		if (sizes[at] && sizes[at] != sizeof key)
			return false;
		if (!given[at])
			continue;
		memcpy(&key, given[at], sizeof key);
		if (!has_service(nic->number, key.svc_id, key.vni))
			return false;
	}
	return true;
}

static bool offers_endpoint(const struct fi_info *hints)
{
	const struct fi_ep_attr *ep = hints->ep_attr;
	bool has_several = hints->domain_attr && hints->domain_attr->max_ep_auth_key > 1;
	uint64_t caps = ENDPOINT_CAPS | ASKED_CAPS | GIVEN_CAPS;

	if (has_several)
		caps &= ~FI_DIRECTED_RECV;
	if (hints->caps & ~caps || (hints->caps & FI_SOURCE_ERR && !(hints->caps & FI_SOURCE)))
		return false;
	if (hints->addr_format && hints->addr_format != FI_ADDR_CXI)
		return false;
	if (hints->tx_attr && hints->tx_attr->op_flags & ~SEND_FLAGS)
		return false;
	if (!ep)
		return true;
	return (ep->type == FI_EP_UNSPEC || ep->type == FI_EP_RDM) &&
	       (!ep->protocol || ep->protocol == FI_PROTO_CXI || ep->protocol == FI_PROTO_CXI_RNR);
}

static bool offers_domain(const struct nic *nic, const struct fi_info *hints)
{
	const struct fi_domain_attr *domain = hints->domain_attr;

	if (!domain)
		return true;
	/* Without memory of its own and keys of the provider's there are other offers, which nobody asks for here. */
	if ((hints->caps & FI_RMA) && (~domain->mr_mode & REGION_MODE))
		return false;
	if (domain->caps & ~DOMAIN_CAPS)
		return false;
	if (domain->control_progress == FI_PROGRESS_AUTO || domain->data_progress == FI_PROGRESS_AUTO)
		return false;
	return !domain->name || !strcmp(domain->name, nic->name);
}

/* Fills an offer with what there is, and what of it is asked for. */
static int fill(struct fi_info *info, const struct nic *nic, const struct fi_info *hints)
{
	struct address at = { .place = nic->number << PID_BITS | PID_ANY };
	const struct fi_domain_attr *domain = hints ? hints->domain_attr : NULL;
	const struct fi_ep_attr *ep = hints ? hints->ep_attr : NULL;
	uint64_t asked = hints && hints->caps ? hints->caps : ENDPOINT_CAPS;
	bool turns_away = ep && ep->protocol == FI_PROTO_CXI_RNR;
	const uint8_t *own, *shared;

	info->caps = GIVEN_CAPS | (asked & (ENDPOINT_CAPS | ASKED_CAPS));
	info->caps |= asked & FI_MSG ? FI_SEND | FI_RECV : 0;
	info->caps |= asked & FI_RMA ? FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE : 0;
	info->addr_format = FI_ADDR_CXI;
	info->src_addr = copy_of(&at, sizeof at);
	info->src_addrlen = sizeof at;
	info->fabric_attr->name = strdup("cxi");
	info->domain_attr->name = strdup(nic->name);
	if (!info->src_addr || !info->fabric_attr->name || !info->domain_attr->name)
		return -FI_ENOMEM;
	info->tx_attr->caps = info->caps;
	info->tx_attr->inject_size = turns_away ? 0 : INJECT_MAX;
	info->tx_attr->size = 512;
	info->tx_attr->iov_limit = info->tx_attr->rma_iov_limit = 1;
	if (hints && hints->tx_attr) {
		info->tx_attr->op_flags = hints->tx_attr->op_flags;
		info->tx_attr->msg_order = hints->tx_attr->msg_order;
	}
	info->rx_attr->caps = info->caps;
	info->rx_attr->size = 1024;
	info->rx_attr->iov_limit = 1;
	info->ep_attr->type = FI_EP_RDM;
	info->ep_attr->protocol = turns_away ? FI_PROTO_CXI_RNR : FI_PROTO_CXI;
	info->ep_attr->max_msg_size = MESSAGE_MAX;
	info->ep_attr->tx_ctx_cnt = info->ep_attr->rx_ctx_cnt = 1;
	info->domain_attr->threading = domain && domain->threading ? domain->threading : FI_THREAD_SAFE;
	info->domain_attr->control_progress = info->domain_attr->data_progress = FI_PROGRESS_MANUAL;
	info->domain_attr->resource_mgmt = FI_RM_ENABLED;
	info->domain_attr->mr_mode = REGION_MODE;
	info->domain_attr->mr_key_size = sizeof(uint64_t);
	info->domain_attr->mr_iov_limit = 1;
	info->domain_attr->caps = DOMAIN_CAPS;
	info->domain_attr->max_ep_auth_key = domain && domain->max_ep_auth_key ? domain->max_ep_auth_key : 1;
	if (domain && domain->auth_key_size == FI_AV_AUTH_KEY)
		info->domain_attr->auth_key_size = FI_AV_AUTH_KEY;
	own = ep ? ep->auth_key : NULL;
	shared = domain && domain->auth_key ? domain->auth_key : own;
	if (shared) {
		info->domain_attr->auth_key = copy_of(shared, sizeof(struct cxi_auth_key));
		info->domain_attr->auth_key_size = sizeof(struct cxi_auth_key);
	}
	if (own) {
		info->ep_attr->auth_key = copy_of(own, sizeof(struct cxi_auth_key));
		info->ep_attr->auth_key_size = sizeof(struct cxi_auth_key);
	}
	return (shared && !info->domain_attr->auth_key) || (own && !info->ep_attr->auth_key) ? -FI_ENOMEM : 0;
}

static int offer(const struct nic *nic, const struct fi_info *hints, struct fi_info **out)
{
	struct fi_info *info = calloc(1, sizeof *info);
	int ret = -FI_ENOMEM;

	if (!info)
		return ret;
	info->tx_attr = calloc(1, sizeof *info->tx_attr);
	info->rx_attr = calloc(1, sizeof *info->rx_attr);
	info->ep_attr = calloc(1, sizeof *info->ep_attr);
	info->domain_attr = calloc(1, sizeof *info->domain_attr);
	info->fabric_attr = calloc(1, sizeof *info->fabric_attr);
	if (info->tx_attr && info->rx_attr && info->ep_attr && info->domain_attr && info->fabric_attr)
		ret = fill(info, nic, hints);
	if (ret)
		free_offer(info);
	else
		*out = info;
	return ret;
}

static int get_info(uint32_t version, const char *node, const char *service, uint64_t flags, const struct fi_info *hints,
		    struct fi_info **out)
{
	struct fi_info **last = out;
	size_t at;
	int ret;

	(void)version;
	/* Both would be numbers, of a NIC and a process. Nobody here knows one beforehand. */
	if (node || service || flags & FI_SOURCE)
		return -FI_ENODATA;
	for (at = 0; at < COUNT(nics); at++) {
		if (hints && !(offers_endpoint(hints) && offers_domain(&nics[at], hints) && takes_keys(&nics[at], hints)))
			continue;
		ret = offer(&nics[at], hints, last);
		if (ret)
			return ret;
		last = &(*last)->next;
	}
	return last == out ? -FI_ENODATA : 0;
}

static int close_fabric(struct fid *fid)
{
	struct fabric *fabric = (struct fabric *)fid;

	if (fabric->users)
		return refuse_to_close("to close a fabric that has domains");
	open_objects--;
	free(fabric);
	return 0;
}

static int open_fabric(struct fi_fabric_attr *attr, struct fid_fabric **out, void *context)
{
	static struct fi_ops fid_ops = { .size = sizeof fid_ops, .close = close_fabric };
	static struct fi_ops_fabric ops = { .size = sizeof ops, .domain = open_domain, .trywait = try_wait };
	struct fabric *fabric = calloc(1, sizeof *fabric);

	(void)attr;
	if (!fabric)
		return -FI_ENOMEM;
	fabric->fid.fid = (struct fid){ .fclass = FI_CLASS_FABRIC, .context = context, .ops = &fid_ops };
	fabric->fid.ops = &ops;
	pthread_mutex_lock(&all);
	open_objects++;
	pthread_mutex_unlock(&all);
	*out = &fabric->fid;
	return 0;
}

/* At the end of the process. What is still open, or would not close when it was to, the NIC goes on writing to. */
static void clean_up(void)
{
	if (!open_objects && !closed_in_use)
		return;
	fprintf(stderr, "test double of cxi: %u objects were left open, %u were to be closed while others used them\n",
		open_objects, closed_in_use);
	abort();
}

static struct fi_provider provider = {
	.version = FI_VERSION(2, 1),
	.fi_version = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION),
	.name = "cxi",
	.getinfo = get_info,
	.fabric = open_fabric,
	.cleanup = clean_up,
};

__attribute__((visibility("default"))) struct fi_provider *fi_prov_ini(void)
{
	return &provider;
}
