
/* Cheetah's matching handlers through the C++ header: the calls of matching. */
#include <Cheetah/Cheetah.h>

static long met;
static volatile unsigned long sink;

static void meet(unsigned long &value) {
    sink = value;
    met++;
}

static void take(Cheetah::Controller &controller, Cheetah::MatchingHandler &handler, int partner) {
    long before = met;
    handler.request(partner, 1, meet);
    while (met == before) controller.poll();
}

int main(int argc, char **argv) {
    Cheetah::Controller controller(argc, argv);
    Cheetah::MatchingHandler handler(controller);
    const int me = controller.mycontext(), batches = std::atoi(argv[2]);
    const long n = operations(2000, 8l << 20, 8, std::atol(argv[3]));
    for (int b = -2; b < batches; b++) {
        controller.barrier();
        double begin = now_ns();
        for (long i = 0; i < n && me < 2; i++) {
            if (me == 0) handler.send(1, 1, static_cast<unsigned long>(i));
            take(controller, handler, 1 - me);
            if (me == 1) handler.send(0, 1, static_cast<unsigned long>(i));
        }
        double ns = (now_ns() - begin) / n / 2;
        if (b >= 0 && me == 0) report(8, ns);
    }
    controller.barrier();
    (void)argc;
    return 0;
}
