/*
 * What endpoints do.
 */
#ifndef WEIR_TEST_ENDPOINT_H
#define WEIR_TEST_ENDPOINT_H

#include "double.h"

/* Who is at a place of a virtual network. */
struct endpoint *endpoint_at(uint32_t place, uint16_t vni);

extern struct fi_ops_msg message_ops;
extern struct fi_ops_rma transfer_ops;

#endif
