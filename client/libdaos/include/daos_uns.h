/* SPDX-License-Identifier: Apache-2.0 */
/* Names of containers in other file systems. All functions return 0 or a positive errno. */
#ifndef WEIR_DAOS_UNS_H
#define WEIR_DAOS_UNS_H

#include <daos_cont.h>
#include <daos_obj_class.h>
#include <daos_prop.h>
#include <daos_types.h>

/* The extended attribute that names a container, and the most bytes of its value. */
#define DUNS_XATTR_NAME "user.daos"
#define DUNS_MAX_XATTR_LEN 170
/* Its value: layout type, pool and container. */
#define DUNS_XATTR_FMT "DAOS.%s://%36s/%36s"

/* How a path is resolved. */
enum {
	/* It has no "daos:" in front. */
	DUNS_NO_PREFIX = (1 << 0),
	/* Only its last part may name a container. */
	DUNS_NO_REVERSE_LOOKUP = (1 << 1),
	/* It is pool and container, no path of another file system. */
	DUNS_NO_CHECK_PATH = (1 << 2)
};

/* What a path names. */
struct duns_attr_t {
	daos_cont_layout_t da_type;
	daos_oclass_id_t da_oclass_id;
	daos_size_t da_chunk_size;
	daos_prop_t *da_props;
	/* DUNS_NO_* for the lookup. */
	uint32_t da_flags;
	/* Label or UUID text. */
	char da_pool[DAOS_PROP_LABEL_MAX_LEN + 1];
	char da_cont[DAOS_PROP_LABEL_MAX_LEN + 1];
	char *da_sys;
	/* What of the path is behind the container. */
	char *da_rel_path;
	bool da_on_lustre;
	/* As DUNS_NO_PREFIX. */
	bool da_no_prefix;
	uuid_t da_puuid;
	uuid_t da_cuuid;
	daos_oclass_id_t da_dir_oclass_id;
	daos_oclass_id_t da_file_oclass_id;
	char da_hints[DAOS_CONT_HINT_MAX_LEN];
};

/* The same by the name of a type. */
typedef struct duns_attr_t duns_attr_t;

#ifdef __cplusplus
extern "C" {
#endif

/* Creates a container of da_type, and a directory (POSIX) or file that names it by its extended attribute. */
int duns_create_path(daos_handle_t poh, const char *path, struct duns_attr_t *attrp);
/*
 * Finds the container of daos://POOL/CONTAINER/REST, or of the path or a directory above that names one; what is behind it becomes
 * da_rel_path. ENODATA when there is none.
 */
int duns_resolve_path(const char *path, struct duns_attr_t *attr);
/* Destroys the container that a path names, and removes the path. */
int duns_destroy_path(daos_handle_t poh, const char *path);
int duns_parse_attr(char *str, daos_size_t len, struct duns_attr_t *attr);
int duns_set_sys_name(struct duns_attr_t *attrp, const char *sys);
/* Frees what the functions above have allocated in the structure. */
void duns_destroy_attr(struct duns_attr_t *attrp);
/* Makes a path that names a container which is there. */
int duns_link_cont(daos_handle_t poh, const char *cont, const char *path);

#ifdef __cplusplus
}
#endif

#endif
