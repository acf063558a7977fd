/* Two libraries with a queue each, and the program with one: none waits for the others, and ids are those of the specification. */
#include "gaspi_test.h"

typedef struct {
    gaspi_queue_id_t queue;
    gaspi_segment_id_t segment;
    gaspi_notification_id_t note;
} library;

static void begin(library *made, gaspi_segment_id_t segment, gaspi_notification_id_t note) {
    OK(gaspi_queue_create(&made->queue, BLOCK));
    made->segment = segment, made->note = note;
    make(segment, 1 << 20);
}

static gaspi_number_t open_of(gaspi_queue_id_t queue) {
    gaspi_number_t size = 99;
    OK(gaspi_queue_size(queue, &size));
    return size;
}

static void step(const library *of, gaspi_size_t size, gaspi_notification_t value) {
    OK(gaspi_write(of->segment, 0, next, of->segment, size, size, of->queue, BLOCK));
    OK(gaspi_notify(of->segment, next, of->note, value, of->queue, BLOCK));
}

int main(void) {
    library small, large;
    gaspi_number_t queues, most;
    gaspi_queue_id_t again;
    gaspi_notification_t value;
    start();
    OK(gaspi_queue_num(&queues));
    begin(&small, 3, 1), begin(&large, 4, 2);
    CHECK(small.queue == queues && large.queue == queues + 1);
    for (value = 1; value <= 20; value++) {
        step(&large, 1 << 19, value);
        step(&small, 8, value);
        CHECK(open_of(large.queue) == 2 && open_of(small.queue) == 2 && open_of(0) == 0);
        OK(gaspi_wait(small.queue, BLOCK));
        CHECK(open_of(small.queue) == 0 && open_of(large.queue) == 2);
        CHECK(await(small.segment, small.note) == value);
        OK(gaspi_wait(large.queue, BLOCK));
        CHECK(await(large.segment, large.note) == value);
        OK(gaspi_barrier(ALL, BLOCK));
    }
    /* The lowest free id, up to the limit. */
    OK(gaspi_queue_delete(small.queue));
    GIVES(GASPI_ERR_INV_QUEUE, gaspi_queue_delete(small.queue));
    GIVES(GASPI_ERR_INV_QUEUE, gaspi_wait(small.queue, BLOCK));
    OK(gaspi_queue_create(&again, GASPI_TEST));
    CHECK(again == small.queue);
    OK(gaspi_queue_max(&most));
    OK(gaspi_queue_num(&queues));
    for (; queues < most; queues++) {
        OK(gaspi_queue_create(&again, BLOCK));
        CHECK(again == queues);
    }
    GIVES(GASPI_ERROR, gaspi_queue_create(&again, BLOCK));
    step(&large, 64, 9);
    OK(gaspi_wait(large.queue, BLOCK));
    CHECK(await(large.segment, large.note) == 9);
    finish("libraries");
    return 0;
}
