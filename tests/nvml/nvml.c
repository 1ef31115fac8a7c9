/* The part of NVML that the agent uses, answered from the scenario that the environment variable NVML_SCENARIO names.
 *
 * The file may be replaced at any time: the next call sees the new world. Special entries:
 *   init            what nvmlInit returns
 *   generation      a number; when it changes every call fails until NVML is shut down and initialised again
 *   errors/FUNC     what FUNC returns; gpus/N/errors/FUNC for one GPU only
 *   hang            a function that does not return while this names it; gpus/N/hang for one GPU only
 *   gpus/N/lost     the GPU has fallen off the bus: not enumerated any more, GPU_IS_LOST for who holds its handle
 *   events          a list that only grows; each is delivered once, to whoever waits
 * What a scenario leaves out is NotSupported.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "scenario.h"

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, NOT_LOADED = 9, TIMEOUT = 10,
       LOST = 15, VERSION = 25, UNKNOWN = 999 };

typedef struct { unsigned gpu; int instance; } device; /* instance: the number of a MIG device, -1 for the GPU itself */
typedef struct { unsigned long long total, free, used; } memory_v1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci;
typedef struct { unsigned pid; unsigned long long memory; unsigned gi, ci; } process;
typedef struct { unsigned pid; unsigned long long at; unsigned sm, mem, enc, dec; } process_sample;
typedef struct { unsigned field, scope; long long at, latency; int type, status; union { double d; unsigned u; unsigned long long ull; } value; } field;
typedef struct { unsigned start, size; } placement;
typedef struct { void *device; unsigned id, profile; placement place; } instance_info;
typedef struct { unsigned version, id, p2p, slices, instances, sms, ce, dec, enc, jpeg, ofa; unsigned long long mib; char name[96]; } profile_info;
typedef struct { unsigned sms, ce, dec, enc, jpeg, ofa, gpu_slices, compute_slices; unsigned long long mib; } attributes;
typedef struct { void *device; unsigned long long type, data; unsigned gi, ci; } event;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int users;
static long long generation;
static int delivered;
static device devices[64][9]; /* handles stay valid for ever, as pointers */

static const char *world(void) { return getenv("NVML_SCENARIO"); }

static void *handle(unsigned gpu, int instance) {
    device *d = &devices[gpu % 64][instance + 1];
    d->gpu = gpu;
    d->instance = instance;
    return d;
}

static int hangs(const char *function, const device *d) {
    const char *all = scenario_text("hang"), *one = d ? scenario_text("gpus/%u/hang", d->gpu) : NULL;
    return (all && !strcmp(all, function)) || (one && !strcmp(one, function));
}

/* Every call begins here: with the lock held and the newest world if it returns OK. */
static int enter(const char *function, const device *d) {
    pthread_mutex_lock(&lock);
    int rc = OK;
    if (scenario_load(world()) < 0) rc = UNKNOWN;
    while (!rc && hangs(function, d)) {
        pthread_mutex_unlock(&lock);
        usleep(5000);
        pthread_mutex_lock(&lock);
        scenario_load(world());
    }
    if (!rc && !users) rc = UNINITIALIZED;
    if (!rc && scenario_number(0, "generation") != generation) rc = NOT_LOADED;
    if (!rc) rc = (int)scenario_number(0, "errors/%s", function);
    if (!rc && d) {
        if (!scenario_text("gpus/%u/uuid", d->gpu)) rc = INVALID;
        else if (scenario_number(0, "gpus/%u/lost", d->gpu)) rc = LOST;
        else rc = (int)scenario_number(0, "gpus/%u/errors/%s", d->gpu, function);
    }
    if (rc) pthread_mutex_unlock(&lock);
    return rc;
}

static int leave(int rc) {
    pthread_mutex_unlock(&lock);
    return rc;
}

#define ENTER(d) int entered = enter(__func__, d); if (entered) return entered
#define SAY(out, size, text) leave(snprintf(out, size, "%s", text) < (int)(size) ? OK : TOO_SMALL)
#define NUMBER(function, type, path)                                          \
    int function(device *d, type *out) {                                      \
        ENTER(d);                                                             \
        if (!scenario_text("gpus/%u/" path, d->gpu)) return leave(NOT_SUPPORTED); \
        *out = (type)scenario_number(0, "gpus/%u/" path, d->gpu);             \
        return leave(OK);                                                     \
    }

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    pthread_mutex_lock(&lock);
    if (scenario_load(world()) < 0) return leave(UNKNOWN);
    int rc = (int)scenario_number(0, "init");
    if (!rc) {
        users++;
        generation = scenario_number(0, "generation");
    }
    return leave(rc);
}

