// Cheetah's rows for C++. Usage: cheetah_cxx ROW DIRECTORY; any number of contexts. Every check names its row.
#include <Cheetah/Cheetah.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <time.h>
#include <unistd.h>

using Cheetah::CHEETAH;
using Cheetah::Controller;
using Cheetah::MatchingHandler;
using Cheetah::Serialize;

static const char *row = "";
static int me = -1, n = -1;

#define CHECK(condition)                                                                                             \
    do {                                                                                                             \
        if (!(condition)) {                                                                                          \
            std::fprintf(stderr, "%s failed in context %d, line %d: %s; last error: %s\n", row, me, __LINE__,        \
                         #condition, cheetah_error_string());                                                        \
            std::exit(1);                                                                                            \
        }                                                                                                            \
    } while (0)

// The code of the error that the statement throws; 0 for none.
#define CODE_OF(variable, statement)                                                                                 \
    int variable = 0;                                                                                                \
    try {                                                                                                            \
        statement;                                                                                                   \
    } catch (const Cheetah::Error &error) {                                                                          \
        variable = error.code();                                                                                     \
        CHECK(std::strlen(error.what()) > 0);                                                                        \
    }

static void sleep_for(long milliseconds) {
    struct timespec time;
    time.tv_sec = milliseconds / 1000;
    time.tv_nsec = milliseconds % 1000 * 1000000;
    nanosleep(&time, 0);
}

static int next() { return (me + 1) % n; }
static int before() { return (me + n - 1) % n; }

// ---- c28

static int handled, handled_who, handled_tag;

static void handler(int who, int tag, void *buffer, int length) {
    CHECK(length == 8 && std::memcmp(buffer, "01234567", 8) == 0);
    handled_who = who;
    handled_tag = tag;
    handled++;
}

struct Place {
    void *memory;
    int *bell;
};
static std::vector<Place> places;
static int told;

static void tell(int who, int, void *buffer, int length) {
    CHECK(length == static_cast<int>(sizeof(Place)));
    std::memcpy(&places[who], buffer, sizeof(Place));
    told++;
}

static Controller global;

static void c28(int &argc, char **&argv) {
    Controller none, copy;
    CHECK(!none.isValid());
    CODE_OF(before_setup, none.ncontexts());
    CHECK(before_setup == CHEETAH_ERR_STATE);
    CODE_OF(no_handler, MatchingHandler needs_one(none));
    CHECK(no_handler == CHEETAH_ERR_STATE);
    const int given = argc;
    Controller *first = new Controller(argc, argv);
    CHECK(first->isValid() && argc == given && !none.isValid());
    me = first->mycontext();
    n = first->ncontexts();
    CHECK(me >= 0 && me < n);
    none = *first;
    copy = none;
    copy = *&copy;
    CHECK(none.isValid() && none.ncontexts() == n && copy.mycontext() == me);
    {
        // Several controllers, of one job.
        Controller other(argc, argv), third(other);
        CHECK(other.isValid() && third.ncontexts() == n);
        third.barrier();
    }
    CHECK(first->isValid());

    // The calls.
    places.resize(n);
    const int id = first->register_function(tell), call = first->register_function(handler);
    CHECK(call == id + 1);
    char memory[16] = "", word[16] = "to a neighbour", got[16];
    int rung = 0, local = 0, i;
    Place mine;
    mine.memory = memory;
    mine.bell = &rung;
    for (i = 0; i < n; i++)
        none.ainvoke(i, id, &mine, sizeof mine);
    while (told < n)
        none.poll();
    copy.barrier();
    copy.put(next(), places[next()].memory, word, sizeof word, &local, places[next()].bell);
    copy.wait(&local, 1);
    copy.wait(rung, 1);
    CHECK(std::memcmp(memory, word, sizeof word) == 0);
    copy.barrier();
    copy.get(before(), places[before()].memory, got, sizeof got, &local);
    copy.wait(local, 2);
    CHECK(std::memcmp(got, word, sizeof got) == 0);
    const char text[] = "01234567";
    copy.ainvoke(next(), call, text, 8, &local);
    CHECK(local == 3);
    while (handled < 1)
        copy.poll();
    CHECK(handled_who == before() && handled_tag == call);
    CODE_OF(no_context, copy.ainvoke(n, call, text, 8));
    CHECK(no_context == CHEETAH_ERR_CONTEXT);
    CODE_OF(no_function, copy.register_function(0));
    CHECK(no_function == CHEETAH_ERR_ARGUMENT);
    handled = 0;
    copy.barrier();

    // An exception does not finalise: other contexts do not wait for this one.
    try {
        Controller passing(copy);
        throw 1;
    } catch (int) {
    }
    CHECK(copy.isValid());

    // The last reference waits for all contexts, and delivers.
    none = Controller();
    copy = none;
    CHECK(!none.isValid() && first->isValid());
    if (me == n - 1)
        sleep_for(100);
    first->ainvoke(next(), call, text, 8);
    Controller *last = new Controller(*first);
    delete first;
    CHECK(last->isValid());
    delete last;
    CHECK(handled == 1);
    CHECK(cheetah_core_mycontext() == CHEETAH_ERR_STATE);
    CODE_OF(again, Controller(argc, argv));
    CHECK(again == CHEETAH_ERR_STATE);
}

// ---- what most rows use

static MatchingHandler *matching;
static Controller controller;

typedef std::vector<int> Log;

static void note(Log *log, int &value) { log->push_back(value); }

static void until(const Log &log, std::size_t size) {
    while (log.size() < size)
        controller.poll();
    CHECK(log.size() == size);
}

static void until_messages(MatchingHandler &at, int from, int count) {
    while (at.messages(from) < count)
        controller.poll();
}

// ---- c29, c30

static void c29() {
    Log log;
    matching->request(before(), 7, note, &log);
    CHECK(log.empty());
    controller.barrier();
    matching->send(next(), 7, 100 + me);
    until(log, 1);
    CHECK(log[0] == 100 + before());
    controller.barrier();
    matching->send(next(), 7, 200 + me);
    matching->send(next(), 7, 300 + me);
    until_messages(*matching, before(), 2);
    CHECK(log.size() == 1);
    // The value is here: the function runs in the call.
    matching->request(before(), 7, note, &log);
    CHECK(log.size() == 2 && log[1] == 200 + before());
    matching->request(before(), 7, note, &log);
    CHECK(log.size() == 3 && log[2] == 300 + before());
    CODE_OF(no_context, matching->send(n, 7, 1));
    CHECK(no_context == CHEETAH_ERR_CONTEXT);
    CODE_OF(no_such, matching->request(-1, 7, note, &log));
    CHECK(no_such == CHEETAH_ERR_CONTEXT);
}

static void c30() {
    MatchingHandler other(controller);
    Log log;
    int i;
    for (i = 0; i < n; i++)
        CHECK(matching->actions(i) == 0 && matching->messages(i) == 0);
    matching->request(before(), 1, note, &log);
    matching->request(before(), 1, note, &log);
    matching->request(before(), 2, note, &log);
    CHECK(matching->actions(before()) == 3 && other.actions(before()) == 0);
    if (n > 1)
        CHECK(matching->actions(me) == 0);
    controller.barrier();
    for (i = 0; i < 4; i++)
        matching->send(next(), 1, i);
    matching->send(next(), 3, 9);
    until(log, 2);
    until_messages(*matching, before(), 3);
    CHECK(matching->messages(before()) == 3 && matching->actions(before()) == 1 && log.size() == 2);
    CHECK(other.messages(before()) == 0);
    controller.barrier();
    matching->send(next(), 2, 5);
    until(log, 3);
    CHECK(matching->actions(before()) == 0);
    matching->request(before(), 1, note, &log);
    matching->request(before(), 1, note, &log);
    matching->request(before(), 3, note, &log);
    CHECK(matching->messages(before()) == 0 && log.size() == 6);
}

// ---- c31, c32

struct Particle {
    double position[3];
    int kind;
    std::vector<double> trail;
};

// Another way, which one type may have beside the usual one.
struct Backwards {};

namespace Cheetah {

template <> class Serialize<CHEETAH, Particle> {
public:
    typedef Serialize<CHEETAH, std::vector<double> > Trail;
    static int size(const Particle &value) {
        return static_cast<int>(3 * sizeof(double) + Serialize<CHEETAH, int>::size(value.kind) + Trail::size(value.trail));
    }
    static int pack(const Particle &value, char *buffer) {
        std::memcpy(buffer, value.position, sizeof value.position);
        std::size_t at = sizeof value.position;
        at += Serialize<CHEETAH, int>::pack(value.kind, buffer + at);
        at += Trail::pack(value.trail, buffer + at);
        return static_cast<int>(at);
    }
    static int unpack(Particle *&value, char *buffer) {
        value = new Particle;
        std::memcpy(value->position, buffer, sizeof value->position);
        std::size_t at = sizeof value->position;
        int *kind;
        at += Serialize<CHEETAH, int>::unpack(kind, buffer + at);
        value->kind = *kind;
        Serialize<CHEETAH, int>::cleanup(kind);
        std::vector<double> *trail;
        at += Trail::unpack(trail, buffer + at);
        value->trail = *trail;
        Trail::cleanup(trail);
        return static_cast<int>(at);
    }
    static void cleanup(Particle *value) { delete value; }
};

template <> class Serialize<Backwards, std::string> {
public:
    static long size(const std::string &value) { return static_cast<long>(value.size() + 1); }
    static long pack(const std::string &value, char *buffer) {
        std::memcpy(buffer, std::string(value.rbegin(), value.rend()).c_str(), value.size() + 1);
        return size(value);
    }
    static long unpack(std::string *&value, char *buffer) {
        value = new std::string(buffer);
        return size(*value);
    }
    static void cleanup(std::string *value) { delete value; }
};

} // namespace Cheetah

static int seen;

static void particle(const std::string &local, Particle &remote) {
    CHECK(local == "local" && remote.kind == 10 + before() && remote.position[2] == 2.5 + before());
    CHECK(remote.trail.size() == 1000 && remote.trail[999] == 999.0 + before());
    seen++;
}

static void nothing() { seen++; }
static void local_only(int local) { seen += local; }
static void remote_only(std::vector<int> &remote) { seen += remote[1]; }
static void remote_constant(const double &remote) { seen += static_cast<int>(remote); }
static void by_reference(Log &local, int &remote) {
    local.push_back(remote);
    seen++;
}

static void until_seen(int count) {
    while (seen < count)
        controller.poll();
    CHECK(seen == count);
    seen = 0;
    controller.barrier();
}

static void c31() {
    Particle mine;
    mine.position[2] = 2.5 + me;
    mine.kind = 10 + me;
    for (int i = 0; i < 1000; i++)
        mine.trail.push_back(i + me);
    matching->request(before(), 1, particle, std::string("local"));
    matching->send(next(), 1, mine);
    until_seen(1);
    // Nothing sent, nothing local, and both.
    matching->send(next(), 2);
    matching->request(before(), 2, nothing);
    until_seen(1);
    matching->request(before(), 3, local_only, 7);
    matching->send(next(), 3);
    until_seen(7);
    matching->request(before(), 4, remote_only);
    matching->send(next(), 4, std::vector<int>(2, 5));
    until_seen(5);
    matching->send(next(), 5, 3.5);
    matching->request(before(), 5, remote_constant);
    until_seen(3);
    // The function may change its copy of the argument.
    Log log;
    matching->send(next(), 6, 1);
    matching->request(before(), 6, by_reference, log);
    until_seen(1);
    CHECK(log.empty());
    // A value that the function does not take is dropped.
    matching->send(next(), 7, std::vector<double>(5000, 1.0));
    matching->request(before(), 7, nothing);
    until_seen(1);
}

static void backwards(int *count, std::string &value) {
    CHECK(value == "sdrawkcab");
    ++*count;
}

static void backwards_alone(std::string &value) {
    CHECK(value == "sdrawkcab");
    seen++;
}

static void forwards(int *count, std::string &value) {
    CHECK(value == "backwards");
    ++*count;
}

static void c32() {
    int count = 0;
    const std::string text = "backwards";
    matching->sendWith(Backwards(), next(), 1, text);
    matching->requestWith(Backwards(), before(), 1, backwards, &count);
    matching->requestWith(Backwards(), before(), 1, backwards_alone);
    matching->sendWith(Backwards(), next(), 1, text);
    matching->requestWith(CHEETAH(), before(), 2, forwards, &count);
    matching->sendWith(CHEETAH(), next(), 2, text);
    while (count < 2)
        controller.poll();
    until_seen(1);
}

// ---- c33

// Counts its copies that live.
static int alive;
struct Counted {
    Log *log;
    explicit Counted(Log *to) : log(to) { alive++; }
    Counted(const Counted &other) : log(other.log) { alive++; }
    ~Counted() { alive--; }
    Counted &operator=(const Counted &other) {
        log = other.log;
        return *this;
    }
};

static void note_counted(const Counted &local, int &value) { local.log->push_back(value); }

static void c33() {
    MatchingHandler *five[5];
    Log logs[5], sixth;
    int i;
    for (i = 0; i < 5; i++)
        five[i] = new MatchingHandler(controller);
    for (i = 4; i >= 0; i--)
        five[i]->send(next(), 3, 10 * i + me);
    for (i = 0; i < 5; i++)
        five[i]->request(before(), 3, note, &logs[i]);
    for (i = 0; i < 5; i++) {
        until(logs[i], 1);
        CHECK(logs[i][0] == 10 * i + before());
    }
    controller.barrier();
    // What waits at a handler goes with it, in this context, and what comes later; the others go on.
    five[2]->request(before(), 4, note_counted, Counted(&sixth));
    five[2]->send(next(), 5, 77);
    CHECK(alive == 1);
    until_messages(*five[2], before(), 1);
    controller.barrier();
    if (me == 0) {
        delete five[2];
        CHECK(alive == 0);
    }
    controller.barrier();
    if (me != 0)
        five[2]->send(0, 4, 1);
    five[1]->send(next(), 4, 5);
    five[3]->send(next(), 4, 6);
    five[1]->request(before(), 4, note, &logs[1]);
    five[3]->request(before(), 4, note, &logs[3]);
    until(logs[1], 2);
    until(logs[3], 2);
    CHECK(logs[1][1] == 5 && logs[3][1] == 6);
    controller.barrier();
    for (i = 0; i < 5; i++)
        if (me != 0 || i != 2)
            delete five[i];
    CHECK(alive == 0);
    // A new one is none of the old ones.
    MatchingHandler again(controller);
    again.request(before(), 4, note, &sixth);
    again.send(next(), 4, 66);
    until(sixth, 1);
    CHECK(sixth[0] == 66);
}

// ---- c34

static int in_order;

static void ordered(int *count, int &value) {
    CHECK(value == *count);
    ++*count;
}

static void large(int *count, std::vector<double> &value) {
    CHECK(value.size() == (8u << 20) / sizeof(double) && value.front() == *count && value.back() == *count);
    ++*count;
}

// Sends from inside a function, more than there is room for.
static void floods(MatchingHandler *at, int &) {
    std::vector<double> value((8u << 20) / sizeof(double));
    for (int i = 0; i < 8; i++) {
        value.assign(value.size(), i);
        at->send(next(), 3, value);
    }
    for (int i = 0; i < 1000; i++)
        at->send(next(), 4, i);
}

static void c34(const char *directory) {
    const int many = 100000;
    int sleeper = n - 1, count = 0, i;
    const std::string path = std::string(directory) + "/c34";
    if (me == 0) {
        for (i = 0; i < many; i++) {
            int value = i;
            matching->send(sleeper, 1, value);
            value = -1;
        }
        std::vector<double> value((8u << 20) / sizeof(double));
        for (i = 0; i < 16; i++) {
            value.assign(value.size(), i);
            matching->send(sleeper, 2, value);
        }
        value.assign(value.size(), -1);
        CHECK(std::fclose(std::fopen(path.c_str(), "w")) == 0);
    }
    if (me == sleeper) {
        // Polls nothing before all is sent.
        while (access(path.c_str(), F_OK) != 0)
            sleep_for(1);
        for (i = 0; i < many; i++)
            matching->request(0, 1, ordered, &in_order);
        for (i = 0; i < 16; i++)
            matching->request(0, 2, large, &count);
        while (in_order < many || count < 16)
            controller.poll();
    }
    controller.barrier();
    // Inside functions, in a circle.
    int larges = 0, smalls = 0;
    matching->request(before(), 5, floods, matching);
    matching->send(next(), 5, 0);
    for (i = 0; i < 8; i++)
        matching->request(before(), 3, large, &larges);
    for (i = 0; i < 1000; i++)
        matching->request(before(), 4, ordered, &smalls);
    while (larges < 8 || smalls < 1000)
        controller.poll();
}

// ---- c35

static void c35() {
    Log log;
    {
        // The original is gone before the message comes.
        Counted *argument = new Counted(&log);
        matching->request(before(), 1, note_counted, *argument);
        argument->log = 0;
        delete argument;
        CHECK(alive == 1);
    }
    CHECK(log.empty());
    controller.barrier();
    matching->send(next(), 1, 41);
    until(log, 1);
    CHECK(log[0] == 41 && alive == 0);
    controller.barrier();
    matching->send(next(), 1, 42);
    until_messages(*matching, before(), 1);
    matching->request(before(), 1, note_counted, Counted(&log));
    CHECK(log.size() == 2 && log[1] == 42 && alive == 0);
}

// ---- c36: a view is sent, a brick received

struct View {
    const double *first;
    int rows, columns, stride;
};

struct Brick {
    std::vector<double> values;
    int rows, columns;
};

namespace Cheetah {

template <> class Serialize<CHEETAH, View> {
public:
    static int size(const View &view) {
        return static_cast<int>(2 * Serialize<CHEETAH, int>::size(view.rows) + view.rows * view.columns * sizeof(double));
    }
    static int pack(const View &view, char *buffer) {
        char *at = buffer;
        at += Serialize<CHEETAH, int>::pack(view.rows, at);
        at += Serialize<CHEETAH, int>::pack(view.columns, at);
        for (int i = 0; i < view.rows; i++, at += view.columns * sizeof(double))
            std::memcpy(at, view.first + i * view.stride, view.columns * sizeof(double));
        return static_cast<int>(at - buffer);
    }
};

template <> class Serialize<CHEETAH, Brick> {
public:
    static int unpack(Brick *&brick, char *buffer) {
        int *rows, *columns;
        char *at = buffer;
        at += Serialize<CHEETAH, int>::unpack(rows, at);
        at += Serialize<CHEETAH, int>::unpack(columns, at);
        brick = new Brick;
        brick->rows = *rows;
        brick->columns = *columns;
        const double *values = reinterpret_cast<const double *>(at);
        brick->values.assign(values, values + *rows * *columns);
        return static_cast<int>(at - buffer + *rows * *columns * sizeof(double));
    }
    static void cleanup(Brick *brick) { delete brick; }
};

} // namespace Cheetah

struct Field {
    double values[6][6];
    int ghosts;
};

static void receive(Field *field, Brick &brick) {
    CHECK(brick.rows == 4 && brick.columns == 2);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 2; j++)
            field->values[1 + i][j] = brick.values[2 * i + j];
    field->ghosts++;
}

