#include <Cheetah/Cheetah.h>
#include <cstdio>
#include <vector>

static int arrived, added;                    // bells

static void take(std::vector<long> *inbox, std::vector<long> &values) {
    *inbox = values;
    arrived++;
}

static void add(long *sum, long &value) {
    *sum += value;
    added++;
}

int main(int argc, char **argv) {
    Cheetah::Controller controller(argc, argv);
    Cheetah::MatchingHandler handler(controller);
    const int me = controller.mycontext(), n = controller.ncontexts();

    std::vector<long> inbox;
    handler.request((me + n - 1) % n, 1, take, &inbox);
    handler.send((me + 1) % n, 1, std::vector<long>(3, me));
    controller.wait(arrived, 1);

    long sum = 0;
    handler.send(0, 2, inbox[2]);
    if (me == 0) {
        for (int from = 0; from < n; from++)
            handler.request(from, 2, add, &sum);
        controller.wait(added, n);
        std::printf("sum %ld\n", sum);
    }
    return 0;                                 // the controller's destructor finalises
}
