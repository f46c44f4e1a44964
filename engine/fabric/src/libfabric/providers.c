/*
 * The providers that the library offers.
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <rdma/fabric.h>

#include "api.h"

/*
 * Names of all providers that fi_getinfo offers, stacked ones too, each once. Returns how many there are; those beyond
 * `room` are not written.
 */
int64_t weir_providers(char (*names)[64], uint64_t room)
{
	struct fi_info *list = NULL, *info;
	uint64_t count = 0, at;
	int ret = fi_getinfo(WEIR_API, NULL, NULL, 0, NULL, &list);

	if (ret)
		return ret;
	for (info = list; info; info = info->next) {
		const char *name = info->fabric_attr->prov_name;

		if (!name)
			continue;
		for (at = 0; at < count && at < room && strncmp(names[at], name, sizeof *names - 1); at++)
			;
		if (at < count && at < room)
			continue;
		if (count < room)
			snprintf(names[count], sizeof *names, "%s", name);
		count++;
	}
	fi_freeinfo(list);
	return (int64_t)count;
}
