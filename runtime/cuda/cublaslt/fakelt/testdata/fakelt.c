// A libcublasLt for tests without a GPU. Device memory is host memory and every
// call is synchronous: products are computed here, from exactly the arguments that
// the real library would get, so that a mistaken leading dimension shows as a wrong
// number. Arguments that the real library refuses are refused.
//
// Its algorithms differ in speed and in faults; fake_offer names those that it
// proposes by their bits (1 << id).
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifndef VERSION
#define VERSION 130100
#endif

enum { OK = 0, NOT_INITIALIZED = 1, ALLOC_FAILED = 3, INVALID = 7, NOT_SUPPORTED = 15 };
enum { F32 = 0, BF16 = 14, COMPUTE_32F = 68 };

// The algorithms, in the order in which they are proposed.
enum {
    SLOW = 1,
    GOOD = 2,
    IN_PLACE = 3,  // adds in the output, in no fixed order
    SHORT = 4,     // drops the last element of the sum; the fastest
    HUNGRY = 5,    // wants more workspace than there is
    AGAIN = 6,     // GOOD once more
    REFUSED = 7,   // is proposed, but does not launch
    RESTLESS = 8,  // another result at every call
    ALGORITHMS
};
static const int microseconds[ALGORITHMS] = {0, 200, 60, 0, 0, 0, 60, 0, 20};

typedef struct { uint64_t data[8]; } algo_t; // id, split, reduction
typedef struct { algo_t algo; size_t workspace; int state; float waves; int reserved[4]; } result_t;
typedef struct { uint32_t magic; int32_t transa, transb; uint32_t epilogue; void *bias; } desc_t;
typedef struct { uint32_t magic; int32_t type; uint64_t rows, cols; int64_t ld; } layout_t;
typedef struct { uint32_t magic; uint64_t workspace; uint32_t reductions, align[4]; } pref_t;
typedef struct { uint32_t magic; } handle_t;
enum { DESC = 0xde5c, LAYOUT = 0x1a70, PREF = 0x93ef, HANDLE = 0xa4d1e };

// What the tests read: the latest product and the latest search for algorithms.
struct record {
    int64_t m, n, k, lda, ldb, ldc, ldd;
    int64_t transa, transb, typea, typeb, typec, typed, epilogue, algorithm;
    uint64_t a, b, c, d, bias, workspace, workspace_bytes, stream;
    double alpha, beta;
    uint64_t pref_workspace, pref_reductions, pref_align[4], requested;
    int64_t products, searches, live;
};
static struct record record;
void fake_record(struct record *out) { *out = record; }

static char fail_call[64];
static int fail_status;
static uint64_t offered = 1 << SLOW | 1 << GOOD | 1 << IN_PLACE | 1 << HUNGRY | 1 << AGAIN | 1 << REFUSED;

// fake_fail makes the next calls of one function return a status; "" ends it.
void fake_fail(const char *call, int status) {
    snprintf(fail_call, sizeof fail_call, "%s", call);
    fail_status = status;
}

void fake_offer(uint64_t mask) { offered = mask; }

#define CALL                                             \
    do {                                                 \
        if (!strcmp(fail_call, __func__)) return fail_status; \
    } while (0)

size_t cublasLtGetVersion(void) { return VERSION; }

const char *cublasLtGetStatusName(int s) {
    switch (s) {
    case OK: return "CUBLAS_STATUS_SUCCESS";
    case NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case INVALID: return "CUBLAS_STATUS_INVALID_VALUE";
    case NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    }
    return "CUBLAS_STATUS_OTHER";
}

const char *cublasLtGetStatusString(int s) { return s == NOT_SUPPORTED ? "fake: not supported" : "fake: failed"; }

static void *object(size_t n, uint32_t magic) {
    uint32_t *p = calloc(1, n);
    *p = magic;
    record.live++;
    return p;
}

static int destroy(void *p, uint32_t magic) {
    if (!p || *(uint32_t *)p != magic) return INVALID;
    *(uint32_t *)p = 0;
    free(p);
    record.live--;
    return OK;
}

int cublasLtCreate(handle_t **h) {
    CALL;
    *h = object(sizeof **h, HANDLE);
    return OK;
}
int cublasLtDestroy(handle_t *h) { CALL; return destroy(h, HANDLE); }

int cublasLtMatmulDescCreate(desc_t **d, int compute, int scale) {
    CALL;
    if (compute != COMPUTE_32F || scale != F32) return INVALID;
    *d = object(sizeof **d, DESC);
    (*d)->epilogue = 1;
    return OK;
}
int cublasLtMatmulDescDestroy(desc_t *d) { CALL; return destroy(d, DESC); }

