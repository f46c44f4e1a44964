#ifndef WEIR_VERBS_H
#define WEIR_VERBS_H

#include <stdint.h>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_eq.h>

/* What stands for the call that failed where the library keeps registrations. */
#define WEIR_KEEPS_REGISTRATIONS "fi_mr_reg (twice)"

/*
 * Has the endpoint of an offer listen where it should: for an address of loopback the provider takes one of a device's, and
 * forgets the port.
 */
void weir_verbs_set_port(struct fi_info *info, const char *service);

/* The accesses that memory is registered for, without those that peers are given beyond what was asked for. */
uint64_t weir_verbs_access(const struct fi_info *info, uint64_t access);

/* 0 for a domain of another provider, or one whose registrations end when they are closed. */
int weir_verbs_check(const struct fi_info *info, struct fid_domain *domain);

/* The error of an operation that verbs gives one for almost all that can go wrong, with the status of its work completion. */
int32_t weir_verbs_code(int32_t code, int32_t status);

/* The error of an operation, taken apart as above where it is of verbs. */
int32_t weir_verbs_failure(const struct fi_info *info, const struct fi_cq_err_entry *entry);

#endif
