/* SPDX-License-Identifier: Apache-2.0 */
/* Object classes: how objects are spread and protected. */
#ifndef WEIR_DAOS_OBJ_CLASS_H
#define WEIR_DAOS_OBJ_CLASS_H

#include <sys/types.h>

#include <daos_types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Number of an object class: redundancy code and number of groups. */
typedef uint32_t daos_oclass_id_t;
typedef uint16_t daos_oclass_hints_t;

#define OC_REDUN_SHIFT 24
#define MAX_NUM_GROUPS 0xffff
#define MAX_OBJ_CLASS_NAME_LEN 24

/* Redundancy codes. */
enum daos_obj_redun {
	OR_RP_1 = 1,
	OR_RP_2 = 8,
	OR_RP_3 = 9,
	OR_RP_4 = 10,
	OR_RP_5 = 11,
	OR_RP_6 = 12,
	OR_RP_8 = 13,
	OR_RP_12 = 14,
	OR_RP_16 = 15,
	OR_RP_24 = 16,
	OR_RP_32 = 17,
	OR_RP_48 = 18,
	OR_RP_64 = 19,
	OR_RP_128 = 20,
	OR_RS_2P1 = 32,
	OR_RS_2P2 = 33,
	OR_RS_4P1 = 34,
	OR_RS_4P2 = 35,
	OR_RS_8P1 = 36,
	OR_RS_8P2 = 37,
	OR_RS_16P1 = 38,
	OR_RS_16P2 = 39,
	OR_RS_4P3 = 40,
	OR_RS_8P3 = 41,
	OR_RS_16P3 = 42
};

/* Classes that are chosen when an id is generated; OC_UNKNOWN by the container's default. */
enum {
	OC_UNKNOWN = 0,
	OC_TINY = 51,
	OC_SMALL = 52,
	OC_LARGE = 53,
	OC_MAX = 54,
	OC_RP_TINY = 60,
	OC_RP_SMALL = 61,
	OC_RP_LARGE = 62,
	OC_RP_MAX = 63,
	OC_RP_SF_TINY = 70,
	OC_RP_SF_SMALL = 71,
	OC_RP_SF_LARGE = 72,
	OC_RP_SF_MAX = 73,
	OC_RP_XSF = 80,
	OC_EC_TINY = 100,
	OC_EC_SMALL = 101,
	OC_EC_LARGE = 102,
	OC_EC_MAX = 103
};

#define OBJ_CLASS_DEF(redun, grp_nr) (((uint32_t)(redun) << OC_REDUN_SHIFT) | (grp_nr))

