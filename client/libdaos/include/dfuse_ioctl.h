/* SPDX-License-Identifier: Apache-2.0 */
/* Requests to a mount: which container and object a file is. Mounts don't answer them yet. */
#ifndef WEIR_DFUSE_IOCTL_H
#define WEIR_DFUSE_IOCTL_H

#include <asm/ioctl.h>
#include <sys/types.h>

#include <daos.h>

#define DFUSE_IOCTL_TYPE 0xA3
#define DFUSE_IOCTL_VERSION 7

/* Numbers of the requests. */
#define DFUSE_IOCTL_REPLY_BASE 0xC1
#define DFUSE_IOCTL_REPLY_CORE DFUSE_IOCTL_REPLY_BASE
#define DFUSE_IOCTL_REPLY_POH (DFUSE_IOCTL_REPLY_BASE + 2)
#define DFUSE_IOCTL_REPLY_COH (DFUSE_IOCTL_REPLY_BASE + 3)
#define DFUSE_IOCTL_REPLY_DOH (DFUSE_IOCTL_REPLY_BASE + 4)
#define DFUSE_IOCTL_REPLY_DOOH (DFUSE_IOCTL_REPLY_BASE + 5)
#define DFUSE_IOCTL_REPLY_SIZE (DFUSE_IOCTL_REPLY_BASE + 6)
#define DFUSE_IOCTL_REPLY_DSIZE (DFUSE_IOCTL_REPLY_BASE + 7)
#define DFUSE_IOCTL_REPLY_PFILE (DFUSE_IOCTL_REPLY_BASE + 8)
#define DFUSE_IOCTL_R_DFUSE_USER (DFUSE_IOCTL_REPLY_BASE + 9)

/* The mount caches attributes of the file. */
#define DFUSE_IOCTL_FLAGS_MCACHE 0x1

/* Which object a file is. */
struct dfuse_il_reply {
	int fir_version;
	daos_obj_id_t fir_oid;
	uuid_t fir_pool;
	uuid_t fir_cont;
	uint64_t fir_flags;
};

/* Bytes of the handles for other processes: of the pool, container and file system. */
struct dfuse_hs_reply {
	int fsr_version;
	size_t fsr_pool_size;
	size_t fsr_cont_size;
	size_t fsr_dfs_size;
};

/* Bytes of the handle of an open file for other processes. */
struct dfuse_hsd_reply {
	int fsr_version;
	size_t fsr_dobj_size;
};

/* Who runs the mount. */
struct dfuse_user_reply {
	uid_t uid;
	gid_t gid;
};

#define DFUSE_IOCTL_IL ((int)_IOR(DFUSE_IOCTL_TYPE, DFUSE_IOCTL_REPLY_CORE, struct dfuse_il_reply))
#define DFUSE_IOCTL_IL_SIZE ((int)_IOR(DFUSE_IOCTL_TYPE, DFUSE_IOCTL_REPLY_SIZE, struct dfuse_hs_reply))
#define DFUSE_IOCTL_IL_DSIZE ((int)_IOR(DFUSE_IOCTL_TYPE, DFUSE_IOCTL_REPLY_DSIZE, struct dfuse_hsd_reply))
#define DFUSE_IOCTL_DFUSE_USER ((int)_IOR(DFUSE_IOCTL_TYPE, DFUSE_IOCTL_R_DFUSE_USER, struct dfuse_user_reply))

#endif
