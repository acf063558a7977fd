// Controllers: c28, and exceptions that leave handlers.

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
static void takes_few(int, const short *, unsigned char) {}
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
        else if (how == "throw-count")
            matching->requestWith(Cheetah::ARRAY(), 0, 1, takes_few, 0);
        else if (how == "throw-handler")
            controller.ainvoke(0, id, 0, 0);
        else
            matching->request(0, 1, throws_error, 0);
        if (how == "throw-unpack")
            matching->send(0, 1, Throws());
        else if (how == "throw-count") {
            const std::vector<short> items(300);
            matching->sendWith(Cheetah::ARRAY(), 0, 1, &items[0], items.size());
        } else
            matching->send(0, 1, 1);
    }
    global = controller;
    controller.barrier();
    controller.barrier();
    std::puts("the exception has ended nothing");
}