int cublasLtMatmulDescSetAttribute(desc_t *d, int attribute, const void *value, size_t size) {
    CALL;
    if (!d || d->magic != DESC) return INVALID;
    struct { int attribute; void *to; size_t size; } known[] = {
        {3, &d->transa, 4}, {4, &d->transb, 4}, {7, &d->epilogue, 4}, {8, &d->bias, 8}};
    for (int i = 0; i < 4; i++)
        if (known[i].attribute == attribute && known[i].size == size) {
            memcpy(known[i].to, value, size);
            return OK;
        }
    return INVALID;
}

int cublasLtMatrixLayoutCreate(layout_t **l, int type, uint64_t rows, uint64_t cols, int64_t ld) {
    CALL;
    if (type != F32 && type != BF16) return INVALID;
    if (!rows || !cols || ld < (int64_t)rows) return INVALID;
    *l = object(sizeof **l, LAYOUT);
    (*l)->type = type, (*l)->rows = rows, (*l)->cols = cols, (*l)->ld = ld;
    return OK;
}
int cublasLtMatrixLayoutDestroy(layout_t *l) { CALL; return destroy(l, LAYOUT); }

int cublasLtMatmulPreferenceCreate(pref_t **p) {
    CALL;
    *p = object(sizeof **p, PREF);
    (*p)->reductions = 7;
    for (int i = 0; i < 4; i++) (*p)->align[i] = 256;
    return OK;
}
int cublasLtMatmulPreferenceDestroy(pref_t *p) { CALL; return destroy(p, PREF); }

int cublasLtMatmulPreferenceSetAttribute(pref_t *p, int attribute, const void *value, size_t size) {
    CALL;
    if (!p || p->magic != PREF) return INVALID;
    if (attribute == 1 && size == 8) memcpy(&p->workspace, value, 8);
    else if (attribute == 3 && size == 4) memcpy(&p->reductions, value, 4);
    else if (attribute >= 5 && attribute <= 8 && size == 4) memcpy(&p->align[attribute - 5], value, 4);
    else return INVALID;
    return OK;
}

// shape checks that the matrices of a product fit and returns m, n, k.
static int shape(desc_t *o, layout_t *a, layout_t *b, layout_t *c, layout_t *d, int64_t *m, int64_t *n, int64_t *k) {
    if (!o || o->magic != DESC || !a || a->magic != LAYOUT || !b || b->magic != LAYOUT) return INVALID;
    if (!c || c->magic != LAYOUT || !d || d->magic != LAYOUT) return INVALID;
    *m = o->transa ? a->cols : a->rows;
    *k = o->transa ? a->rows : a->cols;
    *n = o->transb ? b->rows : b->cols;
    if (*k != (int64_t)(o->transb ? b->cols : b->rows)) return INVALID;
    if ((int64_t)d->rows != *m || (int64_t)d->cols != *n || c->rows != d->rows || c->cols != d->cols) return INVALID;
    if (a->type != b->type || c->type != d->type || (d->type != a->type && d->type != F32)) return NOT_SUPPORTED;
    return OK;
}

static algo_t algorithm(int id) {
    algo_t a = {{id == AGAIN ? GOOD : id, id == IN_PLACE ? 4 : 1, id == IN_PLACE ? 1 : 0, 0, 0, 0, 0, 0xfeed}};
    return a;
}

static size_t appetite(int id) { return id == HUNGRY ? (size_t)1 << 40 : 1024; }

int cublasLtMatmulAlgoGetHeuristic(handle_t *h, desc_t *o, layout_t *a, layout_t *b, layout_t *c, layout_t *d,
                                   pref_t *p, int requested, result_t *out, int *found) {
    CALL;
    if (!h || h->magic != HANDLE || !p || p->magic != PREF || requested < 1) return INVALID;
    int64_t m, n, k;
    int status = shape(o, a, b, c, d, &m, &n, &k);
    if (status) return status;
    record.searches++;
    record.pref_workspace = p->workspace, record.pref_reductions = p->reductions, record.requested = requested;
    for (int i = 0; i < 4; i++) record.pref_align[i] = p->align[i];
    *found = 0;
    for (int id = 1; id < ALGORITHMS && *found < requested; id++) {
        if (!(offered >> id & 1)) continue;
        result_t *r = &out[(*found)++];
        memset(r, 0, sizeof *r);
        r->algo = algorithm(id), r->workspace = appetite(id), r->waves = 1;
    }
    return OK;
}

