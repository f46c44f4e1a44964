/*
 * Stands for libibverbs and librdmacm in the static libfabric: loads them when the verbs provider looks for devices, which is
 * the first that it does with them. So programs start where these libraries are not installed, and have no verbs there.
 *
 * setup/libfabric.sh adds it to libfabric.a. It has the calls that the provider of that release makes; one that is missing
 * is an error of the linker.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

/* What the headers put before calls of the library. */
#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr

/* Nobody else may take these for the libraries' own: they would be called by the libraries themselves. */
#define OURS __attribute__((visibility("hidden")))

/* X(kind of result, name, parameters, arguments), for each call of a library. */
#define IBVERBS(X)                                                                                                          \
	X(int, ibv_close_device, (struct ibv_context * a), (a))                                                             \
	X(int, ibv_dealloc_pd, (struct ibv_pd * a), (a))                                                                    \
	X(int, ibv_dereg_mr, (struct ibv_mr * a), (a))                                                                      \
	X(int, ibv_destroy_ah, (struct ibv_ah * a), (a))                                                                    \
	X(int, ibv_destroy_comp_channel, (struct ibv_comp_channel * a), (a))                                                \
	X(int, ibv_destroy_cq, (struct ibv_cq * a), (a))                                                                    \
	X(int, ibv_destroy_qp, (struct ibv_qp * a), (a))                                                                    \
	X(int, ibv_destroy_srq, (struct ibv_srq * a), (a))                                                                  \
	X(int, ibv_get_cq_event, (struct ibv_comp_channel * a, struct ibv_cq * *b, void **c), (a, b, c))                    \
	X(int, ibv_modify_qp, (struct ibv_qp * a, struct ibv_qp_attr * b, int c), (a, b, c))                                \
	X(int, ibv_query_device, (struct ibv_context * a, struct ibv_device_attr * b), (a, b))                              \
	X(int, ibv_query_gid, (struct ibv_context * a, uint8_t b, int c, union ibv_gid *d), (a, b, c, d))                   \
	X(int, ibv_query_pkey, (struct ibv_context * a, uint8_t b, int c, __be16 *d), (a, b, c, d))                         \
	X(int, ibv_query_port, (struct ibv_context * a, uint8_t b, struct _compat_ibv_port_attr * c), (a, b, c))            \
	X(int, ibv_query_qp, (struct ibv_qp * a, struct ibv_qp_attr * b, int c, struct ibv_qp_init_attr *d), (a, b, c, d))  \
	X(void, ibv_ack_cq_events, (struct ibv_cq * a, unsigned int b), (a, b))                                             \
	X(void, ibv_free_device_list, (struct ibv_device * *a), (a))                                                        \
	X(const char *, ibv_get_device_name, (struct ibv_device * a), (a))                                                  \
	X(const char *, ibv_wc_status_str, (enum ibv_wc_status a), (a))                                                     \
	X(struct ibv_ah *, ibv_create_ah, (struct ibv_pd * a, struct ibv_ah_attr * b), (a, b))                              \
	X(struct ibv_comp_channel *, ibv_create_comp_channel, (struct ibv_context * a), (a))                                \
	X(struct ibv_context *, ibv_open_device, (struct ibv_device * a), (a))                                              \
	X(struct ibv_cq *, ibv_create_cq, (struct ibv_context * a, int b, void *c, struct ibv_comp_channel *d, int e),      \
	  (a, b, c, d, e))                                                                                                  \
	X(struct ibv_mr *, ibv_reg_mr, (struct ibv_pd * a, void *b, size_t c, int d), (a, b, c, d))                         \
	X(struct ibv_mr *, ibv_reg_mr_iova2, (struct ibv_pd * a, void *b, size_t c, uint64_t d, unsigned int e),            \
	  (a, b, c, d, e))                                                                                                  \
	X(struct ibv_mr *, ibv_reg_dmabuf_mr, (struct ibv_pd * a, uint64_t b, size_t c, uint64_t d, int e, int f),          \
	  (a, b, c, d, e, f))                                                                                               \
	X(struct ibv_pd *, ibv_alloc_pd, (struct ibv_context * a), (a))                                                     \
	X(struct ibv_qp *, ibv_create_qp, (struct ibv_pd * a, struct ibv_qp_init_attr * b), (a, b))                         \
	X(struct ibv_srq *, ibv_create_srq, (struct ibv_pd * a, struct ibv_srq_init_attr * b), (a, b))

