/* SPDX-License-Identifier: Apache-2.0 */
/* Objects: two levels of keys. */
#ifndef WEIR_DAOS_OBJ_H
#define WEIR_DAOS_OBJ_H

#include <daos_obj_class.h>
#include <daos_prop.h>
#include <daos_types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Types of objects: what their keys look like. */
enum daos_otype_t {
	DAOS_OT_MULTI_HASHED = 0,
	DAOS_OT_OIT = 1,
	DAOS_OT_DKEY_UINT64 = 2,
	DAOS_OT_AKEY_UINT64 = 3,
	DAOS_OT_MULTI_UINT64 = 4,
	DAOS_OT_DKEY_LEXICAL = 5,
	DAOS_OT_AKEY_LEXICAL = 6,
	DAOS_OT_MULTI_LEXICAL = 7,
	DAOS_OT_KV_HASHED = 8,
	DAOS_OT_KV_UINT64 = 9,
	DAOS_OT_KV_LEXICAL = 10,
	DAOS_OT_ARRAY = 11,
	DAOS_OT_ARRAY_ATTR = 12,
	DAOS_OT_ARRAY_BYTE = 13,
	DAOS_OT_OIT_V2 = 14,
	DAOS_OT_MAX = 14
};

/* Where type and class stand in the upper half of hi. */
#define OID_FMT_INTR_BITS 32
#define OID_FMT_TYPE_BITS 8
#define OID_FMT_CLASS_BITS 8
#define OID_FMT_META_BITS 16
#define OID_FMT_TYPE_SHIFT 56
#define OID_FMT_CLASS_SHIFT 48
#define OID_FMT_META_SHIFT 32
#define OID_FMT_TYPE_MAX 255
#define OID_FMT_CLASS_MAX 255
#define OID_FMT_META_MAX 65535
#define OID_FMT_TYPE_MASK ((uint64_t)OID_FMT_TYPE_MAX << OID_FMT_TYPE_SHIFT)
#define OID_FMT_CLASS_MASK ((uint64_t)OID_FMT_CLASS_MAX << OID_FMT_CLASS_SHIFT)
#define OID_FMT_META_MASK ((uint64_t)OID_FMT_META_MAX << OID_FMT_META_SHIFT)

/* How an object is opened. */
#define DAOS_OO_RO (1U << 1)
#define DAOS_OO_RW (1U << 2)
#define DAOS_OO_EXCL (1U << 3)
#define DAOS_OO_IO_RAND (1U << 4)
#define DAOS_OO_IO_SEQ (1U << 5)

/* Conditions: on existing -DER_EXIST, on missing -DER_NONEXIST. */
#define DAOS_COND_PUNCH (1 << 0)
#define DAOS_COND_DKEY_INSERT (1 << 1)
#define DAOS_COND_DKEY_UPDATE (1 << 2)
#define DAOS_COND_DKEY_FETCH (1 << 3)
#define DAOS_COND_AKEY_INSERT (1 << 4)
#define DAOS_COND_AKEY_UPDATE (1 << 5)
#define DAOS_COND_AKEY_FETCH (1 << 6)
#define DAOS_COND_PER_AKEY (1 << 7)
#define DAOS_COND_MASK 255

/* Hints for the class of an object. */
#define DAOS_OCH_RDD_BITS 4
#define DAOS_OCH_RDD_DEF 1
#define DAOS_OCH_RDD_EC 8
#define DAOS_OCH_RDD_MASK 15
#define DAOS_OCH_RDD_MAX_VAL 15
#define DAOS_OCH_RDD_NO 2
#define DAOS_OCH_RDD_RP 4
#define DAOS_OCH_RDD_SHIFT 0
#define DAOS_OCH_SHD_BITS 6
#define DAOS_OCH_SHD_DEF 16
#define DAOS_OCH_SHD_EXT 256
#define DAOS_OCH_SHD_HI 128
#define DAOS_OCH_SHD_MASK 1008
#define DAOS_OCH_SHD_MAX_VAL 63
#define DAOS_OCH_SHD_MAX 512
#define DAOS_OCH_SHD_REG 64
#define DAOS_OCH_SHD_SHIFT 4
#define DAOS_OCH_SHD_TINY 32

#define DAOS_GET_MAX (1 << 0)
#define DAOS_GET_MIN (1 << 1)
#define DAOS_GET_DKEY (1 << 2)
#define DAOS_GET_AKEY (1 << 3)
#define DAOS_GET_RECX (1 << 4)

