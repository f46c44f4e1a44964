/* SPDX-License-Identifier: Apache-2.0 */
/* Access control lists. */
#ifndef WEIR_DAOS_SECURITY_H
#define WEIR_DAOS_SECURITY_H

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

#include <daos_prop.h>
#include <daos_types.h>

#define DAOS_ACL_VERSION 1

/* Limits in bytes: a principal without and with its NUL, all entries of a list, an entry as text. */
#define DAOS_ACL_MAX_PRINCIPAL_LEN 255
#define DAOS_ACL_MAX_PRINCIPAL_BUF_LEN (DAOS_ACL_MAX_PRINCIPAL_LEN + 1)
#define DAOS_ACL_MAX_ACE_LEN 65536
#define DAOS_ACL_MAX_ACE_STR_LEN 319

/* Principals that have no name of their own, as text. */
#define DAOS_ACL_PRINCIPAL_OWNER "OWNER@"
#define DAOS_ACL_PRINCIPAL_OWNER_GRP "GROUP@"
#define DAOS_ACL_PRINCIPAL_EVERYONE "EVERYONE@"

/* A list; its entries stand back to back. */
struct daos_acl {
	uint16_t dal_ver;
	uint16_t dal_reserv;
	/* Bytes of all entries. */
	uint32_t dal_len;
	uint8_t dal_ace[];
};

/* One entry. */
struct daos_ace {
	/* Bits of DAOS_ACL_ACCESS_*. */
	uint8_t dae_access_types;
	/* An enum daos_acl_principal_type. */
	uint8_t dae_principal_type;
	/* Bytes of dae_principal. */
	uint16_t dae_principal_len;
	/* Bits of DAOS_ACL_FLAG_*. */
	uint16_t dae_access_flags;
	uint16_t dae_reserv;
	/* Bits of DAOS_ACL_PERM_*, by type of access. */
	uint64_t dae_allow_perms;
	uint64_t dae_audit_perms;
	uint64_t dae_alarm_perms;
	char dae_principal[];
};

/* Whom an entry is about. */
enum daos_acl_principal_type {
	DAOS_ACL_OWNER = 0,
	DAOS_ACL_USER = 1,
	DAOS_ACL_OWNER_GROUP = 2,
	DAOS_ACL_GROUP = 3,
	DAOS_ACL_EVERYONE = 4,
	NUM_DAOS_ACL_TYPES = 5
};

/* What an entry does. */
enum daos_acl_access_type {
	DAOS_ACL_ACCESS_ALLOW = (1 << 0),
	DAOS_ACL_ACCESS_AUDIT = (1 << 1),
	DAOS_ACL_ACCESS_ALARM = (1 << 2)
};

#define DAOS_ACL_ACCESS_ALL (DAOS_ACL_ACCESS_ALLOW | DAOS_ACL_ACCESS_AUDIT | DAOS_ACL_ACCESS_ALARM)

/* Properties of an entry. */
enum daos_acl_flags {
	DAOS_ACL_FLAG_GROUP = (1 << 0),
	DAOS_ACL_FLAG_POOL_INHERIT = (1 << 1),
	DAOS_ACL_FLAG_ACCESS_FAIL = (1 << 2),
	DAOS_ACL_FLAG_ACCESS_SUCCESS = (1 << 3)
};

#define DAOS_ACL_FLAG_ALL \
	(DAOS_ACL_FLAG_GROUP | DAOS_ACL_FLAG_POOL_INHERIT | DAOS_ACL_FLAG_ACCESS_FAIL | DAOS_ACL_FLAG_ACCESS_SUCCESS)

/* Permissions. */
enum daos_acl_perm {
	DAOS_ACL_PERM_READ = (1 << 0),
	DAOS_ACL_PERM_WRITE = (1 << 1),
	DAOS_ACL_PERM_CREATE_CONT = (1 << 2),
	DAOS_ACL_PERM_DEL_CONT = (1 << 3),
	DAOS_ACL_PERM_GET_PROP = (1 << 4),
	DAOS_ACL_PERM_SET_PROP = (1 << 5),
	DAOS_ACL_PERM_GET_ACL = (1 << 6),
	DAOS_ACL_PERM_SET_ACL = (1 << 7),
	DAOS_ACL_PERM_SET_OWNER = (1 << 8)
};

/* All permissions, those that mean something on pools, and those that do on containers. */
#define DAOS_ACL_PERM_ALL 511
#define DAOS_ACL_PERM_POOL_ALL 31
#define DAOS_ACL_PERM_CONT_ALL 507

#ifdef __cplusplus
extern "C" {
#endif

/* Lists. What is made is freed by daos_acl_free, an entry by daos_ace_free. Functions that make something give NULL for wrong input. */
struct daos_acl *daos_acl_create(struct daos_ace *aces[], uint16_t num_aces);
struct daos_acl *daos_acl_dup(struct daos_acl *acl);
void daos_acl_free(struct daos_acl *acl);
/* Bytes, or a negative error. */
ssize_t daos_acl_get_size(struct daos_acl *acl);
struct daos_ace *daos_acl_get_next_ace(struct daos_acl *acl, struct daos_ace *current_ace);
int daos_acl_get_ace_for_principal(struct daos_acl *acl, enum daos_acl_principal_type type, const char *principal,
				   struct daos_ace **ace);
/* These two make another list of the one that *acl points to. */
int daos_acl_add_ace(struct daos_acl **acl, struct daos_ace *new_ace);
int daos_acl_remove_ace(struct daos_acl **acl, enum daos_acl_principal_type type, const char *principal_name);
int daos_acl_validate(struct daos_acl *acl);
void daos_acl_dump(struct daos_acl *acl);

struct daos_ace *daos_ace_create(enum daos_acl_principal_type type, const char *principal_name);
void daos_ace_free(struct daos_ace *ace);
ssize_t daos_ace_get_size(struct daos_ace *ace);
bool daos_ace_is_valid(struct daos_ace *ace);
void daos_ace_dump(struct daos_ace *ace, uint32_t tabs);
const char *daos_ace_get_principal_str(struct daos_ace *ace);

/* Names of users and groups: NAME@. What is made is freed by free. */
bool daos_acl_principal_is_valid(const char *name);
int daos_acl_uid_to_principal(uid_t uid, char **name);
int daos_acl_gid_to_principal(gid_t gid, char **name);
int daos_acl_principal_to_uid(const char *principal, uid_t *uid);
int daos_acl_principal_to_gid(const char *principal, gid_t *gid);
/* OWNER@, GROUP@, EVERYONE@, u:NAME or g:NAME. */
int daos_acl_principal_from_str(const char *principal_str, enum daos_acl_principal_type *type, char **name);

/* Entries as text: [A][U][L]:[G][P][F][S]:PRINCIPAL:PERMISSIONS, e.g. "A::ann@:rw". */
int daos_ace_from_str(const char *str, struct daos_ace **ace);
int daos_ace_to_str(struct daos_ace *ace, char *buf, size_t buf_len);
int daos_ace_str_get_verbose(const char *ace_str, char *buf, size_t buf_len);
int daos_acl_from_strs(const char **ace_strs, size_t ace_nr, struct daos_acl **acl);
int daos_acl_to_strs(struct daos_acl *acl, char ***ace_strs, size_t *ace_nr);
int daos_acl_to_stream(FILE *stream, struct daos_acl *acl, bool verbose);

#ifdef __cplusplus
}
#endif

#endif
