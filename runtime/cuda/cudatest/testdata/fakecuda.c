// A stand-in for the CUDA driver, for tests without a GPU. Device memory is host
// memory, copies and fills are done at once, and kernels do not run: a launch is
// checked and remembered. It is strict where the real driver is: a call without
// the right context, or on a handle that is not alive, fails.
//
// The functions called fake_* steer it; see cudatest. At load it reads
//   GORUN_FAKE_GPUS=2            how many GPUs there are (1)
//   GORUN_FAKE_CUDA=12040        the version of CUDA that it knows (13000)
//   GORUN_FAKE_MEMORY=1073741824 bytes of memory of each GPU (16 GiB)
//   GORUN_FAKE_FAIL=cuInit=100   calls that fail, and their codes: a list with commas
#include <elf.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int R;
typedef uint64_t D;
#define API __attribute__((visibility("default")))

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
       INVALID_CONTEXT = 201, INVALID_PTX = 218, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600,
       PEER_ALREADY = 704, NOT_SUPPORTED = 801 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

// --- what tests set and see ---

static int gpus = 1, version = 13000, compute = 90, linked = 1, ordered = 100, flushes = 1, initialised;
static uint64_t memory = (uint64_t)16 << 30;

// A call by its name without the suffix of its ABI's version.
static struct call { char name[64]; long count; int code; long after; } calls[256];

static struct call *call_of(const char *name) {
  for (int i = 0; i < 256; i++) {
    if (!calls[i].name[0]) snprintf(calls[i].name, sizeof calls[i].name, "%s", name);
    if (!strcmp(calls[i].name, name)) return &calls[i];
  }
  abort();
}

// entered counts a call and returns the code that it has to fail with, or 0.
static R entered(struct call **at, const char *name) {
  pthread_mutex_lock(&lock);
  struct call *c = *at ? *at : (*at = call_of(name));
  c->count++;
  R r = c->code && c->after-- <= 0 ? c->code : 0;
  pthread_mutex_unlock(&lock);
  return r;
}

#define COUNT(name) ({ static struct call *call_; entered(&call_, #name); })
#define CALL(name) do { R r_ = COUNT(name); if (r_) return r_; if (!initialised) return NOT_INITIALIZED; } while (0)

// fake_fail makes the call fail with code, after as many calls as given pass; code
// 0 ends that.
API void fake_fail(const char *name, int code, long after) {
  pthread_mutex_lock(&lock);
  struct call *c = call_of(name);
  c->code = code, c->after = after;
  pthread_mutex_unlock(&lock);
}
API long fake_calls(const char *name) {
  pthread_mutex_lock(&lock);
  long n = call_of(name)->count;
  pthread_mutex_unlock(&lock);
  return n;
}
API void fake_machine(int g, int v, uint64_t m, int c, int l) {
  if (g >= 0) gpus = g;
  if (v > 0) version = v;
  if (m) memory = m;
  if (c) compute = c;
  linked = l;
}

__attribute__((constructor)) static void configure(void) {
  const char *s;
  if ((s = getenv("GORUN_FAKE_GPUS"))) gpus = atoi(s);
  if ((s = getenv("GORUN_FAKE_CUDA"))) version = atoi(s);
  if ((s = getenv("GORUN_FAKE_MEMORY"))) memory = strtoull(s, 0, 10);
  if ((s = getenv("GORUN_FAKE_FAIL"))) {
    char list[1024], *save;
    snprintf(list, sizeof list, "%s", s);
    for (char *f = strtok_r(list, ",", &save); f; f = strtok_r(0, ",", &save)) {
      char *eq = strchr(f, '=');
      if (eq) *eq = 0, fake_fail(f, atoi(eq + 1), 0);
    }
  }
}

// --- handles ---

// Structs of handles are never freed, so that a dead one is known as such.
enum kind { CONTEXT = 1, STREAM, EVENT, MODULE, FUNCTION, POOL, KINDS };
static long live[KINDS], live_memory, live_pinned, live_registered, live_opened;

struct handle { uint32_t magic; enum kind kind; int dev, alive; };
enum { MAGIC = 0x66616b65 };