int nvmlShutdown(void) {
    pthread_mutex_lock(&lock);
    if (!users) return leave(UNINITIALIZED);
    users--;
    return leave(OK);
}

int nvmlSystemGetDriverVersion(char *out, unsigned size) { ENTER(NULL); return SAY(out, size, scenario_text("driver")); }
int nvmlSystemGetCudaDriverVersion(int *out) { ENTER(NULL); *out = (int)scenario_number(0, "cuda"); return leave(OK); }

int nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER(NULL);
    *count = 0;
    for (int i = 0; i < scenario_count("gpus"); i++) *count += !scenario_number(0, "gpus/%d/lost", i);
    return leave(OK);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
    ENTER(NULL);
    for (int i = 0; i < scenario_count("gpus"); i++)
        if (!scenario_number(0, "gpus/%d/lost", i) && index-- == 0) {
            *out = handle((unsigned)i, -1);
            return leave(OK);
        }
    return leave(INVALID);
}

int nvmlDeviceGetUUID(device *d, char *out, unsigned size) {
    ENTER(d);
    return d->instance < 0 ? SAY(out, size, scenario_text("gpus/%u/uuid", d->gpu))
                           : SAY(out, size, scenario_text("gpus/%u/mig/devices/%d/uuid", d->gpu, d->instance));
}

int nvmlDeviceGetName(device *d, char *out, unsigned size) {
    ENTER(d);
    char name[96];
    const char *gpu = scenario_text("gpus/%u/name", d->gpu);
    if (d->instance < 0) return SAY(out, size, gpu);
    snprintf(name, sizeof name, "%s MIG %s", gpu, scenario_text("gpus/%u/mig/devices/%d/profile", d->gpu, d->instance));
    return SAY(out, size, name);
}

static int memory(const device *d, const char *what, unsigned long long *out) {
    char path[64];
    if (d->instance < 0) snprintf(path, sizeof path, "gpus/%u/memory/%s", d->gpu, what);
    else snprintf(path, sizeof path, "gpus/%u/mig/devices/%d/memory/%s", d->gpu, d->instance, what);
    *out = (unsigned long long)scenario_number(0, "%s", path);
    return scenario_text("%s", path) != NULL;
}

int nvmlDeviceGetMemoryInfo(device *d, memory_v1 *out) {
    ENTER(d);
    if (!memory(d, "total", &out->total)) return leave(NOT_SUPPORTED);
    memory(d, "used", &out->used);
    out->free = out->total - out->used;
    return leave(OK);
}

int nvmlDeviceGetMemoryInfo_v2(device *d, memory_v2 *out) {
    ENTER(d);
    if (out->version != (sizeof(memory_v2) | 2u << 24)) return leave(VERSION);
    if (!memory(d, "total", &out->total)) return leave(NOT_SUPPORTED);
    memory(d, "used", &out->used);
    memory(d, "reserved", &out->reserved);
    out->free = out->total - out->used - out->reserved;
    return leave(OK);
}

int nvmlDeviceGetCudaComputeCapability(device *d, int *major, int *minor) {
    ENTER(d);
    *major = (int)scenario_number(0, "gpus/%u/cc/0", d->gpu);
    *minor = (int)scenario_number(0, "gpus/%u/cc/1", d->gpu);
    return leave(OK);
}

static void pci_of(pci *out, unsigned gpu) {
    memset(out, 0, sizeof *out);
    out->bus = (unsigned)scenario_number(0, "gpus/%u/bus", gpu);
    snprintf(out->legacy, sizeof out->legacy, "0000:%02X:00.0", out->bus & 0xff);
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", out->bus & 0xff);
}

int nvmlDeviceGetPciInfo_v3(device *d, pci *out) { ENTER(d); pci_of(out, d->gpu); return leave(OK); }
NUMBER(nvmlDeviceGetNumaNodeId, unsigned, "numa")
NUMBER(nvmlDeviceGetMinorNumber, unsigned, "minor")
NUMBER(nvmlDeviceGetPersistenceMode, unsigned, "persistence")
NUMBER(nvmlDeviceGetTemperature_, unsigned, "temperature")
NUMBER(nvmlDeviceGetNumGpuCores, unsigned, "cores")
NUMBER(nvmlDeviceGetPowerUsage, unsigned, "power")
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, "throttle")
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, unsigned, "pages_pending")
NUMBER(nvmlDeviceGetMaxMigDeviceCount, unsigned, "mig/max")

