/*
 * What is open of a provider.
 */
#ifndef WEIR_FABRIC_H
#define WEIR_FABRIC_H

#include <stddef.h>
#include <stdint.h>

#include <rdma/fabric.h>

struct weir_bound;

/* An endpoint that another one has taken the place of. */
struct weir_retired {
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_ep *ep;
	struct weir_retired *next;
};

struct weir_fabric {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_ep *ep;
	uint64_t transfer_flags;
	uint64_t flagged_max;
	/* What a new endpoint is opened with. */
	int wait;
	uint64_t queue;
	size_t min_multi_recv;
	struct weir_retired *retired;
	/* Registrations that are bound to the endpoint. */
	struct weir_bound *bound;
};

/* Ends the registrations that are bound to the endpoint, which can't be closed before. Whoever has them closes them all the same. */
void weir_end_bound(struct weir_fabric *f);

#endif
