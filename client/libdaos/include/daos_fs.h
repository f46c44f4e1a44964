/* SPDX-License-Identifier: Apache-2.0 */
/* File systems in containers. All functions return 0 or a positive errno, and the events of theirs end with one. */
#ifndef WEIR_DAOS_FS_H
#define WEIR_DAOS_FS_H

#include <dirent.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>

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

/* A filter of directory entries. */
typedef struct dfs_pipeline dfs_pipeline_t;

/* What a filter asks for. */
typedef struct {
	/* Pattern of the name: % stands for any characters, _ for one. */
	char dp_name[DFS_MAX_NAME];
	/* Seconds; entries that were changed later pass. */
	time_t dp_newer;
	/* Not looked at. */
	size_t dp_size;
} dfs_predicate_t;

/* Called for each name of a directory; another result than 0 ends the listing. */
typedef int (*dfs_filler_cb_t)(dfs_t *dfs, dfs_obj_t *obj, const char name[], void *arg);

#ifdef __cplusplus
extern "C" {
#endif

/* Start and end of the library, as daos_init and daos_fini. */
int dfs_init(void);
int dfs_fini(void);

/* Mounts by names. With O_CREAT a container that isn't there is created. End it by dfs_disconnect. */
int dfs_connect(const char *pool, const char *sys, const char *cont, int flags, dfs_attr_t *attr, dfs_t **dfs);
int dfs_connect_snap(const char *pool, const char *sys, const char *cont, int flags, daos_epoch_t epoch, const char *name,
		     dfs_t **dfs);
/* What is open in it is closed. */
int dfs_disconnect(dfs_t *dfs);
int dfs_destroy(const char *pool, const char *sys, const char *cont, int force, daos_event_t *ev);

/* Creates a container with a file system; coh and dfs may be NULL, else it is opened and mounted. */
int dfs_cont_create(daos_handle_t poh, uuid_t *uuid, dfs_attr_t *attr, daos_handle_t *coh, dfs_t **dfs);
int dfs_cont_create_with_label(daos_handle_t poh, const char *label, dfs_attr_t *attr, uuid_t *uuid, daos_handle_t *coh,
			       dfs_t **dfs);
/* Sets owner and group of the root directory. The names aren't looked at. */
int dfs_cont_set_owner(daos_handle_t coh, d_string_t user, uid_t uid, d_string_t group, gid_t gid);

/* Mounts a container that is open: flags are O_RDONLY or O_RDWR. A snapshot is mounted by its epoch, to be read. */
int dfs_mount(daos_handle_t poh, daos_handle_t coh, int flags, dfs_t **dfs);
int dfs_mount_snap(daos_handle_t poh, daos_handle_t coh, int flags, daos_epoch_t epoch, const char *name, dfs_t **dfs);
int dfs_umount(dfs_t *dfs);

/* The handles, which stay the file system's. */
int dfs_pool_get(dfs_t *dfs, daos_handle_t *poh);
int dfs_pool_put(dfs_t *dfs, daos_handle_t poh);
int dfs_cont_get(dfs_t *dfs, daos_handle_t *coh);
int dfs_cont_put(dfs_t *dfs, daos_handle_t coh);
int dfs_query(dfs_t *dfs, dfs_attr_t *attr);

/* For other processes, as daos_pool_local2global; EOVERFLOW for a short buffer. With _all handles come along. */
int dfs_local2global(dfs_t *dfs, d_iov_t *glob);
int dfs_global2local(daos_handle_t poh, daos_handle_t coh, int flags, d_iov_t glob, dfs_t **dfs);
int dfs_local2global_all(dfs_t *dfs, d_iov_t *glob);
int dfs_global2local_all(int flags, d_iov_t glob, dfs_t **dfs);
int dfs_obj_local2global(dfs_t *dfs, dfs_obj_t *obj, d_iov_t *glob);
int dfs_obj_global2local(dfs_t *dfs, int flags, d_iov_t glob, dfs_obj_t **obj);

/* Sets what the paths of dfs_lookup begin with, and is left out of them. */
int dfs_set_prefix(dfs_t *dfs, const char *prefix);
/* The class for a hint: "single" or "max", with "file:" or "dir:" in front or nothing. */
int dfs_suggest_oclass(dfs_t *dfs, const char *hint, daos_oclass_id_t *cid);

/* Opens what is there. Links are followed, unless O_NOFOLLOW; mode and stbuf may be NULL. */
int dfs_lookup(dfs_t *dfs, const char *path, int flags, dfs_obj_t **obj, mode_t *mode, struct stat *stbuf);
int dfs_lookup_rel(dfs_t *dfs, dfs_obj_t *parent, const char *name, int flags, dfs_obj_t **obj, mode_t *mode,
		   struct stat *stbuf);

/*
 * Opens or creates an entry of a directory, of the root for NULL. mode holds type (S_IFREG, S_IFDIR, S_IFLNK) and permission bits;
 * flags are O_RDONLY, O_RDWR, O_CREAT, O_EXCL and O_TRUNC. O_APPEND is ENOTSUP. value is the target of a link.
 */
int dfs_open(dfs_t *dfs, dfs_obj_t *parent, const char *name, mode_t mode, int flags, daos_oclass_id_t cid,
	     daos_size_t chunk_size, const char *value, dfs_obj_t **obj);
int dfs_dup(dfs_t *dfs, dfs_obj_t *obj, int flags, dfs_obj_t **new_obj);
int dfs_release(dfs_obj_t *obj);

/* Reads iov_len bytes of each run of memory from a place on. *read_size is how many there were before the end. */
int dfs_read(dfs_t *dfs, dfs_obj_t *obj, d_sg_list_t *sgl, daos_off_t off, daos_size_t *read_size, daos_event_t *ev);
int dfs_write(dfs_t *dfs, dfs_obj_t *obj, d_sg_list_t *sgl, daos_off_t off, daos_event_t *ev);
/* Reads and writes ranges, which have as many bytes as the memory. */
int dfs_readx(dfs_t *dfs, dfs_obj_t *obj, dfs_iod_t *iod, d_sg_list_t *sgl, daos_size_t *read_size, daos_event_t *ev);
int dfs_writex(dfs_t *dfs, dfs_obj_t *obj, dfs_iod_t *iod, d_sg_list_t *sgl, daos_event_t *ev);
int dfs_get_size(dfs_t *dfs, dfs_obj_t *obj, daos_size_t *size);
int dfs_get_size_by_oid(dfs_t *dfs, daos_obj_id_t oid, daos_size_t chunk_size, daos_size_t *size);
/* Makes a hole; with DFS_MAX_FSIZE, or up to the end, cuts the file off. A shorter file is lengthened to offset. */
int dfs_punch(dfs_t *dfs, dfs_obj_t *obj, daos_off_t offset, daos_size_t len);
/* All that was written is stable. */
int dfs_sync(dfs_t *dfs);

/* Lists entries without . and ..: *nr is the room, then their number. Zeros are the anchor of the start. */
int dfs_readdir(dfs_t *dfs, dfs_obj_t *obj, daos_anchor_t *anchor, uint32_t *nr, struct dirent *dirs);
int dfs_readdirplus(dfs_t *dfs, dfs_obj_t *obj, daos_anchor_t *anchor, uint32_t *nr, struct dirent *dirs,
		    struct stat *stbufs);
int dfs_iterate(dfs_t *dfs, dfs_obj_t *obj, daos_anchor_t *anchor, uint32_t *nr, size_t size, dfs_filler_cb_t op,
		void *arg);
/* Sets an anchor behind a name. */
int dfs_dir_anchor_set(dfs_obj_t *obj, const char name[], daos_anchor_t *anchor);
/* Parts of a directory for listing in parallel; there is one. */
int dfs_obj_anchor_split(dfs_obj_t *obj, uint32_t *nr, daos_anchor_t *anchors);
int dfs_obj_anchor_set(dfs_obj_t *obj, uint32_t index, daos_anchor_t *anchor);
/* Filters of listings, which the client applies. */
int dfs_pipeline_create(dfs_t *dfs, dfs_predicate_t pred, uint64_t flags, dfs_pipeline_t **dpipe);
int dfs_pipeline_destroy(dfs_pipeline_t *dpipe);
int dfs_readdir_with_filter(dfs_t *dfs, dfs_obj_t *obj, dfs_pipeline_t *dpipe, daos_anchor_t *anchor, uint32_t *nr,
			    struct dirent *dirs, daos_obj_id_t *oids, daos_size_t *csizes, uint64_t *nr_scanned);

/* All directories have the class of the file system, whatever cid says. */
int dfs_mkdir(dfs_t *dfs, dfs_obj_t *parent, const char *name, mode_t mode, daos_oclass_id_t cid);
/* With force a directory goes with all that is in it. oid may be NULL, else it is the removed object. */
int dfs_remove(dfs_t *dfs, dfs_obj_t *parent, const char *name, bool force, daos_obj_id_t *oid);
/* *oid is the object that was replaced, zeros without one. */
int dfs_move(dfs_t *dfs, dfs_obj_t *parent, const char *name, dfs_obj_t *new_parent, const char *new_name,
	     daos_obj_id_t *oid);
int dfs_exchange(dfs_t *dfs, dfs_obj_t *parent1, const char *name1, dfs_obj_t *parent2, const char *name2);
/* Tells an open object that it was renamed: to the directory of another one, and to a name unless that is NULL. */
int dfs_update_parent(dfs_obj_t *obj, dfs_obj_t *src_obj, const char *name);

/* What an open object is. */
int dfs_obj2id(dfs_obj_t *obj, daos_obj_id_t *oid);
int dfs_get_mode(dfs_obj_t *obj, mode_t *mode);
int dfs_get_chunk_size(dfs_obj_t *obj, daos_size_t *chunk_size);
int dfs_obj_get_info(dfs_t *dfs, dfs_obj_t *obj, dfs_obj_info_t *info);
/* The target with its NUL, cut off where it doesn't fit: *size is the room, then what it takes. */
int dfs_get_symlink_value(dfs_obj_t *obj, char *buf, daos_size_t *size);
/* The array of a file's content. Close it by daos_array_close. */
int dfs_get_file_oh(dfs_obj_t *obj, daos_handle_t *oh);
/* Not available: ENOTSUP. */
int dfs_obj_set_oclass(dfs_t *dfs, dfs_obj_t *obj, int flags, daos_oclass_id_t cid);
int dfs_obj_set_chunk_size(dfs_t *dfs, dfs_obj_t *obj, int flags, daos_size_t csize);

/* Attributes. name NULL stands for the directory itself. dfs_stat doesn't follow links, the others do. */
int dfs_stat(dfs_t *dfs, dfs_obj_t *parent, const char *name, struct stat *stbuf);
int dfs_ostat(dfs_t *dfs, dfs_obj_t *obj, struct stat *stbuf);
/* Sets what flags (DFS_SET_ATTR_*) say, and fills in all attributes. */
int dfs_osetattr(dfs_t *dfs, dfs_obj_t *obj, struct stat *stbuf, int flags);
int dfs_access(dfs_t *dfs, dfs_obj_t *parent, const char *name, int mask);
int dfs_chmod(dfs_t *dfs, dfs_obj_t *parent, const char *name, mode_t mode);
int dfs_chown(dfs_t *dfs, dfs_obj_t *parent, const char *name, uid_t uid, gid_t gid, int flags);

/* Extended attributes: *size is the room, then what there is. A value that doesn't fit is ERANGE, a missing one ENODATA. */
int dfs_setxattr(dfs_t *dfs, dfs_obj_t *obj, const char *name, const void *value, daos_size_t size, int flags);
int dfs_getxattr(dfs_t *dfs, dfs_obj_t *obj, const char *name, void *value, daos_size_t *size);
int dfs_removexattr(dfs_t *dfs, dfs_obj_t *obj, const char *name);
int dfs_listxattr(dfs_t *dfs, dfs_obj_t *obj, char *list, daos_size_t *size);

#ifdef __cplusplus
}
#endif

#endif