static void c36() {
    Field field;
    int i, j;
    for (i = 0; i < 6; i++)
        for (j = 0; j < 6; j++)
            field.values[i][j] = 100 * me + 10 * i + j;
    field.ghosts = 0;
    View view = {&field.values[1][3], 4, 2, 6};
    matching->request<Field *, Brick, Field *>(before(), 8, receive, &field);
    matching->send<View>(next(), 8, view);
    while (field.ghosts < 1)
        controller.poll();
    for (i = 1; i < 5; i++)
        for (j = 0; j < 6; j++)
            CHECK(field.values[i][j] == (j < 2 ? 100 * before() + 10 * i + j + 3 : 100 * me + 10 * i + j));
}

// ---- c37: an object that points into the buffer

struct Pointing {
    char *bytes;
    std::size_t length;
};

static int cleaned;

namespace Cheetah {

template <> class Serialize<CHEETAH, Pointing> {
public:
    static std::size_t size(const Pointing &value) { return 8 + value.length; }
    static std::size_t pack(const Pointing &value, char *buffer) {
        Serialize<CHEETAH, std::size_t>::pack(value.length, buffer);
        std::memcpy(buffer + 8, value.bytes, value.length);
        return size(value);
    }
    static std::size_t unpack(Pointing *&value, char *buffer) {
        CHECK(reinterpret_cast<std::size_t>(buffer) % sizeof(double) == 0);
        CHECK(reinterpret_cast<std::size_t>(buffer) % sizeof(long double) == 0);
        value = new Pointing;
        value->bytes = buffer + 8;
        std::memcpy(&value->length, buffer, 8);
        return 8 + value->length;
    }
    static void cleanup(Pointing *value) {
        // What the function has written is there.
        for (std::size_t i = 0; i < value->length; i++)
            CHECK(value->bytes[i] == static_cast<char>(~(i * 5)));
        delete value;
        cleaned++;
    }
};

} // namespace Cheetah