int cublasLtMatmulAlgoCheck(handle_t *h, desc_t *o, layout_t *a, layout_t *b, layout_t *c, layout_t *d,
                            const algo_t *algo, result_t *out) {
    CALL;
    if (!h || h->magic != HANDLE) return INVALID;
    int64_t m, n, k;
    int status = shape(o, a, b, c, d, &m, &n, &k);
    if (status) return status;
    if (algo->data[0] < 1 || algo->data[0] >= ALGORITHMS || algo->data[7] != 0xfeed) return NOT_SUPPORTED;
    memset(out, 0, sizeof *out);
    out->workspace = appetite(algo->data[0]);
    return OK;
}

int cublasLtMatmulAlgoConfigGetAttribute(const algo_t *algo, int attribute, void *value, size_t size, size_t *written) {
    CALL;
    uint64_t v = attribute == 0 ? algo->data[0] : attribute == 2 ? algo->data[1] : attribute == 3 ? algo->data[2] : 0;
    size_t want = attribute == 7 || attribute == 8 ? 2 : 4;
    if (attribute < 0 || attribute > 8 || size != want) return INVALID;
    memcpy(value, &v, size);
    *written = size;
    return OK;
}

static double number(const void *base, int64_t i, int type) {
    float f;
    if (type == F32) return ((const float *)base)[i];
    uint32_t bits = (uint32_t)((const uint16_t *)base)[i] << 16;
    memcpy(&f, &bits, 4);
    return f;
}

static void put(void *base, int64_t i, int type, double v) {
    float f = (float)v;
    if (type == F32) {
        ((float *)base)[i] = f;
        return;
    }
    uint32_t bits;
    memcpy(&bits, &f, 4);
    if (f == f) bits += 0x7fff + (bits >> 16 & 1); else bits |= 0x400000;
    ((uint16_t *)base)[i] = bits >> 16;
}

static void spend(int us) {
    struct timespec from, now;
    clock_gettime(CLOCK_MONOTONIC, &from);
    do clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - from.tv_sec) * 1000000 + (now.tv_nsec - from.tv_nsec) / 1000 < us);
}

int cublasLtMatmul(handle_t *h, desc_t *o, const float *alpha, const void *a, layout_t *la, const void *b, layout_t *lb,
                   const float *beta, const void *c, layout_t *lc, void *d, layout_t *ld, const algo_t *algo,
                   void *workspace, size_t bytes, void *stream) {
    CALL;
    if (!h || h->magic != HANDLE || !a || !b || !c || !d || !algo || !stream) return INVALID;
    int64_t m, n, k;
    int status = shape(o, la, lb, lc, ld, &m, &n, &k);
    if (status) return status;
    uint64_t id = algo->data[0];
    if (id < 1 || id >= ALGORITHMS || algo->data[7] != 0xfeed) return INVALID;
    if (id == REFUSED) return NOT_SUPPORTED;
    if (!workspace || bytes < appetite(id)) return INVALID;
    if (o->epilogue != 1 && (o->epilogue != 4 || !o->bias || (uintptr_t)o->bias % 16)) return INVALID;
    if (c == d && lc->ld != ld->ld) return INVALID;

    int64_t products = record.products + 1;
    uint64_t search[7] = {record.pref_workspace, record.pref_reductions, record.pref_align[0], record.pref_align[1],
                          record.pref_align[2], record.pref_align[3], record.requested};
    record = (struct record){
        m, n, k, la->ld, lb->ld, lc->ld, ld->ld,
        o->transa, o->transb, la->type, lb->type, lc->type, ld->type, o->epilogue, id,
        (uintptr_t)a, (uintptr_t)b, (uintptr_t)c, (uintptr_t)d, (uintptr_t)o->bias, (uintptr_t)workspace, bytes, (uintptr_t)stream,
        *alpha, *beta,
        search[0], search[1], {search[2], search[3], search[4], search[5]}, search[6],
        products, record.searches, record.live};

    spend(microseconds[id]);
    if (id == SHORT) k--;
    for (int64_t j = 0; j < n; j++)
        for (int64_t i = 0; i < m; i++) {
            double sum = 0;
            for (int64_t l = 0; l < k; l++) {
                double x = number(a, o->transa ? i * la->ld + l : l * la->ld + i, la->type);
                double y = number(b, o->transb ? l * lb->ld + j : j * lb->ld + l, lb->type);
                sum += x * y;
            }
            sum *= *alpha;
            if (*beta != 0) sum += *beta * number(c, j * lc->ld + i, lc->type);
            if (o->epilogue == 4) sum += number(o->bias, i, ld->type);
            if (id == RESTLESS) sum += (double)(products & 1);
            put(d, j * ld->ld + i, ld->type, sum);
        }
    return OK;
}
