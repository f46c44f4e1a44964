/* SPDX-License-Identifier: Apache-2.0 */
/* Error numbers. */
#ifndef WEIR_DAOS_ERRNO_H
#define WEIR_DAOS_ERRNO_H

#define DER_ERR_GURT_BASE 1000
#define DER_ERR_DAOS_BASE 2000

/* Each error as ACTION(name, number, description). The description is bare words. */
#define D_FOREACH_GURT_ERR(ACTION) \
	ACTION(DER_NO_PERM, (DER_ERR_GURT_BASE + 1), Operation not permitted) \
	ACTION(DER_NO_HDL, (DER_ERR_GURT_BASE + 2), Invalid handle) \
	ACTION(DER_INVAL, (DER_ERR_GURT_BASE + 3), Invalid parameters) \
	ACTION(DER_EXIST, (DER_ERR_GURT_BASE + 4), Entity already exists) \
	ACTION(DER_NONEXIST, (DER_ERR_GURT_BASE + 5), The specified entity does not exist) \
	ACTION(DER_UNREACH, (DER_ERR_GURT_BASE + 6), Unreachable node) \
	ACTION(DER_NOSPACE, (DER_ERR_GURT_BASE + 7), No space left on the storage target) \
	ACTION(DER_ALREADY, (DER_ERR_GURT_BASE + 8), Operation was already done) \
	ACTION(DER_NOMEM, (DER_ERR_GURT_BASE + 9), Out of memory) \
	ACTION(DER_NOSYS, (DER_ERR_GURT_BASE + 10), Function not implemented) \
	ACTION(DER_TIMEDOUT, (DER_ERR_GURT_BASE + 11), Time out) \
	ACTION(DER_BUSY, (DER_ERR_GURT_BASE + 12), Device or resource busy) \
	ACTION(DER_AGAIN, (DER_ERR_GURT_BASE + 13), Try again) \
	ACTION(DER_PROTO, (DER_ERR_GURT_BASE + 14), Incompatible protocol) \
	ACTION(DER_UNINIT, (DER_ERR_GURT_BASE + 15), Library or module not initialised) \
	ACTION(DER_TRUNC, (DER_ERR_GURT_BASE + 16), Buffer too short) \
	ACTION(DER_OVERFLOW, (DER_ERR_GURT_BASE + 17), Data too long for the defined type or buffer) \
	ACTION(DER_CANCELED, (DER_ERR_GURT_BASE + 18), Operation canceled) \
	ACTION(DER_OOG, (DER_ERR_GURT_BASE + 19), Out of group or member list) \
	ACTION(DER_HG, (DER_ERR_GURT_BASE + 20), Transport layer error) \
	ACTION(DER_UNREG, (DER_ERR_GURT_BASE + 21), Operation or module not registered) \
	ACTION(DER_ADDRSTR_GEN, (DER_ERR_GURT_BASE + 22), Failed to make an address string) \
	ACTION(DER_PMIX, (DER_ERR_GURT_BASE + 23), PMIx layer error) \
	ACTION(DER_IVCB_FORWARD, (DER_ERR_GURT_BASE + 24), Value request has to be forwarded) \
	ACTION(DER_MISC, (DER_ERR_GURT_BASE + 25), Miscellaneous error) \
	ACTION(DER_BADPATH, (DER_ERR_GURT_BASE + 26), Bad path name) \
	ACTION(DER_NOTDIR, (DER_ERR_GURT_BASE + 27), Not a directory) \
	ACTION(DER_CORPC_INCOMPLETE, (DER_ERR_GURT_BASE + 28), Collective request failed in part) \
	ACTION(DER_NO_RAS_RANK, (DER_ERR_GURT_BASE + 29), No rank takes RAS events) \
	ACTION(DER_NOTATTACH, (DER_ERR_GURT_BASE + 30), Service group not attached) \
	ACTION(DER_MISMATCH, (DER_ERR_GURT_BASE + 31), Version mismatch) \
	ACTION(DER_EXCLUDED, (DER_ERR_GURT_BASE + 32), Rank has been excluded) \
	ACTION(DER_NOREPLY, (DER_ERR_GURT_BASE + 33), Request got no reply) \
	ACTION(DER_DOS, (DER_ERR_GURT_BASE + 34), Denied to protect the service) \
	ACTION(DER_BAD_TARGET, (DER_ERR_GURT_BASE + 35), Wrong target for the request) \
	ACTION(DER_GRPVER, (DER_ERR_GURT_BASE + 36), Group version mismatch) \
	ACTION(DER_HLC_SYNC, (DER_ERR_GURT_BASE + 37), Clocks are too far apart) \
	ACTION(DER_NO_SHMEM, (DER_ERR_GURT_BASE + 38), No shared memory available) \
	ACTION(DER_ADD_METRIC_FAILED, (DER_ERR_GURT_BASE + 39), Failed to add a metric) \
	ACTION(DER_DURATION_MISMATCH, (DER_ERR_GURT_BASE + 40), Start and end of a duration do not match) \
	ACTION(DER_OP_NOT_PERMITTED, (DER_ERR_GURT_BASE + 41), Operation not permitted on this metric) \
	ACTION(DER_EXCEEDS_PATH_LEN, (DER_ERR_GURT_BASE + 42), Path name too long) \
	ACTION(DER_METRIC_NOT_FOUND, (DER_ERR_GURT_BASE + 43), Metric not found) \
	ACTION(DER_SHMEM_PERMS, (DER_ERR_GURT_BASE + 44), Shared memory permissions are wrong) \
	ACTION(DER_HG_FATAL, (DER_ERR_GURT_BASE + 45), Fatal transport error) \
	ACTION(DER_QUOTA_LIMIT, (DER_ERR_GURT_BASE + 46), Quota exceeded)