/* Classes that have names. */
enum {
	OC_S1 = ((OR_RP_1 << OC_REDUN_SHIFT) | 1),
	OC_S2 = ((OR_RP_1 << OC_REDUN_SHIFT) | 2),
	OC_S4 = ((OR_RP_1 << OC_REDUN_SHIFT) | 4),
	OC_S6 = ((OR_RP_1 << OC_REDUN_SHIFT) | 6),
	OC_S8 = ((OR_RP_1 << OC_REDUN_SHIFT) | 8),
	OC_S12 = ((OR_RP_1 << OC_REDUN_SHIFT) | 12),
	OC_S16 = ((OR_RP_1 << OC_REDUN_SHIFT) | 16),
	OC_S32 = ((OR_RP_1 << OC_REDUN_SHIFT) | 32),
	OC_SX = ((OR_RP_1 << OC_REDUN_SHIFT) | MAX_NUM_GROUPS),
	OC_RP_2G1 = ((OR_RP_2 << OC_REDUN_SHIFT) | 1),
	OC_RP_2G2 = ((OR_RP_2 << OC_REDUN_SHIFT) | 2),
	OC_RP_2G4 = ((OR_RP_2 << OC_REDUN_SHIFT) | 4),
	OC_RP_2G6 = ((OR_RP_2 << OC_REDUN_SHIFT) | 6),
	OC_RP_2G8 = ((OR_RP_2 << OC_REDUN_SHIFT) | 8),
	OC_RP_2G12 = ((OR_RP_2 << OC_REDUN_SHIFT) | 12),
	OC_RP_2G16 = ((OR_RP_2 << OC_REDUN_SHIFT) | 16),
	OC_RP_2G32 = ((OR_RP_2 << OC_REDUN_SHIFT) | 32),
	OC_RP_2GX = ((OR_RP_2 << OC_REDUN_SHIFT) | MAX_NUM_GROUPS),
	OC_RP_3G1 = ((OR_RP_3 << OC_REDUN_SHIFT) | 1),
	OC_RP_3G2 = ((OR_RP_3 << OC_REDUN_SHIFT) | 2),
	OC_RP_3G4 = ((OR_RP_3 << OC_REDUN_SHIFT) | 4),
	OC_RP_3G6 = ((OR_RP_3 << OC_REDUN_SHIFT) | 6),
	OC_RP_3G8 = ((OR_RP_3 << OC_REDUN_SHIFT) | 8),
	OC_RP_3G12 = ((OR_RP_3 << OC_REDUN_SHIFT) | 12),
	OC_RP_3G16 = ((OR_RP_3 << OC_REDUN_SHIFT) | 16),
	OC_RP_3G32 = ((OR_RP_3 << OC_REDUN_SHIFT) | 32),
	OC_RP_3GX = ((OR_RP_3 << OC_REDUN_SHIFT) | MAX_NUM_GROUPS),
	OC_RP_4G1 = ((OR_RP_4 << OC_REDUN_SHIFT) | 1),
	OC_RP_4G2 = ((OR_RP_4 << OC_REDUN_SHIFT) | 2),
	OC_RP_4G4 = ((OR_RP_4 << OC_REDUN_SHIFT) | 4),
	OC_RP_4G6 = ((OR_RP_4 << OC_REDUN_SHIFT) | 6),
	OC_RP_4G8 = ((OR_RP_4 << OC_REDUN_SHIFT) | 8),
	OC_RP_4G12 = ((OR_RP_4 << OC_REDUN_SHIFT) | 12),
	OC_RP_4G16 = ((OR_RP_4 << OC_REDUN_SHIFT) | 16),
	OC_RP_4G32 = ((OR_RP_4 << OC_REDUN_SHIFT) | 32),
	OC_RP_4GX = ((OR_RP_4 << OC_REDUN_SHIFT) | MAX_NUM_GROUPS),
	OC_RP_5G1 = ((OR_RP_5 << OC_REDUN_SHIFT) | 1),
	OC_RP_5G2 = ((OR_RP_5 << OC_REDUN_SHIFT) | 2),
	OC_RP_5G4 = ((OR_RP_5 << OC_REDUN_SHIFT) | 4),
	OC_RP_5G6 = ((OR_RP_5 << OC_REDUN_SHIFT) | 6),
	OC_RP_5G8 = ((OR_RP_5 << OC_REDUN_SHIFT) | 8),
	OC_RP_5G12 = ((OR_RP_5 << OC_REDUN_SHIFT) | 12),
	OC_RP_5G16 = ((OR_RP_5 << OC_REDUN_SHIFT) | 16),
	OC_RP_5G32 = ((OR_RP_5 << OC_REDUN_SHIFT) | 32),
	OC_RP_5GX = ((OR_RP_5 << OC_REDUN_SHIFT) | MAX_NUM_GROUPS),
	OC_RP_6G1 = ((OR_RP_6 << OC_REDUN_SHIFT) | 1),
	OC_RP_6G2 = ((OR_RP_6 << OC_REDUN_SHIFT) | 2),
	OC_RP_6G4 = ((OR_RP_6 << OC_REDUN_SHIFT) | 4),
	OC_RP_6G6 = ((OR_RP_6 << OC_REDUN_SHIFT) | 6),
	OC_RP_6G8 = ((OR_RP_6 << OC_REDUN_SHIFT) | 8),
	OC_RP_6G12 = ((OR_RP_6 << OC_REDUN_SHIFT) | 12),
	OC_RP_6G16 = ((OR_RP_6 << OC_REDUN_SHIFT) | 16),
	OC_RP_6G32 = ((OR_RP_6 << OC_REDUN_SHIFT) | 32),
	OC_RP_6GX = ((OR_RP_6 << OC_REDUN_SHIFT) | MAX_NUM_GROUPS),
	OC_RP_8G1 = ((OR_RP_8 << OC_REDUN_SHIFT) | 1),
	OC_RP_8G2 = ((OR_RP_8 << OC_REDUN_SHIFT) | 2),
	OC_RP_8G4 = ((OR_RP_8 << OC_REDUN_SHIFT) | 4),
	OC_RP_8G6 = ((OR_RP_8 << OC_REDUN_SHIFT) | 6),
	OC_RP_8G8 = ((OR_RP_8 << OC_REDUN_SHIFT) | 8),
	OC_RP_8G12 = ((OR_RP_8 << OC_REDUN_SHIFT) | 12),
	OC_RP_8G16 = ((OR_RP_8 << OC_REDUN_SHIFT) | 16),
	OC_RP_8G32 = ((OR_RP_8 << OC_REDUN_SHIFT) | 32),
	OC_RP_8GX = ((OR_RP_8 << OC_REDUN_SHIFT) | MAX_NUM_GROUPS),
	OC_RP_12G1 = ((OR_RP_12 << OC_REDUN_SHIFT) | 1),
	OC_RP_12G2 = ((OR_RP_12 << OC_REDUN_SHIFT) | 2),
	OC_RP_12G4 = ((OR_RP_12 << OC_REDUN_SHIFT) | 4),
	OC_RP_12G6 = ((OR_RP_12 << OC_REDUN_SHIFT) | 6),
	OC_RP_12G8 = ((OR_RP_12 << OC_REDUN_SHIFT) | 8),
	OC_RP_12G12 = ((OR_RP_12 << OC_REDUN_SHIFT) | 12),
	OC_RP_12G16 = ((OR_RP_12 << OC_REDUN_SHIFT) | 16),
	OC_RP_12G32 = ((OR_RP_12 << OC_REDUN_SHIFT) | 32),
	OC_RP_12GX = ((OR_RP_12 << OC_REDUN_SHIFT) | MAX_NUM_GROUPS),
	OC_RP_16G1 = ((OR_RP_16 << OC_REDUN_SHIFT) | 1),
	OC_RP_16G2 = ((OR_RP_16 << OC_REDUN_SHIFT) | 2),
	OC_RP_16G4 = ((OR_RP_16 << OC_REDUN_SHIFT) | 4),
	OC_RP_16G6 = ((OR_RP_16 << OC_REDUN_SHIFT) | 6),
	OC_RP_16G8 = ((OR_RP_16 << OC_REDUN_SHIFT) | 8),
	OC_RP_16G12 = ((OR_RP_16 << OC_REDUN_SHIFT) | 12),
	OC_RP_16G16 = ((OR_RP_16 << OC_REDUN_SHIFT) | 16),
	OC_RP_16G32 = ((OR_RP_16 << OC_REDUN_SHIFT) | 32),
	OC_RP_16GX = ((OR_RP_16 << OC_REDUN_SHIFT) | MAX_NUM_GROUPS),
	OC_RP_24G1 = ((OR_RP_24 << OC_REDUN_SHIFT) | 1),
	OC_RP_24G2 = ((OR_RP_24 << OC_REDUN_SHIFT) | 2),
	OC_RP_24G4 = ((OR_RP_24 << OC_REDUN_SHIFT) | 4),
	OC_RP_24G6 = ((OR_RP_24 << OC_REDUN_SHIFT) | 6),
	OC_RP_24G8 = ((OR_RP_24 << OC_REDUN_SHIFT) | 8),
	OC_RP_24G12 = ((OR_RP_24 << OC_REDUN_SHIFT) | 12),
	OC_RP_24G16 = ((OR_RP_24 << OC_REDUN_SHIFT) | 16),
	OC_RP_24G32 = ((OR_RP_24 << OC_REDUN_SHIFT) | 32),
	OC_RP_24GX = ((OR_RP_24 << OC_REDUN_SHIFT) | MAX_NUM_GROUPS),
	OC_RP_32G1 = ((OR_RP_32 << OC_REDUN_SHIFT) | 1),
	OC_RP_32G2 = ((OR_RP_32 << OC_REDUN_SHIFT) | 2),
	OC_RP_32G4 = ((OR_RP_32 << OC_REDUN_SHIFT) | 4),
	OC_RP_32G6 = ((OR_RP_32 << OC_REDUN_SHIFT) | 6),
	OC_RP_32G8 = ((OR_RP_32 << OC_REDUN_SHIFT) | 8),
	OC_RP_32G12 = ((OR_RP_32 << OC_REDUN_SHIFT) | 12),
	OC_RP_32G16 = ((OR_RP_32 << OC_REDUN_SHIFT) | 16),
	OC_RP_32G32 = ((OR_RP_32 << OC_REDUN_SHIFT) | 32),
	OC_RP_32GX = ((OR_RP_32 << OC_REDUN_SHIFT) | MAX_NUM_GROUPS),
	OC_RP_48G1 = ((OR_RP_48 << OC_REDUN_SHIFT) | 1),
	OC_RP_48G2 = ((OR_RP_48 << OC_REDUN_SHIFT) | 2),
	OC_RP_48G4 = ((OR_RP_48 << OC_REDUN_SHIFT) | 4),
	OC_RP_48G6 = ((OR_RP_48 << OC_REDUN_SHIFT) | 6),
	OC_RP_48G8 = ((OR_RP_48 << OC_REDUN_SHIFT) | 8),
	OC_RP_48G12 = ((OR_RP_48 << OC_REDUN_SHIFT) | 12),
	OC_RP_48G16 = ((OR_RP_48 << OC_REDUN_SHIFT) | 16),
	OC_RP_48G32 = ((OR_RP_48 << OC_REDUN_SHIFT) | 32),
	OC_RP_48GX = ((OR_RP_48 << OC_REDUN_SHIFT) | MAX_NUM_GROUPS),
	OC_RP_64G1 = ((OR_RP_64 << OC_REDUN_SHIFT) | 1),
	OC_RP_64G2 = ((OR_RP_64 << OC_REDUN_SHIFT) | 2),
	OC_RP_64G4 = ((OR_RP_64 << OC_REDUN_SHIFT) | 4),
	OC_RP_64G6 = ((OR_RP_64 << OC_REDUN_SHIFT) | 6),
	OC_RP_64G8 = ((OR_RP_64 << OC_REDUN_SHIFT) | 8),
	OC_RP_64G12 = ((OR_RP_64 << OC_REDUN_SHIFT) | 12),
	OC_RP_64G16 = ((OR_RP_64 << OC_REDUN_SHIFT) | 16),
	OC_RP_64G32 = ((OR_RP_64 << OC_REDUN_SHIFT) | 32),
	OC_RP_64GX = ((OR_RP_64 << OC_REDUN_SHIFT) | MAX_NUM_GROUPS),
	OC_RP_128G1 = ((OR_RP_128 << OC_REDUN_SHIFT) | 1),
	OC_RP_128G2 = ((OR_RP_128 << OC_REDUN_SHIFT) | 2),
	OC_RP_128G4 = ((OR_RP_128 << OC_REDUN_SHIFT) | 4),
	OC_RP_128G6 = ((OR_RP_128 << OC_REDUN_SHIFT) | 6),
	OC_RP_128G8 = ((OR_RP_128 << OC_REDUN_SHIFT) | 8),
	OC_RP_128G12 = ((OR_RP_128 << OC_REDUN_SHIFT) | 12),
	OC_RP_128G16 = ((OR_RP_128 << OC_REDUN_SHIFT) | 16),
	OC_RP_128G32 = ((OR_RP_128 << OC_REDUN_SHIFT) | 32),
	OC_RP_128GX = ((OR_RP_128 << OC_REDUN_SHIFT) | MAX_NUM_GROUPS),
	OC_EC_2P1G1 = ((OR_RS_2P1 << OC_REDUN_SHIFT) | 1),
	OC_EC_2P1G2 = ((OR_RS_2P1 << OC_REDUN_SHIFT) | 2),
	OC_EC_2P1G4 = ((OR_RS_2P1 << OC_REDUN_SHIFT) | 4),
	OC_EC_2P1G6 = ((OR_RS_2P1 << OC_REDUN_SHIFT) | 6),
	OC_EC_2P1G8 = ((OR_RS_2P1 << OC_REDUN_SHIFT) | 8),
	OC_EC_2P1G12 = ((OR_RS_2P1 << OC_REDUN_SHIFT) | 12),
	OC_EC_2P1G16 = ((OR_RS_2P1 << OC_REDUN_SHIFT) | 16),
	OC_EC_2P1G32 = ((OR_RS_2P1 << OC_REDUN_SHIFT) | 32),
	OC_EC_2P1GX = ((OR_RS_2P1 << OC_REDUN_SHIFT) | MAX_NUM_GROUPS),
	OC_EC_2P2G1 = ((OR_RS_2P2 << OC_REDUN_SHIFT) | 1),
	OC_EC_2P2G2 = ((OR_RS_2P2 << OC_REDUN_SHIFT) | 2),
	OC_EC_2P2G4 = ((OR_RS_2P2 << OC_REDUN_SHIFT) | 4),
	OC_EC_2P2G6 = ((OR_RS_2P2 << OC_REDUN_SHIFT) | 6),
	OC_EC_2P2G8 = ((OR_RS_2P2 << OC_REDUN_SHIFT) | 8),
	OC_EC_2P2G12 = ((OR_RS_2P2 << OC_REDUN_SHIFT) | 12),
	OC_EC_2P2G16 = ((OR_RS_2P2 << OC_REDUN_SHIFT) | 16),
	OC_EC_2P2G32 = ((OR_RS_2P2 << OC_REDUN_SHIFT) | 32),
	OC_EC_2P2GX = ((OR_RS_2P2 << OC_REDUN_SHIFT) | MAX_NUM_GROUPS),
	OC_EC_4P1G1 = ((OR_RS_4P1 << OC_REDUN_SHIFT) | 1),
	OC_EC_4P1G2 = ((OR_RS_4P1 << OC_REDUN_SHIFT) | 2),
	OC_EC_4P1G4 = ((OR_RS_4P1 << OC_REDUN_SHIFT) | 4),
	OC_EC_4P1G6 = ((OR_RS_4P1 << OC_REDUN_SHIFT) | 6),
	OC_EC_4P1G8 = ((OR_RS_4P1 << OC_REDUN_SHIFT) | 8),
	OC_EC_4P1G12 = ((OR_RS_4P1 << OC_REDUN_SHIFT) | 12),
	OC_EC_4P1G16 = ((OR_RS_4P1 << OC_REDUN_SHIFT) | 16),
	OC_EC_4P1G32 = ((OR_RS_4P1 << OC_REDUN_SHIFT) | 32),
	OC_EC_4P1GX = ((OR_RS_4P1 << OC_REDUN_SHIFT) | MAX_NUM_GROUPS),
	OC_EC_4P2G1 = ((OR_RS_4P2 << OC_REDUN_SHIFT) | 1),
	OC_EC_4P2G2 = ((OR_RS_4P2 << OC_REDUN_SHIFT) | 2),
	OC_EC_4P2G4 = ((OR_RS_4P2 << OC_REDUN_SHIFT) | 4),
	OC_EC_4P2G6 = ((OR_RS_4P2 << OC_REDUN_SHIFT) | 6),
	OC_EC_4P2G8 = ((OR_RS_4P2 << OC_REDUN_SHIFT) | 8),
	OC_EC_4P2G12 = ((OR_RS_4P2 << OC_REDUN_SHIFT) | 12),
	OC_EC_4P2G16 = ((OR_RS_4P2 << OC_REDUN_SHIFT) | 16),
	OC_EC_4P2G32 = ((OR_RS_4P2 << OC_REDUN_SHIFT) | 32),
	OC_EC_4P2GX = ((OR_RS_4P2 << OC_REDUN_SHIFT) | MAX_NUM_GROUPS),
	OC_EC_8P1G1 = ((OR_RS_8P1 << OC_REDUN_SHIFT) | 1),
	OC_EC_8P1G2 = ((OR_RS_8P1 << OC_REDUN_SHIFT) | 2),
	OC_EC_8P1G4 = ((OR_RS_8P1 << OC_REDUN_SHIFT) | 4),
	OC_EC_8P1G6 = ((OR_RS_8P1 << OC_REDUN_SHIFT) | 6),
	OC_EC_8P1G8 = ((OR_RS_8P1 << OC_REDUN_SHIFT) | 8),
	OC_EC_8P1G12 = ((OR_RS_8P1 << OC_REDUN_SHIFT) | 12),
	OC_EC_8P1G16 = ((OR_RS_8P1 << OC_REDUN_SHIFT) | 16),
	OC_EC_8P1G32 = ((OR_RS_8P1 << OC_REDUN_SHIFT) | 32),
	OC_EC_8P1GX = ((OR_RS_8P1 << OC_REDUN_SHIFT) | MAX_NUM_GROUPS),
	OC_EC_8P2G1 = ((OR_RS_8P2 << OC_REDUN_SHIFT) | 1),
	OC_EC_8P2G2 = ((OR_RS_8P2 << OC_REDUN_SHIFT) | 2),
	OC_EC_8P2G4 = ((OR_RS_8P2 << OC_REDUN_SHIFT) | 4),
	OC_EC_8P2G6 = ((OR_RS_8P2 << OC_REDUN_SHIFT) | 6),
	OC_EC_8P2G8 = ((OR_RS_8P2 << OC_REDUN_SHIFT) | 8),
	OC_EC_8P2G12 = ((OR_RS_8P2 << OC_REDUN_SHIFT) | 12),
	OC_EC_8P2G16 = ((OR_RS_8P2 << OC_REDUN_SHIFT) | 16),
	OC_EC_8P2G32 = ((OR_RS_8P2 << OC_REDUN_SHIFT) | 32),
	OC_EC_8P2GX = ((OR_RS_8P2 << OC_REDUN_SHIFT) | MAX_NUM_GROUPS),
	OC_EC_16P1G1 = ((OR_RS_16P1 << OC_REDUN_SHIFT) | 1),
	OC_EC_16P1G2 = ((OR_RS_16P1 << OC_REDUN_SHIFT) | 2),
	OC_EC_16P1G4 = ((OR_RS_16P1 << OC_REDUN_SHIFT) | 4),
	OC_EC_16P1G6 = ((OR_RS_16P1 << OC_REDUN_SHIFT) | 6),
	OC_EC_16P1G8 = ((OR_RS_16P1 << OC_REDUN_SHIFT) | 8),
	OC_EC_16P1G12 = ((OR_RS_16P1 << OC_REDUN_SHIFT) | 12),
	OC_EC_16P1G16 = ((OR_RS_16P1 << OC_REDUN_SHIFT) | 16),
	OC_EC_16P1G32 = ((OR_RS_16P1 << OC_REDUN_SHIFT) | 32),
	OC_EC_16P1GX = ((OR_RS_16P1 << OC_REDUN_SHIFT) | MAX_NUM_GROUPS),
	OC_EC_16P2G1 = ((OR_RS_16P2 << OC_REDUN_SHIFT) | 1),
	OC_EC_16P2G2 = ((OR_RS_16P2 << OC_REDUN_SHIFT) | 2),
	OC_EC_16P2G4 = ((OR_RS_16P2 << OC_REDUN_SHIFT) | 4),
	OC_EC_16P2G6 = ((OR_RS_16P2 << OC_REDUN_SHIFT) | 6),
	OC_EC_16P2G8 = ((OR_RS_16P2 << OC_REDUN_SHIFT) | 8),
	OC_EC_16P2G12 = ((OR_RS_16P2 << OC_REDUN_SHIFT) | 12),
	OC_EC_16P2G16 = ((OR_RS_16P2 << OC_REDUN_SHIFT) | 16),
	OC_EC_16P2G32 = ((OR_RS_16P2 << OC_REDUN_SHIFT) | 32),
	OC_EC_16P2GX = ((OR_RS_16P2 << OC_REDUN_SHIFT) | MAX_NUM_GROUPS),
	OC_EC_4P3G1 = ((OR_RS_4P3 << OC_REDUN_SHIFT) | 1),
	OC_EC_4P3G2 = ((OR_RS_4P3 << OC_REDUN_SHIFT) | 2),
	OC_EC_4P3G4 = ((OR_RS_4P3 << OC_REDUN_SHIFT) | 4),
	OC_EC_4P3G6 = ((OR_RS_4P3 << OC_REDUN_SHIFT) | 6),
	OC_EC_4P3G8 = ((OR_RS_4P3 << OC_REDUN_SHIFT) | 8),
	OC_EC_4P3G12 = ((OR_RS_4P3 << OC_REDUN_SHIFT) | 12),
	OC_EC_4P3G16 = ((OR_RS_4P3 << OC_REDUN_SHIFT) | 16),
	OC_EC_4P3G32 = ((OR_RS_4P3 << OC_REDUN_SHIFT) | 32),
	OC_EC_4P3GX = ((OR_RS_4P3 << OC_REDUN_SHIFT) | MAX_NUM_GROUPS),
	OC_EC_8P3G1 = ((OR_RS_8P3 << OC_REDUN_SHIFT) | 1),
	OC_EC_8P3G2 = ((OR_RS_8P3 << OC_REDUN_SHIFT) | 2),
	OC_EC_8P3G4 = ((OR_RS_8P3 << OC_REDUN_SHIFT) | 4),
	OC_EC_8P3G6 = ((OR_RS_8P3 << OC_REDUN_SHIFT) | 6),
	OC_EC_8P3G8 = ((OR_RS_8P3 << OC_REDUN_SHIFT) | 8),
	OC_EC_8P3G12 = ((OR_RS_8P3 << OC_REDUN_SHIFT) | 12),
	OC_EC_8P3G16 = ((OR_RS_8P3 << OC_REDUN_SHIFT) | 16),
	OC_EC_8P3G32 = ((OR_RS_8P3 << OC_REDUN_SHIFT) | 32),
	OC_EC_8P3GX = ((OR_RS_8P3 << OC_REDUN_SHIFT) | MAX_NUM_GROUPS),
	OC_EC_16P3G1 = ((OR_RS_16P3 << OC_REDUN_SHIFT) | 1),
	OC_EC_16P3G2 = ((OR_RS_16P3 << OC_REDUN_SHIFT) | 2),
	OC_EC_16P3G4 = ((OR_RS_16P3 << OC_REDUN_SHIFT) | 4),
	OC_EC_16P3G6 = ((OR_RS_16P3 << OC_REDUN_SHIFT) | 6),
	OC_EC_16P3G8 = ((OR_RS_16P3 << OC_REDUN_SHIFT) | 8),
	OC_EC_16P3G12 = ((OR_RS_16P3 << OC_REDUN_SHIFT) | 12),
	OC_EC_16P3G16 = ((OR_RS_16P3 << OC_REDUN_SHIFT) | 16),
	OC_EC_16P3G32 = ((OR_RS_16P3 << OC_REDUN_SHIFT) | 32),
	OC_EC_16P3GX = ((OR_RS_16P3 << OC_REDUN_SHIFT) | MAX_NUM_GROUPS),
	/* Numbers from here on are no classes. */
	OC_RESERVED = 1 << 30
};

