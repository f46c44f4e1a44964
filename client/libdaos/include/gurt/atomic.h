/* SPDX-License-Identifier: Apache-2.0 */
/* Atomic variables with the orders that programs ask for by name. */
#ifndef WEIR_GURT_ATOMIC_H
#define WEIR_GURT_ATOMIC_H

#include <stdatomic.h>

/* Marks a variable that is used by the calls below. */
#define ATOMIC _Atomic

#define atomic_load_relaxed(ptr) atomic_load_explicit((ptr), memory_order_relaxed)
#define atomic_load_consume(ptr) atomic_load_explicit((ptr), memory_order_consume)
#define atomic_store_relaxed(ptr, value) atomic_store_explicit((ptr), (value), memory_order_relaxed)
#define atomic_store_release(ptr, value) atomic_store_explicit((ptr), (value), memory_order_release)
#define atomic_fetch_add_relaxed(ptr, value) atomic_fetch_add_explicit((ptr), (value), memory_order_relaxed)
#define atomic_fetch_sub_relaxed(ptr, value) atomic_fetch_sub_explicit((ptr), (value), memory_order_relaxed)
#define atomic_fetch_sub_release(ptr, value) atomic_fetch_sub_explicit((ptr), (value), memory_order_release)

#endif
