/*
 * Programs in the manner of those for GPI-2: queues that are filled until they are full, told by gaspi_queue_size and by the code; transfers
 * of the least and of the greatest size; notifications without data; segments and queues that are made again under their ids.
 */
#include "gaspi_test.h"

enum { PARTS = 255, SIZE = 1 << 16, HALF = SIZE / 2 };

static gaspi_number_t most;

static gaspi_number_t size_of(gaspi_queue_id_t queue) {
    gaspi_number_t size = 0;
    OK(gaspi_queue_size(queue, &size));
    return size;
}

static void full(void) {
    static gaspi_segment_id_t local[PARTS], remote[PARTS];
    static gaspi_offset_t local_offset[PARTS], remote_offset[PARTS];
    static gaspi_size_t size[PARTS];
    gaspi_number_t i;
    while (size_of(1) < most)
        OK(gaspi_write_notify(0, 0, next, 0, HALF, 1, me, 1, 1, BLOCK));
    GIVES(GASPI_QUEUE_FULL, gaspi_write_notify(0, 0, next, 0, HALF, 1, me, 1, 1, BLOCK));
    OK(gaspi_wait(1, BLOCK));
    CHECK(size_of(1) == 0);
    while (size_of(1) < most)
        OK(gaspi_read(0, 0, next, 0, HALF, 1, 1, BLOCK));
    GIVES(GASPI_QUEUE_FULL, gaspi_read(0, 0, next, 0, HALF, 1, 1, BLOCK));
    OK(gaspi_wait(1, BLOCK));
    for (i = 0; i < PARTS; i++) {
        local[i] = remote[i] = 0;
        local_offset[i] = i * sizeof(int), remote_offset[i] = HALF + i * sizeof(int);
        size[i] = sizeof(int);
    }
    while (size_of(0) < most)
        OK(gaspi_write_list_notify(PARTS, local, local_offset, next, remote, remote_offset, size, 0, me, 1, 0, BLOCK));
    CHECK(size_of(0) == most);
    GIVES(GASPI_QUEUE_FULL, gaspi_write_list_notify(PARTS, local, local_offset, next, remote, remote_offset, size, 0, me,
                                                    1, 0, BLOCK));
    OK(gaspi_wait(0, BLOCK));
    OK(gaspi_write_list_notify(PARTS, local, local_offset, next, remote, remote_offset, size, 0, me, 1, 0, BLOCK));
    OK(gaspi_wait(0, BLOCK));
    CHECK(await(0, before) == 1);
}

static void sizes(char *memory) {
    gaspi_size_t least, greatest, i;
    OK(gaspi_transfer_size_min(&least));
    OK(gaspi_transfer_size_max(&greatest));
    CHECK(greatest == HALF);
    CHECK(gaspi_read(0, 0, next, 0, 0, least - 1, 0, BLOCK) != GASPI_SUCCESS);
    OK(gaspi_read(0, 0, next, 0, 0, least, 0, BLOCK));
    CHECK(gaspi_read(0, 0, next, 0, 0, greatest + 1, 0, BLOCK) != GASPI_SUCCESS);
    memset(memory, 'a' + me, HALF);
    OK(gaspi_barrier(ALL, BLOCK));
    OK(gaspi_write_notify(0, 0, next, 0, HALF, greatest, 200, 1, 0, BLOCK));
    OK(gaspi_wait(0, BLOCK));
    CHECK(await(0, 200) == 1);
    for (i = 0; i < HALF; i++)
        CHECK(memory[HALF + i] == 'a' + before);
    OK(gaspi_barrier(ALL, BLOCK));
}

static void again(void) {
    gaspi_queue_id_t queue, same;
    int round;
    for (round = 0; round < 20; round++) {
        make(1, 64 + (gaspi_size_t)round);
        OK(gaspi_queue_create(&queue, BLOCK));
        OK(gaspi_notify(1, next, 3, (gaspi_notification_t)round + 1, queue, BLOCK));
        CHECK(await(1, 3) == (gaspi_notification_t)round + 1);
        OK(gaspi_wait(queue, BLOCK));
        OK(gaspi_queue_delete(queue));
        OK(gaspi_queue_create(&same, BLOCK));
        CHECK(same == queue);
        OK(gaspi_queue_delete(same));
        OK(gaspi_barrier(ALL, BLOCK));
        OK(gaspi_segment_delete(1));
    }
}

int main(void) {
    gaspi_config_t config;
    char *memory;
    OK(gaspi_config_get(&config));
    config.transfer_size_max = HALF;
    OK(gaspi_config_set(config));
    start();
    OK(gaspi_queue_size_max(&most));
    memory = make(0, SIZE);
    OK(gaspi_barrier(ALL, BLOCK));
    full();
    OK(gaspi_barrier(ALL, BLOCK));
    sizes(memory);
    again();
    finish("limits");
    return 0;
}