/* Most bytes of a mark in a table of objects. */
#define DAOS_OIT_MARKER_MAX_LEN 32

/* A record size or value size that is not known. */
#define DAOS_REC_ANY 0

typedef enum {
	DAOS_IOD_NONE = 0,
	/* One value, written and read as a whole. */
	DAOS_IOD_SINGLE = 1,
	/* Records of equal size. */
	DAOS_IOD_ARRAY = 2
} daos_iod_type_t;

/* Records from rx_idx on. */
typedef struct {
	uint64_t rx_idx;
	uint64_t rx_nr;
} daos_recx_t;

/* What to read or write of one akey. */
typedef struct {
	daos_key_t iod_name;
	daos_iod_type_t iod_type;
	/* Bytes of the value, or of a record. */
	daos_size_t iod_size;
	/* Conditions of this akey, with DAOS_COND_PER_AKEY. */
	uint64_t iod_flags;
	/* Number of extents; 1 for a single value. */
	unsigned int iod_nr;
	daos_recx_t *iod_recxs;
} daos_iod_t;

#define DAOS_IOMF_DETAIL 1

/* Which records a fetch found. */
typedef struct {
	daos_iod_type_t iom_type;
	uint32_t iom_nr;
	uint32_t iom_nr_out;
	uint32_t iom_flags;
	daos_size_t iom_size;
	daos_recx_t iom_recx_lo;
	daos_recx_t iom_recx_hi;
	daos_recx_t *iom_recxs;
} daos_iom_t;

/* One key of an enumeration. */
typedef struct {
	daos_size_t kd_key_len;
	uint32_t kd_val_type;
} daos_key_desc_t;

static inline enum daos_otype_t
daos_obj_id2type(daos_obj_id_t oid)
{
	return (enum daos_otype_t)((oid.hi & OID_FMT_TYPE_MASK) >> OID_FMT_TYPE_SHIFT);
}

static inline daos_oclass_id_t
daos_obj_id2class(daos_obj_id_t oid)
{
	uint32_t redun = (uint32_t)((oid.hi & OID_FMT_CLASS_MASK) >> OID_FMT_CLASS_SHIFT);
	uint32_t groups = (uint32_t)((oid.hi & OID_FMT_META_MASK) >> OID_FMT_META_SHIFT);

	return (redun << OC_REDUN_SHIFT) | groups;
}

static inline bool
daos_obj_id_is_nil(daos_obj_id_t oid)
{
	return oid.hi == 0 && oid.lo == 0;
}

/* Number of groups in an id's class; 65535 for all targets. */
static inline uint32_t
daos_obj_id2grp_nr(daos_obj_id_t oid)
{
	return (uint32_t)((oid.hi & OID_FMT_META_MASK) >> OID_FMT_META_SHIFT);
}

/* Whether this is a type of objects. */
static inline bool
daos_otype_t_is_valid(enum daos_otype_t type)
{
	return type <= DAOS_OT_MAX;
}

/* Whether this is a level that a performance domain can be of. */
static inline bool
daos_pa_domain_is_valid(uint32_t pa_domain)
{
	return pa_domain == DAOS_PROP_CO_REDUN_NODE || pa_domain == DAOS_PROP_CO_REDUN_RANK;
}

/* Whether dkeys of this type are integers of 8 bytes. */
static inline bool
daos_is_dkey_uint64_type(enum daos_otype_t type)
{
	return type == DAOS_OT_DKEY_UINT64 || type == DAOS_OT_MULTI_UINT64 || type == DAOS_OT_KV_UINT64 ||
	       type == DAOS_OT_ARRAY || type == DAOS_OT_ARRAY_ATTR || type == DAOS_OT_ARRAY_BYTE;
}

/* The same of an object's id. */
static inline bool
daos_is_dkey_uint64(daos_obj_id_t oid)
{
	return daos_is_dkey_uint64_type(daos_obj_id2type(oid));
}

/* Whether akeys of this type are integers of 8 bytes. */
static inline bool
daos_is_akey_uint64_type(enum daos_otype_t type)
{
	return type == DAOS_OT_AKEY_UINT64 || type == DAOS_OT_MULTI_UINT64;
}

/* The same of an object's id. */
static inline bool
daos_is_akey_uint64(daos_obj_id_t oid)
{
	return daos_is_akey_uint64_type(daos_obj_id2type(oid));
}

