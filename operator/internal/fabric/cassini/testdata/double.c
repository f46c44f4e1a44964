/* A double of libcxi for tests: the functions that package cassini calls, with the structures of the public headers. Two NICs, cxi0 and
 * a virtual function cxi1, keep their services in the file that WEIR_CXI_DOUBLE names, as the kernel keeps them beyond a process. Every
 * call is written to that name with ".calls". A file with ".busy" lets services be in use, one with ".full" leaves no resources. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEVICES 2
#define SERVICES 64
#define VNIS 4
#define CLASSES 5
#define MEMBERS 2

struct limits { uint16_t most, reserved; };

struct service {
    uint8_t restricted_members : 1, restricted_vnis : 1, restricted_classes : 1, resource_limits : 1, enable : 1, is_system : 1, counter_pool : 2;
    uint8_t valid_vnis;
    uint16_t vnis[VNIS];
    bool classes[CLASSES];
    struct { union { uint32_t user, group, network; } who; enum { NOBODY, USER, GROUP, NETWORK, KINDS } kind; } members[MEMBERS];
    struct limits limits[8];
    unsigned int number;
};

struct info {
    unsigned int number, nid, pid_bits, pid_count, pid_granule, min_free_shift, rendezvous;
    char name[14], driver[9];
    unsigned int vendor, device, revision, proto, platform;
    uint16_t ptes, txqs, tgqs, eqs, cts, acs, tles, les;
    uint16_t pci_domain;
    uint8_t pci_bus, pci_device, pci_function;
    size_t link_mtu, link_speed;
    uint8_t link_state;
    int unicast;
    unsigned int event_queue;
    int version;
    char board[16];
    bool is_virtual;
    int system;
};

struct nic { struct info info; };
struct nics { unsigned int count; struct info info[]; };
struct services { unsigned int count; struct service all[]; };

static int handles;

static void path(char *out, size_t size, const char *suffix) {
    const char *base = getenv("WEIR_CXI_DOUBLE");
    if (!base) abort();
    if (snprintf(out, size, "%s%s", base, suffix) >= (int)size) abort();
}

static void called(const char *name) {
    char file[512];
    path(file, sizeof file, ".calls");
    int f = open(file, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (f < 0 || dprintf(f, "%s\n", name) < 0 || close(f)) abort();
}

static bool there(const char *suffix) {
    char file[512];
    path(file, sizeof file, suffix);
    return access(file, F_OK) == 0;
}

static void load(struct service all[DEVICES][SERVICES]) {
    char file[512];
    path(file, sizeof file, "");
    memset(all, 0, sizeof(struct service[DEVICES][SERVICES]));
    int f = open(file, O_RDONLY);
    if (f >= 0) {
        if (read(f, all, sizeof(struct service[DEVICES][SERVICES])) < 0 || close(f)) abort();
        return;
    }
    for (int d = 0; d < DEVICES; d++) { /* the default service, which a new host software disables */
        all[d][0] = (struct service){.restricted_vnis = 1, .valid_vnis = 2, .vnis = {1, 10}, .number = 1};
    }
}

