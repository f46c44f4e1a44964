/* SPDX-License-Identifier: Apache-2.0 */
/* What test programs include. The functions of DAOS's test library aren't there. */
#ifndef WEIR_DAOS_TESTS_LIB_H
#define WEIR_DAOS_TESTS_LIB_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <daos.h>
#include <daos/common.h>
#include <gurt/common.h>

#endif