static void *make(enum kind kind, int dev, size_t size) {
  struct handle *h = calloc(1, size);
  *h = (struct handle){MAGIC, kind, dev, 1};
  __sync_fetch_and_add(&live[kind], 1);
  return h;
}
static int good(const void *p, enum kind kind) {
  const struct handle *h = p;
  return h && (uintptr_t)h % 8 == 0 && h->magic == MAGIC && h->kind == kind && h->alive;
}
static R kill_handle(void *p, enum kind kind) {
  if (!good(p, kind)) return INVALID_HANDLE;
  ((struct handle *)p)->alive = 0;
  __sync_fetch_and_sub(&live[kind], 1);
  return OK;
}

API long fake_live(const char *what) {
  static const char *names[] = {"", "contexts", "streams", "events", "modules", "functions", "pools"};
  for (int k = 1; k < KINDS; k++) if (!strcmp(what, names[k])) return live[k];
  if (!strcmp(what, "memory")) return live_memory;
  if (!strcmp(what, "pinned")) return live_pinned;
  if (!strcmp(what, "registered")) return live_registered;
  if (!strcmp(what, "opened")) return live_opened;
  return -1;
}

// --- start, errors ---

API R cuInit(unsigned flags) {
  R r = COUNT(cuInit);
  if (r) return r;
  if (gpus == 0) return NO_DEVICE;
  initialised = 1;
  return OK;
}
API R cuDriverGetVersion(int *v) { R r = COUNT(cuDriverGetVersion); *v = version; return r; }

