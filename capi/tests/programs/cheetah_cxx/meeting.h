// Where sends and requests meet: c29, c30, c33 to c35, c38, c39.

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

static void c34() {
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
