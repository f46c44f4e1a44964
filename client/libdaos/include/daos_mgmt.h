/* SPDX-License-Identifier: Apache-2.0 */
/* Management: values. The functions aren't there yet. */
#ifndef WEIR_DAOS_MGMT_H
#define WEIR_DAOS_MGMT_H

#include <daos_event.h>
#include <daos_types.h>

/* Parameters of engines that tests set. */
enum {
	DMG_KEY_FAIL_LOC = 0,
	DMG_KEY_FAIL_VALUE = 1,
	DMG_KEY_FAIL_NUM = 2,
	DMG_KEY_NUM = 3
};

#endif
