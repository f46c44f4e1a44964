/* SPDX-License-Identifier: Apache-2.0 */
/* What programs take from DAOS's inner headers. */
#ifndef WEIR_DAOS_COMMON_H
#define WEIR_DAOS_COMMON_H

#include <daos_errno.h>
#include <daos_types.h>
#include <gurt/common.h>
#include <gurt/debug.h>
#include <gurt/hash.h>
#include <gurt/list.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The errno of a return code: 0 of 0, EINVAL of a positive one, EIO of one without an errno of its own. */
int daos_der2errno(int rc);

#ifdef __cplusplus
}
#endif

#endif