/* Whether dkeys of this type are in the order of their bytes. */
static inline bool
daos_is_dkey_lexical_type(enum daos_otype_t type)
{
	return type == DAOS_OT_DKEY_LEXICAL || type == DAOS_OT_MULTI_LEXICAL || type == DAOS_OT_KV_LEXICAL;
}

/* The same of an object's id. */
static inline bool
daos_is_dkey_lexical(daos_obj_id_t oid)
{
	return daos_is_dkey_lexical_type(daos_obj_id2type(oid));
}

/* Whether akeys of this type are in the order of their bytes. */
static inline bool
daos_is_akey_lexical_type(enum daos_otype_t type)
{
	return type == DAOS_OT_AKEY_LEXICAL || type == DAOS_OT_MULTI_LEXICAL;
}

/* The same of an object's id. */
static inline bool
daos_is_akey_lexical(daos_obj_id_t oid)
{
	return daos_is_akey_lexical_type(daos_obj_id2type(oid));
}

/* Whether objects of this type are arrays. */
static inline bool
daos_is_array_type(enum daos_otype_t type)
{
	return type == DAOS_OT_ARRAY || type == DAOS_OT_ARRAY_ATTR || type == DAOS_OT_ARRAY_BYTE;
}

/* The same of an object's id. */
static inline bool
daos_is_array(daos_obj_id_t oid)
{
	return daos_is_array_type(daos_obj_id2type(oid));
}

/* Whether objects of this type are key-value objects. */
static inline bool
daos_is_kv_type(enum daos_otype_t type)
{
	return type == DAOS_OT_KV_HASHED || type == DAOS_OT_KV_UINT64 || type == DAOS_OT_KV_LEXICAL;
}

/* The same of an object's id. */
static inline bool
daos_is_kv(daos_obj_id_t oid)
{
	return daos_is_kv_type(daos_obj_id2type(oid));
}

/* Puts type and class into an id. cid OC_UNKNOWN takes the container's default class. */
int daos_obj_generate_oid2(daos_handle_t coh, daos_obj_id_t *oid, enum daos_otype_t type, daos_oclass_id_t cid,
			   daos_oclass_hints_t hints, uint32_t args);
#define daos_obj_generate_oid daos_obj_generate_oid2

/* Classes of a program's own: there are none, as in DAOS. Each gives -DER_NOSYS. */
int daos_obj_register_class(daos_handle_t coh, daos_oclass_id_t cid, struct daos_oclass_attr *cattr,
			    daos_event_t *ev);
int daos_obj_query_class(daos_handle_t coh, daos_oclass_id_t cid, struct daos_oclass_attr *cattr, daos_event_t *ev);
int daos_obj_list_class(daos_handle_t coh, struct daos_oclass_list *clist, daos_anchor_t *anchor, daos_event_t *ev);

int daos_obj_open(daos_handle_t coh, daos_obj_id_t oid, unsigned int mode, daos_handle_t *oh, daos_event_t *ev);
int daos_obj_close(daos_handle_t oh, daos_event_t *ev);

int daos_obj_punch(daos_handle_t oh, daos_handle_t th, uint64_t flags, daos_event_t *ev);
int daos_obj_punch_dkeys(daos_handle_t oh, daos_handle_t th, uint64_t flags, unsigned int nr, daos_key_t *dkeys,
			 daos_event_t *ev);
int daos_obj_punch_akeys(daos_handle_t oh, daos_handle_t th, uint64_t flags, daos_key_t *dkey, unsigned int nr,
			 daos_key_t *akeys, daos_event_t *ev);

/* Reads nr akeys of a dkey. With sgls NULL only sizes are returned in iods. Holes leave their memory as it is. */
int daos_obj_fetch(daos_handle_t oh, daos_handle_t th, uint64_t flags, daos_key_t *dkey, unsigned int nr,
		   daos_iod_t *iods, d_sg_list_t *sgls, daos_iom_t *ioms, daos_event_t *ev);

/* Writes nr akeys of a dkey, all or none. iod_size 0 removes. */
int daos_obj_update(daos_handle_t oh, daos_handle_t th, uint64_t flags, daos_key_t *dkey, unsigned int nr,
		    daos_iod_t *iods, d_sg_list_t *sgls, daos_event_t *ev);

