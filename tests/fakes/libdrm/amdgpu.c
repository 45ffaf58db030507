/* The calls of libdrm and libdrm_amdgpu that pyamdgpuinfo makes when it opens a card, for LD_PRELOAD:
 * its wheel bundles both libraries under names of their own, so no library path reaches them.
 * Every node is a Radeon 8060S. Layouts are those of xf86drm.h and amdgpu_drm.h.
 *
 * /dev/dri is the folder that FAKE_DRI names, for listing, looking and opening: so no test needs the right to
 * mount anything.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { INFO_VRAM_GTT = 0x14 };

static const char *moved(const char *path, char *into, size_t size) {
    const char *folder = getenv("FAKE_DRI");
    if (folder == NULL || strncmp(path, "/dev/dri", 8) != 0) return path;
    snprintf(into, size, "%s%s", folder, path + 8);
    return into;
}

DIR *opendir(const char *path) {
    char into[4096];
    DIR *(*next)(const char *) = (DIR * (*)(const char *)) dlsym(RTLD_NEXT, "opendir");
    return next(moved(path, into, sizeof into));
}

int open64(const char *path, int flags, ...) {
    char into[4096];
    int (*next)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open64");
    va_list rest;
    va_start(rest, flags);
    int mode = flags & O_CREAT ? va_arg(rest, int) : 0;
    va_end(rest);
    return next(moved(path, into, sizeof into), flags, mode);
}

int stat64(const char *path, struct stat64 *found) {
    char into[4096];
    int (*next)(const char *, struct stat64 *) =
        (int (*)(const char *, struct stat64 *))dlsym(RTLD_NEXT, "stat64");
    return next(moved(path, into, sizeof into), found);
}

typedef struct {
    int major, minor, patch;
    int name_length;
    char *name;
    int date_length;
    char *date;
    int description_length;
    char *description;
} Version;

Version *drmGetVersion(int fd) {
    (void)fd;
    Version *version = calloc(1, sizeof *version);
    version->major = 3;
    version->name = strdup("amdgpu");
    version->name_length = (int)strlen(version->name);
    return version;
}

void drmFreeVersion(Version *version) {
    free(version->name);
    free(version);
}

int amdgpu_device_initialize(int fd, uint32_t *major, uint32_t *minor, void **device) {
    static int card;
    (void)fd;
    *major = 3;
    *minor = 64;
    *device = &card;
    return 0;
}

int amdgpu_device_deinitialize(void *device) {
    (void)device;
    return 0;
}

const char *amdgpu_get_marketing_name(void *device) {
    (void)device;
    return "AMD Radeon 8060S Graphics";
}

int amdgpu_query_info(void *device, unsigned what, unsigned size, void *value) {
    (void)device;
    memset(value, 0, size);
    if (what == INFO_VRAM_GTT && size >= 3 * sizeof(uint64_t)) {
        uint64_t sizes[] = {512ULL << 20, 512ULL << 20, 62ULL << 30}; /* VRAM, its visible part, GTT */
        memcpy(value, sizes, sizeof sizes);
    }
    return 0;
}

int amdgpu_query_gpu_info(void *device, void *info) {
    (void)device;
    (void)info;
    return 0;
}

int amdgpu_query_sensor_info(void *device, unsigned sensor, unsigned size, void *value) {
    (void)device;
    (void)sensor;
    memset(value, 0, size);
    return 0;
}

int amdgpu_read_mm_registers(void *device, unsigned offset, unsigned count, uint32_t instance,
                             uint32_t flags, uint32_t *values) {
    (void)device;
    (void)offset;
    (void)instance;
    (void)flags;
    memset(values, 0, count * sizeof *values);
    return 0;
}
