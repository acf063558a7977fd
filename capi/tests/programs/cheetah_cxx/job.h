// What all rows of cheetah_cxx.cpp use.
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

static const char *row = "", *directory = "";
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
