/* SPDX-License-Identifier: Apache-2.0 */
/* File systems by paths: types and values. The functions on them aren't there yet. */
#ifndef WEIR_DAOS_FS_SYS_H
#define WEIR_DAOS_FS_SYS_H

#include <dirent.h>

#include <daos.h>
#include <daos_fs.h>

/* How paths are looked up: without a cache, or with one that the program locks. */
#define DFS_SYS_NO_CACHE 1
#define DFS_SYS_NO_LOCK 2

/* A mounted file system with its cache of directories. */
typedef struct dfs_sys dfs_sys_t;

#endif