#define D_FOREACH_DAOS_ERR(ACTION) \
	ACTION(DER_IO, (DER_ERR_DAOS_BASE + 1), Generic I/O error) \
	ACTION(DER_FREE_MEM, (DER_ERR_DAOS_BASE + 2), Memory free error) \
	ACTION(DER_ENOENT, (DER_ERR_DAOS_BASE + 3), Entry not found) \
	ACTION(DER_NOTYPE, (DER_ERR_DAOS_BASE + 4), Unknown object type) \
	ACTION(DER_NOSCHEMA, (DER_ERR_DAOS_BASE + 5), Unknown object schema) \
	ACTION(DER_NOLOCAL, (DER_ERR_DAOS_BASE + 6), Object is not local) \
	ACTION(DER_STALE, (DER_ERR_DAOS_BASE + 7), Stale pool map version) \
	ACTION(DER_NOTLEADER, (DER_ERR_DAOS_BASE + 8), Not the service leader) \
	ACTION(DER_TGT_CREATE, (DER_ERR_DAOS_BASE + 9), Target creation error) \
	ACTION(DER_EP_RO, (DER_ERR_DAOS_BASE + 10), Epoch is read only) \
	ACTION(DER_EP_OLD, (DER_ERR_DAOS_BASE + 11), Epoch is too old and was aggregated) \
	ACTION(DER_KEY2BIG, (DER_ERR_DAOS_BASE + 12), Key is too large) \
	ACTION(DER_REC2BIG, (DER_ERR_DAOS_BASE + 13), Record is too large) \
	ACTION(DER_IO_INVAL, (DER_ERR_DAOS_BASE + 14), I/O buffers do not match the object extents) \
	ACTION(DER_EQ_BUSY, (DER_ERR_DAOS_BASE + 15), Event queue is busy) \
	ACTION(DER_DOMAIN, (DER_ERR_DAOS_BASE + 16), Domain of component can not match) \
	ACTION(DER_SHUTDOWN, (DER_ERR_DAOS_BASE + 17), Service should shut down) \
	ACTION(DER_INPROGRESS, (DER_ERR_DAOS_BASE + 18), Operation now in progress) \
	ACTION(DER_NOTAPPLICABLE, (DER_ERR_DAOS_BASE + 19), Not applicable) \
	ACTION(DER_NOTREPLICA, (DER_ERR_DAOS_BASE + 20), Not a service replica) \
	ACTION(DER_CSUM, (DER_ERR_DAOS_BASE + 21), Checksum error) \
	ACTION(DER_DF_INVAL, (DER_ERR_DAOS_BASE + 22), Unsupported durable format) \
	ACTION(DER_DF_INCOMPT, (DER_ERR_DAOS_BASE + 23), Incompatible durable format version) \
	ACTION(DER_REC_SIZE, (DER_ERR_DAOS_BASE + 24), Record size error) \
	ACTION(DER_TX_RESTART, (DER_ERR_DAOS_BASE + 25), Transaction should restart) \
	ACTION(DER_DATA_LOSS, (DER_ERR_DAOS_BASE + 26), Data lost or not recoverable) \
	ACTION(DER_OP_CANCELED, (DER_ERR_DAOS_BASE + 27), Operation canceled by the service) \
	ACTION(DER_TX_BUSY, (DER_ERR_DAOS_BASE + 28), Transaction is not committed yet) \
	ACTION(DER_AGENT_INCOMPAT, (DER_ERR_DAOS_BASE + 29), Agent is incompatible with libdaos) \
	ACTION(DER_NEED_TX, (DER_ERR_DAOS_BASE + 30), Transaction is needed) \
	ACTION(DER_RF, (DER_ERR_DAOS_BASE + 31), Failures exceed the redundancy factor) \
	ACTION(DER_FETCH_AGAIN, (DER_ERR_DAOS_BASE + 32), Fetch again) \
	ACTION(DER_TX_UNCERTAIN, (DER_ERR_DAOS_BASE + 33), Outcome of the transaction is not certain) \
	ACTION(DER_AGENT_COMM, (DER_ERR_DAOS_BASE + 34), No attach information for the system) \
	ACTION(DER_ID_MISMATCH, (DER_ERR_DAOS_BASE + 35), Identifier mismatch) \
	ACTION(DER_TGT_RETRY, (DER_ERR_DAOS_BASE + 36), Retry with another target) \
	ACTION(DER_NOTSUPPORTED, (DER_ERR_DAOS_BASE + 37), Operation not supported) \
	ACTION(DER_CONTROL_INCOMPAT, (DER_ERR_DAOS_BASE + 38), Control plane is incompatible) \
	ACTION(DER_NO_SERVICE, (DER_ERR_DAOS_BASE + 39), No service available) \
	ACTION(DER_TX_ID_REUSED, (DER_ERR_DAOS_BASE + 40), Transaction identifier was used before) \
	ACTION(DER_UPDATE_AGAIN, (DER_ERR_DAOS_BASE + 41), Update again) \
	ACTION(DER_NVME_IO, (DER_ERR_DAOS_BASE + 42), NVMe I/O error) \
	ACTION(DER_NO_CERT, (DER_ERR_DAOS_BASE + 43), No certificate) \
	ACTION(DER_BAD_CERT, (DER_ERR_DAOS_BASE + 44), Invalid certificate) \
	ACTION(DER_VOS_PARTIAL_UPDATE, (DER_ERR_DAOS_BASE + 45), Same epoch partial overwrite not allowed) \
	ACTION(DER_CHKPT_BUSY, (DER_ERR_DAOS_BASE + 46), Checkpoint is busy) \
	ACTION(DER_DIV_BY_ZERO, (DER_ERR_DAOS_BASE + 47), Division by zero) \
	ACTION(DER_OVERLOAD_RETRY, (DER_ERR_DAOS_BASE + 48), Service is overloaded) \
	ACTION(DER_NOT_RESUME, (DER_ERR_DAOS_BASE + 49), Can not resume) \
	ACTION(DER_CONT_NONEXIST, (DER_ERR_DAOS_BASE + 50), Container does not exist) \
	ACTION(DER_CONT_DESTROYING, (DER_ERR_DAOS_BASE + 51), Container is being destroyed) \
	ACTION(DER_IGNORE, (DER_ERR_DAOS_BASE + 52), Request was ignored)

#define D_FOREACH_ERR_RANGE(ACTION) \
	ACTION(GURT, 1000) \
	ACTION(DAOS, 2000)

#define D_DEFINE_ERRNO(name, value, desc) name = value,

/* Errors are positive here; functions return their negative. */
enum daos_errno {
	DER_SUCCESS = 0,
	D_FOREACH_GURT_ERR(D_DEFINE_ERRNO)
	D_FOREACH_DAOS_ERR(D_DEFINE_ERRNO)
	DER_UNKNOWN = 501000
};

#undef D_DEFINE_ERRNO

#ifdef __cplusplus
extern "C" {
#endif

/* Name of a return code, e.g. "DER_NONEXIST(-1005)" without the number: "DER_NONEXIST". Never NULL. */
const char *d_errstr(int rc);

/* Description of a return code. Never NULL. */
const char *d_errdesc(int rc);

#ifdef __cplusplus
}
#endif

/* For printf: format and arguments of a return code. */
#define DF_RC "%s(%d): '%s'"
#define DP_RC(rc) d_errstr(rc), (rc), d_errdesc(rc)

#endif
