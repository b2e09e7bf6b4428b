// A CUDA driver and an NVRTC that are the CPU, for tests of the code that talks to them: built as libcuda.so and libnvrtc.so
// and found by LD_LIBRARY_PATH. "Machine code" is the path of a library that the system's C++ compiler made of the kernels
// behind shim.h.
//
// It is stricter than a device. Nothing that is put on a stream is done before somebody asks (queries, waits, frees), and
// then an operation of any stream that is ready: a wait that was forgotten shows. A call on a stream of a context that is not
// current is refused; a copy to or from device memory that is not allocated, or a handle used after its end, aborts.
//
// FAKE_CUDA=key=N,...: devices (1), memory (bytes of each, 1 GiB), fault (the context breaks at the Nth launch on device 0),
// hang (nothing is done any more from then on, and calls that wait never return), hang_pin (the Nth call to pin memory never
// returns), full (the Nth launch has no room), refuse (1: nothing compiles, 2: the driver takes no code).
// FAKE_CUDA_SHIM: the path of shim.h. FAKE_CUDA_FOLDER: for kernels, and for what is left at the end (`books`).
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <dlfcn.h>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unistd.h>
#include <vector>

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_IMAGE = 200, INVALID_CONTEXT = 201, UNSUPPORTED_PTX = 222, INVALID_HANDLE = 400,
       NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700 };

static long setting(const char *key, long otherwise) {
    const char *text = getenv("FAKE_CUDA");
    std::string all = std::string(",") + (text ? text : ""), key_is = std::string(",") + key + "=";
    size_t at = all.find(key_is);
    return at == std::string::npos ? otherwise : atol(all.c_str() + at + key_is.size());
}

[[noreturn]] static void die(const char *why) {
    fprintf(stderr, "fake driver: %s\n", why);
    abort();
}

struct Context {
    int device, holders = 0;
    bool is_broken = false;
    std::map<uint64_t, size_t> memory;
    size_t held() const {
        size_t all = 0;
        for (auto &m : memory) all += m.second;
        return all;
    }
};
struct Event {
    Context *context;
    uint64_t recorded = 0, passed = 0;
};
typedef int (*Entry)(void **, unsigned, unsigned, uint64_t);
struct Function {
    Entry entry;
    int arity;
};
struct Module {
    Context *context;
    void *library;
    std::vector<std::unique_ptr<Function>> functions;
};
struct Operation {
    enum { COPY, LAUNCH, RECORD, WAIT } kind = COPY;
    char *to = nullptr;
    const char *from = nullptr;
    size_t bytes = 0;
    uint64_t device_at = 0;
    Function *function = nullptr;
    unsigned blocks = 0, threads = 0;
    std::vector<uint64_t> arguments;
    std::shared_ptr<Event> event;
    uint64_t mark = 0;
};
struct Stream {
    Context *context;
    std::deque<Operation> waiting;
};

static std::mutex lock;
#define ALONE std::lock_guard<std::mutex> guard(lock)
// Never destroyed: the books are closed after destructors have run.
static auto &contexts = *new std::vector<std::unique_ptr<Context>>;
static auto &streams = *new std::set<Stream *>;
static auto &events = *new std::set<std::shared_ptr<Event> *>;
static auto &modules = *new std::set<Module *>;
static auto &pinned = *new std::set<void *>;
static thread_local Context *current;
static bool hangs;
static uint64_t launches, random_state = 7;

static uint64_t draw() {
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return random_state >> 33;
}

static void check_allocated(Context *context, uint64_t at, size_t bytes) {
    auto found = context->memory.upper_bound(at);
    if (found == context->memory.begin() || (--found)->first + found->second < at + bytes) die("a copy outside device memory");
}