static void save(struct service all[DEVICES][SERVICES]) {
    char file[512], unfinished[512];
    path(file, sizeof file, "");
    path(unfinished, sizeof unfinished, ".new");
    int f = open(unfinished, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    size_t size = sizeof(struct service[DEVICES][SERVICES]);
    if (f < 0 || write(f, all, size) != (ssize_t)size || close(f) || rename(unfinished, file)) abort();
}

static struct service *find(struct service all[DEVICES][SERVICES], struct nic *nic, unsigned int number) {
    for (int i = 0; number > 0 && i < SERVICES; i++)
        if (all[nic->info.number][i].number == number) return &all[nic->info.number][i];
    return NULL;
}

static int check(const struct service *s) {
    if (!s->restricted_vnis || s->valid_vnis == 0 || s->valid_vnis > VNIS) return -EINVAL;
    for (int i = 0; i < s->valid_vnis; i++)
        if (s->vnis[i] == 0) return -EINVAL;
    for (int i = 0; s->restricted_members && i < MEMBERS; i++)
        if (s->members[i].kind < 0 || s->members[i].kind >= KINDS) return -EINVAL;
    return 0;
}

static void describe(struct info *info, unsigned int number) {
    *info = (struct info){.number = number, .nid = 0x12345 + number, .pci_domain = 0, .pci_bus = 0x21, .pci_device = 0, .pci_function = (uint8_t)number,
        .link_speed = 200000, .link_state = number == 0, .is_virtual = number == 1};
    snprintf(info->name, sizeof info->name, "cxi%u", number);
}

int cxil_get_device_list(struct nics **out) {
    called("get_device_list");
    struct nics *list = calloc(1, sizeof *list + DEVICES * sizeof(struct info));
    if (!list) return -ENOMEM;
    list->count = DEVICES;
    for (unsigned int i = 0; i < DEVICES; i++) describe(&list->info[i], i);
    *out = list;
    handles++;
    return 0;
}

void cxil_free_device_list(struct nics *list) {
    called("free_device_list");
    handles--;
    free(list);
}

int cxil_open_device(uint32_t number, struct nic **out) {
    called("open_device");
    if (number >= DEVICES) return -ENODEV;
    struct nic *nic = calloc(1, sizeof *nic);
    if (!nic) return -ENOMEM;
    describe(&nic->info, number);
    *out = nic;
    handles++;
    return 0;
}

void cxil_close_device(struct nic *nic) {
    called("close_device");
    handles--;
    free(nic);
}

int cxil_alloc_svc(struct nic *nic, const struct service *wanted, void *fail) {
    static struct service all[DEVICES][SERVICES];
    called("alloc_svc");
    (void)fail;
    int wrong = check(wanted);
    if (wrong) return wrong;
    if (there(".full")) return -ENOSPC;
    load(all);
    for (unsigned int i = 0; i < SERVICES; i++) {
        struct service *s = &all[nic->info.number][i];
        if (s->number) continue;
        *s = *wanted;
        s->number = i + 1;
        s->enable = 1;
        save(all);
        return (int)s->number;
    }
    return -ENOSPC;
}

int cxil_update_svc(struct nic *nic, const struct service *wanted, void *fail) {
    static struct service all[DEVICES][SERVICES];
    called("update_svc");
    (void)fail;
    int wrong = check(wanted);
    if (wrong) return wrong;
    load(all);
    struct service *s = find(all, nic, wanted->number);
    if (!s || s->resource_limits != wanted->resource_limits) return -EINVAL;
    if (there(".busy")) return -EBUSY;
    *s = *wanted;
    save(all);
    return 0;
}

int cxil_destroy_svc(struct nic *nic, unsigned int number) {
    static struct service all[DEVICES][SERVICES];
    called("destroy_svc");
    load(all);
    struct service *s = find(all, nic, number);
    if (!s) return -EINVAL;
    if (there(".busy")) return -EBUSY;
    memset(s, 0, sizeof *s);
    save(all);
    return 0;
}

int cxil_get_svc_list(struct nic *nic, struct services **out) {
    static struct service all[DEVICES][SERVICES];
    called("get_svc_list");
    struct services *list = calloc(1, sizeof *list + SERVICES * sizeof(struct service));
    if (!list) return -ENOMEM;
    load(all);
    for (int i = 0; i < SERVICES; i++)
        if (all[nic->info.number][i].number) list->all[list->count++] = all[nic->info.number][i];
    *out = list;
    handles++;
    return 0;
}

void cxil_free_svc_list(struct services *list) {
    called("free_svc_list");
    handles--;
    free(list);
}

/* For the tests: who may use a service, and what has not been given back. */
int double_admits(struct nic *nic, unsigned int number, uint32_t network) {
    static struct service all[DEVICES][SERVICES];
    load(all);
    struct service *s = find(all, nic, number);
    if (!s || !s->enable) return 0;
    if (!s->restricted_members) return 1;
    for (int i = 0; i < MEMBERS; i++)
        if (s->members[i].kind == NETWORK && s->members[i].who.network == network) return 1;
    return 0;
}

int double_classes(struct nic *nic, unsigned int number) {
    static struct service all[DEVICES][SERVICES];
    load(all);
    struct service *s = find(all, nic, number);
    int bits = 0;
    for (int i = 0; s && i < CLASSES; i++) bits |= (!s->restricted_classes || s->classes[i]) << i;
    return bits;
}

int double_handles(void) { return handles; }
