// A cuDNN for tests: it holds descriptors as the real one does, refuses what the
// real one would refuse (and more: attributes in another order than the one that is
// known to work), records what it is given, and computes nothing.
//
// VERSION is what it says of itself.
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef VERSION
#define VERSION 91400
#endif

enum { OK = 0, BAD = 2000, NOT_FINALIZED = 2004, NOT_SUPPORTED = 3000 };
enum { HANDLE = 0, DATA_TYPE = 1, BOOL = 2, INT64 = 3, POINTER = 6, HEUR = 8, NOTE = 11, PW_MODE = 14, DESC = 15, RED_MODE = 18, CHAR = 24 };
enum { PW = 0, ENGINE = 2, CONFIG = 3, HEURISTIC = 4, PLAN = 5, PW_OP = 13, GRAPH = 15, PACK = 16, TENSOR = 17, MATMUL = 18, MATMUL_OP = 19, RED = 21, RED_OP = 22, RESHAPE_OP = 31 };

// rules is what may be set on a kind of descriptor, in the order in which it must be.
static const struct rule { int kind, attr, type, least, most; } rules[] = {
	{TENSOR, 901, DATA_TYPE, 1, 1}, {TENSOR, 902, INT64, 4, 4}, {TENSOR, 903, INT64, 4, 4}, {TENSOR, 906, INT64, 1, 1},
	{TENSOR, 900, INT64, 1, 1}, {TENSOR, 907, BOOL, 0, 1}, {TENSOR, 908, BOOL, 0, 1},
	{MATMUL, 1500, DATA_TYPE, 1, 1},
	{MATMUL_OP, 1520, DESC, 1, 1}, {MATMUL_OP, 1521, DESC, 1, 1}, {MATMUL_OP, 1522, DESC, 1, 1}, {MATMUL_OP, 1523, DESC, 1, 1},
	{PW, 0, PW_MODE, 1, 1}, {PW, 1, DATA_TYPE, 1, 1}, {PW, 9, INT64, 0, 1},
	{PW_OP, 750, DESC, 1, 1}, {PW_OP, 751, DESC, 1, 1}, {PW_OP, 753, DESC, 1, 1}, {PW_OP, 752, DESC, 0, 1}, {PW_OP, 758, DESC, 0, 1},
	{RED, 1601, DATA_TYPE, 1, 1}, {RED, 1600, RED_MODE, 1, 1},
	{RED_OP, 1612, DESC, 1, 1}, {RED_OP, 1610, DESC, 1, 1}, {RED_OP, 1611, DESC, 1, 1},
	{RESHAPE_OP, 2200, DESC, 1, 1}, {RESHAPE_OP, 2201, DESC, 1, 1},
	{GRAPH, 800, HANDLE, 1, 1}, {GRAPH, 801, DESC, 1, 64},
	{HEURISTIC, 201, DESC, 1, 1}, {HEURISTIC, 200, HEUR, 1, 1},
	{PLAN, 400, HANDLE, 1, 1}, {PLAN, 401, DESC, 0, 1}, {PLAN, 405, CHAR, 0, 1 << 20},
	{PACK, 1000, INT64, 1, 64}, {PACK, 1001, POINTER, 1, 64}, {PACK, 1003, POINTER, 1, 1},
};

typedef struct desc desc;
struct value { int count; int64_t v[64]; char *text; };
struct desc {
	int kind, finalized, last; // last: the rule that was applied last
	struct value values[sizeof rules / sizeof *rules];
	desc *graph;      // of a heuristic, a configuration or a plan
	int mode, engine; // of a configuration
	int64_t workspace, ids[64];
	int n; // ids
	desc *next;
};
typedef struct { int magic; uint64_t stream; } handle;

static desc *live;          // descriptors that were not destroyed
static int handles;         // that were not destroyed
static char error[512];     // the last one's text
static char *record;        // what was finalized as a graph, and what was executed
static const char *failing; // the function that shall fail, and at which call from now
static int failing_at;
static int engines_a = 3, engines_fallback = 1, bad_engines, nondeterministic;
static int64_t workspace = 256;

static int fail(int code, const char *format, ...) {
	va_list args;
	va_start(args, format);
	vsnprintf(error, sizeof error, format, args);
	va_end(args);
	return code;
}

static void note(const char *format, ...) {
	char line[4096];
	va_list args;
	va_start(args, format);
	vsnprintf(line, sizeof line, format, args);
	va_end(args);
	size_t old = record ? strlen(record) : 0;
	record = realloc(record, old + strlen(line) + 1);
	strcpy(record + old, line);
}

