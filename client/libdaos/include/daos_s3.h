/* SPDX-License-Identifier: Apache-2.0 */
/* Buckets in containers: types and values. The functions on them aren't there. */
#ifndef WEIR_DAOS_S3_H
#define WEIR_DAOS_S3_H

#include <daos_event.h>
#include <daos_fs.h>

/* Limits in bytes, with a NUL where it is a name of a bucket. */
#define DS3_MAX_BUCKET_NAME (DAOS_PROP_LABEL_MAX_LEN + 1)
#define DS3_MAX_KEY DFS_MAX_PATH
#define DS3_MAX_USER_NAME DFS_MAX_NAME

/* Name of the newest version of an object. */
#define DS3_LATEST_INSTANCE "latest"

/* What is open: a pool of buckets, a bucket, an object, a part of an upload. */
typedef struct ds3 ds3_t;
typedef struct ds3_bucket ds3_bucket_t;
typedef struct ds3_obj ds3_obj_t;
typedef struct ds3_part ds3_part_t;

#endif
