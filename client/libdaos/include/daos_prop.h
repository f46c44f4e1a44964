/* SPDX-License-Identifier: Apache-2.0 */
/* Properties of pools and containers. */
#ifndef WEIR_DAOS_PROP_H
#define WEIR_DAOS_PROP_H

#include <ctype.h>

#include <daos_types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Pool properties. */
enum daos_pool_prop_type {
	DAOS_PROP_PO_MIN = 0,
	DAOS_PROP_PO_LABEL = 1,
	DAOS_PROP_PO_ACL = 2,
	DAOS_PROP_PO_SPACE_RB = 3,
	DAOS_PROP_PO_SELF_HEAL = 4,
	DAOS_PROP_PO_RECLAIM = 5,
	DAOS_PROP_PO_OWNER = 6,
	DAOS_PROP_PO_OWNER_GROUP = 7,
	DAOS_PROP_PO_SVC_LIST = 8,
	DAOS_PROP_PO_EC_CELL_SZ = 9,
	DAOS_PROP_PO_DATA_THRESH = 10,
	DAOS_PROP_PO_REDUN_FAC = 11,
	DAOS_PROP_PO_EC_PDA = 12,
	DAOS_PROP_PO_RP_PDA = 13,
	DAOS_PROP_PO_GLOBAL_VERSION = 14,
	DAOS_PROP_PO_UPGRADE_STATUS = 15,
	DAOS_PROP_PO_SCRUB_MODE = 16,
	DAOS_PROP_PO_SCRUB_FREQ = 17,
	DAOS_PROP_PO_SCRUB_THRESH = 18,
	DAOS_PROP_PO_SVC_REDUN_FAC = 19,
	DAOS_PROP_PO_OBJ_VERSION = 20,
	DAOS_PROP_PO_PERF_DOMAIN = 21,
	DAOS_PROP_PO_CHECKPOINT_MODE = 22,
	DAOS_PROP_PO_CHECKPOINT_FREQ = 23,
	DAOS_PROP_PO_CHECKPOINT_THRESH = 24,
	DAOS_PROP_PO_REINT_MODE = 25,
	DAOS_PROP_PO_SVC_OPS_ENABLED = 26,
	DAOS_PROP_PO_SVC_OPS_ENTRY_AGE = 27,
	DAOS_PROP_PO_MAX = 28
};

/* Number of pool properties. */
#define DAOS_PROP_PO_NUM (DAOS_PROP_PO_MAX - DAOS_PROP_PO_MIN - 1)

/* Container properties. */
enum daos_cont_prop_type {
	DAOS_PROP_CO_MIN = 4096,
	DAOS_PROP_CO_LABEL = 4097,
	DAOS_PROP_CO_LAYOUT_TYPE = 4098,
	DAOS_PROP_CO_LAYOUT_VER = 4099,
	DAOS_PROP_CO_CSUM = 4100,
	DAOS_PROP_CO_CSUM_CHUNK_SIZE = 4101,
	DAOS_PROP_CO_CSUM_SERVER_VERIFY = 4102,
	DAOS_PROP_CO_REDUN_FAC = 4103,
	DAOS_PROP_CO_REDUN_LVL = 4104,
	DAOS_PROP_CO_SNAPSHOT_MAX = 4105,
	DAOS_PROP_CO_ACL = 4106,
	DAOS_PROP_CO_COMPRESS = 4107,
	DAOS_PROP_CO_ENCRYPT = 4108,
	DAOS_PROP_CO_OWNER = 4109,
	DAOS_PROP_CO_OWNER_GROUP = 4110,
	DAOS_PROP_CO_DEDUP = 4111,
	DAOS_PROP_CO_DEDUP_THRESHOLD = 4112,
	DAOS_PROP_CO_ROOTS = 4113,
	DAOS_PROP_CO_STATUS = 4114,
	DAOS_PROP_CO_ALLOCED_OID = 4115,
	DAOS_PROP_CO_EC_CELL_SZ = 4116,
	DAOS_PROP_CO_EC_PDA = 4117,
	DAOS_PROP_CO_RP_PDA = 4118,
	DAOS_PROP_CO_GLOBAL_VERSION = 4119,
	DAOS_PROP_CO_SCRUBBER_DISABLED = 4120,
	DAOS_PROP_CO_OBJ_VERSION = 4121,
	DAOS_PROP_CO_PERF_DOMAIN = 4122,
	DAOS_PROP_CO_MAX = 4123
};

/* Number of container properties. */
#define DAOS_PROP_CO_NUM (DAOS_PROP_CO_MAX - DAOS_PROP_CO_MIN - 1)

