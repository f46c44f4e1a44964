/* SPDX-License-Identifier: Apache-2.0 */
/* Access control lists: types and values. The functions on them aren't there yet. */
#ifndef WEIR_DAOS_SECURITY_H
#define WEIR_DAOS_SECURITY_H

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

#endif
