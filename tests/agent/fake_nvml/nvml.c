/* A libnvidia-ml.so.1 that tells what a text file says, for tests on machines without a GPU.
 *
 * Exports the functions that torchyard_agent.telemetry.nvml_bindings looks for, with the signatures of nvml.h.
 * FAKE_NVML_FILE names the file (see write_gpus); it is read again whenever it has changed. Compiled with
 * -DPROTECTED_FIELD the _v3 process functions write the longer structure of some 530 and 535 drivers.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, TOO_SMALL = 7, TIMEOUT = 10, LOST = 15, MAX_GPUS = 16, MAX_ROWS = 512 };

typedef unsigned long long u64;
typedef struct { u64 total, free, used; } memory_t;
typedef struct { unsigned version; u64 total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned gpu, memory; } utilization_t;
typedef struct { unsigned pid; u64 used; } process_v1_t;
typedef struct { unsigned pid; u64 used; unsigned gpu_instance, compute_instance; } process_v2_t;
typedef struct { unsigned pid; u64 used; unsigned gpu_instance, compute_instance; u64 protected_used; } process_cc_t;
typedef struct { void *device; u64 type, data; unsigned gpu_instance, compute_instance; } event_t;

typedef struct { char kind; unsigned pid; u64 used; } row_t;
typedef struct { char function[64]; int code; } failure_t;
typedef struct {
    char uuid[96], name[96];
    u64 total, used, reserved, throttling, ecc;
    unsigned utilisation, power_mw, temperature, sm_clock, memory_clock;
    int lost, rows, failures, pending, failed, bus;
    row_t row[MAX_ROWS];
    failure_t failure[16];
} gpu_t;
typedef struct { int gpu; u64 code; } xid_t;
typedef struct {
    char legacy_bus_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} pci_t;

static gpu_t gpus[MAX_GPUS];
static xid_t xids[64];
static int gpu_count, xid_count, xids_told, init_code, cuda_version;
static char driver[96];
static struct stat seen;

static void load(void) {
    const char *path = getenv("FAKE_NVML_FILE");
    struct stat now;
    char line[512], word[64], text[256];
    long a, b;
    gpu_t *gpu = NULL;
    if (!path || stat(path, &now)) return;
    if (now.st_ino == seen.st_ino && now.st_size == seen.st_size && now.st_mtim.tv_sec == seen.st_mtim.tv_sec
        && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec) return;
    FILE *file = fopen(path, "r");
    if (!file) return;
    seen = now;
    memset(gpus, 0, sizeof gpus);
    gpu_count = xid_count = init_code = 0;
    while (fgets(line, sizeof line, file)) {
        text[0] = 0;
        a = b = 0;
        if (sscanf(line, "%63s %255[^\n]", word, text) < 1) continue;
        sscanf(text, "%ld %ld", &a, &b);
        if (!strcmp(word, "gpu") && gpu_count < MAX_GPUS) { gpu = &gpus[gpu_count++]; continue; }
        if (!strcmp(word, "driver")) { snprintf(driver, sizeof driver, "%.90s", text); continue; }
        if (!strcmp(word, "cuda")) { cuda_version = (int)a; continue; }
        if (!strcmp(word, "init")) { init_code = (int)a; continue; }
        if (!strcmp(word, "xid") && xid_count < 64) { xids[xid_count].gpu = (int)a; xids[xid_count++].code = b; continue; }
        if (!gpu) continue;
        if (!strcmp(word, "uuid")) snprintf(gpu->uuid, sizeof gpu->uuid, "%.90s", text);
        else if (!strcmp(word, "name")) snprintf(gpu->name, sizeof gpu->name, "%.90s", text);
        else if (!strcmp(word, "memory")) { gpu->total = (u64)a << 20; gpu->used = (u64)b << 20; }
        else if (!strcmp(word, "reserved")) gpu->reserved = (u64)a << 20;
        else if (!strcmp(word, "utilisation")) gpu->utilisation = a;
        else if (!strcmp(word, "power")) gpu->power_mw = a;
        else if (!strcmp(word, "temperature")) gpu->temperature = a;
        else if (!strcmp(word, "clocks")) { gpu->sm_clock = a; gpu->memory_clock = b; }
        else if (!strcmp(word, "throttling")) gpu->throttling = a;
        else if (!strcmp(word, "ecc")) gpu->ecc = a;
        else if (!strcmp(word, "repair")) { gpu->pending = (int)a; gpu->failed = (int)b; }
        else if (!strcmp(word, "bus")) gpu->bus = (int)a;
        else if (!strcmp(word, "lost")) gpu->lost = (int)a;
        else if ((!strcmp(word, "compute") || !strcmp(word, "graphics")) && gpu->rows < MAX_ROWS) {
            row_t *row = &gpu->row[gpu->rows++];
            row->kind = word[0];
            row->pid = a;
            row->used = b < 0 ? ~0ULL : (u64)b << 20;
        } else if (!strcmp(word, "fail") && gpu->failures < 16) {
            failure_t *failure = &gpu->failure[gpu->failures++];
            sscanf(text, "%63s %d", failure->function, &failure->code);
        }
    }
    fclose(file);
}

/* What `function` shall return for the GPU: OK, or how it fails. */
static int enter(void *device, const char *function) {
    gpu_t *gpu = device;
    load();
    if (gpu < gpus || gpu >= gpus + MAX_GPUS) return INVALID;
    if (gpu->lost) return LOST;
    for (int i = 0; i < gpu->failures; i++)
        if (!strcmp(gpu->failure[i].function, function)) return gpu->failure[i].code;
    return OK;
}