enum daos_obj_schema {
	DAOS_OS_SINGLE = 0,
	DAOS_OS_STRIPED = 1,
	DAOS_OS_DYN_STRIPED = 2,
	DAOS_OS_DYN_CHUNKED = 3
};

enum daos_obj_resil {
	DAOS_RES_EC = 0,
	DAOS_RES_REPL = 1
};

/* Attributes of a class of a program's own; there are none. */
struct daos_oclass_attr {
	enum daos_obj_schema ca_schema;
	enum daos_obj_resil ca_resil;
	unsigned int ca_resil_degree;
	/* Groups of an object. */
	unsigned int ca_grp_nr;
	union {
		struct daos_rp_attr {
			unsigned int r_proto;
			/* Copies. */
			unsigned int r_num;
		} rp;
		struct daos_ec_attr {
			/* Cells of data and of parity. */
			unsigned short e_k;
			unsigned short e_p;
			/* Bytes of a cell. */
			unsigned int e_len;
		} ec;
	} u;
};

/* A list of classes. */
struct daos_oclass_list {
	uint32_t cl_llen;
	uint32_t cl_cn;
	daos_oclass_id_t *cl_cids;
	struct daos_oclass_attr *cl_cattrs;
};

/* Number of the class of this name, OC_UNKNOWN when there is none. */
int daos_oclass_name2id(const char *name);

/* Name of a class, at most MAX_OBJ_CLASS_NAME_LEN bytes with its NUL: -1 when the number has no meaning. */
int daos_oclass_id2name(daos_oclass_id_t oc_id, char *name);

/* Names of all classes with commas between them, as many as fit in size bytes; returns how many bytes all take. */
ssize_t daos_oclass_names_list(size_t size, char *str);
/* Number of classes that have names. */
int daos_oclass_nr(int opts);

#ifdef __cplusplus
}
#endif

#endif