int nvmlDeviceGetTemperature(device *d, int sensor, unsigned *out) {
    ENTER(d);
    leave(OK);
    return sensor == 0 ? nvmlDeviceGetTemperature_(d, out) : INVALID;
}

int nvmlDeviceGetEccMode(device *d, unsigned *current, unsigned *pending) {
    ENTER(d);
    if (!scenario_text("gpus/%u/ecc", d->gpu)) return leave(NOT_SUPPORTED);
    *current = *pending = (unsigned)scenario_number(0, "gpus/%u/ecc", d->gpu);
    return leave(OK);
}

int nvmlDeviceGetTotalEccErrors(device *d, int kind, int counter, unsigned long long *out) {
    ENTER(d);
    if (kind != 1 || counter != 0) return leave(INVALID);
    if (!scenario_text("gpus/%u/uncorrected", d->gpu)) return leave(NOT_SUPPORTED);
    *out = (unsigned long long)scenario_number(0, "gpus/%u/uncorrected", d->gpu);
    return leave(OK);
}

int nvmlDeviceGetRemappedRows(device *d, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    ENTER(d);
    if (!scenario_count("gpus/%u/remapped", d->gpu)) return leave(NOT_SUPPORTED);
    unsigned *out[4] = {corrected, uncorrected, pending, failed};
    for (int i = 0; i < 4; i++) *out[i] = (unsigned)scenario_number(0, "gpus/%u/remapped/%d", d->gpu, i);
    return leave(OK);
}

int nvmlDeviceGetUtilizationRates(device *d, unsigned *out) {
    ENTER(d);
    if (!scenario_count("gpus/%u/utilization", d->gpu)) return leave(NOT_SUPPORTED);
    for (int i = 0; i < 2; i++) out[i] = (unsigned)scenario_number(0, "gpus/%u/utilization/%d", d->gpu, i);
    return leave(OK);
}

int nvmlDeviceGetClockInfo(device *d, unsigned kind, unsigned *out) {
    ENTER(d);
    if (!scenario_text("gpus/%u/clocks/%u", d->gpu, kind)) return leave(NOT_SUPPORTED);
    *out = (unsigned)scenario_number(0, "gpus/%u/clocks/%u", d->gpu, kind);
    return leave(OK);
}

int nvmlDeviceGetMaxClockInfo(device *d, unsigned kind, unsigned *out) {
    ENTER(d);
    if (!scenario_text("gpus/%u/max_clocks/%u", d->gpu, kind)) return leave(NOT_SUPPORTED);
    *out = (unsigned)scenario_number(0, "gpus/%u/max_clocks/%u", d->gpu, kind);
    return leave(OK);
}

int nvmlDeviceGetPcieThroughput(device *d, unsigned counter, unsigned *out) {
    ENTER(d);
    if (!scenario_text("gpus/%u/pcie/%u", d->gpu, counter)) return leave(NOT_SUPPORTED);
    *out = (unsigned)scenario_number(0, "gpus/%u/pcie/%u", d->gpu, counter);
    return leave(OK);
}

int nvmlDeviceGetFieldValues(device *d, int count, field *out) {
    ENTER(d);
    for (int i = 0; i < count; i++) {
        const char *found = scenario_text("gpus/%u/fields/%u", d->gpu, out[i].field);
        out[i].status = found ? OK : NOT_SUPPORTED;
        out[i].type = 3; /* unsigned long long */
        out[i].value.ull = found ? strtoull(found, NULL, 10) : 0;
    }
    return leave(OK);
}

/* NVLink: gpus/N/nvlink lists the other end of every link: the number of a GPU, or -1 for a switch. */
int nvmlDeviceGetNvLinkState(device *d, unsigned link, unsigned *active) {
    ENTER(d);
    if (!scenario_count("gpus/%u/nvlink", d->gpu)) return leave(NOT_SUPPORTED);
    if ((int)link >= scenario_count("gpus/%u/nvlink", d->gpu)) return leave(INVALID);
    *active = 1;
    return leave(OK);
}

