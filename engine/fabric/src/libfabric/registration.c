/*
 * Registrations of memory.
 */
#include <stdlib.h>

#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

#include "fabric.h"
#include "verbs.h"

/* A registration that is bound to the endpoint. */
struct weir_bound {
	/* NULL: it has ended, because the endpoint was closed. */
	struct fid_mr *mr;
	struct weir_bound *next, **self;
};

static int is_bound(const struct weir_fabric *f)
{
	return (f->info->domain_attr->mr_mode & FI_MR_ENDPOINT) != 0;
}

/* Binds a registration to the endpoint, and notes it there. */
static int bind_to_endpoint(struct weir_fabric *f, struct fid_mr *mr, void **out)
{
	struct weir_bound *bound;
	int ret = fi_mr_bind(mr, &f->ep->fid, 0);

	if (!ret)
		ret = fi_mr_enable(mr);
	if (ret)
		return ret;
	bound = malloc(sizeof *bound);
	if (!bound)
		return -FI_ENOMEM;
	*bound = (struct weir_bound){ mr, f->bound, &f->bound };
	if (bound->next)
		bound->next->self = &bound->next;
	f->bound = bound;
	*out = bound;
	return 0;
}

/* Ends it, unless that has been done. */
static void end(struct weir_bound *bound)
{
	if (!bound->mr)
		return;
	fi_close(&bound->mr->fid);
	bound->mr = NULL;
	*bound->self = bound->next;
	if (bound->next)
		bound->next->self = bound->self;
}

void weir_end_bound(struct weir_fabric *f)
{
	while (f->bound)
		end(f->bound);
}

/* Registers memory for a usage, a place in `accesses`. */
int64_t weir_mr_register(struct weir_fabric *f, const void *buf, uint64_t len, uint32_t usage, uint64_t key, void **out,
			 uint64_t *key_out, void **desc)
{
	static const uint64_t accesses[] = { FI_REMOTE_READ, FI_REMOTE_WRITE, FI_SEND, FI_RECV, FI_READ | FI_WRITE };
	uint64_t access = weir_verbs_access(f->info, accesses[usage]);
	struct fid_mr *mr;
	int ret = fi_mr_reg(f->domain, buf, len, access, 0, key, 0, &mr, NULL);

	if (ret)
		return ret;
	*out = mr;
	if (is_bound(f) && (ret = bind_to_endpoint(f, mr, out))) {
		fi_close(&mr->fid);
		return ret;
	}
	*key_out = fi_mr_key(mr);
	*desc = fi_mr_desc(mr);
	return 0;
}

/* Ends a registration, before its fabric is closed. */
void weir_mr_close(struct weir_fabric *f, void *registration)
{
	if (!is_bound(f)) {
		fi_close(&((struct fid_mr *)registration)->fid);
		return;
	}
	end(registration);
	free(registration);
}
