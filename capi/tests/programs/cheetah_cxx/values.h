// How values travel: c31, c32, c36, c37, c40.

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

/* Reads more than most messages have, and looks at nothing of them. */
struct Wide {
    char *start;
};

static Wide wide_place;

namespace Cheetah {

template <> class Serialize<CHEETAH, Wide> {
public:
    static std::size_t size(const Wide &) { return 1000; }
    static std::size_t pack(const Wide &, char *buffer) {
        std::memset(buffer, 7, 1000);
        return 1000;
    }
    static std::size_t unpack(Wide *&value, char *buffer) {
        wide_place.start = buffer;
        value = &wide_place;
        return 1000;
    }
    static void cleanup(Wide *) {}
};

} // namespace Cheetah

static void never_wide(int, Wide &) { CHECK(!"the value is too short for this function"); }

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
    // What the own `unpack` has read counts.
    matching->send(next(), 8, 1.5);
    until_messages(*matching, before(), 1);
    CODE_OF(wide, matching->request(before(), 8, never_wide, 0));
    CHECK(wide == CHEETAH_ERR_MESSAGE);
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