static void pointed(int *count, Pointing &value) {
    CHECK(cleaned == *count);
    // Others come and go meanwhile.
    for (int i = 0; i < 10; i++) {
        controller.poll();
        matching->send(me, 99, i);
    }
    for (std::size_t i = 0; i < value.length; i++) {
        CHECK(value.bytes[i] == static_cast<char>(i * 5));
        value.bytes[i] = static_cast<char>(~value.bytes[i]);
    }
    ++*count;
}

static void c37() {
    static const std::size_t sizes[] = {0, 1, 7, 40, 56, 57, 100, 248, 249, 4000, 8184, 8185, 100000, 3000000};
    const int kinds = static_cast<int>(sizeof sizes / sizeof *sizes);
    int count = 0;
    for (int first = 0; first < 2; first++)
        for (int i = 0; i < kinds; i++) {
            std::vector<char> bytes(sizes[i] + 1);
            for (std::size_t k = 0; k < sizes[i]; k++)
                bytes[k] = static_cast<char>(k * 5);
            Pointing value = {&bytes[0], sizes[i]};
            const int wanted = first * kinds + i + 1;
            if (first)
                matching->request(before(), 1, pointed, &count);
            matching->send(next(), 1, value);
            bytes.assign(bytes.size(), 0);
            if (!first)
                matching->request(before(), 1, pointed, &count);
            while (count < wanted)
                controller.poll();
            CHECK(cleaned == wanted);
        }
}