/* What a container holds: values of DAOS_PROP_CO_LAYOUT_TYPE. */
typedef enum {
	DAOS_PROP_CO_LAYOUT_UNKNOWN = 0,
	DAOS_PROP_CO_LAYOUT_UNKOWN = 0,
	DAOS_PROP_CO_LAYOUT_POSIX = 1,
	DAOS_PROP_CO_LAYOUT_HDF5 = 2,
	DAOS_PROP_CO_LAYOUT_PYTHON = 3,
	DAOS_PROP_CO_LAYOUT_SPARK = 4,
	DAOS_PROP_CO_LAYOUT_DATABASE = 5,
	DAOS_PROP_CO_LAYOUT_ROOT = 6,
	DAOS_PROP_CO_LAYOUT_SEISMIC = 7,
	DAOS_PROP_CO_LAYOUT_METEO = 8,
	DAOS_PROP_CO_LAYOUT_MAX = 9
} daos_cont_layout_t;

/* Values and limits of properties. */
#define DAOS_CHECKPOINT_DISABLED 0
#define DAOS_CHECKPOINT_LAZY 2
#define DAOS_CHECKPOINT_TIMED 1
#define DAOS_PROP_CO_CLEAR 1
#define DAOS_PROP_CO_COMPRESS_DEFLATE1 3
#define DAOS_PROP_CO_COMPRESS_DEFLATE2 4
#define DAOS_PROP_CO_COMPRESS_DEFLATE3 5
#define DAOS_PROP_CO_COMPRESS_DEFLATE4 6
#define DAOS_PROP_CO_COMPRESS_DEFLATE 2
#define DAOS_PROP_CO_COMPRESS_LZ4 1
#define DAOS_PROP_CO_COMPRESS_OFF 0
#define DAOS_PROP_CO_CSUM_ADLER32 7
#define DAOS_PROP_CO_CSUM_CRC16 1
#define DAOS_PROP_CO_CSUM_CRC32 2
#define DAOS_PROP_CO_CSUM_CRC64 3
#define DAOS_PROP_CO_CSUM_OFF 0
#define DAOS_PROP_CO_CSUM_SHA1 4
#define DAOS_PROP_CO_CSUM_SHA256 5
#define DAOS_PROP_CO_CSUM_SHA512 6
#define DAOS_PROP_CO_CSUM_SV_OFF 0
#define DAOS_PROP_CO_CSUM_SV_ON 1
#define DAOS_PROP_CO_DEDUP_HASH 2
#define DAOS_PROP_CO_DEDUP_MEMCMP 1
#define DAOS_PROP_CO_DEDUP_OFF 0
#define DAOS_PROP_CO_ENCRYPT_AES_CBC128 3
#define DAOS_PROP_CO_ENCRYPT_AES_CBC192 4
#define DAOS_PROP_CO_ENCRYPT_AES_CBC256 5
#define DAOS_PROP_CO_ENCRYPT_AES_GCM128 6
#define DAOS_PROP_CO_ENCRYPT_AES_GCM256 7
#define DAOS_PROP_CO_ENCRYPT_AES_XTS128 1
#define DAOS_PROP_CO_ENCRYPT_AES_XTS256 2
#define DAOS_PROP_CO_ENCRYPT_OFF 0
#define DAOS_PROP_CO_HEALTHY 0
#define DAOS_PROP_CO_PERF_DOMAIN_DEFAULT 255
#define DAOS_PROP_CO_REDUN_DEFAULT 2
#define DAOS_PROP_CO_REDUN_FAULT 3
#define DAOS_PROP_CO_REDUN_MAX 254
#define DAOS_PROP_CO_REDUN_MIN 1
#define DAOS_PROP_CO_REDUN_NODE 2
#define DAOS_PROP_CO_REDUN_RANK 1
#define DAOS_PROP_CO_REDUN_RF0 0
#define DAOS_PROP_CO_REDUN_RF1 1
#define DAOS_PROP_CO_REDUN_RF2 2
#define DAOS_PROP_CO_REDUN_RF3 3
#define DAOS_PROP_CO_REDUN_RF4 4
#define DAOS_PROP_CO_UNCLEAN 1
#define DAOS_PROP_ENTRIES_MAX_NR 128
#define DAOS_PROP_ENTRY_NOT_SET 1
#define DAOS_PROP_LABEL_MAX_LEN 127
#define DAOS_PROP_MAX_LABEL_BUF_LEN 128
#define DAOS_PROP_PDA_MAX 4294967295U
#define DAOS_PROP_PERF_DOMAIN_GROUP 200
#define DAOS_PROP_PERF_DOMAIN_ROOT 255
#define DAOS_PROP_PO_CHECKPOINT_FREQ_DEFAULT 5
#define DAOS_PROP_PO_CHECKPOINT_FREQ_MAX 1048576
#define DAOS_PROP_PO_CHECKPOINT_FREQ_MIN 1
#define DAOS_PROP_PO_CHECKPOINT_MODE_DEFAULT 1
#define DAOS_PROP_PO_CHECKPOINT_THRESH_DEFAULT 50
#define DAOS_PROP_PO_CHECKPOINT_THRESH_MAX 75
#define DAOS_PROP_PO_CHECKPOINT_THRESH_MIN 10
#define DAOS_PROP_PO_DATA_THRESH_DEFAULT 4096
#define DAOS_PROP_PO_EC_CELL_SZ_MAX 1073741824
#define DAOS_PROP_PO_EC_CELL_SZ_MIN 1024
#define DAOS_PROP_PO_EC_PDA_DEFAULT 1
#define DAOS_PROP_PO_PERF_DOMAIN_DEFAULT 255
#define DAOS_PROP_PO_REDUN_FAC_DEFAULT 3
#define DAOS_PROP_PO_REDUN_FAC_MAX 4
#define DAOS_PROP_PO_REINT_MODE_DEFAULT 0
#define DAOS_PROP_PO_RP_PDA_DEFAULT 4294967295U
#define DAOS_PROP_PO_SCRUB_FREQ_DEFAULT 604800
#define DAOS_PROP_PO_SCRUB_MODE_DEFAULT 0
#define DAOS_PROP_PO_SCRUB_THRESH_DEFAULT 0
#define DAOS_PROP_PO_SVC_OPS_ENABLED_DEFAULT 1
#define DAOS_PROP_PO_SVC_OPS_ENTRY_AGE_DEFAULT 300
#define DAOS_PROP_PO_SVC_OPS_ENTRY_AGE_MAX 600
#define DAOS_PROP_PO_SVC_OPS_ENTRY_AGE_MIN 60
#define DAOS_PROP_PO_SVC_REDUN_FAC_DEFAULT 2
#define DAOS_PROP_PO_SVC_REDUN_FAC_MAX 4
#define DAOS_RECLAIM_BATCH 3
#define DAOS_RECLAIM_DISABLED 0
#define DAOS_RECLAIM_LAZY 1
#define DAOS_RECLAIM_SNAPSHOT 2
#define DAOS_RECLAIM_TIME 4
#define DAOS_REINT_MODE_DATA_SYNC 0
#define DAOS_REINT_MODE_INCREMENTAL 2
#define DAOS_REINT_MODE_NO_DATA_SYNC 1
#define DAOS_RF_MAX 4
#define DAOS_SCRUB_MODE_INVALID 3
#define DAOS_SCRUB_MODE_LAZY 1
#define DAOS_SCRUB_MODE_OFF 0
#define DAOS_SCRUB_MODE_TIMED 2
#define DAOS_SELF_HEAL_AUTO_EXCLUDE 1
#define DAOS_SELF_HEAL_AUTO_REBUILD 2
#define DAOS_SELF_HEAL_DELAY_REBUILD 4
#define DAOS_UPGRADE_STATUS_COMPLETED 2
#define DAOS_UPGRADE_STATUS_FAILED 3
#define DAOS_UPGRADE_STATUS_IN_PROGRESS 1
#define DAOS_UPGRADE_STATUS_NOT_STARTED 0