// Does one operation that is ready, of any stream; false where there is none.
static bool step() {
    if (hangs || streams.empty()) return false;
    std::vector<Stream *> all(streams.begin(), streams.end());
    size_t first = draw() % all.size();
    for (size_t n = 0; n < all.size(); n++) {
        Stream *stream = all[(first + n) % all.size()];
        if (stream->waiting.empty()) continue;
        Operation &next = stream->waiting.front();
        if (next.kind == Operation::WAIT && next.event->passed < next.mark) continue;
        Operation own = std::move(next);
        stream->waiting.pop_front();
        if (own.kind == Operation::COPY) {
            check_allocated(stream->context, own.device_at, own.bytes);
            memcpy(own.to, own.from, own.bytes);
        } else if (own.kind == Operation::RECORD) {
            own.event->passed = std::max(own.event->passed, own.mark);
        } else if (own.kind == Operation::LAUNCH) {
            launches++;
            static long on_first;
            on_first += stream->context->device == 0;
            if (stream->context->device == 0 && on_first == setting("fault", -1)) {
                stream->context->is_broken = true;
                for (Stream *other : all)
                    if (other->context == stream->context) other->waiting.clear();
                return true;
            }
            if ((long)launches == setting("hang", -1)) {
                hangs = true;
                return false;
            }
            std::vector<void *> pointers;
            for (auto &value : own.arguments) pointers.push_back(&value);
            own.function->entry(pointers.data(), own.blocks, own.threads, draw());
        }
        return true;
    }
    return false;
}

static void never_return() {
    lock.unlock();
    for (;;) pause();
}

// Waits until a stream, or every stream of a context, is through.
static void finish(Context *context, Stream *only) {
    for (;;) {
        bool is_left = false;
        for (Stream *stream : streams)
            is_left |= stream->context == context && (!only || stream == only) && !stream->waiting.empty();
        if (!is_left) return;
        if (!step()) {
            if (hangs) never_return();
            die("streams wait for each other");
        }
    }
}

#define IN_CONTEXT \
    ALONE; \
    if (!current || !current->holders) return INVALID_CONTEXT; \
    if (current->is_broken) return ILLEGAL_ADDRESS;

static int enqueue(Stream *stream, Operation operation) {
    if (!streams.count(stream)) die("work on a stream that was destroyed");
    if (stream->context != current) return INVALID_HANDLE;
    stream->waiting.push_back(std::move(operation));
    return OK;
}

static int copy(char *to, const char *from, size_t bytes, uint64_t device_at, Stream *stream) {
    Operation copy;
    copy.to = to;
    copy.from = from;
    copy.bytes = bytes;
    copy.device_at = device_at;
    return enqueue(stream, std::move(copy));
}