// ---- c38

static void check_order(int *count, std::vector<int> &value) {
    // Every hundredth is large, and takes another way.
    CHECK(value.size() == (*count % 100 == 50 ? 50000u : 1u) && value[0] == *count);
    ++*count;
}

static void c38() {
    const int many = 10000;
    int bulk = 0, mixed = 0, i;
    for (i = 0; i < many / 2; i++)
        matching->request(before(), 1, ordered, &bulk);
    for (i = 0; i < many; i++)
        matching->send(next(), 1, i);
    for (i = many / 2; i < many; i++)
        matching->request(before(), 1, ordered, &bulk);
    for (i = 0; i < 1000; i++) {
        if (i < 300 || i >= 500)
            matching->request(before(), 2, check_order, &mixed);
        std::vector<int> value(i % 100 == 50 ? 50000 : 1, i);
        matching->send(next(), 2, value);
    }
    for (i = 300; i < 500; i++)
        matching->request(before(), 2, check_order, &mixed);
    while (bulk < many || mixed < 1000)
        controller.poll();
    // Any tag, none of which is another.
    static const int tags[] = {INT_MIN, INT_MIN + 1, -1, 0, 1, INT_MAX - 1, INT_MAX};
    Log logs[7];
    for (i = 0; i < 7; i++)
        matching->send(next(), tags[6 - i], 6 - i);
    for (i = 0; i < 7; i++)
        matching->request(before(), tags[i], note, &logs[i]);
    for (i = 0; i < 7; i++) {
        until(logs[i], 1);
        CHECK(logs[i][0] == i);
    }
    // From each context its own.
    Log each[8];
    CHECK(n <= 8);
    for (i = 0; i < n; i++)
        matching->send(i, 4, 1000 + me);
    for (i = n - 1; i >= 0; i--)
        matching->request(i, 4, note, &each[i]);
    for (i = 0; i < n; i++) {
        until(each[i], 1);
        CHECK(each[i][0] == 1000 + i);
    }
}