/* Lists keys: *nr is the room in kds, then their number; the keys stand back to back in sgl. */
int daos_obj_list_dkey(daos_handle_t oh, daos_handle_t th, uint32_t *nr, daos_key_desc_t *kds, d_sg_list_t *sgl,
		       daos_anchor_t *anchor, daos_event_t *ev);
int daos_obj_list_akey(daos_handle_t oh, daos_handle_t th, daos_key_t *dkey, uint32_t *nr, daos_key_desc_t *kds,
		       d_sg_list_t *sgl, daos_anchor_t *anchor, daos_event_t *ev);

/* What an object is made of. */
struct daos_obj_attr;

/* Lists the extents of an array: *nr is the room, then their number. size and eprs may be NULL. */
int daos_obj_list_recx(daos_handle_t oh, daos_handle_t th, daos_key_t *dkey, daos_key_t *akey, daos_size_t *size,
		       uint32_t *nr, daos_recx_t *recxs, daos_epoch_range_t *eprs, daos_anchor_t *anchor, bool incr_order,
		       daos_event_t *ev);

/* The greatest or smallest integer key or record: DAOS_GET_MAX or _MIN with _DKEY, _AKEY, _RECX. */
int daos_obj_query_key(daos_handle_t oh, daos_handle_t th, uint64_t flags, daos_key_t *dkey, daos_key_t *akey,
		       daos_recx_t *recx, daos_event_t *ev);
int daos_obj_query_max_epoch(daos_handle_t oh, daos_handle_t th, daos_epoch_t *epoch, daos_event_t *ev);

/* Parts in which dkeys can be listed at the same time: *nr is the room, then their number. anchors may be NULL. */
int daos_obj_anchor_split(daos_handle_t oh, uint32_t *nr, daos_anchor_t *anchors);
int daos_obj_anchor_set(daos_handle_t oh, uint32_t index, daos_anchor_t *anchor);
/* An anchor behind a dkey, or an akey of it. dkeys need an object of one shard: -DER_NOTSUPPORTED. */
int daos_obj_key2anchor(daos_handle_t oh, daos_handle_t th, daos_key_t *dkey, daos_key_t *akey, daos_anchor_t *anchor,
			daos_event_t *ev);

/* Compares the replicas of an object with each other (-DER_MISMATCH) and with their checksums (-DER_CSUM), as they are at an
 * epoch. */
int daos_obj_verify(daos_handle_t coh, daos_obj_id_t oid, daos_epoch_t epoch);
/* Not available: -DER_NOSYS. */
int daos_obj_query(daos_handle_t oh, struct daos_obj_attr *oa, d_rank_list_t *ranks, daos_event_t *ev);

/* The objects at a snapshot: -DER_NONEXIST without one. Marks end with the handle. */
int daos_oit_open(daos_handle_t coh, daos_epoch_t epoch, daos_handle_t *oh, daos_event_t *ev);
int daos_oit_close(daos_handle_t oh, daos_event_t *ev);
int daos_oit_list(daos_handle_t oh, daos_obj_id_t *oids, uint32_t *oids_nr, daos_anchor_t *anchor, daos_event_t *ev);
int daos_oit_mark(daos_handle_t oh, daos_obj_id_t oid, d_iov_t *marker, daos_event_t *ev);
int daos_oit_list_unmarked(daos_handle_t oh, daos_obj_id_t *oids, uint32_t *oids_nr, daos_anchor_t *anchor,
			   daos_event_t *ev);
/* Chooses an object (1) or leaves it out (0); marker is NULL without a mark. */
typedef int(daos_oit_filter_cb)(daos_obj_id_t oid, d_iov_t *marker);
int daos_oit_list_filter(daos_handle_t oh, daos_obj_id_t *oids, uint32_t *oids_nr, daos_anchor_t *anchor,
			 daos_oit_filter_cb filter, daos_event_t *ev);

/* Kind of redundancy of an object's class. */
static inline uint32_t
daos_obj_id2ord(daos_obj_id_t oid)
{
	return (uint32_t)((oid.hi & OID_FMT_CLASS_MASK) >> OID_FMT_CLASS_SHIFT);
}

/* Goes on to another id of the program's 32 bits; all of them come before one comes again. */
static inline void
daos_obj_oid_cycle(daos_obj_id_t *oid)
{
	/* A prime number. */
	oid->hi = (oid->hi + 999999937) & UINT32_MAX;
}

#ifdef __cplusplus
}
#endif

#endif