extern "C" {
int cuInit(unsigned) {
    ALONE;
    while ((long)contexts.size() < setting("devices", 1)) {
        contexts.emplace_back(new Context());
        contexts.back()->device = (int)contexts.size() - 1;
    }
    return OK;
}
int cuDriverGetVersion(int *version) { *version = 13000; return OK; }
int cuDeviceGetCount(int *count) { *count = (int)setting("devices", 1); return OK; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return OK; }
int cuDeviceGetAttribute(int *value, int attribute, int) {
    // Compute capability 9.0, memory pools.
    *value = attribute == 75 ? 9 : attribute == 115 ? 1 : 0;
    return OK;
}
int cuDeviceTotalMem_v2(size_t *bytes, int) { *bytes = setting("memory", 1 << 30); return OK; }
int cuDeviceGetName(char *name, int length, int) { snprintf(name, length, "fake"); return OK; }
int cuGetErrorString(int, const char **text) { *text = "an error of the fake driver"; return OK; }
int cuGetErrorName(int, const char **text) { *text = "FAKE"; return OK; }
int cuDevicePrimaryCtxRetain(Context **context, int device) {
    ALONE;
    *context = contexts[device].get();
    (*context)->holders++;
    return OK;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
    ALONE;
    if (contexts[device]->holders-- == 0) die("a context was released twice");
    return OK;
}
int cuCtxGetCurrent(Context **context) { *context = current; return OK; }
int cuCtxSetCurrent(Context *context) { current = context; return OK; }
int cuCtxSynchronize() { IN_CONTEXT; finish(current, nullptr); return OK; }
int cuMemGetInfo_v2(size_t *free, size_t *total) {
    IN_CONTEXT;
    *total = setting("memory", 1 << 30);
    *free = *total - current->held();
    return OK;
}
int cuStreamCreate(Stream **stream, unsigned flags) {
    IN_CONTEXT;
    if (flags != 1) die("a stream that waits for the default stream");
    streams.insert(*stream = new Stream{current, {}});
    return OK;
}
int cuStreamDestroy_v2(Stream *stream) {
    IN_CONTEXT;
    if (!streams.count(stream)) die("a stream was destroyed twice");
    finish(stream->context, stream);
    streams.erase(stream);
    delete stream;
    return OK;
}
int cuStreamSynchronize(Stream *stream) {
    IN_CONTEXT;
    if (stream->context != current) return INVALID_HANDLE;
    finish(current, stream);
    return current->is_broken ? ILLEGAL_ADDRESS : OK;
}
int cuEventCreate(std::shared_ptr<Event> **event, unsigned) {
    IN_CONTEXT;
    events.insert(*event = new std::shared_ptr<Event>(new Event{current}));
    return OK;
}
int cuEventDestroy_v2(std::shared_ptr<Event> *event) {
    IN_CONTEXT;
    if (!events.erase(event)) die("an event was destroyed twice");
    delete event;
    return OK;
}
int cuEventRecord(std::shared_ptr<Event> *event, Stream *stream) {
    IN_CONTEXT;
    if (!events.count(event)) die("an event was recorded after its end");
    Operation record;
    record.kind = Operation::RECORD;
    record.event = *event;
    record.mark = ++(*event)->recorded;
    return enqueue(stream, std::move(record));
}
int cuStreamWaitEvent(Stream *stream, std::shared_ptr<Event> *event, unsigned) {
    IN_CONTEXT;
    if (!events.count(event)) die("an event was waited for after its end");
    Operation wait;
    wait.kind = Operation::WAIT;
    wait.event = *event;
    wait.mark = (*event)->recorded;
    return enqueue(stream, std::move(wait));
}
int cuEventQuery(std::shared_ptr<Event> *event) {
    IN_CONTEXT;
    step();
    if (current->is_broken) return ILLEGAL_ADDRESS;
    return (*event)->passed >= (*event)->recorded ? OK : NOT_READY;
}
int cuEventSynchronize(std::shared_ptr<Event> *event) {
    IN_CONTEXT;
    while ((*event)->passed < (*event)->recorded)
        if (!step()) never_return();
    return OK;
}
int cuMemAlloc_v2(uint64_t *at, size_t bytes) {
    IN_CONTEXT;
    if (bytes == 0) return INVALID_VALUE;
    if (current->held() + bytes > (size_t)setting("memory", 1 << 30)) return OUT_OF_MEMORY;
    void *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
    memset(memory, 0x5b, bytes);
    current->memory[*at = (uint64_t)memory] = bytes;
    return OK;
}
int cuMemFree_v2(uint64_t at) {
    IN_CONTEXT;
    finish(current, nullptr);
    if (!current->memory.erase(at)) die("device memory was freed twice, or in another context");
    free((void *)at);
    return OK;
}
int cuMemHostAlloc(void **at, size_t bytes, unsigned) {
    IN_CONTEXT;
    static long calls;
    if (hangs || ++calls == setting("hang_pin", -1)) never_return();
    pinned.insert(*at = malloc(bytes));
    return OK;
}
int cuMemFreeHost(void *at) {
    IN_CONTEXT;
    for (auto &context : contexts) finish(context.get(), nullptr);
    if (hangs) never_return();
    if (!pinned.erase(at)) die("pinned memory was freed twice");
    free(at);
    return OK;
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, Stream *stream) {
    IN_CONTEXT;
    return copy((char *)to, (const char *)from, bytes, to, stream);
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, Stream *stream) {
    IN_CONTEXT;
    return copy((char *)to, (const char *)from, bytes, from, stream);
}
int cuModuleLoadData(Module **module, const void *image) {
    IN_CONTEXT;
    if (setting("refuse", 0) == 2) return UNSUPPORTED_PTX;
    void *library = dlopen((const char *)image, RTLD_NOW | RTLD_LOCAL);
    if (!library) return INVALID_IMAGE;
    modules.insert(*module = new Module{current, library, {}});
    return OK;
}
int cuModuleUnload(Module *module) {
    IN_CONTEXT;
    if (!modules.erase(module)) die("a module was unloaded twice");
    finish(module->context, nullptr);
    dlclose(module->library);
    delete module;
    return OK;
}
int cuModuleGetFunction(Function **function, Module *module, const char *name) {
    IN_CONTEXT;
    void *entry = dlsym(module->library, (std::string("shim_") + name).c_str());
    void *arity = dlsym(module->library, (std::string("arity_") + name).c_str());
    if (!entry || !arity) return NOT_FOUND;
    module->functions.emplace_back(new Function{(Entry)entry, ((int (*)())arity)()});
    *function = module->functions.back().get();
    return OK;
}
int cuLaunchKernel(Function *function, unsigned blocks, unsigned y, unsigned z, unsigned threads, unsigned ty, unsigned tz,
                   unsigned shared, Stream *stream, void **arguments, void **) {
    IN_CONTEXT;
    if (!blocks || !threads || threads > 1024 || y * z * ty * tz != 1 || shared) return INVALID_VALUE;
    static long asked;
    if (++asked == setting("full", -1)) return OUT_OF_MEMORY;
    Operation launch;
    launch.kind = Operation::LAUNCH;
    launch.function = function;
    launch.blocks = blocks;
    launch.threads = threads;
    for (int i = 0; i < function->arity; i++) launch.arguments.push_back(*(uint64_t *)arguments[i]);
    return enqueue(stream, std::move(launch));
}

// NVRTC.
struct Unit {
    std::string source, log, code;
};
int nvrtcVersion(int *major, int *minor) { *major = 13; *minor = 0; return 0; }
int nvrtcGetNumSupportedArchs(int *count) { *count = 2; return 0; }
int nvrtcGetSupportedArchs(int *archs) { archs[0] = 75; archs[1] = 90; return 0; }
int nvrtcCreateProgram(Unit **unit, const char *source, const char *, int, const char **, const char **) {
    *unit = new Unit{source, "", ""};
    return 0;
}
int nvrtcDestroyProgram(Unit **unit) { delete *unit; return 0; }
int nvrtcCompileProgram(Unit *unit, int count, const char **options) {
    ALONE;
    std::set<std::string> given(options, options + count);
    if (setting("refuse", 0) == 1) {
        unit->log = "error: refused";
        return 6;
    }
    if (!given.count("--gpu-architecture=sm_90") || !given.count("--fmad=false")) return 5;
    static int number;
    std::string stem = std::string(getenv("FAKE_CUDA_FOLDER")) + "/kernel-" + std::to_string(getpid()) + "-" + std::to_string(number++);
    FILE *file = fopen((stem + ".cpp").c_str(), "w");
    fprintf(file, "#include \"%s\"\n%s\n", getenv("FAKE_CUDA_SHIM"), unit->source.c_str());
    fprintf(file, "template <class... A> static int arity(void (*)(A...)) { return sizeof...(A); }\n");
    const std::string mark = "\nKERNEL ";
    for (size_t at = unit->source.find(mark); at != std::string::npos; at = unit->source.find(mark, at + 1)) {
        size_t from = at + mark.size();
        std::string name = unit->source.substr(from, unit->source.find('(', from) - from);
        fprintf(file, "SHIM_ENTRY(%s)\nextern \"C\" int arity_%s() { return arity(%s); }\n", name.c_str(), name.c_str(), name.c_str());
    }
    fclose(file);
    std::string command = "c++ -std=c++17 -O1 -shared -fPIC -ffp-contract=off -w -o " + stem + ".so " + stem + ".cpp 2>" + stem + ".log";
    int status = system(command.c_str());
    if (FILE *log = fopen((stem + ".log").c_str(), "r")) {
        for (int c; (c = fgetc(log)) != EOF;) unit->log += (char)c;
        fclose(log);
    }
    unit->code = stem + ".so";
    return status ? 6 : 0;
}
int nvrtcGetProgramLogSize(Unit *unit, size_t *bytes) { *bytes = unit->log.size() + 1; return 0; }
int nvrtcGetProgramLog(Unit *unit, char *log) { strcpy(log, unit->log.c_str()); return 0; }
int nvrtcGetCUBINSize(Unit *unit, size_t *bytes) { *bytes = unit->code.size() + 1; return 0; }
int nvrtcGetCUBIN(Unit *unit, char *code) { strcpy(code, unit->code.c_str()); return 0; }
} // extern "C"

// What the process left behind, where it used a device at all.
__attribute__((destructor)) static void close_books() {
    const char *folder = getenv("FAKE_CUDA_FOLDER");
    if (contexts.empty() || !folder) return;
    FILE *books = fopen((std::string(folder) + "/books").c_str(), "w");
    size_t holders = 0, memory = 0;
    for (auto &context : contexts) holders += context->holders, memory += context->memory.size();
    fprintf(books, "contexts %zu, streams %zu, events %zu, modules %zu, memory %zu, pinned %zu, launches %s\n", holders,
            streams.size(), events.size(), modules.size(), memory, pinned.size(), launches ? "some" : "none");
    fclose(books);
}