// ---- c39

static const int DEPTH = 10000;
static int depth, nesting;
static const char *lowest, *highest;

// Requests the next value inside the function of the one before.
static void deeper(int *count, int &value) {
    char here;
    const char *volatile at = &here;
    if (depth == 0)
        lowest = highest = at;
    if (at < lowest)
        lowest = at;
    if (at > highest)
        highest = at;
    CHECK(nesting++ == 0);
    CHECK(value == depth);
    depth++;
    if (depth < DEPTH)
        matching->request(before(), 1, deeper, count);
    matching->send(next(), 2, value);
    controller.poll();
    CODE_OF(waits, controller.barrier());
    CHECK(waits == CHEETAH_ERR_HANDLER);
    ++*count;
    nesting--;
}

static void c39() {
    int count = 0, i;
    Log answers, runs;
    for (i = 0; i < DEPTH; i++)
        matching->send(next(), 1, i);
    until_messages(*matching, before(), DEPTH);
    for (i = 0; i < DEPTH; i++)
        matching->request(before(), 2, note, &answers);
    matching->request(before(), 1, deeper, &count);
    // All in that call.
    CHECK(count == DEPTH && depth == DEPTH);
    CHECK(highest - lowest < 16 << 10);
    until(answers, DEPTH);
    controller.barrier();

    // No function runs in calls that only send.
    const int id = controller.register_function(handler);
    handled = 0;
    const char text[] = "01234567";
    char word[8];
    int bell = 0;
    matching->request(me, 3, note, &runs);
    matching->send(me, 3, 1);
    for (i = 0; i < 100; i++) {
        matching->send(me, 4, i);
        controller.put(me, word, text, 8, &bell);
        controller.get(me, word, word, 8, &bell);
        controller.ainvoke(me, id, text, 8);
    }
    CHECK(runs.empty());
    controller.poll();
    until(runs, 1);
    // In a wait, and in a barrier.
    matching->request(me, 5, note, &runs);
    matching->send(me, 5, 2);
    controller.put(me, word, text, 8, &bell);
    controller.wait(bell, 201);
    controller.barrier();
    CHECK(runs.size() == 2);
    while (handled < 100)
        controller.poll();
}

