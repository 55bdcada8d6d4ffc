// A stand-in for NVIDIA's management library, of two GPUs: an H200 with two links to
// the other GPU, one to a switch that is hidden and one that is down, and an A100 with
// two links back. GORUN_FAKE_NVML=nvmlDeviceGetName=15 lets a call fail with a code.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int nvmlReturn_t;
typedef struct device { int index; } *nvmlDevice_t;

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7 };

typedef struct {
  char busIdLegacy[16];
  unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
  char busId[32];
} nvmlPciInfo_t;

typedef struct {
  unsigned int fieldId, scopeId;
  long long timestamp, latencyUsec;
  int valueType;
  nvmlReturn_t nvmlReturn;
  union { double d; unsigned int ui; unsigned long long ull; } value;
} nvmlFieldValue_t;

static struct device devices[2] = {{0}, {1}};
static int users;

static int wrong(nvmlDevice_t d) { return d != &devices[0] && d != &devices[1]; }

static nvmlReturn_t begin(const char *name) {
  const char *set = getenv("GORUN_FAKE_NVML");
  size_t n = strlen(name);
  if (set && !strncmp(set, name, n) && set[n] == '=') return atoi(set + n + 1);
  return users > 0 ? SUCCESS : UNINITIALIZED;
}

#define BEGIN do { nvmlReturn_t r = begin(__func__); if (r != SUCCESS) return r; } while (0)

nvmlReturn_t nvmlInit_v2(void) { users++; return begin(__func__); }
nvmlReturn_t nvmlShutdown(void) { BEGIN; users--; return SUCCESS; }

const char *nvmlErrorString(nvmlReturn_t r) {
  static char text[32];
  snprintf(text, sizeof text, "error number %d", r);
  return text;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *n) { BEGIN; *n = 2; return SUCCESS; }

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int i, nvmlDevice_t *d) {
  BEGIN;
  if (i > 1) return INVALID_ARGUMENT;
  *d = &devices[i];
  return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t d, char *name, unsigned int size) {
  BEGIN;
  if (wrong(d)) return INVALID_ARGUMENT;
  const char *text = d->index ? "NVIDIA A100-SXM4-40GB" : "NVIDIA H200";
  if (size < strlen(text) + 1) return INSUFFICIENT_SIZE;
  strcpy(name, text);
  return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t d, int *major, int *minor) {
  BEGIN;
  if (wrong(d)) return INVALID_ARGUMENT;
  *major = d->index ? 8 : 9;
  *minor = 0;
  return SUCCESS;
}

static void place(nvmlPciInfo_t *p, int index) {
  memset(p, 0, sizeof *p);
  p->bus = index ? 0x3b : 0x1a;
  snprintf(p->busIdLegacy, sizeof p->busIdLegacy, "0000:%02X:00.0", p->bus);
  snprintf(p->busId, sizeof p->busId, "00000000:%02X:00.0", p->bus);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t d, nvmlPciInfo_t *p) {
  BEGIN;
  if (wrong(d)) return INVALID_ARGUMENT;
  place(p, d->index);
  return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t a, nvmlDevice_t b, int index, int *status) {
  BEGIN;
  if (wrong(a) || wrong(b) || a == b || index > 1) return INVALID_ARGUMENT;
  *status = index == 1 && a->index == 1 ? 4 : 0; // the A100 may not write
  return SUCCESS;
}

// Links 0 and 1 lead to the other GPU, 2 to a hidden switch, 3 is down, 4 is not for
// GPUs, and there are no more.
nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t d, unsigned int link, int capability, unsigned int *can) {
  BEGIN;
  if (wrong(d) || capability != 0) return INVALID_ARGUMENT;
  if (link > 4 || (d->index && link > 1)) return NOT_SUPPORTED;
  *can = link < 4;
  return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t d, unsigned int link, int *active) {
  BEGIN;
  if (wrong(d) || link > 3) return INVALID_ARGUMENT;
  *active = link < 3;
  return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t d, unsigned int link, nvmlPciInfo_t *p) {
  BEGIN;
  if (wrong(d) || link > 2) return INVALID_ARGUMENT;
  place(p, !d->index);
  if (link == 2) {
    memset(p, 0xff, sizeof *p);
    strcpy(p->busIdLegacy, "FFFF:FF:FF.F");
    strcpy(p->busId, "FFFFFFFF:FFFF:FF");
  }
  return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t d, int n, nvmlFieldValue_t *v) {
  BEGIN;
  if (wrong(d) || n != 1 || d->index) return INVALID_ARGUMENT;
  v->nvmlReturn = SUCCESS;
  switch (v->fieldId) {
  case 165: v->value.ui = v->scopeId < 3; break; // state of a link
  case 170: v->value.ui = 3; break;              // chip-to-chip links
  case 171: v->value.ui = v->scopeId != 1; break;
  case 172: v->value.ui = 44712; break;
  default: v->nvmlReturn = NOT_SUPPORTED;
  }
  return SUCCESS;
}