#define DAOS_PROP_CO_LABEL_DEFAULT "container_label_not_set"
#define DAOS_PROP_PO_LABEL_DEFAULT "pool_label_not_set"

/* Roots of what a middleware keeps in a container: value of DAOS_PROP_CO_ROOTS. */
struct daos_prop_co_roots {
	daos_obj_id_t cr_oids[4];
};

/* State of a container: value of DAOS_PROP_CO_STATUS. */
struct daos_co_status {
	/* DAOS_PROP_CO_HEALTHY or DAOS_PROP_CO_UNCLEAN. */
	uint16_t dcs_status;
	/* DAOS_PROP_CO_CLEAR. */
	uint16_t dcs_flags;
	/* Version of the pool map when the state was set. */
	uint32_t dcs_pm_ver;
};

/* A state as one number: flags, status and version from its highest bits on. */
#define DAOS_PROP_CO_STATUS_VAL(status, flag, pm_ver) \
	(((uint64_t)(flag) << 48) | (((uint64_t)(status) & 0xFFFF) << 32) | (uint64_t)(pm_ver))

/* One property. */
struct daos_prop_entry {
	uint32_t dpe_type;
	uint16_t dpe_flags;
	uint16_t dpe_reserv;
	union {
		uint64_t dpe_val;
		d_string_t dpe_str;
		void *dpe_val_ptr;
	};
};