// ---- c40

static int copies, destroyed;
struct Tracked {
    int value;
    explicit Tracked(int v) : value(v) {}
    Tracked(const Tracked &other) : value(other.value) { copies++; }
    ~Tracked() { destroyed++; }
    Tracked &operator=(const Tracked &other) {
        value = other.value;
        return *this;
    }
};

struct Empty {};

static void strings(int, std::string &value) {
    if (seen == 0)
        CHECK(value.empty());
    else
        CHECK(value == std::string(20000, 'x') + '\0' + "y");
    seen++;
}

static void nested(int, std::vector<std::vector<std::string> > &value) {
    CHECK(value.size() == 3 && value[0].empty() && value[1].size() == 2 && value[2].size() == 1);
    CHECK(value[1][0].empty() && value[1][1] == "one" && value[2][0] == "two");
    seen++;
}

static void bits(int, std::vector<bool> &value) {
    CHECK(value.size() == 70 && value[69] && !value[68]);
    seen++;
}

static void longs(int, std::vector<long double> &value) {
    CHECK(value.size() == 3 && value[2] == 2.0L / 3);
    seen++;
}

static void none(int, std::vector<int> &value) {
    CHECK(value.empty());
    seen++;
}

static void tracked(int, Tracked &value) {
    CHECK(value.value == 17);
    seen++;
}

