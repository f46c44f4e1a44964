/* SPDX-License-Identifier: Apache-2.0 */
/* File systems in containers: types and values. The functions on them aren't there yet. */
#ifndef WEIR_DAOS_FS_H
#define WEIR_DAOS_FS_H

#include <dirent.h>
#include <sys/stat.h>
#include <sys/types.h>

#include <daos.h>

/* Number of the file system type, as statfs tells it. */
#define DAOS_SUPER_MAGIC 0xda05ad10

/* Limits in bytes; names without their NUL. */
#define DFS_MAX_PATH 4096
#define DFS_MAX_NAME 255
#define DFS_MAX_XATTR_NAME 255
#define DFS_MAX_XATTR_LEN 65536
#define DFS_MAX_FSIZE (~0ULL)
/* Bytes of a chunk of a file, unless it was created with another size. */
#define DFS_DEFAULT_CHUNK_SIZE 1048576

/* How a file system is mounted. */
#define DFS_RDONLY 0
#define DFS_RDWR 2

/* Consistency of a file system; with DFS_BALANCED changes of names are transactions. */
#define DFS_RELAXED 0
#define DFS_BALANCED 4

/* Attributes that are set. */
#define DFS_SET_ATTR_MODE (1 << 0)
#define DFS_SET_ATTR_ATIME (1 << 1)
#define DFS_SET_ATTR_MTIME (1 << 2)
#define DFS_SET_ATTR_SIZE (1 << 3)
#define DFS_SET_ATTR_UID (1 << 4)
#define DFS_SET_ATTR_GID (1 << 5)

/* What the checker of a file system does. */
enum {
	DFS_CHECK_PRINT = (1 << 0),
	DFS_CHECK_REMOVE = (1 << 1),
	DFS_CHECK_RELINK = (1 << 2),
	DFS_CHECK_VERIFY = (1 << 3),
	DFS_CHECK_EVICT_ALL = (1 << 4)
};

/* What a filter of directory entries looks at. */
enum {
	DFS_FILTER_NAME = (1 << 1),
	DFS_FILTER_NEWER = (1 << 2),
	DFS_FILTER_INCLUDE_DIRS = (1 << 3)
};

/* A mounted file system. */
typedef struct dfs dfs_t;
/* An open file, directory or symbolic link. */
typedef struct dfs_obj dfs_obj_t;

/* Attributes of a container with a file system. */
typedef struct {
	/* The program's own number. */
	uint64_t da_id;
	/* Bytes of a chunk of its files, 0 for the default. */
	daos_size_t da_chunk_size;
	/* Class of its files and directories, 0 for the default. */
	daos_oclass_id_t da_oclass_id;
	daos_prop_t *da_props;
	/* DFS_RELAXED or DFS_BALANCED. */
	uint32_t da_mode;
	daos_oclass_id_t da_dir_oclass_id;
	daos_oclass_id_t da_file_oclass_id;
	/* Hints for the classes, as text. */
	char da_hints[DAOS_CONT_HINT_MAX_LEN];
} dfs_attr_t;

/* Ranges of a file, in bytes. */
typedef struct {
	daos_size_t iod_nr;
	daos_range_t *iod_rgs;
} dfs_iod_t;

/* How an open file or directory is stored. */
typedef struct {
	daos_oclass_id_t doi_oclass_id;
	daos_size_t doi_chunk_size;
	/* Classes of what is created in a directory. */
	daos_oclass_id_t doi_dir_oclass_id;
	daos_oclass_id_t doi_file_oclass_id;
	daos_obj_id_t doi_oid;
} dfs_obj_info_t;

/* Called for each name of a directory. */
typedef int (*dfs_filler_cb_t)(dfs_t *dfs, dfs_obj_t *obj, const char name[], void *arg);

#endif