#define ENTER(device) do { int code_ = enter(device, __func__); if (code_ != OK) return code_; } while (0)
#define GPU ((gpu_t *)device)

int nvmlInit_v2(void) { load(); return init_code; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) {
    switch (code) {
        case NOT_SUPPORTED: return "Not Supported";
        case 9: return "Driver Not Loaded";
        case LOST: return "GPU is lost";
        case 18: return "Driver/library version mismatch";
        default: return "Unknown Error";
    }
}
int nvmlSystemGetDriverVersion(char *text, unsigned length) { load(); snprintf(text, length, "%s", driver); return OK; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { load(); *version = cuda_version; return OK; }
int nvmlDeviceGetPciInfo_v3(void *device, pci_t *pci) {
    ENTER(device);
    memset(pci, 0, sizeof *pci);
    pci->bus = GPU->bus;
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", GPU->bus);
    return OK;
}
int nvmlDeviceGetRemappedRows(void *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    ENTER(device);
    *corrected = *uncorrected = 0;
    *pending = GPU->pending;
    *failed = GPU->failed;
    return OK;
}
int nvmlDeviceGetRetiredPagesPendingStatus(void *device, unsigned *pending) {
    ENTER(device);
    *pending = GPU->pending;
    return OK;
}
int nvmlDeviceGetCount_v2(unsigned *count) { load(); *count = gpu_count; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    load();
    if ((int)index >= gpu_count) return INVALID;
    *device = &gpus[index];
    return enter(*device, __func__);
}
int nvmlDeviceGetUUID(void *device, char *text, unsigned length) {
    ENTER(device);
    snprintf(text, length, "%s", GPU->uuid);
    return OK;
}
int nvmlDeviceGetName(void *device, char *text, unsigned length) {
    ENTER(device);
    snprintf(text, length, "%s", GPU->name);
    return OK;
}
int nvmlDeviceGetMemoryInfo(void *device, memory_t *memory) {
    ENTER(device);
    memory->total = GPU->total;
    memory->used = GPU->used + GPU->reserved;
    memory->free = memory->total - memory->used;
    return OK;
}
int nvmlDeviceGetMemoryInfo_v2(void *device, memory_v2_t *memory) {
    ENTER(device);
    if (memory->version != (sizeof *memory | 2 << 24)) return 25; /* NVML_ERROR_ARGUMENT_VERSION_MISMATCH */
    memory->total = GPU->total;
    memory->reserved = GPU->reserved;
    memory->used = GPU->used;
    memory->free = GPU->total - GPU->used - GPU->reserved;
    return OK;
}
int nvmlDeviceGetUtilizationRates(void *device, utilization_t *rates) {
    ENTER(device);
    rates->gpu = GPU->utilisation;
    rates->memory = 0;
    return OK;
}
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) { ENTER(device); *milliwatts = GPU->power_mw; return OK; }
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) {
    ENTER(device);
    if (sensor != 0) return INVALID;
    *celsius = GPU->temperature;
    return OK;
}
int nvmlDeviceGetClockInfo(void *device, int kind, unsigned *megahertz) {
    ENTER(device);
    if (kind != 1 && kind != 2) return INVALID;
    *megahertz = kind == 1 ? GPU->sm_clock : GPU->memory_clock;
    return OK;
}
int nvmlDeviceGetCurrentClocksEventReasons(void *device, u64 *reasons) {
    ENTER(device);
    *reasons = GPU->throttling;
    return OK;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, u64 *reasons) {
    ENTER(device);
    *reasons = GPU->throttling;
    return OK;
}
int nvmlDeviceGetTotalEccErrors(void *device, int kind, int counter, u64 *errors) {
    ENTER(device);
    if (kind != 1 || counter != 0) return INVALID;
    *errors = GPU->ecc;
    return OK;
}

