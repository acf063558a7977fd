/* Rank 0 serves passive messages: it adds what each asks for to a counter of the sender, which the sender finds by notification. */
#include "gaspi_test.h"

int main(void) {
    enum { REQUESTS = 30, REPLY = 1024 };
    long *box, sums[256] = {0};
    int request;
    gaspi_rank_t from = 999;
    start();
    CHECK(n <= 256);
    box = make(0, 4096);
    GIVES(GASPI_ERR_INV_COMMSIZE, gaspi_passive_send(0, 0, 0, 0, GASPI_TEST));
    GIVES(GASPI_ERR_INV_COMMSIZE, gaspi_passive_send(0, 0, 0, 65536, GASPI_TEST));
    GIVES(GASPI_TIMEOUT, gaspi_passive_receive(0, 0, &from, 8, GASPI_TEST));
    CHECK(from == 999);
    OK(gaspi_barrier(ALL, BLOCK));
    if (me == 0) {
        for (request = 0; request < REQUESTS * (n - 1); request++) {
            OK(gaspi_passive_receive(0, 0, &from, sizeof *box, BLOCK));
            CHECK(from > 0 && from < n);
            sums[from] += box[0];
            box[1] = sums[from];
            OK(gaspi_write_notify(0, sizeof *box, from, 0, REPLY, sizeof *box, 3, 1, 0, BLOCK));
            OK(gaspi_wait(0, BLOCK));
        }
    } else {
        long sum = 0;
        for (request = 1; request <= REQUESTS; request++) {
            gaspi_return_t code;
            box[0] = request * me, sum += request * me;
            /* Resumed until it is received: one message. */
            while ((code = gaspi_passive_send(0, 0, 0, sizeof *box, request % 2 ? GASPI_TEST : 20)) != GASPI_SUCCESS)
                CHECK(code == GASPI_TIMEOUT);
            CHECK(await(0, 3) == 1);
            CHECK(*(long *)((char *)box + REPLY) == sum);
        }
    }
    finish("server");
    return 0;
}
