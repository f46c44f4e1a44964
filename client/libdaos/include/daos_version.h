/* SPDX-License-Identifier: Apache-2.0 */
/* Version of the interface. */
#ifndef WEIR_DAOS_VERSION_H
#define WEIR_DAOS_VERSION_H

#define DAOS_API_VERSION_MAJOR 2
#define DAOS_API_VERSION_MINOR 8
#define DAOS_API_VERSION_FIX 0

#define DAOS_VERSION_MAJOR 2
#define DAOS_VERSION_MINOR 8
#define DAOS_VERSION_FIX 100

/* Spelt as programs spell it. */
#define DAOS_VERSION_PROTOCAL 1

#endif