#define RDMACM(X)                                                                                                           \
	X(int, rdma_accept, (struct rdma_cm_id * a, struct rdma_conn_param * b), (a, b))                                    \
	X(int, rdma_ack_cm_event, (struct rdma_cm_event * a), (a))                                                          \
	X(int, rdma_bind_addr, (struct rdma_cm_id * a, struct sockaddr * b), (a, b))                                        \
	X(int, rdma_connect, (struct rdma_cm_id * a, struct rdma_conn_param * b), (a, b))                                   \
	X(int, rdma_create_id, (struct rdma_event_channel * a, struct rdma_cm_id * *b, void *c, enum rdma_port_space d),    \
	  (a, b, c, d))                                                                                                     \
	X(int, rdma_create_qp, (struct rdma_cm_id * a, struct ibv_pd * b, struct ibv_qp_init_attr * c), (a, b, c))          \
	X(int, rdma_create_qp_ex, (struct rdma_cm_id * a, struct ibv_qp_init_attr_ex * b), (a, b))                          \
	X(int, rdma_destroy_id, (struct rdma_cm_id * a), (a))                                                               \
	X(int, rdma_disconnect, (struct rdma_cm_id * a), (a))                                                               \
	X(int, rdma_establish, (struct rdma_cm_id * a), (a))                                                                \
	X(int, rdma_get_cm_event, (struct rdma_event_channel * a, struct rdma_cm_event * *b), (a, b))                       \
	X(int, rdma_getaddrinfo,                                                                                            \
	  (const char *a, const char *b, const struct rdma_addrinfo *c, struct rdma_addrinfo **d), (a, b, c, d))            \
	X(int, rdma_listen, (struct rdma_cm_id * a, int b), (a, b))                                                         \
	X(int, rdma_migrate_id, (struct rdma_cm_id * a, struct rdma_event_channel * b), (a, b))                             \
	X(int, rdma_reject, (struct rdma_cm_id * a, const void *b, uint8_t c), (a, b, c))                                   \
	X(int, rdma_resolve_addr, (struct rdma_cm_id * a, struct sockaddr * b, struct sockaddr * c, int d), (a, b, c, d))   \
	X(int, rdma_resolve_route, (struct rdma_cm_id * a, int b), (a, b))                                                  \
	X(void, rdma_destroy_ep, (struct rdma_cm_id * a), (a))                                                              \
	X(void, rdma_destroy_event_channel, (struct rdma_event_channel * a), (a))                                           \
	X(void, rdma_free_devices, (struct ibv_context * *a), (a))                                                          \
	X(void, rdma_freeaddrinfo, (struct rdma_addrinfo * a), (a))                                                         \
	X(__be16, rdma_get_src_port, (struct rdma_cm_id * a), (a))                                                          \
	X(const char *, rdma_event_str, (enum rdma_cm_event_type a), (a))                                                   \
	X(struct ibv_context **, rdma_get_devices, (int *a), (a))                                                           \
	X(struct rdma_event_channel *, rdma_create_event_channel, (void), ())

static struct ibv_device **(*device_list)(int *count);

/* Whether all calls have been found. */
static bool is_loaded;
static pthread_once_t once = PTHREAD_ONCE_INIT;

#define POINTER(result, name, parameters, arguments) static result(*real_##name) parameters;
IBVERBS(POINTER)
RDMACM(POINTER)

/* Finds a call in a library. Versions of it are the library's newest, as they are for a program that is linked today. */
static bool find(void *library, const char *name, void **call)
{
	*call = dlsym(library, name);
	return *call != NULL;
}

/* Stays loaded for good: the provider keeps devices. */
static void load(void)
{
	void *ibverbs = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL), *rdmacm;

	if (!ibverbs)
		return;
	rdmacm = dlopen("librdmacm.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!rdmacm)
		return;
#define FIND_IBVERBS(result, name, parameters, arguments) && find(ibverbs, #name, (void **)&real_##name)
#define FIND_RDMACM(result, name, parameters, arguments) && find(rdmacm, #name, (void **)&real_##name)
	is_loaded = find(ibverbs, "ibv_get_device_list", (void **)&device_list) IBVERBS(FIND_IBVERBS) RDMACM(FIND_RDMACM);
}

OURS struct ibv_device **ibv_get_device_list(int *count)
{
	pthread_once(&once, load);
	if (is_loaded)
		return device_list(count);
	if (count)
		*count = 0;
	errno = ENOSYS;
	return NULL;
}

#define FORWARD(result, name, parameters, arguments)                                                                        \
	OURS result name parameters                                                                                         \
	{                                                                                                                   \
		return real_##name arguments;                                                                               \
	}
IBVERBS(FORWARD)
RDMACM(FORWARD)