static void empty(int, Empty &) { seen++; }

static void array(int wanted, const short *items, int count) {
    CHECK(count == wanted);
    for (int i = 0; i < count; i++)
        CHECK(items[i] == static_cast<short>(i * 3 + before()));
    seen++;
}

static void never(int, std::vector<double> &) { CHECK(!"the value is too short for this function"); }

static void pair(int, std::pair<int, double> &value) {
    CHECK(value.first == 1 && value.second == 2.5);
    seen++;
}

static void c40() {
    typedef Serialize<CHEETAH, char> Char;
    CHECK(Char::size('x') == sizeof(double) && (Serialize<CHEETAH, char[9]>::size("12345678")) == 2 * sizeof(double));
    char buffer[64];
    CHECK(Char::pack('x', buffer) == sizeof(double) && buffer[0] == 'x');
    matching->send(next(), 1, std::string());
    matching->send(next(), 1, std::string(20000, 'x') + '\0' + "y");
    matching->request(before(), 1, strings, 0);
    matching->request(before(), 1, strings, 0);
    until_seen(2);

    std::vector<std::vector<std::string> > words(3);
    words[1].push_back("");
    words[1].push_back("one");
    words[2].push_back("two");
    matching->send(next(), 2, words);
    matching->request(before(), 2, nested, 0);
    until_seen(1);

    std::vector<bool> flags(70);
    flags[69] = true;
    matching->send(next(), 3, flags);
    matching->request(before(), 3, bits, 0);
    matching->send(next(), 4, std::vector<int>());
    matching->request(before(), 4, none, 0);
    matching->send(next(), 4, std::vector<long double>(3, 2.0L / 3));
    matching->request(before(), 4, longs, 0);
    matching->send(next(), 5, Empty());
    matching->request(before(), 5, empty, 0);
    matching->send(next(), 5, std::make_pair(1, 2.5));
    matching->request(before(), 5, pair, 0);
    until_seen(5);

    // One copy in the buffer, which cleanup destroys.
    {
        const Tracked value(17);
        copies = destroyed = 0;
        matching->send(next(), 6, value);
        CHECK(copies == 1);
        matching->request(before(), 6, tracked, 0);
        until_seen(1);
        CHECK(copies == 1 && destroyed == 1);
    }

    static const int lengths[] = {0, 1, 3, 500, 100000};
    for (int i = 0; i < 5; i++) {
        std::vector<short> items(lengths[i] + 1);
        for (int k = 0; k < lengths[i]; k++)
            items[k] = static_cast<short>(k * 3 + me);
        matching->sendWith(Cheetah::ARRAY(), next(), 7, &items[0], lengths[i]);
        matching->requestWith(Cheetah::ARRAY(), before(), 7, array, lengths[i]);
    }
    until_seen(5);

    // A value that is too short is an error of the receiver, and the function does not run.
    matching->send(next(), 8, 12345678);
    until_messages(*matching, before(), 1);
    CODE_OF(vector, matching->request(before(), 8, never, 0));
    CHECK(vector == CHEETAH_ERR_MESSAGE);
    matching->send(next(), 8);
    until_messages(*matching, before(), 1);
    CODE_OF(nothing_sent, matching->request(before(), 8, tracked, 0));
    CHECK(nothing_sent == CHEETAH_ERR_MESSAGE);
    controller.barrier();
    matching->request(before(), 9, never, 0);
    // Any call that makes progress may be the one that tells; it has done its work nevertheless.
    CODE_OF(code, controller.barrier());
    CODE_OF(sent, matching->send(next(), 9, 1.5));
    code += sent;
    while (code == 0) {
        CODE_OF(polled, controller.poll());
        code = polled;
    }
    CHECK(code == CHEETAH_ERR_MESSAGE);
}

