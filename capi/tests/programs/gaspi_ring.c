/* A value goes round the ring, one more at each rank, with write_notify. */
#include "gaspi_test.h"

int main(void) {
    enum { ROUNDS = 50 };
    long *box;
    int round;
    start();
    box = make(0, 4096);
    for (round = 0; round < ROUNDS; round++) {
        if (me == 0) {
            box[0] = round;
        } else {
            CHECK(await(0, 7) == (gaspi_notification_t)round + 1);
            box[0] = box[1] + 1;
        }
        OK(gaspi_write_notify(0, 0, next, 0, sizeof *box, sizeof *box, 7, (gaspi_notification_t)round + 1, 0, BLOCK));
        OK(gaspi_wait(0, BLOCK));
        if (me == 0) {
            CHECK(await(0, 7) == (gaspi_notification_t)round + 1);
            CHECK(box[1] == round + n - 1);
        }
    }
    finish("ring");
    return 0;
}