/* A list of properties. */
typedef struct {
	uint32_t dpp_nr;
	uint32_t dpp_reserv;
	struct daos_prop_entry *dpp_entries;
} daos_prop_t;

/* Makes a list of entries_nr empty properties; NULL without memory or for more than DAOS_PROP_ENTRIES_MAX_NR. */
daos_prop_t *daos_prop_alloc(uint32_t entries_nr);

/* The number of a container's state. */
static inline uint64_t
daos_prop_co_status_2_val(struct daos_co_status *status)
{
	return DAOS_PROP_CO_STATUS_VAL(status->dcs_status, status->dcs_flags, status->dcs_pm_ver);
}

/* A container's state of its number. */
static inline void
daos_prop_val_2_co_status(uint64_t value, struct daos_co_status *status)
{
	status->dcs_flags = (uint16_t)(value >> 48);
	status->dcs_status = (uint16_t)(value >> 32);
	status->dcs_pm_ver = (uint32_t)value;
}

/* Whether a queried entry has a value. */
static inline bool
daos_prop_is_set(struct daos_prop_entry *entry)
{
	return (entry->dpe_flags & DAOS_PROP_ENTRY_NOT_SET) == 0;
}

/* Whether a redundancy factor of containers is one. */
static inline bool
daos_rf_is_valid(unsigned long long rf)
{
	return rf <= DAOS_RF_MAX;
}

/* Whether a redundancy factor of pool services is one. */
static inline bool
daos_svc_rf_is_valid(uint64_t rf)
{
	return rf <= DAOS_PROP_PO_SVC_REDUN_FAC_MAX;
}

/* Whether a text can be a label: 1 to 127 letters, digits, and . _ : - but no UUID. */
static inline bool
daos_label_is_valid(const char *label)
{
	size_t length, at;

	if (label == NULL)
		return false;
	length = strnlen(label, DAOS_PROP_LABEL_MAX_LEN + 1);
	if (length == 0 || length > DAOS_PROP_LABEL_MAX_LEN)
		return false;
	for (at = 0; at < length; at++) {
		if (!isalnum((unsigned char)label[at]) && strchr("._:-", label[at]) == NULL)
			return false;
	}
	return !daos_is_valid_uuid_string(label);
}

/* Whether a text can name a performance domain: as a label. */
static inline bool
daos_perf_domain_is_valid(const char *perf_domain)
{
	return daos_label_is_valid(perf_domain);
}

/* Frees a list and the strings in it. */
void daos_prop_free(daos_prop_t *prop);

/* Sets the entry of this type to a copy of a string: -DER_NONEXIST when the list has no such entry. */
int daos_prop_set_str(daos_prop_t *prop, uint32_t type, const char *str, daos_size_t len);

/* Sets an entry to a copy of a string. */
int daos_prop_entry_set_str(struct daos_prop_entry *entry, const char *str, daos_size_t len);

/* The entry of this type; NULL when there is none. */
struct daos_prop_entry *daos_prop_entry_get(daos_prop_t *prop, uint32_t type);

/* Makes a list of text: NAME:VALUE with ; or , between, e.g. "label:home;cksum:crc32;ec_cell_sz:64k". */
int daos_prop_from_str(const char *str, daos_size_t len, daos_prop_t **prop);

/* Frees values and entries, not the list. */
void daos_prop_fini(daos_prop_t *prop);

/* Makes a list of two, of which either may be NULL; where both have a property, it is that of the new one. */
daos_prop_t *daos_prop_merge(daos_prop_t *old_prop, daos_prop_t *new_prop);
int daos_prop_merge2(daos_prop_t *old_prop, daos_prop_t *new_prop, daos_prop_t **out_prop);

/* Values that are memory: access control lists, roots. They are copied. */
int daos_prop_set_ptr(daos_prop_t *prop, uint32_t type, const void *ptr, daos_size_t size);
int daos_prop_entry_set_ptr(struct daos_prop_entry *entry, const void *ptr, daos_size_t size);
int daos_prop_entry_dup_ptr(struct daos_prop_entry *entry_dst, struct daos_prop_entry *entry_src, size_t len);
int daos_prop_entry_dup_co_roots(struct daos_prop_entry *dst, struct daos_prop_entry *src);
/* -DER_MISMATCH when two lists differ. */
int daos_prop_entry_cmp_acl(struct daos_prop_entry *entry1, struct daos_prop_entry *entry2);

/* What the value of an entry is. */
bool daos_prop_has_str(struct daos_prop_entry *entry);
bool daos_prop_has_ptr(struct daos_prop_entry *entry);
bool daos_prop_has_byteval(struct daos_prop_entry *entry);

#ifdef __cplusplus
}
#endif

#endif