#define LIST(function, type, letter, more)                                           \
    int function(void *device, unsigned *count, type *infos) {                       \
        ENTER(device);                                                               \
        unsigned found = 0, room = *count;                                           \
        for (int i = 0; i < GPU->rows; i++) {                                        \
            if (GPU->row[i].kind != letter) continue;                                \
            if (found < room) {                                                      \
                type *info = &infos[found];                                          \
                info->pid = GPU->row[i].pid;                                         \
                info->used = GPU->row[i].used;                                       \
                more;                                                                \
            }                                                                        \
            found++;                                                                 \
        }                                                                            \
        *count = found;                                                              \
        return found > room ? TOO_SMALL : OK;                                        \
    }
#define NO_MIG info->gpu_instance = info->compute_instance = ~0u
#ifdef PROTECTED_FIELD
#define PROCESS_V3 process_cc_t
#define MORE_V3 NO_MIG; info->protected_used = 7
#else
#define PROCESS_V3 process_v2_t
#define MORE_V3 NO_MIG
#endif
LIST(nvmlDeviceGetComputeRunningProcesses, process_v1_t, 'c', (void)0)
LIST(nvmlDeviceGetGraphicsRunningProcesses, process_v1_t, 'g', (void)0)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, process_v2_t, 'c', NO_MIG)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, process_v2_t, 'g', NO_MIG)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, PROCESS_V3, 'c', MORE_V3)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, PROCESS_V3, 'g', MORE_V3)
/* Only looked for, never called: they date the library. */
int nvmlDeviceGetConfComputeMemSizeInfo(void) { return NOT_SUPPORTED; }
int nvmlDeviceGetRunningProcessDetailList(void) { return NOT_SUPPORTED; }

int nvmlEventSetCreate(void **set) { *set = xids; return OK; }
int nvmlEventSetFree(void *set) { (void)set; return OK; }
int nvmlDeviceRegisterEvents(void *device, u64 types, void *set) {
    ENTER(device);
    return types == 8 && set == xids ? OK : INVALID;
}
int nvmlEventSetWait_v2(void *set, event_t *event, unsigned timeout_ms) {
    load();
    if (set != xids || timeout_ms != 0) return INVALID;
    if (xids_told > xid_count) xids_told = 0;
    if (xids_told == xid_count) return TIMEOUT;
    event->device = &gpus[xids[xids_told].gpu];
    event->type = 8;
    event->data = xids[xids_told++].code;
    return OK;
}
