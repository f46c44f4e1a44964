/* SPDX-License-Identifier: Apache-2.0 */
/* Filters that run where data is: types. The functions on them aren't there yet. */
#ifndef WEIR_DAOS_PIPELINE_H
#define WEIR_DAOS_PIPELINE_H

#include <daos_obj.h>
#include <daos_types.h>

/* An operator, a key or a constant of a filter. */
typedef struct {
	/* Names of the kind of part and of the type of its data. */
	d_iov_t part_type;
	d_iov_t data_type;
	uint32_t num_operands;
	daos_key_t akey;
	size_t num_constants;
	d_iov_t *constant;
	/* Which bytes, or which records of an array, are looked at. */
	size_t data_offset;
	size_t data_len;
} daos_filter_part_t;

/* One filter: parts in prefix order. */
typedef struct {
	d_iov_t filter_type;
	uint32_t num_parts;
	daos_filter_part_t **parts;
} daos_filter_t;

/* Filters in a row, and aggregations at its end. */
typedef struct {
	uint64_t version;
	uint32_t num_filters;
	daos_filter_t **filters;
	uint32_t num_aggr_filters;
	daos_filter_t **aggr_filters;
} daos_pipeline_t;

/* How much a run looked at. */
typedef struct {
	uint64_t nr_objs;
	uint64_t nr_dkeys;
	uint64_t nr_akeys;
} daos_pipeline_stats_t;

#endif
