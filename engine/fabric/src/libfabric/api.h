#ifndef WEIR_API_H
#define WEIR_API_H

#include <rdma/fabric.h>

/* The interface version that this code is written against. */
#define WEIR_API FI_VERSION(2, 0)

#endif