static int due(const char *function) {
	return failing && !strcmp(failing, function) && --failing_at == 0;
}
#define INJECT(f) if (due(f)) return fail(BAD, "injected into %s", f)

static desc *known(void *p) {
	for (desc *d = live; d; d = d->next) if (d == p) return d;
	return NULL;
}

static struct value *value(desc *d, int attr) {
	for (int i = 0; i < (int)(sizeof rules / sizeof *rules); i++)
		if (rules[i].kind == d->kind && rules[i].attr == attr) return &d->values[i];
	abort();
}

// Controls of the tests.
void fakeReset(void) {
	while (live) { desc *next = live->next; free(live); live = next; }
	free(record);
	record = NULL, failing = NULL, failing_at = 0, handles = 0, engines_a = 3, engines_fallback = 1, bad_engines = 0, nondeterministic = 0, workspace = 256;
}
void fakeFail(const char *function, int at) { failing = strdup(function), failing_at = at; }
int fakePending(void) { return failing && failing_at > 0; }
void fakeEngines(int a, int fallback, int bad, int notes) { engines_a = a, engines_fallback = fallback, bad_engines = bad, nondeterministic = notes; }
void fakeWorkspace(int64_t bytes) { workspace = bytes; }
const char *fakeRecord(void) { return record ? record : ""; }
int fakeLive(void) { int n = handles; for (desc *d = live; d; d = d->next) n++; return n; }

