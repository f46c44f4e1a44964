/*
 * What is particular about the verbs provider, whatever is stacked on it.
 */
#include "verbs.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <rdma/fi_domain.h>
#include <rdma/fi_errno.h>

/* Statuses of a work completion (`enum ibv_wc_status`, which InfiniBand's specification names) that tell of the way to the peer. */
enum { REM_OP_ERR = 11, RETRY_EXC_ERR = 12, RNR_RETRY_EXC_ERR = 13, REM_ABORT_ERR = 16, FATAL_ERR = 19, RESP_TIMEOUT_ERR = 20 };

static bool is_verbs(const struct fi_info *info)
{
	return !strncmp(info->fabric_attr->prov_name, "verbs", strlen("verbs"));
}

void weir_verbs_set_port(struct fi_info *info, const char *service)
{
	struct sockaddr_in *v4 = info->src_addr;
	struct sockaddr_in6 *v6 = info->src_addr;

	if (!is_verbs(info) || !service || !info->src_addr)
		return;
	if (info->addr_format == FI_SOCKADDR_IN)
		v4->sin_port = htons((uint16_t)atoi(service));
	if (info->addr_format == FI_SOCKADDR_IN6)
		v6->sin6_port = htons((uint16_t)atoi(service));
}

/*
 * Of what may be sent ofi_rxm has peers read messages that are longer than any here, and lets them read all of it. To send no more
 * is needed than for a write, which is nothing.
 */
uint64_t weir_verbs_access(const struct fi_info *info, uint64_t access)
{
	return access == FI_SEND && is_verbs(info) ? FI_WRITE : access;
}

/*
 * The library can keep registrations for the next one of the same memory (FI_MR_CACHE_MONITOR, fi_mr(3)). They are registered for
 * all accesses then, also by peers, and stay when they are closed: who was let read could write, and later than that. Memory that
 * is registered twice has one key then, else two.
 */
int weir_verbs_check(const struct fi_info *info, struct fid_domain *domain)
{
	enum { PAGE = 4096 };
	struct fid_mr *mr[2] = { NULL, NULL };
	void *page;
	int ret, at;

	if (!is_verbs(info))
		return 0;
	page = aligned_alloc(PAGE, PAGE);
	if (!page)
		return -FI_ENOMEM;
	memset(page, 0, PAGE);
	ret = fi_mr_reg(domain, page, PAGE, FI_REMOTE_READ, 0, 1, 0, &mr[0], NULL);
	if (!ret)
		ret = fi_mr_reg(domain, page, PAGE, FI_REMOTE_READ, 0, 2, 0, &mr[1], NULL);
	if (!ret && fi_mr_key(mr[0]) == fi_mr_key(mr[1]))
		ret = -FI_EPERM;
	for (at = 0; at < 2; at++) {
		if (mr[at])
			fi_close(&mr[at]->fid);
	}
	free(page);
	return ret;
}

int32_t weir_verbs_code(int32_t code, int32_t status)
{
	if (code != FI_EIO)
		return code;
	switch (status) {
	case REM_OP_ERR:
	case RETRY_EXC_ERR:
	case RNR_RETRY_EXC_ERR:
	case REM_ABORT_ERR:
	case FATAL_ERR:
	case RESP_TIMEOUT_ERR:
		return FI_ECONNABORTED;
	default:
		return code;
	}
}

int32_t weir_verbs_failure(const struct fi_info *info, const struct fi_cq_err_entry *entry)
{
	return is_verbs(info) ? weir_verbs_code(entry->err, entry->prov_errno) : entry->err;
}