static const struct { int code; const char *name, *text; } errors[] = {
  {OK, "CUDA_SUCCESS", "no error"},
  {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
  {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
  {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
  {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
  {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
  {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
  {INVALID_PTX, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
  {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
  {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
  {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
  {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
  {PEER_ALREADY, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
  {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
  {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};
API R cuGetErrorName(R code, const char **s) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) if (errors[i].code == code) { *s = errors[i].name; return OK; }
  *s = 0;
  return INVALID_VALUE;
}
API R cuGetErrorString(R code, const char **s) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) if (errors[i].code == code) { *s = errors[i].text; return OK; }
  *s = 0;
  return INVALID_VALUE;
}

// --- devices, contexts ---

#define DEVICE(d) do { if ((d) < 0 || (d) >= gpus) return INVALID_DEVICE; } while (0)

API R cuDeviceGetCount(int *n) { CALL(cuDeviceGetCount); *n = gpus; return OK; }
API R cuDeviceGet(int *d, int i) { CALL(cuDeviceGet); DEVICE(i); *d = i; return OK; }
API R cuDeviceGetName(char *s, int n, int d) { CALL(cuDeviceGetName); DEVICE(d); snprintf(s, n, "Fake GPU"); return OK; }
API R cuDeviceGetUuid_v2(unsigned char *u, int d) {
  CALL(cuDeviceGetUuid); DEVICE(d);
  for (int i = 0; i < 16; i++) u[i] = i * 17;
  u[15] = d;
  return OK;
}
API R cuDeviceGetAttribute(int *v, int a, int d) {
  CALL(cuDeviceGetAttribute); DEVICE(d);
  switch (a) {
  case 16: *v = 132; break;
  case 75: *v = d == gpus - 1 ? compute / 10 : 9; break;
  case 76: *v = d == gpus - 1 ? compute % 10 : 0; break;
  case 97: *v = 227 << 10; break;
  case 117: *v = flushes; break;
  case 118: *v = ordered; break;
  case 124: *v = 1; break;
  default: if (a < 1 || a > 200) return INVALID_VALUE; *v = 0;
  }
  return OK;
}

API R cuDeviceGetP2PAttribute(int *v, int a, int from, int to) {
  CALL(cuDeviceGetP2PAttribute); DEVICE(from); DEVICE(to);
  if (a < 1 || a > 5 || from == to) return INVALID_VALUE;
  *v = a != 3 || linked;
  return OK;
}

enum { MOST = 64 };
struct context { struct handle h; int retained; unsigned peers[MOST]; };
static struct context *primary[MOST];
static uint64_t used[MOST];
static __thread struct context *current;

API R cuDevicePrimaryCtxRetain(void **c, int d) {
  CALL(cuDevicePrimaryCtxRetain); DEVICE(d);
  pthread_mutex_lock(&lock);
  if (!primary[d]) primary[d] = make(CONTEXT, d, sizeof(struct context));
  primary[d]->retained++;
  *c = primary[d];
  pthread_mutex_unlock(&lock);
  return OK;
}
API R cuDevicePrimaryCtxRelease_v2(int d) {
  CALL(cuDevicePrimaryCtxRelease); DEVICE(d);
  R r = OK;
  pthread_mutex_lock(&lock);
  if (!primary[d]) r = INVALID_CONTEXT;
  else if (--primary[d]->retained == 0) kill_handle(primary[d], CONTEXT), primary[d] = 0;
  pthread_mutex_unlock(&lock);
  return r;
}
API R cuCtxSetCurrent(void *c) {
  CALL(cuCtxSetCurrent);
  if (c && !good(c, CONTEXT)) return INVALID_CONTEXT;
  current = c;
  return OK;
}
API R cuCtxGetCurrent(void **c) { CALL(cuCtxGetCurrent); *c = current; return OK; }

// here is the device whose context is current, or -1.
static int here(void) { return good(current, CONTEXT) ? current->h.dev : -1; }
#define CONTEXT_CALL(name) CALL(name); do { if (here() < 0) return INVALID_CONTEXT; } while (0)

API R cuCtxGetDevice(int *d) { CONTEXT_CALL(cuCtxGetDevice); *d = here(); return OK; }
API R cuCtxGetStreamPriorityRange(int *least, int *greatest) { CONTEXT_CALL(cuCtxGetStreamPriorityRange); *least = 0, *greatest = -5; return OK; }
API R cuCtxEnablePeerAccess(void *c, unsigned flags) {
  CONTEXT_CALL(cuCtxEnablePeerAccess);
  if (!good(c, CONTEXT) || c == current || flags) return INVALID_CONTEXT;
  int d = ((struct context *)c)->h.dev;
  if (current->peers[d]++) return PEER_ALREADY;
  return OK;
}

// --- memory ---

static struct piece { D addr; size_t n; int dev, kind; struct piece *next; } *pieces;
enum { PLAIN = 1, PINNED, POOLED, OPENED };

static struct piece *piece_at(D a) {
  for (struct piece *p = pieces; p; p = p->next) if (a >= p->addr && a < p->addr + p->n) return p;
  return 0;
}
static R give(D *out, size_t n, int kind) {
  int d = here();
  if (n == 0) return INVALID_VALUE;
  R r = OK;
  pthread_mutex_lock(&lock);
  void *m = 0;
  if (kind != PINNED && kind != OPENED && n > memory - used[d]) r = OUT_OF_MEMORY;
  else if (!(m = aligned_alloc(256, (n + 255) & ~(size_t)255))) r = OUT_OF_MEMORY;
  else {
    memset(m, 0xCD, n < 1 << 20 ? n : 1 << 20);
    struct piece *p = malloc(sizeof *p);
    *p = (struct piece){(D)m, n, d, kind, pieces};
    pieces = p;
    if (kind == PINNED) live_pinned++; else if (kind == OPENED) live_opened++; else used[d] += n, live_memory++;
    *out = (D)m;
  }
  pthread_mutex_unlock(&lock);
  return r;
}
static R take(D a, int kind) {
  R r = INVALID_VALUE;
  pthread_mutex_lock(&lock);
  for (struct piece **at = &pieces; *at; at = &(*at)->next) {
    struct piece *p = *at;
    if (p->addr != a || p->kind != kind) continue;
    *at = p->next;
    if (kind == PINNED) live_pinned--; else if (kind == OPENED) live_opened--; else used[p->dev] -= p->n, live_memory--;
    free((void *)p->addr), free(p);
    r = OK;
    break;
  }
  pthread_mutex_unlock(&lock);
  return r;
}
// range tells whether n bytes at a are device memory, or pinned where that will do.
static int range(D a, size_t n, int pinned_too) {
  pthread_mutex_lock(&lock);
  struct piece *p = piece_at(a);
  int ok = p && a + n <= p->addr + p->n && (pinned_too || p->kind != PINNED);
  pthread_mutex_unlock(&lock);
  return ok;
}

API R cuMemGetInfo_v2(size_t *f, size_t *t) { CONTEXT_CALL(cuMemGetInfo); *f = memory - used[here()], *t = memory; return OK; }
API R cuMemAlloc_v2(D *p, size_t n) { CONTEXT_CALL(cuMemAlloc); return give(p, n, PLAIN); }
API R cuMemFree_v2(D p) { CONTEXT_CALL(cuMemFree); return take(p, PLAIN) ? take(p, POOLED) : OK; }
API R cuMemHostAlloc(void **p, size_t n, unsigned f) { CONTEXT_CALL(cuMemHostAlloc); return give((D *)p, n, PINNED); }
API R cuMemFreeHost(void *p) { CONTEXT_CALL(cuMemFreeHost); return take((D)p, PINNED); }
API R cuMemHostRegister_v2(void *p, size_t n, unsigned f) { CONTEXT_CALL(cuMemHostRegister); __sync_fetch_and_add(&live_registered, 1); return p && n ? OK : INVALID_VALUE; }
API R cuMemHostUnregister(void *p) { CONTEXT_CALL(cuMemHostUnregister); __sync_fetch_and_sub(&live_registered, 1); return OK; }
API R cuMemGetAddressRange_v2(D *base, size_t *n, D a) {
  CONTEXT_CALL(cuMemGetAddressRange);
  pthread_mutex_lock(&lock);
  struct piece *p = piece_at(a);
  if (p) *base = p->addr, *n = p->n;
  pthread_mutex_unlock(&lock);
  return p ? OK : INVALID_VALUE;
}
// Writes of network cards: to whom they are visible at once, and whether the host can
// make them so.
API void fake_direct_writes(int o, int f) { ordered = o, flushes = f; }
API R cuFlushGPUDirectRDMAWrites(int target, int scope) {
  CONTEXT_CALL(cuFlushGPUDirectRDMAWrites);
  if (target != 0 || (scope != 100 && scope != 200)) return INVALID_VALUE;
  return flushes & 1 ? OK : NOT_SUPPORTED;
}

API R cuMemGetHandleForAddressRange(void *fd, D a, size_t n, int type, unsigned long long flags) {
  CONTEXT_CALL(cuMemGetHandleForAddressRange);
  if (type != 1 || !range(a, n, 0)) return INVALID_VALUE;
  *(int *)fd = 12345;
  return OK;
}

struct pool { struct handle h; uint64_t threshold, used; };
struct pool_props { int type, handles; struct { int kind, id; } location; void *security; size_t max; char reserved[56]; };
_Static_assert(sizeof(struct pool_props) == 88, "CUmemPoolProps");

API R cuMemPoolCreate(void **p, const struct pool_props *props) {
  CONTEXT_CALL(cuMemPoolCreate);
  if (props->type != 1 || props->location.kind != 1 || props->location.id != here() || props->max) return INVALID_VALUE;
  *p = make(POOL, here(), sizeof(struct pool));
  return OK;
}
API R cuMemPoolDestroy(void *p) { CONTEXT_CALL(cuMemPoolDestroy); return kill_handle(p, POOL); }
API R cuMemPoolSetAttribute(struct pool *p, int a, void *v) {
  CONTEXT_CALL(cuMemPoolSetAttribute);
  if (!good(p, POOL) || a != 4) return INVALID_VALUE;
  p->threshold = *(uint64_t *)v;
  return OK;
}
API R cuMemPoolGetAttribute(struct pool *p, int a, void *v) {
  CONTEXT_CALL(cuMemPoolGetAttribute);
  if (!good(p, POOL)) return INVALID_VALUE;
  *(uint64_t *)v = a == 4 ? p->threshold : p->used;
  return OK;
}
API R cuMemPoolTrimTo(struct pool *p, size_t keep) { CONTEXT_CALL(cuMemPoolTrimTo); return good(p, POOL) ? OK : INVALID_VALUE; }

// --- streams, events ---

struct stream { struct handle h; struct context *context; int priority, held; };
struct event { struct handle h; struct stream *pending; int recorded; unsigned flags; struct timespec at; };

#define ON(s) do { if (!good(s, STREAM)) return INVALID_HANDLE; if (((struct stream *)(s))->h.dev != here()) return INVALID_CONTEXT; } while (0)

API R cuStreamCreateWithPriority(void **s, unsigned flags, int priority) {
  CONTEXT_CALL(cuStreamCreateWithPriority);
  if (flags != 1 || priority > 0 || priority < -5) return INVALID_VALUE;
  struct stream *x = make(STREAM, here(), sizeof *x);
  x->context = current, x->priority = priority;
  *s = x;
  return OK;
}
API R cuStreamGetCtx(void *s, void **c) {
  CONTEXT_CALL(cuStreamGetCtx);
  if (!good(s, STREAM)) return INVALID_HANDLE;
  *c = ((struct stream *)s)->context;
  return OK;
}
API R cuStreamDestroy_v2(void *s) { CONTEXT_CALL(cuStreamDestroy); ON(s); return kill_handle(s, STREAM); }
API R cuStreamWaitEvent(void *s, void *e, unsigned f) {
  CONTEXT_CALL(cuStreamWaitEvent); ON(s);
  return good(e, EVENT) && !f ? OK : INVALID_HANDLE;
}
API R cuStreamWaitValue32_v2(void *s, D a, uint32_t v, unsigned f) { CONTEXT_CALL(cuStreamWaitValue32); ON(s); return range(a, 4, 1) && !f ? OK : INVALID_VALUE; }
API R cuStreamWriteValue32_v2(void *s, D a, uint32_t v, unsigned f) {
  CONTEXT_CALL(cuStreamWriteValue32); ON(s);
  if (!range(a, 4, 1) || f) return INVALID_VALUE;
  *(uint32_t *)a = v;
  return OK;
}
API int fake_priority(struct stream *s) { return s->priority; }
// fake_hold keeps events that are recorded from now on from being reached, until
// it is called with 0: those of a stream, or of all where s is 0.
static int all_held;
API void fake_hold(struct stream *s, int on) { __atomic_store_n(s ? &s->held : &all_held, on, __ATOMIC_SEQ_CST); }
static int held(struct stream *s) { return __atomic_load_n(&s->held, __ATOMIC_SEQ_CST) || __atomic_load_n(&all_held, __ATOMIC_SEQ_CST); }
API R cuStreamQuery(void *s) {
  CONTEXT_CALL(cuStreamQuery);
  ON(s);
  return held(s) ? NOT_READY : OK;
}

API R cuEventCreate(void **e, unsigned flags) {
  CONTEXT_CALL(cuEventCreate);
  struct event *x = make(EVENT, here(), sizeof *x);
  x->flags = flags;
  *e = x;
  return OK;
}
API R cuEventDestroy_v2(void *e) { CONTEXT_CALL(cuEventDestroy); return kill_handle(e, EVENT); }
API R cuEventRecord(struct event *e, struct stream *s) {
  CONTEXT_CALL(cuEventRecord); ON(s);
  if (!good(e, EVENT)) return INVALID_HANDLE;
  e->recorded = 1;
  e->pending = held(s) ? s : 0;
  clock_gettime(CLOCK_MONOTONIC, &e->at);
  return OK;
}
static R reached(struct event *e) {
  if (!good(e, EVENT)) return INVALID_HANDLE;
  return e->pending && held(e->pending) ? NOT_READY : OK;
}
API R cuEventQuery(struct event *e) { CONTEXT_CALL(cuEventQuery); return reached(e); }
API R cuEventElapsedTime(float *ms, struct event *a, struct event *b) {
  CONTEXT_CALL(cuEventElapsedTime);
  if (!good(a, EVENT) || !good(b, EVENT) || !a->recorded || !b->recorded || (a->flags | b->flags) & 2) return INVALID_HANDLE;
  if (reached(a) || reached(b)) return NOT_READY;
  *ms = (b->at.tv_sec - a->at.tv_sec) * 1e3f + (b->at.tv_nsec - a->at.tv_nsec) / 1e6f;
  return OK;
}

API R cuMemcpyAsync(D dst, D src, size_t n, void *s) {
  CONTEXT_CALL(cuMemcpyAsync); ON(s);
  if (!dst || !src) return INVALID_VALUE;
  memmove((void *)dst, (void *)src, n);
  return OK;
}
API R cuMemsetD8Async(D a, unsigned char v, size_t n, void *s) {
  CONTEXT_CALL(cuMemsetD8Async); ON(s);
  if (!range(a, n, 1)) return INVALID_VALUE;
  memset((void *)a, v, n);
  return OK;
}
API R cuMemsetD32Async(D a, uint32_t v, size_t n, void *s) {
  CONTEXT_CALL(cuMemsetD32Async); ON(s);
  if (!range(a, 4 * n, 1)) return INVALID_VALUE;
  for (size_t i = 0; i < n; i++) ((uint32_t *)a)[i] = v;
  return OK;
}
API R cuMemAllocFromPoolAsync(D *p, size_t n, struct pool *pool, void *s) {
  CONTEXT_CALL(cuMemAllocFromPoolAsync); ON(s);
  if (!good(pool, POOL)) return INVALID_VALUE;
  R r = give(p, n, POOLED);
  if (!r) pool->used += n;
  return r;
}
API R cuMemFreeAsync(D p, void *s) { CONTEXT_CALL(cuMemFreeAsync); ON(s); return take(p, POOLED); }

// --- processes ---

// Shared memory is not shared: opening it makes a copy.
struct ipc { uint64_t word[8]; };

API R cuIpcGetMemHandle(struct ipc *h, D a) {
  CONTEXT_CALL(cuIpcGetMemHandle);
  pthread_mutex_lock(&lock);
  struct piece *p = piece_at(a);
  pthread_mutex_unlock(&lock);
  if (!p || p->kind != PLAIN) return INVALID_VALUE;
  for (int i = 0; i < 8; i++) h->word[i] = p->addr + i;
  return OK;
}
API R cuIpcOpenMemHandle_v2(D *a, struct ipc h, unsigned flags) {
  CONTEXT_CALL(cuIpcOpenMemHandle);
  for (int i = 1; i < 8; i++) if (h.word[i] != h.word[0] + i) return INVALID_VALUE;
  pthread_mutex_lock(&lock);
  struct piece *p = piece_at(h.word[0]);
  pthread_mutex_unlock(&lock);
  if (!p || flags != 1) return INVALID_VALUE;
  R r = give(a, p->n, OPENED);
  if (!r) memcpy((void *)*a, (void *)p->addr, p->n);
  return r;
}
API R cuIpcCloseMemHandle(D a) { CONTEXT_CALL(cuIpcCloseMemHandle); return take(a, OPENED); }

// --- modules, launches ---

// A function's parameters, as its module tells.
struct function { struct handle h; char name[256]; int known, params, shared; struct { int offset, size; } param[64]; };
struct module { struct handle h; uint8_t *image; size_t n; };

static struct { long count; char name[256]; unsigned shape[7]; size_t n; unsigned char params[4096]; } last;

API long fake_launches(void) { return last.count; }
// fake_last copies the latest launch: its function's name, grid, block, shared
// memory, and parameters, whose size it returns.
API size_t fake_last(char *name, unsigned *shape, unsigned char *params) {
  pthread_mutex_lock(&lock);
  strcpy(name, last.name);
  memcpy(shape, last.shape, sizeof last.shape);
  memcpy(params, last.params, last.n);
  size_t n = last.n;
  pthread_mutex_unlock(&lock);
  return n;
}

// size_of_elf is where the last section or table of sections of a cubin ends.
static size_t size_of_elf(const uint8_t *b) {
  const Elf64_Ehdr *e = (const void *)b;
  size_t end = e->e_shoff + (size_t)e->e_shnum * e->e_shentsize;
  const Elf64_Shdr *s = (const void *)(b + e->e_shoff);
  for (int i = 0; i < e->e_shnum; i++)
    if (s[i].sh_type != SHT_NOBITS && s[i].sh_offset + s[i].sh_size > end) end = s[i].sh_offset + s[i].sh_size;
  return end;
}

API R cuModuleLoadDataEx(void **m, const void *image, unsigned n, const int *options, void **values) {
  CONTEXT_CALL(cuModuleLoadDataEx);
  struct module x = {0};
  const char *text = image;
  if (!memcmp(image, ELFMAG, SELFMAG)) x.n = size_of_elf(image);
  else if (!strncmp(text, "fake module\n", 12)) x.n = strlen(text) + 1;
  else {
    if (n == 2 && options[0] == 5 && options[1] == 6) snprintf(values[0], (size_t)values[1], "fake ptxas: line 1: no .version");
    return INVALID_PTX;
  }
  struct module *y = make(MODULE, here(), sizeof *y);
  y->n = x.n;
  y->image = malloc(x.n);
  memcpy(y->image, image, x.n);
  *m = y;
  return OK;
}
API R cuModuleUnload(struct module *m) {
  CONTEXT_CALL(cuModuleUnload);
  R r = kill_handle(m, MODULE);
  if (!r) free(m->image);
  return r;
}

// parameters reads a kernel's .nv.info.NAME: where each parameter lies.
static void parameters(const uint8_t *p, size_t size, struct function *f) {
  enum { SIZED = 4, KPARAM_INFO = 0x17 };
  for (const uint8_t *end = p + size; p + 4 <= end;) {
    int format = p[0], attribute = p[1], n = p[2] | p[3] << 8;
    p += 4;
    if (format != SIZED) continue;
    const uint8_t *body = p;
    p += n;
    if (attribute != KPARAM_INFO || n < 12) continue;
    int ordinal = body[4] | body[5] << 8;
    uint32_t bits;
    memcpy(&bits, body + 8, 4);
    if (ordinal >= 64) continue;
    f->param[ordinal].offset = body[6] | body[7] << 8, f->param[ordinal].size = bits >> 18;
    if (ordinal >= f->params) f->params = ordinal + 1;
  }
}

// cubin_function reads what a cubin says of the kernel f->name.
static int cubin_function(const struct module *m, struct function *f) {
  const Elf64_Ehdr *e = (const void *)m->image;
  const Elf64_Shdr *s = (const void *)(m->image + e->e_shoff);
  const char *names = (const char *)m->image + s[e->e_shstrndx].sh_offset;
  char text[300], info[300], shared[300];
  snprintf(text, sizeof text, ".text.%s", f->name);
  snprintf(info, sizeof info, ".nv.info.%s", f->name);
  snprintf(shared, sizeof shared, ".nv.shared.%s", f->name);
  int found = 0;
  for (int i = 0; i < e->e_shnum; i++) {
    const char *name = names + s[i].sh_name;
    const uint8_t *body = m->image + s[i].sh_offset;
    if (!strcmp(name, text)) found = 1;
    if (!strcmp(name, shared)) f->shared = s[i].sh_size;
    if (!strcmp(name, info)) f->known = 1, parameters(body, s[i].sh_size, f);
  }
  return found;
}

API R cuModuleGetFunction(void **out, struct module *m, const char *name) {
  CONTEXT_CALL(cuModuleGetFunction);
  if (!good(m, MODULE)) return INVALID_HANDLE;
  if (m->h.dev != here()) return INVALID_CONTEXT;
  struct function f = {0};
  snprintf(f.name, sizeof f.name, "%s", name);
  int found = 0;
  if (!memcmp(m->image, ELFMAG, SELFMAG)) found = cubin_function(m, &f);
  else // lines of a name and the sizes of its parameters, each at a multiple of 8
    for (const char *line = (const char *)m->image; line && *line; line = strchr(line, '\n'), line = line ? line + 1 : 0) {
      char word[256];
      int used = 0, at = 0;
      if (sscanf(line, "%255[^ \n]%n", word, &used) != 1 || strcmp(word, name)) continue;
      found = f.known = 1;
      for (const char *p = line + used; *p == ' ';) {
        int size = strtol(p, (char **)&p, 10);
        f.param[f.params].offset = at, f.param[f.params++].size = size;
        at = (at + size + 7) & ~7;
      }
    }
  if (!found) return NOT_FOUND;
  struct function *y = make(FUNCTION, here(), sizeof *y);
  struct handle h = y->h;
  *y = f;
  y->h = h;
  *out = y;
  return OK;
}
API R cuFuncGetAttribute(int *v, int a, struct function *f) {
  CONTEXT_CALL(cuFuncGetAttribute);
  if (!good(f, FUNCTION)) return INVALID_HANDLE;
  *v = a == 1 ? f->shared : 0;
  return OK;
}
API R cuFuncSetAttribute(struct function *f, int a, int v) {
  CONTEXT_CALL(cuFuncSetAttribute);
  if (!good(f, FUNCTION)) return INVALID_HANDLE;
  return a == 8 && v >= 0 && v <= 227 << 10 ? OK : INVALID_VALUE;
}
API R cuFuncGetParamInfo(struct function *f, size_t i, size_t *offset, size_t *size) {
  CONTEXT_CALL(cuFuncGetParamInfo);
  if (!good(f, FUNCTION)) return INVALID_HANDLE;
  if (!f->known || i >= (size_t)f->params) return INVALID_VALUE;
  *offset = f->param[i].offset, *size = f->param[i].size;
  return OK;
}
API R cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, struct function *f, int threads, size_t shared) {
  CONTEXT_CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor);
  if (!good(f, FUNCTION) || threads < 1) return INVALID_VALUE;
  *n = 2048 / threads;
  return OK;
}

API R cuLaunchKernel(struct function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                     unsigned shared, void *s, void **params, void **extra) {
  CONTEXT_CALL(cuLaunchKernel); ON(s);
  if (!good(f, FUNCTION)) return INVALID_HANDLE;
  if (f->h.dev != here()) return INVALID_CONTEXT;
  if (!gx || !gy || !gz || !bx || !by || !bz || (uint64_t)bx * by * bz > 1024 || gy > 65535 || gz > 65535 || shared > 227 << 10) return INVALID_VALUE;
  // The parameters come packed, or with a pointer for each.
  unsigned char packed[sizeof last.params] = {0};
  size_t n = 0, whole = f->params ? f->param[f->params - 1].offset + f->param[f->params - 1].size : 0;
  if (params) {
    if (extra || !f->known || whole > sizeof packed) return INVALID_VALUE;
    for (int i = 0; i < f->params; i++) memcpy(packed + f->param[i].offset, params[i], f->param[i].size);
    n = whole;
  } else {
    if (!extra || extra[0] != (void *)1 || extra[2] != (void *)2 || extra[4]) return INVALID_VALUE;
    n = *(size_t *)extra[3];
    if (n > sizeof packed || n < whole) return INVALID_VALUE;
    memcpy(packed, extra[1], n);
  }
  pthread_mutex_lock(&lock);
  last.count++;
  strcpy(last.name, f->name);
  unsigned shape[7] = {gx, gy, gz, bx, by, bz, shared};
  memcpy(last.shape, shape, sizeof shape);
  memcpy(last.params, packed, n);
  last.n = n;
  pthread_mutex_unlock(&lock);
  return OK;
}

API R cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *addr, const uint64_t *dims, const uint64_t *strides,
                             const uint32_t *box, const uint32_t *steps, int interleave, int swizzle, int promotion, int fill) {
  CALL(cuTensorMapEncodeTiled);
  if ((uintptr_t)map % 64 || (uintptr_t)addr % 16 || rank < 1 || rank > 5 || interleave) return INVALID_VALUE;
  uint64_t w[16] = {(uintptr_t)addr, type, rank, swizzle, promotion, fill};
  for (uint32_t i = 0; i < rank; i++) {
    if (!dims[i] || !box[i] || box[i] > 256 || !steps[i] || (i && strides[i - 1] % 16)) return INVALID_VALUE;
    w[6] = w[6] * 31 + dims[i], w[7] = w[7] * 31 + box[i], w[8] = w[8] * 31 + steps[i];
    if (i) w[9] = w[9] * 31 + strides[i - 1];
  }
  memcpy(map, w, sizeof w);
  return OK;
}
