/* A libnvidia-ml.so.1 of the few calls that supervisor/devices/nvidia.py makes through pynvml.
 *
 * FAKE_NVML names the machine, or as /path the file that does, and is read anew at every call:
 *   two-cards      an RTX 4090 and an RTX 3060, the larger bus address first, as drivers may list them
 *   no-memory-v2   the same, from a driver that knows only the first form of the memory figures
 *   lost           the same, but the second has fallen off the bus
 *   mig            an H100 cut into two slices, in places 0 and 2
 *   unified        a GB10, whose memory is the host's: no memory figures at all
 *   mismatch       a library newer than the loaded kernel module
 *   not-loaded     a library without the kernel module
 *   hang           a driver that does not come back from its start, for as long as it is that
 * Return codes and layouts are those of nvml.h, CUDA 12.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, NOT_LOADED = 9, UNKNOWN_FUNCTION = 13,
       LOST = 15, MISMATCH = 18 };
enum { CLOCK_SM = 1, CLOCK_MEMORY = 2 };

typedef struct {
    const char *name, *uuid, *bus_id;
    unsigned long long total, reserved, used;
    unsigned bus_bits, memory_mhz, sm_mhz, cores;
} Card;
typedef const Card *Device;
typedef struct { unsigned long long total, free, used; } MemoryV1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} PciInfo;

#define CARD_4090 {"NVIDIA GeForce RTX 4090", "GPU-4090", "00000000:41:00.0", \
    24564ULL << 20, 445ULL << 20, 1000ULL << 20, 384, 10501, 3105, 16384}
#define CARD_3060 {"NVIDIA GeForce RTX 3060", "GPU-3060", "00000000:01:00.0", \
    12288ULL << 20, 300ULL << 20, 0, 192, 7501, 2130, 3584}
static const Card gaming[] = {CARD_4090, CARD_3060};
static const Card h100 = {"NVIDIA H100 80GB HBM3", "GPU-h100", "00000000:C1:00.0",
    81559ULL << 20, 0, 0, 5120, 2619, 1980, 16896};
static const Card slices[] = {
    {"NVIDIA H100 80GB HBM3 MIG 3g.40gb", "MIG-aaaa", "", 40448ULL << 20, 0, 40ULL << 20, 0, 0, 0, 0},
    {"NVIDIA H100 80GB HBM3 MIG 1g.10gb", "MIG-bbbb", "", 9984ULL << 20, 0, 12ULL << 20, 0, 0, 0, 0},
};
static const Card gb10 = {"NVIDIA GB10", "GPU-gb10", "0000000F:01:00.0", 0, 0, 0, 0, 0, 3003, 6144};

static int is(const char *machine) {
    char word[32] = "";
    const char *told = getenv("FAKE_NVML");
    if (told != NULL && told[0] == '/') {
        FILE *file = fopen(told, "r");
        if (file == NULL || fscanf(file, "%31s", word) != 1) word[0] = 0;
        if (file != NULL) fclose(file);
        told = word;
    }
    return told != NULL && strcmp(told, machine) == 0;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (is("hang"))
        while (is("hang")) usleep(20000);
    return is("mismatch") ? MISMATCH : is("not-loaded") ? NOT_LOADED : OK;
}

int nvmlShutdown(void) { return OK; }

const char *nvmlErrorString(int code) {
    switch (code) {
    case LOST: return "GPU is lost";
    case MISMATCH: return "RM has detected an NVML/RM version mismatch.";
    case NOT_LOADED: return "Driver Not Loaded";
    default: return "an error";
    }
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = is("mig") || is("unified") ? 1 : 2;
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device) {
    if (is("lost") && index == 1) return LOST;
    if (is("mig") || is("unified")) {
        *device = is("mig") ? &h100 : &gb10;
        return index == 0 ? OK : INVALID;
    }
    if (index >= 2) return INVALID;
    *device = &gaming[index];
    return OK;
}

int nvmlDeviceGetName(Device device, char *name, unsigned length) {
    snprintf(name, length, "%s", device->name);
    return OK;
}

int nvmlDeviceGetUUID(Device device, char *uuid, unsigned length) {
    snprintf(uuid, length, "%s", device->uuid);
    return OK;
}

int nvmlDeviceGetPciInfo_v3(Device device, PciInfo *info) {
    memset(info, 0, sizeof *info);
    snprintf(info->bus_id, sizeof info->bus_id, "%s", device->bus_id);
    return OK;
}

int nvmlDeviceGetMemoryInfo(Device device, MemoryV1 *memory) {
    if (is("unified")) return NOT_SUPPORTED;
    memory->total = device->total;
    memory->used = device->reserved + device->used; /* v1 counts what the driver reserved as used */
    memory->free = memory->total - memory->used;
    return OK;
}

int nvmlDeviceGetMemoryInfo_v2(Device device, MemoryV2 *memory) {
    if (is("unified")) return NOT_SUPPORTED;
    if (is("no-memory-v2")) return UNKNOWN_FUNCTION;
    memory->total = device->total;
    memory->reserved = device->reserved;
    memory->used = device->used;
    memory->free = memory->total - memory->reserved - memory->used;
    return OK;
}

int nvmlDeviceGetMemoryBusWidth(Device device, unsigned *bits) {
    *bits = device->bus_bits;
    return device->bus_bits ? OK : NOT_SUPPORTED;
}

int nvmlDeviceGetMaxClockInfo(Device device, unsigned kind, unsigned *mhz) {
    *mhz = kind == CLOCK_MEMORY ? device->memory_mhz : kind == CLOCK_SM ? device->sm_mhz : 0;
    return *mhz ? OK : NOT_SUPPORTED;
}

int nvmlDeviceGetNumGpuCores(Device device, unsigned *cores) {
    *cores = device->cores;
    return *cores ? OK : NOT_SUPPORTED;
}

int nvmlDeviceGetMigMode(Device device, unsigned *current, unsigned *pending) {
    if (device != &h100) return NOT_SUPPORTED;
    *current = *pending = 1;
    return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(Device device, unsigned *count) {
    (void)device;
    *count = 7;
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device device, unsigned index, Device *slice) {
    (void)device;
    if (index != 0 && index != 2) return NOT_FOUND;
    *slice = &slices[index / 2];
    return OK;
}