size_t cudnnGetVersion(void) { return VERSION; }
size_t cudnnGetCudartVersion(void) { return 13000; }
const char *cudnnGetErrorString(int s) { return s == BAD ? "CUDNN_STATUS_BAD_PARAM" : s == NOT_FINALIZED ? "CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED" : s == NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED" : "CUDNN_STATUS_SUCCESS"; }
void cudnnGetLastErrorString(char *b, size_t n) { snprintf(b, n, "%s\n", error); error[0] = 0; }

#ifndef WITHOUT_CREATE
int cudnnCreate(handle **h) {
	INJECT("cudnnCreate");
	*h = calloc(1, sizeof **h);
	(*h)->magic = 42, handles++;
	return OK;
}
#endif
int cudnnDestroy(handle *h) {
	if (!h || h->magic != 42) return fail(BAD, "no handle");
	h->magic = 0, handles--;
	free(h);
	INJECT("cudnnDestroy");
	return OK;
}
int cudnnSetStream(handle *h, uint64_t stream) {
	INJECT("cudnnSetStream");
	if (!h || h->magic != 42) return fail(BAD, "no handle");
	h->stream = stream;
	return OK;
}

int cudnnBackendCreateDescriptor(int kind, desc **out) {
	INJECT("cudnnBackendCreateDescriptor");
	desc *d = calloc(1, sizeof *d);
	d->kind = kind, d->last = -1, d->next = live, live = d;
	*out = d;
	return OK;
}
int cudnnBackendDestroyDescriptor(desc *d) {
	for (desc **p = &live; *p; p = &(*p)->next)
		if (*p == d) {
			*p = d->next;
			free(d);
			INJECT("cudnnBackendDestroyDescriptor");
			return OK;
		}
	return fail(BAD, "destroys what is no descriptor");
}

int cudnnBackendSetAttribute(desc *d, int attr, int type, int64_t count, const void *array) {
	static const int sizes[32] = {[HANDLE] = 8, [DATA_TYPE] = 4, [BOOL] = 1, [INT64] = 8, [POINTER] = 8, [HEUR] = 4, [PW_MODE] = 4, [DESC] = 8, [RED_MODE] = 4, [CHAR] = 1};
	INJECT("cudnnBackendSetAttribute");
	if (!known(d)) return fail(BAD, "sets an attribute of what is no descriptor");
	if (d->finalized) return fail(BAD, "sets attribute %d of a finalized descriptor", attr);
	int i = 0, n = sizeof rules / sizeof *rules;
	while (i < n && (rules[i].kind != d->kind || rules[i].attr != attr)) i++;
	if (i == n) return fail(BAD, "descriptor %d has no attribute %d", d->kind, attr);
	if (rules[i].type != type) return fail(BAD, "attribute %d has type %d, not %d", attr, rules[i].type, type);
	if (i <= d->last) return fail(BAD, "attribute %d comes too late", attr);
	if (count < rules[i].least || count > rules[i].most || count < 1) return fail(BAD, "attribute %d with %ld elements", attr, (long)count);
	if (!array) return fail(BAD, "attribute %d without elements", attr);
	d->last = i;
	struct value *v = &d->values[i];
	v->count = count;
	if (type == CHAR) { v->text = strndup(array, count); return OK; }
	for (int j = 0; j < count; j++) {
		const char *at = (const char *)array + j * sizes[type];
		v->v[j] = sizes[type] == 8 ? *(int64_t *)at : sizes[type] == 4 ? *(int32_t *)at : *(unsigned char *)at;
		if (type == BOOL && v->v[j] > 1) return fail(BAD, "a boolean of %d", (int)v->v[j]);
		if (type == HANDLE && (!v->v[j] || ((handle *)v->v[j])->magic != 42)) return fail(BAD, "no handle");
		if (type == DESC && (!known((void *)v->v[j]) || !((desc *)v->v[j])->finalized)) return fail(NOT_FINALIZED, "attribute %d names a descriptor that is not finalized", attr);
	}
	return OK;
}

// tensorOf records a tensor of a graph once and returns its id.
static long tensorOf(desc *graph, int64_t p) {
	desc *t = (desc *)p;
	long id = value(t, 906)->v[0];
	for (int i = 0; i < graph->n; i++) if (labs(graph->ids[i]) == id) return id;
	int64_t *d = value(t, 902)->v, *s = value(t, 903)->v;
	int isVirtual = value(t, 907)->v[0];
	graph->ids[graph->n++] = isVirtual ? -id : id; // negative: needs no memory
	note("tensor %ld %ld [%ld %ld %ld %ld] [%ld %ld %ld %ld] %d %d %ld\n", id, (long)value(t, 901)->v[0], (long)d[0], (long)d[1], (long)d[2], (long)d[3],
	     (long)s[0], (long)s[1], (long)s[2], (long)s[3], isVirtual, (int)value(t, 908)->v[0], (long)value(t, 900)->v[0]);
	return id;
}
static void recordGraph(desc *g) {
	struct value *ops = value(g, 801);
	note("graph\n");
	for (int i = 0; i < ops->count; i++) {
		desc *o = (desc *)ops->v[i];
		long x, y, b = 0, t = 0;
		if (o->kind == MATMUL_OP) {
			x = tensorOf(g, value(o, 1520)->v[0]), b = tensorOf(g, value(o, 1521)->v[0]), y = tensorOf(g, value(o, 1522)->v[0]);
			note("matmul 0 0 %ld %ld 0 %ld %ld\n", x, b, y, (long)value((desc *)value(o, 1523)->v[0], 1500)->v[0]);
		} else if (o->kind == PW_OP) {
			desc *pw = (desc *)value(o, 750)->v[0];
			x = tensorOf(g, value(o, 751)->v[0]), y = tensorOf(g, value(o, 753)->v[0]);
			if (value(o, 752)->count) b = tensorOf(g, value(o, 752)->v[0]);
			if (value(o, 758)->count) t = tensorOf(g, value(o, 758)->v[0]);
			note("pointwise %ld %ld %ld %ld %ld %ld %ld\n", (long)value(pw, 0)->v[0], (long)value(pw, 9)->v[0], x, b, t, y, (long)value(pw, 1)->v[0]);
		} else if (o->kind == RED_OP) {
			desc *red = (desc *)value(o, 1612)->v[0];
			x = tensorOf(g, value(o, 1610)->v[0]), y = tensorOf(g, value(o, 1611)->v[0]);
			note("reduction %ld 0 %ld 0 0 %ld %ld\n", (long)value(red, 1600)->v[0], x, y, (long)value(red, 1601)->v[0]);
		} else {
			x = tensorOf(g, value(o, 2200)->v[0]), y = tensorOf(g, value(o, 2201)->v[0]);
			note("reshape 0 0 %ld 0 0 %ld 0\n", x, y);
		}
	}
	note("end\n");
}

int cudnnBackendFinalize(desc *d) {
	INJECT("cudnnBackendFinalize");
	if (!known(d)) return fail(BAD, "finalizes what is no descriptor");
	if (d->finalized) return fail(BAD, "finalizes a descriptor twice");
	if (d->kind == CONFIG || d->kind == ENGINE) return fail(BAD, "the library finalizes configurations and engines");
	for (int i = 0; i < (int)(sizeof rules / sizeof *rules); i++)
		if (rules[i].kind == d->kind && rules[i].least > 0 && !d->values[i].count) return fail(BAD, "attribute %d is missing", rules[i].attr);
	if (d->kind == TENSOR && value(d, 907)->v[0] && value(d, 908)->v[0]) return fail(BAD, "a virtual tensor by value");
	if (d->kind == GRAPH) recordGraph(d);
	if (d->kind == HEURISTIC) d->graph = (desc *)value(d, 201)->v[0], d->mode = value(d, 200)->v[0];
	if (d->kind == PACK && value(d, 1000)->count != value(d, 1001)->count) return fail(BAD, "ids and pointers differ in number");
	if (d->kind == PLAN) {
		if (!!value(d, 401)->count == !!value(d, 405)->count) return fail(BAD, "a plan of a configuration or of JSON");
		d->workspace = workspace;
		if (value(d, 401)->count) {
			desc *c = (desc *)value(d, 401)->v[0];
			if (c->engine < bad_engines) return fail(NOT_SUPPORTED, "engine %d cannot", c->engine);
			for (int i = 0; i < c->graph->n; i++) if (c->graph->ids[i] > 0) d->ids[d->n++] = c->graph->ids[i];
			note("plan of engine %d\n", c->engine);
		} else {
			char *at = value(d, 405)->text;
			if (strncmp(at, "{\"fake\":[", 9)) return fail(BAD, "JSON of no plan");
			for (at += 9; *at && *at != ']'; at += *at == ',') d->ids[d->n++] = strtol(at, &at, 10);
			if (*at != ']') return fail(BAD, "JSON that ends early");
			note("plan restored\n");
		}
	}
	d->finalized = 1;
	return OK;
}

int cudnnBackendGetAttribute(desc *d, int attr, int type, int64_t requested, int64_t *count, void *array) {
	INJECT("cudnnBackendGetAttribute");
	if (!known(d) || !d->finalized) return fail(NOT_FINALIZED, "reads attribute %d of a descriptor that is not finalized", attr);
	if (d->kind == HEURISTIC && attr == 202 && type == DESC) {
		int n = d->mode == 3 ? engines_a : engines_fallback;
		*count = n;
		for (int i = 0; i < requested && i < n; i++) {
			desc *c = known(((desc **)array)[i]);
			if (!c || c->kind != CONFIG) return fail(BAD, "the array holds no configuration");
			c->finalized = 1, c->graph = d->graph, c->engine = i + (d->mode == 3 ? 0 : 10);
		}
		return OK;
	}
	if (d->kind == CONFIG && attr == 300 && type == DESC && requested == 1) {
		desc *e = known(*(desc **)array);
		if (!e || e->kind != ENGINE) return fail(BAD, "the array holds no engine");
		e->finalized = 1, e->engine = d->engine, *count = 1;
		return OK;
	}
	if (d->kind == ENGINE && attr == 1301 && type == INT64 && requested == 1) { *(int64_t *)array = d->engine, *count = 1; return OK; }
	if (d->kind == ENGINE && attr == 1303 && type == NOTE && requested >= 2) {
		((int32_t *)array)[0] = 0, ((int32_t *)array)[1] = 4; // tensor cores; not deterministic
		*count = d->engine < nondeterministic ? 2 : 1;
		return OK;
	}
	if (d->kind == PLAN && attr == 402 && type == INT64 && requested == 1) { *(int64_t *)array = d->workspace, *count = 1; return OK; }
	if (d->kind == PLAN && attr == 405 && type == CHAR) {
		char text[1024] = "{\"fake\":[", *at = text + strlen(text);
		for (int i = 0; i < d->n; i++) at += sprintf(at, i ? ",%ld" : "%ld", (long)d->ids[i]);
		at += sprintf(at, "]}") + 1; // the terminating zero counts
		*count = at - text;
		memcpy(array, text, requested < *count ? requested : *count);
		return OK;
	}
	return fail(BAD, "descriptor %d has no attribute %d of type %d to read %ld of", d->kind, attr, type, (long)requested);
}

int cudnnBackendExecute(handle *h, desc *plan, desc *pack) {
	INJECT("cudnnBackendExecute");
	if (!h || h->magic != 42) return fail(BAD, "no handle");
	if (!known(plan) || plan->kind != PLAN || !plan->finalized || !known(pack) || pack->kind != PACK || !pack->finalized) return fail(NOT_FINALIZED, "executes what is not finalized");
	if ((uint64_t)value(plan, 400)->v[0] != (uint64_t)(uintptr_t)h) return fail(BAD, "a plan of another handle");
	struct value *ids = value(pack, 1000), *at = value(pack, 1001);
	note("execute stream %lu workspace %lu:", (unsigned long)h->stream, (unsigned long)value(pack, 1003)->v[0]);
	for (int i = 0; i < plan->n; i++) {
		int j = 0;
		while (j < ids->count && ids->v[j] != plan->ids[i]) j++;
		if (j == ids->count || !at->v[j]) return fail(BAD, "tensor %ld lies nowhere", (long)plan->ids[i]);
		note(" %ld=%ld", (long)plan->ids[i], (long)at->v[j]);
	}
	if (ids->count != plan->n) return fail(BAD, "%d pointers for %d tensors", ids->count, plan->n);
	note("\n");
	return OK;
}