int nvmlDeviceGetNvLinkRemoteDeviceType(device *d, unsigned link, unsigned *kind) {
    ENTER(d);
    *kind = scenario_number(-1, "gpus/%u/nvlink/%u", d->gpu, link) < 0 ? 2 : 0;
    return leave(OK);
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(device *d, unsigned link, pci *out) {
    ENTER(d);
    long long peer = scenario_number(-1, "gpus/%u/nvlink/%u", d->gpu, link);
    if (peer >= 0) pci_of(out, (unsigned)peer);
    return leave(OK);
}

int nvmlDeviceGetTopologyCommonAncestor(device *a, device *b, unsigned *level) {
    ENTER(a);
    if (!scenario_count("gpus/%u/path", a->gpu)) return leave(NOT_SUPPORTED);
    *level = (unsigned)scenario_number(50, "gpus/%u/path/%u", a->gpu, b->gpu);
    return leave(OK);
}

/* MIG */
int nvmlDeviceGetMigMode(device *d, unsigned *current, unsigned *pending) {
    ENTER(d);
    if (!scenario_text("gpus/%u/mig/mode", d->gpu)) return leave(NOT_SUPPORTED);
    *current = *pending = (unsigned)scenario_number(0, "gpus/%u/mig/mode", d->gpu);
    return leave(OK);
}

int nvmlDeviceGetMigDeviceHandleByIndex(device *d, unsigned index, void **out) {
    ENTER(d);
    if (!scenario_text("gpus/%u/mig/devices/%u/uuid", d->gpu, index)) return leave(NOT_FOUND);
    *out = handle(d->gpu, (int)index);
    return leave(OK);
}

static int mig(const device *d, const char *what) {
    return (int)scenario_number(0, "gpus/%u/mig/devices/%d/%s", d->gpu, d->instance, what);
}

int nvmlDeviceGetGpuInstanceId(device *d, unsigned *out) { ENTER(d); *out = (unsigned)mig(d, "gi"); return leave(OK); }
int nvmlDeviceGetComputeInstanceId(device *d, unsigned *out) { ENTER(d); *out = (unsigned)mig(d, "ci"); return leave(OK); }

int nvmlDeviceGetAttributes_v2(device *d, attributes *out) {
    ENTER(d);
    memset(out, 0, sizeof *out);
    out->gpu_slices = out->compute_slices = (unsigned)mig(d, "slices");
    return leave(OK);
}

int nvmlDeviceGetGpuInstanceById(device *d, unsigned id, void **out) {
    ENTER(d);
    for (int i = 0; i < scenario_count("gpus/%u/mig/devices", d->gpu); i++)
        if ((unsigned)scenario_number(-1, "gpus/%u/mig/devices/%d/gi", d->gpu, i) == id) {
            *out = handle(d->gpu, i);
            return leave(OK);
        }
    return leave(NOT_FOUND);
}

int nvmlGpuInstanceGetInfo(device *d, instance_info *out) {
    ENTER(d);
    out->device = handle(d->gpu, -1);
    out->id = (unsigned)mig(d, "gi");
    out->profile = 0;
    out->place.start = (unsigned)mig(d, "placement/0");
    out->place.size = (unsigned)mig(d, "placement/1");
    return leave(OK);
}

/* gpus/N/mig/profiles: objects with name, slices, mib, most, size and starts, at the index of their NVML number */
int nvmlDeviceGetGpuInstanceProfileInfoV(device *d, unsigned profile, profile_info *out) {
    ENTER(d);
    if (out->version != (sizeof(profile_info) | 2u << 24)) return leave(VERSION);
    const char *name = scenario_text("gpus/%u/mig/profiles/%u/name", d->gpu, profile);
    if (!name) return leave(NOT_SUPPORTED);
    memset(out, 0, sizeof *out);
    out->id = profile;
    out->slices = (unsigned)scenario_number(1, "gpus/%u/mig/profiles/%u/slices", d->gpu, profile);
    out->instances = (unsigned)scenario_number(1, "gpus/%u/mig/profiles/%u/most", d->gpu, profile);
    out->mib = (unsigned long long)scenario_number(0, "gpus/%u/mig/profiles/%u/mib", d->gpu, profile);
    snprintf(out->name, sizeof out->name, "MIG %s", name);
    return leave(OK);
}

int nvmlDeviceGetGpuInstancePossiblePlacements_v2(device *d, unsigned profile, placement *out, unsigned *count) {
    ENTER(d);
    int starts = scenario_count("gpus/%u/mig/profiles/%u/starts", d->gpu, profile);
    for (int i = 0; out && i < starts && i < (int)*count; i++) {
        out[i].start = (unsigned)scenario_number(0, "gpus/%u/mig/profiles/%u/starts/%d", d->gpu, profile, i);
        out[i].size = (unsigned)scenario_number(1, "gpus/%u/mig/profiles/%u/size", d->gpu, profile);
    }
    *count = (unsigned)starts;
    return leave(OK);
}

/* Processes: gpus/N/processes with pid, memory, kind (C, G or M), sm, and gi and ci on a GPU in MIG mode */
static int processes(device *d, const char *kind, unsigned *count, process *out) {
    unsigned found = 0, room = *count;
    for (int i = 0; i < scenario_count("gpus/%u/processes", d->gpu); i++) {
        const char *is = scenario_text("gpus/%u/processes/%d/kind", d->gpu, i);
        long long gi = scenario_number(-1, "gpus/%u/processes/%d/gi", d->gpu, i);
        if (strcmp(is ? is : "C", kind) || (d->instance >= 0 && gi != mig(d, "gi"))) continue;
        if (out && found < room) {
            out[found].pid = (unsigned)scenario_number(0, "gpus/%u/processes/%d/pid", d->gpu, i);
            out[found].memory = (unsigned long long)scenario_number(-1, "gpus/%u/processes/%d/memory", d->gpu, i);
            out[found].gi = (unsigned)scenario_number(0xFFFFFFFF, "gpus/%u/processes/%d/gi", d->gpu, i);
            out[found].ci = (unsigned)scenario_number(0xFFFFFFFF, "gpus/%u/processes/%d/ci", d->gpu, i);
        }
        found++;
    }
    *count = found;
    return leave(found > room || (found && !out) ? TOO_SMALL : OK);
}

int nvmlDeviceGetComputeRunningProcesses_v3(device *d, unsigned *n, process *out) { ENTER(d); return processes(d, "C", n, out); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(device *d, unsigned *n, process *out) { ENTER(d); return processes(d, "G", n, out); }
int nvmlDeviceGetMPSComputeRunningProcesses_v3(device *d, unsigned *n, process *out) { ENTER(d); return processes(d, "M", n, out); }

int nvmlDeviceGetProcessUtilization(device *d, process_sample *out, unsigned *count, unsigned long long since) {
    ENTER(d);
    (void)since;
    if (scenario_number(0, "gpus/%u/mig/mode", d->gpu)) return leave(NOT_SUPPORTED);
    unsigned found = 0, room = *count;
    for (int i = 0; i < scenario_count("gpus/%u/processes", d->gpu); i++) {
        if (!scenario_text("gpus/%u/processes/%d/sm", d->gpu, i)) continue;
        if (out && found < room) {
            memset(&out[found], 0, sizeof *out);
            out[found].pid = (unsigned)scenario_number(0, "gpus/%u/processes/%d/pid", d->gpu, i);
            out[found].at = since + 1;
            out[found].sm = (unsigned)scenario_number(0, "gpus/%u/processes/%d/sm", d->gpu, i);
        }
        found++;
    }
    *count = found;
    return leave(!found ? NOT_FOUND : out ? OK : TOO_SMALL);
}

/* Events */
int nvmlDeviceGetSupportedEventTypes(device *d, unsigned long long *out) {
    ENTER(d);
    *out = (unsigned long long)scenario_number(8 | 2 | 1, "gpus/%u/event_types", d->gpu);
    return leave(OK);
}

int nvmlEventSetCreate(void **set) { ENTER(NULL); *set = &delivered; return leave(OK); }
int nvmlEventSetFree(void *set) { (void)set; return OK; }

int nvmlDeviceRegisterEvents(device *d, unsigned long long types, void *set) {
    ENTER(d);
    (void)set;
    return leave(types & ~(unsigned long long)scenario_number(8 | 2 | 1, "gpus/%u/event_types", d->gpu) ? NOT_SUPPORTED : OK);
}

int nvmlEventSetWait_v2(void *set, event *out, unsigned timeout_ms) {
    (void)set;
    for (unsigned waited = 0;; waited += 5) {
        ENTER(NULL);
        int known = scenario_count("events");
        if (known < delivered) delivered = 0; /* another scenario */
        if (delivered < known) {
            int at = delivered++;
            out->device = handle((unsigned)scenario_number(0, "events/%d/gpu", at), -1);
            out->type = (unsigned long long)scenario_number(8, "events/%d/type", at);
            out->data = (unsigned long long)scenario_number(0, "events/%d/data", at);
            out->gi = out->ci = 0xFFFFFFFF;
            return leave(OK);
        }
        leave(OK);
        if (waited >= timeout_ms) return TIMEOUT;
        usleep(5000);
    }
}
