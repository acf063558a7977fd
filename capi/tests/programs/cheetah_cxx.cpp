// Cheetah's rows for C++. Usage: cheetah_cxx ROW|all DIRECTORY; any number of contexts. Every check names its row. `all`: all that can
// share a job.
#include "cheetah_cxx/job.h"

#include "cheetah_cxx/controller.h"
#include "cheetah_cxx/meeting.h"
#include "cheetah_cxx/values.h"

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

struct Row {
    const char *name;
    void (*run)();
};

static const Row ROWS[] = {
    {"c29", c29}, {"c30", c30}, {"c31", c31}, {"c32", c32}, {"c33", c33}, {"c34", c34},
    {"c35", c35}, {"c36", c36}, {"c37", c37}, {"c38", c38}, {"c39", c39}, {"c40", c40},
};

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
        directory = argv[2];
        int ran = 0;
        for (std::size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++)
            if (name == ROWS[i].name || name == "all") {
                row = ROWS[i].name;
                matching = new MatchingHandler(controller);
                ROWS[i].run();
                controller.barrier();
                delete matching;
                ran++;
            }
        row = argv[1];
        if (name == "gigabytes" || name.find("throw") == 0) {
            matching = new MatchingHandler(controller);
            name == "gigabytes" ? gigabytes() : exceptions(name);
            delete matching;
        } else if (name == "static")
            global = controller;
        else if (name == "unwound")
            return unwound();
        else if (name == "fails" && me == 0)
            std::exit(5);
        else if (name != "fails")
            CHECK(ran > 0);
        controller.barrier();
        controller = Controller();
        // Static objects go last, and finalise.
        CHECK(global.isValid() == (name == "static"));
    }
    if (me == 0)
        std::printf("%s: %d contexts\n", row, n);
    return 0;
}