// ---- more than fits in an int

static void beyond(int *count, const char *bytes, std::size_t length) {
    CHECK(length == (std::size_t(2) << 30) + 5 && bytes[0] == 'a' && bytes[length - 1] == 'z');
    ++*count;
}

static void gigabytes() {
    const std::size_t length = (std::size_t(2) << 30) + 5;
    int count = 0;
    if (me == 0) {
        std::vector<char> bytes(length, 'x');
        bytes[0] = 'a';
        bytes[length - 1] = 'z';
        matching->sendWith(Cheetah::ARRAY(), n - 1, 1, &bytes[0], length);
    }
    if (me == n - 1) {
        matching->requestWith(Cheetah::ARRAY(), 0, 1, beyond, &count);
        while (count < 1)
            controller.poll();
    }
}

// ---- exceptions that leave handlers

struct Throws {};

namespace Cheetah {

template <> class Serialize<CHEETAH, Throws> {
public:
    static int size(const Throws &) { return 8; }
    static int pack(const Throws &, char *buffer) {
        std::memset(buffer, 0, 8);
        return 8;
    }
    static int unpack(Throws *&, char *) { throw std::runtime_error("thrown while unpacking"); }
    static void cleanup(Throws *) {}
};

} // namespace Cheetah

static void throws_error(int, int &) { throw std::runtime_error("thrown in a function"); }
static void throws_number(int, int &) { throw 5; }
static void throws_text(int, int &) { throw "thrown as a text"; }
static void throws_ours(int, int &) { controller.barrier(); }
static void takes_throws(int, Throws &) {}
static void handler_throws(int, int, void *, int) { throw std::runtime_error("thrown in a handler"); }

// Context 0 throws, the others wait for it.
static void exceptions(const std::string &how) {
    const int id = controller.register_function(handler_throws);
    if (me == 0) {
        if (how == "throw-number")
            matching->request(0, 1, throws_number, 0);
        else if (how == "throw-text")
            matching->request(0, 1, throws_text, 0);
        else if (how == "throw-ours")
            matching->request(0, 1, throws_ours, 0);
        else if (how == "throw-unpack")
            matching->request(0, 1, takes_throws, 0);
        else if (how == "throw-handler")
            controller.ainvoke(0, id, 0, 0);
        else
            matching->request(0, 1, throws_error, 0);
        if (how == "throw-unpack")
            matching->send(0, 1, Throws());
        else
            matching->send(0, 1, 1);
    }
    global = controller;
    controller.barrier();
    controller.barrier();
    std::puts("the exception has ended nothing");
}

// An exception unwinds the last controller of context 0, which waits for nobody.
static int unwound() {
    try {
        const Controller last(controller);
        controller = Controller();
        if (me == 0)
            throw 1;
        last.barrier();
    } catch (int) {
        return 3;
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc >= 2)
        row = argv[1];
    const std::string name = row;
    if (name == "c28") {
        c28(argc, argv);
    } else {
        controller = Controller(argc, argv);
        CHECK(argc == 3);
        row = argv[1];
        me = controller.mycontext();
        n = controller.ncontexts();
        const std::string name = row;
        matching = new MatchingHandler(controller);
        if (name == "c29")
            c29();
        else if (name == "c30")
            c30();
        else if (name == "c31")
            c31();
        else if (name == "c32")
            c32();
        else if (name == "c33")
            c33();
        else if (name == "c34")
            c34(argv[2]);
        else if (name == "c35")
            c35();
        else if (name == "c36")
            c36();
        else if (name == "c37")
            c37();
        else if (name == "c38")
            c38();
        else if (name == "c39")
            c39();
        else if (name == "c40")
            c40();
        else if (name == "gigabytes")
            gigabytes();
        else if (name.find("throw") == 0)
            exceptions(name);
        else if (name == "static")
            global = controller;
        else if (name == "unwound")
            return unwound();
        else if (name == "fails" && me == 0)
            std::exit(5);
        else if (name != "fails")
            CHECK(!"a row that there is");
        controller.barrier();
        delete matching;
        controller = Controller();
        // Static objects go last, and finalise.
        CHECK(global.isValid() == (name == "static"));
    }
    if (me == 0)
        std::printf("%s: %d contexts\n", row, n);
    return 0;
}
