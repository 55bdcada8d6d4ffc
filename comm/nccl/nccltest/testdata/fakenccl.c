// A stand-in for NCCL, for tests without a GPU. The ranks of a communicator are
// threads of one process, device memory is the host memory of the fake CUDA driver,
// and collectives are really carried out. It is strict where NCCL is not: a call on
// a communicator that another thread is in, that is not ready, that has ended, or
// without the right context counts as a violation.
//
// Each communicator has a thread that carries its calls out in order, as a stream of
// NCCL's own would. As a rule a call is done with only then, since the fake driver's
// streams do all work at once; fake_nccl_async makes calls return at once, and holds
// the stream until they are carried out.
//
// The functions called fake_nccl_* steer it; see nccltest.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))

typedef int R;
typedef struct { char internal[128]; } ncclUniqueId;
enum { OK = 0, CUDA = 1, SYSTEM = 2, INTERNAL = 3, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE = 6, IN_PROGRESS = 7 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // guards everything
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static int version = 22803;
static int async, deaf, logged;
static long violations;
static char violation[256], last_error[256];
static FILE *log_file;

static void violate(const char *what) {
  if (!violations++) snprintf(violation, sizeof violation, "%s", what);
}

// --- the driver's functions ---

static R (*get_current)(void **);
static R (*mem_alloc)(uint64_t *, size_t);
static R (*mem_free)(uint64_t);
static void (*hold)(void *, int);

API void fake_nccl_driver(const char *path) {
  void *h = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  get_current = dlsym(h, "cuCtxGetCurrent");
  mem_alloc = dlsym(h, "cuMemAlloc_v2");
  mem_free = dlsym(h, "cuMemFree_v2");
  hold = dlsym(h, "fake_hold");
  if (!get_current || !mem_alloc || !mem_free || !hold) abort();
}

// GORUN_FAKE_NCCL_DRIVER does the same at load, for processes that no test prepares.
__attribute__((constructor)) static void configure(void) {
  const char *path = getenv("GORUN_FAKE_NCCL_DRIVER");
  if (path) fake_nccl_driver(path);
}

static void *context(void) {
  void *c = 0;
  if (get_current) get_current(&c);
  return c;
}

// --- what tests set and see ---

static struct call { char name[64]; long count; int code, rank; long after; } calls[64];

static struct call *call_of(const char *name) {
  for (int i = 0; i < 64; i++) {
    if (!calls[i].name[0]) snprintf(calls[i].name, sizeof calls[i].name, "%s", name), calls[i].rank = -1;
    if (!strcmp(calls[i].name, name)) return &calls[i];
  }
  abort();
}

// entered counts a call of rank and returns what it has to fail with. lock is held.
static R entered(const char *name, int rank) {
  struct call *c = call_of(name);
  c->count++;
  if (!c->code || (c->rank >= 0 && rank >= 0 && c->rank != rank) || c->after-- > 0) return OK;
  snprintf(last_error, sizeof last_error, "%s was told to fail", name);
  return c->code;
}

API void fake_nccl_fail(const char *name, int rank, int code, long after) {
  pthread_mutex_lock(&lock);
  struct call *c = call_of(name);
  c->rank = rank, c->code = code, c->after = after;
  pthread_mutex_unlock(&lock);
}
API long fake_nccl_calls(const char *name) {
  pthread_mutex_lock(&lock);
  long n = call_of(name)->count;
  pthread_mutex_unlock(&lock);
  return n;
}
API void fake_nccl_version(int v) { version = v; }
API void fake_nccl_async(int on) { async = on; }
// fake_nccl_deaf keeps communicators from being made, and calls from being carried out.
API void fake_nccl_deaf(int on) {
  pthread_mutex_lock(&lock);
  deaf = on;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}
API long fake_nccl_violations(char *first) {
  pthread_mutex_lock(&lock);
  long n = violations;
  strcpy(first, violation);
  pthread_mutex_unlock(&lock);
  return n;
}

static long live_comms, live_memory;
API long fake_nccl_live(const char *what) { return !strcmp(what, "memory") ? live_memory : live_comms; }

static void say(const char *fmt, ...) {
  if (!logged++) {
    const char *level = getenv("NCCL_DEBUG"), *path = getenv("NCCL_DEBUG_FILE");
    if (level && path && !strcmp(level, "INFO")) log_file = fopen(path, "w");
    if (log_file) setlinebuf(log_file);
  }
  if (!log_file) return;
  va_list v;
  va_start(v, fmt);
  fprintf(log_file, "host:1:2 [0] NCCL INFO ");
  vfprintf(log_file, fmt, v);
  fprintf(log_file, "\n");
  va_end(v);
}

// --- communicators ---

enum kind { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, REDUCE, P2P };

struct part { int send, peer, done; char *at; size_t bytes; };

struct op {
  enum kind kind;
  char *src, *dst;
  size_t count;
  int type, op, root;
  struct part parts[256];
  int nparts;
  void *stream;
  long seq; // of collectives
  int done;
  struct op *next;
};

enum { MOST = 64, MEETINGS = 4096 };

struct comm;
struct world {
  ncclUniqueId id;
  int n, joined;
  struct comm *ranks[MOST];
  struct op *meeting[MEETINGS][MOST]; // by number of the collective
  struct world *next;
};

enum { MAGIC = 0x6e63636c };
struct comm {
  int magic, rank, n;
  struct world *w;
  void *context;
  int inside, state, fail_with, aborted, closing, finalized, spoken;
  long collectives;
  struct op *first, *last;
  int pending; // calls that are not carried out
  pthread_t thread;
};
static struct world *worlds;

static const int size_of[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

static float half(uint16_t h) {
  uint32_t sign = (uint32_t)(h >> 15) << 31, e = h >> 10 & 31, m = h & 1023, bits;
  if (e == 31) bits = sign | 0x7f800000 | m << 13;
  else if (e) bits = sign | (e + 112) << 23 | m << 13;
  else { float f = m * 0x1p-24f; return sign ? -f : f; }
  float f;
  memcpy(&f, &bits, 4);
  return f;
}
static uint16_t to_half(float f) { // of numbers that are normal in 16 bits, or 0
  uint32_t b;
  memcpy(&b, &f, 4);
  if (!(b << 1)) return b >> 16;
  uint32_t m = (b & 0x7fffff) | 0x800000, round = m & 0x1fff;
  int e = (int)(b >> 23 & 255) - 112;
  m >>= 13;
  if (round > 0x1000 || (round == 0x1000 && m & 1)) m++;
  return (b >> 16 & 0x8000) | ((e << 10) + (m - 0x400));
}
static double load(const char *p, int type) {
  switch (type) {
  case 1: return *(uint8_t *)p;
  case 2: return *(int32_t *)p;
  case 4: return (double)*(int64_t *)p;
  case 6: return half(*(uint16_t *)p);
  case 7: return *(float *)p;
  case 8: return *(double *)p;
  case 9: { uint32_t b = (uint32_t)*(uint16_t *)p << 16; float f; memcpy(&f, &b, 4); return f; }
  }
  abort();
}
static void store(char *p, int type, double v) {
  switch (type) {
  case 1: *(uint8_t *)p = (uint8_t)(int64_t)v; return;
  case 2: *(int32_t *)p = (int32_t)(int64_t)v; return;
  case 4: *(int64_t *)p = (int64_t)v; return;
  case 6: *(uint16_t *)p = to_half(v); return;
  case 7: *(float *)p = v; return;
  case 8: *(double *)p = v; return;
  case 9: { float f = v; uint32_t b; memcpy(&b, &f, 4); *(uint16_t *)p = (b + 0x7fff + (b >> 16 & 1)) >> 16; return; }
  }
  abort();
}

// reduced stores the reduction of count elements, from element `from` of each rank's
// src on, in out.
static void reduced(struct world *w, struct op **ops, char *out, size_t from, size_t count) {
  int type = ops[0]->type, op = ops[0]->op, size = size_of[type];
  for (size_t i = 0; i < count; i++) {
    double acc = load(ops[0]->src + (from + i) * size, type);
    for (int r = 1; r < w->n; r++) {
      double v = load(ops[r]->src + (from + i) * size, type);
      switch (op) {
      case 0: case 4: acc += v; break;
      case 1: acc *= v; break;
      case 2: if (v > acc) acc = v; break;
      case 3: if (v < acc) acc = v; break;
      default: abort();
      }
    }
    if (op == 4) acc /= w->n;
    store(out + i * size, type, acc);
  }
}

static int same(struct op *a, struct op *b) {
  return a->kind == b->kind && a->count == b->count && a->type == b->type && a->op == b->op && a->root == b->root;
}

// carry_out does a collective in which all ranks have met. What cannot be carried out
// because the ranks differ never ends, as with NCCL.
static int carry_out(struct world *w, struct op **ops) {
  for (int r = 1; r < w->n; r++) if (!same(ops[0], ops[r])) return 0;
  struct op *o = ops[0];
  size_t n = o->count, bytes = n * size_of[o->type];
  char *temp = malloc(bytes * w->n + 1);
  switch (o->kind) {
  case ALL_REDUCE: case REDUCE:
    reduced(w, ops, temp, 0, n);
    for (int r = 0; r < w->n; r++) if (o->kind == ALL_REDUCE || r == o->root) memcpy(ops[r]->dst, temp, bytes);
    break;
  case REDUCE_SCATTER:
    for (int r = 0; r < w->n; r++) reduced(w, ops, temp + r * bytes, r * n, n);
    for (int r = 0; r < w->n; r++) memcpy(ops[r]->dst, temp + r * bytes, bytes);
    break;
  case ALL_GATHER:
    for (int r = 0; r < w->n; r++) memcpy(temp + r * bytes, ops[r]->src, bytes);
    for (int r = 0; r < w->n; r++) memcpy(ops[r]->dst, temp, bytes * w->n);
    break;
  case BROADCAST:
    memcpy(temp, ops[o->root]->src, bytes);
    for (int r = 0; r < w->n; r++) memcpy(ops[r]->dst, temp, bytes);
    break;
  default: abort();
  }
  free(temp);
  if (entered("summing", -1)) ops[0]->dst[0]++; // wrong data, unnoticed
  for (int r = 0; r < w->n; r++) ops[r]->done = 1;
  return 1;
}

// transfer does the sends of op for which the peer's oldest call receives, and the
// other way round.
static void transfer(struct comm *c, struct op *op) {
  for (int i = 0; i < op->nparts; i++) {
    struct part *p = &op->parts[i];
    struct comm *peer = c->w->ranks[p->peer];
    if (p->done || !peer || peer->aborted || !peer->first || peer->first->kind != P2P || peer == c) continue;
    struct op *theirs = peer->first;
    for (int j = 0; j < theirs->nparts; j++) {
      struct part *q = &theirs->parts[j];
      if (q->done || q->peer != c->rank || q->send == p->send || q->bytes != p->bytes) continue;
      memcpy(p->send ? q->at : p->at, p->send ? p->at : q->at, p->bytes);
      p->done = q->done = 1;
      break;
    }
  }
  op->done = 1;
  for (int i = 0; i < op->nparts; i++) op->done &= op->parts[i].done;
}

// work is a communicator's thread: it joins the world, then carries calls out.
static void *work(void *arg) {
  struct comm *c = arg;
  struct world *w = c->w;
  pthread_mutex_lock(&lock);
  while (!c->aborted && (w->joined < w->n || deaf)) pthread_cond_wait(&changed, &lock);
  if (!c->aborted) {
    say("Pattern 4, crossNic 0, nChannels 12, bw 24.000000/24.000000, type NVL/PIX, sameChannels 1");
    say("24 coll channels, 24 collnet channels, 0 nvls channels, 32 p2p channels, 2 p2p channels per peer");
    c->state = c->fail_with;
  }
  pthread_cond_broadcast(&changed);
  while (!c->aborted) {
    struct op *op = c->first;
    if (!op) {
      if (c->closing) break;
      pthread_cond_wait(&changed, &lock);
      continue;
    }
    if (!c->spoken++) say("Channel 00/0 : %d[%d] -> %d[%d] via P2P/CUMEM", c->rank, c->rank, (c->rank + 1) % c->n, (c->rank + 1) % c->n);
    if (!op->done && !deaf) {
      if (op->kind == P2P) transfer(c, op);
      else {
        struct op **ops = w->meeting[op->seq % MEETINGS];
        ops[c->rank] = op;
        int there = 1;
        for (int r = 0; r < w->n; r++) there &= ops[r] != 0;
        if (there) carry_out(w, ops);
      }
      pthread_cond_broadcast(&changed);
    }
    if (!op->done) {
      pthread_cond_wait(&changed, &lock);
      continue;
    }
    if (op->kind != P2P) w->meeting[op->seq % MEETINGS][c->rank] = 0;
    c->first = op->next;
    if (!c->first) c->last = 0;
    c->pending--;
    int more = 0;
    for (struct op *o = c->first; o; o = o->next) more |= o->stream == op->stream;
    if (async && !more) hold(op->stream, 0);
    R failed = entered("carrying", c->rank);
    if (failed) c->state = c->fail_with = failed;
    else if (c->state == IN_PROGRESS && !c->pending) c->state = c->fail_with;
    free(op);
    pthread_cond_broadcast(&changed);
  }
  // Kernels that are aborted leave the stream.
  for (struct op *o = c->first; o; o = o->next) if (async) hold(o->stream, 0);
  if (!c->aborted && c->state == IN_PROGRESS) c->state = OK;
  pthread_mutex_unlock(&lock);
  return 0;
}

// enter begins a call on c. lock is held.
static R enter(struct comm *c, const char *name) {
  R r = entered(name, c && c->magic == MAGIC ? c->rank : -1);
  if (!c || c->magic != MAGIC) { violate("a call on no communicator, or one that has ended"); return INVALID_ARGUMENT; }
  if (c->inside++) violate("two threads are in one communicator");
  return r;
}
static void leave(struct comm *c) { if (c && c->magic == MAGIC) c->inside--; }

static void needs_context(struct comm *c) {
  if (context() != c->context) violate("a call without the communicator's context");
}

// --- the library's functions ---

API R ncclGetVersion(int *v) { *v = version; return OK; }
API const char *ncclGetErrorString(R r) {
  static const char *text[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error", "invalid argument",
                               "invalid usage", "remote process exited or there was a network error", "NCCL operation in progress"};
  return r >= 0 && r < 8 ? text[r] : "unknown result code";
}
API const char *ncclGetLastError(struct comm *c) { return last_error; }

API R ncclGetUniqueId(ncclUniqueId *id) {
  static int made;
  pthread_mutex_lock(&lock);
  R r = entered("ncclGetUniqueId", 0);
  made++;
  for (int i = 0; i < 128; i++) id->internal[i] = (char)(i * 7 + made * 13 + 1);
  memcpy(id->internal, &made, sizeof made);
  pthread_mutex_unlock(&lock);
  return r;
}

struct config {
  size_t size;
  unsigned magic, version;
  int blocking, cga, min_ctas, max_ctas;
  const char *net;
  int split, traffic;
  const char *name;
  int rest[10];
};
_Static_assert(sizeof(struct config) == 96, "ncclConfig_t of 2.30");

static int latest_ctas;
static char latest_name[64];
API int fake_nccl_config(char *name) { strcpy(name, latest_name); return latest_ctas; }

static R join(struct comm **out, int n, ncclUniqueId id, int rank, struct config *cfg, const char *name) {
  pthread_mutex_lock(&lock);
  R r = entered(name, rank);
  *out = 0;
  if (!context()) violate("a communicator is made without a context");
  int made;
  memcpy(&made, id.internal, sizeof made);
  for (int i = sizeof made; i < 128; i++) if (id.internal[i] != (char)(i * 7 + made * 13 + 1)) violate("the id is another than ncclGetUniqueId gave");
  if (cfg->size != 96 || cfg->magic != 0xcafebeef || cfg->version != (unsigned)version || cfg->blocking != 0 || cfg->cga != INT_MIN ||
      cfg->split != INT_MIN || cfg->net || cfg->rest[9] != INT_MIN)
    violate("a config that NCCL would not understand");
  if (n < 1 || n > MOST || rank < 0 || rank >= n) r = INVALID_ARGUMENT;
  if (r) { pthread_mutex_unlock(&lock); return r; }
  latest_ctas = cfg->max_ctas;
  snprintf(latest_name, sizeof latest_name, "%s", version >= 22700 && cfg->name ? cfg->name : "");
  struct world *w = worlds;
  while (w && memcmp(&w->id, &id, sizeof id)) w = w->next;
  if (!w) {
    w = calloc(1, sizeof *w);
    w->id = id, w->n = n, w->next = worlds;
    worlds = w;
  }
  struct comm *c = calloc(1, sizeof *c);
  *c = (struct comm){.magic = MAGIC, .rank = rank, .n = n, .w = w, .context = context(), .state = IN_PROGRESS};
  if (w->n != n || w->ranks[rank]) violate("a rank that is there already, or another number of ranks");
  w->ranks[rank] = c;
  w->joined++;
  live_comms++;
  c->fail_with = entered("making", rank); // fails later, on NCCL's own thread
  pthread_create(&c->thread, 0, work, c);
  *out = c;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  return IN_PROGRESS;
}

API R ncclCommInitRankConfig(struct comm **out, int n, ncclUniqueId id, int rank, struct config *cfg) {
  return join(out, n, id, rank, cfg, "ncclCommInitRankConfig");
}
API R ncclCommInitRankScalable(struct comm **out, int n, int rank, int ids, ncclUniqueId *id, struct config *cfg) {
  if (ids != 1) violate("several ids");
  return join(out, n, *id, rank, cfg, "ncclCommInitRankScalable");
}

API R ncclCommGetAsyncError(struct comm *c, R *state) {
  pthread_mutex_lock(&lock);
  R r = enter(c, "ncclCommGetAsyncError");
  if (!r) {
    *state = c->state;
    R later = call_of("async")->code ? entered("async", c->rank) : OK; // met after a call had returned
    if (*state == OK && later) *state = c->state = later;
  }
  leave(c);
  pthread_mutex_unlock(&lock);
  return r;
}

static void end(struct comm *c) {
  pthread_mutex_unlock(&lock);
  pthread_join(c->thread, 0);
  pthread_mutex_lock(&lock);
  while (c->first) { // a dead rank's calls have to be met by nobody
    struct op *o = c->first;
    c->first = o->next;
    if (o->kind != P2P && c->w->meeting[o->seq % MEETINGS][c->rank] == o) c->w->meeting[o->seq % MEETINGS][c->rank] = 0;
    free(o);
  }
  c->w->ranks[c->rank] = 0;
  c->magic = 0; // its memory stays, so that later calls are known as such
  live_comms--;
}

API R ncclCommAbort(struct comm *c) {
  pthread_mutex_lock(&lock);
  R r = enter(c, "ncclCommAbort");
  if (c && c->magic == MAGIC) {
    needs_context(c);
    c->aborted = 1;
    // The kernels of peers that wait for this one's may find what makes them go on.
    for (int p = 0; p < c->n; p++)
      if (c->w->ranks[p] && c->w->ranks[p]->first && p != c->rank) c->w->ranks[p]->first->done = 1;
    pthread_cond_broadcast(&changed);
    end(c);
  }
  pthread_mutex_unlock(&lock);
  return r;
}
API R ncclCommFinalize(struct comm *c) {
  pthread_mutex_lock(&lock);
  R r = enter(c, "ncclCommFinalize");
  if (!r) {
    needs_context(c);
    if (c->pending) violate("a communicator is closed whose calls have not ended");
    if (c->finalized++) violate("a communicator is closed twice");
    c->state = IN_PROGRESS;
    c->closing = 1;
    pthread_cond_broadcast(&changed);
    r = IN_PROGRESS;
  }
  leave(c);
  pthread_mutex_unlock(&lock);
  return r;
}
API R ncclCommDestroy(struct comm *c) {
  pthread_mutex_lock(&lock);
  R r = enter(c, "ncclCommDestroy");
  if (!r) {
    if (!c->finalized || c->state == IN_PROGRESS) violate("a communicator is destroyed that is not finalized");
    end(c);
  }
  leave(c);
  pthread_mutex_unlock(&lock);
  return r;
}

// --- calls ---

static __thread int depth;
static __thread struct op *group;
static __thread struct comm *group_comm;

// launch hands a call to the communicator's thread. lock is held.
static R launch(struct comm *c, struct op *op) {
  op->seq = op->kind == P2P ? -1 : c->collectives++;
  if (c->last) c->last->next = op; else c->first = op;
  c->last = op;
  c->pending++;
  if (async) hold(op->stream, 1); else c->state = IN_PROGRESS;
  pthread_cond_broadcast(&changed);
  return c->state;
}

static R collective(struct comm *c, const char *name, struct op o) {
  pthread_mutex_lock(&lock);
  R r = enter(c, name);
  if (!r) {
    needs_context(c);
    if (c->state == IN_PROGRESS) {
      snprintf(last_error, sizeof last_error, "Attempt to use communicator before the previous operation returned ncclSuccess");
      r = INVALID_ARGUMENT;
    } else if (o.type < 0 || o.type > 9 || !o.count) {
      r = INVALID_ARGUMENT;
    } else if (!(r = c->state)) {
      struct op *op = malloc(sizeof *op);
      *op = o;
      r = launch(c, op);
    }
  }
  leave(c);
  pthread_mutex_unlock(&lock);
  return r;
}

API R ncclAllReduce(char *src, char *dst, size_t n, int type, int op, struct comm *c, void *s) {
  return collective(c, "ncclAllReduce", (struct op){.kind = ALL_REDUCE, .src = src, .dst = dst, .count = n, .type = type, .op = op, .root = -1, .stream = s});
}
API R ncclReduceScatter(char *src, char *dst, size_t n, int type, int op, struct comm *c, void *s) {
  return collective(c, "ncclReduceScatter", (struct op){.kind = REDUCE_SCATTER, .src = src, .dst = dst, .count = n, .type = type, .op = op, .root = -1, .stream = s});
}
API R ncclAllGather(char *src, char *dst, size_t n, int type, struct comm *c, void *s) {
  return collective(c, "ncclAllGather", (struct op){.kind = ALL_GATHER, .src = src, .dst = dst, .count = n, .type = type, .root = -1, .stream = s});
}
API R ncclBroadcast(char *src, char *dst, size_t n, int type, int root, struct comm *c, void *s) {
  return collective(c, "ncclBroadcast", (struct op){.kind = BROADCAST, .src = src, .dst = dst, .count = n, .type = type, .root = root, .stream = s});
}
API R ncclReduce(char *src, char *dst, size_t n, int type, int op, int root, struct comm *c, void *s) {
  return collective(c, "ncclReduce", (struct op){.kind = REDUCE, .src = src, .dst = dst, .count = n, .type = type, .op = op, .root = root, .stream = s});
}

API R ncclGroupStart(void) {
  pthread_mutex_lock(&lock);
  R r = entered("ncclGroupStart", -1);
  pthread_mutex_unlock(&lock);
  if (!r) depth++;
  return r;
}
static R p2p(struct comm *c, const char *name, int send, char *at, size_t n, int type, int peer, void *s) {
  pthread_mutex_lock(&lock);
  R r = enter(c, name);
  if (!r) {
    needs_context(c);
    if (!depth) violate("a send or receive outside of a group");
    if (c->state == IN_PROGRESS || type < 0 || type > 9 || peer < 0 || peer >= c->n || peer == c->rank || !n) r = INVALID_ARGUMENT;
    else {
      if (!group) group = calloc(1, sizeof *group), group->kind = P2P, group->stream = s, group_comm = c;
      group->parts[group->nparts++] = (struct part){send, peer, 0, at, n * size_of[type]};
    }
  }
  leave(c);
  pthread_mutex_unlock(&lock);
  return r;
}
API R ncclSend(char *src, size_t n, int type, int peer, struct comm *c, void *s) { return p2p(c, "ncclSend", 1, src, n, type, peer, s); }
API R ncclRecv(char *dst, size_t n, int type, int peer, struct comm *c, void *s) { return p2p(c, "ncclRecv", 0, dst, n, type, peer, s); }
API R ncclGroupEnd(void) {
  pthread_mutex_lock(&lock);
  R r = entered("ncclGroupEnd", group_comm ? group_comm->rank : -1);
  if (--depth < 0) violate("a group ends that was not started");
  if (group && !r) r = launch(group_comm, group);
  else free(group);
  group = 0, group_comm = 0;
  pthread_mutex_unlock(&lock);
  return r;
}

// --- memory ---

API R ncclMemAlloc(void **p, size_t n) {
  pthread_mutex_lock(&lock);
  R r = entered("ncclMemAlloc", -1);
  if (!r && mem_alloc((uint64_t *)p, n)) r = CUDA;
  if (!r) live_memory++;
  pthread_mutex_unlock(&lock);
  return r;
}
API R ncclMemFree(void *p) {
  pthread_mutex_lock(&lock);
  R r = entered("ncclMemFree", -1);
  if (!r && mem_free((uint64_t)p)) r = CUDA;
  if (!r) live_memory--;
  pthread_mutex_unlock(&lock);
  return r;
}
